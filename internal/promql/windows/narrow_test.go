// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

func TestNarrowSelectsThePodsOfTheOtherSide(t *testing.T) {
	r := newRig(t)
	r.pods.add("ml", "a", "n1", map[string]string{"app": "x"})
	r.pods.add("ml", "b", "n1", map[string]string{"app": "x"})
	r.pods.add("ml", "c", "n1", map[string]string{"app": "y"})
	r.now = at(1)
	f := func(in, want string) {
		t.Helper()
		got, err := r.store.Narrow(t.Context(), r.store, in, at(0), at(1))
		if err != nil || got != want {
			t.Errorf("Narrow(%s)\n got %s (%v)\nwant %s", in, got, err, want)
		}
	}
	f(`util * on (pod) group_left (label_app) kube_pod_labels{label_app="y"}`,
		`util{pod="c"} * on (pod) group_left (label_app) kube_pod_labels{label_app="y"}`)
	f(`max by (pod) (util) * on (pod) group_left () max by (pod) (kube_pod_labels{label_app="x"})`,
		`max by (pod) (util{pod=~"a|b"}) * on (pod) group_left () max by (pod) (kube_pod_labels{label_app="x"})`)
	f(`util and on (pod) kube_pod_labels{label_app="y"}`, `util{pod="c"} and on (pod) kube_pod_labels{label_app="y"}`)
	for _, same := range []string{
		`util`,
		`util unless on (pod) kube_pod_labels{label_app="y"}`,
		`util or on (pod) kube_pod_labels{label_app="y"}`,
		`util * on (pod) kube_pod_labels{label_app="y"}`, // several series of a pod are an error
		`util * on (namespace) group_left () kube_pod_labels{label_app="y"}`,
		`util * ignoring (pod) group_left () kube_pod_labels{label_app="y"}`,
		`util offset 5m * on (pod) group_left () kube_pod_labels{label_app="y"}`,
		`util * on (pod) group_left () kube_pod_labels{label_app="y"} offset 5m`,
		`sum(util) * on (pod) group_left () kube_pod_labels{label_app="y"}`,
		`topk by (pod) (1, util) * on (pod) group_left () kube_pod_labels{label_app="y"}`,
		`max_over_time((util * on (pod) group_left () kube_pod_labels{label_app="y"})[5m:])`,
		`kube_pod_info * on (pod) group_left () kube_pod_labels{label_app="y"}`,
		`util * on (pod) group_left () kube_pod_labels{label_app="nobody"}`,
	} {
		f(same, same)
	}
}

func TestUsedNamesExpire(t *testing.T) {
	r := newRig(t)
	var got []string
	all := true
	s := New(Config{Keep: KeepUsed}, Deps{Windows: r.windows, SetNames: func(a bool, names []string, _ map[string][]string) { all, got = a, names }})
	s.now = func() time.Time { return r.now }
	s.Want("a", "b")
	s.Hold("rules", []string{"c"})
	s.check(r.now)
	if all || len(got) != 3 {
		t.Errorf("kept are %v, all: %v", got, all)
	}
	r.now = at(400)
	s.Want("b")
	r.now = at(700)
	s.check(r.now)
	if len(got) != 2 || got[0] != "b" || got[1] != "c" {
		t.Errorf("after 10 minutes, %v are kept", got)
	}
	s.Hold("rules", nil)
	s.check(r.now)
	if len(got) != 1 {
		t.Errorf("without rules, %v are kept", got)
	}
	// A tenant whose queries name many metrics has its share, and others have theirs.
	for i := range 2 * maxWantedEach {
		s.WantFor(fair.Namespace("greedy"), nil, fmt.Sprint("greedy", i))
	}
	s.WantFor(fair.Namespace("modest"), nil, "requests")
	if n := len(s.wanted.last); n != maxWantedEach+2 || !s.wanted.has("requests") || s.wanted.has(fmt.Sprint("greedy", maxWantedEach)) {
		t.Errorf("%d names are wanted", n)
	}
	for i := range 2 * maxWanted {
		s.WantFor(fair.Namespace(fmt.Sprint(i)), nil, fmt.Sprint("of", i))
	}
	if n := len(s.wanted.last); n != maxWanted {
		t.Errorf("%d names are wanted", n)
	}
	r.now = at(1400)
	if s.check(r.now); len(s.wanted.last)+len(s.wanted.shares) != 0 {
		t.Errorf("%d names of %d payers are wanted after 10 minutes", len(s.wanted.last), len(s.wanted.shares))
	}
}

