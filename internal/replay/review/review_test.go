// SPDX-License-Identifier: Apache-2.0

package review

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/podtest"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// object is the GPUAutoscaler llm/chat with signals and other fields in YAML.
func object(t *testing.T, signals string, fields ...string) *v1alpha1.GPUAutoscaler {
	t.Helper()
	a := &v1alpha1.GPUAutoscaler{}
	text := "metadata: {name: chat, namespace: llm}\nspec: {scaleTargetRef: {kind: Deployment, name: chat}, minReplicas: 1, maxReplicas: 12, signals: [" + signals + "]" + strings.Join(append([]string{""}, fields...), ", ") + "}\n"
	if err := yaml.Unmarshal([]byte(text), a); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return a
}

// recordedMinutes are the minutes of a load of some replicas with eight requests each, which
// rises and falls once a day, on replicas with two GPUs.
func recordedMinutes(n int, signal string, replicas float64) func(string, string, *view.MinuteQuery) (view.Minutes, bool, error) {
	return func(_, _ string, q *view.MinuteQuery) (view.Minutes, bool, error) {
		m := view.Minutes{First: q.From, Step: q.Step, Metrics: []view.MinuteMetric{
			{Name: view.ReplicasMetric, Labels: map[string]string{"state": "serving"}},
			{Name: view.ReplicasMetric, Labels: map[string]string{"state": "current"}},
			{Name: gpusMetric},
			{Name: view.SignalMetric, Labels: map[string]string{"signal": signal, "per": "replica"}},
		}}
		for i := range min(n, q.Steps()) {
			need := replicas * (1 + 0.8*math.Sin(2*math.Pi*float64(i)/1440))
			serving := math.Ceil(need)
			for k, v := range []float64{serving, serving, 2 * serving, 8 * need / serving} {
				m.Metrics[k].Mean, m.Metrics[k].Max = append(m.Metrics[k].Mean, v), append(m.Metrics[k].Max, v)
			}
		}
		return m, true, nil
	}
}

func replay(t *testing.T, a *v1alpha1.GPUAutoscaler, minutes func(string, string, *view.MinuteQuery) (view.Minutes, bool, error), price float64) (view.Backtest, error) {
	t.Helper()
	var b view.Backtest
	var err error
	synctest.Test(t, func(t *testing.T) { // without rests
		r := New(Deps{Object: func(string, string) *v1alpha1.GPUAutoscaler { return a }, Minutes: minutes, Price: func(namespace, kind, name string) float64 {
			if w := a.Spec.ScaleTargetRef; namespace != a.Namespace || kind != w.Kind || name != w.Name {
				t.Errorf("the price of %s %s/%s", kind, namespace, name)
			}
			return price
		}})
		b, err = r.study(t.Context(), &job{workload: workload{"llm", "chat"}, object: a})
	})
	return b, err
}

// The answer says whether the objective is kept, at what cost, what is saved and what to
// change, and compares with a looser and a stricter objective and with an HPA.
func TestReplay(t *testing.T) {
	a := object(t, `{preset: vllm, slo: {interTokenLatency: 50ms, timeToFirstToken: 2500ms}}`, `pair: {with: decode, ratio: {min: "0.25"}}`)
	b, err := replay(t, a, recordedMinutes(90, "vllm requests", 1.5), 2.5)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range b.Policies {
		names = append(names, p.Name)
		if p.GPUHours <= 0 || p.Cost == nil || math.Abs(*p.Cost-2.5*p.GPUHours) > 1e-6 {
			t.Errorf("%s takes %g GPU-hours, cost %v", p.Name, p.GPUHours, p.Cost)
		}
	}
	if got := strings.Join(names, ", "); got != "this policy, objective 95 %, objective 99.5 %, HPA, same targets" {
		t.Errorf("policies: %s", got)
	}
	if b.State != view.BacktestDone || b.Parts != 1 || b.Objective != 99 || b.Recorded == nil || math.Abs(*b.Recorded-6) > 0.5 {
		t.Errorf("%+v, recorded %v", b, b.Recorded)
	}
	f := func(got, pattern string) {
		t.Helper()
		if !regexp.MustCompile("^" + pattern + "$").MatchString(got) {
			t.Errorf("%q, want %s", got, pattern)
		}
	}
	f(b.Kept, `Yes: 0\.\d\d % of the requests missed a limit, and 1 % may\. Kept in 1 of 1 part of the history\.`)
	f(b.Cost, `[\d.]+ GPU-hours in 1\.5 hours, \$[\d.]+\. The workload held 6(\.\d+)?\.`)
	f(b.Saved, `\d+ % of the GPU-hours of an HPA with the same targets, which .*\.`)
	f(b.Change, `Nothing|Use .*|Look for a cheaper policy with gpupilot backtest --from-cluster llm/chat --advise.*`)
	f(strings.Join(b.Notes, " "), `The load is what .* miss over 2\.5 s to the first token or 50 ms between tokens\. A start takes 120 s at the median, and a replica has 2 GPUs\. This policy is replayed without its pair decode: a replay has one workload\. More of it.* --from-cluster llm/chat\.`)
}

