// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package starved

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu/sim"
	"github.com/gpupilot/gpupilot/internal/promql/rules"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

// The queries of the attackers.
const (
	attackers   = 2
	slowSignals = 30 // GPUAutoscalers of each, with a query
	slowRules   = 30 // recording rules of each
)

// slowQuery takes seconds: ninety thousand steps of twenty sums, which no engine computes once.
var slowQuery = "sum(count_over_time((" + strings.Repeat("vector(time()) + ", 20) + "vector(time()))[90000s:1s]))"

// Slow rules and query signals of two namespaces do not blind the query signal of a third.
func TestHostileQueries(t *testing.T) {
	load := &stack.Load{}
	s, err := stack.Start(t.Context(), stack.Config{
		Nodes: 2, NoController: true, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		ControllerArgs: []string{"--prometheus-rules"},
		Workloads: []simnode.Workload{{
			Name: "quiet", Model: sim.Workload{Capacity: capacity, Concurrency: 16, QueueLimit: 60}, Offered: load.At,
		}},
	})
	must(t, err)
	defer s.Close()
	must(t, s.InstallKind(t.Context(), rules.PrometheusRule))
	must(t, s.StartController(t.Context()))
	must(t, s.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "quiet"}}))
	load.Set(0.3 * capacity)
	must(t, s.Client.Create(t.Context(), stack.Deployment("quiet", "quiet", 1, time.Second)))
	must(t, s.Client.Create(t.Context(), autoscaler("quiet", "quiet", v1alpha1.ActuationScale, v1alpha1.Signal{
		Query:  &v1alpha1.QuerySignal{PromQL: "sum(DCGM_FI_DEV_GPU_UTIL)"},
		Target: &v1alpha1.Target{Type: v1alpha1.AverageValue, Value: resource.MustParse("60")},
	})))
	alone := react(t, s, load)
	for i := range attackers {
		attackWithQueries(t, s, fmt.Sprint("slow-", i))
	}
	for i := range attackers {
		eventually(t, func() error { return isSlow(t, s, fmt.Sprint("slow-", i)) })
	}
	var beside []time.Duration
	for range 3 {
		beside = append(beside, react(t, s, load))
	}
	t.Logf("scaled within %s alone, and within %v beside the attack", alone, beside)
	if d := slices.Max(beside); d > slowest {
		t.Errorf("another namespace's workload was scaled after %s, want at most %s", d, slowest)
	}
}

// attackWithQueries creates the slow rules and signals of a namespace.
func attackWithQueries(t *testing.T, s *stack.Stack, namespace string) {
	t.Helper()
	must(t, s.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	var list []any
	for i := range slowRules {
		list = append(list, map[string]any{"record": fmt.Sprint("slow:rule:", i), "expr": slowQuery})
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
		"metadata": map[string]any{"namespace": namespace, "name": "slow"},
		"spec":     map[string]any{"groups": []any{map[string]any{"name": "slow", "interval": "1s", "rules": list}}},
	}}
	must(t, s.Client.Create(t.Context(), u))
	for i := range slowSignals {
		name := fmt.Sprint("slow-", i)
		d := stack.Deployment(namespace, name, 0, time.Second)
		must(t, s.Client.Create(t.Context(), d))
		must(t, s.Client.Create(t.Context(), autoscaler(namespace, name, v1alpha1.ActuationAdvise, v1alpha1.Signal{
			Query:  &v1alpha1.QuerySignal{PromQL: slowQuery + fmt.Sprint(" + ", i)}, // equal ones would run once
			Target: &v1alpha1.Target{Type: v1alpha1.AverageValue, Value: resource.MustParse("1")},
		})))
	}
}

// isSlow returns an error unless the queries of a namespace take long.
func isSlow(t *testing.T, s *stack.Stack, namespace string) error {
	t.Helper()
	page, err := http.Get(s.ControllerURL + "/metrics")
	if err != nil {
		return err
	}
	defer page.Body.Close()
	text, err := io.ReadAll(page.Body)
	if err != nil {
		return err
	}
	value := func(name string) (v float64) {
		_, rest, _ := strings.Cut(string(text), "\n"+name+`{namespace="`+namespace+`"} `)
		_, _ = fmt.Sscan(rest, &v)
		return v
	}
	sum, count := value("gpupilot_query_duration_seconds_sum"), value("gpupilot_query_duration_seconds_count")
	if sum < 5 || sum/count < 0.2 {
		return fmt.Errorf("%g queries of %s took %g s", count, namespace, sum)
	}
	return nil
}
