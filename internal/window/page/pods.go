// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/gpupilot/gpupilot/internal/base/promtext"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// Metric is one value, the sum of a pod's series of one name or the largest of them.
type Metric struct {
	Key          string // the name in the store
	Name         string // of the series
	Label, Value string // only series with this label; empty: all
	Largest      bool   // the largest of the series, not the sum: a sum of ratios has no meaning
	Counter      bool   // it only rises: a page with a lower value is an old one
	// Min and Max are the valid range of each series and of the combined value. If
	// one is outside, the metric has no value. Both 0: no range.
	Min, Max float64
	// By is a label. Series with the same value of it are copies of one series from
	// several ranks of a model: only the largest is added. Empty: all are added.
	By string
	// Optional is a name that alternative metrics have in common. On a page that has neither a
	// series nor a TYPE of any of them, the one of this name is 0: the server has no such
	// queue. Empty: a metric without a series has no value.
	Optional string
	// Bucket selects series of a histogram's _bucket by their label le. The zero
	// Bucket: series without that label.
	Bucket Bucket
}

// Bucket is an edge of a histogram near a limit: the highest edge up to the limit or, if
// Above is set, the lowest one from the limit on. The zero Bucket is none.
type Bucket struct {
	Limit float64 // above 0
	Above bool
	Edge  bool // the metric is the edge itself, not the count up to it: 0 below the first one, and no value above the last one
}

// roundingLimit is the relative difference at which an edge still is the limit: both are
// decimal numbers.
const roundingLimit = 1e-9

// beats reports whether an edge is nearer to the limit than another one; NaN is none.
func (b *Bucket) beats(edge, other float64) bool {
	if b.Above {
		return edge >= b.Limit*(1-roundingLimit) && !(edge >= other)
	}
	return edge <= b.Limit*(1+roundingLimit) && !(edge <= other)
}

// The limits of what is remembered of a page's label values. A metric with a series
// beyond them has no value, because a partial sum would be wrong.
const (
	maxCells = 1 << 10
	maxBy    = 128 // bytes of a By label's value
)

// podMetrics is the identifier of a pod's own metrics. It selects series by name and
// label, and combines them.
type podMetrics struct {
	target  *series.Target
	metrics []Metric
	refs    []series.Ref
	cells   []cell           // the addends of the metrics
	places  map[place]int32  // the indexes of cells
	slots   [][]int32        // the cells to which a line is added
	known   map[string]int32 // the indexes of slots, by their cells
	sums    []float64        // by metric
	seen    []bool           // by metric: a cell has a value
	over    []bool           // by metric: not all of its series fit
	typed   []bool           // by metric that is optional: the page has its TYPE; nil: none is
	newest  []float64        // by metric: a counter's value on the newest page
	edges   []float64        // by metric with a bucket: the edge on this page
	lower   int              // consecutive pages with a lower counter
	text    int64            // bytes of names
	labels  labeller
}

// cell is the value of series that are copies of each other, of one edge of a histogram,
// or of all series.
type cell struct {
	metric int32
	value  float64
	edge   float64
	seen   bool
}

// place is the key of a cell.
type place struct {
	metric int32
	by     string
}

func newPodMetrics(t *series.Target, metrics []Metric) *podMetrics {
	n := len(metrics)
	m := &podMetrics{
		target: t, metrics: metrics, refs: make([]series.Ref, n),
		places: map[place]int32{}, known: map[string]int32{},
		sums: make([]float64, n), seen: make([]bool, n), over: make([]bool, n), newest: make([]float64, n), edges: make([]float64, n),
	}
	if slices.ContainsFunc(metrics, func(x Metric) bool { return x.Optional != "" }) {
		m.typed = make([]bool, n)
	}
	return m
}

// comment takes a comment of a page: it notes the types of optional metrics.
func (m *podMetrics) comment(text []byte) {
	if m.typed == nil {
		return
	}
	name, ok := bytes.CutPrefix(text, []byte("# TYPE "))
	if !ok {
		return
	}
	name, _, _ = bytes.Cut(name, []byte(" "))
	for i := range m.metrics {
		if m.metrics[i].Optional != "" && m.metrics[i].Name == string(name) {
			m.typed[i] = true
		}
	}
}

// fillOptional sets the optional metrics to 0 that the page has under none of their names. On
// a page with a bad line they may be there.
func (m *podMetrics) fillOptional(whole bool) {
	for i := range m.typed {
		x := &m.metrics[i]
		if !whole || x.Optional == "" || x.Optional != x.Name {
			continue
		}
		there := false
		for k := range m.metrics {
			there = there || m.metrics[k].Optional == x.Optional && (m.seen[k] || m.over[k] || m.typed[k])
		}
		if r, ok := m.target.Ref(series.Key{Metric: x.Key}); ok && !there {
			m.refs[i], m.sums[i], m.seen[i] = r, 0, true
		}
	}
	clear(m.typed)
}

// reset drops all remembered lines.
func (m *podMetrics) reset() {
	m.cells, m.slots, m.text = nil, nil, 0
	m.places, m.known = map[place]int32{}, map[string]int32{}
	clear(m.over)
	m.labels.forget()
}

// overgrown reports whether a metric had more series than fit.
func (m *podMetrics) overgrown() bool { return m.labels.again || slices.Contains(m.over, true) }

// size returns the bytes that are remembered. A map takes about twice its entries.
func (m *podMetrics) size() int64 {
	return m.text + m.labels.size() + int64(cap(m.cells))*int64(unsafe.Sizeof(cell{})) + int64(len(m.places))*2*(24+4) +
		int64(cap(m.slots))*24 + int64(len(m.known))*2*(16+4) + int64(len(m.metrics))*(16+8+3+8+8)
}