// Pages whose labels would make full windows take more than half of the memory are not
// read in as a whole first, although the first ones that come in are few.
func TestSeriesAreCountedBeforeTheyAreKept(t *testing.T) {
	windows := series.New(series.Config{MaxBytes: 64 << 20})
	lines, all := 0, true
	s := New(Config{}, Deps{Windows: windows, Lines: func() int { return lines }, SetNames: func(a bool, _ []string, _ map[string][]string) { all = a }})
	for _, c := range []struct {
		lines int
		want  bool
	}{{0, false}, {0, false}, {100, false}, {150, false}, {152, true}, {300, true}} {
		lines = c.lines
		if s.check(start); all != c.want {
			t.Errorf("with %d lines, all are kept: %t", c.lines, all)
		}
	}
	s = New(Config{}, Deps{Windows: windows, Lines: func() int { return lines }, SetNames: func(a bool, _ []string, _ map[string][]string) { all = a }})
	for _, lines = range []int{0, 100, 40_000, 100_000, 100_000, 100_000} {
		if s.check(start); all {
			t.Errorf("with %d of 100,000 lines that 64 MiB have no room for, all are kept", lines)
		}
	}
}

func TestAllSeriesAreKeptWhileTheyAreFew(t *testing.T) {
	windows := series.New(series.Config{MaxBytes: 1 << 20})
	var all bool
	s := New(Config{}, Deps{Windows: windows, SetNames: func(a bool, _ []string, _ map[string][]string) { all = a }})
	s.check(start)
	if !all {
		t.Error("an empty store does not keep all series")
	}
	for i := range 8 {
		windows.Target(string(rune('a'+i)), series.TargetLabels{}).Account(80 << 10)
	}
	s.check(start)
	if all {
		t.Error("all series are kept with more than half of the memory in use")
	}
	windows.Target("a", series.TargetLabels{}).Account(0)
	windows.Target("b", series.TargetLabels{}).Account(0)
	s.check(start)
	if all {
		t.Error("all series are kept again with the same targets")
	}
	for i := range 4 {
		windows.Drop(string(rune('a' + i)))
	}
	s.check(start)
	if !all {
		t.Error("all series are not kept again after half of the targets left")
	}
}

// What queries of namespaces name is kept of these namespaces only, and they pay for it: not the operator's queries.
func TestNamesAreWantedOfTheNamespacesThatQueriesRead(t *testing.T) {
	r := newRig(t)
	var names []string
	var of map[string][]string
	s := New(Config{Keep: KeepUsed}, Deps{Windows: r.windows, SetNames: func(_ bool, n []string, o map[string][]string) { names, of = n, o }})
	s.now = func() time.Time { return r.now }
	f := func(want string) {
		t.Helper()
		s.publish()
		if got := fmt.Sprint(names, " ", of); got != want {
			t.Errorf("wanted are %s, want %s", got, want)
		}
	}
	s.WantFor(fair.Namespace("a"), []string{"a"}, "x", "y")
	s.WantFor(fair.Namespace("b"), []string{"b"}, "x")
	s.WantFor(fair.Namespace("nobody"), []string{}, "z")
	f("[] map[x:[a b] y:[a] z:[]]")
	s.WantFor(fair.Namespace("a"), []string{"c"}, "y")
	f("[] map[x:[a b] y:[a c] z:[]]")
	s.Want("x")
	f("[x] map[y:[a c] z:[]]")
	r.now = at(601)
	s.WantFor(fair.Namespace("b"), []string{"b"}, "x")
	s.check(r.now)
	f("[] map[x:[b]]")

	r.now = at(1300)
	s.check(r.now)
	var fields []string
	for _, field := range gpu.Fields() {
		fields = append(fields, field.Name)
	}
	s.WantFor(fair.Namespace("a"), []string{"a"}, fields...)
	s.publish()
	if len(of) != page.MaxNamed || len(names) != 0 {
		t.Errorf("a namespace has %d fields kept, want %d", len(of), page.MaxNamed)
	}
	s.WantFor(fair.Operator("some rules"), nil, fields...)
	if s.publish(); len(names) != len(fields) {
		t.Errorf("the operator's queries have %d of %d fields kept", len(names), len(fields))
	}

	// A query whose payer has no room is not kept in the share of another one.
	s.WantFor(fair.Namespace("greedy"), []string{"greedy"}, fields...)
	all, refused := s.wanted.count()
	for _, name := range fields {
		q, err := s.Querier(0, r.now.UnixMilli())
		if err != nil {
			t.Fatal(err)
		}
		for set := q.Select(t.Context(), false, nil, labels.MustNewMatcher(labels.MatchEqual, "__name__", "other_"+name)); set.Next(); {
		}
	}
	if now, again := s.wanted.count(); now != all || again != refused {
		t.Errorf("a read of the storage wants %d names more", now-all)
	}
}
