// SPDX-License-Identifier: Apache-2.0

package podmonitor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// object is a PodMonitor in the namespace ns with this spec, in YAML.
func object(t testing.TB, name, spec string) *unstructured.Unstructured {
	t.Helper()
	var fields map[string]any
	if err := yaml.Unmarshal([]byte(spec), &fields); err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": fields}}
	u.SetGroupVersionKind(Kind)
	u.SetNamespace("ns")
	u.SetName(name)
	return u
}

func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-1", Labels: map[string]string{"app": "web", "nvidia.com/dynamo-namespace": "chat"}},
		Spec: corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{
			{Name: "sidecar", Ports: []corev1.ContainerPort{{Name: "admin", ContainerPort: 15000}}},
			{Name: "server", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8000}, {ContainerPort: 9000}, {Name: "dns", ContainerPort: 53, Protocol: corev1.ProtocolUDP}}},
		}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1"},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

// endpointSpec is a spec with one endpoint.
func endpointSpec(endpoint string) string {
	return "selector: {matchLabels: {app: web}}\npodMetricsEndpoints:\n- " + endpoint + "\n"
}

// What a Prometheus would do and this controller does not is a problem that names the
// field, and never a scrape of something else.
func TestProblems(t *testing.T) {
	f := func(spec, want string) {
		t.Helper()
		m, problems := Parse(object(t, "m", spec), false)
		if got := strings.Join(problems, "; "); m != nil || !strings.Contains(got, want) {
			t.Errorf("%s\n%+v, %q; want %q", spec, m, got, want)
		}
	}
	at := func(endpoint, want string) {
		t.Helper()
		f(endpointSpec(endpoint), "spec.podMetricsEndpoints[0]."+want)
	}
	at(`{}`, "port is missing")
	at(`{port: "a b"}`, "port is")
	at(`{port: "10.0.0.2:80"}`, "port is")
	at(`{portNumber: 0}`, "portNumber is 0")
	at(`{portNumber: 70000}`, "portNumber is 70000")
	at(`{targetPort: "@10.0.0.2"}`, "targetPort is")
	for _, path := range []string{"/a?b=c", "/../x", "/a/./b", "//10.9.9.9/", "metrics", "/%2e%2e/", "@10.9.9.9/", "/a#b", "/a b", "/" + strings.Repeat("a", 300)} {
		at(fmt.Sprintf(`{port: http, path: %q}`, path), "path")
	}
	at(`{port: http, scheme: https}`, "tlsConfig.insecureSkipVerify is not true")
	at(`{port: http, scheme: https, tlsConfig: {insecureSkipVerify: true, keySecret: {name: a, key: b}}}`, "tlsConfig.keySecret is not supported")
	at(`{port: http, scheme: https, tlsConfig: {ca: {secret: {name: a, key: b}}, serverName: a}}`, "tlsConfig.ca is not supported")
	at(`{port: http, scheme: https, tlsConfig: {ca: {configMap: {name: a, key: b}}}}`, "tlsConfig.ca is not supported")
	at(`{port: http, scheme: https, tlsConfig: {insecureSkipVerify: "true"}}`, "tlsConfig.insecureSkipVerify is not true")
	at(`{port: http, scheme: ftp}`, "scheme is")
	at(`{port: http, interval: soon}`, "interval is")
	at(`{port: http, params: {target: [10.9.9.9]}}`, "params is not supported")
	at(`{port: http, proxyUrl: "http://10.9.9.9"}`, "proxyUrl is not supported")
	at(`{port: http, proxyFromEnvironment: true}`, "proxyFromEnvironment is not supported")
	at(`{port: http, bearerTokenSecret: {name: a, key: b}}`, "bearerTokenSecret is not supported")
	at(`{port: http, authorization: {credentials: {name: a, key: b}}}`, "authorization is not supported")
	at(`{port: http, basicAuth: {username: {name: a, key: b}}}`, "basicAuth is not supported")
	at(`{port: http, oauth2: {tokenUrl: "http://10.9.9.9"}}`, "oauth2 is not supported")
	at(`{port: http, metricRelabelings: [{action: drop, regex: a}]}`, "metricRelabelings is not supported")
	at(`{port: http, somethingNew: true}`, "somethingNew is not supported")
	at(`{port: {a: b}}`, "*")
	for _, label := range []string{"__address__", "__scheme__", "__metrics_path__", "__param_target", "__scrape_interval__", "namespace", "pod", "node", "__name__"} {
		at(fmt.Sprintf(`{port: http, relabelings: [{targetLabel: %s, replacement: x}]}`, label), "relabelings[0].targetLabel is "+label)
	}
	at(`{port: http, relabelings: [{action: labelmap, regex: "("}]}`, "relabelings[0].regex")
	at(`{port: http, relabelings: [{action: keep, regex: "(?:a{31}){31}"}]}`, "relabelings[0].regex is too complex")
	at(`{port: http, relabelings: [{action: replace}]}`, "relabelings[0].*")
	at(`{port: http, relabelings: [{action: run}]}`, "relabelings[0].action")
	at(fmt.Sprintf(`{port: http, relabelings: [{targetLabel: a, replacement: %q}]}`, strings.Repeat("$1", 200)), "relabelings[0].*")
	at(`{port: http, relabelings: [`+strings.Repeat(`{targetLabel: a, replacement: b},`, 17)+`]}`, "relabelings has 17 entries")
	f("namespaceSelector: {any: true}\n"+endpointSpec("{port: http}"), "--query-namespaces")
	f("namespaceSelector: {matchNames: [ns, other]}\n"+endpointSpec("{port: http}"), "--query-namespaces")
	f("selector: {matchLabels: {'a b': c}}\npodMetricsEndpoints: [{port: http}]\n", "spec.selector")
	f("selector: 7\n", "spec cannot be read")
	f("podMetricsEndpoints: 7\n", "spec cannot be read")
}

