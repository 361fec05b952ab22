// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"encoding/json"
	"log/slog"
	"math"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/meters"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/promise"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// llmServer is a vLLM server whose pages have the counters of a load.
type llmServer struct {
	pod    *corev1.Pod
	values map[string]float64
}

// serve adds a second of a load to the counters, and stores the page.
func (s *llmServer) serve(t testing.TB, store *series.Store, at time.Time, requests, prompt, output float64) {
	t.Helper()
	token := 8.26e-3 / (1 - min(0.95, requests*(prompt*0.0565e-3+output*0.245e-3)))
	add := func(name string, x float64) { s.values[name] += x }
	histogram := func(name string, sum, count float64, limit string, edge float64) {
		add(name+"_sum", sum)
		add(name+"_count", count)
		for _, side := range []string{"<=", ">="} {
			key := name + "_bucket{le" + side + limit + "}"
			add(key, count)
			s.values["le("+key+")"] = edge
		}
	}
	s.values["vllm:num_requests_running"], s.values["vllm:num_requests_waiting"] = requests*output*token, 0
	add("vllm:request_success_total", requests)
	add("vllm:prompt_tokens_total", requests*prompt)
	add("vllm:generation_tokens_total", requests*output)
	histogram("vllm:time_to_first_token_seconds", requests*0.1, requests, "1", 1)
	histogram("vllm:inter_token_latency_seconds", requests*output*token, requests*output, "0.025", 0.025)
	target := store.Target("pod/"+s.pod.Namespace+"/"+s.pod.Name, series.TargetLabels{Namespace: s.pod.Namespace, Pod: s.pod.Name})
	var b series.Batch
	for name, v := range s.values {
		ref, ok := target.Ref(series.Key{Metric: name})
		if !ok {
			t.Fatalf("no room for %s", name)
		}
		b.Add(ref, v)
	}
	if _, err := target.Append(at, &b); err != nil {
		t.Fatal(err)
	}
}

// What the servers' requests hold of their KV caches is part of the load: a cache is read by each
// iteration. A server that does not tell leaves it unknown.
func TestTheLoadHasTheKVCaches(t *testing.T) {
	f := func(metric string, want float64) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			a := promised("web")
			r := newRig(t, deployment("web", 2), a)
			w := r.add(a)
			var servers []*llmServer
			for _, name := range []string{"web-0", "web-1"} {
				p := pod("web", name, time.Now().Add(-time.Hour), ready(time.Now().Add(-time.Hour)))
				r.pods.Pods = append(r.pods.Pods, p)
				servers = append(servers, &llmServer{p, map[string]float64{metric: 0.6}})
			}
			for range 120 {
				time.Sleep(time.Second)
				for _, s := range servers {
					s.serve(t, r.store, time.Now(), 2, 1000, 200)
				}
				w.pass(time.Now())
			}
			l, ok := w.engine.state.Load(0)
			if got := float64(l.Cache); !ok || math.Abs(got-want) > 0.05*want {
				t.Errorf("%s: %v full caches are read per second, want %v", metric, got, want)
			}
		})
	}
	token := 8.26e-3 / (1 - 2*(1000*0.0565e-3+200*0.245e-3))
	f("max(vllm:kv_cache_usage_perc)", 2*0.6/token)
	f("max(vllm:gpu_cache_usage_perc)", 2*0.6/token)
	f("vllm:num_preemptions", 0)
}

// promised has an objective on vLLM's latencies.
func promised(name string) *v1alpha1.GPUAutoscaler {
	a := autoscaler(name)
	a.Spec.Behavior, a.Spec.Actuation = nil, v1alpha1.ActuationAdvise
	a.Spec.Signals = []v1alpha1.Signal{{Preset: v1alpha1.PresetVLLM, SLO: &v1alpha1.SLO{
		Objective: "99%", TimeToFirstToken: &metav1.Duration{Duration: time.Second}, InterTokenLatency: &metav1.Duration{Duration: 25 * time.Millisecond},
	}}}
	return a
}

// restarted is the workload of another controller, with the status that a wrote.
func (r *rig) restarted(a *v1alpha1.GPUAutoscaler, w *workload) *workload {
	r.t.Helper()
	b, err := json.Marshal(statusOf(w.status.next, &v1alpha1.GPUAutoscalerStatus{}))
	if err != nil {
		r.t.Fatal(err)
	}
	again := a.DeepCopy()
	if err := json.Unmarshal(b, &again.Status); err != nil {
		r.t.Fatal(err)
	}
	return newWorkload(r.t.Context(), r.shared, r.route, again)
}

// knownLoads returns the record of the load in a workload's state, without missing steps.
func knownLoads(w *workload) (out []promise.Load) {
	if len(w.engine.state.Signals) == 0 {
		return nil
	}
	for _, l := range w.engine.state.Signals[0].Promise.Loads {
		if l != promise.Missing {
			out = append(out, l)
		}
	}
	return out
}

