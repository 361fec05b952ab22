// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A source that is removed and comes again while rules are checked is not replaced by the
// version that was checked.
func TestASourceThatComesAgainWhileRulesAreChecked(t *testing.T) {
	r := newRig()
	again := false
	r.deps.Reserved = func(string) bool {
		if !again {
			again = true
			r.Remove("x")
			r.set("x", "a", "groups: [{name: g, rules: [{record: new, expr: vector(2)}]}]")
		}
		return false
	}
	r.set("x", "a", "groups: [{name: g, rules: [{record: old, expr: vector(1)}]}]")
	ctx, cancel := context.WithCancel(t.Context())
	defer func() { cancel(); r.stopAll() }()
	for range 2 {
		r.settle(ctx)
	}
	if got := r.offered["x"].accepted.Groups[0].Rules[0].Record; got != "new" {
		t.Errorf("the rule that runs records %s, want new", got)
	}
}

// While it is decided which rules run, their states can be read: /metrics does.
func TestSettleDoesNotHoldTheLock(t *testing.T) {
	r := newRig()
	looked := false
	r.deps.Reserved = func(string) bool {
		looked = true
		if !r.Manager.mu.TryLock() {
			t.Fatal("the lock is held while rules are checked")
		}
		r.Manager.mu.Unlock()
		return false
	}
	r.set("x", "a", "groups: [{name: g, rules: [{record: a, expr: vector(1)}]}]")
	r.settle(t.Context())
	r.stopAll()
	if !looked {
		t.Error("the rules were not checked")
	}
}

// The selectors of a namespace's rules are paid before they are compared with metrics.
func TestCostOfSelectors(t *testing.T) {
	f := func(what, want string, n int, selector string) {
		t.Helper()
		var rules [][]string
		for i := 0; i < n; i += 50 {
			var all []string
			for j := i; j < min(n, i+50); j++ {
				all = append(all, strings.ReplaceAll(selector, "#", fmt.Sprint(j)))
			}
			rules = append(rules, []string{fmt.Sprint("m", i), strings.Join(all, " + ")})
		}
		a := newAcceptance("namespace", nil)
		err := a.add(sourceOf(t, "x", "a", rules...))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
		if err := a.add(sourceOf(t, "y", "b", []string{"m", "x"})); err != nil {
			t.Errorf("%s: another namespace: %v", what, err)
		}
		if want != "" && a.byNS["a"] != (share{}) {
			t.Errorf("%s: refused rules are charged: %+v", what, a.byNS["a"])
		}
	}
	f("many metrics", "", maxNamespaceCost, "x#")
	f("too many metrics", "would cost 1001; at most 1000", maxNamespaceCost+1, "x#")
	f("a few selectors of many metrics", "", 20, `{__name__=~"vllm:.*",l="#"}`)
	f("many of them", "name the metrics", 200, `{__name__=~"vllm:.*",l="#"}`)
	f("nameless ones", "would cost 1010", 101, `{l="#"}`)
	f("one large expression", "would cost", 1, `{__name__=~"(a|b|c){900}"}`)
	f("expressions of other labels", "", 1, `x{l=~"(a|b|c){900}"}`)
	long := strings.Repeat("r", maxRecord+1)
	if _, err := Parse([]byte("groups: [{name: g, rules: [{record: "+long+", expr: x}]}]"), newRig().engine.Selectors); err == nil {
		t.Error("a name of 257 bytes is recorded")
	}
}

// Of random sources exactly those are refused that complete a cycle, which is searched
// here by the transitive closure of all pairs of rules.
func TestRandomCycles(t *testing.T) {
	refused := 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		a := newAcceptance("namespace", nil)
		var accepted []*Source
		for i := range 6 {
			s := randomSource(t, r, fmt.Sprint("s", i))
			err := a.add(s)
			if err != nil && !strings.Contains(err.Error(), "own results") {
				continue // two rules record the same series
			}
			if cyclic := hasCycle(append(slices.Clone(accepted), s)); cyclic != (err != nil) {
				t.Fatalf("seed %d, source %d: %v, and a cycle: %t", seed, i, err, cyclic)
			}
			if err == nil {
				accepted = append(accepted, s)
			} else {
				refused++
			}
		}
	}
	if refused < 100 {
		t.Errorf("only %d sources were refused", refused)
	}
}

func randomSource(t *testing.T, r *rand.Rand, id string) *Source {
	forms := []string{"m%d", "m%d", `m%d{l="1"}`, `m%d{l!="1"}`, `m%d{l=~"1|3"}`, `{__name__=~"m[0-%d]"}`, `{__name__!="m%d",l="2"}`, "x%d"}
	var rules [][]string
	for range 1 + r.IntN(3) {
		rule := []string{fmt.Sprint("m", r.IntN(8)), fmt.Sprintf(forms[r.IntN(len(forms))], r.IntN(8)) + " + " + fmt.Sprintf(forms[r.IntN(len(forms))], r.IntN(8))}
		if r.IntN(2) == 0 {
			rule = append(rule, fmt.Sprint("l=", 1+r.IntN(3)))
		}
		rules = append(rules, rule)
	}
	return sourceOf(t, id, []string{"", "a", "b"}[r.IntN(3)], rules...)
}

// hasCycle reports whether a rule of the sources reads its own result.
func hasCycle(sources []*Source) bool {
	type node struct {
		namespace string
		*Rule
	}
	var all []node
	for _, s := range sources {
		for i := range s.Groups[0].Rules {
			all = append(all, node{s.Namespace, &s.Groups[0].Rules[i]})
		}
	}
	reads := make([][]bool, len(all))
	for i, x := range all {
		reads[i] = make([]bool, len(all))
		for j, y := range all {
			visible := x.namespace == "" || y.namespace == "" || x.namespace == y.namespace
			reads[i][j] = visible && slices.ContainsFunc(x.selectors, func(selector []*labels.Matcher) bool {
				return !slices.ContainsFunc(selector, func(m *labels.Matcher) bool {
					v, ok := y.Labels[m.Name]
					if m.Name == model.MetricNameLabel {
						v, ok = y.Record, true
					}
					return ok && !m.Matches(v)
				})
			})
		}
	}
	for k := range all {
		for i := range all {
			for j := range all {
				reads[i][j] = reads[i][j] || reads[i][k] && reads[k][j]
			}
		}
	}
	return slices.ContainsFunc(all, func(x node) bool { i := slices.Index(all, x); return reads[i][i] })
}

// A namespace with many large objects that change all the time delays another's by one of
// its objects. Of an object that changes again and again, one version is read.
func TestObjectsTakeTurns(t *testing.T) {
	o := NewObjects(ObjectsConfig{})
	object := func(namespace, name, version string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		u.SetNamespace(namespace)
		u.SetName(name)
		u.SetResourceVersion(version)
		return u
	}
	for i := range 100 {
		o.OnAdd(object("noisy", fmt.Sprint(i%10), fmt.Sprint(i)), false)
	}
	o.OnUpdate(nil, object("quiet", "x", "1"))
	o.OnDelete(object("quiet", "x", "2"))
	read := map[string]int{}
	for i := 0; ; i++ {
		c, ok := o.next()
		if !ok {
			break
		}
		read[c.GetNamespace()]++
		if c.GetNamespace() == "quiet" && (i > 1 || !c.gone || c.GetResourceVersion() != "2") {
			t.Errorf("object %d is the other namespace's, %+v", i, c)
		}
	}
	if read["noisy"] != 10 || read["quiet"] != 1 || len(o.changed)+o.queue.Len() > 0 {
		t.Errorf("read %v, and %d remain", read, len(o.changed))
	}
}