// Schedules bound the replicas at the times at which the load was recorded, also above the maximum of the spec.
func TestReplayFollowsSchedules(t *testing.T) {
	a := object(t, `{preset: vllm, slo: {interTokenLatency: 50ms, timeToFirstToken: 2500ms}}`, `schedules: [{name: all, start: "00:00", end: "00:00", minReplicas: 14, maxReplicas: 14}]`)
	b, err := replay(t, a, recordedMinutes(90, "vllm requests", 1.5), 0)
	if err != nil {
		t.Fatal(err)
	}
	if own := b.Policies[0]; math.Abs(own.GPUHours-1.5*14*2) > 1 || strings.Contains(strings.Join(b.Notes, " "), "schedules") {
		t.Errorf("%s takes %g GPU-hours in 1.5 hours, want those of 14 replicas with two GPUs; notes %q", own.Name, own.GPUHours, b.Notes)
	}
}

// A formula over a query is not replayed, and that is said: the controller lives on.
func TestReplayLeavesOutAFormulaOfQueries(t *testing.T) {
	a := object(t, `{name: queue, query: {promql: sum(w)}, target: {value: "5"}}, {name: busy, pods: {metric: "vllm:num_requests_running"}, target: {value: "8"}}`, "formula: queue.replicas + busy.replicas")
	b, err := replay(t, a, recordedMinutes(90, "busy", 1.5), 0)
	if err != nil || !strings.Contains(strings.Join(b.Notes, " "), "is replayed without its formula, which combines queries") {
		t.Errorf("%v, notes %q", err, b.Notes)
	}
}

// What a policy is compared with depends on what it has.
func TestPoliciesToCompareWith(t *testing.T) {
	f := func(want string, low, high int, a *v1alpha1.GPUAutoscaler, busy bool) {
		t.Helper()
		c, err := policy.Compile(a)
		if err != nil {
			t.Fatal(err)
		}
		p := &plan{}
		gotLow, gotHigh := p.addPolicies(c, &record{busy: busy})
		var names []string
		for i := range p.entries {
			names = append(names, p.entries[i].Name)
		}
		if got := strings.Join(names, "; "); got != want || gotLow != low || gotHigh != high {
			t.Errorf("%s from %d to %d, want %s from %d to %d", got, gotLow, gotHigh, want, low, high)
		}
	}
	slo := func(objective string) string {
		return `{preset: vllm, slo: {interTokenLatency: 50ms, objective: "` + objective + `"}}`
	}
	f("this policy; objective 90 %; objective 95 %; HPA, same targets", 1, 12, object(t, slo("92%")), false)
	f("this policy; objective 99.5 %; HPA, same targets", 1, 12, object(t, slo("99.9%")), false)
	f("this policy; objective 95 %; objective 99.5 %; maxReplicas 24; HPA, same targets", 1, 24, object(t, slo("99%")), true)
	const requests = `{pods: {metric: "vllm:num_requests_running"}, target: {value: "8"}}`
	f("this policy; targets 20 % lower; targets 25 % higher; HPA, same targets", 1, 12, object(t, requests), false)
	four := object(t, requests+`, {query: {promql: "sum(x)"}, target: {value: "3"}}`)
	*four.Spec.MinReplicas = 4
	f("this policy; targets 20 % lower; targets 25 % higher; minReplicas 2; HPA, same targets", 2, 12, four, false)
	f("this policy; targets 20 % lower; targets 25 % higher; maxReplicas 24; HPA, same targets", 4, 24, four, true)
	if c, _ := policy.Compile(object(t, requests)); withTargets(c, 2).Policy.Signals[0].Target != 16 || c.Policy.Signals[0].Target != 8 {
		t.Error("a changed policy changes the original")
	}
}

