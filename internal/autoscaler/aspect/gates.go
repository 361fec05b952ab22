// SPDX-License-Identifier: Apache-2.0

package aspect

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
)

const (
	// unclaimed is how long a pod may be out of the endpoints without a GPUAutoscaler that
	// wants it: longer than a new leader takes to decide about all of them.
	unclaimed = 30 * time.Second
	// sweepEvery is the time between two looks at pods that wait.
	sweepEvery = time.Second
	// workers bounds the parallel writes of gates, and perPayer those of one namespace: however many pods of it wait, another
	// one's next pod has a worker.
	workers, perPayer = 8, 2
	// firstRetry and lastRetry bound the time until a failed write is repeated.
	firstRetry, lastRetry = time.Second, 30 * time.Second
	writeTimeout          = 5 * time.Second
)

// Gates keeps the readiness gate of every pod that declares it open, whether a
// GPUAutoscaler scales the pod or not, unless one claims that it leaves. Only the leader
// writes.
type Gates struct {
	deps Deps
	wake chan struct{}

	mu     sync.Mutex
	closed map[types.UID]*closed // pods whose gate is not open
	claims map[types.UID]time.Time
	queues map[string][]*closed // that are due, by namespace
	writes map[string]int       // in flight, by namespace
	flying int                  // all of them
	failed string               // the last error that was logged; empty: the last write succeeded
}

// closed is a pod whose gate is not open.
type closed struct {
	namespace, name string
	uid             types.UID
	queued          bool      // or its write is in flight
	draining        bool      // by a scale-down, else nobody has set the condition yet
	since           time.Time // when this replica of the controller, as the leader, found it so without a claim; zero: not yet
	failures        int
	next            time.Time // not to be written before
}

// newGates makes Gates. Run has to run.
func newGates(deps Deps) *Gates {
	return &Gates{deps: deps, wake: make(chan struct{}, 1), closed: map[types.UID]*closed{}, claims: map[types.UID]time.Time{}, queues: map[string][]*closed{}, writes: map[string]int{}}
}

// PodChanged handles a change of a pod, as Controller.PodChanged does. It does not block.
func (g *Gates) PodChanged(old, pod *corev1.Pod) {
	if pod == nil || old != nil && old.UID != pod.UID {
		if old != nil {
			g.forget(old.UID)
		}
		if pod == nil {
			return
		}
	}
	if !replica.Gated(&pod.Spec) {
		return
	}
	c := replica.Gate(pod)
	ours := c == nil || c.Status == corev1.ConditionFalse && c.Reason == v1alpha1.ReasonDraining
	if !ours || pod.DeletionTimestamp != nil || replica.Finished(pod) {
		g.forget(pod.UID) // open, or somebody else has closed it
		return
	}
	g.mu.Lock()
	x := g.closed[pod.UID]
	if x == nil {
		x = &closed{namespace: pod.Namespace, name: pod.Name, uid: pod.UID}
		g.closed[pod.UID] = x
	}
	if x.draining = c != nil; !x.draining {
		g.queue(x, time.Now())
	}
	g.mu.Unlock()
	g.look()
}

// look has Run look at the pods that wait. It does not block.
func (g *Gates) look() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

func (g *Gates) forget(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.closed, uid)
	delete(g.claims, uid)
}

// claim says that a GPUAutoscaler wants these pods to be out of the endpoints. It has to be
// repeated.
func (g *Gates) claim(pods []types.UID, now time.Time) {
	if len(pods) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, uid := range pods {
		g.claims[uid] = now
	}
}

// Run opens gates until ctx is done.
func (g *Gates) Run(ctx context.Context) {
	var writes sync.WaitGroup
	defer writes.Wait()
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	g.sweep(time.Now())
	for {
		for _, x := range g.take() {
			writes.Go(func() { g.open(ctx, x) })
		}
		select {
		case <-ctx.Done():
			return
		case <-g.wake:
		case <-tick.C:
			g.sweep(time.Now())
		}
	}
}

