// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestMetrics(t *testing.T) {
	f := func(want, name string, labels ...string) {
		t.Helper()
		m := NewMetric(name, labels...)
		if string(m) != want || m.Name() != name || !m.valid() {
			t.Errorf("%s %q is %s of %s, want %s", name, labels, m, m.Name(), want)
		}
		if parsed, err := ParseMetric(want); parsed != m || err != nil {
			t.Errorf("%s is parsed as %s, %v", want, parsed, err)
		}
	}
	f("replicas", "replicas")
	f(`replicas{state="serving"}`, "replicas", "state", "serving")
	f(`v{per="replica",signal="a",unit="%"}`, "v", "signal", "a", "unit", "%", "per", "replica")
	f(`v{per="replica"}`, "v", "unit", "", "per", "replica")
	f("v", "v", "unit", "")
	f(`v{signal="a\\b\"} or vector(1) #\n{x=\"1\"}"}`, "v", "signal", "a\\b\"} or vector(1) #\n{x=\"1\"}")
	f(`v{signal="b"}`, "v", "signal", "b\xff")
}

func TestMetricsOfUsersAreParsed(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		m, err := ParseMetric(text)
		got := string(m)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	f(`v{ b="2", a="1" }`, `v{a="1",b="2"}`)
	f(`v{}`, "v")
	f("", "no name of a metric")
	f(`{a="1"}`, "no name of a metric")
	for _, bad := range []string{`v{`, `v{a}`, `v{a=1}`, `v{a="1"`, `v{a="1"}x`, `v{a="1\"}`, `v{="1"}`, `v{a="1"}}`} {
		if m, err := ParseMetric(bad); err == nil || !strings.Contains(err.Error(), `want NAME{LABEL="VALUE",…} instead of`) {
			t.Errorf("%s: %s, %v", bad, m, err)
		}
	}
}

func TestSelects(t *testing.T) {
	f := func(want bool, a, b Metric) {
		t.Helper()
		if a.Selects(b) != want {
			t.Errorf("%s selects %s: %v", a, b, !want)
		}
	}
	f(true, "v", `v{a="1"}`)
	f(true, `v{a="1"}`, `v{a="1",b="2"}`)
	f(true, `v{b="2"}`, `v{a="1",b="2"}`)
	f(false, `v{a="1"}`, "v")
	f(false, `v{a="1"}`, `v{a="2"}`)
	f(false, "v", "vv")
}

// FuzzMetrics: labels come back as they were given, whatever their values are.
func FuzzMetrics(f *testing.F) {
	f.Add("a", "%")
	f.Add(`a\`, `"} or`)
	f.Add("\n\\n", "\xff")
	f.Fuzz(func(t *testing.T, a, b string) {
		m := NewMetric("v", "b", b, "a", a)
		if !utf8.ValidString(string(m)) {
			t.Fatalf("%q", m)
		}
		want := map[string]string{}
		for name, v := range map[string]string{"a": a, "b": b} {
			if v = strings.ToValidUTF8(v, ""); v != "" {
				want[name] = v
			}
		}
		if got := maps.Collect(m.Labels()); !maps.Equal(got, want) {
			t.Fatalf("%s has %q, want %q", m, got, want)
		}
		if parsed, err := ParseMetric(string(m)); parsed != m || err != nil || !m.Selects(m) {
			t.Fatalf("%s is parsed as %s, %v", m, parsed, err)
		}
	})
}

// FuzzParseMetric: what is parsed is a metric, and is parsed as itself.
func FuzzParseMetric(f *testing.F) {
	f.Add(`v{a="1"}`)
	f.Add(`v{a="1",a="2"}`)
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ParseMetric(text)
		if err != nil {
			return
		}
		if again, err := ParseMetric(string(m)); again != m || err != nil {
			t.Fatalf("%q is %q, then %q, %v", text, m, again, err)
		}
		_ = fmt.Sprint(m.Name(), maps.Collect(m.Labels()))
	})
}