// A PodMonitor of a server with TLS, such as KServe's, is read without a verification.
func TestSchemes(t *testing.T) {
	f := func(endpoint string, want *policy.TLS) {
		t.Helper()
		m, problems := Parse(object(t, "m", endpointSpec(endpoint)), false)
		if m == nil || len(problems) > 0 || !cmp.Equal(m.Endpoints[0].TLS, want) {
			t.Errorf("%s: %+v, %q", endpoint, m, problems)
		}
	}
	f(`{port: http}`, nil)
	f(`{port: http, scheme: HTTP}`, nil)
	f(`{port: http, scheme: http, tlsConfig: {insecureSkipVerify: true}}`, nil)
	f(`{port: http, scheme: https, tlsConfig: {insecureSkipVerify: true}}`, &policy.TLS{InsecureSkipVerify: true})
	f(`{port: http, scheme: HTTPS, tlsConfig: {insecureSkipVerify: true, serverName: a, ca: {}}}`, &policy.TLS{InsecureSkipVerify: true})
}

// The namespace of a PodMonitor is that of its pods, unless the operator trusts it.
func TestNamespaces(t *testing.T) {
	f := func(spec string, trusted bool, want ...string) {
		t.Helper()
		m, problems := Parse(object(t, "m", spec+endpointSpec("{port: http}")), trusted)
		if m == nil || len(problems) > 0 || !slices.Equal(m.Namespaces, want) {
			t.Errorf("%s: %+v, %q; want %q", spec, m, problems, want)
		}
	}
	f("", false, "ns")
	f("", true, "ns")
	f("namespaceSelector: {matchNames: [ns]}\n", false, "ns")
	f("namespaceSelector: {matchNames: [b, a, b]}\n", true, "a", "b")
	f("namespaceSelector: {any: true}\n", true)
}

