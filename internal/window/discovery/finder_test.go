// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

type podList []*corev1.Pod

func (l *podList) Select(namespace string, sel labels.Selector) (out []*corev1.Pod) {
	for _, p := range *l {
		if (namespace == "" || p.Namespace == namespace) && sel.Matches(labels.Set(p.Labels)) {
			out = append(out, p)
		}
	}
	return out
}

// finder finds exporters in the namespace ns, by the label app.
func finder(pods *podList) *Finder {
	app := func(name string) []labels.Selector {
		return []labels.Selector{labels.SelectorFromSet(labels.Set{"app": name})}
	}
	return New(Config{Agents: app("agent"), AgentNamespace: "ns", DCGM: app("dcgm"), DCGMNamespaces: []string{"ns"}}, pods, nil)
}

func (f *Finder) find() []Target { return f.Find(time.Now(), gpu.SetOf(gpu.GPUUtil), nil).Targets }

func pod(app, name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid of " + name), Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{NodeName: "node-1"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1"},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func contains(t *testing.T, got, want string) {
	t.Helper()
	if !strings.Contains(got, want) {
		t.Errorf("%q does not say %q", got, want)
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

func TestExportersAreFound(t *testing.T) {
	var pods podList
	r := finder(&pods)
	pending := pod("agent", "pending")
	pending.Status.Phase, pending.Status.PodIP = corev1.PodPending, ""
	leaving, now := pod("agent", "leaving"), metav1.Now()
	leaving.DeletionTimestamp = &now
	v6 := pod("dcgm", "v6", func(p *corev1.Pod) { p.Status.PodIP = "fd00::1" })
	pods = []*corev1.Pod{
		pod("agent", "named", ports("http", 80, "metrics", 9500)), pod("agent", "first", ports("http", 80)),
		pod("agent", "none"), pending, leaving, v6, pod("other", "other"),
	}
	got := map[string]string{}
	for _, target := range r.find() {
		got[target.Name] = target.Labels.Job + " " + target.URL.String()
		if target.Fields != gpu.SetOf(gpu.GPUUtil) || target.Labels.Node != "node-1" || string(target.UID) != "uid of "+target.Pod.Name {
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
	var pods podList
	r := finder(&pods)
	r.cfg.AgentNamespace, r.cfg.DCGMNamespaces = "gpupilot-system", []string{"gpupilot-system", "gpu-operator"}
	in := func(app, name, namespace string) *corev1.Pod {
		p := pod(app, name)
		p.Namespace = namespace
		return p
	}
	trusted := []*corev1.Pod{in("agent", "a", "gpupilot-system"), in("dcgm", "d", "gpu-operator"), in("dcgm", "e", "gpupilot-system")}
	forged := []*corev1.Pod{in("agent", "a", "gpu-operator"), in("agent", "a", "ns"), in("dcgm", "d", "ns"), in("dcgm", "d", "kube-system")}
	pods = append(forged, trusted...)
	var got []string
	for _, target := range r.find() {
		got = append(got, target.Name)
		if target.Labels.Rank != map[string]uint8{KindAgent: RankAgent, KindDCGM: RankDCGM}[target.Kind] {
			t.Errorf("%s has rank %d", target.Name, target.Labels.Rank)
		}
	}
	if diff := cmp.Diff([]string{"agent/gpupilot-system/a", "dcgm-exporter/gpupilot-system/e", "dcgm-exporter/gpu-operator/d"}, got); diff != "" {
		t.Error(diff)
	}
	for _, p := range forged {
		if r.IsExporter(p) {
			t.Errorf("%s/%s changes what is scraped", p.Namespace, p.Name)
		}
	}
	for _, p := range trusted {
		if !r.IsExporter(p) {
			t.Errorf("%s/%s does not change what is scraped", p.Namespace, p.Name)
		}
	}
	r.cfg.AgentNamespace, r.cfg.DCGMNamespaces = "", []string{""}
	if got := r.find(); len(got) != 0 {
		t.Errorf("without a namespace %d targets, want none: an empty one selects in all", len(got))
	}
}

func TestPodPort(t *testing.T) {
	two := pod("a", "p", ports("http", 80, "metrics", 90))
	f := func(what string, p *corev1.Pod, port policy.Port, want int32, says string) {
		t.Helper()
		got, err := PodPort(p, port)
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
	one, none := pod("a", "p", ports("", 5)), pod("a", "p")
	f("the only one", one, policy.Port{}, 5, "")
	f("one of two", two, policy.Port{}, 0, "has 2 container ports")
	f("none", none, policy.Port{}, 0, "has 0 container ports")

	vllm, triton := policy.Port{Default: 8000}, policy.Port{Default: 8002, SeparateFromAPI: true}
	f("a server's own", none, vllm, 8000, "")
	f("its own of several", pod("a", "p", ports("ssh", 22, "http", 8000)), vllm, 8000, "")
	f("its own, though others are declared", pod("a", "p", ports("ssh", 22, "http", 80)), vllm, 8000, "")
	f("another, the only one", one, vllm, 5, "")
	f("the one called metrics", two, vllm, 90, "")
	f("a server that has them apart", pod("a", "p", ports("http", 8000)), triton, 8002, "")
	f("what is given goes before", two, policy.Port{Given: &number, Default: 8000}, 7, "")
}
