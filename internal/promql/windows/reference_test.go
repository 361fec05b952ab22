// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/gpupilot/gpupilot/internal/window/series"
)

// busy fills windows of several nodes at random: pods come, go and move, series leave
// the pages, devices are not read, and targets fail.
func busy(t *testing.T) *rig {
	r := newRig(t)
	random := rand.New(rand.NewPCG(3, 4))
	for i := range 6 {
		r.pods.add(fmt.Sprint("ns-", i%2), fmt.Sprint("p-", i), fmt.Sprint("n", i%3), map[string]string{"app": fmt.Sprint("app-", i%3)})
	}
	for s := range 60 {
		if s == 40 { // moves: what n0 says about it is contradicted from then on
			r.store.PodChanged(r.pods["ns-0/p-0"], r.pods.add("ns-0", "p-0", "n1", nil))
		}
		for n := range 3 {
			node := fmt.Sprint("n", n)
			target := r.windows.Target(node, series.TargetLabels{Node: node, Job: "agent", Instance: "i"})
			if random.IntN(8) == 0 {
				target.Fail(at(float64(s)))
				continue
			}
			var lines []line
			for g := range 3 {
				if random.IntN(5) == 0 {
					continue
				}
				pod := random.IntN(8)
				l := util("", float64(random.IntN(100)))
				l.labels[3], l.labels[5], l.labels[11], l.device = fmt.Sprint(g), "GPU-"+node+fmt.Sprint(g), node, "GPU-"+node+fmt.Sprint(g)
				if pod < 7 { // the seventh does not exist
					l.labels = append(l.labels, "namespace", fmt.Sprint("ns-", pod%2), "pod", fmt.Sprint("p-", pod))
				}
				lines = append(lines, l)
			}
			r.page(target, at(float64(s)), append(lines, ownLine("gpupilot_x", float64(s), "node", node))...)
		}
	}
	web := r.windows.Target("web", series.TargetLabels{Namespace: "ns-1", Pod: "p-1", Node: "n1"})
	r.page(web, at(58), ownLine("requests_total", 7, "namespace", "ns-1", "pod", "p-1"))
	r.now = at(60)
	return r
}

// The newest values of an instant query are those of a range of one step, which are read
// in another way.
func TestAnInstantIsARangeOfOneStep(t *testing.T) {
	r := busy(t)
	f := func(query string, when time.Time) {
		t.Helper()
		want := r.ranged(query, when, when, time.Second)
		want = strings.ReplaceAll(want, " =>\n", " => ")
		lines := strings.Split(want, "\n")
		slices.Sort(lines)
		if d := cmp.Diff(strings.Join(lines, "\n"), r.instant(query, when)); d != "" {
			t.Errorf("%s at +%s: (-range +instant)\n%s", query, when.Sub(start), d)
		}
	}
	for _, query := range []string{
		`DCGM_FI_DEV_GPU_UTIL`, `dcgm_gpu_utilization`, `DCGM_FI_DEV_GPU_UTIL_RATIO{node="n1"}`, `up`, `gpupilot_x`, `kube_pod_labels`, `kube_pod_status_phase{phase="Running"}`,
		`{__name__=~"DCGM.*|up"}`, `sum by(namespace)(DCGM_FI_DEV_GPU_UTIL)`, `requests_total`,
	} {
		for s := range 140 {
			f(query, at(float64(s)/2))
		}
	}
}

// An instant query gets no series whose newest value is too old.
func TestAnInstantHasNoOldSeries(t *testing.T) {
	r := busy(t)
	f := func(to time.Time, want int) {
		t.Helper()
		hints := &storage.SelectHints{Start: msOf(to.Add(-DefaultLookback)) + 1, End: msOf(to)}
		q, _ := r.store.Querier(hints.Start, hints.End)
		n := 0
		for set := q.Select(t.Context(), true, hints, selectorOf(t, "requests_total")...); set.Next(); n++ {
			it := set.At().Iterator(nil)
			if it.Next() != chunkenc.ValFloat || it.AtT() != msOf(at(58)) || it.Next() != chunkenc.ValNone {
				t.Errorf("at +%s the series has other samples", to.Sub(start))
			}
		}
		if n != want {
			t.Errorf("at +%s there are %d series, want %d", to.Sub(start), n, want)
		}
	}
	f(at(57.999), 0)
	f(at(58), 1)
	f(at(63), 1)
	f(at(63.001), 0)
}

