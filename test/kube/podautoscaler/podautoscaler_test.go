// SPDX-License-Identifier: Apache-2.0

// Package podautoscaler asks Kubernetes' own HorizontalPodAutoscaler controller,
// whole, in simulated time, what internal/scale/peers asks its model of it
// (make peers). It is a test because only tests may simulate time.
package podautoscaler

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	autoscalinginformers "k8s.io/client-go/informers/autoscaling/v2"
	coreinformers "k8s.io/client-go/informers/core/v1"
	autoscalingclient "k8s.io/client-go/kubernetes/typed/autoscaling/v2"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	autoscalinglisters "k8s.io/client-go/listers/autoscaling/v2"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/scale"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/podautoscaler"
	"k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"
)

var (
	questions = flag.String("questions", "", "file with a question a line (internal/scale/peers)")
	answers   = flag.String("answers", "", "file to write with an answer a line: the replicas after each sync")
)

// The controller's defaults (its own configuration's SetDefaults).
const (
	period            = 15 * time.Second
	downscaleWindow   = 5 * time.Minute
	tolerance         = 0.1
	cpuInitialization = 5 * time.Minute
	initialReadiness  = 30 * time.Second
)

// question is a sequence of syncs.
type question struct {
	Kind     int // 0 Pods with an AverageValue, 1 Object with a Value, 2 External with an AverageValue
	Target   int64
	Min, Max int32
	Up, Down rules
	Syncs    []sync
}

type rules struct {
	Tolerance float64
	Window    int32
	Policies  []struct {
		Percent       bool
		Value, Period int32
	}
	Select int // 0 Max, 1 Min, 2 Disabled
}

// sync is what one sync reads. Spec, where it is given, is what somebody else
// has set the replicas to.
type sync struct {
	Spec   *int32
	Status int32
	Pods   []struct {
		Terminating, Pending, Ready, Told bool
		Milli                             int64
	}
	Milli int64
	Told  bool
}

func TestAnswer(t *testing.T) {
	if *questions == "" {
		t.Skip("no questions: make peers asks them")
	}
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	utilruntime.ErrorHandlers = nil // they sleep, and a sync would come late
	in, err := os.Open(*questions)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(*answers)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	lines, w := json.NewDecoder(in), bufio.NewWriter(out)
	for lines.More() {
		var q question
		if err := lines.Decode(&q); err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) {
			if err := json.NewEncoder(w).Encode(q.answer(t)); err != nil {
				t.Fatal(err)
			}
		})
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
}

// answer runs the controller through the question.
func (q *question) answer(t *testing.T) []int32 {
	ctx, cancel := context.WithCancel(t.Context())
	w := &world{
		hpas: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}),
		pods: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}),
	}
	must(t, w.hpas.Add(q.hpa()))
	controller := podautoscaler.NewHorizontalController(ctx, events{}, w, w, mapper{}, w, hpaInformer{w}, podInformer{w},
		period, downscaleWindow, tolerance, cpuInitialization, initialReadiness)
	done := make(chan struct{})
	go func() {
		controller.Run(ctx, 1)
		close(done)
	}()
	synctest.Wait()
	var out []int32
	for i := range q.Syncs {
		w.set(t, &q.Syncs[i])
		if i == 0 {
			w.handler.OnAdd(w.hpas.List()[0], true)
		} else {
			time.Sleep(period)
		}
		synctest.Wait()
		if w.syncs != i+1 {
			t.Fatalf("%d syncs by the %dth question", w.syncs, i+1)
		}
		out = append(out, w.spec)
	}
	cancel()
	<-done
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const (
	namespace = "default"
	name      = "web"
)

func (q *question) hpa() *autoscalingv2.HorizontalPodAutoscaler {
	id := autoscalingv2.MetricIdentifier{Name: "load"}
	target := *resource.NewMilliQuantity(q.Target, resource.DecimalSI)
	average := autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &target}
	metric := [...]autoscalingv2.MetricSpec{
		{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{Metric: id, Target: average}},
		{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
			DescribedObject: autoscalingv2.CrossVersionObjectReference{Kind: "Service", Name: name}, Metric: id,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: &target},
		}},
		{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{Metric: id, Target: average}},
	}[q.Kind]
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "1"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
			MinReplicas:    &q.Min, MaxReplicas: q.Max, Metrics: []autoscalingv2.MetricSpec{metric},
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: q.Up.rules(), ScaleDown: q.Down.rules()},
		},
	}
}

func (r *rules) rules() *autoscalingv2.HPAScalingRules {
	selects := [...]autoscalingv2.ScalingPolicySelect{
		autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect, autoscalingv2.DisabledPolicySelect,
	}[r.Select]
	tolerance := resource.MustParse(fmt.Sprint(r.Tolerance))
	out := &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &r.Window, SelectPolicy: &selects, Tolerance: &tolerance}
	for _, p := range r.Policies {
		kind := autoscalingv2.PodsScalingPolicy
		if p.Percent {
			kind = autoscalingv2.PercentScalingPolicy
		}
		out.Policies = append(out.Policies, autoscalingv2.HPAScalingPolicy{Type: kind, Value: p.Value, PeriodSeconds: p.Period})
	}
	return out
}

// world is all that the controller sees, and the scale that it sets. What it
// does not call is left to the embedded nil interfaces.
type world struct {
	hpas, pods cache.Indexer
	handler    cache.ResourceEventHandler

	now   sync
	spec  int32
	syncs int
}

