// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package hpa holds the model of the HorizontalPodAutoscaler (internal/scale/peers) to
// the one of a real kube-controller-manager: the same readings, the same replicas.
package hpa

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpupilot/gpupilot/internal/scale/peers"
	"github.com/gpupilot/gpupilot/test/cluster"
	"github.com/gpupilot/gpupilot/test/stack"
)

const (
	namespace = "default"
	period    = 250 * time.Millisecond // of the controller's syncs
	patience  = 5 * time.Minute

	// long is a window that no step leaves, however slow the machine: a controller
	// says when it counted by milliseconds that nobody here knows. What happens
	// when windows end is compared in simulated time (internal/scale/peers).
	long = 1800
)

// loads are what a timeline's replicas are asked for, in targets.
var loads = []float64{3, 3.1, 4.4, 9, 9, 14, 6, 6, 1.5, 1.5, 0, 0, 4}

// timelines are the HPAs that are compared.
func timelines() map[string]peers.HPA {
	up := peers.Rules{Tolerance: 0.05, Policies: []peers.RatePolicy{{Value: 4, Period: long}, {Percent: true, Value: 150, Period: long}}}
	down := peers.Rules{Tolerance: 0.2, Policies: []peers.RatePolicy{{Percent: true, Value: 60, Period: long}}}
	least, held := up, down
	least.Select, held.Window = peers.MinChange, long
	return map[string]peers.HPA{
		"pods":     {Kind: peers.PodsAverage, MilliTarget: target, Min: 1, Max: 9, Up: up, Down: down},
		"held":     {Kind: peers.PodsAverage, MilliTarget: target, Min: 1, Max: 9, Up: up, Down: held},
		"object":   {Kind: peers.ObjectValue, MilliTarget: target, Min: 2, Max: 9, Up: up, Down: down},
		"external": {Kind: peers.ExternalAverage, MilliTarget: target, Min: 1, Max: 6, Up: up, Down: down},
		"least":    {Kind: peers.ExternalAverage, MilliTarget: target, Min: 1, Max: 9, Up: least, Down: down},
	}
}

func TestModelIsTheRealHPA(t *testing.T) {
	c, err := cluster.Start(t.Context(), cluster.Config{HPASyncPeriod: period, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if errors.Is(err, cluster.ErrNoBinary) {
		t.Skip(err)
	}
	stack.Must(t, err)
	t.Cleanup(c.Stop)
	rc, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	stack.Must(t, err)
	rc.QPS = -1
	k, err := kubernetes.NewForConfig(rc)
	stack.Must(t, err)
	models := timelines()
	api := serveMetrics(t, k, rc, slices.Collect(maps.Keys(models)))
	var all sync.WaitGroup
	for name, model := range models {
		all.Go(func() {
			t.Run(name, func(t *testing.T) { newTimeline(t, k, api, model, name).run(t) })
		})
	}
	all.Wait()
}

// timeline is one Deployment under one HPA, and the model beside it.
type timeline struct {
	k     kubernetes.Interface
	name  string
	model peers.HPA
	asked chan func(reading *peers.Reading, pods []string) // from the metrics API, one for each sync

	began  time.Time
	age    map[string]int // of the pods, in steps
	closed bool           // the fence: its pod is ready
}

const target = 10000 // thousandths

func newTimeline(t *testing.T, k kubernetes.Interface, api *metricsAPI, model peers.HPA, name string) *timeline {
	x := &timeline{k: k, name: name, model: model, asked: api.metrics[name], began: time.Now(), age: map[string]int{}}
	deploy(t, k, name, 3)
	deploy(t, k, fenceOf(name), 1)
	_, err := k.AutoscalingV2().HorizontalPodAutoscalers(namespace).Create(t.Context(), x.object(), metav1.CreateOptions{})
	stack.Must(t, err)
	return x
}

// deploy creates a Deployment whose pods nobody runs.
func deploy(t *testing.T, k kubernetes.Interface, name string, replicas int32) {
	t.Helper()
	labels := map[string]string{"app": name}
	_, err := k.AppsV1().Deployments(namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
			},
		},
	}, metav1.CreateOptions{})
	stack.Must(t, err)
}

