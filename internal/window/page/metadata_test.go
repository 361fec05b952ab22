// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// pageOf feeds the comments of a page to the descriptions.
func (d *Descriptions) pageOf(namespace, text string) {
	p := NewPod(Config{Learn: d.Learner(namespace)})
	p.begin()
	p.feed([]byte(text))
}

func TestMetadata(t *testing.T) {
	var d Descriptions
	d.pageOf("a", "# HELP vllm:queue Requests in the\\nqueue, \\\\ escaped.\n# TYPE vllm:queue gauge\n# UNIT vllm:queue requests\n# a comment\n#\n# TYPE x\n# TYPE lat histogram\n")
	d.pageOf("b", "# TYPE vllm:queue untyped\n# HELP vllm:queue Of b.\n# TYPE other summary\n# TYPE bad{} gauge\n# TYPE y nonsense\n# EOF\n# TYPE late gauge\n")
	d.pageOf("b", "# TYPE vllm:queue counter\n# UNIT vllm:queue seconds\n")
	d.pageOf("", "# HELP custom_metric Of an exporter.\n# TYPE custom_metric gauge\n")
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
	} {
		if diff := cmp.Diff(c.want, d.Of(c.namespaces, c.metric)); diff != "" {
			t.Errorf("%s of %q: %s", c.metric, c.namespaces, diff)
		}
	}
	names := d.Names("b") // of that namespace only, and none that is malformed
	slices.Sort(names)
	if diff := cmp.Diff([]string{"other", "vllm:queue"}, names); diff != "" {
		t.Error(diff)
	}
}

// A tenant's pages take a bounded memory, and describe nobody else's metrics.
func TestMetadataIsBounded(t *testing.T) {
	var d Descriptions
	d.pageOf("", "# TYPE custom gauge\n")
	var page strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&page, "# HELP m%d %s\n", i, strings.Repeat("é", 1000))
	}
	d.pageOf("loud", page.String())
	if n := len(d.of["loud"]); n != maxDescribed {
		t.Errorf("%d metrics are described", n)
	}
	if m := d.Of(nil, "m0"); len(m) != 1 || len(m[0].Help) > maxHelp {
		t.Errorf("%d descriptions", len(m))
	}
	for i := range 2 * maxDescribedNamespace {
		d.pageOf(fmt.Sprint("ns-", i), fmt.Sprintf("# HELP same Text %d.\n", i))
	}
	if len(d.of) > maxDescribedNamespace+1 || len(d.order) > maxDescribedNamespace {
		t.Errorf("%d namespaces are remembered", len(d.of))
	}
	if n := len(d.Of(nil, "same")); n != maxMetadata {
		t.Errorf("%d descriptions of one metric", n)
	}
	if len(d.Of([]string{}, "custom")) != 1 {
		t.Error("the exporter's metric was forgotten")
	}
}

// FuzzLearn: no comment breaks the bounds or the encoding.
func FuzzLearn(f *testing.F) {
	f.Add("# HELP a b")
	f.Add("# TYPE a gauge")
	f.Add("#  \xff")
	f.Fuzz(func(t *testing.T, line string) {
		var d Descriptions
		d.learn("ns", []byte(line))
		for name, m := range d.of["ns"] {
			if len(name) > maxDescribedName || len(m.Help) > maxHelp || !utf8.ValidString(m.Help) || !utf8.ValidString(m.Unit) {
				t.Errorf("%q: %+v", name, m)
			}
		}
	})
}
