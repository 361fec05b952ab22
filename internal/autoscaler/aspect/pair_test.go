// SPDX-License-Identifier: Apache-2.0

package aspect

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/facts"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

var now = time.Unix(1_000_000, 0)

func key(name string) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: name} }

// index has the pairs "a>b" (a names b) and objects without one.
func index(pairs ...string) *Pairs {
	x := &Pairs{}
	for _, p := range pairs {
		name, with, _ := strings.Cut(p, ">")
		pair := policy.Pair{With: with}
		if with != "" {
			pair.Least, pair.Most = 0.5, 2
		}
		x.Set(key(name), pair, false)
		x.publishAsIs(key(name), int32(len(name)), now)
	}
	return x
}

func TestPartners(t *testing.T) {
	f := func(pairs, of, with string, perPartner float64, problem string) {
		t.Helper()
		p := index(strings.Fields(pairs)...).of(key(of))
		switch {
		case with == "" && problem == "":
			if p != nil {
				t.Errorf("%s: %s has the partner %+v", pairs, of, p)
			}
			return
		case p == nil:
			t.Errorf("%s: %s has no partner", pairs, of)
			return
		}
		c := p.condition(&scale.Decision{})
		if p.pair.With != with || p.pair.PerPartner != perPartner || problem != "" && c.Reason != problem || problem == "" && c.Reason != v1alpha1.ReasonPairKept {
			t.Errorf("%s: %s has %+v, condition %s: %s", pairs, of, p.pair, c.Reason, c.Message)
		}
		if with != "" && p.wants.Value != float64(len(with)) {
			t.Errorf("%s: the partner of %s wants %v", pairs, of, p.wants)
		}
	}
	const none, notFound = v1alpha1.ReasonPairAmbiguous, v1alpha1.ReasonPairNotFound
	f("prefill>decode decode", "prefill", "decode", 0.5, "")
	f("prefill>decode decode", "decode", "prefill", 0.5, "") // 1 ÷ max
	f("prefill>decode decode other", "other", "", 0, "")
	f("prefill>decode", "prefill", "", 0, notFound)
	f("a>a", "a", "", 0, none)
	for _, name := range []string{"a", "b"} {
		f("a>b b>a", name, "", 0, none)
	}
	for _, name := range []string{"a", "b", "c"} {
		f("a>b b>c c", name, "", 0, none)
		f("a>c b>c c", name, "", 0, none)
		f("a>b b>c c>a", name, "", 0, none)
	}
	// A pair elsewhere is none of its business.
	x := index("a>b", "b")
	x.Set(types.NamespacedName{Namespace: "hostile", Name: "evil"}, policy.Pair{With: "b", Most: 0.001}, false)
	if p := x.of(key("b")); p == nil || p.pair.With != "a" {
		t.Errorf("of another namespace: %+v", p)
	}
	x.Set(key("a"), policy.Pair{}, true)
	if p := x.of(key("b")); p != nil {
		t.Errorf("of a deleted partner: %+v", p)
	}
}

// What a partner learns is what the own signals ask for within the bounds, not what the pair
// made of it: else two would hold each other up for ever.
func TestPublished(t *testing.T) {
	f := func(want float64, what string, own, decided, current int32, advises bool) {
		t.Helper()
		x := index("a>b", "b")
		x.publish(key("a"), &scale.Policy{Min: 2, Max: 10}, &scale.Decision{Own: own, Replicas: decided, Current: current, Time: now}, advises)
		if got := x.of(key("b")).wants; got.Value != want || !got.OK || !got.At.Equal(now) {
			t.Errorf("%s: %+v, want %v", what, got, want)
		}
	}
	f(3, "its own signals", 3, 8, 8, false)
	f(2, "minReplicas", 0, 8, 8, false)
	f(10, "maxReplicas", 20, 10, 8, false)
	f(0, "set to 0 by hand", 5, 0, 0, false)
	f(8, "advice only", 3, 3, 8, true)
}

// An object that a thousand others name is told few of them, and costs others nothing.
func TestManyNameOne(t *testing.T) {
	x := index("z")
	for i := range 1000 {
		x.Set(key(fmt.Sprintf("%s%03d", strings.Repeat("n", 250), i)), policy.Pair{With: "z", Least: 1}, false)
	}
	for _, name := range []string{"z", strings.Repeat("n", 250) + "999"} {
		p := x.of(key(name))
		if c := p.condition(nil); c.Reason != v1alpha1.ReasonPairAmbiguous || len(c.Message) > 2000 || !strings.Contains(c.Message, "000, ") || !strings.Contains(c.Message, " and more do so") {
			t.Errorf("%s has %s: %s", name, c.Reason, c.Message)
		}
	}
	for i := range 1000 {
		x.Set(key(fmt.Sprintf("%s%03d", strings.Repeat("n", 250), i)), policy.Pair{}, i%2 == 0)
	}
	if p := x.of(key("z")); p != nil || len(x.named) > 0 {
		t.Errorf("nobody names it any more: %+v, %d", p, len(x.named))
	}
}

func BenchmarkOf(b *testing.B) {
	x := &Pairs{}
	for i := range 10000 {
		x.Set(key(fmt.Sprint("a", i)), policy.Pair{}, false)
	}
	x.Set(key("b"), policy.Pair{With: "a1", Least: 1}, false)
	for b.Loop() {
		if x.of(key("a0")) != nil || x.of(key("b")) == nil {
			b.Fatal("wrong partners")
		}
	}
}

func TestPairCondition(t *testing.T) {
	p := index("a>b", "b").of(key("a"))
	f := func(reason string, d *scale.Decision) {
		t.Helper()
		if c := p.condition(d); c.Reason != reason || !strings.Contains(c.Message, "with b, 0.5 to 2 for 1") {
			t.Errorf("%s: %s, want %s", c.Reason, c.Message, reason)
		}
	}
	raised := scale.Step{Rule: scale.RulePair, Before: 1, After: 8}
	f(v1alpha1.ReasonPairKept, &scale.Decision{Replicas: 3})
	f(v1alpha1.ReasonPairKept, &scale.Decision{Replicas: 8, Steps: []scale.Step{raised}})
	f(v1alpha1.ReasonPairBounded, &scale.Decision{Replicas: 4, Steps: []scale.Step{raised}})
	f(v1alpha1.ReasonPairUnknown, &scale.Decision{Replicas: 4, Steps: []scale.Step{{Rule: scale.RulePair, After: 4, Facts: facts.PairUnknown("x")}}})
	if names := strings.Fields("x>z y>z z"); !slices.ContainsFunc(names, func(string) bool {
		return strings.Contains(index(names...).of(key("z")).condition(nil).Message, "x, y do so")
	}) {
		t.Error("nothing names the members")
	}
}
