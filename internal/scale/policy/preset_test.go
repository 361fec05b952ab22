// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/scale"
)

// formatTerms writes a source as the sum of its terms, each with its names.
func formatTerms(s Source) string {
	var terms []string
	for _, term := range s.Terms {
		var names []string
		for i := range term {
			name := term[i].Key()
			if term[i].Rate {
				name = "rate(" + name + ")"
			}
			names = append(names, name)
		}
		terms = append(terms, strings.Join(names, " or "))
	}
	return strings.Join(terms, " + ")
}

func TestPresets(t *testing.T) {
	f := func(preset string, port int32, want map[string]string) {
		t.Helper()
		c, err := compiled(t, `{preset: `+preset+`}`)
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Policy.Signals) != len(want) || len(c.Sources) != len(want) {
			t.Errorf("%s: %d signals, %d sources, want %d", preset, len(c.Policy.Signals), len(c.Sources), len(want))
		}
		for i, s := range c.Policy.Signals {
			src := c.Sources[i]
			name := strings.TrimPrefix(s.Name, preset+" ")
			if got := formatTerms(src); got != want[name] {
				t.Errorf("%s %s: reads\n%s, want\n%s", preset, name, got, want[name])
			}
			if src.Kind != Pods || src.Path != "/metrics" || src.Port.Default != port || s.Type != scale.AverageValue {
				t.Errorf("%s %s: %+v from %+v", preset, name, s, src)
			}
			if want := map[string]float64{"requests": 8, "KV cache": 80}[name]; s.Target != want {
				t.Errorf("%s %s: target %g, want %g", preset, name, s.Target, want)
			}
		}
	}
	f("vllm", 8000, map[string]string{
		"requests": "vllm:num_requests_running + vllm:num_requests_waiting",
		"KV cache": "max(vllm:kv_cache_usage_perc) or max(vllm:gpu_cache_usage_perc)",
	})
	f("sglang", 30000, map[string]string{
		"requests": "sum(max by (dp_rank) (sglang:num_running_reqs)) + sum(max by (dp_rank) (sglang:num_queue_reqs))" +
			" + sum(max by (dp_rank) (sglang:num_prefill_bootstrap_queue_reqs)) or sum(max by (dp_rank) (sglang:num_prefill_prealloc_queue_reqs))" +
			" + sum(max by (dp_rank) (sglang:num_prefill_inflight_queue_reqs)) or sum(max by (dp_rank) (sglang:num_prefill_infight_queue_reqs))" +
			" + sum(max by (dp_rank) (sglang:num_decode_prealloc_queue_reqs)) + sum(max by (dp_rank) (sglang:num_decode_transfer_queue_reqs))",
		"KV cache": "max(sglang:token_usage)",
	})
	f("tgi", 80, map[string]string{
		"requests": "tgi_batch_current_size + tgi_queue_size",
	})
	const waiting = `nv_trt_llm_request_metrics{request_type="waiting"} or vllm:num_requests_waiting or nv_inference_pending_request_count`
	f("triton", 8002, map[string]string{
		"requests": `nv_trt_llm_request_metrics{request_type="scheduled"} or vllm:num_requests_running or rate(nv_inference_compute_infer_duration_us) + ` + waiting,
	})
}

// compiled is a policy of one signal, written as YAML.
func compiled(t *testing.T, signal string) (Compiled, error) {
	t.Helper()
	return Compile(autoscaler(t, `
scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}
maxReplicas: 8
signals: [`+signal+`]`))
}

// What counts the requests that come to a server, or those that it has answered.
func TestPresetsCountRequests(t *testing.T) {
	f := func(preset, want string) {
		t.Helper()
		c, err := compiled(t, `{preset: `+preset+`}`)
		if err != nil {
			t.Fatal(err)
		}
		for i, src := range c.Sources {
			got := formatTerms(Source{Terms: []Term{append(slices.Clone(src.Arrived), src.Completed...)}})
			if i > 0 {
				want = ""
			}
			if got != want {
				t.Errorf("%s: %s counts by %q, want %q", preset, c.Policy.Signals[i].Name, got, want)
			}
			for _, term := range src.Terms {
				for _, m := range term {
					if src.Completed != nil && m.Rate {
						t.Errorf("%s: %s is no gauge, whose growth could be counted", preset, m.Name)
					}
				}
			}
		}
	}
	f("vllm", "vllm:request_success_total")
	f("sglang", "sglang:num_requests_total")
	f("tgi", "tgi_request_count")
	f("triton", "")
}

