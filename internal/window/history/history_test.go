// SPDX-License-Identifier: Apache-2.0

package history

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestNewSignal(t *testing.T) {
	f := func(name, unit, per string, want Metric) {
		t.Helper()
		m := NewSignal(name, unit, per)
		gotName, gotUnit, gotPer, ok := m.Signal()
		if m != want || !m.valid() || !ok || m.Base() != GroupSignal+"/"+Metric(gotName) {
			t.Errorf("NewSignal(%q, %q, %q) is %q (%q, %q, %q, %v), want %q", name, unit, per, m, gotName, gotUnit, gotPer, ok, want)
		}
	}
	f("Utilization", "%", "replica", "signal/Utilization|%|replica")
	f("", "", "", "signal/||")
	f("a|b/c|%|workload", "a|b", "replica", "signal/a|b/c|%|workload|a/b|replica")
	long := strings.Repeat("é", 200)
	f(long, "%", "replica", Metric("signal/"+strings.Repeat("é", 91)+"|%|replica"))
	f("a", long, "replica", Metric("signal/a|"+strings.Repeat("é", 20)+"|replica"))
	f("a\xff", "b\xff", "c", "signal/a|b|c")
}

func FuzzNewSignal(f *testing.F) {
	f.Add("a|b", "%", "replica")
	f.Add("\xff|", "|", "")
	f.Fuzz(func(t *testing.T, name, unit, per string) {
		m := NewSignal(name, unit, per)
		gotName, gotUnit, gotPer, ok := m.Signal()
		if !ok || !m.valid() || strings.Contains(gotUnit+gotPer, "|") {
			t.Fatalf("%q is %q, %q, %q, %v", m, gotName, gotUnit, gotPer, ok)
		}
		if utf8.ValidString(name) && len(name) <= MaxSignal && len(per) <= len("workload") && gotName != name {
			t.Fatalf("the name %q became %q", name, gotName)
		}
	})
}

func TestBaseOfOtherMetrics(t *testing.T) {
	for _, m := range []Metric{"signal/a", "signal/a|b", "requests/a|b|c", "gpu/DCGM_FI_DEV_GPU_UTIL", ""} {
		if got := m.Base(); got != m {
			t.Errorf("the base of %q is %q", m, got)
		}
	}
}
