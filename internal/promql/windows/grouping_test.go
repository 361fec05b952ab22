// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"github.com/gpupilot/gpupilot/internal/window/series"
)

// wholeLabels is a storage that does not hear how the engine groups.
type wholeLabels struct{ *Store }

func (w wholeLabels) Querier(from, to int64) (storage.Querier, error) {
	q, err := w.Store.Querier(from, to)
	return wholeQuerier{q}, err
}

type wholeQuerier struct{ storage.Querier }

func (q wholeQuerier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	whole := *hints
	whole.By, whole.Grouping = false, nil
	return q.Querier.Select(ctx, sorted, &whole, matchers...)
}

// A query that groups has the same result with the labels of its grouping alone.
func TestAGroupingNeedsFewLabels(t *testing.T) {
	r := newRig(t)
	for n := range 3 {
		node := fmt.Sprintf("n%d", n)
		target := r.windows.Target(node, series.TargetLabels{Node: node})
		var lines []line
		for g := range 4 {
			pod := fmt.Sprintf("p%d", n*4+g)
			if g < 3 { // the API server contradicts the last one
				r.pods.add("ml", pod, node, nil)
			}
			l := util(pod, float64(n*10+g))
			l.labels[3], l.labels[5], l.labels[11], l.device = fmt.Sprint(g), "GPU-"+pod, node, "GPU-"+pod
			lines = append(lines, l)
		}
		r.page(target, at(0), lines...)
		r.page(target, at(20), lines...)
		r.now = at(20)
	}
	f := func(query string, kept bool) {
		t.Helper()
		got, gotRange := r.instant(query, at(20)), r.ranged(query, at(0), at(20), time.Second)
		whole := *r
		whole.storage = wholeLabels{r.store}
		if d := cmp.Diff(whole.instant(query, at(20)), got); d != "" || got == "" {
			t.Errorf("%s: (-whole labels +labels of the grouping)\n%s", query, d)
		}
		if d := cmp.Diff(whole.ranged(query, at(0), at(20), time.Second), gotRange); d != "" {
			t.Errorf("%s: (-whole labels +labels of the grouping)\n%s", query, d)
		}
		n := 0
		for i, g := range r.store.index.groupings.used {
			if g != nil {
				n++
				r.store.index.groupings.used[i] = nil
			}
		}
		if (n > 0) != kept {
			t.Errorf("%s: labels of %d groupings are kept; want any: %v", query, n, kept)
		}
	}
	for _, op := range []string{"avg", "sum", "min", "max", "count", "group", "stddev", "stdvar"} {
		f(op+`(DCGM_FI_DEV_GPU_UTIL)`, true)
		f(op+` by(pod,namespace)(DCGM_FI_DEV_GPU_UTIL)`, true)
		f(op+` by(node,node)(dcgm_gpu_utilization{gpu!="0"})`, true)
	}
	f(`quantile by(node)(0.5, DCGM_FI_DEV_GPU_UTIL)`, true)
	f(`sum by(__name__, node)(dcgm_gpu_utilization)`, false)
	f(`avg without(pod)(DCGM_FI_DEV_GPU_UTIL)`, false)
	f(`topk by(node)(2, DCGM_FI_DEV_GPU_UTIL)`, false)
	f(`count_values by(node)("v", DCGM_FI_DEV_GPU_UTIL)`, false)
	f(`sum by(node)(DCGM_FI_DEV_GPU_UTIL * 2)`, false)
	f(`sum by(node)(max_over_time(DCGM_FI_DEV_GPU_UTIL[30s]))`, false)
	f(`max by(node)(DCGM_FI_DEV_GPU_UTIL) * on(node) group_right DCGM_FI_DEV_GPU_UTIL`, true)
	f(`count by(exported_pod)(DCGM_FI_DEV_GPU_UTIL{exported_namespace=~".*"})`, true)
	f(`count by(contradicted_pod)(DCGM_FI_DEV_GPU_UTIL)`, true)
}

// The labels of groupings are kept for a limited number of groupings that are in use.
func TestGroupingsExpire(t *testing.T) {
	r := newRig(t)
	n := r.windows.Target("n1", series.TargetLabels{Node: "n1"})
	r.page(n, at(0), util("", 55))
	f := func(label string) *grouping {
		r.wants(`sum by(`+label+`,job)(DCGM_FI_DEV_GPU_UTIL)`, r.now, fmt.Sprintf(`{job="agent"} => 55 @[%d]`, msOf(r.now)))
		return r.store.index.groupings.of(&storage.SelectHints{Func: "sum", By: true, Grouping: []string{"job", label}}, r.now)
	}
	for i := range maxGroupings {
		if f(fmt.Sprint("l", i)) == nil {
			t.Fatalf("grouping %d has no labels", i)
		}
	}
	if g := f("other"); g != nil {
		t.Errorf("one grouping too many: %v", g)
	}
	p := r.store.index.names["DCGM_FI_DEV_GPU_UTIL"].parts[0]
	kept := func() (n int) {
		for i := range p.reduced {
			if p.reduced[i].Load() != nil {
				n++
			}
		}
		return n
	}
	if kept() != maxGroupings {
		t.Errorf("labels of %d groupings are kept; want %d", kept(), maxGroupings)
	}
	r.store.check(at(3600))
	if n := r.store.index.groupings.bytes.Load(); kept() != 0 || n != 0 {
		t.Errorf("labels of %d unused groupings are kept, %d bytes", kept(), n)
	}
	if f("other") == nil {
		t.Error("no room for a grouping after the others expired")
	}
	if n := r.metric("gpupilot_query_grouping_bytes"); n < 60 || n > 1000 {
		t.Errorf("the labels of a grouping of one series take %v bytes", n)
	}
	r.page(n, at(3600)) // the series is gone
	r.store.index.groupings.bytes.Add(maxGroupingBytes)
	r.now = at(3601)
	r.page(n, r.now, util("", 55))
	f("other") // is slower, and has the same result
	if n := r.store.index.groupings.bytes.Load(); n != maxGroupingBytes {
		t.Errorf("%d bytes are kept, the limit is %d", n, maxGroupingBytes)
	}
}
