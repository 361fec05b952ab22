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
	f(`{formula: "count([a, b], {# > 1}) > 1 ? 5 : mean([a, b])", target: "5"}`, "a b", "(((((a.value) > 1) ? 1.0 : 0.0) + (((b.value) > 1) ? 1.0 : 0.0)) > 1 ? 5 : ((a.value + b.value) / 2.0)) / 5", "")
	f(`{formula: namespace + b, target: "5"}`, "namespace b", "(trigger_namespace.value + b.value) / 5", "false spec.triggers[0].name: namespace: the name of the signal")
	f(`{formula: "avg([a, b])", target: "5"}`, "a b", "", "true spec.advanced.scalingModifiers")
	f(`{formula: a + b}`, "a b", "", `the target "" is not a number above 0`)
	f(`{formula: a + b, target: "5", metricType: Value}`, "a b", "", "metricType Value has no equivalent")
}

// What KEDA's formulas have and CEL lacks is written out; the rest is lost with its reason.
func TestFormulasAreWrittenOut(t *testing.T) {
	names := map[string]string{"a": "a.value", "b": "b.value", "c": "c.value", "d": "d.value"}
	f := func(formula, want string) {
		t.Helper()
		got, err := toCEL(formula, names)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", formula, got, want)
		}
	}
	f("a + 2 * b", "a.value + 2 * b.value")
	f("max(a, b)", "max(a.value, b.value)")
	f("max(a)", "(a.value)")
	f("max(a, b, c, d)", "max(max(a.value, b.value, c.value), d.value)")
	f("min([a, b])", "min(a.value, b.value)")
	f("sum([a, b + 1])", "(a.value + (b.value + 1))")
	f("mean([a, b])", "((a.value + b.value) / 2.0)")
	f("count([a, b], {# > 1}) > 1 ? 5 : 0", "((((a.value) > 1) ? 1.0 : 0.0) + (((b.value) > 1) ? 1.0 : 0.0)) > 1 ? 5 : 0")
	f("all([a], # > 1) and not (b > 1) ? 1 : 0", "(((a.value) > 1)) && !((b.value > 1)) ? 1 : 0")
	f("a ** 2 - 1_000", "(a.value * a.value) - 1000")
	f("abs(a - b)", "max((a.value - b.value), -((a.value - b.value)))")
	f("float(a)", "(a.value)")
	f("ceil(a)", "the function ceil has no equivalent")
	f("a ?? 1", `"??" is not translated`)
	f("a % 2", `"%" is not translated`)
	f("e", "undeclared reference to 'e': the triggers with an equivalent and a name are a, b, c, d")
	f("max()", "max without values")
	f("a +", "it ends too early")
	f("a ** b", `the power "b": only whole ones from 1 to 8 have an equivalent`)
	f(strings.Repeat("(", 100)+"a"+strings.Repeat(")", 100), "it is nested more than 32 deep")
	f("a ^ 'x'", `"'x'" is not translated`)
}

// A formula is translated to one that compiles, or refused, in bounded space.
func FuzzFormula(f *testing.F) {
	for _, seed := range []string{"a + 2 * b", "count([a,b],{#>1})", "max(a, [b])", "sum([a],{# ** 2})", "any([a,b],any([a],#>1))", "-a ?: b", "a ? b : a ? b : a", "((a", "max(max(a))"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, formula string) {
		text, err := toCEL(formula, map[string]string{"a": "a.value", "b": "b.value"})
		if err == nil && (text == "" || len(text) > 64*maxFormulaText) {
			t.Errorf("%q becomes %d bytes: %.100q", formula, len(text), text)
		}
	})
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

// wantRefused converts an object that has no equivalent.
func wantRefused(t *testing.T, kind, object string, o Options, says ...string) {
	t.Helper()
	r, err := Convert(Document{kind, []byte(object)}, o)
	if err == nil {
		err = r.Err()
	}
	for _, want := range says {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q of\n%s", err, want, object)
		}
	}
}

