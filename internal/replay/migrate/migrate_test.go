// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/promql/adapter"
	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/scale/peers"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

func convert(t *testing.T, file string, o Options) *Result {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	docs, err := Split(file, b)
	if err != nil || len(docs) != 1 {
		t.Fatalf("%d objects, %v", len(docs), err)
	}
	r, err := Convert(docs[0], o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// signals returns the signals in short form.
func signals(r *Result) (out []string) {
	for _, s := range r.Object.Spec.Signals {
		text := ""
		switch {
		case s.GPU != nil:
			text = "gpu " + s.GPU.Metric
		case s.Pods != nil:
			text = "pods " + s.Pods.Metric
		case s.Query != nil:
			text = "query " + s.Query.PromQL
		}
		text += fmt.Sprintf(" %s %s", s.Target.Type, s.Target.Value.String())
		if s.Activation != nil {
			text += " activation " + s.Activation.String()
		}
		out = append(out, text)
	}
	return out
}

func wantSignals(t *testing.T, r *Result, want ...string) {
	t.Helper()
	if got := signals(r); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("signals\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func wantNotes(t *testing.T, r *Result, want ...string) {
	t.Helper()
	var all strings.Builder
	for _, n := range r.Notes {
		fmt.Fprintf(&all, "%v %s: %s\n", n.Lost, n.Field, n.Text)
	}
	for _, w := range want {
		if !strings.Contains(all.String(), w) {
			t.Errorf("no note %q in\n%s", w, all.String())
		}
	}
}

func TestHPA(t *testing.T) {
	r := convert(t, "testdata/hpa.yaml", Options{})
	wantSignals(t, r,
		"gpu DCGM_FI_DEV_GPU_UTIL AverageValue 60",
		"pods vllm:num_requests_waiting AverageValue 4",
		`query max(chat_gpu_avg{deployment="chat",namespace="ml"}) Value 50`,
		`query sum(queue_depth{namespace="ml",topic="chat"}) AverageValue 30`,
		`query sum(container_memory_working_set_bytes{container="server",namespace="ml",pod=~"chat-.*"}) AverageValue 8Gi`,
	)
	wantNotes(t, r, "true spec.metrics[4].resource.target", "`preset: vllm`", "false spec.behavior.scaleUp", "spec.metrics[3].external: the server of external.metrics")
	if s := r.Object.Spec; *s.MinReplicas != 1 || s.MaxReplicas != 12 || *s.Behavior.ScaleDown.StabilizationWindowSeconds != 120 {
		t.Errorf("%+v", s)
	}
	if p := r.Peer; len(p.Metrics) != 2 || p.Metrics[0].Kind != peers.PodsAverage || p.Metrics[0].Target != 60 || p.Min != 1 || p.Max != 12 ||
		p.Down.Window != 120 || p.Down.Policies[0] != (peers.RatePolicy{Percent: true, Value: 50, Period: 60}) || len(p.Up.Policies) != 2 {
		t.Errorf("%+v", p)
	}
	if n, err := r.Policy(); err != nil || len(n.Sources) != 2 {
		t.Errorf("%d signals are replayed, %v", len(n.Sources), err)
	}
	if len(r.Unsimulated) != 3 {
		t.Errorf("%v", r.Unsimulated)
	}
}

// The adapter's file says what the names of metrics mean.
func TestHPAWithAdapterRules(t *testing.T) {
	rules, err := adapter.Load([]byte(`
rules:
- seriesQuery: DCGM_FI_DEV_GPU_UTIL
  resources: {overrides: {namespace: {resource: namespace}, deployment: {resource: deployment, group: apps}}}
  name: {as: chat_gpu_avg}
  metricsQuery: avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
externalRules:
- seriesQuery: kafka_lag
  resources: {overrides: {namespace: {resource: namespace}}}
  name: {as: queue_depth}
  metricsQuery: max(<<.Series>>{<<.LabelMatchers>>})
`), adapter.Builtin{})
	if err != nil {
		t.Fatal(err)
	}
	r := convert(t, "testdata/hpa.yaml", Options{Rules: rules})
	got := signals(r)
	for i, want := range map[int]string{
		2: `gpu DCGM_FI_DEV_GPU_UTIL AverageValue 50`,
		3: `query sum(max(kafka_lag{namespace="ml",topic="chat"})) AverageValue 30`,
	} {
		if got[i] != want {
			t.Errorf("%s, want %s", got[i], want)
		}
	}
	// The mean of the GPUs is simulated, too.
	if n := len(r.Peer.Metrics); n != 3 || r.Peer.Metrics[2].Kind != peers.ObjectValue || !r.Peer.Metrics[2].Mean {
		t.Errorf("%+v", r.Peer.Metrics)
	}
}

func TestScaledObject(t *testing.T) {
	r := convert(t, "testdata/scaledobject.yaml", Options{})
	wantSignals(t, r, `query sum(vllm:num_requests_running{namespace="ml"}) + sum(vllm:num_requests_waiting{namespace="ml"}) AverageValue 8 activation 1`)
	wantNotes(t, r, "the schedule cron-1 (\"0 8 * * *\" for 10h0m0s): at least 3 replicas", "true spec.triggers[2]", "true spec.triggers[3]: the trigger kafka (topic=x)", `true spec.advanced.scalingModifiers: the formula a + b (target "5"`, "spec.cooldownPeriod: 120 s: behavior.scaleDown.toZeroSeconds",
		"spec.idleReplicaCount: 0: minReplicas becomes 0", "ignoreNullValues", "restoreToOriginalReplicaCount", "authModes=bearer, authenticationRef TriggerAuthentication prometheus")
	s := r.Object.Spec
	if c := s.Schedules; len(c) != 1 || c[0].Cron != "0 8 * * *" || c[0].Duration.Duration != 10*time.Hour || c[0].TimeZone != "UTC" || *c[0].MinReplicas != 3 {
		t.Errorf("%+v", c)
	}
	if *s.MinReplicas != 0 || *s.Behavior.ScaleDown.ToZeroSeconds != 120 || s.MaxReplicas != 12 || s.MissingData.IntVal != 4 || s.ScaleTargetRef.Kind != "Deployment" {
		t.Errorf("%+v", s)
	}
	if _, err := policy.Compile(r.Object); err != nil {
		t.Error(err)
	}
	if p := r.Peer; len(p.Metrics) != 1 || p.Metrics[0].Kind != peers.ExternalAverage || !p.Metrics[0].ZeroIfMissing || p.Metrics[0].Mean || p.Family != contender.KEDA || p.Min != 1 {
		t.Errorf("%+v", p)
	}
}

// A formula over triggers becomes one over the signals' values, if all of them are queries.
func TestScalingModifiers(t *testing.T) {
	f := func(modifiers, names, want, note string) {
		t.Helper()
		a, b, _ := strings.Cut(names, " ")
		r := parse(t, KindScaledObject, `{scaleTargetRef: {name: a}, advanced: {scalingModifiers: `+modifiers+`}, triggers: [
			{type: prometheus, name: `+a+`, metadata: {query: sum(a), threshold: "5"}}, {type: prometheus, name: `+b+`, metadata: {query: sum(b), threshold: "7"}}]}`)
		if r.Object.Spec.Formula != want {
			t.Errorf("%s: %q, want %q", modifiers, r.Object.Spec.Formula, want)
		}
		wantNotes(t, r, note)
		if p, err := r.Policy(); err != nil || p.Compiled.Policy.Formula != nil {
			t.Errorf("%s: %v, replayed with the formula: %v", modifiers, err, p.Compiled.Policy.Formula != nil)
		}
	}
	f(`{formula: a + 2 * b, target: "5"}`, "a b", "(a.value + 2 * b.value) / 5", "spec.advanced.scalingModifiers: formula: ")
	f(`{formula: "max(queueLength, gpu_use) > 3 ? queueLength : gpu_use", target: "2.5"}`, "queueLength gpu_use",
		"(max(queuelength.value, gpu_use.value) > 3 ? queuelength.value : gpu_use.value) / 2.5", "spec.advanced.scalingModifiers: formula: ")
	f(`{formula: a, target: "5"}`, "a b", "(a.value) / 5", "spec.advanced.scalingModifiers: formula: ") // b has KEDA's activation, and wakes the workload
	f(`{formula: "a + b + c", target: "5"}`, "a b", "", "undeclared reference to 'c'")
	f(`{formula: "avg([a, b])", target: "5"}`, "a b", "", "true spec.advanced.scalingModifiers")
	f(`{formula: a + b}`, "a b", "", `the target "" is not a number above 0`)
	f(`{formula: a + b, target: "5", metricType: Value}`, "a b", "", "metricType Value has no equivalent")
}

// A cron trigger with one start and one end a day is a schedule.
func TestCronTrigger(t *testing.T) {
	f := func(start, end, want string) {
		t.Helper()
		r := parse(t, KindScaledObject, `{scaleTargetRef: {name: a}, triggers: [{type: prometheus, metadata: {query: sum(a), threshold: "5"}},
			{type: cron, name: Office Hours, metadata: {timezone: Europe/Berlin, start: "`+start+`", end: "`+end+`", desiredReplicas: "3"}}]}`)
		got := ""
		for _, s := range r.Object.Spec.Schedules {
			if got != "" {
				got += "; "
			}
			got += fmt.Sprintf("%s %s %s %v %d", s.Name, s.TimeZone, s.Cron, s.Duration.Duration, *s.MinReplicas)
		}
		if got != want {
			t.Errorf("%s to %s: %q, want %q", start, end, got, want)
		}
		if _, err := policy.Compile(r.Object); err != nil {
			t.Errorf("%s to %s: %v", start, end, err)
		}
	}
	f("0 8 * * 1-5", "30 18 * * 1-5", "office-hours Europe/Berlin 0 8 * * 1-5 10h30m0s 3")
	f("0 22 * * *", "0 6 * * *", "office-hours Europe/Berlin 0 22 * * * 8h0m0s 3")
	// KEDA waits for the last start before an end.
	f("*/5 8 * * *", "0 18 * * *", "office-hours Europe/Berlin 55 8 * * * 9h5m0s 3")
	f("0 8 * * *", "0 18 * * 5", "office-hours Europe/Berlin 0 8 * * 5 10h0m0s 3")
	// Windows over several days, over midnight and over the weekend.
	f("0 8 * * 1", "0 18 * * 5", "office-hours Europe/Berlin 0 8 * * 1 106h0m0s 3")
	f("0 0 * * 6", "0 0 * * 1", "office-hours Europe/Berlin 0 0 * * 6 48h0m0s 3")
	f("0 20 * * 1-5", "0 8 * * 2-6", "office-hours Europe/Berlin 0 20 * * 1-5 12h0m0s 3")
	f("0 22 * * 1-5", "0 6 * * 1-5", "office-hours Europe/Berlin 0 22 * * 1-4 8h0m0s 3; office-hours-2 Europe/Berlin 0 22 * * 5 56h0m0s 3")
	f("0 8 * * MON,wed,5-7", "30 9 ? JAN-DEC MON,wed,5-7", "office-hours Europe/Berlin 0 8 * * 0-1,3,5-6 1h30m0s 3")
	f("0 8 * * 1-5", "0 18 * * *", "office-hours Europe/Berlin 0 8 * * 1-4 10h0m0s 3; office-hours-2 Europe/Berlin 0 8 * * 5 58h0m0s 3") // to Sunday
	f("0 8,14 * * *", "0 12,18 * * *", "office-hours Europe/Berlin 0 8 * * * 4h0m0s 3; office-hours-2 Europe/Berlin 0 14 * * * 4h0m0s 3")
	f("0 8 1 * *", "0 18 1 * *", "office-hours Europe/Berlin 0 8 1 * * 10h0m0s 3")
	f("0 22 1 * *", "0 6 1 * *", "") // of the next month
	f("0 8 * * *", "0 8 * * *", "")
	f("0 8 * * 9", "0 9 * * *", "")
	f("@daily", "0 9 * * *", "")
	f("* * * * *", "* * * * *", "")
}

// The schedules are active in the minutes in which KEDA's windows are, whatever the expressions.
func TestCronWindowsAreThoseOfKEDA(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	field := func(low, high int) string {
		a, b := low+random.IntN(high-low+1), low+random.IntN(high-low+1)
		switch random.IntN(6) {
		case 0:
			return "*"
		case 1:
			return fmt.Sprintf("%d-%d", min(a, b), max(a, b))
		case 2:
			return fmt.Sprintf("%d,%d", a, b)
		case 3:
			return fmt.Sprintf("*/%d", 1+random.IntN(high))
		}
		return fmt.Sprint(a)
	}
	translated := 0
	for range 500 {
		expr := func() string {
			return fmt.Sprintf("%d %s * * %s", random.IntN(60), field(0, 23), field(0, 6))
		}
		start, end := expr(), expr()
		windows, err := windowsOf(start, end)
		if err != nil {
			continue
		}
		translated++
		from, err1 := parseCron(start)
		to, err2 := parseCron(end)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		starts, ends := from.minutes(), to.minutes()
		next := func(set []bool) []int { // minutes until the next one, by the minute
			out, last := make([]int, minutesOfWeek), 0
			for i := 3 * minutesOfWeek; i >= 0; i-- {
				out[i%minutesOfWeek] = last - i
				if set[i%minutesOfWeek] {
					last = i
				}
			}
			return out
		}
		nextStart, nextEnd := next(starts), next(ends)
		got := make([]bool, minutesOfWeek)
		for _, w := range windows {
			c, err := parseCron(w.cron)
			if err != nil {
				t.Fatalf("%s: %v", w.cron, err)
			}
			for at, is := range c.minutes() {
				for i := 0; is && i < int(w.duration/time.Minute); i++ {
					got[(at+i)%minutesOfWeek] = true
				}
			}
		}
		for at := range got {
			if want := nextEnd[at] < nextStart[at]; got[at] != want {
				t.Fatalf("%s to %s becomes %+v: active %v at minute %d of the week, and KEDA %v", start, end, windows, got[at], at, want)
			}
		}
	}
	if translated < 200 {
		t.Errorf("%d of 500 were translated", translated)
	}
}

func parse(t *testing.T, kind, spec string) *Result {
	t.Helper()
	r, err := Convert(Document{kind, []byte("metadata: {name: a, namespace: ml}\nspec: " + spec)}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const target = `scaleTargetRef: {kind: Deployment, name: a}, maxReplicas: 5, `

func TestHPACases(t *testing.T) {
	r := parse(t, KindHPA, `{`+target+`minReplicas: 0, metrics: [{type: External, external: {metric: {name: q}, target: {value: "3"}}}]}`)
	wantSignals(t, r, `query sum(q{namespace="ml"}) Value 3 activation 0`)
	r = parse(t, KindHPA, `{`+target+`minReplicas: 0, metrics: [{type: Pods, pods: {metric: {name: q}, target: {averageValue: "3"}}}]}`)
	wantNotes(t, r, "true spec.minReplicas: 0 needs a query")
	if *r.Object.Spec.MinReplicas != 1 {
		t.Error("a policy without a query scales to zero")
	}
	r = parse(t, KindHPA, `{`+target+`targetCPUUtilizationPercentage: 80}`)
	wantNotes(t, r, "true spec.targetCPUUtilizationPercentage: 80 %", "true spec.signals: no metric has an equivalent")
	r = parse(t, KindHPA, `{`+target+`metrics: [{type: Object, object: {metric: {name: DCGM_FI_DEV_GPU_UTIL}, describedObject: {kind: Service, name: a}, target: {value: "60"}}}]}`)
	wantSignals(t, r, "gpu DCGM_FI_DEV_GPU_UTIL AverageValue 60")
	r = parse(t, KindHPA, `{`+target+`metrics: [{type: Dance}]}`)
	wantNotes(t, r, `true spec.metrics[0].type: "Dance"`)
	for _, bad := range []string{"{}", "[]", `{scaleTargetRef: {name: a}}`} {
		if _, err := Convert(Document{KindHPA, []byte("spec: " + bad)}, Options{}); err == nil {
			t.Errorf("%s was converted", bad)
		}
	}
}

func TestScaledObjectCases(t *testing.T) {
	f := func(spec string, notes ...string) *Result {
		t.Helper()
		r := parse(t, KindScaledObject, `{scaleTargetRef: {name: a}, `+spec+`}`)
		wantNotes(t, r, notes...)
		return r
	}
	const query = `triggers: [{type: prometheus, metadata: {query: up, threshold: "1"}}]`
	r := f(query)
	if s := r.Object.Spec; *s.MinReplicas != 0 || s.MaxReplicas != 100 || s.Signals[0].Activation.String() != "0" {
		t.Errorf("KEDA's defaults: %+v", s)
	}
	f(query+`, fallback: {replicas: 2, behavior: currentReplicasIfLower}`, "true spec.fallback.behavior: currentReplicasIfLower")
	if r := f(query + `, fallback: {replicas: 2, behavior: currentReplicasIfHigher}`); r.Object.Spec.MissingData.IntVal != 2 {
		t.Errorf("%v", r.Object.Spec.MissingData)
	}
	if r := f(query+`, fallback: {behavior: currentReplicas}`, "missingData: Hold"); r.Object.Spec.MissingData != nil {
		t.Errorf("%v", r.Object.Spec.MissingData)
	}
	f(query+`, idleReplicaCount: 2`, "true spec.idleReplicaCount: 2")
	f(query+`, initialCooldownPeriod: 60`, "true spec.initialCooldownPeriod: 60 s")
	f(`triggers: [{type: prometheus, metadata: {query: up, threshold: "-1"}}]`, "true spec.triggers[0].metadata", `"-1"`)
	f(`triggers: [{type: prometheus, metricType: Utilization, metadata: {query: up, threshold: "1"}}]`, "true spec.triggers[0].metricType")
	f(`triggers: [{type: prometheus, metadata: {query: up, threshold: "1", activationThreshold: x}}]`, "true spec.triggers[0].metadata.activationThreshold")
	f(`triggers: [{type: cpu, metricType: Utilization, metadata: {value: "50"}}]`, "true spec.triggers[0].target: a percentage")
	r = f(`triggers: [{type: memory, metricType: AverageValue, metadata: {value: 1Gi}}]`)
	wantSignals(t, r, `query sum(container_memory_working_set_bytes{container!="",namespace="ml",pod=~"a-.*"}) AverageValue 1Gi activation 0`)
}

// The annotations that pause a ScaledObject, or one of its directions, have equivalents. KEDA takes what is no boolean
// for true.
func TestPausedScaledObjects(t *testing.T) {
	f := func(annotation, want string) {
		t.Helper()
		r, err := Convert(Document{KindScaledObject, []byte(`{metadata: {name: a, annotations: {autoscaling.keda.sh/` + annotation + `}}, spec: {scaleTargetRef: {name: a},
			advanced: {horizontalPodAutoscalerConfig: {behavior: {scaleDown: {stabilizationWindowSeconds: 7}}}},
			triggers: [{type: prometheus, metadata: {query: up, threshold: "1"}}]}}`)}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		rules := func(x *v1alpha1.ScalingRules) string {
			if x == nil {
				return "none"
			}
			window, selected := "", ""
			if x.StabilizationWindowSeconds != nil {
				window = fmt.Sprint(*x.StabilizationWindowSeconds)
			}
			if x.SelectPolicy != nil {
				selected = *x.SelectPolicy
			}
			return window + selected
		}
		b := r.Object.Spec.Behavior
		if got := fmt.Sprint(r.Object.Spec.Actuation, " up ", rules(b.ScaleUp), " down ", rules(b.ScaleDown)); got != want {
			t.Errorf("%s: %q, want %q", annotation, got, want)
		}
	}
	f(`paused: "true"`, "Advise up none down 7")
	f(`paused: "yes"`, "Advise up none down 7")
	f(`paused: "0"`, " up none down 7")
	f(`paused-replicas: "3"`, "Advise up none down 7")
	f(`paused-scale-in: "true"`, " up none down 7Disabled")
	f(`paused-scale-out: "true"`, " up Disabled down 7")
	f(`paused-scale-in: "false"`, " up none down 7")
}

func TestSourceOfQuery(t *testing.T) {
	f := func(promql, want string) {
		t.Helper()
		s, unit, mean, err := sourceOfQuery(promql)
		got := "?"
		if err == nil {
			got = fmt.Sprintf("kind %d field %d terms %d unit %g mean %v", s.Kind, s.Field, len(s.Terms), unit, mean)
		}
		if got != want {
			t.Errorf("%s: %s (%v), want %s", promql, got, err, want)
		}
	}
	f("sum(vllm:num_requests_running)", "kind 1 field 0 terms 1 unit 1 mean false")
	f("(sum(avg_over_time(a[1m])) + sum by (x) (b)) or vector(0)", "kind 1 field 0 terms 2 unit 1 mean false")
	f("avg(DCGM_FI_DEV_GPU_UTIL_RATIO)", "kind 0 field 203 terms 0 unit 100 mean true")
	f("max(a)", "?")
	f("avg(a + b)", "?")
	f("avg(a) + avg(b)", "?")
	f("histogram_quantile(0.9, rate(a[1m]))", "?")
	f("1", "?")
	f("sum(", "?")
}

func TestAdapterReport(t *testing.T) {
	report, err := Adapter([]byte(`
rules:
- {seriesQuery: DCGM_FI_DEV_GPU_UTIL, resources: &pods {overrides: {pod: {resource: pod}, namespace: {resource: namespace}}}, metricsQuery: "avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)"}
- {seriesQuery: DCGM_FI_DEV_FB_USED, resources: *pods, name: {as: memory}, metricsQuery: "max(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)"}
- {seriesQuery: "vllm:num_requests_waiting", resources: *pods, metricsQuery: "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)"}
- {seriesQuery: cuda_test_gpu_avg, resources: {overrides: {deployment: {resource: deployment, group: apps}}}, metricsQuery: "<<.Series>>{<<.LabelMatchers>>}"}
- {seriesQuery: queue, resources: *pods, metricsQuery: "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)"}
- {seriesQuery: requests_total, resources: *pods, metricsQuery: "sum(rate(<<.Series>>{<<.LabelMatchers>>}[1m])) by (<<.GroupBy>>)"}
- {seriesQuery: '{pod!=""}', resources: *pods, metricsQuery: "<<.Series>>{<<.LabelMatchers>>}"}
- {seriesQuery: up, metricsQuery: up}
- {seriesQuery: up}
externalRules:
- {seriesQuery: queue, resources: *pods, metricsQuery: "sum(<<.Series>>{<<.LabelMatchers>>})"}
resourceRules: {}
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []Becomes{BuiltIn, BuiltIn, Signal, RecordingRule, Signal, Served, Served, Impossible, Impossible, Served, Impossible}
	for i, w := range want {
		if r := report.Rules[i]; r.Becomes != w || r.Why == "" || r.Do == "" {
			t.Errorf("%s becomes %s (%s), want %s", r.Rule, r.Becomes, r.Why, w)
		}
	}
	var text bytes.Buffer
	if err := report.Print(&text); err != nil {
		t.Error(err)
	}
	for _, want := range []string{
		"rules[1]  memory: built-in metric", "from memory to DCGM_FI_DEV_FB_USED", "The rule's max over the GPUs", "preset: vllm", "rules[8].metricsQuery: Required value",
		"metrics-server", "11 rules: built-in metric 2, GPUAutoscaler signal 2, recording rule 1, served as is 3, not possible 3",
	} {
		if !strings.Contains(strings.Join(strings.Fields(text.String()), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
}

// The printed YAML is valid with its comments.
func TestYAML(t *testing.T) {
	for _, file := range []string{"testdata/hpa.yaml", "testdata/scaledobject.yaml"} {
		r := convert(t, file, Options{})
		text, err := r.YAML()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := policy.Parse("x", []byte(text)); err != nil {
			t.Errorf("%v\n%s", err, text)
		}
	}
}

// FuzzConvert checks that any object is refused with a reason, or becomes one that the API server and the controller accept.
func FuzzConvert(f *testing.F) {
	for _, file := range []string{"testdata/hpa.yaml", "testdata/scaledobject.yaml"} {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	server := newAPIServer(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<13 {
			return
		}
		docs, err := Split("x", b)
		if err != nil {
			return
		}
		for _, d := range docs {
			r, err := Convert(d, Options{})
			if err == nil {
				err = r.Err()
			}
			if err == nil {
				server.checkAccepted(t, r)
			} else if strings.HasSuffix(err.Error(), ":\n  ") {
				t.Errorf("refused without a reason: %v", err)
			}
		}
	})
}