// A controller that restarts knows the load of the time before from the history's minutes: it
// plans as one that has run on, and a peak of half an hour ago still counts.
func TestTheLoadIsRecalledAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := promised("web")
		r := newRig(t, deployment("web", 4), a)
		store := history.New(history.Config{})
		recorder := history.NewRecorder(store, nil, slog.New(slog.DiscardHandler))
		r.deps.Minutes, r.fleet.Past = recorder, store
		go recorder.Run(t.Context())
		w := r.add(a)
		var servers []*llmServer
		for _, name := range []string{"web-0", "web-1", "web-2", "web-3"} {
			p := pod("web", name, time.Now().Add(-time.Hour), ready(time.Now().Add(-time.Hour)))
			r.pods.Pods = append(r.pods.Pods, p)
			servers = append(servers, &llmServer{p, map[string]float64{}})
		}
		minute := func(requests float64, run ...*workload) {
			for range 60 {
				time.Sleep(time.Second)
				for _, s := range servers {
					s.serve(t, r.store, time.Now(), requests/4, 1000, 200)
				}
				for _, w := range run {
					w.pass(time.Now())
				}
			}
		}
		for i := range 90 {
			requests := 3.0 + float64(i%2)
			if i >= 70 && i < 75 {
				requests = 25
			}
			minute(requests, w)
		}
		for range 10 {
			minute(0) // no controller runs
		}
		again, forgetful := r.restarted(a, w), r.restarted(a, w)
		w.pass(time.Now())
		again.pass(time.Now())
		r.fleet.Past = nil
		forgetful.pass(time.Now())
		want, got := knownLoads(w), knownLoads(again)
		if n := len(got) - len(want); len(want) < 300 || n < -8 || n > 8 { // minutes are whole
			t.Fatalf("%d steps after the restart, want about %d", len(got), len(want))
		}
		sum := func(list []promise.Load) (p, o float64) {
			for _, l := range list {
				p, o = p+float64(l.Prompt), o+float64(l.Output)
			}
			return p / float64(len(list)), o / float64(len(list))
		}
		p, o := sum(want)
		if gotP, gotO := sum(got); math.Abs(gotP/p-1) > 0.03 || math.Abs(gotO/o-1) > 0.03 {
			t.Errorf("a mean of %.0f and %.0f tokens/s, want %.0f and %.0f", gotP, gotO, p, o)
		}
		if n := len(knownLoads(forgetful)); n > 1 {
			t.Errorf("%d steps without a history", n)
		}
		at := func(w *workload) float64 { return w.engine.state.Signals[0].Wanted }
		r.fleet.Past = store
		minute(3, w, again)
		if at(again) != at(w) || at(w) < 2 {
			t.Errorf("%v replicas are planned after the restart, %v without one", at(again), at(w))
		}
		if w.engine.state.Signals[0].Promise.Plan.Target == 0 || again.engine.state.Signals[0].Promise.Plan.Target == 0 {
			t.Errorf("plans %+v and %+v", w.engine.state.Signals[0].Promise.Plan, again.engine.state.Signals[0].Promise.Plan)
		}
	})
}

// What a history says of one workload, true or not, changes nothing of another.
func TestARecalledLieCostsItsOwnWorkload(t *testing.T) {
	now := time.Now().Truncate(time.Minute)
	store := history.New(history.Config{})
	for i := range 60 {
		var row []history.Value
		for k, m := range meters.NamesOf(&mustCompile(t, promised("liar")).Policy)[0].Tokens {
			row = append(row, history.Reading(m, []float64{1e30, -5, 1e11, 7}[(i+k)%4]))
		}
		if err := store.Append(history.Workload{Namespace: "ns", Kind: history.KindAutoscaler, Name: "liar"}, now.Add(time.Duration(i-60)*time.Minute), row); err != nil {
			t.Fatal(err)
		}
	}
	r := newRig(t, deployment("liar", 1), deployment("web", 1))
	r.fleet.Past = store
	f := func(name string) *workload {
		a := promised(name)
		p := pod(name, name+"-0", now.Add(-time.Hour), ready(now.Add(-time.Hour)))
		r.pods.Pods = append(r.pods.Pods, p)
		w, s := r.add(a), &llmServer{p, map[string]float64{}}
		for i := range 60 {
			at := now.Add(time.Duration(i) * time.Second)
			s.serve(t, r.store, at, 2, 1000, 200)
			w.pass(at)
		}
		return w
	}
	liar, honest := f("liar"), f("web")
	if n := liar.status.next.Decision.Replicas; n < 1 || n > 10 {
		t.Errorf("%d replicas of the liar, want those of its bounds", n)
	}
	if n := len(knownLoads(honest)); n == 0 || n > 5 {
		t.Errorf("%d steps of the other workload", n)
	}
	if n := honest.status.next.Decision.Replicas; n > 2 {
		t.Errorf("%d replicas of the other workload", n)
	}
}

func mustCompile(t *testing.T, a *v1alpha1.GPUAutoscaler) *policy.Compiled {
	t.Helper()
	c, err := policy.Compile(a)
	if err != nil {
		t.Fatal(err)
	}
	return &c
}
