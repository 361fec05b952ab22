// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
)

func autoscaler(t testing.TB, spec string) *v1alpha1.GPUAutoscaler {
	t.Helper()
	var a v1alpha1.GPUAutoscaler
	if err := yaml.UnmarshalStrict([]byte(spec), &a.Spec); err != nil {
		t.Fatal(err)
	}
	return &a
}

const minimal = `
scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}
maxReplicas: 8
signals:
- gpu: {metric: Utilization}
  target: {value: "60"}
`

func TestDefaults(t *testing.T) {
	c, err := Compile(autoscaler(t, minimal))
	if err != nil {
		t.Fatal(err)
	}
	p := c.Policy
	if p.Min != 1 || p.Max != 8 || p.Down.Window != scale.Auto || p.Up.Window != 0 || p.Up.Tolerance != scale.AutoTolerance || p.Missing != scale.MissingHold {
		t.Errorf("defaults: %+v", p)
	}
	s := p.Signals[0]
	if s.Type != scale.AverageValue || s.Target != 60 || s.Ceiling != 100 || s.Unit != "%" || c.Sources[0].Field != gpu.GPUUtil {
		t.Errorf("signal: %+v from %+v", s, c.Sources[0])
	}
	if c.Actuation != v1alpha1.ActuationScale {
		t.Errorf("actuation: %s", c.Actuation)
	}
}

func TestTargetIsInTheNamesUnit(t *testing.T) {
	c, err := Compile(autoscaler(t, strings.NewReplacer("Utilization", "DCGM_FI_DEV_GPU_UTIL_RATIO", `"60"`, `"0.6"`).Replace(minimal)))
	if err != nil || c.Policy.Signals[0].Target != 60 {
		t.Errorf("0.6 as a ratio became %v (%v), want 60 %%", c.Policy.Signals, err)
	}
}

func TestBehavior(t *testing.T) {
	c, err := Compile(autoscaler(t, minimal+`
missingData: 3
budget: {maxGPUs: 4}
startup: {expectedSeconds: 120}
behavior:
  scaleUp: {tolerance: 50m, policies: [{type: Pods, value: 4, periodSeconds: 15}, {type: Percent, value: 100, periodSeconds: 15}]}
  scaleDown: {stabilizationWindowSeconds: 0, selectPolicy: Disabled}
`))
	if err != nil {
		t.Fatal(err)
	}
	p := c.Policy
	if p.Up.Tolerance != 0.05 || len(p.Up.Policies) != 2 || !p.Up.Policies[1].Percent || p.Up.Policies[0].Period != 15*time.Second {
		t.Errorf("scaleUp: %+v", p.Up)
	}
	if p.Down.Window != 0 || p.Down.Select != scale.SelectDisabled || p.Missing != scale.MissingFloor || p.MissingFloor != 3 ||
		p.MaxGPUs != 4 || p.Startup != 2*time.Minute {
		t.Errorf("policy: %+v", p)
	}
}

