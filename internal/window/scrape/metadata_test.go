// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/window/series"
)

// pageOf feeds the comments of a page to the descriptions.
func (d *descriptions) pageOf(kind Kind, namespace, text string) {
	learn := d.learner(&Target{Kind: kind, Labels: series.TargetLabels{Namespace: namespace}})
	if learn == nil {
		return
	}
	p := newPage(newPodMetrics(nil, nil))
	p.learn = learn
	p.begin()
	p.feed([]byte(text))
}

func TestMetadata(t *testing.T) {
	s := New(Config{}, Deps{})
	d := &s.described
	d.pageOf(Pod, "a", "# HELP vllm:queue Requests in the\\nqueue, \\\\ escaped.\n# TYPE vllm:queue gauge\n# UNIT vllm:queue requests\n# a comment\n#\n# TYPE x\n# TYPE lat histogram\n")
	d.pageOf(Pod, "b", "# TYPE vllm:queue untyped\n# HELP vllm:queue Of b.\n# TYPE other summary\n# TYPE bad{} gauge\n# TYPE y nonsense\n# EOF\n# TYPE late gauge\n")
	d.pageOf(Pod, "b", "# TYPE vllm:queue counter\n# UNIT vllm:queue seconds\n")
	d.pageOf(DCGM, "gpu-operator", "# HELP custom_metric Of an exporter.\n# TYPE custom_metric gauge\n")
	d.pageOf(Agent, "x", "# TYPE gpupilot_x gauge\n")
	ofA := Metadata{"gauge", "Requests in the\nqueue, \\ escaped.", "requests"}
	ofB := Metadata{"unknown", "Of b.", "seconds"}
	for _, c := range []struct {
		namespaces []string
		metric     string
		want       []Metadata
	}{
		{nil, "vllm:queue", []Metadata{ofA, ofB}},
		{[]string{"a"}, "vllm:queue", []Metadata{ofA}},
		{[]string{"b", "c"}, "vllm:queue", []Metadata{ofB}},
		{[]string{}, "vllm:queue", nil},
		{[]string{}, "custom_metric", []Metadata{{"gauge", "Of an exporter.", ""}}},
		{[]string{"a"}, "other", nil},
		{nil, "lat", []Metadata{{Type: "histogram"}}},
		{nil, "bad", nil},
		{nil, "y", nil},
		{nil, "late", nil},
		{nil, "gpupilot_x", nil},
	} {
		if d := cmp.Diff(c.want, s.Metadata(c.namespaces, c.metric)); d != "" {
			t.Errorf("%s of %q: %s", c.metric, c.namespaces, d)
		}
	}
}

// A tenant's pages take a bounded memory, and describe nobody else's metrics.
func TestMetadataIsBounded(t *testing.T) {
	s := New(Config{}, Deps{})
	d := &s.described
	d.pageOf(DCGM, "", "# TYPE custom gauge\n")
	var page strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&page, "# HELP m%d %s\n", i, strings.Repeat("é", 1000))
	}
	d.pageOf(Pod, "loud", page.String())
	if n := len(d.of["loud"]); n != maxDescribed {
		t.Errorf("%d metrics are described", n)
	}
	if m := s.Metadata(nil, "m0"); len(m) != 1 || len(m[0].Help) > maxHelp {
		t.Errorf("%d descriptions", len(m))
	}
	for i := range 2 * maxDescribedNamespace {
		d.pageOf(Pod, fmt.Sprint("ns-", i), fmt.Sprintf("# HELP same Text %d.\n", i))
	}
	if len(d.of) > maxDescribedNamespace+1 || len(d.order) > maxDescribedNamespace {
		t.Errorf("%d namespaces are remembered", len(d.of))
	}
	if n := len(s.Metadata(nil, "same")); n != maxMetadata {
		t.Errorf("%d descriptions of one metric", n)
	}
	if len(s.Metadata([]string{}, "custom")) != 1 {
		t.Error("the exporter's metric was forgotten")
	}
}

// FuzzLearn: no comment breaks the bounds or the encoding.
func FuzzLearn(f *testing.F) {
	f.Add("# HELP a b")
	f.Add("# TYPE a gauge")
	f.Add("#  \xff")
	f.Fuzz(func(t *testing.T, line string) {
		var d descriptions
		d.learn("ns", []byte(line))
		for name, m := range d.of["ns"] {
			if len(name) > maxDescribedName || len(m.Help) > maxHelp || !utf8.ValidString(m.Help) || !utf8.ValidString(m.Unit) {
				t.Errorf("%q: %+v", name, m)
			}
		}
	})
}
