// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// recordedPolicies are those of the generated incidents.
var recordedPolicies = []string{
	`{gpu: {metric: Utilization}, target: {value: "60"}}`,
	`{pods: {metric: "vllm:num_requests_running"}, target: {value: "8"}}`,
	`{query: {promql: "sum(queue)"}, target: {value: "5"}}`,
	`{gpu: {metric: Utilization}, target: {value: "70"}}, {pods: {metric: waiting}, target: {value: "2"}}`,
	`{query: {promql: "sum(queue)"}, target: {value: "5"}}, {gpu: {metric: Utilization}, target: {value: "70"}}`,
	`{gpu: {metric: Utilization}, target: {type: Value, value: "60"}}, {pods: {metric: waiting}, target: {type: Value, value: "9"}}`,
	`{query: {promql: "sum(queue)"}, target: {type: Value, value: "5"}}`,
}

// incident plays a generated load in a closed loop: replicas serve so long after they were asked for. Loads change
// each step. It returns what a controller would have recorded each second.
func incident(t *testing.T, r *rand.Rand, signals string, step, length time.Duration, start time.Time) (*Record, []view.Point) {
	t.Helper()
	object := fmt.Sprintf("apiVersion: gpupilot.dev/v1alpha1\nkind: GPUAutoscaler\nmetadata: {name: chat, namespace: llm}\nspec:\n  scaleTargetRef: {kind: Deployment, name: chat}\n  minReplicas: 2\n  maxReplicas: %d\n  signals: [%s]\n", 4+r.IntN(20), signals)
	all, err := policy.Parse("x", []byte(object))
	if err != nil {
		t.Fatal(err)
	}
	record := &Record{Namespace: "llm", Name: "chat", Object: []byte(object), Policy: all[0].Compiled, From: start, To: start.Add(length), Startup: time.Duration(1+r.IntN(3)) * time.Minute}
	w := newWorld(all[0].Policy)
	w.compiled, w.policy.Startup = all[0].Compiled, record.Startup
	replicas := int32(2 + r.IntN(3))
	w.replicas = replicas
	serving, began := int(replicas), []time.Duration(nil)
	load := make([]float64, len(w.policy.Signals))
	var out []view.Point
	for at := time.Duration(0); at < length; at += tick {
		if at%step == 0 {
			for i := range load {
				load[i] = w.policy.Signals[i].Target * math.Exp(3*r.Float64()-0.5)
				if r.IntN(12) == 0 {
					load[i] = math.NaN()
				}
			}
		}
		for len(began) > 0 && at-began[0] >= record.Startup {
			began, serving = began[1:], serving+1
		}
		for n := int(replicas) - serving - len(began); n > 0; n-- {
			began = append(began, at)
		}
		for n := serving + len(began) - int(replicas); n > 0; n-- {
			if len(began) > 0 {
				began = began[:len(began)-1]
			} else {
				serving--
			}
		}
		var pods, totals []string
		for i := range load {
			pod, total := "-", "-"
			switch {
			case math.IsNaN(load[i]):
			case record.Policy.Sources[i].Kind == policy.Query:
				total = fmt.Sprint(load[i] * 3)
			default:
				pod = fmt.Sprint(math.Min(load[i]*3/float64(max(1, serving)), 100))
			}
			pods, totals = append(pods, pod), append(totals, total)
		}
		midnight := start.UTC().Truncate(24 * time.Hour)
		e := event{at: start.UTC().Sub(midnight) + at, assignments: []assignment{
			{"serving", fmt.Sprintf("%d@%s", serving, strings.Join(pods, "/"))}, {"starting", fmt.Sprint(len(began))}, {"total", strings.Join(totals, "/")},
		}}
		if at == 0 {
			w.replicas = -1
			e.assignments = append([]assignment{{"replicas", fmt.Sprint(replicas)}}, e.assignments...)
		}
		if err := w.apply(&e); err != nil {
			t.Fatal(err)
		}
		d, _ := w.decide(e.at)
		p := view.Point{Time: start.Add(at), Replicas: d.Replicas, Serving: d.Serving, Current: d.Current, Starting: d.Starting, Signals: make([]*float64, len(d.Inputs))}
		for i := range d.Inputs {
			if d.Inputs[i].Fresh > 0 {
				p.Signals[i] = &d.Inputs[i].Value
			}
		}
		out, replicas = append(out, p), d.Replicas
	}
	return record, out
}

