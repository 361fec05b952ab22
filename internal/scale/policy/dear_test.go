// SPDX-License-Identifier: Apache-2.0

//go:build linux

package policy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/weight"
	"github.com/gpupilot/gpupilot/test/weighttest"
)

// dearFormula makes a formula that costs as much as its text can.
func dearFormula(r *rand.Rand) string {
	var expr func(depth int) string
	expr = func(depth int) string {
		if depth == 0 {
			return []string{"queue.value", "gpu_use.replicas", "1e308", "0.1", "1", "2.5", "3", "queue.replicas", `"x"`, "9223372036854775807"}[r.IntN(9)]
		}
		x := expr(depth - 1)
		n := 1 + r.IntN(1<<r.IntN(9))
		switch r.IntN(8) {
		case 0:
			return strings.Repeat("(", n) + x + strings.Repeat(")", n)
		case 1:
			return x + strings.Repeat([]string{"*", "+", "/", "-", "&&", "=="}[r.IntN(6)]+x, n)
		case 2:
			return strings.Repeat("-", n) + x
		case 3:
			return strings.Repeat("true?", n) + x + strings.Repeat(":"+x, n)
		case 4:
			return strings.Repeat("max(", n) + x + strings.Repeat(","+x+")", n)
		case 5:
			return strings.Repeat("!", n) + x
		case 6:
			return "(" + x + " > 1 ? " + x + " : " + expr(depth-1) + ")"
		default:
			return strings.Repeat("[", n) + x + strings.Repeat("]", n)
		}
	}
	text := expr(r.IntN(5))
	return "queue.value + gpu_use.replicas + (" + text[:min(len(text), 4096)] + ")"
}

func dearCron(r *rand.Rand) string {
	fields := []string{"*", "*/1", "0", "30", "59", "1-5", "*/7", "29", "31", "2", "FEB", "1,2,3,4,5,6,7,8,9", strings.Repeat("1,", 1<<r.IntN(20)) + "1", "9999999999"}
	var out []string
	for range 5 {
		out = append(out, fields[r.IntN(len(fields))])
	}
	if r.IntN(3) == 0 {
		return []string{"0 0 30 2 *", "0 0 29 2 1", "59 23 31 12 0", "*/1 * * * *"}[r.IntN(4)]
	}
	return strings.Join(out, " ")
}

func dearSelector(r *rand.Rand) *metav1.LabelSelector {
	s := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for i := range r.IntN(1 << r.IntN(15)) {
		s.MatchLabels[fmt.Sprint("k", i)] = "v"
	}
	for range r.IntN(1 << r.IntN(5)) {
		e := metav1.LabelSelectorRequirement{Key: "app", Operator: []metav1.LabelSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist"}[r.IntN(4)]}
		for i := range r.IntN(1 << r.IntN(16)) {
			e.Values = append(e.Values, fmt.Sprint(strings.Repeat("v", r.IntN(60)), i))
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

// No program of a GPUAutoscaler costs much before it is refused, or when it runs: once for each object, or for each
// decision and pod.
func TestDearProgramsAreRefused(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	now := time.Date(2026, 2, 28, 23, 59, 0, 0, time.UTC)
	ran := map[string]int{}
	for range 60 {
		a := autoscaler(t, combined)
		a.Spec.Formula = dearFormula(r)
		weighttest.Check(t, "formula: "+a.Spec.Formula, func() {
			if c, err := Compile(a); err == nil {
				ran["formula"]++
				for range 100 {
					_, _ = c.Policy.Formula.Evaluate(make([]float64, len(c.Policy.Formula.Terms)))
				}
			}
		})

		a = autoscaler(t, minimal)
		for i := range 16 {
			least := int32(2 + i%4)
			a.Spec.Schedules = append(a.Spec.Schedules, v1alpha1.Schedule{
				Name: fmt.Sprint("s", i), Cron: dearCron(r), Duration: &metav1.Duration{Duration: longestWindow}, MinReplicas: &least,
				TimeZone: []string{"", "Europe/Berlin", "Africa/Casablanca", "Antarctica/Troll"}[r.IntN(4)],
			})
			if r.IntN(3) > 0 {
				a.Spec.Schedules[i].Cron = "0 0 30 2 *"
			}
		}
		weighttest.Check(t, "schedules: "+a.Spec.Schedules[0].Cron, func() {
			c, err := Compile(a)
			if err != nil {
				return
			}
			ran["schedules"]++
			p := c.Policy
			for i := range 100 {
				c.applySchedules(&p, now.Add(time.Duration(i)*time.Second))
			}
			c.ScheduleProblems(&p, now, 14*24*time.Hour)
		})

		s, text := dearSelector(r), strings.Repeat([]string{"a in (b,c),", "a=b,", "!a,", "(", "a in (", strings.Repeat("v", 1000) + ","}[r.IntN(6)], 1<<r.IntN(17))
		match := func(selector labels.Selector, err error) {
			if err != nil {
				return
			}
			ran["selector"]++
			for i := range 1000 {
				selector.Matches(labels.Set{"app": "v", fmt.Sprint("k", i): "v"})
			}
		}
		weighttest.Check(t, "selector", func() {
			if WeighSelector(s) == nil {
				match(metav1.LabelSelectorAsSelector(s))
			}
		})
		weighttest.Check(t, "selector: "+text, func() { match(ParseSelector(strings.TrimSuffix(text, ","))) })
	}
	for _, kind := range []string{"formula", "schedules", "selector"} {
		if ran[kind] == 0 {
			t.Errorf("no %s ran: the test makes none that is allowed", kind)
		}
	}
}

// Each kind of program is refused above its weight with the field, the value, the limit and what to do.
func TestProgramsAreWeighed(t *testing.T) {
	f := func(change func(*v1alpha1.GPUAutoscalerSpec), kind weight.Kind, want string) {
		t.Helper()
		a := autoscaler(t, combined)
		change(&a.Spec)
		_, err := Compile(a)
		if e, ok := errors.AsType[*weight.Error](err); !ok || e.Kind != kind || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	f(func(s *v1alpha1.GPUAutoscalerSpec) { s.Formula = strings.Repeat("1", 1025) }, weight.Formula,
		"spec.formula: the formula has 1025 bytes; at most 1024 are allowed: use fewer signals or shorter names of them")
	f(func(s *v1alpha1.GPUAutoscalerSpec) {
		s.Schedules = []v1alpha1.Schedule{{Name: "x", Cron: "* * * * " + strings.Repeat("1,", 60)}}
	}, weight.Schedule, "spec.schedules[0].cron: the cron expression has 128 bytes; at most 100 are allowed: use ranges and steps, or several schedules")
	f(func(s *v1alpha1.GPUAutoscalerSpec) {
		s.Signals[1].Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "In", Values: make([]string, 65)}}}
	}, weight.Selector, "spec.signals[1].selector: the selector has 65 labels and values; at most 64 are allowed: select by one label that these objects have in common")
	if _, err := ParseSelector("a in (" + strings.Repeat("b,", 70) + "c)"); err != nil {
		t.Errorf("a set of one value is %v", err)
	}
	if _, err := ParseSelector(strings.Repeat("a,", 9000)); err == nil || !strings.Contains(err.Error(), "the selector has 18000 bytes; at most 16384") {
		t.Errorf("a long text: %v", err)
	}
}
