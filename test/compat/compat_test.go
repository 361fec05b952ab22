// SPDX-License-Identifier: Apache-2.0

package compat

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPageKeepsWhatParsersDrop(t *testing.T) {
	p := parsePage("# HELP a Help, with words.\n# TYPE a gauge\na{z=\"1\",b=\"q\\\"\\\\\\n\"} 1.5\n# TYPE a gauge\nb 2\nc{d=\"x\"y\"} 1\nd{} 3 4\n\n# a comment\n")
	want := page{
		help:   map[string][]string{"a": {"Help, with words."}},
		typ:    map[string][]string{"a": {"gauge", "gauge"}},
		series: []series{{"a", []label{{"z", "1"}, {"b", "q\"\\\n"}}, "1.5"}, {"b", nil, "2"}},
		bad:    []string{"c{d=\"x\"y\"} 1", "d{} 3 4"},
	}
	if diff := cmp.Diff(want, p, cmp.AllowUnexported(page{}, series{}, label{})); diff != "" {
		t.Error(diff)
	}
}

// What is printed of a series is the series.
func FuzzSeries(f *testing.F) {
	f.Add("a", "b", "c", "1")
	f.Add("a", "b", "q\"\\\n,}", "-0.5")
	f.Fuzz(func(t *testing.T, name, key, value, number string) {
		for _, s := range []string{name, key, number} {
			if s == "" || strings.ContainsAny(s, "{}, \"\\=\n\r#") {
				t.Skip("no name")
			}
		}
		escaped := strings.NewReplacer("\\", "\\\\", "\"", "\\\"", "\n", "\\n").Replace(value)
		s, err := parseSeries(name + "{" + key + "=\"" + escaped + "\"} " + number)
		if err != nil {
			t.Fatal(err)
		}
		want := series{name, []label{{key, value}}, number}
		if diff := cmp.Diff(want, s, cmp.AllowUnexported(series{}, label{})); diff != "" {
			t.Error(diff)
		}
	})
}

func TestDifferences(t *testing.T) {
	f := func(theirs, ours string, values bool, want ...difference) {
		t.Helper()
		c := &comparison{values: values}
		c.pages(parsePage(theirs), parsePage(ours))
		got := c.found
		for i := range got {
			got[i] = got[i].key()
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(difference{})); diff != "" {
			t.Errorf("%s beside %s (-want +got):\n%s", theirs, ours, diff)
		}
	}
	const two = "m{gpu=\"0\",a=\"x\"} 1\nm{gpu=\"1\",a=\"x\"} 2\n"
	f(two, two, true)
	f(two, "m{gpu=\"1\",a=\"x\"} 2\nm{gpu=\"0\",a=\"x\"} 1\n", true) // the order of series does not matter
	f(two, strings.Replace(two, "x", "y", 1), true, difference{kindLabel, "a", "x", "y", ""})
	f(two, strings.Replace(two, ",a=\"x\"", "", 1), true, difference{kindLabel, "a", "x", absent, ""})
	f(two, strings.Replace(two, "gpu=\"0\",a=\"x\"", "a=\"x\",gpu=\"0\"", 1), true, difference{kindOrder, "labels", "gpu,a", "a,gpu", ""})
	f(two, strings.Replace(two, "} 1", "} 3", 1), true, difference{kindValue, "m", "1", "3", ""})
	f(two, strings.Replace(two, "} 1", "} 3", 1), false)
	f(two, strings.Replace(two, "} 1", "} 1.5", 1), false, difference{kindValue, "m", "a whole number", "a number with 1 decimals", ""})
	f(two, "m{gpu=\"0\",a=\"x\"} 1\n", true, difference{kindSeries, "m{gpu,a}", present, absent, ""})
	f(two, two+"n 1\n", true, difference{kindMetric, "n", absent, present, ""})
	f(two+two, two, true, difference{kindTwice, "series of m", several, "", ""})
	f("# TYPE m gauge\n"+two, "# TYPE m counter\n"+two, true, difference{kindType, "m", "gauge", "counter", ""})
	f("# HELP m a\n"+two, "# HELP m b\n"+two, true, difference{kindHelp, "m", "a", "b", ""})
	f("m{gpu=\"0\",a=\"\"x\"} 1\n", two, true, difference{kindMalformed, "line", present, absent, ""})
	// Copies of a device's series belong to their pods.
	f("m{gpu=\"0\",pod=\"a\"} 1\nm{gpu=\"0\",pod=\"b\"} 1\n", "m{gpu=\"0\",pod=\"b\",vgpu=\"1\"} 1\nm{gpu=\"0\",pod=\"a\",vgpu=\"0\"} 1\n", true,
		difference{kindSeries, "m{gpu,pod}", present, absent, ""}, difference{kindSeries, "m{gpu,pod}", present, absent, ""},
		difference{kindSeries, "m{gpu,pod,vgpu}", absent, present, ""}, difference{kindSeries, "m{gpu,pod,vgpu}", absent, present, ""})
}

