// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package starved

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/stack"
)

// The queries of the attackers.
const (
	attackers   = 2
	slowSignals = 30 // GPUAutoscalers of each, with a query
	slowRules   = 30 // recording rules of each
	// leastShare is how often the one query of the quiet workload is answered for each answer of an attacker, at least. It
	// would be 1/60 if all queries took turns.
	leastShare = 1.0 / 20
)

// slowQuery takes a tenth of a second: seven and a half thousand steps of twenty sums. The weights of queries allow no more.
var slowQuery = "sum(count_over_time((" + strings.Repeat("vector(time()) + ", 20) + "vector(time()))[7500s:1s]))"

// Slow rules and query signals of two namespaces do not blind the query signal of a third.
func TestHostileQueries(t *testing.T) {
	deployQuiet(t, v1alpha1.Signal{
		Query:  &v1alpha1.QuerySignal{PromQL: "sum(DCGM_FI_DEV_GPU_UTIL)"},
		Target: &v1alpha1.Target{Type: v1alpha1.AverageValue, Value: resource.MustParse("60")},
	})
	alone := []time.Duration{react(t), react(t)}
	for i := range attackers {
		attackWithQueries(t, fmt.Sprint("slow-", i))
	}
	for i := range attackers {
		stack.Eventually(t, func() error { return isSlow(t, fmt.Sprint("slow-", i)) })
	}
	answered := func(namespace string) float64 { _, n := queries(t, namespace); return n }
	before := []float64{answered("slow-0"), answered("slow-1"), answered(namespace)}
	var beside []time.Duration
	for range 3 {
		beside = append(beside, react(t))
	}
	slow, ours := max(answered("slow-0")-before[0], answered("slow-1")-before[1]), answered(namespace)-before[2]
	t.Logf("%v queries of an attacker were answered, and %v of the workload", slow, ours)
	if ours < leastShare*slow {
		t.Errorf("%v queries of the workload were answered beside %v of an attacker, want %g of them", ours, slow, leastShare)
	}
	judge(t, alone, beside)
}

// attackWithQueries creates the slow rules and signals of a namespace, until the test's end.
func attackWithQueries(t *testing.T, namespace string) {
	t.Helper()
	tenant(t, namespace)
	var list []any
	for i := range slowRules {
		list = append(list, map[string]any{"record": fmt.Sprint("slow:rule:", i), "expr": slowQuery})
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
		"metadata": map[string]any{"namespace": namespace, "name": "slow"},
		"spec":     map[string]any{"groups": []any{map[string]any{"name": "slow", "interval": "1s", "rules": list}}},
	}}
	stack.Must(t, rig.Client.Create(t.Context(), u))
	for i := range slowSignals {
		name := fmt.Sprint("slow-", i)
		d := stack.Deployment(namespace, name, 0, time.Second)
		stack.Must(t, rig.Client.Create(t.Context(), d))
		stack.Must(t, rig.Client.Create(t.Context(), autoscaler(namespace, name, v1alpha1.ActuationAdvise, v1alpha1.Signal{
			Query:  &v1alpha1.QuerySignal{PromQL: slowQuery + fmt.Sprint(" + ", i)}, // equal ones would run once
			Target: &v1alpha1.Target{Type: v1alpha1.AverageValue, Value: resource.MustParse("1")},
		})))
	}
}

// queries are the seconds that the queries of a namespace took, and their number.
func queries(t *testing.T, namespace string) (seconds, n float64) {
	t.Helper()
	of := fmt.Sprintf("{namespace=%q}", namespace)
	return stack.Meter(t, rig.ControllerURL, "gpupilot_query_duration_seconds_sum"+of), stack.Meter(t, rig.ControllerURL, "gpupilot_query_duration_seconds_count"+of)
}

// isSlow returns an error unless the queries of a namespace take long.
func isSlow(t *testing.T, namespace string) error {
	t.Helper()
	if sum, n := queries(t, namespace); sum < 5 || sum/n < 0.05 {
		return fmt.Errorf("%g queries of %s took %g s", n, namespace, sum)
	}
	return nil
}
