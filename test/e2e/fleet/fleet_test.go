// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package fleet

import (
	"context"
	"flag"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/cluster"
	"github.com/gpupilot/gpupilot/test/stack"
)

var (
	length = flag.Duration("soak", time.Minute, "how long the nodes churn")
	count  = flag.Int("nodes", 1000, "how many there are")
)

const (
	steady, moving = 24, 6 // workloads
	// maxRSS bounds the controller's memory. maxGrowth is what it may grow by from the first third of a run of a minute to the
	// last: its window of a minute fills. In a run of more than five minutes the last third may be flat times the second.
	maxRSS, maxGrowth = 512 << 20, 64 << 20
	flat              = 1.1
)

func TestSoak(t *testing.T) {
	k := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	settled(t, k)
	began := time.Now()
	memory := &rss{}
	churning, stop := context.WithTimeout(ctx, *length)
	defer stop()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	c := &churn{kubelets: k.kubelets}
	for i := 0; churning.Err() == nil; i++ {
		c.step(ctx, i)
		if i%5 == 0 {
			memory.add(time.Since(began), stack.Meter(t, k.ControllerURL, "process_resident_memory_bytes"))
		}
		select {
		case <-churning.Done():
		case <-tick.C:
		}
	}
	c.heal(ctx)
	memory.judge(t)
	settled(t, k)
	k.mu.Lock()
	defer k.mu.Unlock()
	t.Logf("%d nodes for %v: %d agents restarted, %d nodes replaced, %d pods evicted, %d pages, %.0f scrapes (%.0f series in memory), %d changes of replicas",
		len(k.nodes), time.Since(began).Round(time.Second), c.agents, c.nodes, c.evicted, k.pages,
		stack.Meter(t, k.ControllerURL, "gpupilot_scrapes_total"), stack.Meter(t, k.ControllerURL, "gpupilot_window_series"), k.changes.Load())
}

// rig is the stack with the fleet on it.
type rig struct {
	*stack.Stack
	*kubelets
	changes atomic.Int64
}

func start(t *testing.T) *rig {
	t.Helper()
	s := stack.New(t, stack.Config{
		Hollow: true, NoController: true, ControllerArgs: []string{"--window", "1m"},
		// Watches end after half a minute to a minute instead of half an hour to an hour.
		ClusterArgs: map[string][]string{cluster.APIServer: {"--min-request-timeout=30"}},
	})
	set, err := kubernetes.NewForConfig(s.REST)
	stack.Must(t, err)
	r := &rig{Stack: s, kubelets: &kubelets{fleet: newFleet(*count), stack: s, k: set, slots: make(chan struct{}, writers), fail: t.Errorf}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(func() { cancel(); r.all.Wait() })
	stack.Must(t, r.serve(ctx))
	stack.Must(t, s.AwaitNamespace(t.Context(), namespace))
	stack.Must(t, s.AwaitNamespace(t.Context(), stack.Namespace))
	for _, n := range r.nodes {
		r.do(ctx, "join", func() error { return r.join(ctx, n) })
	}
	stack.Must(t, r.watch(ctx))
	r.deploy(t)
	r.judge(ctx, t)
	stack.Must(t, s.StartController(t.Context()))
	return r
}

// deploy creates the workloads with as many replicas as they need, and their autoscalers.
func (r *rig) deploy(t *testing.T) {
	t.Helper()
	for i := range steady + moving {
		w := &workload{name: fmt.Sprintf("steady-%d", i)}
		if i >= steady {
			w.name = fmt.Sprintf("moving-%d", i-steady)
		}
		r.mu.Lock()
		r.workloads[w.name] = w
		r.offer(w, 2+float64(i%5))
		replicas := need(w.load)
		r.mu.Unlock()
		d := stack.Deployment(namespace, w.name, replicas, 0)
		d.Spec.Template.Spec.SchedulerName = "fleet"
		stack.Must(t, r.Client.Create(t.Context(), d))
		five := int32(5)
		stack.Must(t, r.Client.Create(t.Context(), &v1alpha1.GPUAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: w.name},
			Spec: v1alpha1.GPUAutoscalerSpec{
				ScaleTargetRef: v1alpha1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: w.name},
				MaxReplicas:    60,
				Signals:        []v1alpha1.Signal{{GPU: &v1alpha1.GPUSignal{Metric: "Utilization"}, Target: &v1alpha1.Target{Value: resource.MustParse("60")}}},
				Behavior:       &v1alpha1.Behavior{ScaleDown: &v1alpha1.ScalingRules{StabilizationWindowSeconds: &five}},
			},
		}))
	}
}