// A selector finds what a walk over all series finds: the index leaves nothing out.
func TestTheIndexFindsWhatAWalkFinds(t *testing.T) {
	r := busy(t)
	q, err := r.store.Querier(msOf(at(0)), msOf(at(60)))
	if err != nil {
		t.Fatal(err)
	}
	hints := &storage.SelectHints{Start: msOf(at(0)), End: msOf(at(60)), Func: "series"}
	read := func(sorted bool, matchers ...*labels.Matcher) (out []string) {
		for set := q.Select(t.Context(), sorted, hints, matchers...); set.Next(); {
			text := set.At().Labels().String()
			for it := set.At().Iterator(nil); it.Next() != chunkenc.ValNone; {
				stamp, v := it.At()
				text += fmt.Sprintf(" %d:%v", stamp, v)
			}
			out = append(out, text)
		}
		return out
	}
	walk := func(label string) (all []labels.Labels) {
		for set := q.Select(t.Context(), true, hints, selectorOf(t, `{__name__=~".+",`+label+`=~".*"}`)...); set.Next(); {
			all = append(all, set.At().Labels())
		}
		return all
	}
	all := walk("namespace")
	both := walk("exported_namespace") // with the owners under both names
	if !slices.IsSortedFunc(all, labels.Compare) || len(all) < 50 {
		t.Fatalf("%d series, sorted %v", len(all), slices.IsSortedFunc(all, labels.Compare))
	}
	for _, text := range []string{
		`namespace="ns-0"`, `namespace=~"ns-0|ns-1"`, `namespace=""`, `namespace!="ns-0"`, `namespace=~""`, `namespace=~"ns-.*"`, `namespace=~"|ns-1"`, `namespace!~"ns-1"`,
		`pod="p-1"`, `pod=~"p-1|p-2|none"`, `pod="none"`, `node="n1"`, `node=~"n1|n2"`, `node="n1",namespace="ns-1"`, `namespace=~"ns-0|ns-1",pod="p-4"`,
		`exported_pod="p-0"`, `exported_namespace!=""`, `exported_namespace=~"ns-0|ns-1",exported_pod!="p-1"`, `exported_pod=""`, `exported_pod="p-4",namespace="ns-1"`, `contradicted_pod!=""`, `label_app="app-1"`, `label_app=~"app-1|app-2"`, `label_app=~"app-1|app-2",namespace="ns-0"`, `label_app!="app-1",pod!=""`,
		`gpu="1",namespace="ns-1"`, `phase="Running",pod=~"p-3|p-4"`,
	} {
		for _, name := range []string{"", "up", "DCGM_FI_DEV_GPU_UTIL", "kube_pod_labels", "kube_pod_info", "requests_total"} {
			matchers := selectorOf(t, `{`+text+`,__name__=~".+"}`)
			if name != "" {
				matchers = selectorOf(t, name+`{`+text+`}`)
			}
			of := all
			if strings.Contains(text, "exported_") {
				of = both
			}
			var want []string
			names, pods := map[string]struct{}{}, map[string]struct{}{}
			for _, l := range of {
				if slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(l.Get(m.Name)) }) {
					continue
				}
				want = append(want, l.String())
				l.Range(func(p labels.Label) { names[p.Name] = struct{}{} })
				if l.Has("pod") {
					pods[l.Get("pod")] = struct{}{}
				}
			}
			ordered, unordered := read(true, matchers...), read(false, matchers...)
			got := make([]string, len(ordered))
			for i, x := range ordered {
				got[i] = x[:strings.Index(x, "}")+1]
			}
			if d := cmp.Diff(want, got, cmp.Transformer("empty", func(x []string) []string { return append([]string{}, x...) })); d != "" {
				t.Errorf("%s{%s}: (-walk +index)\n%s", name, text, d)
			}
			slices.Sort(ordered)
			if slices.Sort(unordered); !slices.Equal(ordered, unordered) {
				t.Errorf("%s{%s}: sorted are other series", name, text)
			}
			gotNames, _, err := q.LabelNames(t.Context(), nil, matchers...)
			if d := cmp.Diff(sortedSet(names, nil), gotNames); err != nil || d != "" {
				t.Errorf("%s{%s}: the names of labels: %v (-walk +index)\n%s", name, text, err, d)
			}
			gotPods, _, err := q.LabelValues(t.Context(), "pod", &storage.LabelHints{Limit: 2}, matchers...)
			if d := cmp.Diff(sortedSet(pods, &storage.LabelHints{Limit: 2}), gotPods); err != nil || d != "" || len(gotPods) > 2 {
				t.Errorf("%s{%s}: two pods: %v (-walk +index)\n%s", name, text, err, d)
			}
		}
	}
}

func selectorOf(t *testing.T, text string) []*labels.Matcher {
	t.Helper()
	m, err := parser.NewParser(parser.Options{}).ParseMetricSelector(text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A query that is cancelled ends, however many targets there are.
func TestACancelledSelectionEnds(t *testing.T) {
	r := newRig(t)
	for i := range 600 {
		n := r.windows.Target(fmt.Sprint(i), series.TargetLabels{Node: fmt.Sprint(i)})
		r.page(n, at(0), ownLine("x", 1, "node", fmt.Sprint(i)))
	}
	r.now = at(1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	q, _ := r.store.Querier(msOf(at(0)), msOf(at(1)))
	for _, text := range []string{`x`, `up`, `{__name__=~"x.*"}`} {
		set := q.Select(ctx, false, nil, selectorOf(t, text)...)
		if set.Next() || set.Err() == nil {
			t.Errorf("%s: %v", text, set.Err())
		}
		if _, _, err := q.LabelNames(ctx, nil, selectorOf(t, text)...); err == nil {
			t.Errorf("the names of labels of %s are read to the end", text)
		}
	}
}