// A query that the controller refuses in the object's namespace is a note with the reason and the query; if no signal is
// left, nothing is printed.
func TestQueriesThatAreRefused(t *testing.T) {
	f := func(query string, says ...string) {
		t.Helper()
		for _, trigger := range []string{"{type: prometheus, metadata: {threshold: '7', query: '" + query + "'}}"} {
			wantRefused(t, KindScaledObject, "{metadata: {name: a, namespace: ml}, spec: {scaleTargetRef: {name: a}, triggers: ["+trigger+"]}}", Options{},
				append(says, "spec.triggers[0]: the controller refuses the query", "target AverageValue 7", "no metric has an equivalent")...)
			r := parse(t, KindScaledObject, "{scaleTargetRef: {name: a}, triggers: ["+trigger+", {type: prometheus, metadata: {threshold: '5', query: sum(b)}}]}")
			wantSignals(t, r, "query sum(b) AverageValue 5 activation 0")
			if r.Err() != nil {
				t.Error(r.Err())
			}
		}
	}
	f("sum(x) default 0", "parse error", "MetricsQL, run only in namespaces of --query-namespaces")
	f("sum(rate(x[1m])", "parse error")
	f(`sum(x{namespace="gateway-system"})`, `the matcher namespace="gateway-system" is not allowed`, "namespace=\"ml\"")
	f(`sum(x{namespace="{{ .Release.Namespace }}"})`, "helm template")
	f(`sum(x{model="{{ .Values.model }}"})`, "helm template renders it")
	f("x[5m]", "returns a range vector")
	f(`"x"`, "returns a string")
	f(`info(x)`, "info joins series")
}

// An object's texts are no control of the terminal, and no line of the YAML. Without a namespace, a query is checked for
// that of -n.
func TestTextsOfObjects(t *testing.T) {
	const object = `{"metadata": {"name": "a", "labels": {"x": "\u001b[2J\u2028kind: Secret\u202e"}}, "spec": {"scaleTargetRef": {"name": "a"}, "triggers": [
		{"type": "prometheus", "metadata": {"query": "sum(x{namespace=\"ml\"})", "threshold": "5"}}]}}`
	r, err := Convert(Document{KindScaledObject, []byte(object)}, Options{Namespace: "ml"})
	if err != nil || r.Err() != nil || r.Object.Namespace != "ml" {
		t.Fatal(err, r.Err())
	}
	text, err := r.YAML()
	if err != nil || strings.ContainsAny(text, "\x1b\u2028\u202e") {
		t.Errorf("%q, %v", text, err)
	}
	wantRefused(t, KindScaledObject, object, Options{}, `queries read only series with namespace="default"`, "with -n for another one")
}

// What is no query of the source is not made one, and each reason says what to do.
func TestWhatIsNotGuessed(t *testing.T) {
	hpa := func(metrics string) string {
		return `{metadata: {name: a, namespace: ml}, spec: {` + target + `metrics: [` + metrics + `]}}`
	}
	external := func(name string) string {
		return hpa(`{type: External, external: {metric: {name: ` + name + `, selector: {matchLabels: {topic: x}}}, target: {averageValue: "3"}}}`)
	}
	wantRefused(t, KindHPA, external("s0-prometheus"), Options{}, "s0-prometheus of external.metrics.k8s.io (target AverageValue 3)", "topic=x", "gpupilot migrate scaledobject")
	wantRefused(t, KindHPA, external("sqs-queue-length"), Options{}, "this is not the name of a series in PromQL")
	wantRefused(t, KindHPA, external("inference-queue.depth"), Options{}, "this is not the name of a series in PromQL")
	wantRefused(t, KindHPA, hpa(`{type: Object, object: {metric: {name: q, selector: {matchLabels: {app.kubernetes.io/name: x}}}, describedObject: {kind: Service, name: a}, target: {value: "3"}}}`), Options{},
		"the selector has no equivalent in PromQL", "app.kubernetes.io/name=x")
	wantRefused(t, KindHPA, `{metadata: {name: keda-hpa-a, namespace: ml, ownerReferences: [{kind: ScaledObject, name: a}]}, spec: {`+target+`metrics: []}}`, Options{}, "the ScaledObject a: translate that, with gpupilot migrate scaledobject a")
	wantRefused(t, KindHPA, `{metadata: {name: keda-hpa-a, namespace: ml, labels: {scaledobject.keda.sh/name: a}}, spec: {`+target+`metrics: [{type: Pods, pods: {metric: {name: q}, target: {averageValue: 3}}}]}}`, Options{}, "the ScaledObject a")
	wantRefused(t, KindHPA, `{metadata: {name: "{{ .Release.Name }}", namespace: ml}, spec: {`+target+`metrics: [{type: Pods, pods: {metric: {name: q}, target: {averageValue: 3}}}]}}`, Options{}, "metadata.name", "helm template")
	rules, err := ReadOptions("rules.yaml", []byte(someRules))
	if err != nil {
		t.Fatal(err)
	}
	wantRefused(t, KindHPA, external("queue_depth"), rules, "no rule of --adapter-config makes it")
	r := parse(t, KindHPA, `{`+target+`metrics: [{type: External, external: {metric: {name: q}, target: {value: "3"}}}]}`)
	if fmt.Sprint(r.Guessed) != "[q of external.metrics.k8s.io]" {
		t.Errorf("guessed %q", r.Guessed)
	}
}