// exported writes the record as a scenario, and checks that it is one that passes.
func exported(t *testing.T, r *Record) (text string, moments []Moment) {
	t.Helper()
	b, err := r.Export()
	if err != nil {
		t.Fatal(err)
	}
	s, err := Parse("incident.txtar", b)
	if err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	moments, err = s.Run(nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := Decisions(moments); got != s.Recorded() || got == "" {
		t.Errorf("the exported scenario does not pass:\n%s\nrecorded\n%s", got, s.Recorded())
	}
	return string(b), moments
}

var incidentStart = time.Date(2026, 3, 4, 13, 50, 0, 0, time.UTC)

// Recorded seconds replay with the same number of replicas in each second, if they go back to the workload's start.
func TestExportOfSecondsReproduces(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 7))
		record, points := incident(t, r, recordedPolicies[seed%uint64(len(recordedPolicies))], time.Duration(5+r.IntN(60))*time.Second, 9*time.Minute, incidentStart)
		record.addSeconds(points)
		text, moments := exported(t, record)
		for i, p := range points {
			if i >= len(moments) || moments[i].Decision.Replicas != p.Replicas {
				t.Fatalf("seed %d: at second %d %d replicas were decided, the scenario has another number:\n%s", seed, i, p.Replicas, text)
			}
		}
		if want := fmt.Sprintf("in %d of %[1]d steps", len(points)); !strings.Contains(text, want) {
			t.Errorf("seed %d: no %q in\n%.400s", seed, want, text)
		}
	}
}

// minutesOf are the means of the minutes of points, as the history keeps them.
func minutesOf(record *Record, points []view.Point, startup time.Duration) *view.Minutes {
	m := &view.Minutes{First: points[0].Time, Step: time.Minute}
	metric := func(name string, labels map[string]string, value func(i int) *float64) {
		x := view.MinuteMetric{Name: name, Labels: labels}
		for from := 0; from < len(points); from += 60 {
			sum, n := 0.0, 0.0
			for i := from; i < min(from+60, len(points)); i++ {
				if v := value(i); v != nil {
					sum, n = sum+*v, n+1
				}
			}
			mean := math.NaN()
			if n > 0 {
				mean = sum / n
			}
			x.Mean = append(x.Mean, mean)
		}
		m.Metrics = append(m.Metrics, x)
	}
	number := func(v int32) *float64 { f := float64(v); return &f }
	metric(view.ReplicasMetric, map[string]string{"state": "desired"}, func(i int) *float64 { return number(points[i].Replicas) })
	metric(view.ReplicasMetric, map[string]string{"state": "serving"}, func(i int) *float64 { return number(points[i].Serving) })
	metric(view.ReplicasMetric, map[string]string{"state": "current"}, func(i int) *float64 { return number(points[i].Current) })
	metric(view.ReplicasMetric, map[string]string{"state": "starting"}, func(i int) *float64 { return number(points[i].Starting) })
	for k := range record.Policy.Policy.Signals {
		metric(view.SignalMetric, map[string]string{"signal": record.Policy.Policy.Signals[k].Name, "per": "replica"}, func(i int) *float64 { return points[i].Signals[k] })
	}
	return m
}

