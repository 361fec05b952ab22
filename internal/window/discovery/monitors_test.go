// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/podmonitor"
)

// monitors makes a set of PodMonitors; told has their problems by name.
func monitors(t *testing.T, r *Finder) (put func(namespace, name, spec string), told map[string]string) {
	told = map[string]string{}
	set := &podmonitor.Set{
		Trusted: func(ns string) bool { return ns == "trusted" }, Changed: func() {},
		Report: func(id, problem string) { told[id] = problem },
	}
	r.cfg.PodMonitors = set
	age := 0
	return func(namespace, name, spec string) {
		t.Helper()
		var fields map[string]any
		if err := yaml.Unmarshal([]byte(spec), &fields); err != nil {
			t.Fatal(err)
		}
		u := &unstructured.Unstructured{Object: map[string]any{"spec": fields}}
		u.SetNamespace(namespace)
		u.SetName(name)
		age++
		u.SetCreationTimestamp(metav1.NewTime(time.Unix(int64(age), 0)))
		set.Put(u)
	}, told
}

// found lists the targets as lines.
func (f *Finder) found(readers ...Reader) (out []string) {
	for _, t := range f.Find(time.Now(), gpu.FieldSet{}, readers).Targets {
		out = append(out, fmt.Sprintf("%s %s job=%s every %s %d metrics", t.Name, t.URL.String(), t.Labels.Job, t.Interval, len(t.Metrics)))
	}
	return out
}

func in(namespace string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Namespace = namespace } }

func TestPodMonitors(t *testing.T) {
	var pods podList
	r := finder(&pods)
	put, told := monitors(t, r)
	f := func(want ...string) {
		t.Helper()
		slices.Sort(want)
		if diff := cmp.Diff(want, r.found()); diff != "" {
			t.Error(diff)
		}
	}
	says := func(id, want string) {
		t.Helper()
		if got := told[id]; !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
	}
	web := pod("web", "web-1", ports("http", 8000, "admin", 15000))
	elsewhere := pod("web", "web-2", in("other"), ports("http", 8000))
	pods = podList{web, elsewhere, pod("agent", "agent-1", ports("http", 9400)), pod("other", "o", ports("http", 80))}
	put("ns", "a", "selector: {matchLabels: {app: web}}\npodMetricsEndpoints: [{port: http, interval: 30s}]\n")
	const first = "pod/ns/web-1:8000/metrics http://10.0.0.1:8000/metrics job=ns/a every 30s 0 metrics"
	const agent = "agent/ns/agent-1 http://10.0.0.1:9400/metrics job=gpupilot-agent every 0s 0 metrics"
	f(agent, first)
	// Of two PodMonitors with one port and path, the older one counts: nothing is counted twice.
	put("ns", "b", "selector: {}\npodMetricsEndpoints: [{targetPort: 8000, interval: 1s}, {port: admin, path: /stats}]\n")
	f(agent, first, "pod/ns/web-1:15000/stats http://10.0.0.1:15000/stats job=ns/b every 10s 0 metrics")
	says("PodMonitor/ns/b", "declares no container port")
	// A tenant selects no pod of another namespace, and a trusted namespace does.
	put("mine", "c", "namespaceSelector: {any: true}\nselector: {}\npodMetricsEndpoints: [{port: http}]\n")
	f(agent, first, "pod/ns/web-1:15000/stats http://10.0.0.1:15000/stats job=ns/b every 10s 0 metrics")
	says("PodMonitor/mine/c", "--query-namespaces")
	put("trusted", "d", "namespaceSelector: {matchNames: [other]}\nselector: {}\npodMetricsEndpoints: [{port: http}]\n")
	f(agent, first, "pod/ns/web-1:15000/stats http://10.0.0.1:15000/stats job=ns/b every 10s 0 metrics",
		"pod/other/web-2:8000/metrics http://10.0.0.1:8000/metrics job=trusted/d every 10s 0 metrics")
	for _, target := range r.Find(time.Now(), gpu.FieldSet{}, nil).Targets {
		if target.Kind == KindPod && target.Labels.Namespace+"/"+target.Labels.Pod != strings.TrimPrefix(target.Name[:strings.Index(target.Name, ":")], "pod/") {
			t.Errorf("%s has the labels %+v", target.Name, target.Labels)
		}
	}
	for _, p := range []*corev1.Pod{web, elsewhere} {
		if !r.IsSource(p) {
			t.Errorf("a change of %s does not change what is scraped", p.Name)
		}
	}
	if r.IsSource(pod("web", "web-3", in("third"))) {
		t.Error("a pod that no PodMonitor selects changes what is scraped")
	}
}

