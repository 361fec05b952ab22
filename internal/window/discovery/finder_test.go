// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
		if got.Number != want || (err != nil) != (says != "") {
			t.Errorf("%s: %s, %v; want %d, %q", what, got, err, want, says)
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

// container is one of a pod, with GPUs or without, and with ports.
func container(name string, gpus int64, ports ...corev1.ContainerPort) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		c := corev1.Container{Name: name, Ports: ports}
		if gpus > 0 {
			c.Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(gpus, resource.DecimalSI)}
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
}

// Of several containers, the one with the GPUs is the server, or else the one that declares
// its usual port. The port of a proxy beside it is never taken for the server's.
func TestServerOfSeveralContainers(t *testing.T) {
	at := func(n int32) corev1.ContainerPort { return corev1.ContainerPort{ContainerPort: n} }
	named := func(name string, n int32) corev1.ContainerPort {
		return corev1.ContainerPort{Name: name, ContainerPort: n}
	}
	always := corev1.ContainerRestartPolicyAlways
	sidecar := func(name string, ports ...corev1.ContainerPort) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: name, Ports: ports, RestartPolicy: &always})
		}
	}
	claim := func(name string, ports ...corev1.ContainerPort) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			c := corev1.Container{Name: name, Ports: ports}
			c.Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
	}
	vllm, triton, name := policy.Port{Default: 8000}, policy.Port{Default: 8002, SeparateFromAPI: true}, intstr.FromString("http")
	f := func(port policy.Port, want string, containers ...func(*corev1.Pod)) {
		t.Helper()
		got, err := PodPort(pod("web", "web-1", containers...), port)
		text := got.String()
		if err != nil {
			text = err.Error()
		}
		if text != want {
			t.Errorf("got  %s\nwant %s", text, want)
		}
	}
	const gpus = ", which requests the GPUs"
	f(vllm, "port 8200 of container vllm"+gpus, container("proxy", 0, at(8000)), container("vllm", 1, at(8200)))
	f(vllm, "port 8200 of container vllm"+gpus, container("vllm", 1, at(8200)), sidecar("routing-proxy", at(8000)))
	f(vllm, "port 8000 (http) of container vllm"+gpus, container("proxy", 0, named("metrics", 9000)), container("vllm", 8, named("http", 8000), at(5555)))
	f(vllm, "port 9001 (metrics) of container vllm"+gpus, container("proxy", 0, named("metrics", 9000)), container("vllm", 8, at(8000), named("metrics", 9001)))
	f(vllm, "port 8000 of container vllm"+gpus, container("proxy", 0, at(8080)), claim("vllm", at(8000)))
	f(vllm, "port 8000, which no container declares", container("proxy", 0, at(8080)), container("vllm", 1))
	f(vllm, "pod web-1: the server is container vllm, which requests the GPUs, but port 8000 is container proxy's; set port in the signal to the one that serves the server's metrics",
		container("proxy", 0, at(8000)), container("vllm", 1))
	f(vllm, "pod web-1: the server is container vllm, which requests the GPUs, but port 8000 is container routing-proxy's; set port in the signal to the one that serves the server's metrics",
		sidecar("routing-proxy", at(8000)), container("vllm", 1, at(8200), at(5600)))
	f(vllm, "port 8000 of container b, which declares port 8000", container("a", 1, at(7000)), container("b", 1, at(8000)))
	f(vllm, "port 8000 of container server, which declares port 8000", container("exporter", 0, named("metrics", 9000)), container("server", 0, at(8000)))
	f(vllm, "port 9000 (metrics) of container exporter", container("exporter", 0, named("metrics", 9000)), container("server", 0, at(80)))
	f(triton, "port 8002 of container triton"+gpus, container("proxy", 0, at(80)), container("triton", 1, at(8000), at(8001), at(8002)))
	f(policy.Port{Default: 8000, Given: &name}, "port 80 (http) of container vllm", container("proxy", 0, named("http", 8080)), container("vllm", 1, named("http", 80)))
	f(policy.Port{}, "port 80 of container server"+gpus, container("proxy", 0, at(8080)), container("server", 1, at(80)))
	f(policy.Port{}, "pod web-1 has 2 container ports (proxy: 8080, server: 80 http); name the one that serves its metrics in signals[].pods.port",
		container("proxy", 0, at(8080)), container("server", 0, named("http", 80)))
	f(policy.Port{Given: &name}, `pod web-1 has no container port named "http" (proxy: 8080)`, container("proxy", 0, at(8080)), container("server", 1))
}

// Signals with TLS read the pod's own address over https, in a target of their own. Those of
// tenants choose no host.
func TestTargetsWithTLS(t *testing.T) {
	var pods podList
	r := finder(&pods)
	pods = podList{pod("web", "web-1", ports("http", 8000, "admin", 15000)), pod("epp", "epp-1", ports("metrics", 9090))}
	r.cfg.Gateways = true
	verify := policy.TLS{CA: "ca", ServerName: "other.example"}
	given := intstr.FromString("http")
	source := func(tls *policy.TLS) policy.Source {
		return policy.Source{Kind: policy.Pods, Terms: []policy.Term{{{Name: "a"}}}, Path: "/metrics", Port: policy.Port{Given: &given}, TLS: tls}
	}
	epp := gateway(9090, "epp")
	epp.Gateway.TLS = &policy.TLS{InsecureSkipVerify: true}
	f := func(readers []Reader, want ...string) {
		t.Helper()
		var got []string
		for _, x := range r.Find(time.Now(), gpu.FieldSet{}, readers).Targets {
			verified := "plain"
			if x.TLS != nil {
				verified = fmt.Sprintf("%+v", *x.TLS)
			}
			got = append(got, x.Name+" "+x.URL.String()+" "+verified)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	const skips, verifies = "{CA: ServerName: InsecureSkipVerify:true}", "{CA:ca ServerName:other.example InsecureSkipVerify:false}"
	f([]Reader{reader(source(&verify)), reader(source(nil)), reader(epp)},
		"pod/ns/epp-1:9090/metrics (HTTPS) https://10.0.0.1:9090/metrics "+skips,
		"pod/ns/web-1:8000/metrics http://10.0.0.1:8000/metrics plain",
		"pod/ns/web-1:8000/metrics (HTTPS) https://10.0.0.1:8000/metrics "+verifies)
}