func (m *podMetrics) identify(l *line, _ *labelMemo) entry {
	e := m.classify(l)
	m.labels.expose(&e, l, m.labels.spaces)
	return e
}

// classify selects the lines of the metrics. Quantiles of summaries are ignored, and so are
// buckets of histograms that no metric asks for: they cannot be summed.
func (m *podMetrics) classify(l *line) entry {
	asked := func(x Metric) bool { return x.Name == string(l.Name) }
	if !slices.ContainsFunc(m.metrics, asked) || l.Get("quantile") != nil {
		return entry{}
	}
	isBucket := l.Get("le") != nil
	var cells []int32
	for i := range m.metrics {
		x := &m.metrics[i]
		if x.Name != string(l.Name) || (x.Bucket != Bucket{}) != isBucket || x.Label != "" && string(l.Get(x.Label)) != x.Value {
			continue
		}
		if c, ok := m.cell(i, l); ok {
			cells = append(cells, c)
		}
	}
	if len(cells) == 0 {
		return entry{}
	}
	return entry{use: part, slot: m.slot(cells), scale: 1}
}

// cell returns the index of the cell of metric i to which a line is added.
func (m *podMetrics) cell(i int, l *line) (int32, bool) {
	r, ok := m.target.Ref(series.Key{Metric: m.metrics[i].Key})
	if !ok {
		return 0, false
	}
	m.refs[i] = r
	at := place{metric: int32(i)}
	by, edge := m.metrics[i].By, 0.0
	if (m.metrics[i].Bucket != Bucket{}) {
		by = "le"
		if edge, ok = promtext.Float(l.Get(by)); !ok || edge != edge {
			return 0, false
		}
	}
	if by != "" {
		at.by = string(l.Get(by))
	}
	c, ok := m.places[at]
	if !ok {
		if len(m.cells) >= maxCells || len(at.by) > maxBy {
			m.over[i] = true
			return 0, false
		}
		m.text += int64(len(at.by))
		c = int32(len(m.cells))
		m.cells = append(m.cells, cell{metric: at.metric, edge: edge})
		m.places[at] = c
	}
	return c, true
}

func (m *podMetrics) slot(cells []int32) int32 {
	key := fmt.Sprint(cells)
	s, ok := m.known[key]
	if !ok {
		s = int32(len(m.slots))
		m.slots = append(m.slots, cells)
		m.known[key] = s
		m.text += int64(len(key) + 4*cap(cells))
	}
	return s
}

func (m *podMetrics) success(int32, float64) {}

func (m *podMetrics) observe(int32, evidence, float64, bool) {}

// combine computes the page's values.
func (m *podMetrics) combine(p *Reader) {
	for i := range m.cells {
		m.cells[i].value, m.cells[i].seen = 0, false
	}
	for _, x := range p.points {
		for _, c := range m.slots[x.slot] {
			cell := &m.cells[c]
			m.take(cell, p.OutOfRange.limitMetric(&m.metrics[cell.metric], x.value))
		}
	}
	clear(m.sums)
	clear(m.seen)
	m.findEdges()
	for i := range m.cells {
		if c := &m.cells[i]; c.seen {
			m.add(c)
		}
	}
	m.fillOptional(p.Bad == 0)
}

// findEdges finds the edge that each metric asks for; NaN: the page has none.
func (m *podMetrics) findEdges() {
	for i := range m.edges {
		m.edges[i] = math.NaN()
	}
	for i := range m.cells {
		c := &m.cells[i]
		if x := &m.metrics[c.metric].Bucket; c.seen && *x != (Bucket{}) && x.beats(c.edge, m.edges[c.metric]) {
			m.edges[c.metric] = c.edge
		}
	}
}

// add adds a cell to its metric.
func (m *podMetrics) add(c *cell) {
	i := c.metric
	x, edge := &m.metrics[i].Bucket, m.edges[i]
	switch {
	case *x == (Bucket{}) || !x.Edge && c.edge == edge:
		m.sums[i] += c.value
	case x.Edge && edge == edge:
		m.sums[i] = edge
	}
	m.seen[i] = !x.Edge || !x.Above || edge < math.Inf(1)
}

// restarted is the number of pages with a lower counter in a row from which the server has
// restarted. Fewer are old pages.
const restarted = 3

// isOld reports whether the page is older than an earlier one, which a counter shows.
func (m *podMetrics) isOld() bool {
	isLower := false
	for i := range m.metrics {
		isLower = isLower || m.metrics[i].Counter && m.seen[i] && m.sums[i] < m.newest[i]
	}
	if m.lower++; isLower && m.lower < restarted {
		return true
	}
	m.lower = 0
	for i := range m.metrics {
		if m.seen[i] && !m.over[i] && m.metrics[i].Counter {
			m.newest[i] = m.sums[i]
		}
	}
	return false
}

// fill adds the combined values to a batch. A metric with a NaN among its series has
// no value.
func (m *podMetrics) fill(p *Reader, b *series.Batch) {
	for i, ok := range m.seen {
		if ok && !m.over[i] {
			b.Add(m.refs[i], p.OutOfRange.limitMetric(&m.metrics[i], m.sums[i]))
		}
	}
	p.fillOwn(b)
}

// take adds a line's value to a cell.
func (m *podMetrics) take(c *cell, v float64) {
	x := &m.metrics[c.metric]
	switch {
	case !c.seen:
		c.value, c.seen = v, true
	case x.Largest || x.By != "":
		c.value = math.Max(c.value, v)
	default:
		c.value += v
	}
}
