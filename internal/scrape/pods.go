// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"slices"

	"github.com/gpupilot/gpupilot/internal/series"
)

// podMetrics is the identifier of a pod's own exposition: it picks metrics by
// name and adds up their label sets.
type podMetrics struct {
	target *series.Target
	names  []string
	refs   []series.Ref
	sums   []float64
	seen   []bool
}

func newPodMetrics(t *series.Target, names []string) *podMetrics {
	return &podMetrics{
		target: t, names: names,
		refs: make([]series.Ref, len(names)), sums: make([]float64, len(names)), seen: make([]bool, len(names)),
	}
}

// identify takes the lines of the metrics asked for. Buckets and quantiles of
// histograms and summaries have no sum.
func (m *podMetrics) identify(l *line) entry {
	i := slices.IndexFunc(m.names, func(n string) bool { return n == string(l.name) })
	if i < 0 || l.get("le") != nil || l.get("quantile") != nil {
		return entry{}
	}
	r, ok := m.target.Ref(series.Key{Metric: m.names[i]})
	if !ok {
		return entry{}
	}
	m.refs[i] = r
	return entry{use: part, slot: int32(i), scale: 1, ref: r}
}

func (m *podMetrics) success(int32, float64) {}

// fill makes a batch of the sums. A sum of which a part is NaN is none.
func (m *podMetrics) fill(p *page, b *series.Batch) {
	clear(m.sums)
	clear(m.seen)
	for _, x := range p.points {
		m.sums[x.slot] += x.value
		m.seen[x.slot] = true
	}
	for i, ok := range m.seen {
		if ok {
			b.Add(m.refs[i], m.sums[i])
		}
	}
}