// What cannot be replayed is refused, with the reason, before any work.
func TestWhatIsRefused(t *testing.T) {
	f := func(why string, a *v1alpha1.GPUAutoscaler, minutes func(string, string, *view.MinuteQuery) (view.Minutes, bool, error)) {
		t.Helper()
		before := podtest.CPUTime(t)
		if b, err := replay(t, a, minutes, 0); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, %+v, want %q", err, b, why)
		}
		if d := podtest.CPUTime(t) - before; d > 5*time.Second {
			t.Errorf("%s: %v", why, d)
		}
	}
	const waiting, running = `{pods: {metric: "vllm:num_requests_waiting"}, target: {value: "8"}}`, "vllm:num_requests_waiting"
	f("less than an hour of the load is recorded", object(t, waiting), recordedMinutes(0, running, 2))
	f("less than an hour of the load is recorded", object(t, waiting), recordedMinutes(59, running, 2))
	f("the load needs up to 360 replicas, and the controller replays up to 256", object(t, waiting), recordedMinutes(1440, running, 200))
	f("the load needs up to 28800000000 replicas", object(t, `{pods: {metric: "vllm:num_requests_waiting"}, target: {value: "1n"}}`), recordedMinutes(1440, running, 2))
	f("a load of 100 replicas on the mean is too much", object(t, waiting), recordedMinutes(14*1440, running, 100))
	f(`a signal cannot be replayed: the simulated server has no metric "queue"`, object(t, `{pods: {metric: queue}, target: {value: "8"}}`), recordedMinutes(1440, "queue", 2))
	f("all signals are queries", object(t, `{query: {promql: "sum(queue)"}, target: {value: "8"}}`), recordedMinutes(1440, "sum(queue)", 2))
	f("the object is invalid", object(t, `{gpu: {metric: nope}, target: {value: "8"}}`), recordedMinutes(1440, "nope", 2))
	f("an error", object(t, waiting), func(string, string, *view.MinuteQuery) (view.Minutes, bool, error) {
		return view.Minutes{}, true, errors.New("an error")
	})
}

// The parts lie in the history, spread over it and over the day, and have at most so many
// requests.
func TestParts(t *testing.T) {
	for _, seconds := range []float64{3600, 5 * 3600, 9 * 3600, 86400, 14 * 86400} {
		for _, rate := range []float64{0, 1, 10, 100, 1000, 1e9} {
			parts, sum := partsOf(seconds, rate), 0.0
			for i, x := range parts {
				if sum += x.seconds; x.from < 0 || x.from+x.seconds > seconds || x.seconds < leastPart || i > 0 && x.from < parts[i-1].from+parts[i-1].seconds {
					t.Errorf("%g s at %g/s: part %d is %+v after %+v", seconds, rate, i, x, parts)
				}
			}
			if sum*rate > mostRequests || len(parts) > mostParts || rate <= 10 && len(parts) == 0 {
				t.Errorf("%g s at %g/s: %d parts with %g requests", seconds, rate, len(parts), sum*rate)
			}
		}
	}
	hours := map[int]bool{}
	for _, x := range partsOf(14*86400, 1) {
		for h := x.from; h < x.from+x.seconds; h += 900 {
			hours[int(h/3600)%24] = true
		}
	}
	if len(hours) < 18 {
		t.Errorf("the parts of 14 days are at %d of 24 hours of the day", len(hours))
	}
}

// A replay works for a quarter of the time, and ends if it takes too much.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		pause, began, worked := rest(ctx, cancel), time.Now(), time.Duration(0)
		for ; ctx.Err() == nil && worked < time.Hour; worked += 10 * time.Millisecond {
			time.Sleep(10 * time.Millisecond) // the work
			pause()
		}
		if share := worked.Seconds() / time.Since(began).Seconds(); share > 0.26 || worked > mostWork+time.Second || !errors.Is(context.Cause(ctx), errWork) {
			t.Errorf("%v of work in %v, %v", worked, time.Since(began), context.Cause(ctx))
		}
	})
}

// clerk is a Reviewer whose replays last a minute of a bubble's time.
type clerk struct {
	*Reviewer
	objects map[workload]*v1alpha1.GPUAutoscaler
	order   []string
	at      int // replays under way
	err     error
}

func newClerk(t *testing.T) *clerk {
	c := &clerk{objects: map[workload]*v1alpha1.GPUAutoscaler{}}
	c.Reviewer = New(Deps{Object: func(namespace, name string) *v1alpha1.GPUAutoscaler { return c.objects[workload{namespace, name}] }})
	c.replay = func(ctx context.Context, j *job) (view.Backtest, error) {
		if c.at++; c.at > 1 {
			t.Error("two replays at once")
		}
		defer func() { c.at-- }()
		select {
		case <-time.After(time.Minute):
		case <-ctx.Done():
		}
		c.order = append(c.order, j.namespace+"/"+j.name)
		return view.Backtest{State: view.BacktestDone, Text: fmt.Sprint(j.object.Spec.MaxReplicas)}, c.err
	}
	go c.Run(t.Context())
	return c
}

