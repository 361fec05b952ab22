// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/policy"
	"github.com/gpupilot/gpupilot/internal/series"
)

func ports(named ...any) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		var c corev1.Container
		for i := 0; i+1 < len(named); i += 2 {
			c.Ports = append(c.Ports, corev1.ContainerPort{Name: named[i].(string), ContainerPort: int32(named[i+1].(int))})
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
}

func TestExportersAreFound(t *testing.T) {
	r := newRig(t)
	pending := pod("agent", "pending", at(0))
	pending.Status.Phase, pending.Status.PodIP = corev1.PodPending, ""
	leaving := pod("agent", "leaving", at(0))
	leaving.DeletionTimestamp = &metav1.Time{Time: at(1)}
	v6 := pod("dcgm", "v6", at(0), func(p *corev1.Pod) { p.Status.PodIP = "fd00::1" })
	r.pods.pods = []*corev1.Pod{
		pod("agent", "named", at(0), ports("http", 80, "metrics", 9500)), pod("agent", "first", at(0), ports("http", 80)),
		pod("agent", "none", at(0)), pending, leaving, v6, pod("other", "other", at(0)),
	}
	got := map[string]string{}
	for _, target := range r.list(at(0)) {
		got[target.Name] = target.Labels.Job + " " + target.URL.String()
		if target.Fields != always() || target.Labels.Node != "node-1" {
			t.Errorf("%s: %+v", target.Name, target)
		}
	}
	want := map[string]string{
		"agent/ns/named": "gpupilot-agent http://10.0.0.1:9500/metrics", "agent/ns/first": "gpupilot-agent http://10.0.0.1:80/metrics",
		"agent/ns/none": "gpupilot-agent http://10.0.0.1:9400/metrics", "dcgm-exporter/ns/v6": "dcgm-exporter http://[fd00::1]:9400/metrics",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Whoever may create pods somewhere can label one as an exporter: it is none
// outside of the namespaces that the operator names.
func TestExportersAreOfTrustedNamespaces(t *testing.T) {
	r := newRig(t)
	r.cfg.AgentNamespace, r.cfg.DCGMNamespaces = "gpupilot-system", []string{"gpupilot-system", "gpu-operator"}
	in := func(app, name, namespace string) *corev1.Pod {
		p := pod(app, name, at(0))
		p.Namespace = namespace
		return p
	}
	trusted := []*corev1.Pod{in("agent", "a", "gpupilot-system"), in("dcgm", "d", "gpu-operator"), in("dcgm", "e", "gpupilot-system")}
	forged := []*corev1.Pod{in("agent", "a", "gpu-operator"), in("agent", "a", "ns"), in("dcgm", "d", "ns"), in("dcgm", "d", "kube-system")}
	r.pods.pods = append(forged, trusted...)
	var got []string
	for _, target := range r.list(at(0)) {
		got = append(got, target.Name)
		if target.Labels.Rank != map[string]uint8{KindAgent: rankAgent, KindDCGM: rankDCGM}[target.Kind] {
			t.Errorf("%s has rank %d", target.Name, target.Labels.Rank)
		}
	}
	if diff := cmp.Diff([]string{"agent/gpupilot-system/a", "dcgm-exporter/gpupilot-system/e", "dcgm-exporter/gpu-operator/d"}, got); diff != "" {
		t.Error(diff)
	}
	for _, p := range forged {
		if r.isExporter(p) {
			t.Errorf("%s/%s changes what is scraped", p.Namespace, p.Name)
		}
	}
	for _, p := range trusted {
		if !r.isExporter(p) {
			t.Errorf("%s/%s does not change what is scraped", p.Namespace, p.Name)
		}
	}
	r.cfg.AgentNamespace, r.cfg.DCGMNamespaces = "", []string{""}
	if got := r.list(at(0)); len(got) != 0 {
		t.Errorf("without a namespace %d targets, want none: an empty one selects in all", len(got))
	}
}

// An exporter has no say about the pods of other nodes.
func TestExportersSpeakOfTheirOwnNode(t *testing.T) {
	r, w := loaded(t, 60)
	p := r.pods.pods[0]
	r.utilizationBy("poser", "node-2", r.now, 100, p)
	w.pass(r.now)
	if n := r.replicas("web"); n != 1 {
		t.Errorf("scaled to %d by what another node says", n)
	}
	if s, ok := r.Values().Pod("ns", p.Name, gpu.GPUUtil, r.now, time.Minute); !ok || s.Value != 60 {
		t.Errorf("the metrics API gives %v, %v; want 60", s.Value, ok)
	}
	p.Spec.NodeName = "node-3"
	if s, ok := r.Values().Pod("ns", p.Name, gpu.GPUUtil, r.now, time.Minute); ok {
		t.Errorf("the metrics API gives %v of a pod on a third node", s.Value)
	}
}

// Two autoscalers' metrics of the same pods are read with one scrape.
func TestPodSignalsAreScraped(t *testing.T) {
	var objects []*v1alpha1.GPUAutoscaler
	for _, metric := range []string{"queue", "running"} {
		a := autoscaler(metric)
		a.Spec.ScaleTargetRef.Name = "web"
		a.Spec.Actuation = v1alpha1.ActuationAdvise
		port := intstr.FromString("http")
		a.Spec.Signals[0].GPU, a.Spec.Signals[0].Pods = nil, &v1alpha1.PodsSignal{Metric: metric, Port: &port, Path: "/m"}
		objects = append(objects, a)
	}
	r := newRig(t, deployment("web", 2))
	r.pods.pods = []*corev1.Pod{pod("web", "web-1", at(0), ports("http", 8000, "grpc", 1)), pod("web", "portless", at(0)), pod("other", "x", at(0), ports("http", 1))}
	for _, a := range objects {
		r.add(a).pass(at(10))
	}
	want := []Target{{
		Name: "pod/ns/web-1:8000/m", URL: url.URL{Scheme: "http", Host: "10.0.0.1:8000", Path: "/m"}, Kind: KindPod, Metrics: []policy.PodMetric{{Name: "queue"}, {Name: "running"}},
		Labels: series.TargetLabels{Node: "node-1", Instance: "10.0.0.1:8000", Job: "pod", Namespace: "ns", Pod: "web-1"},
	}}
	if diff := cmp.Diff(want, r.list(at(10))); diff != "" {
		t.Error(diff)
	}
	names := r.Names()
	for _, name := range []string{"queue", "running", "DCGM_FI_DEV_GPU_UTIL"} {
		if !slices.Contains(names, name) {
			t.Errorf("%s is not among the names in use: %v", name, names)
		}
	}
}

func TestPodPort(t *testing.T) {
	two := pod("a", "p", at(0), ports("http", 80, "metrics", 90))
	f := func(what string, p *corev1.Pod, port policy.Port, want int32, says string) {
		t.Helper()
		got, err := podPort(p, port)
		if got != want || (err != nil) != (says != "") {
			t.Errorf("%s: %d, %v; want %d, %q", what, got, err, want, says)
		}
		if err != nil {
			contains(t, err.Error(), says)
		}
	}
	number, name, wrong := intstr.FromInt32(7), intstr.FromString("metrics"), intstr.FromString("nope")
	f("a number", two, policy.Port{Given: &number}, 7, "")
	f("a name", two, policy.Port{Given: &name}, 90, "")
	f("a wrong name", two, policy.Port{Given: &wrong}, 0, `no container port named "nope"`)
	one, none := pod("a", "p", at(0), ports("", 5)), pod("a", "p", at(0))
	f("the only one", one, policy.Port{}, 5, "")
	f("one of two", two, policy.Port{}, 0, "has 2 container ports")
	f("none", none, policy.Port{}, 0, "has 0 container ports")

	vllm, triton := policy.Port{Default: 8000}, policy.Port{Default: 8002, Apart: true}
	f("a server's own", none, vllm, 8000, "")
	f("its own of several", pod("a", "p", at(0), ports("ssh", 22, "http", 8000)), vllm, 8000, "")
	f("its own, though others are declared", pod("a", "p", at(0), ports("ssh", 22, "http", 80)), vllm, 8000, "")
	f("another, the only one", one, vllm, 5, "")
	f("the one called metrics", two, vllm, 90, "")
	f("a server that has them apart", pod("a", "p", at(0), ports("http", 8000)), triton, 8002, "")
	f("what is given goes before", two, policy.Port{Given: &number, Default: 8000}, 7, "")
}

// A field that the metrics API is asked for is scraped from then on, for a
// while.
func TestFieldsOnDemand(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	if set := r.fieldsInUse(now); set.HasID(gpu.SMActive) {
		t.Error("SMActive is in use before anybody asks")
	}
	r.Values().Pod("ns", "p", gpu.SMActive, now, time.Second)
	select {
	case <-r.rediscover:
	default:
		t.Error("a new field does not change what is scraped")
	}
	r.Values().Pod("ns", "p", gpu.SMActive, now.Add(time.Minute), time.Second)
	select {
	case <-r.rediscover:
		t.Error("a field in use changes what is scraped")
	default:
	}
	if set := r.fieldsInUse(now.Add(keptInUse)); !set.HasID(gpu.SMActive) {
		t.Error("SMActive left while it was asked for")
	}
	if set := r.fieldsInUse(now.Add(time.Minute + keptInUse + 1)); set.HasID(gpu.SMActive) || set != always() {
		t.Error("SMActive stays though nobody asks")
	}
}

// Samples wake the workloads that have a pod where they were taken, and no others.
func TestDeliver(t *testing.T) {
	r, w := loaded(t, 60)
	r.pods.pods = append(r.pods.pods, pod("agent", "here", at(0)), pod("agent", "there", at(0), func(p *corev1.Pod) { p.Spec.NodeName = "node-2" }))
	w.pass(r.now)
	r.list(r.now)
	woken := func() bool {
		select {
		case <-w.wake:
			return true
		default:
			return false
		}
	}
	woken() // by whatever came before
	r.Deliver("agent/ns/there", r.now)
	r.Deliver("agent/ns/unknown", r.now)
	if woken() {
		t.Error("woken by another node")
	}
	r.Deliver("agent/ns/here", r.now)
	if !woken() {
		t.Error("not woken by its own node")
	}
	r.autoscalerChanged(t.Context(), asStored(t, w.object.Load()), true)
	woken()
	r.Deliver("agent/ns/here", r.now)
	if woken() || len(r.routes) != 0 {
		t.Error("woken after its end")
	}
}

func TestPodChanged(t *testing.T) {
	r, w := loaded(t, 60)
	w.pass(r.now)
	p := r.pods.pods[0]
	drain := func() (woken, rediscovered bool) {
		select {
		case <-w.wake:
			woken = true
		default:
		}
		select {
		case <-r.rediscover:
			rediscovered = true
		default:
		}
		return woken, rediscovered
	}
	is := func(what string, wantWoken, wantRediscovered bool, old, pod *corev1.Pod) {
		t.Helper()
		drain()
		r.PodChanged(old, pod)
		if a, b := drain(); a != wantWoken || b != wantRediscovered {
			t.Errorf("%s: woken %v, rediscovered %v", what, a, b)
		}
	}
	agent := pod("agent", "a", at(0))
	is("its own pod", true, false, p, p)
	is("another's", false, false, nil, pod("other", "o", at(0)))
	is("a new agent", false, true, nil, agent)
	is("an agent as it was", false, false, agent, pod("agent", "a", at(0)))
	is("an agent that goes", false, true, agent, nil)

	if _, ok := r.store.Pod("ns", "web-1", gpu.GPUUtil, r.now, time.Minute); !ok {
		t.Fatal("nothing is known of the pod")
	}
	r.PodChanged(p, nil)
	if _, ok := r.store.Pod("ns", "web-1", gpu.GPUUtil, r.now, time.Minute); ok {
		t.Error("what a pod used is given to a later pod of its name")
	}
}

func TestHistory(t *testing.T) {
	var h history
	r, w := loaded(t, 60)
	w.pass(r.now)
	d := *w.status.next.decision
	for i := range 1000 {
		d.Time = at(0).Add(time.Duration(i) * 500 * time.Millisecond)
		d.Replicas = int32(i)
		h.add(&d)
	}
	got := h.list()
	if len(got) != 500 || got[0].Replicas != 1 || got[499].Replicas != 999 {
		t.Errorf("%d points from %d to %d; want the last of each second", len(got), got[0].Replicas, got[len(got)-1].Replicas)
	}
	for i := range 1000 {
		d.Time = at(1000 + i)
		d.Replicas = int32(i)
		h.add(&d)
	}
	got = h.list()
	if len(got) != historyPoints || got[0].Replicas != 400 || got[historyPoints-1].Replicas != 999 {
		t.Errorf("%d points from %d to %d; want the last %d", len(got), got[0].Replicas, got[len(got)-1].Replicas, historyPoints)
	}
}

// However many GPUAutoscalers with other paths a tenant writes, of a pod only so
// many expositions are scraped, those of the oldest, and the others say so.
func TestExpositionsPerPodAreBounded(t *testing.T) {
	r := newRig(t, deployment("web", 1))
	r.pods.pods = []*corev1.Pod{pod("web", "web-1", at(0), ready(at(1)), ports("http", 8000)), pod("other", "other-1", at(0), ports("http", 8000))}
	var all []*workload
	for i := range maxPerPod + 2 {
		a := autoscaler(fmt.Sprintf("a%02d", i))
		a.CreationTimestamp = metav1.Time{Time: at(-i)} // the last one is the oldest
		a.Spec.ScaleTargetRef.Name = "web"
		a.Spec.Actuation = v1alpha1.ActuationAdvise
		port := intstr.FromString("http")
		a.Spec.Signals[0].GPU, a.Spec.Signals[0].Pods = nil, &v1alpha1.PodsSignal{Metric: "q", Port: &port, Path: fmt.Sprintf("/%02d", i)}
		w := r.add(a)
		w.pass(at(10))
		all = append(all, w)
	}
	var got []string
	for _, target := range r.list(at(10)) {
		got = append(got, target.Name)
	}
	var want []string
	for i := range maxPerPod {
		want = append(want, fmt.Sprintf("pod/ns/web-1:8000/%02d", i+2))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for i, w := range all {
		w.pass(at(11))
		message := signalsOf(w.status.next).Message
		if said := strings.Contains(message, "for older GPUAutoscalers"); said != (i < 2) {
			t.Errorf("the GPUAutoscaler of path /%02d says %q", i, message)
		}
	}
}