func TestPodsSignal(t *testing.T) {
	c, err := Compile(autoscaler(t, strings.Replace(minimal, "gpu: {metric: Utilization}", "pods: {metric: queue, port: 8000}", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if s := c.Sources[0]; s.Kind != Pods || s.Terms[0][0].Key() != "queue" || s.Path != "/metrics" || s.Port.Given.IntVal != 8000 {
		t.Errorf("source: %+v", s)
	}
}

func TestQuerySignal(t *testing.T) {
	c, err := Compile(autoscaler(t, `
scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}
minReplicas: 0
maxReplicas: 8
signals:
- query: {promql: "sum(rate(http_requests_total{service=\"chat\"}[1m]))"}
  target: {value: "10"}
  activation: 500m
- query: {promql: "`+strings.Repeat("x + ", 100)+`y"}
  target: {type: Value, value: "1"}
`))
	if err != nil {
		t.Fatal(err)
	}
	if s := c.Policy.Signals[0]; c.Policy.Min != 0 || s.Target != 10 || *s.Activation != 0.5 || s.Name != `sum(rate(http_requests_total{service="chat"}[1m]))` {
		t.Errorf("signal: %+v", s)
	}
	if s := c.Sources[0]; s.Kind != Query || s.PromQL != c.Policy.Signals[0].Name {
		t.Errorf("source: %+v", s)
	}
	if s := c.Policy.Signals[1]; len([]rune(s.Name)) != maxNameLength+1 || s.Type != scale.Value || len(c.Sources[1].PromQL) != 401 {
		t.Errorf("a long query: %+v from %+v", s, c.Sources[1])
	}
}

func TestBadInputNamesTheField(t *testing.T) {
	f := func(mutate func(*v1alpha1.GPUAutoscaler), want ...string) {
		t.Helper()
		a := autoscaler(t, minimal)
		mutate(a)
		_, err := Compile(a)
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("error %v, want it to say %q", err, w)
			}
		}
	}
	nine, zero := int32(9), int32(0)
	f(func(a *v1alpha1.GPUAutoscaler) { a.Spec.MinReplicas = &zero }, "spec.minReplicas", "a query with an activation")
	f(func(a *v1alpha1.GPUAutoscaler) {
		a.Spec.MinReplicas = &zero
		a.Spec.Signals[0] = v1alpha1.Signal{Query: &v1alpha1.QuerySignal{PromQL: "x"}, Target: a.Spec.Signals[0].Target}
	}, "spec.minReplicas", "a query with an activation")
	f(func(a *v1alpha1.GPUAutoscaler) {
		a.Spec.Signals[0] = v1alpha1.Signal{Query: &v1alpha1.QuerySignal{PromQL: " "}, Target: a.Spec.Signals[0].Target}
	}, "signals[0].query.promql")
	f(func(a *v1alpha1.GPUAutoscaler) { a.Spec.MinReplicas = &nine }, "spec.minReplicas", "9", "maxReplicas (8)")
	f(func(a *v1alpha1.GPUAutoscaler) { a.Spec.MaxReplicas = 0 }, "spec.maxReplicas")
	f(func(a *v1alpha1.GPUAutoscaler) { a.Spec.Signals = nil }, "spec.signals")
	f(func(a *v1alpha1.GPUAutoscaler) { a.Spec.Signals[0].GPU.Metric = "Nope" }, "spec.signals[0].gpu.metric", "Nope")
	f(func(a *v1alpha1.GPUAutoscaler) { a.Spec.Signals[0].GPU.Metric = "DCGM_FI_DEV_XID_ERRORS" }, "cannot be scaled on")
	f(func(a *v1alpha1.GPUAutoscaler) { a.Spec.Signals[0].Target.Value = resource.MustParse("0") }, "target.value", "greater than 0")
	f(func(a *v1alpha1.GPUAutoscaler) { a.Spec.Signals[0].Target.Value = resource.MustParse("160") },
		`spec.signals[0].target.value: Invalid value: "160": can never be exceeded: the highest value of Utilization is 100`)
	for _, ratio := range []string{"SMActive", "DCGM_FI_DEV_GPU_UTIL_RATIO"} {
		f(func(a *v1alpha1.GPUAutoscaler) { a.Spec.Signals[0].GPU.Metric = ratio }, `spec.signals[0].target.value: Invalid value: "60"`,
			"the highest value of "+ratio+` is 1; it is a ratio, write "0.6" for 60 %`)
	}
	for _, percent := range []string{"Utilization", "MemoryUtilization", "DCGM_FI_DEV_GPU_UTIL", "dcgm_gpu_utilization"} {
		f(func(a *v1alpha1.GPUAutoscaler) {
			a.Spec.Signals[0].GPU.Metric, a.Spec.Signals[0].Target.Value = percent, resource.MustParse("0.6")
		}, `spec.signals[0].target.value: Invalid value: "600m": is less than 1 %: `+percent+` is in percent, write "60" for 60 %`)
	}
	f(func(a *v1alpha1.GPUAutoscaler) { a.Spec.Signals[0].Target.Type = "Utilization" }, "spec.signals[0].target.type", "of the HorizontalPodAutoscaler", "as value")
	f(func(a *v1alpha1.GPUAutoscaler) { a.Spec.Signals[0].Target.Type = "Average" }, "target.type", "AverageValue")
	f(func(a *v1alpha1.GPUAutoscaler) { a.Spec.Signals[0].GPU = nil }, "exactly one of")
	f(func(a *v1alpha1.GPUAutoscaler) { a.Spec.Signals[0].Preset = "vllm" }, "exactly one of")
	f(func(a *v1alpha1.GPUAutoscaler) { a.Spec.Signals[0] = v1alpha1.Signal{Preset: "nim"} }, "signals[0].preset", "nim", "sglang", "vllm")
	f(func(a *v1alpha1.GPUAutoscaler) { a.Spec.Signals[0].Path = "/m" }, "signals[0].port", "for presets")
	f(func(a *v1alpha1.GPUAutoscaler) {
		x := resource.MustParse("1")
		a.Spec.Signals[0].Activation = &x
	}, "signals[0].activation", "zero replicas")
	f(func(a *v1alpha1.GPUAutoscaler) {
		a.Spec.Signals[0].GPU, a.Spec.Signals[0].Preset = nil, "tgi"
		a.Spec.Signals[0].Target.Type = v1alpha1.Value
	}, "signals[0].target.type", "AverageValue")
	f(func(a *v1alpha1.GPUAutoscaler) { a.Spec.Actuation = "Guess" }, "spec.actuation", "Guess", "Advise")
	bad := intstr.FromString("Zero")
	f(func(a *v1alpha1.GPUAutoscaler) { a.Spec.MissingData = &bad }, "spec.missingData", "Zero")
}

// One mistake is one error.
func TestNoMaximumIsOneError(t *testing.T) {
	_, err := Compile(autoscaler(t, strings.Replace(minimal, "maxReplicas: 8", "", 1)))
	if want := "spec.maxReplicas: Invalid value: 0: is required, and must be at least 1"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

const file = `kind: GPUAutoscaler
spec:
  maxReplicas: 8
  signals:
  - {gpu: {metric: Utilization}, target: {value: "60"}}
  - {preset: vllm, slo: {interTokenLatency: 50ms}}
`

// What cannot be decoded is named as what is not allowed is.
func TestParseNamesTheField(t *testing.T) {
	if _, err := Parse("a.yaml", []byte(file)); err != nil {
		t.Fatal(err)
	}
	f := func(old, with, want string) {
		t.Helper()
		_, err := Parse("a.yaml", []byte(strings.Replace(file, old, with, 1)))
		if err == nil || err.Error() != "a.yaml: "+want {
			t.Errorf("%s: %v, want %s", with, err, want)
		}
	}
	const quantity, duration = `want a number, such as "60" or "0.6"`, `want a duration with its unit, such as "50ms"`
	f("50ms", "50 ms", `spec.signals[1].slo.interTokenLatency: Invalid value: "50 ms": `+duration)
	f("50ms", "50", `spec.signals[1].slo.interTokenLatency: Invalid value: 50: `+duration)
	f(`"60"`, "eight", `spec.signals[0].target.value: Invalid value: "eight": `+quantity)
	f(`"60"`, "[60]", `spec.signals[0].target.value: Invalid value: [60]: `+quantity)
	f("maxReplicas: 8", `maxReplicas: "8"`, `spec.maxReplicas: Invalid value: "8": want a whole number, without quotes`)
	f(`value: "60"`, "averageUtilization: 60", "spec.signals[0].target.averageUtilization: Invalid value: 60: "+
		`is a field of the HorizontalPodAutoscaler: write it as value, in the metric's unit, such as target: {value: "60"}`)
	f("kind: GPUAutoscaler", "kind: HorizontalPodAutoscaler", `kind "HorizontalPodAutoscaler" is not GPUAutoscaler`)
	f("kind: GPUAutoscaler", "x: y", `kind "" is not GPUAutoscaler`)
	f("maxReplicas: 8", "metrics: []", `unknown field "spec.metrics"`)
	f("interTokenLatency", "interTokenLatancy", `unknown field "spec.signals[1].slo.interTokenLatancy"`)
	f("maxReplicas: 8", "maxreplicas: 8", `unknown field "spec.maxreplicas"`)
	f("maxReplicas: 8", "maxReplicas: 1000000\n  x: 1", `unknown field "spec.x"`)
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(file))
	f.Add([]byte(minimal))
	f.Add([]byte("kind: GPUAutoscaler\nspec: {maxReplicas: [1], signals: [{target: {averageValue: {}}}, 7]}"))
	f.Add([]byte("kind: GPUAutoscaler\nspec: [[{value: null}]]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := Parse("fuzz", b)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "fuzz: ") {
				t.Errorf("the error %q does not say which file", err)
			}
			return
		}
		for _, p := range all {
			if p.Policy.Max < 1 || p.Policy.Min > p.Policy.Max || len(p.Policy.Signals) == 0 || len(p.Sources) != len(p.Policy.Signals) {
				t.Errorf("accepted: %+v", p)
			}
		}
	})
}

