// SPDX-License-Identifier: Apache-2.0

package queries

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// served returns the queries of a namespace that have an answer, and the messages about
// the others.
func (r *rig) served(namespace string, promql ...string) (answered string, refused []string) {
	r.t.Helper()
	synctest.Wait()
	var list []string
	for _, x := range promql {
		switch a := r.Answer(namespace, keyOf(namespace, x)); {
		case a.Refused:
			refused = append(refused, a.Problem)
		case !a.Evaluated.IsZero():
			list = append(list, x)
		default:
			r.t.Errorf("%s is neither answered nor refused: %+v", x, a)
		}
	}
	return strings.Join(list, " "), refused
}

// The queries of the oldest owners of both kinds are evaluated. A query that an older
// owner has, too, costs nothing.
func TestOneBudgetByAge(t *testing.T) {
	schedule(t, SchedulerConfig{PerNamespace: 4}, func(r *rig) {
		r.asks(MetricQuery, "ns", "newest", 9, "g")
		r.asks(GPUAutoscaler, "ns", "newer", 8, "e", "a")
		r.asks(MetricQuery, "ns", "z", 1, "b")
		r.asks(GPUAutoscaler, "ns", "y", 2, "c")
		r.asks(GPUAutoscaler, "ns", "x", 0, "a")
		r.asks(MetricQuery, "ns", "w", 3, "d")
		r.asks(MetricQuery, "ns", "v", 4, "a")
		r.asks(MetricQuery, "other", "new", 99, "a")
		got, refused := r.served("ns", "a", "b", "c", "d", "e", "g")
		const want = "not evaluated: older GPUAutoscalers and MetricQueries of namespace ns already have 4 different queries, the limit of --queries-per-namespace"
		if got != "a b c d" || !slices.Equal(refused, []string{want, want}) {
			t.Errorf("answered %s, refused %q", got, refused)
		}
		before := r.asked("e") + r.asked("g") // when they were the oldest
		if time.Sleep(time.Minute); r.asked("e")+r.asked("g") != before {
			t.Error("refused queries are evaluated")
		}
		if got, _ := r.served("other", "a"); got != "a" {
			t.Error("the limit of one namespace counts in another")
		}
		r.remove(MetricQuery, "ns", "z")
		if got, refused := r.served("ns", "a", "c", "d", "e", "g"); got != "a c d e" || len(refused) != 1 {
			t.Errorf("with room: answered %s, refused %q", got, refused)
		}
	})
	schedule(t, SchedulerConfig{PerNamespace: 1}, func(r *rig) { // as old as each other
		r.asks(MetricQuery, "ns", "a", 0, "x")
		r.asks(GPUAutoscaler, "ns", "c", 0, "y")
		r.asks(GPUAutoscaler, "ns", "b", 0, "z")
		if got, _ := r.served("ns", "x", "y", "z"); got != "z" {
			t.Errorf("answered %s", got)
		}
	})
}

// A flood of older MetricQueries leaves a quarter of the budget to signals. The queries
// that a signal has, too, do not count for it.
func TestShareOfSignals(t *testing.T) {
	schedule(t, SchedulerConfig{}, func(r *rig) {
		var all []string
		for i := range 300 {
			all = append(all, fmt.Sprintf("q%03d", i))
			r.asks(MetricQuery, "ns", fmt.Sprint("m", i), time.Duration(i), all[i])
		}
		var signals []string
		for i := range 26 {
			signals = append(signals, fmt.Sprintf("s%02d", i))
			r.asks(GPUAutoscaler, "ns", fmt.Sprint("a", i), time.Hour+time.Duration(i), signals[i])
		}
		time.Sleep(time.Minute)
		got, refused := r.served("ns", all...)
		const want = "not evaluated: older MetricQueries of namespace ns already have 75 different queries; the rest of the 100 of --queries-per-namespace is for GPUAutoscalers"
		if got != strings.Join(all[:75], " ") || len(refused) != 225 || refused[0] != want {
			t.Errorf("answered %s, refused %d with %q", got, len(refused), refused[0])
		}
		if got, refused := r.served("ns", signals...); got != strings.Join(signals[:25], " ") || len(refused) != 1 {
			t.Errorf("answered %s, refused %q", got, refused)
		}
		r.asks(GPUAutoscaler, "ns", "a0", -1, "q000", "q200") // instead of s00
		time.Sleep(time.Minute)
		if got, refused := r.served("ns", "q000", "q075", "q076", "q200"); got != "q000 q075 q200" || len(refused) != 1 {
			t.Errorf("answered %s, refused %q", got, refused)
		}
	})
	f := func(perNamespace, want int) {
		t.Helper()
		s := NewScheduler(SchedulerConfig{PerNamespace: perNamespace}, SchedulerDeps{})
		if n := s.shareOfMetricQueries(); n != want {
			t.Errorf("of %d queries MetricQueries may have %d, want %d", perNamespace, n, want)
		}
	}
	f(1, 1)
	f(2, 1)
	f(3, 2)
	f(4, 3)
	f(0, 75)
	f(10000, 7500)
}