// Empty values of fields without support are those of older versions of the API.
func TestEmptyFieldsAreAbsent(t *testing.T) {
	m, problems := Parse(object(t, "m", endpointSpec(`{port: http, scheme: HTTP, interval: 1h, bearerTokenSecret: {key: ""}, params: {}, metricRelabelings: [], honorTimestamps: true, scrapeTimeout: 5s}`)), false)
	if m == nil || len(problems) > 0 {
		t.Fatal(problems)
	}
	if e := m.Endpoints[0]; e.Interval != maxInterval || e.Path != "/metrics" {
		t.Errorf("%+v", e)
	}
}

// A wrong endpoint leaves the others.
func TestEndpointsFailAlone(t *testing.T) {
	m, problems := Parse(object(t, "m", endpointSpec(`{port: http, path: "/a?b"}`)+"- {port: http, honorLabels: true}\n- {portNumber: 9000}\n"), false)
	if m == nil || len(m.Endpoints) != 2 || len(problems) != 2 || !strings.Contains(problems[1], "honorLabels is ignored") {
		t.Fatalf("%+v %q", m, problems)
	}
}

// labelsOf returns all labels of the series of a pod's endpoint.
func labelsOf(t *testing.T, m *Monitor, p *corev1.Pod) (map[string]string, error) {
	t.Helper()
	e := &m.Endpoints[0]
	port, container, err := e.ContainerPort(p)
	if err != nil {
		return nil, err
	}
	l, keep, err := e.Labels(p, port, container, fmt.Sprintf("10.0.0.1:%d", port.ContainerPort))
	if err != nil || !keep {
		return nil, err
	}
	return flat(t, l), nil
}

func flat(t testing.TB, l series.TargetLabels) map[string]string {
	t.Helper()
	out := map[string]string{"node": l.Node, "instance": l.Instance, "job": l.Job, "namespace": l.Namespace, "pod": l.Pod}
	last := ""
	for name, value := range l.Extra.All() {
		if _, twice := out[name]; twice || name <= last || value == "" {
			t.Errorf("label %q=%q after %q in %q", name, value, last, l.Extra)
		}
		out[name], last = value, name
	}
	return out
}

func TestLabels(t *testing.T) {
	f := func(spec string, want map[string]string) {
		t.Helper()
		m, problems := Parse(object(t, "m", spec), false)
		if m == nil || len(problems) > 0 {
			t.Fatal(spec, problems)
		}
		if want != nil {
			all := map[string]string{
				"node": "node-1", "namespace": "ns", "pod": "web-1", "instance": "10.0.0.1:8000", "job": "ns/m", "container": "server", "endpoint": "http",
			}
			maps.Copy(all, want)
			maps.DeleteFunc(all, func(_, v string) bool { return v == "" })
			want = all
		}
		got, err := labelsOf(t, m, pod())
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s\n%s%v", spec, diff, err)
		}
	}
	f(endpointSpec("{port: http}"), map[string]string{})
	f(endpointSpec("{portNumber: 9000}"), map[string]string{"instance": "10.0.0.1:9000", "endpoint": "9000"})
	f(endpointSpec("{targetPort: 15000}"), map[string]string{"instance": "10.0.0.1:15000", "endpoint": "15000", "container": "sidecar"})
	f("jobLabel: app\npodTargetLabels: [app, none]\n"+endpointSpec("{port: http}"), map[string]string{"job": "web", "app": "web"})
	f(endpointSpec(`{port: http, relabelings: [
  {sourceLabels: [__meta_kubernetes_pod_label_nvidia_com_dynamo_namespace], targetLabel: dynamo_namespace},
  {sourceLabels: [__meta_kubernetes_pod_name], targetLabel: instance}]}`), map[string]string{"dynamo_namespace": "chat", "instance": "web-1"})
	f(endpointSpec(`{port: http, relabelings: [{action: LabelMap, regex: "__meta_kubernetes_pod_label_(.+)"}]}`),
		map[string]string{"app": "web", "nvidia_com_dynamo_namespace": "chat"})
	f(endpointSpec(`{port: http, relabelings: [{action: drop, sourceLabels: [__meta_kubernetes_pod_container_name], regex: server}]}`), nil)
	f(endpointSpec(`{port: http, relabelings: [{action: keep, sourceLabels: [__meta_kubernetes_pod_container_name], regex: server}]}`), map[string]string{})
	f(endpointSpec(`{port: http, relabelings: [{action: labeldrop, regex: ".*"}]}`), map[string]string{"container": "", "endpoint": ""})
	// Labels that are computed speak for no other namespace and no exporter either.
	f(endpointSpec(`{port: http, relabelings: [
  {sourceLabels: [__meta_kubernetes_pod_label_app], regex: (.*), targetLabel: "name${1}space", replacement: x},
  {action: labelmap, regex: "__meta_kubernetes_pod_label_(ap)p", replacement: "namespace"},
  {action: labelmap, regex: "(app)lication", replacement: "__address__"},
  {targetLabel: job, replacement: gpupilot-agent}]}`), map[string]string{"namewebspace": "x"})
}

