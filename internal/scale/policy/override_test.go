// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"
	"time"
)

func TestOverride(t *testing.T) {
	now := time.Date(2026, 11, 24, 14, 0, 0, 0, time.UTC)
	f := func(override string, at time.Time, low, high int32, up, down string) {
		t.Helper()
		c, err := Compile(autoscaler(t, minimal+"minReplicas: 2\noverride: {"+override+`, until: "2026-11-24T19:00:00+01:00", reason: " incident\n4711"}`))
		if err != nil {
			t.Fatal(err)
		}
		p := c.Policy
		c.Apply(&p, at, time.Time{})
		if p.Min != low || p.Max != high || p.InForce.Up.Text != up || p.InForce.Down.Text != down {
			t.Errorf("%s at %v: %d to %d, up %q, down %q", override, at, p.Min, p.Max, p.InForce.Up.Text, p.InForce.Down.Text)
		}
		if c.Policy.Min != 2 || c.Policy.Max != 8 {
			t.Error("it changed the bounds of the spec")
		}
	}
	const by = "override until 2026-11-24 18:00 UTC (incident 4711)"
	f("replicas: 6", now, 6, 6, "", "")
	f("replicas: 20", now, 20, 20, "", "")
	f("replicas: 0", now, 0, 0, "", "")
	f("minReplicas: 4", now, 4, 8, "", "")
	f("minReplicas: 9", now, 9, 9, "", "")
	f("maxReplicas: 4", now, 2, 4, "", "")
	f("maxReplicas: 1", now, 1, 1, "", "")
	f("freeze: Up", now, 2, 8, "no scale-up, "+by, "")
	f("freeze: Down", now, 2, 8, "", "no scale-down, "+by)
	f("freeze: Both", now, 2, 8, "no change, "+by, "no change, "+by)
	f("replicas: 6", now.Add(4*time.Hour-time.Nanosecond), 6, 6, "", "")
	f("replicas: 6", now.Add(4*time.Hour), 2, 8, "", "")
	f("replicas: 6", now.Add(-31*24*time.Hour), 2, 8, "", "") // too long
}

func TestOverrideState(t *testing.T) {
	now := time.Date(2026, 11, 24, 14, 0, 0, 0, time.UTC)
	o := Override{Until: now.Add(LongestOverride), What: "6 replicas"}
	f := func(want OverrideState, at, since time.Time) {
		t.Helper()
		if got := o.StateAt(at, since); got != want {
			t.Errorf("at %v since %v: %d, want %d", at, since, got, want)
		}
	}
	f(Overridden, now, time.Time{})
	f(Overridden, now.Add(time.Hour), now)
	f(OverrideTooLong, now.Add(-time.Second), time.Time{})
	f(OverrideTooLong, now.Add(24*time.Hour), now.Add(-time.Second)) // it was too long when it was written
	f(OverrideEnded, now.Add(LongestOverride), now)
	f(Overridden, now.Add(time.Hour), now) // the clock went back
	o = Override{}
	f(NoOverride, now, now)
}

func TestBadOverrides(t *testing.T) {
	f := func(override string, want ...string) {
		t.Helper()
		_, err := Compile(autoscaler(t, minimal+"override: {"+override+"}"))
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: error %v, want it to say %q", override, err, w)
			}
		}
	}
	const end = `, until: "2026-11-24T18:00:00Z", reason: x`
	f("replicas: 1, minReplicas: 2"+end, "spec.override", "exactly one of replicas")
	f("freeze: Up, maxReplicas: 2"+end, "exactly one of replicas")
	f(`until: "2026-11-24T18:00:00Z", reason: x`, "exactly one of replicas")
	f("replicas: -1"+end, "spec.override.replicas", "must not be negative")
	f("freeze: In"+end, "spec.override.freeze", "Down")
	f(`replicas: 1, until: "2026-11-24T18:00:00Z", reason: " "`, "spec.override.reason")
	f(`replicas: 1, reason: x`, "spec.override.until")
	_, err := Parse("x", []byte(`{kind: GPUAutoscaler, spec: {maxReplicas: 2, override: {replicas: 1, until: "18:00", reason: x}, signals: [{gpu: {metric: Utilization}, target: {value: "60"}}]}}`))
	if err == nil || !strings.Contains(err.Error(), `spec.override.until: Invalid value: "18:00": want a time`) {
		t.Errorf("a time without a date: %v", err)
	}
}

// An override that asks for replicas ends a zero that somebody set; others do not.
func TestOverrideOfZero(t *testing.T) {
	now := time.Date(2026, 11, 24, 14, 0, 0, 0, time.UTC)
	f := func(more string, want bool) {
		t.Helper()
		c, err := Compile(autoscaler(t, minimal+more))
		if err != nil {
			t.Fatal(err)
		}
		p := c.Policy
		c.Apply(&p, now, now)
		if p.KeepZero != want {
			t.Errorf("%s: keeps zero: %v", more, p.KeepZero)
		}
	}
	const end = `, until: "2026-11-24T18:00:00Z", reason: x}`
	f("", true)
	f("actuation: Advise", false) // another autoscaler scales it, also from zero
	f("override: {replicas: 2"+end, false)
	f("override: {minReplicas: 1"+end, false)
	f("override: {replicas: 0"+end, true)
	f("override: {maxReplicas: 1"+end, true)
	f("override: {freeze: Down"+end, true)
}