// The kubelet's port is a port of a node: a pod on the node's network is not scraped,
// and a pod has no port that it does not declare.
func TestPodMonitorsOfHostPorts(t *testing.T) {
	var pods podList
	r := finder(&pods)
	put, told := monitors(t, r)
	pods = podList{
		pod("host", "h", ports("kubelet", 10250), addressed("192.168.0.1", "192.168.0.1", true)),
		pod("claims", "c", ports("kubelet", 10250), addressed("192.168.0.1", "192.168.0.1", false)),
		pod("web", "w", ports("http", 8000)),
		pod("meta", "m", ports("http", 80), addressed("169.254.169.254", "", false)),
	}
	for name, want := range map[string]string{"host": "on its node's network", "claims": "on its node's network", "web": "declares no container port 10250", "meta": "is not a pod address"} {
		port := "portNumber: 10250"
		if name == "meta" {
			port = "port: http"
		}
		put("ns", name, "selector: {matchLabels: {app: "+name+"}}\npodMetricsEndpoints: [{"+port+"}]\n")
		if got := r.found(); len(got) != 0 {
			t.Errorf("%s: %q", name, got)
		}
		if got := told["PodMonitor/ns/"+name]; !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// Many PodMonitors of a pod leave room for what autoscalers read, and many pods of a
// namespace leave room for other namespaces.
func TestPodMonitorsHaveBudgets(t *testing.T) {
	synctest.Test(t, testBudgets) // where labels take no time
}

func testBudgets(t *testing.T) {
	var pods podList
	r := finder(&pods)
	put, told := monitors(t, r)
	for i := range maxMonitored + 100 {
		pods = append(pods, pod("many", fmt.Sprintf("m%04d", i), in("big"), ports("http", 80)))
	}
	pods = append(pods, pod("web", "web-1", ports("http", 8000)), pod("web", "web-2", in("small"), ports("http", 8000)))
	put("big", "all", "selector: {}\npodMetricsEndpoints: [{port: http}]\n")
	put("small", "all", "selector: {}\npodMetricsEndpoints: [{port: http}]\n")
	for i := range 20 {
		put("ns", fmt.Sprint("m", i), fmt.Sprintf("selector: {}\npodMetricsEndpoints: [{port: http, path: /%d}]\n", i))
	}
	got := r.found(reader(policy.Source{Kind: policy.Pods, Terms: []policy.Term{{{Name: "a"}}}, Path: "/metrics"}))
	count := map[string]int{}
	for _, line := range got {
		count[strings.Split(line, "/")[1]]++
	}
	if want := map[string]int{"big": maxMonitored, "small": 1, "ns": MaxPerPod}; !cmp.Equal(count, want) {
		t.Errorf("%v, want %v", count, want)
	}
	if !slices.ContainsFunc(got, func(s string) bool { return strings.HasSuffix(s, "/metrics job=pod every 0s 1 metrics") }) {
		t.Error("the autoscaler's own metric is not scraped")
	}
	intervals := map[string]int{}
	for _, line := range got {
		_, every, _ := strings.Cut(line, " every ")
		intervals[strings.Split(line, "/")[1]+" "+strings.Fields(every)[0]]++
	}
	if want := map[string]int{"big 1m4s": maxMonitored, "small 10s": 1, "ns 0s": 1, "ns 10s": MaxPerPod - 1}; !cmp.Equal(intervals, want) {
		t.Errorf("%v, want %v", intervals, want)
	}
	for id, want := range map[string]string{"PodMonitor/big/all": "select too many pods: the limits are 1000 targets", "PodMonitor/ns/m19": "already has 8 ports", "PodMonitor/ns/m0": ""} {
		if !strings.Contains(told[id], want) || want == "" && told[id] != "" {
			t.Errorf("%s: %q, want %q", id, told[id], want)
		}
	}
}

func TestLeastInterval(t *testing.T) {
	for targets, want := range map[int]time.Duration{0: 0, 20: 0, 21: 2 * time.Second, 40: 2 * time.Second, 41: 4 * time.Second, 1000: 64 * time.Second} {
		if got := leastInterval(targets); got != want {
			t.Errorf("%d targets: %s, want %s", targets, got, want)
		}
	}
}

// Labels that take too long are left to the next Find, and those that are known stay.
func TestLabelsTakeTime(t *testing.T) {
	var pods podList
	r := finder(&pods)
	put, _ := monitors(t, r)
	put("ns", "m", "selector: {}\npodMetricsEndpoints: [{port: http}]\n")
	f := func(budget time.Duration, targets int, late bool) {
		t.Helper()
		r.labelBudget = budget
		if list := r.Find(time.Now(), gpu.FieldSet{}, nil); len(list.Targets) != targets || list.Late != late {
			t.Errorf("%d targets, late %v; want %d, %v", len(list.Targets), list.Late, targets, late)
		}
	}
	pods = podList{pod("web", "web-1", ports("http", 8000))}
	f(time.Hour, 1, false)
	pods = append(pods, pod("web", "web-2", ports("http", 8000)))
	f(-1, 1, true)
	f(time.Hour, 2, false)
	f(-1, 2, false)
	put("ns", "m", "selector: {}\njobLabel: app\npodMetricsEndpoints: [{port: http}]\n") // changed
	f(-1, 2, true)
	f(time.Hour, 2, false)
}

// reader reads pods with the label app=web in the namespace ns.
func reader(sources ...policy.Source) Reader {
	return Reader{Namespace: "ns", Name: "web", Selector: labels.SelectorFromSet(labels.Set{"app": "web"}), Sources: sources}
}

// A pods signal and a PodMonitor of one port share a target: it is scraped as often as
// the signal needs, with the PodMonitor's labels.
func TestSharedTarget(t *testing.T) {
	var pods podList
	r := finder(&pods)
	put, _ := monitors(t, r)
	pods = podList{pod("web", "web-1", ports("http", 8000, "admin", 15000))}
	signal := reader(policy.Source{Kind: policy.Pods, Terms: []policy.Term{{{Name: "a"}}}, Path: "/metrics"})
	if got := r.found(signal); len(got) != 0 {
		t.Errorf("without a port: %q", got)
	}
	// The PodMonitor names the port and the path that the signal does not.
	put("ns", "m", "selector: {matchLabels: {app: web}}\npodMetricsEndpoints: [{port: admin, path: /stats, interval: 30s}]\n")
	want := []string{"pod/ns/web-1:15000/stats http://10.0.0.1:15000/stats job=ns/m every 0s 1 metrics"}
	if diff := cmp.Diff(want, r.found(signal)); diff != "" {
		t.Error(diff)
	}
	// A port that is given counts.
	given := intstr.FromString("http")
	signal.Sources[0].Port.Given = &given
	want = append(want, "pod/ns/web-1:8000/metrics http://10.0.0.1:8000/metrics job=pod every 0s 1 metrics")
	want[0] = strings.Replace(want[0], "every 0s 1 metrics", "every 30s 0 metrics", 1)
	if diff := cmp.Diff(want, r.found(signal)); diff != "" {
		t.Error(diff)
	}
}

func gateway(port int32, app string) policy.Source {
	return policy.Source{Kind: policy.Query, PromQL: "x", Gateway: &policy.Gateway{
		Selectors: []labels.Selector{labels.SelectorFromSet(labels.Set{"app": app}), labels.SelectorFromSet(labels.Set{"app": app, "also": "this"})},
		Port:      policy.Port{Default: port, SeparateFromAPI: true}, Path: "/metrics",
	}}
}

// The gateways of an autoscaler are the pods of its own namespace.
func TestGateways(t *testing.T) {
	var pods podList
	r := finder(&pods)
	epp := reader(gateway(9090, "epp"))
	f := func(problem string, want ...string) {
		t.Helper()
		list := r.Find(time.Now(), gpu.FieldSet{}, []Reader{epp})
		var got []string
		for i := range list.Targets {
			got = append(got, list.Targets[i].URL.String())
		}
		g := list.Gateways[types.NamespacedName{Namespace: "ns", Name: "web"}]
		if diff := cmp.Diff(want, got); diff != "" || !strings.Contains(g.Problem, problem) || (g.Problem == "") != (problem == "") || len(g.Targets) != len(want) {
			t.Errorf("%s %+v, want %q", diff, g, problem)
		}
	}
	first := pod("epp", "epp-1", ports("grpc", 9002), func(p *corev1.Pod) { p.UID, p.Labels["also"] = "1", "this" })
	pods = podList{first, pod("epp", "epp-1", in("other"))}
	if got := r.found(epp); len(got) != 0 || r.IsSource(first) {
		t.Errorf("with a backend: %q", got)
	}
	r.cfg.Gateways = true
	f("", "http://10.0.0.1:9090/metrics")
	if !r.IsSource(first) || r.IsSource(pods[1]) {
		t.Error("changes of which pods matter?")
	}
	first.Labels["app"] = "no"
	f("no running pod of namespace ns has the labels of the gateway (app=epp")
	pods = podList{pod("epp", "epp-1", addressed("192.168.0.1", "192.168.0.1", true))}
	f("on its node's network")
	pods = nil
	for i := range 100 {
		pods = append(pods, pod("epp", fmt.Sprintf("epp-%03d", i)))
	}
	if got := r.found(epp); len(got) != maxGateways {
		t.Errorf("%d pods of a gateway are scraped", len(got))
	}
}
