// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"strconv"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpupilot/gpupilot/internal/window/series"
)

// OwnTarget is the name of the target with the controller's own metrics.
const OwnTarget = "controller"

// learnOwn is the time between two collections of the controller's own metrics while
// no query uses them, which learn their names.
const learnOwn = time.Minute

// own writes the controller's own metrics to the windows. Only Run uses it.
type own struct {
	names   map[string]struct{} // on the last page
	learned time.Time
	refs    map[labels.Labels]series.Ref
	list    []series.Exposed
	batch   series.Batch
}

// collectOwn collects the controller's own metrics, if a query uses one of them.
func (s *Store) collectOwn(at time.Time) {
	o := &s.own
	if s.deps.Own == nil || !s.usesOwn() && at.Sub(o.learned) < learnOwn {
		return
	}
	families, err := s.deps.Own.Gather()
	if err != nil && len(families) == 0 {
		s.deps.Log.Warn("own metrics are not collected", "err", err)
		return
	}
	o.learned, o.names = at, map[string]struct{}{}
	t := s.deps.Windows.Target(OwnTarget, series.TargetLabels{Instance: s.cfg.Instance, Job: s.cfg.Job})
	o.batch.Reset()
	o.list = o.list[:0]
	refs := make(map[labels.Labels]series.Ref, len(o.refs))
	for _, f := range families {
		s.addFamily(t, f, refs)
	}
	o.refs = refs
	t.Expose(at, o.list)
	if unknown, err := t.Append(at, &o.batch); unknown > 0 || err != nil {
		o.refs = nil // intern them again
	}
}

func (s *Store) usesOwn() bool {
	if s.wanted.keepsAll() {
		return true
	}
	for name := range s.own.names {
		if s.wanted.has(name) {
			return true
		}
	}
	return false
}

// addFamily adds the series of one metric.
func (s *Store) addFamily(t *series.Target, f *dto.MetricFamily, refs map[labels.Labels]series.Ref) {
	for _, m := range f.GetMetric() {
		add := func(suffix string, v float64, more ...string) {
			name := f.GetName() + suffix
			s.own.names[name] = struct{}{}
			if s.wanted.keepsAll() || s.wanted.has(name) {
				s.addOwn(t, s.ownLabels(name, m.GetLabel(), more), v, refs)
			}
		}
		switch {
		case m.Gauge != nil:
			add("", m.Gauge.GetValue())
		case m.Counter != nil:
			add("", m.Counter.GetValue())
		case m.Untyped != nil:
			add("", m.Untyped.GetValue())
		case m.Summary != nil:
			for _, q := range m.Summary.GetQuantile() {
				add("", q.GetValue(), "quantile", number(q.GetQuantile()))
			}
			add("_sum", m.Summary.GetSampleSum())
			add("_count", float64(m.Summary.GetSampleCount()))
		case m.Histogram != nil:
			for _, b := range m.Histogram.GetBucket() {
				add("_bucket", float64(b.GetCumulativeCount()), "le", number(b.GetUpperBound()))
			}
			add("_bucket", float64(m.Histogram.GetSampleCount()), "le", "+Inf")
			add("_sum", m.Histogram.GetSampleSum())
			add("_count", float64(m.Histogram.GetSampleCount()))
		}
	}
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// ownLabels are the labels of one of our own series.
func (s *Store) ownLabels(name string, pairs []*dto.LabelPair, more []string) labels.Labels {
	b := labels.NewBuilder(labels.FromStrings(more...))
	for _, p := range pairs {
		label := p.GetName()
		if label == "instance" || label == "job" {
			label = "exported_" + label
		}
		b.Set(label, p.GetValue())
	}
	b.Set(model.MetricNameLabel, name).Set("instance", s.cfg.Instance).Set("job", s.cfg.Job)
	return b.Labels()
}

// addOwn adds one value.
func (s *Store) addOwn(t *series.Target, l labels.Labels, v float64, refs map[labels.Labels]series.Ref) {
	o := &s.own
	if _, twice := refs[l]; twice {
		return
	}
	r, ok := o.refs[l]
	if !ok {
		if r, ok = t.Ref(series.Key{Line: string(l.Bytes(nil))}); !ok {
			return
		}
	}
	refs[l] = r
	o.list = append(o.list, series.Exposed{Labels: l, Ref: r, Scale: 1})
	o.batch.Add(r, v)
}
