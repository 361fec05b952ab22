// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/stat"
)

// An exporter has no say about the pods of other nodes.
func TestExportersReportOnlyTheirOwnNode(t *testing.T) {
	r, w := loaded(t, 60)
	p := r.pods.Pods[0]
	r.utilizationBy("poser", "node-2", r.now, 100, p)
	w.pass(r.now)
	if n := r.replicas("web"); n != 1 {
		t.Errorf("scaled to %d by what another node says", n)
	}
	if s, ok := r.reader().Value("ns", p.Name, stat.Query{Field: gpu.GPUUtil, Now: r.now, MaxAge: time.Minute}); !ok || s.Value != 60 {
		t.Errorf("the metrics API gives %v, %v; want 60", s.Value, ok)
	}
	p.Spec.NodeName = "node-3"
	if s, ok := r.reader().Value("ns", p.Name, stat.Query{Field: gpu.GPUUtil, Now: r.now, MaxAge: time.Minute}); ok {
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
	r.pods.Pods = []*corev1.Pod{pod("web", "web-1", at(0), ports("http", 8000, "grpc", 1)), pod("web", "portless", at(0)), pod("other", "x", at(0), ports("http", 1))}
	for _, a := range objects {
		r.add(a).pass(at(10))
	}
	want := []discovery.Target{{
		Name: "pod/ns/web-1:8000/m", Pod: types.NamespacedName{Namespace: "ns", Name: "web-1"}, URL: url.URL{Scheme: "http", Host: "10.0.0.1:8000", Path: "/m"}, Port: discovery.Port{Number: 8000, Name: "http"}, Kind: discovery.KindPod, Metrics: []policy.PodMetric{{Name: "queue"}, {Name: "running"}},
		Labels: series.TargetLabels{Node: "node-1", Instance: "10.0.0.1:8000", Job: "pod", Namespace: "ns", Pod: "web-1"},
	}}
	if diff := cmp.Diff(want, r.listTargets(at(10))); diff != "" {
		t.Error(diff)
	}
	names := r.deps.Fields.Names()
	for _, name := range []string{"queue", "running", "DCGM_FI_DEV_GPU_UTIL"} {
		if !slices.Contains(names, name) {
			t.Errorf("%s is not among the names in use: %v", name, names)
		}
	}
}

// A field that the metrics API is asked for is scraped at once, not with the next list of
// all targets.
func TestRequestedFieldsAreScraped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.pods.Pods = []*corev1.Pod{pod("agent", "agent-1", time.Now(), ready(time.Now()))}
		ctx, cancel := context.WithCancel(t.Context())
		go r.Controller.discover(ctx)
		time.Sleep(time.Second)
		reads := func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			last := r.scraped[len(r.scraped)-1]
			return len(last) == 1 && last[0].Fields.HasID(gpu.SMActive)
		}
		if reads() {
			t.Error("the field is scraped before anybody asks")
		}
		r.deps.Fields.Request(gpu.SMActive, time.Now())
		time.Sleep(time.Second)
		if !reads() {
			t.Errorf("the field is not scraped: %+v", r.scraped[len(r.scraped)-1])
		}
		cancel()
	})
}

