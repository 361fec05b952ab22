// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/url"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// onPods is an object with two signals that are read at this port and path: a
// metric of the pods, and a preset.
func onPods(port *intstr.IntOrString, path string) *v1alpha1.GPUAutoscaler {
	return &v1alpha1.GPUAutoscaler{Spec: v1alpha1.GPUAutoscalerSpec{MaxReplicas: 8, Signals: []v1alpha1.Signal{
		{Pods: &v1alpha1.PodsSignal{Metric: "queue", Port: port, Path: path}, Target: &v1alpha1.Target{Value: resource.MustParse("4")}},
		{Preset: v1alpha1.PresetVLLM, Port: port, Path: path},
	}}}
}

func TestPathsAreValidated(t *testing.T) {
	f := func(path string, valid bool) {
		t.Helper()
		_, err := Compile(onPods(nil, path))
		switch {
		case valid && err != nil:
			t.Errorf("%q is refused: %v", path, err)
		case !valid && err == nil:
			t.Errorf("%q is accepted", path)
		case !valid:
			for _, field := range []string{"spec.signals[0].pods.path", "spec.signals[1].path"} {
				if !strings.Contains(err.Error(), field) {
					t.Errorf("%q: the error does not name %s: %v", path, field, err)
				}
			}
		}
	}
	for _, path := range []string{
		"", "/", "/metrics", "/metrics/", "/a/b.c/d-e_f~g", "/@host:80/x", "/...", "/a..b", "/.hidden", "/" + strings.Repeat("a", 255),
		"/stats/prometheus;v=1", "/!$&'()*+,;=:@",
	} {
		f(path, true)
	}
	for _, path := range []string{
		"@evil.example:80/x", "metrics", ":80/x", "//evil.example/x", "/a//b", "///", "/a//", "/metrics?format=prometheus", "/metrics#top", "?x", "#x",
		`/\evil.example`, `\\evil.example`, "/a b", "/a\nHost: evil.example", "/a\x00", "/a\x7f", "/..", "/../x", "/a/../b", "/a/..", "/.", "/./a", "/a/./b", "/a/../",
		"/%2e%2e/x", "/a%2fb", "/%", "/größe", "/\xff", "http://evil.example/", "/" + strings.Repeat("a", 256), " /metrics", "/metrics ", "/a[b]", "/a{b}", `/"`, "/<x>", "/a|b", "/a^b", "/a`b",
	} {
		f(path, false)
	}
}

func TestPortsAreValidated(t *testing.T) {
	f := func(port intstr.IntOrString, valid bool) {
		t.Helper()
		_, err := Compile(onPods(&port, ""))
		if valid != (err == nil) {
			t.Errorf("port %q: error %v, valid: %v", port.String(), err, valid)
		}
		if !valid && err != nil && !(strings.Contains(err.Error(), "spec.signals[0].pods.port") && strings.Contains(err.Error(), "spec.signals[1].port")) {
			t.Errorf("port %q: the error does not name the fields: %v", port.String(), err)
		}
	}
	for _, n := range []int{1, 80, 8000, 65535} {
		f(intstr.FromInt(n), true)
	}
	for _, n := range []int{0, -1, 65536, 1 << 30} {
		f(intstr.FromInt(n), false)
	}
	for _, name := range []string{"http", "http-metrics", "a", "8080-tcp", "x1", "abcdefghijklmno"} {
		f(intstr.FromString(name), true)
	}
	for _, name := range []string{"", "8000", "Http", "-a", "a-", "a--b", "a_b", "abcdefghijklmnop", "a.b", "@evil.example", "80/x", "1-2", "a b", "a\n"} {
		f(intstr.FromString(name), false)
	}
}

// Whatever path is accepted, a URL made of a host and that path reaches that
// host and that path, and nothing else.
func FuzzPathKeepsTheHost(f *testing.F) {
	for _, path := range []string{"/metrics", "@evil.example:80/x", "//evil.example", "/a/../b", "/a?b#c", `/\evil`, "/%2e%2e", "/a\nb", "/@a:b@c", "/;:@&=+$,"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		c, err := Compile(onPods(nil, path))
		if err != nil || path == "" {
			return
		}
		const host = "10.0.0.7:8000"
		parts := url.URL{Scheme: "http", Host: host, Path: c.Sources[0].Path}
		for _, text := range []string{"http://" + host + c.Sources[0].Path, parts.String()} {
			u, err := url.Parse(text)
			if err != nil {
				t.Fatalf("%q: %v", text, err)
			}
			if u.Host != host || u.Hostname() != "10.0.0.7" || u.Port() != "8000" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.ForceQuery || u.Path != path {
				t.Errorf("path %q becomes %q: host %q, user %v, path %q, query %q, fragment %q", path, text, u.Host, u.User, u.Path, u.RawQuery, u.Fragment)
			}
			if again := u.JoinPath(); again.Path != path || again.Host != host {
				t.Errorf("path %q becomes %q when it is cleaned", path, again)
			}
		}
	})
}

// An object that was stored before the CRD had its bounds, or with its schema
// edited away, is refused by the same bounds.
func TestBoundsOfTheCRDHoldWithoutIt(t *testing.T) {
	f := func(change func(*v1alpha1.GPUAutoscalerSpec), want string) {
		t.Helper()
		a := onPods(nil, "")
		change(&a.Spec)
		if _, err := Compile(a); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %s", err, want)
		}
	}
	n := func(x int32) *int32 { return &x }
	down := func(r v1alpha1.ScalingRules) *v1alpha1.Behavior { return &v1alpha1.Behavior{ScaleDown: &r} }
	f(func(s *v1alpha1.GPUAutoscalerSpec) { s.Actuation = "Guess" }, "spec.actuation")
	f(func(s *v1alpha1.GPUAutoscalerSpec) { s.Signals = make([]v1alpha1.Signal, 17) }, "spec.signals")
	f(func(s *v1alpha1.GPUAutoscalerSpec) {
		s.Behavior = down(v1alpha1.ScalingRules{StabilizationWindowSeconds: n(-1)})
	}, "stabilizationWindowSeconds")
	f(func(s *v1alpha1.GPUAutoscalerSpec) {
		s.Behavior = down(v1alpha1.ScalingRules{StabilizationWindowSeconds: n(3601)})
	}, "stabilizationWindowSeconds")
	f(func(s *v1alpha1.GPUAutoscalerSpec) {
		s.Behavior = down(v1alpha1.ScalingRules{Policies: make([]v1alpha1.ScalingPolicy, 17)})
	}, "policies")
	f(func(s *v1alpha1.GPUAutoscalerSpec) { s.Startup = &v1alpha1.Startup{ExpectedSeconds: n(-1)} }, "startup.expectedSeconds")
	f(func(s *v1alpha1.GPUAutoscalerSpec) { s.Budget = &v1alpha1.Budget{MaxGPUs: n(0)} }, "budget.maxGPUs")
}
