// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/test/pagetest"
)

// A page that arrives in pieces is read as one that is there at once.
func TestReadInPieces(t *testing.T) {
	body := string(pagetest.Node(1, 4))
	for _, page := range []string{body, strings.TrimSuffix(body, "\n"), strings.ReplaceAll(body, "\n", "\r\n"), body + "# EOF\nnot read"} {
		whole, pieces := newReader(&recorder{}), newReader(&recorder{})
		if err := whole.Read([]byte(page)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, MaxLine)
		if err := pieces.ReadBody(iotest.OneByteReader(strings.NewReader(page)), buf, 1<<20); err != nil {
			t.Fatal(err)
		}
		if err := pieces.End(); err != nil || pieces.Lines != whole.Lines || pieces.number != whole.number || len(pieces.entries) != len(whole.entries) {
			t.Errorf("in pieces %v: %d lines, %d entries; at once %d, %d", err, pieces.Lines, len(pieces.entries), whole.Lines, len(whole.entries))
		}
	}
}

// A line that does not fit into the read buffer is a bad line; those around it
// count.
func TestLongLines(t *testing.T) {
	p := newReader(&recorder{})
	long := `up{x="` + strings.Repeat("y", 1<<20) + `"} 1`
	page := "a 1\n" + long + "\nb 2\n" + long + "\n" + long[:MaxLine] + "\nc 3\n" + long
	err := p.ReadBody(strings.NewReader(page), make([]byte, MaxLine), 16<<20)
	if err == nil {
		err = p.End()
	}
	if want := fmt.Sprintf("not a metrics page, 4 of 7 lines are bad: line 2: line is longer than %d bytes", MaxLine); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v\n want %s", err, want)
	}
	if p.Lines != 3 {
		t.Errorf("%d lines were read", p.Lines)
	}
}

func TestReadFromMemoryDoesNotAllocate(t *testing.T) {
	store := series.New(series.Config{Span: time.Minute})
	g := newGPUs(store.Target("t", series.TargetLabels{}), gpu.SetOf(gpu.GPUUtil, gpu.FBUsed, gpu.PowerUsage, gpu.SMActive))
	p := newReader(g)
	body := pagetest.Node(1, 4)
	if err := p.Read(body); err != nil || len(p.points) != 32 {
		t.Fatal(err, len(p.points))
	}
	var batch series.Batch
	i := 0
	n := testing.AllocsPerRun(100, func() {
		i++
		batch.Reset()
		if err := p.Read(body); err != nil || p.Changed {
			t.Fatal(err, p.Changed)
		}
		g.fill(p, &batch)
		g.target.Append(time.Unix(1_800_000_000, 0).Add(time.Duration(i)*time.Second), &batch)
	})
	if n != 0 {
		t.Errorf("a page like the last one allocates %v times", n)
	}
}

// A page that invents labels takes no more memory than others.
func TestInventedRanksAreBounded(t *testing.T) {
	m := newPodMetrics(series.New(series.Config{}).Target("t", series.TargetLabels{}), []Metric{{Key: "r", Name: "r", By: "rank"}})
	for i := range 10 * maxCells {
		var l line
		if err := l.Parse(fmt.Appendf(nil, `r{rank="%d"} 1`, i)); err != nil {
			t.Fatal(err)
		}
		m.identify(&l, nil)
	}
	if len(m.cells) > maxCells || len(m.slots) > maxCells {
		t.Errorf("%d cells, %d slots; want no more than %d", len(m.cells), len(m.slots), maxCells)
	}
}

// Of the copies that dcgm-exporter makes for the sharers of a GPU, utilisation
// and memory are read at each scrape, whatever DCGM does.
func TestCopiesOfSharersAreNoEvidence(t *testing.T) {
	if evidenceOf(gpu.GPUUtil, true) != noEvidence || evidenceOf(gpu.FBUsed, true) != noEvidence {
		t.Error("a sharer's own utilisation or memory is evidence")
	}
	if evidenceOf(gpu.GPUUtil, false) != anyValue || evidenceOf(gpu.TotalEnergy, true) != energyTotal {
		t.Error("a device's own values are none")
	}
}

