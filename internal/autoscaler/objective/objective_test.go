// SPDX-License-Identifier: Apache-2.0

package objective

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/promise"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

var t0 = time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)

// pages is what pods show, by pod and metric.
type pages struct {
	at     time.Time
	values map[string]float64
}

func (p *pages) PodMetric(_, pod, metric string, _ time.Time, _ time.Duration) (series.Sample, bool) {
	v, ok := p.values[pod+"/"+metric]
	return series.Sample{At: p.at, Value: v}, ok
}

// show sets a pod's page: requests that ended, and those of them over 1s and over 25ms.
func (p *pages) show(pod string, ended, aborted, late, slow float64) {
	set := func(name string, v float64) { p.values[pod+"/"+name] = v }
	set("vllm:request_success_total", ended)
	set(`vllm:request_success_total{finished_reason="abort"}`, aborted)
	histogram := func(name string, limit, over float64) {
		set(name+"_count", ended)
		for _, sign := range []string{"<=", ">="} {
			key := fmt.Sprintf("%s_bucket{le%s%g}", name, sign, limit)
			set(key, ended-over)
			set("le("+key+")", limit)
		}
	}
	histogram("vllm:time_to_first_token_seconds", 1, late)
	histogram("vllm:request_time_per_output_token_seconds", 0.025, slow)
}