func (w *world) set(t *testing.T, s *sync) {
	w.now = *s
	if s.Spec != nil {
		w.spec = *s.Spec
	}
	var pods []any
	for i, p := range s.Pods {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: podName(i), Labels: map[string]string{"app": name}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}},
		}
		if p.Terminating {
			pod.DeletionTimestamp = new(metav1.Now())
		}
		if p.Pending {
			pod.Status.Phase = corev1.PodPending
		}
		if p.Ready {
			pod.Status.Conditions[0].Status = corev1.ConditionTrue
		}
		pods = append(pods, pod)
	}
	must(t, w.pods.Replace(pods, ""))
}

func podName(i int) string { return fmt.Sprintf("%s-%d", name, i) }

// The metrics API.

func (w *world) GetRawMetric(string, string, labels.Selector, labels.Selector) (metrics.PodMetricsInfo, time.Time, error) {
	out := metrics.PodMetricsInfo{}
	for i, p := range w.now.Pods {
		if p.Told {
			out[podName(i)] = metrics.PodMetric{Timestamp: time.Now(), Window: time.Minute, Value: p.Milli}
		}
	}
	if len(out) == 0 {
		return nil, time.Time{}, fmt.Errorf("no samples")
	}
	return out, time.Now(), nil
}

func (w *world) GetObjectMetric(string, string, *autoscalingv2.CrossVersionObjectReference, labels.Selector) (int64, time.Time, error) {
	if !w.now.Told {
		return 0, time.Time{}, fmt.Errorf("no value")
	}
	return w.now.Milli, time.Now(), nil
}

func (w *world) GetExternalMetric(string, string, labels.Selector) ([]int64, time.Time, error) {
	if !w.now.Told {
		return nil, time.Time{}, fmt.Errorf("no value")
	}
	return []int64{w.now.Milli}, time.Now(), nil
}

func (w *world) GetResourceMetric(context.Context, corev1.ResourceName, string, labels.Selector, string) (metrics.PodMetricsInfo, time.Time, error) {
	return nil, time.Time{}, fmt.Errorf("no resource metrics")
}

// The scale, which is read once a sync.

func (w *world) Scales(string) scale.ScaleInterface { return scales{w: w} }

type scales struct {
	scale.ScaleInterface
	w *world
}

func (s scales) Get(context.Context, schema.GroupResource, string, metav1.GetOptions) (*autoscalingv1.Scale, error) {
	s.w.syncs++
	return &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       autoscalingv1.ScaleSpec{Replicas: s.w.spec},
		Status:     autoscalingv1.ScaleStatus{Replicas: s.w.now.Status, Selector: "app=" + name},
	}, nil
}

func (s scales) Update(_ context.Context, _ schema.GroupResource, x *autoscalingv1.Scale, _ metav1.UpdateOptions) (*autoscalingv1.Scale, error) {
	s.w.spec = x.Spec.Replicas
	return x, nil
}

type mapper struct{ meta.RESTMapper }

func (mapper) RESTMappings(schema.GroupKind, ...string) ([]*meta.RESTMapping, error) {
	return []*meta.RESTMapping{{Resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}}}, nil
}

// HPAs, whose status is written, and pods, by way of informers that tell of one HPA, once.

func (w *world) HorizontalPodAutoscalers(string) autoscalingclient.HorizontalPodAutoscalerInterface {
	return hpaClient{w: w}
}

type hpaClient struct {
	autoscalingclient.HorizontalPodAutoscalerInterface
	w *world
}

func (c hpaClient) UpdateStatus(_ context.Context, h *autoscalingv2.HorizontalPodAutoscaler, _ metav1.UpdateOptions) (*autoscalingv2.HorizontalPodAutoscaler, error) {
	return h, c.w.hpas.Update(h)
}

type hpaInformer struct{ w *world }

var _ autoscalinginformers.HorizontalPodAutoscalerInformer = hpaInformer{}

func (i hpaInformer) Informer() cache.SharedIndexInformer { return informer{w: i.w} }
func (i hpaInformer) Lister() autoscalinglisters.HorizontalPodAutoscalerLister {
	return autoscalinglisters.NewHorizontalPodAutoscalerLister(i.w.hpas)
}

type podInformer struct{ w *world }

var _ coreinformers.PodInformer = podInformer{}

func (i podInformer) Informer() cache.SharedIndexInformer { return informer{w: i.w} }
func (i podInformer) Lister() corelisters.PodLister       { return corelisters.NewPodLister(i.w.pods) }

type informer struct {
	cache.SharedIndexInformer
	w *world
}

func (i informer) HasSynced() bool       { return true }
func (i informer) GetStore() cache.Store { return i.w.hpas }
func (i informer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, _ time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	i.w.handler = h
	return nil, nil
}

// events takes them and forgets them.
type events struct{ coreclient.EventInterface }

func (e events) Events(string) coreclient.EventInterface { return e }
func (events) CreateWithEventNamespace(e *corev1.Event) (*corev1.Event, error) {
	return e, nil
}
func (events) UpdateWithEventNamespace(e *corev1.Event) (*corev1.Event, error) { return e, nil }
func (events) PatchWithEventNamespace(e *corev1.Event, _ []byte) (*corev1.Event, error) {
	return e, nil
}