// judge checks every change of replicas. An informer begins another watch when the API server ends one.
func (r *rig) judge(ctx context.Context, t *testing.T) {
	t.Helper()
	deployments := informers.NewSharedInformerFactoryWithOptions(r.k, 0, informers.WithNamespace(namespace)).Apps().V1().Deployments().Informer()
	see := func(o any) {
		d := o.(*appsv1.Deployment)
		if r.changed(d.Name, *d.Spec.Replicas) {
			r.changes.Add(1)
		}
		if wrong := r.scaled(d.Name, *d.Spec.Replicas); wrong != "" {
			t.Errorf("%s; %s", wrong, r.why(ctx, d.Name))
		}
	}
	_, err := deployments.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, o any) { see(o) }})
	stack.Must(t, err)
	r.all.Go(func() { deployments.RunWithContext(ctx) })
}

// why is the last decision about a workload, and what its nodes run.
func (r *rig) why(ctx context.Context, name string) string {
	var a v1alpha1.GPUAutoscaler
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &a); err != nil {
		return err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprintf("%s; last decision %+v", r.workloads[name], a.Status.LastDecision)
}

// settled waits until every workload has what its load needs, with data of every replica.
func settled(t *testing.T, r *rig) {
	t.Helper()
	stack.Eventually(t, func() error {
		var list v1alpha1.GPUAutoscalerList
		if err := r.Client.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
			return err
		}
		for i := range list.Items {
			a := &list.Items[i]
			r.mu.Lock()
			w := r.workloads[a.Name]
			least, most, serving, seen, says := enough(w.load), need(w.load)+1, w.serving, w.seen, w.String()
			r.mu.Unlock()
			d := a.Status.LastDecision
			switch {
			case seen < least || seen > most || serving != int(seen):
				return fmt.Errorf("%s; %d replicas, %d to %d are needed; last decision %+v", says, seen, least, most, d)
			case d == nil || len(d.Inputs) == 0 || d.Inputs[0].Replicas != seen:
				return fmt.Errorf("%s; not all of %d are measured: %+v", says, seen, d)
			}
		}
		return nil
	})
}

// rss is the controller's resident memory over time.
type rss struct {
	at []time.Duration
	is []float64
}

func (m *rss) add(at time.Duration, bytes float64) {
	m.at, m.is = append(m.at, at), append(m.is, bytes)
}

// judge compares the second and the last third with the first: the peak of each, so that a collection of garbage counts for nothing.
func (m *rss) judge(t *testing.T) {
	t.Helper()
	var peak [3]float64
	all := m.at[len(m.at)-1] + 1
	for i, at := range m.at {
		third := int(3 * at / all)
		peak[third] = max(peak[third], m.is[i])
	}
	t.Logf("the controller's resident memory, peak of each third: %.0f, %.0f and %.0f MiB", peak[0]/(1<<20), peak[1]/(1<<20), peak[2]/(1<<20))
	short, long := all < 90*time.Second, all > 5*time.Minute
	switch {
	case peak[2] > maxRSS, short && peak[2] > peak[0]+maxGrowth:
		t.Errorf("the controller grew from %.0f to %.0f MiB", peak[0]/(1<<20), peak[2]/(1<<20))
	case long && peak[2] > flat*peak[1]:
		t.Errorf("the controller grows on: from %.0f to %.0f MiB", peak[1]/(1<<20), peak[2]/(1<<20))
	}
}
