// SPDX-License-Identifier: Apache-2.0

// Package metricquery serves the values of MetricQueries, for external.metrics.k8s.io and
// for KEDA, and writes their status.
//
// A scheduler evaluates the queries in the background; reading a value evaluates nothing.
// Of several objects of a namespace with the same metric name, the oldest one is served,
// and the others say so in their condition.
package metricquery

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
)

// Sample is a value with the time at which it was measured or decided.
type Sample struct {
	Value float64
	At    time.Time
}

// Config holds the settings of a Keeper. Zero values mean the defaults.
type Config struct {
	Every time.Duration // between two evaluations of an object without PromQL; 1 s

	// FollowedEvery is the time between two evaluations of an object that somebody
	// follows; half of Every.
	FollowedEvery        time.Duration
	FollowedPerNamespace int // objects of a namespace that are evaluated so often; 10
	Followed             int // objects of all namespaces that are; 256
}

// Deps holds the collaborators of a Keeper.
type Deps struct {
	// Watch calls h for the objects of the kind of obj, as kube.Clients.Watch.
	Watch func(ctx context.Context, obj client.Object, h toolscache.ResourceEventHandler) error
	// AwaitInstalled waits until the API server serves the kind of obj. An error means
	// that ctx is done.
	AwaitInstalled func(ctx context.Context, obj client.Object) error
	Client         client.Client // writes the status
	Writes         *fair.Slots   // of these writes, with the namespace as payer; nil: ForWrites

	Queries Queries
	// LimitQuery limits a query to the series of a namespace, unless the namespace is
	// trusted. Workload and Desired read a workload's metric and the replicas of a
	// GPUAutoscaler. The text of their errors is shown in the condition.
	LimitQuery func(namespace, promql string) (limited string, trusted bool, err error)
	Workload   func(ctx context.Context, namespace string, q *v1alpha1.MetricQueryGPU) (Sample, error)
	Desired    func(namespace, autoscaler string) (Sample, error)

	Leading func() bool  // whether this replica writes
	Log     *slog.Logger // nil discards
}

// Queries evaluates the objects. *queries.Scheduler implements it.
type Queries interface {
	Set(kind queries.Kind, namespace string, owners []queries.Owner)
	Answer(namespace string, key queries.Key) queries.Answer
}

// Keeper keeps the MetricQueries while Run runs. Its methods are safe for concurrent use.
type Keeper struct {
	cfg       Config
	deps      Deps
	followers followers

	mu      sync.RWMutex
	entries map[types.NamespacedName]*entry
	served  map[metricKey]*entry
	running sync.WaitGroup
}

// metricKey is a metric of a namespace.
type metricKey struct{ namespace, metric string }

// New makes a keeper. Run starts it.
func New(cfg Config, deps Deps) *Keeper {
	cfg.Every = cmp.Or(cfg.Every, time.Second)
	cfg.FollowedEvery = min(cmp.Or(cfg.FollowedEvery, cfg.Every/2), queries.Every)
	cfg.FollowedPerNamespace = cmp.Or(cfg.FollowedPerNamespace, 10)
	cfg.Followed = cmp.Or(cfg.Followed, 256)
	if deps.Writes == nil {
		deps.Writes = fair.NewSlots(fair.ForWrites())
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	return &Keeper{
		cfg: cfg, deps: deps, entries: map[types.NamespacedName]*entry{}, served: map[metricKey]*entry{},
		followers: followers{share: cfg.FollowedPerNamespace, total: cfg.Followed, by: map[string]*namespaceFollowers{}},
	}
}

// Run watches the objects and writes their status until ctx is done. Without the CRD it
// waits for it.
func (k *Keeper) Run(ctx context.Context) {
	defer k.running.Wait()
	if k.deps.AwaitInstalled(ctx, kind()) != nil {
		return
	}
	handle := func(obj any, gone bool) {
		if last, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
			obj = last.Obj
		}
		if u, ok := obj.(*unstructured.Unstructured); ok {
			k.changed(ctx, u, gone)
		}
	}
	if k.deps.Watch(ctx, kind(), toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { handle(obj, false) },
		UpdateFunc: func(_, obj any) { handle(obj, false) },
		DeleteFunc: func(obj any) { handle(obj, true) },
	}) != nil {
		return // ctx is done
	}
	<-ctx.Done()
}

