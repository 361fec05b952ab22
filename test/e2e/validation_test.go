// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/test/stack"
)

// A latency without its unit is refused with the field and an example.
func TestALatencyWithoutUnit(t *testing.T) {
	for _, value := range []string{"50", "0.05", "", "0ms", "-50ms"} {
		for _, name := range []string{"interTokenLatency", "timeToFirstToken"} {
			var a unstructured.Unstructured
			text := `{"apiVersion": "gpupilot.dev/v1alpha1", "kind": "GPUAutoscaler", "metadata": {"name": "slo", "namespace": "default"}, "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"},
				"maxReplicas": 2, "signals": [{"preset": "vllm", "slo": {"` + name + `": "` + value + `"}}]}}`
			if err := a.UnmarshalJSON([]byte(text)); err != nil {
				t.Fatal(err)
			}
			err := rig.Client.Create(t.Context(), &a, client.DryRunAll)
			if err == nil || !strings.Contains(err.Error(), "spec.signals[0].slo."+name) || !strings.Contains(err.Error(), "with its unit, such as 50ms") || strings.Contains(err.Error(), "protobuf") {
				t.Errorf("%s: %q: %v", name, value, err)
			}
		}
	}
}

// What the controller refuses the API server refuses, and the reverse, as far
// as the CRD can say it. Names of metrics and their ceilings are in no schema.
func TestCRDAndControllerAgree(t *testing.T) {
	type spec = v1alpha1.GPUAutoscalerSpec
	pods := func(port *intstr.IntOrString, path string) func(*spec) {
		return func(s *spec) {
			s.Signals[0].GPU, s.Signals[0].Pods = nil, &v1alpha1.PodsSignal{Metric: "queue", Port: port, Path: path}
		}
	}
	preset := func(port *intstr.IntOrString, path string) func(*spec) {
		return func(s *spec) { s.Signals[0] = v1alpha1.Signal{Preset: "vllm", Port: port, Path: path} }
	}
	number := func(n int) *intstr.IntOrString { p := intstr.FromInt(n); return &p }
	name := func(s string) *intstr.IntOrString { p := intstr.FromString(s); return &p }
	quantity := func(s string) *resource.Quantity { q := resource.MustParse(s); return &q }
	n := func(x int32) *int32 { return &x }
	target := func(value string) func(*spec) {
		return func(s *spec) { s.Signals[0].Target.Value = resource.MustParse(value) }
	}
	slo := func(of v1alpha1.Preset, d time.Duration) func(*spec) {
		return func(s *spec) {
			s.Signals[0] = v1alpha1.Signal{Preset: of, SLO: &v1alpha1.SLO{InterTokenLatency: &metav1.Duration{Duration: d}}}
		}
	}
	query := func(promql, activation string) func(*spec) {
		return func(s *spec) {
			s.Signals[0].GPU, s.Signals[0].Query = nil, &v1alpha1.QuerySignal{PromQL: promql}
			s.Signals[0].Activation = quantity(activation)
		}
	}
	down := func(r v1alpha1.ScalingRules) func(*spec) {
		return func(s *spec) { s.Behavior = &v1alpha1.Behavior{ScaleDown: &r} }
	}
	f := func(valid bool, what string, change func(*spec)) {
		t.Helper()
		a := stack.Autoscaler("checked")
		change(&a.Spec)
		_, refuses := policy.Compile(a)
		err := rig.Client.Create(t.Context(), a, client.DryRunAll)
		if valid != (refuses == nil) || valid != (err == nil) {
			t.Errorf("%s, valid: %v: the controller says %v, the API server %v", what, valid, refuses, err)
		}
		if !valid && err != nil && !strings.Contains(err.Error(), "spec") {
			t.Errorf("%s: the API server's error names no field: %v", what, err)
		}
	}
	f(true, "as it is", func(*spec) {})
	f(false, "a long formula", func(s *spec) { s.Formula = strings.Repeat("x", 1025) })
	override := func(change func(*v1alpha1.Override)) func(*spec) {
		o := v1alpha1.Override{Until: metav1.NewTime(time.Now().Add(time.Hour)), Reason: "incident 4711"}
		change(&o)
		return func(s *spec) { s.Override = &o }
	}
	f(true, "an override", override(func(o *v1alpha1.Override) { o.Replicas = n(0) }))
	f(true, "a freeze", override(func(o *v1alpha1.Override) { o.Freeze = "Both" }))
	f(false, "an override of two kinds", override(func(o *v1alpha1.Override) { o.Replicas, o.MinReplicas = n(1), n(1) }))
	f(false, "an override of no kind", override(func(*v1alpha1.Override) {}))
	f(false, "a negative override", override(func(o *v1alpha1.Override) { o.MaxReplicas = n(-1) }))
	f(false, "an unknown freeze", override(func(o *v1alpha1.Override) { o.Freeze = "In" }))
	f(false, "an override without a reason", override(func(o *v1alpha1.Override) { o.Replicas, o.Reason = n(1), " " }))
	f(false, "an override without an end", override(func(o *v1alpha1.Override) { o.Replicas, o.Until = n(1), metav1.Time{} }))
	pair := func(with, low, high string) func(*spec) {
		return func(s *spec) {
			if s.Pair = (&v1alpha1.Pair{With: with}); low != "" {
				s.Pair.Ratio.Min = quantity(low)
			}
			if high != "" {
				s.Pair.Ratio.Max = quantity(high)
			}
		}
	}
	f(true, "a pair", pair("decode", "0.25", "4"))
	f(true, "a pair with one ratio", pair("decode", "500m", "500m"))
	f(true, "a pair with a minimum", pair("decode", "0", ""))
	f(true, "a pair with a maximum", pair("decode", "", "1k"))
	f(false, "a pair with itself", pair("checked", "1", "2"))
	f(false, "a pair with none", pair("", "1", "2"))
	f(false, "a pair without a ratio", pair("decode", "", ""))
	f(false, "a ratio that is negative", pair("decode", "-1", ""))
	f(false, "a ratio of none", pair("decode", "", "0"))
	f(false, "a ratio of too many", pair("decode", "1001", ""))
	f(false, "a ratio from more to less", pair("decode", "2", "1"))
	f(true, "onDelete", func(s *spec) { s.OnDelete = v1alpha1.OnDeleteRestore })
	f(false, "an unknown onDelete", func(s *spec) { s.OnDelete = "Orphan" })
	idle := func(after time.Duration, to int32, change ...func(*spec)) func(*spec) {
		return func(s *spec) {
			s.Idle = &v1alpha1.Idle{After: metav1.Duration{Duration: after}, To: to}
			for _, f := range change {
				f(s)
			}
		}
	}
	f(true, "idle", idle(2*time.Hour, 0))
	f(true, "idle with minReplicas", idle(720*time.Hour, 1))
	f(true, "idle without minReplicas", idle(time.Minute, 1, func(s *spec) { s.MinReplicas = nil }))
	f(false, "idle for a moment", idle(59*time.Second, 0))
	f(false, "idle for long", idle(721*time.Hour, 0))
	f(false, "idle to more than minReplicas", idle(time.Hour, 2))
	f(false, "idle to a negative number", idle(time.Hour, -1))
	schedule := func(change func(*v1alpha1.Schedule)) func(*spec) {
		x := v1alpha1.Schedule{Name: "office", Start: "08:00", End: "18:00", MinReplicas: n(2)}
		change(&x)
		return func(s *spec) { s.Schedules = []v1alpha1.Schedule{x} }
	}
	by := func(cron string, d time.Duration) func(*spec) {
		return schedule(func(x *v1alpha1.Schedule) {
			x.Start, x.End, x.Cron, x.Duration = "", "", cron, &metav1.Duration{Duration: d}
		})
	}
	f(true, "a schedule", schedule(func(*v1alpha1.Schedule) {}))
	f(true, "a schedule of days", schedule(func(x *v1alpha1.Schedule) {
		x.Days, x.TimeZone = []v1alpha1.Weekday{"Mon", "Sun"}, "America/Argentina/Buenos_Aires"
	}))
	f(true, "a lead time", schedule(func(x *v1alpha1.Schedule) { x.LeadTime = number(600) }))
	f(true, "the lead time Auto", schedule(func(x *v1alpha1.Schedule) { x.LeadTime = name("Auto") }))
	f(true, "a cron schedule", by("0 8 * * MON-FRI", time.Hour))
	f(false, "a window that is too short", by("0 8 * * *", time.Second))
	f(false, "a window that is too long", by("0 8 * * *", 169*time.Hour))
	f(false, "cron beside start", schedule(func(x *v1alpha1.Schedule) { x.Cron = "0 8 * * *" }))
	f(false, "a start without an end", schedule(func(x *v1alpha1.Schedule) { x.End = "" }))
	f(false, "an hour that does not exist", schedule(func(x *v1alpha1.Schedule) { x.End = "24:00" }))
	f(false, "a day that does not exist", schedule(func(x *v1alpha1.Schedule) { x.Days = []v1alpha1.Weekday{"Monday"} }))
	f(false, "a zone with dots", schedule(func(x *v1alpha1.Schedule) { x.TimeZone = "../UTC" }))
	f(false, "a schedule without bounds", schedule(func(x *v1alpha1.Schedule) { x.MinReplicas = nil }))
	f(false, "a schedule with min > max", schedule(func(x *v1alpha1.Schedule) { x.MaxReplicas = n(1) }))
	f(false, "a lead time that is too long", schedule(func(x *v1alpha1.Schedule) { x.LeadTime = number(86401) }))
	f(false, "an unknown lead time", schedule(func(x *v1alpha1.Schedule) { x.LeadTime = name("Soon") }))
	f(false, "two schedules of a name", func(s *spec) {
		schedule(func(*v1alpha1.Schedule) {})(s)
		s.Schedules = append(s.Schedules, s.Schedules[0])
	})
	verified := func(scheme v1alpha1.Scheme, verify *v1alpha1.TLS) func(*spec) {
		return func(s *spec) {
			preset(nil, "")(s)
			s.Signals[0].Scheme, s.Signals[0].TLS = scheme, verify
			queue := v1alpha1.Signal{Pods: &v1alpha1.PodsSignal{Metric: "queue", Scheme: scheme, TLS: verify}, Target: &v1alpha1.Target{Value: resource.MustParse("4")}}
			s.Signals = append(s.Signals, queue)
		}
	}
	f(true, "plain HTTP", verified(v1alpha1.SchemeHTTP, nil))
	f(true, "TLS without a verification", verified(v1alpha1.SchemeHTTPS, &v1alpha1.TLS{InsecureSkipVerify: true}))
	f(false, "an unknown scheme", verified("https", &v1alpha1.TLS{InsecureSkipVerify: true}))
	f(false, "HTTPS without tls", verified(v1alpha1.SchemeHTTPS, nil))
	f(false, "tls without HTTPS", verified("", &v1alpha1.TLS{InsecureSkipVerify: true}))
	f(false, "tls of nothing", verified(v1alpha1.SchemeHTTPS, &v1alpha1.TLS{}))
	f(false, "tls of a name only", verified(v1alpha1.SchemeHTTPS, &v1alpha1.TLS{ServerName: "a"}))
	f(false, "tls of both", verified(v1alpha1.SchemeHTTPS, &v1alpha1.TLS{ServerName: "a", CA: "b", InsecureSkipVerify: true}))
	for _, path := range []string{"/", "/metrics/", "/a/b.c/d-e_f~g", "/@host:80/x", "/...", "/" + strings.Repeat("a", 255)} {
		f(true, "path "+path, pods(nil, path))
		f(true, "path of a preset "+path, preset(nil, path))
	}
	for _, path := range []string{
		"@evil.example:80/x", "metrics", "//evil.example/x", "/a//b", "/metrics?format=prometheus", "/a#b", `/\evil`, "/a b", "/a\nb", "/a\x7f",
		"/..", "/../x", "/a/../b", "/a/..", "/./a", "/%2e%2e/x", "/größe", "http://evil.example/", "/" + strings.Repeat("a", 256),
	} {
		f(false, "path "+path, pods(nil, path))
		f(false, "path of a preset "+path, preset(nil, path))
	}
	for _, port := range []*intstr.IntOrString{number(1), number(65535), name("http"), name("8080-tcp"), name("a")} {
		f(true, "port "+port.String(), pods(port, ""))
		f(true, "port of a preset "+port.String(), preset(port, ""))
	}
	for _, port := range []*intstr.IntOrString{
		number(0), number(-1), number(65536), name(""), name("8000"), name("Http"), name("-a"), name("a-"), name("a--b"), name("abcdefghijklmnop"), name("@evil.example"),
	} {
		f(false, "port "+port.String(), pods(port, ""))
		f(false, "port of a preset "+port.String(), preset(port, ""))
	}
	f(true, "a small target", func(s *spec) { s.Signals[0].GPU.Metric, s.Signals[0].Target.Value = "Power", resource.MustParse("1m") })
	f(false, "target 0", target("0"))
	f(false, "target 0m", target("0m"))
	f(false, "a negative target", target("-1"))
	f(true, "actuation Advise", func(s *spec) { s.Actuation = v1alpha1.ActuationAdvise })
	f(true, "actuation HPA", func(s *spec) { s.Actuation = v1alpha1.ActuationHPA })
	f(true, "an slo", slo("vllm", 50*time.Millisecond))
	f(false, "an slo of 0", slo("vllm", 0))
	f(false, "a negative slo", slo("vllm", -time.Second))
	f(false, "an slo of tgi", slo("tgi", 50*time.Millisecond))
	f(false, "an empty slo", func(s *spec) { s.Signals[0] = v1alpha1.Signal{Preset: "vllm", SLO: &v1alpha1.SLO{}} })
	f(true, "a query", query("sum(backlog)", "0"))
	f(false, "a query of spaces", query(" \n", "0"))
	gateway := func(s v1alpha1.Signal) func(*spec) { return func(x *spec) { x.Signals[0] = s } }
	picker := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "picker"}}
	f(true, "a gateway", gateway(v1alpha1.Signal{Preset: "epp"}))
	f(true, "a gateway with everything", gateway(v1alpha1.Signal{Preset: "epp", Pool: "p", Selector: picker, Port: number(9090), Path: "/m", Activation: quantity("0")}))
	f(true, "a gateway of a model", gateway(v1alpha1.Signal{Preset: "dynamo", Model: "m", Selector: picker}))
	f(false, "a gateway with an empty selector", gateway(v1alpha1.Signal{Preset: "epp", Selector: &metav1.LabelSelector{}}))
	f(false, "a server with a selector", gateway(v1alpha1.Signal{Preset: "vllm", Selector: picker}))
	f(false, "a gateway without a model", gateway(v1alpha1.Signal{Preset: "dynamo", Selector: picker}))
	f(false, "a negative activation", query("sum(backlog)", "-1"))
	f(true, "a tolerance", down(v1alpha1.ScalingRules{Tolerance: quantity("0")}))
	f(false, "a negative tolerance", down(v1alpha1.ScalingRules{Tolerance: quantity("-100m")}))
	f(true, "a window", down(v1alpha1.ScalingRules{StabilizationWindowSeconds: n(3600)}))
	f(false, "too long a window", down(v1alpha1.ScalingRules{StabilizationWindowSeconds: n(3601)}))
	f(false, "a negative window", down(v1alpha1.ScalingRules{StabilizationWindowSeconds: n(-1)}))
	f(false, "a policy of nothing", down(v1alpha1.ScalingRules{Policies: []v1alpha1.ScalingPolicy{{Type: "Pods", PeriodSeconds: 60}}}))
	f(false, "too many policies", down(v1alpha1.ScalingRules{Policies: make([]v1alpha1.ScalingPolicy, 17)}))
	f(false, "no signal", func(s *spec) { s.Signals = nil })
	f(false, "too many signals", func(s *spec) {
		for range 16 {
			s.Signals = append(s.Signals, s.Signals[0])
		}
	})
	f(false, "no target", func(s *spec) { s.Signals[0].Target = nil })
	f(false, "maxReplicas 0", func(s *spec) { s.MaxReplicas = 0 })
	f(false, "minReplicas above maxReplicas", func(s *spec) { s.MinReplicas = n(s.MaxReplicas + 1) })
	f(false, "a negative minReplicas", func(s *spec) { s.MinReplicas = n(-1) })
	f(false, "a start-up below 0", func(s *spec) { s.Startup = &v1alpha1.Startup{ExpectedSeconds: n(-1)} })
	f(true, "a budget", func(s *spec) { s.Budget = &v1alpha1.Budget{MaxGPUs: n(1)} })
	f(false, "a budget of 0", func(s *spec) { s.Budget = &v1alpha1.Budget{MaxGPUs: n(0)} })
	f(true, "missingData 3", func(s *spec) { s.MissingData = number(3) })
	named := func(names ...string) func(*spec) {
		return func(s *spec) {
			for i, x := range names {
				if i > 0 {
					s.Signals = append(s.Signals, *s.Signals[0].DeepCopy())
				}
				s.Signals[i].Name = x
			}
		}
	}
	fallback := func(x *intstr.IntOrString) func(*spec) {
		return func(s *spec) { s.Signals[0].Fallback = x }
	}
	f(true, "named signals", named("util", "queue-2", "", ""))
	f(false, "two signals of one name", named("util", "util"))
	f(false, "a name in capitals", named("Util"))
	f(false, "a name of 64 characters", named(strings.Repeat("a", 64)))
	for _, x := range []string{"Hold", "Ignore", "Max"} {
		f(true, "fallback "+x, fallback(name(x)))
	}
	f(true, "fallback 3", fallback(number(3)))
	f(false, "fallback -1", fallback(number(-1)))
	f(false, "fallback Zero", fallback(name("Zero")))
	drain := func(seconds int32) func(*spec) {
		return func(s *spec) { s.Drain = &v1alpha1.Drain{MaxSeconds: seconds} }
	}
	f(true, "a drain", drain(300))
	f(false, "a drain without a deadline", drain(0))
	f(false, "a drain of a day", drain(86400))
	f(true, "toZeroSeconds", down(v1alpha1.ScalingRules{ToZeroSeconds: n(600)}))
	f(false, "toZeroSeconds -1", down(v1alpha1.ScalingRules{ToZeroSeconds: n(-1)}))
	f(false, "toZeroSeconds of two days", down(v1alpha1.ScalingRules{ToZeroSeconds: n(2 * 86400)}))
	f(false, "toZeroSeconds upward", func(s *spec) {
		s.Behavior = &v1alpha1.Behavior{ScaleUp: &v1alpha1.ScalingRules{ToZeroSeconds: n(600)}}
	})
	f(false, "missingData -1", func(s *spec) { s.MissingData = number(-1) })
	f(false, "missingData Zero", func(s *spec) { s.MissingData = name("Zero") })
}
