// SPDX-License-Identifier: Apache-2.0

package migrate

import "testing"

func TestIsOneNumber(t *testing.T) {
	f := func(promql string, want bool) {
		t.Helper()
		expr, err := queryParser.ParseExpr(promql)
		if err != nil {
			t.Fatal(err)
		}
		if got := isOneNumber(expr); got != want {
			t.Errorf("%s: one number %v, want %v", promql, got, want)
		}
	}
	for _, one := range []string{
		`1`, `time()`, `vector(1)`, `scalar(a)`, `hour()`, `absent(a)`, `sum(a)`, `-(avg(a))`, `sum(a) / count(b)`, `sum(a) + 1`, `2 * sum(a)`, `round(avg(a), 0.1)`,
		`sum(a) or vector(0)`, `avg by (pod) (a{pod="x"})`, `avg(a{pod="x"} + b{pod="x"}) by (pod)`, `sum(a) and on() b`, `max_over_time(sum(a)[5m:1s])`,
		`histogram_quantile(0.9, sum by (le) (rate(a_bucket[1m])))`, `sum(a) * on() group_left() sum(b)`, `label_replace(sum(a), "x", "y", "", "")`, `sum(a @ 5)`,
	} {
		f(one, true)
	}
	for _, several := range []string{
		`a`, `rate(a[1m])`, `avg by (pod) (a)`, `avg by (pod) (a{pod=~"x|y"})`, `avg by (pod) (a{pod="x"} + b)`, `sum without (x) (a)`, `topk(1, a)`, `count_values("v", a)`,
		`a + 1`, `2 * a`, `a + b`, `sum(a) or b`, `a and on() sum(b)`, `a * on() group_left() sum(b)`, `sum(a) * on() group_right() b`, `max_over_time(a[5m])`,
		`histogram_quantile(0.9, sum by (le, pod) (rate(a_bucket[1m])))`, `{__name__=~"a"}`,
	} {
		f(several, false)
	}
}

// A trigger whose query may return several series becomes a signal with one number.
func TestSeveralSeriesBecomeOne(t *testing.T) {
	f := func(query, kind, want string) {
		t.Helper()
		r := parse(t, KindScaledObject, `{scaleTargetRef: {name: a}, triggers: [{type: prometheus, metricType: `+kind+`, metadata: {query: '`+query+`', threshold: "60"}}]}`)
		wantSignals(t, r, "query "+want+" "+kind+" 60 activation 0")
		if want != query {
			wantNotes(t, r, "spec.triggers[0]: the query", "may return several series")
		}
	}
	f(`DCGM_FI_DEV_GPU_UTIL{pod=~"a-.*"}`, "AverageValue", `sum(DCGM_FI_DEV_GPU_UTIL{pod=~"a-.*"})`)
	f(`avg_over_time(DCGM_FI_DEV_GPU_UTIL[1m])`, "Value", `avg(avg_over_time(DCGM_FI_DEV_GPU_UTIL[1m]))`)
	f(`avg by (pod) (queue)`, "Value", `max(avg by (pod) (queue))`)
	f(`avg(DCGM_FI_DEV_GPU_UTIL)`, "Value", `avg(DCGM_FI_DEV_GPU_UTIL)`)
}
