// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"math"
	"testing"

	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

// promised has replays of an hour in which the policy and the user's HPA miss these
// percentages, for 12 and 20 GPU-hours where an oracle takes 10.
func promised(missed ...float64) (*Study, []Case) {
	s := &Study{Ours: []contender.Entry{
		{Name: "slo", Family: contender.Ours, Objective: 0.98},
		{Name: "mine (HPA)", Family: contender.HPA, Given: true},
	}}
	var cases []Case
	for i, m := range missed {
		cases = append(cases, Case{
			Trace: "a", Seed: uint64(i) + 1, Hours: 1,
			Ours: []Result{
				{Name: "slo", Outcome: service.Outcome{Violations: m, GPUHours: 12}},
				{Name: "mine (HPA)", Outcome: service.Outcome{Violations: 9, GPUHours: 20}},
			},
			References: []Result{
				{Family: contender.OracleSchedule, Outcome: service.Outcome{Violations: 1, GPUHours: 10}},
				{Family: contender.OracleSchedule, Outcome: service.Outcome{Violations: 5, GPUHours: 1}},
			},
		})
	}
	return s, cases
}

func TestPromises(t *testing.T) {
	f := func(missed []float64, verdict, cost, of string) {
		t.Helper()
		s, cases := promised(missed...)
		all := s.Promises(cases)
		if got := all[0].verdict(); got != verdict {
			t.Errorf("%v: %q, want %q", missed, got, verdict)
		}
		if got := all[0].cost(2); got != cost {
			t.Errorf("%v: %q, want %q", missed, got, cost)
		}
		if got := all[1].verdict(); got != of {
			t.Errorf("%v: the HPA %q, want %q", missed, got, of)
		}
	}
	const cost = "8\u202f760 GPU-hours a month, $17\u202f520, 1.20 × the oracle's, 40 % fewer than mine (HPA)"
	f([]float64{0.5}, "keeps 98 %: in 1 of 1 replay, 0.50 % missed", cost, "does not keep 98 %: in 0 of 1 replay, 9.00 % missed")
	f([]float64{1, 2, 1.5}, "keeps 98 %: in 3 of 3 replays, 1.50 % missed (0.26 to 2.74)", cost, "does not keep 98 %: in 0 of 3 replays, 9.00 % missed (9.00 to 9.00)")
	f([]float64{0.1, 2.5}, "keeps 98 % on the mean: in 1 of 2 replays, 1.30 % missed", cost, "does not keep 98 %: in 0 of 2 replays, 9.00 % missed")
	f([]float64{1.9, 4}, "does not keep 98 %: in 1 of 2 replays, 2.95 % missed", cost, "does not keep 98 %: in 0 of 2 replays, 9.00 % missed")
}

// Two replicas of two GPUs take as many GPU-hours a month, however long the warm-up is, in which none are counted.
func TestGPUHoursAMonth(t *testing.T) {
	m := preset(t, "llama-8b")
	for _, seconds := range []int{600, 1800, 5400} {
		s := &Study{
			Traces: []*trace.Trace{steady(t, seconds, 1)}, Models: []service.Model{m}, Startups: []float64{60}, Seeds: 2, Workers: 2,
			Min: 2, Max: 2, Ours: []contender.Entry{contender.Fixed(1)},
		}
		cases, err := s.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got, want := s.Promises(cases)[0].GPUHoursPerMonth, 2*float64(m.GPUs)*730; math.Abs(got/want-1) > 0.002 {
			t.Errorf("a replay of %d s: %.0f GPU-hours a month, want %.0f", seconds, got, want)
		}
	}
}

// The percentiles are those of the usual tables.
func TestStudentT(t *testing.T) {
	for freedom, want := range map[int]float64{1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 30: 2.042, 1000: 1.962} {
		if got := studentT(freedom); math.Abs(got-want) > 0.01 {
			t.Errorf("%d degrees of freedom: %.3f, want %.3f", freedom, got, want)
		}
	}
}

// What to change is a cheaper policy that keeps the objective, a higher maximum, another policy, or what no policy can mend.
func TestChange(t *testing.T) {
	f := func(want string, set func(s *Study, c *Case), missed ...float64) {
		t.Helper()
		s, cases := promised(missed...)
		for i := range cases {
			set(s, &cases[i])
		}
		if got := s.Promises(cases)[0].Change; got != want {
			t.Errorf("%v: %q, want %q", missed, got, want)
		}
	}
	f("nothing", func(*Study, *Case) {}, 1, 1)
	f("use mine (HPA): it keeps 98 % too, for 50 % fewer GPU-hours", func(_ *Study, c *Case) { c.Ours[1].Violations, c.Ours[1].GPUHours = 1, 6 }, 1, 1)
	f("nothing", func(_ *Study, c *Case) { c.Ours[1].Violations, c.Ours[1].GPUHours = 1, 11.9 }, 1, 1) // not worth it
	f("look for a cheaper policy with --advise: the oracle takes 50 % fewer GPU-hours", func(_ *Study, c *Case) { c.Ours[0].GPUHours = 20 }, 1, 1)
	f("use mine (HPA): it keeps 98 %, for 67 % more GPU-hours", func(_ *Study, c *Case) { c.Ours[1].Violations = 1 }, 5, 5)
	f("raise maxReplicas: the replays that missed it were at 4 in 1 of 2", func(s *Study, c *Case) {
		s.Ours[0].Max, c.Ours[0].ReplicasMax = 4, int(5-c.Seed)
	}, 5, 6)
	f("look for a policy that keeps it with --advise", func(s *Study, c *Case) { // of a scaled load the bounds do not count
		s.High, s.Ours[0].Max, c.Ours[0].ReplicasMax = 10, 4, 4
	}, 5, 6)
	f("shorten the starts, raise minReplicas, or allow more: the oracle does not keep it either", func(_ *Study, c *Case) { c.References[0].Violations = 4 }, 5, 6)
	f("look for a policy that keeps it with --advise", func(*Study, *Case) {}, 5, 6)
}