// Recorded minutes are means: the replay has the recorded mean of the minute in at least three of four minutes, for load that
// jumps each five minutes by up to a factor of twenty.
func TestExportOfMinutesReproduces(t *testing.T) {
	same, all := 0, 0
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 9))
		record, points := incident(t, r, recordedPolicies[seed%uint64(len(recordedPolicies))], 5*time.Minute, 2*time.Hour, incidentStart)
		m := minutesOf(record, points, record.Startup)
		record.addMinutes(m)
		_, moments := exported(t, record)
		n, _ := record.compare(moments)
		same, all = same+n, all+len(record.steps)
	}
	t.Logf("%d of %d minutes", same, all)
	if same*4 < all*3 {
		t.Errorf("%d of %d minutes have the recorded number", same, all)
	}
}

// Minutes without a value are no values that last.
func TestExportOfGaps(t *testing.T) {
	record, points := incident(t, rand.New(rand.NewPCG(1, 1)), recordedPolicies[1], 5*time.Minute, time.Hour, incidentStart)
	m := minutesOf(record, points, record.Startup)
	for i := range m.Metrics {
		for k := 20; k < 30; k++ {
			m.Metrics[i].Mean[k] = math.NaN()
		}
	}
	record.addMinutes(m)
	text, _ := exported(t, record)
	for _, want := range []string{"14h10m0s frozen   # nothing was recorded until 14:20:00", "14h20m0s live serving="} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// Seconds are read where they suffice, else minutes; what is missing is an error.
func TestRecordRead(t *testing.T) {
	record, points := incident(t, rand.New(rand.NewPCG(1, 1)), recordedPolicies[0], time.Minute, 10*time.Minute, incidentStart)
	minutes := minutesOf(record, points, record.Startup)
	f := func(from, to time.Duration, step time.Duration, steps int, failure string) {
		t.Helper()
		r := &Record{Namespace: "llm", Name: "chat", Object: record.Object, Policy: record.Policy, From: incidentStart.Add(from), To: incidentStart.Add(to)}
		err := r.Read(incidentStart.Add(11*time.Minute), func(path string, query url.Values, into any) error {
			if query.Get("namespace") != "llm" || query.Get("name") != "chat" {
				t.Errorf("asked for %v", query)
			}
			var v any = view.History{Points: points}
			if path == "api/v1/minutes" {
				v = minutes
			}
			b, err := json.Marshal(v)
			if err != nil {
				return err
			}
			return json.Unmarshal(b, into)
		})
		if failure != "" {
			if err == nil || !strings.Contains(err.Error(), failure) {
				t.Errorf("%v, want %s", err, failure)
			}
			return
		}
		if err != nil || r.step != step || len(r.steps) != steps {
			t.Errorf("%v to %v: %v, %d steps of %v; want %d of %v", from, to, err, len(r.steps), r.step, steps, step)
		}
	}
	f(time.Minute, 2*time.Minute, time.Second, 61, "")
	f(-time.Minute, 4*time.Minute, time.Minute, 5, "")
	f(-time.Hour, -time.Minute, 0, 0, "has recorded nothing of llm/chat")
}

func TestParseAround(t *testing.T) {
	zone := time.FixedZone("", 3600)
	now := time.Date(2026, 3, 4, 14, 30, 0, 0, zone)
	f := func(s, want string) {
		t.Helper()
		got, err := ParseAround(s, now)
		if (err != nil) != (want == "") || err == nil && got.Format(time.RFC3339) != want {
			t.Errorf("%s: %v, %v; want %s", s, got, err, want)
		}
	}
	f("14:05", "2026-03-04T14:05:00+01:00")
	f("14:31", "2026-03-03T14:31:00+01:00")
	f("00:00:07", "2026-03-04T00:00:07+01:00")
	f("2026-02-28 23:00", "2026-02-28T23:00:00+01:00")
	f("2026-02-28T23:00:00Z", "2026-02-28T23:00:00Z")
	f("2026-03-05 00:00", "")
	f("25:00", "")
	f("", "")
}
