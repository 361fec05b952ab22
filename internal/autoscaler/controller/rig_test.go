// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/aspect"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/trust"
	"github.com/gpupilot/gpupilot/internal/window/usage"
	"github.com/gpupilot/gpupilot/internal/window/view"
	"github.com/gpupilot/gpupilot/test/podtest"
)

// rig is a controller whose API server is controller-runtime's fake, whose
// pods are a list and whose samples are put into the store by hand.
type rig struct {
	*Controller
	t       testing.TB
	client  client.Client
	pods    podtest.List
	store   *series.Store
	leading bool
	states  []view.Target
	mu      sync.Mutex // guards what the controller's goroutines write: events, scraped
	events  []Event
	scraped [][]discovery.Target
	watch   func(ctx context.Context, obj client.Object, h toolscache.ResourceEventHandler) error
	calls   interceptor.Funcs // may be changed while it runs
	now     time.Time
}

func newRig(t testing.TB, objects ...client.Object) *rig {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, autoscalingv1.AddToScheme, autoscalingv2.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	r := &rig{t: t, leading: true, states: []view.Target{{Name: "agent/gpupilot-system/agent-1"}}, now: time.Now().Truncate(time.Second), store: series.New(series.Config{})}
	r.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.GPUAutoscaler{}).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
				if f := r.calls.SubResourceUpdate; f != nil {
					return f(ctx, c, sub, obj, opts...)
				}
				return accept(ctx, c, sub, obj, opts...)
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
				if f := r.calls.SubResourcePatch; f != nil {
					return f(ctx, c, sub, obj, patch, opts...)
				}
				return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
			},
		}).Build()
	sel := func(s string) []labels.Selector {
		parsed, err := labels.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return []labels.Selector{parsed}
	}
	r.Controller = New(Config{Discovery: discovery.Config{
		Agents: sel("app=agent"), AgentNamespace: "ns", DCGM: sel("app=dcgm"), DCGMNamespaces: []string{"ns"},
	}}, Deps{
		Deps: aspect.Deps{Client: r.client, Store: r.store, Devices: trust.NewDevices(nil), Leading: func() bool { return r.leading }},
		Live: r.client, Pods: &r.pods, Scaler: target.NewScaler(r.client), Fields: usage.NewFields(),
		AwaitInstalled: func(ctx context.Context, _ client.Object) error { <-ctx.Done(); return ctx.Err() },
		Watch: func(ctx context.Context, obj client.Object, h toolscache.ResourceEventHandler) error {
			return r.watch(ctx, obj, h)
		},
		LimitQuery: func(_, promql string) (string, bool, error) { return promql, false, nil },

		Scrape: func(ts []discovery.Target) { r.mu.Lock(); r.scraped = append(r.scraped, ts); r.mu.Unlock() },
		States: func() []view.Target { return r.states },
		Leader: func() string { return "me" },
		Record: func(e Event) { r.mu.Lock(); r.events = append(r.events, e); r.mu.Unlock() },
	})
	return r
}

// reader reads the values of the rig's pods.
func (r *rig) reader() *usage.Reader {
	return usage.NewReader(usage.Deps{Store: r.store, Pods: &r.pods, Devices: r.deps.Devices, Fields: r.deps.Fields})
}

// discover changes what is discovered from now on.
func (r *rig) discover(change func(*discovery.Config)) {
	change(&r.cfg.Discovery)
	r.finder = discovery.New(r.cfg.Discovery, &r.pods, nil)
}

// accept writes a scale. The fake would take the object that only names the
// target for its new contents.
func accept(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
	if err := c.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
		return err
	}
	return c.SubResource(sub).Update(ctx, obj, opts...)
}

// add makes the workload of a, without its goroutines.
func (r *rig) add(a *v1alpha1.GPUAutoscaler) *workload {
	r.t.Helper()
	a.Generation++
	var is v1alpha1.GPUAutoscaler
	if r.client.Get(r.t.Context(), client.ObjectKeyFromObject(a), &is) == nil {
		if is.Generation = a.Generation; r.client.Update(r.t.Context(), &is) != nil {
			r.t.Fatal("cannot set the generation")
		}
	}
	w := newWorkload(r.t.Context(), r.shared, r.route, a)
	r.rivals.SetAutoscaler(a, false)
	r.workloads[w.key] = w
	return w
}

// utilization stores a scrape of the agent of node-1.
func (r *rig) utilization(at time.Time, value float64, pods ...*corev1.Pod) {
	r.t.Helper()
	r.utilizationBy("agent", "node-1", at, value, pods...)
}

// utilizationBy stores a scrape of an exporter on a node, with a GPU for each pod.
func (r *rig) utilizationBy(name, node string, at time.Time, value float64, pods ...*corev1.Pod) {
	r.t.Helper()
	podtest.ExposeUtilization(r.t, r.store, name, node, at, value, pods...)
}

func (r *rig) replicas(name string) int32 {
	r.t.Helper()
	var d appsv1.Deployment
	if err := r.client.Get(r.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, &d); err != nil {
		r.t.Fatal(err)
	}
	return *d.Spec.Replicas
}

// eventReasons returns the types and reasons of the Events.
func (r *rig) eventReasons() []string {
	var out []string
	for _, e := range r.events {
		out = append(out, e.Kind+" "+e.Reason)
	}
	return out
}

func deployment(name string, replicas int32) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{requests(podtest.GPUResource, "1")}}},
		},
	}
}

// autoscaler has a Deployment of its name at 60 % utilisation, without
// stabilisation.
func autoscaler(name string) *v1alpha1.GPUAutoscaler {
	zero := int32(0)
	return &v1alpha1.GPUAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec: v1alpha1.GPUAutoscalerSpec{
			ScaleTargetRef: v1alpha1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
			MaxReplicas:    10,
			Signals: []v1alpha1.Signal{{
				GPU:    &v1alpha1.GPUSignal{Metric: "Utilization"},
				Target: &v1alpha1.Target{Value: resource.MustParse("60")},
			}},
			Behavior: &v1alpha1.Behavior{ScaleDown: &v1alpha1.ScalingRules{StabilizationWindowSeconds: &zero}},
		},
	}
}

// The makers of pods.
var (
	pod, ready           = podtest.Pod, podtest.Ready
	containers, requests = podtest.Containers, podtest.Container
)

func contains(t *testing.T, got, want string) {
	t.Helper()
	if !strings.Contains(got, want) {
		t.Errorf("%q does not say %q", got, want)
	}
}

func at(seconds int) time.Time {
	return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(seconds) * time.Second)
}