// Relabelings that would fill the memory end at the first step that does.
func TestLabelsAreBounded(t *testing.T) {
	f := func(relabelings string, want string) {
		t.Helper()
		m, problems := Parse(object(t, "m", endpointSpec("{port: http, relabelings: ["+relabelings+"]}")), false)
		if m == nil {
			t.Fatal(problems)
		}
		p := pod(func(p *corev1.Pod) {
			for i := range 2000 {
				p.Labels[fmt.Sprintf("label-%04d", i)] = strings.Repeat("v", 63)
			}
		})
		if got, err := labelsOf(t, m, p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %d labels, %v; want %q", relabelings, len(got), err, want)
		}
	}
	double := fmt.Sprintf("{sourceLabels: [a], targetLabel: a, replacement: %q},", strings.Repeat("$1", 100))
	f("{targetLabel: a, replacement: xxxx},"+strings.Repeat(double, 5), "at most 256 are supported")
	f(`{action: labelmap, regex: "__meta_kubernetes_pod_label_(.+)"}`, "would have")
}

// No endpoint gives a series another namespace, pod or node, and none is a host.
func FuzzParse(f *testing.F) {
	f.Add(endpointSpec("{port: http}"), true)
	f.Add(endpointSpec(`{port: http, path: /a, relabelings: [{action: labelmap, regex: "__meta_(.+)"}]}`), false)
	f.Add("namespaceSelector: {any: true}\njobLabel: app\n"+endpointSpec("{targetPort: 9000, interval: 3s}"), true)
	f.Fuzz(func(t *testing.T, spec string, trusted bool) {
		var fields map[string]any
		if len(spec) > 4096 || yaml.Unmarshal([]byte(spec), &fields) != nil {
			return
		}
		u := &unstructured.Unstructured{Object: map[string]any{"spec": fields}}
		u.SetNamespace("ns")
		u.SetName("m")
		m, _ := Parse(u, trusted)
		if m == nil {
			return
		}
		if !trusted && !slices.Equal(m.Namespaces, []string{"ns"}) {
			t.Fatalf("namespaces %q", m.Namespaces)
		}
		p := pod()
		for i := range m.Endpoints {
			e := &m.Endpoints[i]
			if strings.ContainsAny(e.Path, "?#%\\ \n") || !strings.HasPrefix(e.Path, "/") || strings.HasPrefix(e.Path, "//") || e.Interval < 0 || e.Interval > maxInterval {
				t.Fatalf("%+v", e)
			}
			port, c, err := e.ContainerPort(p)
			if err != nil {
				continue
			}
			l, keep, err := e.Labels(p, port, c, "10.0.0.1:1")
			if err != nil || !keep {
				continue
			}
			got := flat(t, l)
			if got["namespace"] != "ns" || got["pod"] != "web-1" || got["node"] != "node-1" || l.Rank != 0 || len(got) > maxExtraLabels+5 || got["job"] == "" || got["instance"] == "" {
				t.Fatalf("%v", got)
			}
			for name := range got {
				if strings.HasPrefix(name, "__") {
					t.Fatalf("%v", got)
				}
			}
		}
	})
}

