// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package monitoring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/internal/promql/windows"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/scrape"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/test/promtest"
	"github.com/gpupilot/gpupilot/test/stack"
)

// windowRig is the controller's scraper, windows and PromQL over them.
type windowRig struct{ engine *engine.Engine }

// startWindows scrapes the nodes' agents as the controller does.
func startWindows(t *testing.T, nodes []*node) windowRig {
	t.Helper()
	store := series.New(series.Config{})
	s := scrape.New(scrape.Config{}, scrape.Deps{Client: scrape.NewClient(), Store: store, Log: slog.New(slog.DiscardHandler)})
	q := windows.New(windows.Config{Keep: windows.KeepAll}, windows.Deps{
		Windows: store, SetNames: func(all bool, list []string, of map[string][]string) { s.SetNames(page.NewNames(all, list, of)) },
	})
	var targets []scrape.Target
	for _, n := range nodes {
		u, err := url.Parse(n.agent.URL + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		targets = append(targets, scrape.Target{
			Name: n.name, URL: *u, Kind: scrape.Agent, Labels: series.TargetLabels{Node: n.name, Instance: u.Host, Job: n.name},
		})
	}
	s.Sync(targets)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	go q.Run(ctx)
	t.Cleanup(func() { cancel(); <-done })
	return windowRig{engine.New(engine.Config{Lookback: windows.DefaultLookback, Want: q.WantFor}, q)}
}

// points are the values of one series by time in ms.
type points map[int64]float64

// answer is the result of a query by the series' labels.
type answer map[string]points

func (w windowRig) query(expr string, from, to time.Time, step time.Duration) (answer, error) {
	out := answer{}
	add := func(l labels.Labels, at int64, v float64) {
		if out[l.String()] == nil {
			out[l.String()] = points{}
		}
		out[l.String()][at] = v
	}
	if from.Equal(to) {
		v, _, err := w.engine.Instant(context.Background(), engine.Query{PromQL: expr}, to)
		switch v := v.(type) {
		case promql.Vector:
			for _, s := range v {
				add(s.Metric, s.T, s.F)
			}
		case promql.Scalar:
			add(labels.EmptyLabels(), v.T, v.V)
		}
		return out, err
	}
	m, _, err := w.engine.Range(context.Background(), engine.Query{PromQL: expr}, from, to, step)
	for _, s := range m {
		for _, p := range s.Floats {
			add(s.Metric, p.T, p.F)
		}
	}
	return out, err
}

// read asks a Prometheus as windowRig.query does.
func (s server) read(expr string, from, to time.Time, step time.Duration) (answer, error) {
	path, form := "/api/v1/query", url.Values{"query": {expr}, "time": {seconds(to)}}
	if !from.Equal(to) {
		path, form = "/api/v1/query_range", url.Values{"query": {expr}, "start": {seconds(from)}, "end": {seconds(to)}, "step": {step.String()}}
	}
	resp, err := http.PostForm(s.address+path, form)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var body struct {
		Error string
		Data  struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil || body.Error != "" {
		return nil, fmt.Errorf("%s (%w)", body.Error, err)
	}
	out := answer{}
	if body.Data.ResultType == "scalar" {
		var v [2]any
		if err := json.Unmarshal(body.Data.Result, &v); err != nil {
			return nil, err
		}
		out[labels.EmptyLabels().String()] = pointsOf([][2]any{v})
		return out, nil
	}
	var list []struct {
		Metric map[string]string
		Value  [2]any
		Values [][2]any
	}
	if err := json.Unmarshal(body.Data.Result, &list); err != nil {
		return nil, err
	}
	for _, x := range list {
		if x.Values == nil {
			x.Values = [][2]any{x.Value}
		}
		out[labels.FromMap(x.Metric).String()] = pointsOf(x.Values)
	}
	return out, nil
}

func pointsOf(list [][2]any) points {
	out := points{}
	for _, p := range list {
		at, _ := p[0].(float64)
		text, _ := p[1].(string)
		v, err := strconv.ParseFloat(text, 64)
		if err == nil {
			out[int64(math.Round(at*1000))] = v
		}
	}
	return out
}

func seconds(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }

// differences lists how two answers differ. Values may differ by a share of the larger.
func differences(ours, theirs answer, tolerance float64) (out []string) {
	for l := range theirs {
		if ours[l] == nil {
			out = append(out, "missing "+l)
		}
	}
	for l, got := range ours {
		want := theirs[l]
		if want == nil {
			out = append(out, "only ours "+l)
			continue
		}
		for at, v := range want {
			x, ok := got[at]
			if !ok {
				out = append(out, fmt.Sprintf("no value at %d of %s", at, l))
			} else if math.IsNaN(x) != math.IsNaN(v) || math.Abs(x-v) > tolerance*max(math.Abs(x), math.Abs(v)) {
				out = append(out, fmt.Sprintf("%v, not %v, at %d of %s", x, v, at, l))
			}
		}
		for at := range got {
			if _, ok := want[at]; !ok {
				out = append(out, fmt.Sprintf("a value only of ours at %d of %s", at, l))
			}
		}
	}
	slices.Sort(out)
	return out
}

// exact is the difference of float32, in which the windows keep gauges.
const exact = 1e-6

// The same agents, scraped by a Prometheus and by the controller's scraper, give the
// same answers. Each query is asked at the same time of both.
func TestTheAnswersAreThoseOfAPrometheus(t *testing.T) {
	nodes := []*node{
		{name: "n48", profile: names.Profile48}, {name: "n49", profile: names.Profile49}, {name: "n1x", profile: names.Profile1x},
	}
	config := "global: {scrape_interval: 1s}\nscrape_configs:\n"
	for i, n := range nodes {
		startNode(t, i, n)
		config += fmt.Sprintf("- job_name: %q\n  static_configs: [{targets: [%q], labels: {node: %s}}]\n", n.name, strings.TrimPrefix(n.agent.URL, "http://"), n.name)
	}
	p := server{promtest.Start(t, config)}
	w := startWindows(t, nodes)
	const before = `count(count_over_time(gpupilot_backend_up[1m]) >= 5) == 3`
	p.await(t, "values before the fault", before)
	w.await(t, before)
	for i, n := range nodes {
		n.set(t, broken(i))
	}
	// Longer than the ranges of the panels, so that they do not depend on who began first.
	const history = `count(gpupilot_backend_up offset 80s) == 3`
	w.await(t, history)
	p.await(t, "a history", history)

	all := append(panelsOfAgents(t, nodes), rulesOfAgents(t, nodes)...)
	for _, q := range moreQueries() {
		all = append(all, named{q, ofProfile(t, q, nodes)})
	}
	compared, found, loosely, ticks := 0, 0, 0, 0
	for _, q := range all {
		tolerance := toleranceOf(t, q.expr)
		for _, length := range []time.Duration{0, 10 * time.Second} {
			var n int
			var shifted bool
			var diff []string
			err := stack.Await(t.Context(), stack.Patience, func() error { // until a scrape that one of them missed has left the ranges
				if n, shifted, diff = compareOnce(t, p, w, q.expr, length, tolerance); diff != nil {
					return errors.New(strings.Join(diff[:min(len(diff), 6)], "\n  "))
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s over %v:\n%s\n  %v", q.name, length, q.expr, err)
			}
			if shifted {
				ticks++
			}
			compared++
			if tolerance != exact {
				loosely++
			}
			found += min(n, 1)
		}
	}
	t.Logf("%d queries, %d answers compared, %d of them with series; %d within %v, the others within %v; %d need the skew of a tick", len(all), compared, found, loosely, loose, exact, ticks)
	if found < 150 {
		t.Errorf("only %d answers have series", found)
	}
}

// compareOnce asks both. A value that changes is as old as the scrape that has read it, in both: shifted reports that a
// value of Prometheus is one of the windows' within the time between two scrapes, not that of the same second.
func compareOnce(t *testing.T, p server, w windowRig, expr string, length time.Duration, tolerance float64) (series int, shifted bool, diff []string) {
	t.Helper()
	between := max(longestGap(t, p.read), longestGap(t, w.query))
	to := time.Now().Add(-between - 2*time.Second).Truncate(time.Millisecond)
	from := to.Add(-length)
	theirs, err := p.read(expr, from, to, time.Second)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	ours, err := w.query(expr, from, to, time.Second)
	if err != nil {
		return 0, false, []string{err.Error()}
	}
	if diff = differences(ours, theirs, tolerance); diff == nil {
		return len(theirs), false, nil
	}
	around := []answer{ours}
	for back := -between; back <= between+time.Second; back += time.Second {
		x, err := w.query(expr, from.Add(-back), to.Add(-back), time.Second)
		if err != nil {
			return 0, false, []string{err.Error()}
		}
		around = append(around, x.later(back))
	}
	if explained(around, theirs, tolerance) {
		return len(theirs), true, nil
	}
	return len(theirs), false, diff
}

// longestGap is the longest time between two scrapes of a target within the last half minute, in whole seconds.
func longestGap(t *testing.T, query func(expr string, from, to time.Time, step time.Duration) (answer, error)) (longest time.Duration) {
	t.Helper()
	now := time.Now()
	scrapes, err := query("timestamp(up)", now.Add(-30*time.Second), now, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range scrapes {
		times := slices.Sorted(maps.Values(target)) // in seconds
		for i := 1; i < len(times); i++ {
			longest = max(longest, time.Duration(math.Ceil(times[i]-times[i-1]))*time.Second)
		}
	}
	return longest
}

// later returns the answer with later times.
func (a answer) later(by time.Duration) answer {
	out := answer{}
	for l, values := range a {
		out[l] = points{}
		for at, v := range values {
			out[l][at+by.Milliseconds()] = v
		}
	}
	return out
}

// explained reports whether each value lies between those of our answers, and each
// series and value is in one of them if and only if it can be.
func explained(ours []answer, theirs answer, tolerance float64) bool {
	for l, values := range theirs {
		for at, v := range values {
			low, high, found := math.Inf(1), math.Inf(-1), false
			for _, x := range ours {
				if got, ok := x[l][at]; ok {
					low, high, found = min(low, got), max(high, got), true
				}
			}
			slack := tolerance * math.Abs(v)
			if !found || !math.IsNaN(v) && (v < low-slack || v > high+slack) {
				return false
			}
		}
	}
	for l, values := range ours[0] {
		for at := range values {
			_, there := theirs[l][at]
			always := !slices.ContainsFunc(ours, func(x answer) bool { _, ok := x[l][at]; return !ok })
			if !there && always {
				return false
			}
		}
	}
	return true
}

// await waits until a query finds a series.
func (w windowRig) await(t *testing.T, expr string) {
	t.Helper()
	stack.Eventually(t, func() error {
		now := time.Now()
		got, err := w.query(expr, now, now, 0)
		if err == nil && len(got) == 0 {
			err = fmt.Errorf("%s finds nothing in the windows", expr)
		}
		return err
	})
}

// loose is the difference of rates. The samples of the windows have the times of their
// collection, those of Prometheus the times of its scrapes, up to a second later; and
// the ranges of Prometheus 2 include both ends.
const loose = 0.25

// toleranceOf returns how much the values of a query may differ.
func toleranceOf(t *testing.T, expr string) float64 {
	t.Helper()
	if strings.Contains(expr, "time()") {
		return math.Inf(1) // an age: only the label sets are compared
	}
	tolerance := exact
	parser.Inspect(parsed(t, expr), func(n parser.Node, _ []parser.Node) error {
		if c, ok := n.(*parser.Call); ok && slices.Contains([]string{"rate", "increase", "delta", "irate"}, c.Func.Name) {
			tolerance = loose
		}
		return nil
	})
	return tolerance
}

func parsed(t *testing.T, expr string) parser.Expr {
	t.Helper()
	e, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	return e
}

// ofProfile limits the selectors of a field's name to the nodes whose profile has that
// name: the windows find the field on the other nodes too, a Prometheus does not.
func ofProfile(t *testing.T, expr string, nodes []*node) string {
	t.Helper()
	e := parsed(t, expr)
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		v, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		ref, ok := names.Resolve(v.Name)
		if !ok {
			return nil
		}
		var have []string
		for _, n := range nodes {
			f, _ := gpu.Lookup(ref.Field)
			if name, _ := n.profile.Name(f); name == v.Name {
				have = append(have, n.name)
			}
		}
		v.LabelMatchers = append(v.LabelMatchers, labels.MustNewMatcher(labels.MatchRegexp, "node", strings.Join(have, "|")))
		return nil
	})
	return e.String()
}

// moreQueries are queries beside those of the panels and rules.
func moreQueries() []string {
	return []string{
		`up`, `count(up)`, `sum by (job) (up)`, `scrape_samples_scraped`, `count(scrape_duration_seconds)`,
		`DCGM_FI_DEV_GPU_UTIL`, `DCGM_FI_DEV_GPU_UTIL{gpu="3"}`, `DCGM_FI_DEV_GPU_UTIL{gpu!="3"}`, `DCGM_FI_DEV_GPU_UTIL{gpu=~"0|3",node="n48"}`,
		`DCGM_FI_DEV_GPU_UTIL_RATIO`, `DCGM_FI_DEV_GPU_UTIL{pod=""}`, `DCGM_FI_DEV_GPU_UTIL{pod!=""}`,
		`avg by (namespace, pod) (DCGM_FI_DEV_GPU_UTIL)`, `avg by (namespace) (DCGM_FI_DEV_GPU_UTIL{namespace="team"})`, `max without (gpu, UUID) (DCGM_FI_DEV_GPU_UTIL)`,
		`sum(DCGM_FI_DEV_FB_USED) by (node)`, `DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)`,
		`topk(1, DCGM_FI_DEV_GPU_UTIL)`, `count_values("v", DCGM_FI_DEV_GPU_UTIL)`, `quantile(0.9, DCGM_FI_DEV_GPU_UTIL)`, `stddev(DCGM_FI_DEV_GPU_UTIL)`,
		`avg_over_time(DCGM_FI_DEV_GPU_UTIL[10s])`, `max_over_time(DCGM_FI_DEV_GPU_UTIL[10s])`, `min_over_time(DCGM_FI_DEV_FB_USED[10s])`, `quantile_over_time(0.5, DCGM_FI_DEV_GPU_UTIL[10s])`,
		`last_over_time(DCGM_FI_DEV_GPU_UTIL[10s])`, `present_over_time(DCGM_FI_DEV_GPU_UTIL[10s])`, `stddev_over_time(DCGM_FI_DEV_FB_USED[10s])`, `changes(DCGM_FI_DEV_FB_USED[10s])`, `delta(DCGM_FI_DEV_FB_USED[10s])`,
		`avg_over_time(DCGM_FI_DEV_GPU_UTIL[10s:1s])`, `max_over_time(sum(DCGM_FI_DEV_GPU_UTIL)[10s:1s])`,
		`DCGM_FI_DEV_GPU_UTIL offset 5s`, `sum(DCGM_FI_DEV_GPU_UTIL offset 3s)`,
		`DCGM_FI_DEV_GPU_UTIL > 50`, `DCGM_FI_DEV_GPU_UTIL >= bool 50`, `DCGM_FI_DEV_GPU_UTIL == 0 or DCGM_FI_DEV_GPU_UTIL_RATIO == 0`,
		`absent(DCGM_FI_DEV_GPU_UTIL{gpu="9"})`, `absent(DCGM_FI_DEV_GPU_UTIL)`, `absent_over_time(nothing[10s])`,
		`label_replace(DCGM_FI_DEV_GPU_UTIL, "x", "$1", "UUID", "GPU-(.*)")`, `label_join(DCGM_FI_DEV_GPU_UTIL, "y", "-", "node", "gpu")`,
		`{__name__=~"DCGM_FI_DEV_(GPU|MEM_COPY)_UTIL"}`, `count by (__name__) ({__name__=~"DCGM.*", node="n48"})`, `count({node="n49", __name__!="scrape_series_added"})`, `count by (__name__) ({node="n1x", __name__!="scrape_series_added"})`,
		`gpupilot_gpu_allocation_info`, `gpupilot_backend_up`, `gpupilot_device_up`, `gpupilot_collection_interval_seconds`, `count(gpupilot_collection_timestamp_seconds)`,
		`DCGM_FI_DEV_GPU_UTIL * on (UUID) group_left (container) label_replace(gpupilot_gpu_allocation_info, "UUID", "$1", "uuid", "(.*)")`,
		`DCGM_FI_DEV_XID_ERRORS`, `gpupilot_xid_errors_total`, `DCGM_EXP_CLOCK_EVENTS_COUNT`, `dcgm_gpu_utilization{node="n1x"}`, `dcgm_fb_used`,
		`sort_desc(DCGM_FI_DEV_FB_FREE)`, `clamp_max(DCGM_FI_DEV_GPU_UTIL, 10)`, `round(DCGM_FI_DEV_FB_USED / 1024, 0.1)`, `abs(-DCGM_FI_DEV_GPU_UTIL)`, `scalar(sum(DCGM_FI_DEV_GPU_UTIL))`, `vector(1)`,
		`sum(DCGM_FI_DEV_GPU_UTIL) by (node) unless on (node) up{job="n49"}`, `up and on (node) DCGM_FI_DEV_GPU_UTIL`, `group(DCGM_FI_DEV_GPU_UTIL) by (node)`,
	}
}