// Every intention is one that the page for users has.
func TestIntentionsAreDocumented(t *testing.T) {
	body, err := os.ReadFile("../../docs/dcgm-exporter.md")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(string(body)), " ")
	names := map[string]bool{}
	for _, s := range scenarios() {
		if names[s.name] {
			t.Errorf("two scenarios are called %q", s.name)
		}
		names[s.name] = true
	}
	for _, a := range allowances() {
		if !strings.Contains(text, a.because) {
			t.Errorf("docs/dcgm-exporter.md does not say %q", a.because)
		}
		matches := a.scenario == ""
		for name := range names {
			matches = matches || whole(a.scenario, name)
		}
		if !matches {
			t.Errorf("%q is of no scenario: %q", a.because, a.scenario)
		}
	}
}

func TestReportFailsOnWhatIsNotMeant(t *testing.T) {
	f := func(release string, d difference, want error, words string) {
		t.Helper()
		var out bytes.Buffer
		if err := report(&out, 1, []finding{{"default collectors", d}}, release, false); err != want || !strings.Contains(out.String(), words) {
			t.Errorf("%v: %v\n%s", d, err, out.String())
		}
	}
	f("4.5.3-4.8.2", difference{kind: kindMetric, name: "gpupilot_build_info", theirs: absent, ours: present}, nil, "no unintended difference")
	f("4.5.3-4.8.2", difference{kind: kindMetric, name: "DCGM_FI_DEV_GPU_UTIL", theirs: present, ours: absent}, errUnintended, "1 UNINTENDED")
	f("4.5.3-4.8.2", difference{kind: kindMetric, name: "DCGM_FI_DEV_FB_RESERVED", theirs: absent, ours: present}, errUnintended, "1 UNINTENDED")
	f("3.3.8-3.6.0", difference{kind: kindMetric, name: "DCGM_FI_DEV_FB_RESERVED", theirs: absent, ours: present}, nil, "The built-in list is 4.8's")
}

func TestProfileOfARelease(t *testing.T) {
	for version, want := range map[string]string{
		"DCGM Exporter version 3.3.8-3.6.0": "4.8.2", "DCGM Exporter version 4.5.3-4.8.2": "4.8.2", "DCGM Exporter version 4.6.0-4.8.3": "4.8",
		"4.8.4": "4.8", "DCGM Exporter version 4.9.0": "4.9", "gpupilot-agent v1 abc": "4.8", "": "4.8",
	} {
		if got := profileOf(version); got != want {
			t.Errorf("%q: %s, want %s", version, got, want)
		}
	}
}

// built skips where make has not made what is run.
func built(t *testing.T) config {
	t.Helper()
	const bin = "../../bin/"
	for _, file := range []string{"gpupilot-agent", "libdcgm-fake.so", "libnvidia-ml-fake.so"} {
		if _, err := os.Stat(bin + file); err != nil {
			t.Skipf("make it first: %v", err)
		}
	}
	return config{exporter: bin + "gpupilot-agent", agent: bin + "gpupilot-agent", interval: 200 * time.Millisecond}
}

// Programs find the pods' labels, and see a service account that is not there.
func TestProgramsInACluster(t *testing.T) {
	if why := cannotJoin(); why != "" {
		t.Skip(why)
	}
	h, err := newHarness(t.Context(), built(t))
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	for _, s := range scenarios() {
		if s.name != "pods: some labels and UIDs" {
			continue
		}
		n, err := prepare(s, filepath.Join(h.dir, "node"))
		if err != nil {
			t.Fatal(err)
		}
		defer n.stop()
		p, err := h.start(t.Context(), h.cfg.agent, append([]string{"-c", "200"}, replaced(s.args, n.dir)...), s, n)
		if err != nil {
			t.Fatal(err)
		}
		defer p.stop(syscall.SIGTERM)
		const want = `,app="train",container="c-train",namespace="team",pod="train",pod_uid="team-train"} 37`
		for deadline := time.Now().Add(time.Minute); ; { // only a failure takes that long
			a, err := p.settled(t.Context(), request{path: "/metrics"}, h.cfg.interval)
			if err == nil && strings.Contains(a.body, want) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%v: no %s in\n%s\nit said:\n%s", err, want, a.body, p.tail())
			}
		}
	}
}

// Two of ours beside each other differ in nothing. What the programs are given
// time for is counted in intervals: on a machine that is too busy for short ones,
// longer ones decide.
func TestAgentBesideItself(t *testing.T) {
	for _, interval := range []time.Duration{200 * time.Millisecond, time.Second, 3 * time.Second} {
		found := besideItself(t, interval)
		if found == "" {
			return
		}
		t.Logf("with an interval of %v:\n%s", interval, found)
	}
	t.Error("they differ at every interval")
}

// besideItself compares two of ours, and says how they differ.
func besideItself(t *testing.T, interval time.Duration) (found string) {
	t.Helper()
	cfg := built(t)
	cfg.interval = interval
	cfg.only = "^(a collectors file|-d g:3|pods: sharing, several|an XID error|paths|TLS and a password|reload|an unknown flag)$"
	h, err := newHarness(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	var out bytes.Buffer
	if err := h.compare(t.Context(), &out); err != nil || !strings.Contains(out.String(), "8 scenarios, 0 intended differences") {
		return fmt.Sprintf("%v\n%s", err, out.String())
	}
	return ""
}