// ask asks for a workload, with this version of its spec.
func (c *clerk) ask(namespace, name string, version int32) view.Backtest {
	w := workload{namespace, name}
	if c.objects[w] == nil || c.objects[w].Spec.MaxReplicas != version {
		c.objects[w] = &v1alpha1.GPUAutoscaler{Spec: v1alpha1.GPUAutoscalerSpec{MaxReplicas: version}}
	}
	b, _ := c.Backtest(namespace, name)
	synctest.Wait()
	return b
}

// sizes returns how many replays wait or run, and how many results are kept.
func (c *clerk) sizes() (queue, results int) {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue), len(c.results)
}

// Replays run one at a time, one of a namespace at most waits, and a result counts for an
// hour or until the spec changes.
func TestReviewerIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClerk(t)
		f := func(namespace, name string, version int32, state view.BacktestState, text string) {
			t.Helper()
			if b := c.ask(namespace, name, version); b.State != state || b.Text != text {
				t.Errorf("%s/%s: %s %q, want %s %q", namespace, name, b.State, b.Text, state, text)
			}
		}
		if _, known := c.Backtest("a", "nope"); known {
			t.Error("an unknown workload is known")
		}
		f("a", "x", 1, view.BacktestWaiting, "it begins now")
		f("a", "x", 1, view.BacktestRunning, "the history is read")
		f("a", "y", 1, view.BacktestWaiting, "another replay of the namespace comes first")
		f("b", "x", 1, view.BacktestWaiting, "1 other replay comes first")
		f("b", "x", 1, view.BacktestWaiting, "1 other replay comes first")
		f("c", "x", 1, view.BacktestWaiting, "2 other replays come first")
		c.note(c.queue[0], 2, 7)
		f("a", "x", 1, view.BacktestRunning, "2 of 7 parts of the history are replayed")
		time.Sleep(61 * time.Second)
		f("a", "x", 1, view.BacktestDone, "1")
		f("a", "x", 2, view.BacktestWaiting, "2 other replays come first") // another spec
		time.Sleep(4 * time.Minute)
		f("a", "x", 2, view.BacktestDone, "2")
		time.Sleep(55 * time.Minute)
		f("a", "x", 2, view.BacktestDone, "2")
		time.Sleep(6 * time.Minute)
		f("a", "x", 2, view.BacktestWaiting, "it begins now") // an hour later
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		c.err = errors.New("no")
		f("d", "x", 1, view.BacktestWaiting, "it begins now")
		time.Sleep(2 * time.Minute)
		f("d", "x", 1, view.BacktestRefused, "no")
		synctest.Wait()
		c.err = nil
		time.Sleep(5 * time.Minute)
		f("d", "x", 1, view.BacktestWaiting, "it begins now") // the refusal counts for minutes only
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := strings.Join(c.order, " "); got != "a/x b/x c/x a/x a/x d/x d/x" {
			t.Errorf("replayed: %s", got)
		}
	})
}

// A namespace that changes its objects all the time uses up its own replays, and not those
// of others; neither the queue nor the results grow without end.
func TestReviewerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClerk(t)
		refusals := 0
		for i := range 600 { // ten minutes
			if b := c.ask("hostile", fmt.Sprint(i%3), int32(i)); b.State == view.BacktestRefused {
				if refusals++; !strings.Contains(b.Text, "the next one may begin in") || !strings.Contains(b.Text, "--from-cluster hostile/") {
					t.Fatal(b.Text)
				}
			}
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if len(c.order) > turnsAtOnce+1 || refusals == 0 {
			t.Errorf("%d replays in ten minutes, %d refusals", len(c.order), refusals)
		}
		if b := c.ask("other", "x", 1); b.State != view.BacktestWaiting || b.Text != "it begins now" {
			t.Errorf("the other namespace: %+v", b)
		}
		for i := range 2 * mostWaiting {
			c.ask(fmt.Sprint("many", i), "x", 1)
			if n, _ := c.sizes(); n > mostWaiting {
				t.Fatalf("%d replays wait", n)
			}
		}
		for i := range 2 * keepResults {
			c.ask(fmt.Sprint("ns", i), "x", 1)
			time.Sleep(time.Minute)
		}
		if _, n := c.sizes(); n != keepResults {
			t.Errorf("%d results are kept, want %d", n, keepResults)
		}
	})
}