// The engine remembers by name: what was learned of one signal must not be taken
// for another's.
func TestNamesAreDistinct(t *testing.T) {
	long := strings.Repeat("x", maxNameLength)
	c, err := Compile(autoscaler(t, `
scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}
maxReplicas: 8
signals:
- {query: {promql: "`+long+`1"}, target: {value: "1"}}
- {query: {promql: "`+long+`2"}, target: {value: "1"}}
- {gpu: {metric: Utilization}, target: {value: "60"}}`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range c.Policy.Signals {
		got = append(got, s.Name)
	}
	if want := []string{long + "…", long + "… (2)", "Utilization"}; !slices.Equal(got, want) {
		t.Errorf("names %q, want %q", got, want)
	}
	taken := []scale.Signal{{Name: "a"}, {Name: "a (2)"}, {Name: "a"}, {Name: "a (2)"}}
	numberDuplicateNames(taken)
	if taken[2].Name != "a (3)" || taken[3].Name != "a (2) (2)" {
		t.Errorf("names %+v", taken)
	}
}

// The name replaces that of the metric or the preset, and the fallback is each part's.
func TestNamedSignals(t *testing.T) {
	c, err := Compile(autoscaler(t, `
scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}
maxReplicas: 8
behavior: {scaleDown: {toZeroSeconds: 600}}
signals:
- {name: chat, preset: vllm, fallback: Ignore}
- {name: busy, gpu: {metric: SMActive}, target: {value: "0.6"}, fallback: 3}
- {preset: epp, fallback: Max}
`))
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, s := range c.Policy.Signals {
		got = append(got, fmt.Sprint(s.Name, s.Fallback))
	}
	want := []string{
		fmt.Sprint("chat requests", scale.Fallback{Mode: scale.FallbackIgnore}), fmt.Sprint("chat KV cache", scale.Fallback{Mode: scale.FallbackIgnore}),
		fmt.Sprint("busy", scale.Fallback{Mode: scale.FallbackReplicas, Replicas: 3}), fmt.Sprint("epp requests", scale.Fallback{Mode: scale.FallbackMax}),
	}
	if !slices.Equal(got, want) {
		t.Errorf("signals %q, want %q", got, want)
	}
	if c.Policy.Down.ToZero != 10*time.Minute {
		t.Errorf("toZeroSeconds: %v", c.Policy.Down.ToZero)
	}
}
