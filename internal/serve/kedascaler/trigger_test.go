// SPDX-License-Identifier: Apache-2.0

package kedascaler

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestParseTrigger(t *testing.T) {
	f := func(metadata map[string]string, want Trigger, activation float64) {
		t.Helper()
		got, err := ParseTrigger(metadata)
		if err != nil {
			t.Errorf("%v: %v", metadata, err)
			return
		}
		if (got.Activation == nil) != math.IsNaN(activation) || got.Activation != nil && *got.Activation != activation {
			t.Errorf("%v: activation %v, want %v", metadata, got.Activation, activation)
		}
		if got.Activation = nil; got != want {
			t.Errorf("%v: %+v, want %+v", metadata, got, want)
		}
	}
	none := math.NaN()
	f(map[string]string{"metric": "Utilization", "target": "60", "scalerAddress": "x:1", "enableTLS": "true"},
		Trigger{Metric: "Utilization", Target: 60, Stat: "avg"}, none)
	f(map[string]string{"metric": "MemoryUsed", "target": "0.5", "activationTarget": "-1", "stat": "p95", "window": "5m", "in_use": "active"},
		Trigger{Metric: "MemoryUsed", Target: .5, Stat: "p95", Window: 5 * time.Minute, Active: true}, -1)
	f(map[string]string{"autoscaler": "vllm"}, Trigger{Autoscaler: "vllm", Target: 1, Stat: "avg"}, none)
	f(map[string]string{"query": "queue", "target": "10", "activationTarget": "3"}, Trigger{Query: "queue", Target: 10, Stat: "avg"}, 3)
}

func TestTriggerErrorsNameTheKey(t *testing.T) {
	f := func(want string, pairs ...string) {
		t.Helper()
		metadata := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			metadata[pairs[i]] = pairs[i+1]
		}
		if _, err := ParseTrigger(metadata); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %q", pairs, err, want)
		}
	}
	f("metadata.target: missing; set the value that one replica is to have", "metric", "Utilization")
	f("metadata.target: missing", "query", "queue")
	f(`metadata.target: "sixty" is not a number`, "metric", "Utilization", "target", "sixty")
	f(`metadata.target: "0" is not above zero`, "metric", "Utilization", "target", "0")
	f("metadata.target: ", "metric", "Utilization", "target", "NaN")
	f("metadata.target: ", "metric", "Utilization", "target", "1e300")
	f("metadata.target: ", "metric", "Utilization", "target", "1e-9")
	f("metadata.metric: 0 of metric, autoscaler and query are set", "target", "1")
	f("metadata.metric: 2 of metric, autoscaler and query are set", "metric", "a", "query", "b", "target", "1")
	f("metadata.targetValue: unknown key; the keys are metric, autoscaler", "metric", "a", "targetValue", "1")
	f("metadata.namespace: unknown key", "metric", "a", "target", "1", "namespace", "victim")
	f(`metadata.stat: "p0" is none of`, "metric", "a", "target", "1", "stat", "p0")
	f(`metadata.stat: "p+5" is none of`, "metric", "a", "target", "1", "stat", "p+5")
	f("metadata.stat: only a metric has statistics", "query", "a", "target", "1", "stat", "avg")
	f(`metadata.window: "5" is not a duration`, "metric", "a", "target", "1", "window", "5")
	f(`metadata.window: "48h" is not a duration from 1s to 24h`, "metric", "a", "target", "1", "window", "48h")
	f(`metadata.in_use: "yes" is neither allocated`, "metric", "a", "target", "1", "in_use", "yes")
	f(`metadata.activationTarget: "x" is not a number`, "metric", "a", "target", "1", "activationTarget", "x")
	f("metadata.query: 300 bytes", "query", strings.Repeat("x", 300), "target", "1")
}

// FuzzTrigger checks that an accepted trigger has exactly one source and a target that
// KEDA can pass on, that its metric's name is valid in a path, and that an error is short.
func FuzzTrigger(f *testing.F) {
	f.Add("metric", "Utilization", "target", "60", "stat", "p99")
	f.Add("autoscaler", "a", "window", "5m", "in_use", "active")
	f.Add("query", "../x", "target", "1e15", "activationTarget", "-Inf")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2, k3, v3 string) {
		trigger, err := ParseTrigger(map[string]string{k1: v1, k2: v2, k3: v3})
		if err != nil {
			if len(err.Error()) > maxMessage {
				t.Fatalf("the error has %d bytes", len(err.Error()))
			}
			return
		}
		sources := 0
		for _, s := range []string{trigger.Metric, trigger.Autoscaler, trigger.Query} {
			if s != "" {
				sources++
			}
		}
		if sources != 1 || trigger.Target < 0.001 || trigger.Target*1000 > math.MaxInt64 {
			t.Fatalf("%+v", trigger)
		}
		name := trigger.MetricName()
		if strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != "" {
			t.Fatalf("metric name %q", name)
		}
	})
}