// An anchored expression names the series of a rule, and a recording rule says whose series it is.
func TestRulesOfOtherForms(t *testing.T) {
	rules, err := ReadOptions("rules.yaml", []byte(someRules))
	if err != nil || len(rules.Recorded) != 1 {
		t.Fatal(rules.Recorded, err)
	}
	object := func(metric string) *Result {
		r, err := Convert(Document{KindHPA, []byte(`{metadata: {name: a, namespace: ml}, spec: {` + target + `metrics: [` + metric + `]}}`)}, rules)
		if err != nil || r.Err() != nil {
			t.Fatal(err, r.Err())
		}
		return r
	}
	r := object(`{type: Object, object: {metric: {name: vllm_num_requests_waiting}, describedObject: {kind: Namespace, name: ml}, target: {value: "1"}}}`)
	wantSignals(t, r, "query max(sum by (namespace) (vllm:num_requests_waiting)) Value 1")
	wantNotes(t, r, "the query is that of the adapter's rules[0]")
	r = object(`{type: Pods, pods: {metric: {name: gpu_util_by_pod}, target: {averageValue: "60"}}}`)
	wantSignals(t, r, `query sum(gpu_util_by_pod{namespace="ml",pod=~"a-.*"}) AverageValue 60`)
	r, err = Convert(Document{KindHPA, []byte(`{metadata: {name: a, namespace: ml}, spec: {` + target + `metrics: [{type: Pods, pods: {metric: {name: gpu_util_by_pod}, target: {averageValue: "60"}}}]}}`)}, Options{Recorded: rules.Recorded})
	if err != nil {
		t.Fatal(err)
	}
	wantSignals(t, r, `query sum(gpu_util_by_pod{namespace="ml",pod=~"a-.*"}) AverageValue 60`)
	wantNotes(t, r, "a recording rule makes gpu_util_by_pod (avg by (namespace, pod) (DCGM_FI_DEV_GPU_UTIL))")
	r, err = Convert(Document{KindHPA, []byte(`{metadata: {name: a, namespace: ml}, spec: {` + target + `metrics: [{type: Object, object: {metric: {name: x}, describedObject: {kind: Namespace, name: ml}, target: {value: "1"}}}]}}`)}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	wantSignals(t, r, `query max(x{namespace="ml"}) Value 1`)
	report, err := Adapter([]byte(someRules), Options{})
	if err != nil || report.Rules[1].Becomes != RecordingRule || !strings.Contains(report.Rules[1].Why, "of a recording rule") {
		t.Errorf("%+v, %v", report, err)
	}
	docs, err := Split("x", []byte("groups: [{rules: [{record: b, expr: 1}, {alert: c, expr: 2}]}]"))
	if err != nil {
		t.Fatal(err)
	}
	if found, _, err := Recorded(docs); err != nil || fmt.Sprint(found) != "map[b:1]" {
		t.Errorf("%v, %v", found, err)
	}
}

// A query that is NaN without requests says so, and does not advise what does not help.
func TestNoRequests(t *testing.T) {
	f := func(query, note string) {
		t.Helper()
		r := parse(t, KindScaledObject, `{scaleTargetRef: {name: a}, triggers: [{type: prometheus, metadata: {query: '`+query+`', threshold: "5"}}]}`)
		wantNotes(t, r, note)
		for _, n := range r.Notes {
			if note == "" && strings.Contains(n.Text, "0/0") {
				t.Errorf("%s: %s", query, n.Text)
			}
		}
	}
	f(`sum(rate(queue_seconds_sum[1m])) / sum(rate(queue_seconds_count[1m]))`, "spec.triggers[0]: without requests the query is 0/0, which counts as 0")
	f(`histogram_quantile(0.95, sum by (le) (rate(a_bucket[1m])))`, "without requests the query is 0/0, which counts as 0")
	f(`avg_over_time((sum(a) / sum(b))[5m:1m])`, "without requests the query is 0/0, NaN, and the signal holds")
	f(`sum(a) / 2`, "")
	f(`sum(a{exported_namespace="ml"})`, `exported_namespace="ml": the controller adds namespace="ml" to each selector`)
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
`), Options{})
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