// recorded is a set whose reports are kept.
func recorded() (*Set, map[string]string) {
	told := map[string]string{}
	return &Set{
		Trusted: func(string) bool { return false }, Changed: func() {},
		Report: func(id, problem string) { told[id] = problem },
	}, told
}

// A tenant's PodMonitors beyond the limit are refused, and those of others are not.
func TestTooManyPodMonitors(t *testing.T) {
	s, told := recorded()
	day := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	for i := range 10_000 {
		u := object(t, fmt.Sprintf("m%05d", i), "")
		u.Object["spec"] = map[string]any{"podMetricsEndpoints": []any{map[string]any{"port": "http"}}}
		u.SetCreationTimestamp(metav1.NewTime(day.Add(time.Duration(i) * time.Second)))
		s.Put(u)
	}
	other := object(t, "newest", endpointSpec("{port: http}"))
	other.SetNamespace("other")
	other.SetCreationTimestamp(metav1.NewTime(day.AddDate(0, 0, 1)))
	s.Put(other)
	list := s.Current()
	if n := len(list.All()); n != maxPerNamespace+1 || list.All()[0].Name != "m00000" || list.All()[n-1].Namespace != "other" {
		t.Errorf("%d PodMonitors are used", n)
	}
	if len(told) != 10_000-maxPerNamespace || !strings.Contains(told["PodMonitor/ns/m00050"], "50 older PodMonitors") {
		t.Errorf("%d are told of: %q", len(told), told["PodMonitor/ns/m00050"])
	}
	s.Remove("PodMonitor/ns/m00000")
	if s.Current(); told["PodMonitor/ns/m00050"] != "" {
		t.Errorf("after another has gone: %q", told["PodMonitor/ns/m00050"])
	}
}

// A problem is told once, and once that it is solved.
func TestProblemsAreToldOnce(t *testing.T) {
	s, told := recorded()
	const id = "PodMonitor/ns/m"
	f := func(want string, n int) {
		t.Helper()
		got, ok := told[id]
		delete(told, id)
		if len(s.Current().All()) != n || ok != (want != "-") || ok && got != want {
			t.Errorf("%q, %v: want %q", got, ok, want)
		}
	}
	put := func(endpoint string) {
		s.Put(object(t, "m", endpointSpec(endpoint)))
		s.Current()
	}
	put("{port: http}")
	f("-", 1)
	s.PodsProblem(id, "pod web-1 declares no container port http")
	f("pod web-1 declares no container port http", 1)
	s.PodsProblem(id, "pod web-1 declares no container port http")
	f("-", 1)
	s.PodsProblem(id, "pod web-2 declares no container port http") // the next pod of the same workload
	f("-", 1)
	s.PodsProblem(id, "pod web-1 declares no container port http")
	s.ReportAgain()
	f("pod web-1 declares no container port http", 1)
	put("{port: http, params: {a: [b]}}")
	if got := told[id]; !strings.Contains(got, "params") {
		t.Errorf("%q", got)
	}
	f(told[id], 0)
	put("{port: http}")
	f("", 1)
	if got := s.Current().Of(pod()); len(got) != 1 {
		t.Errorf("%d PodMonitors select the pod", len(got))
	}
	if got := s.Current().Of(pod(func(p *corev1.Pod) { p.Namespace = "other" })); len(got) != 0 {
		t.Errorf("%d PodMonitors select a pod of another namespace", len(got))
	}
	same := object(t, "m", endpointSpec("{port: http}"))
	same.SetGeneration(7)
	s.Put(same)
	used := s.Current().All()[0]
	s.Put(same.DeepCopy()) // with another status
	if s.Current().All()[0] != used {
		t.Error("a change of the status makes another PodMonitor")
	}
	s.Remove(id)
	s.PodsProblem(id, "late")
	f("-", 0)
}
