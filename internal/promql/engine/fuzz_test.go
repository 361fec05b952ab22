// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/prometheus/prometheus/promql"
)

// FuzzQuery: a query of a tenant never panics, takes little longer than its timeout,
// holds no more samples than its limit, and returns no other namespace's values.
func FuzzQuery(f *testing.F) {
	for _, seed := range []string{
		`up`, `sum by (namespace) (rate(up[5m]))`, `{__name__=~".+"}`, `up{namespace="team-b"}`, `label_replace(up, "namespace", "team-b", "pod", ".*")`,
		`max_over_time(sum(up)[1h:1s] @ end() offset -1h)`, `count_values("x", up)`, `quantile_over_time(0.5, vector(1)[10m:1ms])`,
		`label_join(label_join(up, "a", "", "pod", "pod"), "a", "", "a", "a")`, `up * on () group_left () up`, `absent_over_time(up[1s])`,
		`up{pod=~"(a{31}){31}"}`, `topk(1e9, up) or -up`, `predict_linear(up[1h], 1e300)`, `holt_winters(up[1m], 1, 1)`, `1 ^ -1 % 0 atan2 NaN`,
		`sum_over_time(sum_over_time(sum_over_time(vector(1)[1h:1s])[1h:1s])[1h:1s])`, `vector(scalar(up)) offset 292y`,
	} {
		f.Add(seed, int64(1000), int64(60_000))
	}
	const secret = 424242.4242424242
	store := &memory{dishonest: true}
	store.add(f, `up{namespace="team-a",pod="a-0"}`, 1, 2, 3)
	store.add(f, `up{namespace="team-b",pod="b-0"}`, secret, secret, secret)
	store.add(f, `up{node="n"}`, secret, secret)
	cfg := Config{Timeout: 200 * time.Millisecond, MaxSamples: 10_000, MaxBytes: 1 << 20}
	e := New(cfg, store)
	f.Fuzz(func(t *testing.T, text string, step, length int64) {
		q := Query{PromQL: text, Namespaces: []string{"team-a"}, Payer: fair.Namespace("team-a")}
		began := time.Now()
		v, _, err := e.Instant(t.Context(), q, now)
		m, _, errRange := e.Range(t.Context(), q, now.Add(-time.Duration(length)*time.Millisecond), now, time.Duration(step)*time.Millisecond)
		if took := time.Since(began); took > time.Minute { // it does not end by itself
			t.Errorf("%q took %s", text, took)
		}
		if running, waiting := e.slots.Counts(); running+waiting > 0 {
			t.Errorf("%q keeps %d slots", text, running)
		}
		if err == nil {
			if x, ok := v.(promql.Matrix); ok {
				m = append(m, x...)
			}
			if x, ok := v.(promql.Vector); ok {
				for _, s := range x {
					m = append(m, promql.Series{Metric: s.Metric, Floats: []promql.FPoint{{F: s.F}}})
				}
			}
		}
		if err != nil && errRange != nil {
			return
		}
		points := 0
		for _, s := range m {
			points += len(s.Floats)
			for _, p := range s.Floats {
				if p.F == secret {
					t.Errorf("%q returns another namespace's value", text)
				}
			}
		}
		if points > 2*cfg.MaxSamples {
			t.Errorf("%q returns %d points", text, points)
		}
	})
}