func (x *timeline) object() *autoscalingv2.HorizontalPodAutoscaler {
	id := autoscalingv2.MetricIdentifier{Name: x.name}
	value := resource.NewMilliQuantity(x.model.MilliTarget, resource.DecimalSI)
	average := autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: value}
	metric := map[peers.Kind]autoscalingv2.MetricSpec{
		peers.PodsAverage: {Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{Metric: id, Target: average}},
		peers.ObjectValue: {Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
			DescribedObject: autoscalingv2.CrossVersionObjectReference{APIVersion: "v1", Kind: "Service", Name: x.name}, Metric: id,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: value},
		}},
		peers.ExternalAverage: {Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{Metric: id, Target: average}},
	}[x.model.Kind]
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: x.name},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: x.name},
			MinReplicas:    new(int32(x.model.Min)), MaxReplicas: int32(x.model.Max), Metrics: []autoscalingv2.MetricSpec{metric},
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(x.model.Up), ScaleDown: rules(x.model.Down)},
		},
	}
}

func rules(r peers.Rules) *autoscalingv2.HPAScalingRules {
	tolerance := resource.MustParse(fmt.Sprint(r.Tolerance))
	chosen := [...]autoscalingv2.ScalingPolicySelect{autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect}[r.Select]
	out := &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32(r.Window)), Tolerance: &tolerance, SelectPolicy: &chosen}
	for _, p := range r.Policies {
		kind := autoscalingv2.PodsScalingPolicy
		if p.Percent {
			kind = autoscalingv2.PercentScalingPolicy
		}
		out.Policies = append(out.Policies, autoscalingv2.HPAScalingPolicy{Type: kind, Value: int32(p.Value), PeriodSeconds: int32(p.Period)})
	}
	return out
}

// run asks the model and the controller the same at each step.
func (x *timeline) run(t *testing.T) {
	var path []int
	for i, load := range loads {
		pods := x.settle(t, i == 0)
		reading, names := x.reading(pods, load, i%5 == 4)
		x.ask(t, reading, names)
		want := x.model.Sync(int(time.Since(x.began).Seconds()), reading)
		d, err := x.k.AppsV1().Deployments(namespace).Get(t.Context(), x.name, metav1.GetOptions{})
		stack.Must(t, err)
		if got := int(*d.Spec.Replicas); got != want {
			t.Fatalf("step %d, %g wanted of %d replicas: the controller sets %d, the model %d; before it %d\n%+v", i, load, reading.Spec, got, want, path, reading)
		}
		path = append(path, want)
	}
	t.Logf("%d steps in %v: %d", len(path), time.Since(x.began).Round(time.Second), path)
}

// ask has the controller sync with the reading, once. All other syncs find no
// metric, and so do nothing: also the one that has begun before the pods were as
// they are.
func (x *timeline) ask(t *testing.T, r *peers.Reading, pods []string) {
	t.Helper()
	x.fence(t)
	x.next(t)(nil, nil)
	x.next(t)(r, pods)
	x.next(t)(nil, nil) // the sync before it is over
}

// fence waits until the controllers' cache has seen what was done to pods: a change
// of the fence's own pod is behind it in their one watch, and the ReplicaSet
// controller tells of that. It is in the process of the HPA controller, and has its
// cache.
func (x *timeline) fence(t *testing.T) {
	t.Helper()
	x.closed = !x.closed
	var pods *corev1.PodList
	stack.Eventually(t, func() (err error) {
		if pods, err = x.k.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + fenceOf(x.name)}); err == nil && len(pods.Items) != 1 {
			err = fmt.Errorf("%d pods of the fence", len(pods.Items))
		}
		return err
	})
	want, ready := int32(0), corev1.ConditionFalse
	if x.closed {
		want, ready = 1, corev1.ConditionTrue
	}
	x.setReady(t, &pods.Items[0], ready)
	stack.Eventually(t, func() error {
		sets, err := x.k.AppsV1().ReplicaSets(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + fenceOf(x.name)})
		if err == nil && (len(sets.Items) != 1 || sets.Items[0].Status.ReadyReplicas != want) {
			err = fmt.Errorf("the fence is %+v", sets.Items)
		}
		return err
	})
}