func vllm(t *testing.T, objective string) *policy.Compiled {
	t.Helper()
	c, err := policy.Compile(&v1alpha1.GPUAutoscaler{Spec: v1alpha1.GPUAutoscalerSpec{
		MaxReplicas: 20, Signals: []v1alpha1.Signal{{Preset: v1alpha1.PresetVLLM, SLO: &v1alpha1.SLO{
			Objective: objective, TimeToFirstToken: &metav1.Duration{Duration: time.Second}, InterTokenLatency: &metav1.Duration{Duration: 25 * time.Millisecond},
		}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return &c
}

func podsOf(names ...string) (out []*corev1.Pod) {
	for _, n := range names {
		out = append(out, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: n, UID: types.UID(n)}})
	}
	return out
}

// observe makes a keeper see two pods for an hour: 1 of 100 requests is late.
func observe(k *Keeper, c *policy.Compiled, from time.Time, minutes int, v *pages) time.Time {
	n := 0.0
	for i := range minutes {
		v.at = from.Add(time.Duration(i) * time.Minute)
		v.show("a", 100+n, 0, n/100, 0)
		v.show("b", 7+n, 0, n/100, 0)
		k.Observe(c, podsOf("a", "b"), v, v.at, time.Minute)
		n += 100
	}
	return from.Add(time.Duration(minutes-1) * time.Minute)
}

func TestStatusOfAnObjective(t *testing.T) {
	var k Keeper
	c, v := vllm(t, "98%"), &pages{values: map[string]float64{}}
	end := observe(&k, c, t0, 61, v)
	state := &scale.State{Signals: []scale.SignalState{{Name: "vllm requests", Promise: promise.State{
		Plan: promise.Plan{Target: 0.5, Replicas: 3.25, Looser: 2.9, Stricter: 4}, Ended: 1000, Missed: promise.Misses{Planned: 8, Starting: 3, Server: 1},
	}}}}
	s := Status(k.Reports(c, state, time.Minute, end))
	if len(s) != 1 {
		t.Fatalf("%d objectives", len(s))
	}
	x := s[0]
	if x.Requests != 12000 || x.Missed != 120 || x.Attained != "99.00%" || x.AttainedAtMost != "" || x.BudgetLeft != "50%" || x.Plan.Replicas != "3.25" || x.Plan.StricterObjective != "99%" {
		t.Errorf("%+v %+v", x, x.Plan)
	}
	for _, b := range x.BurnRates {
		if b.Rate != "0.5" {
			t.Errorf("burn rate %+v, want 0.5", b)
		}
	}
	want := "99.00% of 12000 requests kept 1s to the first token and 25ms between tokens in 59m; objective 98% over 28d; " +
		"50% of the error budget is left; burn rate 0.5 (5m), 0.5 (30m), 0.5 (1h), 0.5 (6h), 0.5 (3d); " +
		"1.2 % of the requests of the last day missed a limit: 0.8 % expected at the planned load, 0.3 % while replicas started, 0.1 % more than usual at the load; " +
		"with what is left of the budget, plans may miss 0.70%; on average your recorded load needs 3.25 replicas, 2.9 for 96% and 4 for 99%"
	if x.Message != want {
		t.Errorf("%s\nwant %s", x.Message, want)
	}

	// A controller that starts with the record goes on; one pod was restarted meanwhile.
	m := &v1alpha1.Memory{Requests: k.Record(end)}
	var next Keeper
	next.Restore(m)
	v.at = end.Add(time.Minute)
	v.show("a", 3, 0, 0, 0)
	next.Observe(c, podsOf("a", "b"), v, v.at, time.Minute)
	v.at = end.Add(2 * time.Minute)
	v.show("a", 103, 0, 0, 0)
	next.Observe(c, podsOf("a", "b"), v, v.at, time.Minute)
	if y := Status(next.Reports(c, state, time.Minute, v.at))[0]; y.Requests != 12100 || y.Missed != 120 || !y.Since.Time.Equal(x.Since.Time) {
		t.Errorf("after a restart: %+v", y)
	}

	// Other limits are another promise.
	other := *c
	other.Policy.Signals = []scale.Signal{c.Policy.Signals[0], c.Policy.Signals[1]}
	other.Policy.Signals[0].FirstLimit = 2.5
	next.Observe(&other, nil, v, v.at, time.Minute)
	if y := Status(next.Reports(&other, state, time.Minute, v.at))[0]; y.Requests != 0 || y.Attained != "" {
		t.Errorf("with other limits: %+v", y)
	}
}

// A pod without one of the histograms counts nothing: its requests may have missed.
func TestMissingIsNotKept(t *testing.T) {
	var k Keeper
	c, v := vllm(t, ""), &pages{values: map[string]float64{}}
	for i := range 3 {
		v.at = t0.Add(time.Duration(i) * time.Minute)
		v.show("a", float64(100*i), 0, 0, 0)
		delete(v.values, "a/vllm:request_time_per_output_token_seconds_count")
		k.Observe(c, podsOf("a"), v, v.at, time.Minute)
	}
	r := k.Reports(c, &scale.State{}, time.Minute, v.at)
	conditions := Conditions(r)
	if r[0].Ended != 0 || conditions[1].Status != metav1.ConditionUnknown || conditions[1].Reason != reasonNoHistogram {
		t.Errorf("%v requests, %+v", r[0].Ended, conditions[1])
	}
}

func TestConditions(t *testing.T) {
	edge := func(x float64) (b struct{ Lower, Upper float64 }) { b.Lower, b.Upper = x, x; return b }
	base := func() Report {
		r := Report{Signal: "vllm requests", Objective: 0.99, First: 1, Token: 0.025, max: 20, startup: 2 * time.Minute}
		r.edges.Pods = 2
		r.edges.First.Lower, r.edges.First.Upper = edge(1).Lower, edge(1).Upper
		r.edges.Token.Lower, r.edges.Token.Upper = edge(0.025).Lower, edge(0.025).Upper
		r.cost, r.learned = promise.Cost{Idle: 0.0085}, true
		r.Plan = promise.Plan{Target: 0.5, Replicas: 3.2, Looser: 2.9, Stricter: 3.8, Share: 0.005}
		return r
	}
	f := func(change func(*Report), kind string, status metav1.ConditionStatus, reason string, says ...string) {
		t.Helper()
		r := base()
		change(&r)
		for _, c := range Conditions([]Report{r}) {
			if c.Type != kind {
				continue
			}
			if c.Status != status || c.Reason != reason {
				t.Errorf("%s is %s (%s), want %s (%s): %s", kind, c.Status, c.Reason, status, reason, c.Message)
			}
			for _, text := range says {
				if !strings.Contains(c.Message, text) {
					t.Errorf("%s lacks %q: %s", reason, text, c.Message)
				}
			}
		}
	}
	const attainable, measured = v1alpha1.ConditionAttainable, v1alpha1.ConditionMeasured
	f(func(*Report) {}, attainable, metav1.ConditionTrue, reasonAttainable, "to keep 99% of the requests within 1s to the first token and 25ms between tokens, your recorded load needs 3.2 replicas", "98% would need 2.9", "99.5% would need 3.8")
	f(func(*Report) {}, measured, metav1.ConditionTrue, reasonMeasured)
	f(func(r *Report) { r.Plan = promise.Plan{} }, attainable, metav1.ConditionUnknown, reasonLearning)
	f(func(r *Report) { r.Token = 0.008 }, attainable, metav1.ConditionFalse, reasonBelowIdle, "8ms", "8.5ms", "17ms")
	f(func(r *Report) { r.Token = 0.01 }, attainable, metav1.ConditionTrue, reasonNearIdle, "may be only 15% busy", "With a limit of 20ms", "57.5%")
	f(func(r *Report) { r.calm = calm{5000, 200} }, attainable, metav1.ConditionFalse, reasonCalmMisses, "4% of the requests", "allows 1%")
	f(func(r *Report) { r.calm = calm{50, 20} }, attainable, metav1.ConditionTrue, reasonAttainable)
	f(func(r *Report) { r.Plan.Short, r.Plan.Share, r.Plan.Needs = true, 0.031, 9.8 }, attainable, metav1.ConditionFalse, reasonRisesFaster, "2m0s", "3.1%", "9.8 replicas", "objective of 98%")
	f(func(r *Report) { r.Plan.Short = true }, attainable, metav1.ConditionFalse, reasonRisesFaster, "maxReplicas 20")
	f(func(r *Report) { r.edges.First.Lower, r.edges.First.Upper, r.First = 1, 2.5, 2 }, measured, metav1.ConditionFalse, reasonBetween, "timeToFirstToken 2s", "between the edges 1s and 2.5s", "Set 1s or 2.5s")
	f(func(r *Report) { r.edges.First.Lower, r.edges.First.Upper, r.First = 80, 0, 90 }, measured, metav1.ConditionFalse, reasonBetween, "above 1m20s")
	f(func(r *Report) { r.edges.Token.Lower, r.edges.Token.Upper, r.Token = 0, 0.01, 0.005 }, measured, metav1.ConditionFalse, reasonBetween, "below 10ms")
	f(func(r *Report) { r.edges.Token.OfTokens = true }, measured, metav1.ConditionTrue, reasonOfTokens)
	if Conditions(nil) != nil {
		t.Error("conditions without an objective")
	}
}