func TestPresetsTarget(t *testing.T) {
	c, err := Compile(autoscaler(t, `
scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}
maxReplicas: 8
signals:
- {preset: vllm, target: {value: "32"}, port: api, path: /m}
- {preset: tgi, target: {value: "2"}}`))
	if err != nil {
		t.Fatal(err)
	}
	var got []float64
	for _, s := range c.Policy.Signals {
		got = append(got, s.Target)
	}
	if want := []float64{32, 80, 2}; !slices.Equal(got, want) {
		t.Errorf("targets %v, want %v", got, want)
	}
	if s := c.Sources[1]; s.Port.Given.StrVal != "api" || s.Path != "/m" {
		t.Errorf("source %+v", s)
	}
}

func TestSLO(t *testing.T) {
	f := func(signal, want string) {
		t.Helper()
		c, err := compiled(t, signal)
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", signal, err, want)
			}
			return
		}
		if err != nil {
			t.Errorf("%s: %v", signal, err)
			return
		}
		s, pace := c.Policy.Signals[0], c.Sources[0].Pace
		if s.Limit != 0.05 || s.Law != scale.Batching || pace == nil {
			t.Errorf("%s: %+v, pace %v", signal, s, pace)
			return
		}
		if m := pace.TokenSeconds[0]; m.Name != "vllm:inter_token_latency_seconds_sum" || !m.Rate {
			t.Errorf("%s: pace by %+v", signal, m)
		}
		for i := range c.Sources[1:] {
			if c.Sources[1+i].Pace != nil || c.Sources[1+i].Completed != nil || c.Sources[1+i].Arrived != nil || c.Policy.Signals[1+i].Limit != 0 {
				t.Errorf("%s: signal %d has a limit, too", signal, 1+i)
			}
		}
	}
	f(`{preset: vllm, slo: {interTokenLatency: 50ms}}`, "")
	f(`{preset: vllm, slo: {interTokenLatency: 50ms}, target: {value: "20"}}`, "")
	f(`{preset: vllm, slo: {interTokenLatency: 50ms, timeToFirstToken: 2s}}`, "")
	f(`{preset: vllm, slo: {timeToFirstToken: -1s}}`, "slo.timeToFirstToken: Invalid value: \"-1s\": must be greater than 0")
	f(`{preset: vllm, slo: {}}`, "slo: Required value: an slo needs interTokenLatency, timeToFirstToken or both")
	f(`{preset: vllm, slo: {interTokenLatency: 0s}}`, "slo.interTokenLatency: Invalid value: \"0s\": must be greater than 0")
	f(`{preset: tgi, slo: {interTokenLatency: 50ms}}`, "slo: Forbidden: this server does not expose")
	f(`{gpu: {metric: Utilization}, target: {value: "60"}, slo: {interTokenLatency: 50ms}}`, "slo: Forbidden: an slo needs a preset")

	// The times to the first token are read where they have a limit, and only there.
	g := func(slo string, limit, first float64, reads bool) {
		t.Helper()
		c, err := compiled(t, `{preset: sglang, slo: `+slo+`}`)
		if err != nil {
			t.Fatal(err)
		}
		s, pace := c.Policy.Signals[0], c.Sources[0].Pace
		if s.Limit != limit || s.FirstLimit != first || !s.Learned() || (pace.FirstTokens != nil) != reads {
			t.Errorf("%s: %+v, pace %+v", slo, s, pace)
		}
		if all := c.Sources[0].AllTerms(); reads != slices.ContainsFunc(all, func(t Term) bool { return t[0].Name == "sglang:time_to_first_token_seconds_sum" }) {
			t.Errorf("%s: reads %+v", slo, all)
		}
	}
	g("{interTokenLatency: 50ms}", 0.05, 0, false)
	g("{timeToFirstToken: 2s}", 0, 2, true)
	g("{interTokenLatency: 50ms, timeToFirstToken: 500ms}", 0.05, 0.5, true)
}

// Whatever a preset reads has a range: no server has -1 or 1e30 requests.
func TestPresetsHaveRanges(t *testing.T) {
	for _, p := range servers() {
		terms := []Term{p.running, p.waiting, p.kvCache, p.arrived, p.completed}
		if p.pace != nil {
			terms = append(terms, p.pace.TokenSeconds, p.pace.Tokens, p.pace.FirstTokenSeconds, p.pace.FirstTokens)
		}
		for _, term := range terms {
			for _, m := range term {
				if m.LowerBound != 0 || m.UpperBound <= 0 || m.UpperBound < 1e6 && !m.Max || m.Rate && m.UpperBound < 1e15 {
					t.Errorf("%s: %s is between %g and %g", p.preset, m.Key(), m.LowerBound, m.UpperBound)
				}
			}
		}
	}
}