// kind returns an empty unstructured MetricQuery. The kind is watched unstructured,
// because a typed informer stops at the first malformed object.
func kind() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("MetricQuery"))
	return u
}

// decode decodes an object. An object that cannot be decoded keeps its metadata.
func decode(u *unstructured.Unstructured) (*v1alpha1.MetricQuery, error) {
	q := &v1alpha1.MetricQuery{}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, q)
	if err != nil {
		q = &v1alpha1.MetricQuery{}
		q.Namespace, q.Name, q.UID, q.Generation = u.GetNamespace(), u.GetName(), u.GetUID(), u.GetGeneration()
		q.CreationTimestamp, q.DeletionTimestamp = u.GetCreationTimestamp(), u.GetDeletionTimestamp()
	}
	return q, err
}

// changed starts, restarts or stops the evaluation of an object.
func (k *Keeper) changed(ctx context.Context, u *unstructured.Unstructured, gone bool) {
	q, flaw := decode(u)
	key := types.NamespacedName{Namespace: q.Namespace, Name: q.Name}
	gone = gone || q.DeletionTimestamp != nil
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.entries[key]
	if before != nil && !gone && before.object.UID == q.UID && before.object.Generation == q.Generation {
		return // only the status changed, which a controller wrote
	}
	if before != nil {
		before.cancel()
		delete(k.entries, key)
	}
	if !gone && ctx.Err() == nil {
		e := newEntry(k, q, flaw)
		k.entries[key] = e
		ctx, e.cancel = context.WithCancel(ctx)
		k.running.Go(func() { e.run(ctx) })
	}
	k.rank(q.Namespace)
}

// rank decides which objects of a namespace are served, the oldest one of each metric,
// and has them evaluated.
// k.mu is held.
func (k *Keeper) rank(namespace string) {
	for key := range k.served {
		if key.namespace == namespace {
			delete(k.served, key)
		}
	}
	var list []*entry
	for key, e := range k.entries {
		if key.Namespace == namespace {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *entry) int {
		return cmp.Or(a.object.CreationTimestamp.Compare(b.object.CreationTimestamp.Time), cmp.Compare(a.object.Name, b.object.Name))
	})
	var owners []queries.Owner
	for _, e := range list {
		key := metricKey{namespace, e.metric}
		if e.flaw != nil {
			continue
		}
		rival := k.served[key]
		if e.setRival(rival); rival != nil {
			continue
		}
		if k.served[key] = e; e.rejected == nil {
			owners = append(owners, e.owner())
		}
	}
	k.deps.Queries.Set(queries.MetricQuery, namespace, owners)
}

// Metric returns the value of an external metric of a namespace. found is false if no
// object within the limit of its namespace has it. The error says why it has no fresh
// value.
func (k *Keeper) Metric(namespace, metric string) (s Sample, found bool, err error) {
	k.mu.RLock()
	e := k.served[metricKey{namespace, metric}]
	k.mu.RUnlock()
	if e == nil {
		return Sample{}, false, nil
	}
	s, isRefused, err := e.newest(time.Now())
	if isRefused {
		return Sample{}, false, nil
	}
	return s, true, err
}

// Object returns the value of a MetricQuery by the name of the object, as Metric does. An
// object that is beyond the limit is found.
func (k *Keeper) Object(namespace, name string) (s Sample, found bool, err error) {
	k.mu.RLock()
	e := k.entries[types.NamespacedName{Namespace: namespace, Name: name}]
	k.mu.RUnlock()
	if e == nil {
		return Sample{}, false, nil
	}
	s, _, err = e.newest(time.Now())
	return s, true, err
}