// Samples wake the workloads that have a pod where they were taken, and no others.
func TestDeliver(t *testing.T) {
	r, w := loaded(t, 60)
	r.pods.Pods = append(r.pods.Pods, pod("agent", "here", at(0)), pod("agent", "there", at(0), func(p *corev1.Pod) { p.Spec.NodeName = "node-2" }))
	w.pass(r.now)
	r.listTargets(r.now)
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
	p := r.pods.Pods[0]
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

// However many GPUAutoscalers with other paths a tenant writes, of a pod only so
// many expositions are scraped, those of the oldest, and the others say so.
func TestExpositionsPerPodAreBounded(t *testing.T) {
	r := newRig(t, deployment("web", 1))
	r.pods.Pods = []*corev1.Pod{pod("web", "web-1", at(0), ready(at(1)), ports("http", 8000)), pod("other", "other-1", at(0), ports("http", 8000))}
	var all []*workload
	for i := range discovery.MaxPerPod + 2 {
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
	for _, target := range r.listTargets(at(10)) {
		got = append(got, target.Name)
	}
	var want []string
	for i := range discovery.MaxPerPod {
		want = append(want, fmt.Sprintf("pod/ns/web-1:8000/%02d", i+2))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for i, w := range all {
		w.pass(at(11))
		message := signalsCondition(w.status.next).Message
		if said := strings.Contains(message, "for older GPUAutoscalers"); said != (i < 2) {
			t.Errorf("the GPUAutoscaler of path /%02d says %q", i, message)
		}
	}
}

func addressed(ip, host string, hostNetwork bool) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.PodIP, p.Status.HostIP, p.Spec.HostNetwork = ip, host, hostNetwork
	}
}

func ports(named ...any) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		var c corev1.Container
		for i := 0; i+1 < len(named); i += 2 {
			c.Ports = append(c.Ports, corev1.ContainerPort{Name: named[i].(string), ContainerPort: int32(named[i+1].(int))})
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
}

// A pod on its node's network is not scraped unless the operator allows it, and the
// condition has the reason. A pod that only claims a node's address can neither avoid
// this nor prevent the scrape of another pod.
func TestPodsOnTheHostNetworkAreNotScraped(t *testing.T) {
	a := autoscaler("web")
	port := intstr.FromInt32(10250)
	a.Spec.Signals[0].GPU, a.Spec.Signals[0].Pods = nil, &v1alpha1.PodsSignal{Metric: "queue", Port: &port}
	r := newRig(t, deployment("web", 1), a)
	r.discover(func(c *discovery.Config) {
		c.AgentNamespace, c.DCGMNamespaces = "gpupilot-system", []string{"gpupilot-system", "gpu-operator"}
	})
	in := func(p *corev1.Pod, namespace string) *corev1.Pod { p.Namespace = namespace; return p }
	proxy := in(pod("proxy", "kube-proxy", at(0), addressed("192.168.0.9", "192.168.0.9", true)), "kube-system")
	agent := in(pod("agent", "agent-1", at(0), addressed("10.0.0.2", "192.168.0.8", false)), "gpupilot-system")
	dcgm := in(pod("dcgm", "dcgm-1", at(0), addressed("192.168.0.6", "192.168.0.6", true)), "gpu-operator")
	liar := in(pod("liar", "liar", at(0), addressed("10.0.0.3", "10.0.0.1", false)), "elsewhere")
	web := pod("web", "web-1", at(0), ready(at(1)))
	r.pods.Pods = []*corev1.Pod{web, proxy, agent, dcgm, liar}
	w, later := r.add(a), 0
	f := func(what string, scraped bool, change func(*corev1.Pod)) {
		t.Helper()
		web.Status.PodIP, web.Status.HostIP, web.Spec.HostNetwork = "10.0.0.1", "192.168.0.7", false
		change(web)
		w.pass(r.now) // finds the pods
		found := false
		later += 100 // the nodes' addresses are listed again
		for _, target := range r.listTargets(at(later)) {
			found = found || target.Kind == discovery.KindPod
		}
		if found != scraped {
			t.Errorf("%s: scraped %v", what, found)
		}
		w.pass(r.now)
		said := ""
		for _, c := range conditionsOf(w.status.next) {
			said += c.Message + "\n"
		}
		if strings.Contains(said, "node's network") == scraped {
			t.Errorf("%s: the conditions say %s", what, said)
		}
	}
	f("a pod of its own", true, func(*corev1.Pod) {})
	f("the host's network", false, addressed("192.168.0.7", "192.168.0.7", true))
	f("its own node's address", false, addressed("192.168.0.7", "192.168.0.7", false))
	f("another node's address", false, addressed("192.168.0.9", "192.168.0.7", false))
	f("a GPU node's address", false, addressed("192.168.0.8", "192.168.0.7", false))
	f("the node of an exporter on the host's network", false, addressed("192.168.0.6", "192.168.0.7", false))
	r.discover(func(c *discovery.Config) { c.HostNetworkPods = true })
	f("the host's network, allowed", true, addressed("192.168.0.7", "192.168.0.7", true))
}