func fenceOf(name string) string { return name + "-fence" }

// next is the next sync's request for the metric.
func (x *timeline) next(t *testing.T) func(*peers.Reading, []string) {
	t.Helper()
	select {
	case answer := <-x.asked:
		return answer
	case <-time.After(patience):
		t.Fatalf("the controller has not asked for %s for %v", x.name, patience)
		return nil
	}
}

// settle waits for the Deployment to have its pods, does what a kubelet would
// with them, and returns them. A pod is pending at first, then loads, then is
// ready; those that there were at the beginning are.
func (x *timeline) settle(t *testing.T, first bool) []corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	stack.Eventually(t, func() error {
		d, err := x.k.AppsV1().Deployments(namespace).Get(t.Context(), x.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		list, err := x.k.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + x.name})
		if err != nil {
			return err
		}
		if pods = list.Items; len(pods) != int(*d.Spec.Replicas) || d.Status.Replicas != *d.Spec.Replicas {
			return fmt.Errorf("%d pods, status.replicas %d, want %d", len(pods), d.Status.Replicas, *d.Spec.Replicas)
		}
		return nil
	})
	for i := range pods {
		p := &pods[i]
		if x.age[p.Name]++; first {
			x.age[p.Name] = 3
		}
		if x.age[p.Name] > 1 {
			x.patch(t, p)
		}
	}
	return pods
}

func (x *timeline) patch(t *testing.T, p *corev1.Pod) {
	t.Helper()
	ready := corev1.ConditionFalse
	if x.age[p.Name] > 2 {
		ready = corev1.ConditionTrue
	}
	x.setReady(t, p, ready)
}

// setReady has a pod run, and be ready or not.
func (x *timeline) setReady(t *testing.T, p *corev1.Pod, ready corev1.ConditionStatus) {
	t.Helper()
	p.Status.Phase, p.Status.Conditions = corev1.PodRunning, []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"phase": p.Status.Phase, "conditions": p.Status.Conditions}})
	stack.Must(t, err)
	_, err = x.k.CoreV1().Pods(namespace).Patch(t.Context(), p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	stack.Must(t, err)
}

// reading is what there is to be read of the pods: the ready ones share the load,
// those that load say zero. One of them may say nothing.
func (x *timeline) reading(pods []corev1.Pod, load float64, silent bool) (*peers.Reading, []string) {
	r := &peers.Reading{Spec: len(pods), Status: len(pods), HasValue: x.model.Kind != peers.PodsAverage}
	var names []string
	var ready, told int64
	for _, p := range pods {
		q := peers.Pod{Pending: p.Status.Phase == corev1.PodPending, Ready: x.age[p.Name] > 2}
		if q.HasSample = !q.Pending; q.Ready {
			ready++
		}
		r.Pods, names = append(r.Pods, q), append(names, p.Name)
	}
	total := int64(load * target)
	for i := range r.Pods {
		q := &r.Pods[i]
		if q.Ready {
			q.Milli = total / ready
		}
		if q.Ready && silent && ready > 1 {
			silent, q.HasSample, q.Milli = false, false, 0
		}
		if q.HasSample {
			told++
			r.Milli += q.Milli
		}
	}
	switch x.model.Kind {
	case peers.ObjectValue:
		r.Milli /= max(1, told)
	case peers.ExternalAverage:
		r.Milli = total
	default:
		r.Milli = 0
	}
	return r, names
}
