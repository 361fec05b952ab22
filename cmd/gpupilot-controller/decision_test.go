// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/aspect"
	"github.com/gpupilot/gpupilot/internal/autoscaler/controller"
	"github.com/gpupilot/gpupilot/internal/autoscaler/index"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/scrape"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/trust"
	"github.com/gpupilot/gpupilot/internal/window/usage"
)

// exporterPage is a Doer that answers with a dcgm-exporter's page.
type exporterPage func(now time.Time) string

func (p exporterPage) Do(*http.Request) (*http.Response, error) {
	body := p(time.Now())
	return &http.Response{
		StatusCode: 200, Status: "200 OK", ContentLength: int64(len(body)), Body: io.NopCloser(strings.NewReader(body)),
	}, nil
}

// pageOf shows three GPUs of web's pods with these utilisations; energy is
// that of each.
func pageOf(energy int64, utils ...string) string {
	var b strings.Builder
	for i, util := range utils {
		l := fmt.Sprintf(`{gpu="%d",UUID="G%d",namespace="ns",pod="web-%d",container="c"}`, i, i, i)
		fmt.Fprintf(&b, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION%s %d\nDCGM_FI_DEV_GPU_UTIL%s %s\n", l, energy, l, util)
	}
	return b.String()
}

// fakeAPI returns a client of an API server with these objects, whose scale
// subresource can be written.
func fakeAPI(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, autoscalingv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1alpha1.GPUAutoscaler{}).
		WithInterceptorFuncs(interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
			if err := c.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
				return err
			}
			return c.SubResource(sub).Update(ctx, obj, opts...)
		}}).Build()
}

// decided runs the scraper and the controller for some time of a synctest bubble,
// wired as in assemble, on a Deployment of three replicas with a target of 60 % of the
// GPU. It returns the replicas to which the Deployment was scaled.
func decided(t *testing.T, page exporterPage, d time.Duration) (replicas int32) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		deployment, autoscaler := workload()
		api := fakeAPI(t, deployment, autoscaler)
		log, store := slog.New(slog.DiscardHandler), series.New(series.Config{})
		pods, scraper := index.NewPods(), scrape.New(scrape.Config{}, scrape.Deps{Client: page, Store: store, Log: log})
		scraping := &discovery.Scraping{Scraper: scraper, Store: store}
		control := controller.New(controller.Config{Discovery: discovery.Config{
			DCGM: []labels.Selector{labels.SelectorFromSet(labels.Set{"app": "dcgm"})}, DCGMNamespaces: []string{"ns"},
		}}, controller.Deps{
			Deps: aspect.Deps{Client: api, Store: store, Devices: trust.NewDevices(nil), Leading: func() bool { return true }, Log: log},
			Live: api, Pods: pods, Scaler: target.NewScaler(api), Fields: usage.NewFields(), Scrape: scraping.Sync, States: scraping.States,
			AwaitInstalled: func(ctx context.Context, _ client.Object) error { <-ctx.Done(); return ctx.Err() }, Leader: func() string { return "" },
			Record: func(controller.Event) {},
			Watch: func(_ context.Context, obj client.Object, h toolscache.ResourceEventHandler) error {
				if _, ok := obj.(*appsv1.Deployment); ok {
					h.OnAdd(deployment, true)
				}
				if obj.GetObjectKind().GroupVersionKind().Kind == "GPUAutoscaler" {
					fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(autoscaler)
					if err != nil {
						return err
					}
					h.OnAdd(&unstructured.Unstructured{Object: fields}, true)
				}
				return nil
			},
		})
		scraper.OnDeliver(control.Deliver)
		pods.OnAdd(running("dcgm", "dcgm-1"), true)
		for i := range 3 {
			pods.OnAdd(running("web", fmt.Sprintf("web-%d", i)), true)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { scraper.Run(ctx) })
		all.Go(func() { _ = control.Run(ctx, func() {}) })
		time.Sleep(d)
		synctest.Wait()
		var is appsv1.Deployment
		if err := api.Get(ctx, client.ObjectKeyFromObject(deployment), &is); err != nil {
			t.Error(err)
		}
		replicas = *is.Spec.Replicas
		if states := scraping.States(); len(states) != 1 || states[0].Kind != discovery.KindDCGM || states[0].Freshness == "" {
			t.Errorf("targets %+v", states)
		}
		cancel()
		all.Wait()
	})
	return replicas
}