// A page may invent values out of range of every field: what is kept of that
// stays small.
func TestOutOfRangeIsBounded(t *testing.T) {
	var o OutOfRange
	for i := range 1000 {
		o.add(fmt.Sprint(i))
	}
	if len(o) != maxOutOfRange+1 || o.Total() != 1000 || o[maxOutOfRange].Metric != otherMetrics {
		t.Errorf("%d counts of %d values", len(o), o.Total())
	}
}

// A queue that only some servers have is 0 on the pages of others. One that a page has, by any of
// its names, without a valid value, is missing and never 0.
func TestOptionalMetrics(t *testing.T) {
	target := series.New(series.Config{}).Target("t", series.TargetLabels{Namespace: "n", Pod: "p"})
	m := newPodMetrics(target, []Metric{
		{Key: "run", Name: "run"}, {Key: "new", Name: "new", Optional: "new", By: "rank", Max: 100}, {Key: "old", Name: "old", Optional: "new", By: "rank", Max: 100},
	})
	p := newReader(m)
	p.pods, p.labels = m, &m.labels
	f := func(page, want string) {
		t.Helper()
		if err := p.Read([]byte(page)); err != nil {
			t.Fatal(err)
		}
		got := ""
		for i, x := range m.metrics {
			if m.seen[i] && !m.over[i] && !math.IsNaN(m.sums[i]) {
				got += fmt.Sprintf("%s %v ", x.Key, m.sums[i])
			}
		}
		if strings.TrimSpace(got) != want {
			t.Errorf("%q: %q, want %q", page, got, want)
		}
	}
	f("run 3\n", "run 3 new 0")
	f("run 3\nnew{rank=\"0\"} 4\nnew{rank=\"1\"} 5\n", "run 3 new 9")
	f("run 3\nold 4\n", "run 3 old 4")
	f("run 3\nnew NaN\n", "run 3")
	f("run 3\nold -1\n", "run 3")
	f("run 3\nold 101\n", "run 3")
	f("# TYPE run gauge\nrun 3\n# TYPE new gauge\n", "run 3")
	f("run 3\n# TYPE old gauge\n", "run 3")
	f("run 3\nnew x\n", "run 3") // a bad line
	f("run 3\n# TYPE newer gauge\n", "run 3 new 0")
	f("run 3\n", "run 3 new 0")
}

// Of a histogram the counts up to the edges next to a limit are read, and these edges.
func TestBucketsNextToALimit(t *testing.T) {
	const histogram = `h_bucket{engine="0",le="0.5"} 1
h_bucket{engine="0",le="1.0"} 3
h_bucket{engine="0",le="2.5"} 7
h_bucket{engine="0",le="+Inf"} 9
h_bucket{engine="1",le="0.5"} 10
h_bucket{engine="1",le="1.0"} 30
h_bucket{engine="1",le="2.5"} 70
h_bucket{engine="1",le="+Inf"} 90
h_count{engine="0"} 9
`
	target := series.New(series.Config{}).Target("t", series.TargetLabels{Namespace: "n", Pod: "p"})
	f := func(page string, limit float64, want string) {
		t.Helper()
		var metrics []Metric
		for _, b := range []Bucket{{limit, false, false}, {limit, true, false}, {limit, false, true}, {limit, true, true}} {
			metrics = append(metrics, Metric{Key: fmt.Sprint(b), Name: "h_bucket", Bucket: b, Counter: !b.Edge})
		}
		m := newPodMetrics(target, metrics)
		p := newReader(m)
		p.pods, p.labels = m, &m.labels
		if err := p.Read([]byte(page)); err != nil {
			t.Fatal(err)
		}
		got := ""
		for i := range metrics {
			if m.seen[i] {
				got += fmt.Sprint(m.sums[i], " ")
			} else {
				got += "none "
			}
		}
		if got != want {
			t.Errorf("limit %v: below, above and the edges are %s, want %s", limit, got, want)
		}
	}
	f(histogram, 1, "33 33 1 1 ")
	f(histogram, 2, "33 77 1 2.5 ")
	f(histogram, 0.1, "0 11 0 0.5 ")
	f(histogram, 3, "77 99 2.5 none ")
	f(strings.ReplaceAll(histogram, `le="1.0"`, `le="1"`), 1, "33 33 1 1 ")
	f(strings.ReplaceAll(histogram, `le="1.0"`, `le="NaN"`), 1, "11 77 0.5 2.5 ")
	f("other 1\n", 1, "none none none none ")
}