// sweep queues the pods whose gate is to be opened now.
func (g *Gates) sweep(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for uid, at := range g.claims {
		if now.Sub(at) > unclaimed {
			delete(g.claims, uid)
		}
	}
	if !g.deps.Leading() {
		for _, x := range g.closed {
			x.since, x.queued = time.Time{}, false
		}
		clear(g.queues)
		return
	}
	for uid, x := range g.closed {
		if _, claimed := g.claims[uid]; x.draining && claimed {
			x.since = time.Time{}
			continue
		}
		if x.since.IsZero() || x.since.After(now) {
			x.since = now
		}
		if !x.draining || now.Sub(x.since) >= unclaimed {
			g.queue(x, now)
		}
	}
}

// queue queues a pod, if it is due. The caller holds g.mu.
func (g *Gates) queue(x *closed, now time.Time) {
	if !x.queued && !now.Before(x.next) {
		x.queued = true
		g.queues[x.namespace] = append(g.queues[x.namespace], x)
	}
}

// take takes pods from the queues, of all namespaces in turn, as far as there are workers for them.
func (g *Gates) take() (out []*closed) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.deps.Leading() {
		return nil
	}
	for progress := true; progress; {
		progress = false
		for name, list := range g.queues {
			if g.flying == workers {
				return out
			}
			if g.writes[name] == perPayer {
				continue
			}
			x := list[0]
			if g.queues[name] = list[1:]; len(list) == 1 {
				delete(g.queues, name)
			}
			progress = true
			if _, claimed := g.claims[x.uid]; g.closed[x.uid] != x || x.draining && claimed {
				x.queued = false
				continue
			}
			g.writes[name]++
			g.flying++
			out = append(out, x)
		}
	}
	return out
}

// landed frees the worker of a pod.
func (g *Gates) landed(x *closed) {
	g.mu.Lock()
	x.queued = false
	g.flying--
	if g.writes[x.namespace]--; g.writes[x.namespace] == 0 {
		delete(g.writes, x.namespace)
	}
	g.mu.Unlock()
	g.look()
}

// open opens the gate of a pod, and sets when a failed write is repeated. One that
// succeeded is repeated too, until the pod is seen with an open gate.
func (g *Gates) open(ctx context.Context, x *closed) {
	defer g.landed(x)
	done, err := g.deps.Writes.Acquire(ctx, fair.Request{Payer: fair.Namespace(x.namespace)})
	if err != nil {
		return // ctx is done
	}
	err = g.write(ctx, x.namespace, x.name, x.uid, true)
	done()
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil {
		x.failures = 0
	}
	x.next = time.Now().Add(min(firstRetry<<min(x.failures, 10), lastRetry))
	text := ""
	if err != nil && ctx.Err() == nil {
		x.failures++
		text = err.Error()
	}
	if text != "" && g.failed == "" {
		g.deps.Log.Warn("cannot open a readiness gate, the pod stays unready", "namespace", x.namespace, "pod", x.name, "err", err)
	}
	g.failed = text
}

// write opens or closes the readiness gate of a pod.
func (g *Gates) write(ctx context.Context, namespace, name string, uid types.UID, open bool) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	c := corev1.PodCondition{
		Type: v1alpha1.ReadinessGate, Status: corev1.ConditionTrue, Reason: v1alpha1.ReasonInService,
		LastTransitionTime: metav1.Now(),
	}
	if !open {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, v1alpha1.ReasonDraining, "a scale-down removes the pod once its requests are finished"
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": uid},
		"status": map[string]any{"conditions": []any{map[string]any{
			"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message, "lastTransitionTime": c.LastTransitionTime,
		}}},
	})
	if err != nil {
		return err
	}
	named := &corev1.Pod{}
	named.Namespace, named.Name = namespace, name
	err = g.deps.Client.Status().Patch(ctx, named, client.RawPatch(types.StrategicMergePatchType, patch))
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