// workload is three replicas on a GPU each, which go up and down at once.
func workload() (*appsv1.Deployment, *v1alpha1.GPUAutoscaler) {
	three, zero := int32(3), int32(0)
	set := map[string]string{"app": "web"}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec:       appsv1.DeploymentSpec{Replicas: &three, Selector: &metav1.LabelSelector{MatchLabels: set}},
	}
	autoscaler := &v1alpha1.GPUAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u", Generation: 1},
		Spec: v1alpha1.GPUAutoscalerSpec{
			ScaleTargetRef: v1alpha1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			MaxReplicas:    12,
			Signals: []v1alpha1.Signal{{
				GPU: &v1alpha1.GPUSignal{Metric: "Utilization"}, Target: &v1alpha1.Target{Value: resource.MustParse("60")},
			}},
			Behavior: &v1alpha1.Behavior{ScaleDown: &v1alpha1.ScalingRules{StabilizationWindowSeconds: &zero}},
		},
	}
	return deployment, autoscaler
}

func running(app, name string) *corev1.Pod {
	since := metav1.NewTime(time.Now().Add(-time.Hour))
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"app": app}, CreationTimestamp: since},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")},
		}}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.0.0.1",
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: since}},
		},
	}
}

// The values of an exporter that hangs scale nothing, up or down.
func TestFrozenExporterDoesNotScale(t *testing.T) {
	if n := decided(t, func(now time.Time) string { return pageOf(now.UnixMilli(), "95", "95", "95") }, 10*time.Second); n <= 3 {
		t.Errorf("%d replicas of an exporter that lives and says 95 %%", n)
	}
	for _, util := range []string{"95", "5"} {
		if n := decided(t, func(time.Time) string { return pageOf(1e9, util, util, util) }, 30*time.Minute); n != 3 {
			t.Errorf("%d replicas by a page that says %s %% for half an hour", n, util)
		}
	}
	// It hangs at a load that asks for what there is: nothing changes from then on.
	hangs := time.Time{}
	n := decided(t, func(now time.Time) string {
		if hangs.IsZero() {
			hangs = now.Add(time.Minute)
		}
		if now.After(hangs) {
			now = hangs
		}
		return pageOf(now.UnixMilli(), "60", "60", "60")
	}, 31*time.Minute)
	if n != 3 {
		t.Errorf("%d replicas after an exporter hung", n)
	}
}

// What a GPU cannot be changes nothing.
func TestImpossibleValuesDoNotScale(t *testing.T) {
	f := func(value string, up bool) {
		t.Helper()
		n := decided(t, func(now time.Time) string { return pageOf(now.UnixMilli(), "60", "60", value) }, 5*time.Minute)
		if up != (n > 3) || n < 3 {
			t.Errorf("%s %% on one of three GPUs: %d replicas", value, n)
		}
	}
	f("60", false)
	f("100", true) // 73 % on the mean
	f("250", false)
	f("1e30", false)
	f("-1e30", false)
	f("4294967295", false)
}

// An exporter that collects every half minute, as dcgm-exporter does by
// default, is as good as its interval: replicas follow it, and its values count
// until the next ones are there.
func TestSlowExporterIsFollowed(t *testing.T) {
	page := func(util string) exporterPage {
		return func(now time.Time) string { return pageOf(now.Truncate(30*time.Second).UnixMilli(), util, util, util) }
	}
	if n := decided(t, page("95"), 45*time.Second); n <= 3 {
		t.Errorf("%d replicas at 95 %%", n)
	}
	if n := decided(t, page("60"), 10*time.Minute); n != 3 {
		t.Errorf("%d replicas at 60 %%", n)
	}
	if n := decided(t, page("5"), 10*time.Minute); n != 1 {
		t.Errorf("%d replicas at 5 %%", n)
	}
}
