// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale/facts"
	"github.com/gpupilot/gpupilot/internal/scale/trend"
)

// measure is the demand of one signal before any rule, in fractions of
// replicas. Replicas without a reading count as idle in up, and as full in down.
type measure struct {
	up, down float64
	whole    float64 // up, if replicas without a reading carry as much as the others
	lacking  bool    // down is what the load needed before replicas ended
	most     float64 // whole, if those that began to serve or ended around the readings carried as much as the others
	value    float64 // mean per replica, or the total
	fresh    int32   // replicas with a reading, or 1 for a total
	silent   int32   // replicas that should have a reading, and have none
	young    int32   // replicas that serve since after the oldest reading
	of       int32   // serving replicas; 0: value is a total
	sick     float64 // what the silent ones may need beside down, in replicas

	silentTokens int32 // as silent, of tokens

	without, withoutTokens string // the first one's name

	outlier                    string // a replica with far more than the others; empty: none
	outlierValue, outlierLimit float64
}

// measure reads the signal from the workload's total or from the serving
// replicas. ok is false if neither has a valid reading.
func (e *evaluation) measure() (m measure, age time.Duration, ok bool) {
	sig := e.signal
	if t := e.o.total(e.i); t.fresh(e.now, e.p.maxAge()) && t.Value >= 0 {
		m.value, m.fresh = t.Value, 1
		m.up = t.Value / sig.Target
		m.down = m.up
		if sig.Type == Value {
			e.oldest = t.At
			m.scaleByTotal(e)
		}
		return m, max(0, e.now.Sub(t.At)), true
	}
	m.of = e.serving
	sum, most := 0.0, 0.0
	for k := range e.o.Pods {
		pod := &e.o.Pods[k]
		r := pod.reading(e.i)
		if !e.isValid(pod, r) {
			if e.isYoung(pod) {
				m.young++
			}
			e.noteSilent(pod, &m.silent, &m.without)
			continue
		}
		sum, most = sum+r.Value, max(most, r.Value)
		m.fresh++
		age = max(age, e.now.Sub(r.At))
	}
	if m.fresh == 0 || math.IsInf(sum, 0) {
		m.fresh = 0
		return m, 0, false
	}
	least := 0.0
	if most > e.most() && m.fresh >= outlierOf && sig.Type == AverageValue {
		all := float64(m.fresh) * e.takes.load(sum/float64(m.fresh))
		var n int
		sum, n = e.limitOutliers(&m)
		least = min(all, float64(n*sickOf)) // among fewer they would be none
	}
	if sig.Type == AverageValue {
		m.ofAverage(e, sum, least)
	} else {
		m.ofAggregate(e, sum, most)
	}
	return m, age, true
}

// ofAverage sets the demand of a signal with a target per replica. least is what the replicas
// with far more than the others need.
func (m *measure) ofAverage(e *evaluation, sum, least float64) {
	m.value = sum / float64(m.fresh)
	load := e.takes.load(m.value)
	unread := float64(m.of - m.fresh - m.young)
	m.up = float64(m.fresh) * load
	m.whole = m.up + unread*load
	m.most = m.whole + (float64(m.young)+e.ended())*load
	m.down = m.up + (unread+float64(m.young))*max(load, 1)
	m.down = max(m.down, least)
	read, silent := float64(m.fresh), float64(m.silent)
	m.sick = (read+silent)*e.takes.load((sum+silent*e.most())/(read+silent)) - m.up - silent*max(load, 1)
}

// ofAggregate sets the demand of a signal with a target for all replicas together.
func (m *measure) ofAggregate(e *evaluation, sum, most float64) {
	sig := e.signal
	m.value = sum / float64(m.fresh)
	m.sick = float64(m.silent) * (e.takes.load(e.most()) - e.takes.load(m.value))
	switch sig.Aggregate {
	case gpu.Sum:
		m.up = sum / sig.Target
		m.scaleByTotal(e)
		m.value, m.sick = sum, float64(m.silent)*trend.Most
		return
	case gpu.Max:
		m.value = most
		m.sick = float64(m.silent) * trend.Most
	}
	m.up = float64(e.serving-m.young) * m.value / sig.Target
	m.down = float64(e.serving) * m.value / sig.Target
	m.most = m.down + e.ended()*m.value/sig.Target
}

// limitOutliers returns the sum of the values without what a few replicas have far above the
// others, and how many they are: more replicas do not help those.
func (e *evaluation) limitOutliers(m *measure) (sum float64, n int) {
	values, highest, most := make([]float64, 0, m.fresh), "", 0.0
	for k := range e.o.Pods {
		if r := e.o.Pods[k].reading(e.i); e.isValid(&e.o.Pods[k], r) {
			if values = append(values, r.Value); r.Value > most {
				highest, most = e.o.Pods[k].Name, r.Value
			}
		}
	}
	few := max(1, (len(values)+sickOf/2)/sickOf)
	sum, limit, n := trend.LimitOutliers(values, few, e.most(), outlierFrom)
	if n > 0 {
		m.outlier, m.outlierValue, m.outlierLimit = highest, most, limit
	}
	return sum, n
}

// most is the highest value of a replica that is not known.
func (e *evaluation) most() float64 {
	if e.signal.Ceiling > 0 {
		return e.signal.Ceiling
	}
	return backlogFrom * e.takes.target
}

// ended is how many replicas have ended since the oldest reading was measured, or just before.
// It may lack what they carried.
func (e *evaluation) ended() float64 {
	return float64(moved(e.ends, e.now, max(0, e.now.Sub(e.oldest))+warm, true))
}

// isYoung reports whether a replica began to serve after the oldest reading was measured. The
// load that it has taken over is in that reading, too.
func (e *evaluation) isYoung(pod *Replica) bool {
	return pod.Phase == Serving && e.oldest.Before(pod.Since.Add(warm)) && !e.oldest.IsZero()
}

// isValid reports whether a replica's value counts. That of a young one would count its load twice.
func (e *evaluation) isValid(pod *Replica, r Reading) bool {
	return e.view.isValid(pod, r) && !e.isYoung(pod)
}

// noteSilent counts a replica that has served for so long that it should have a valid
// reading, and keeps the first name in the order of the alphabet.
func (e *evaluation) noteSilent(pod *Replica, n *int32, first *string) {
	if pod.Phase != Serving || e.isYoung(pod) || e.now.Sub(pod.Since) <= warm+e.p.maxAge() {
		return
	}
	if *n++; *n == 1 || pod.Name < *first {
		*first = pod.Name
	}
}

// isValid reports whether a reading counts: it is fresh, its replica serves, it was measured
// after the replica had warmed up, and it is not negative, which no idle replica is.
func (v *view) isValid(pod *Replica, r Reading) bool {
	return pod.Phase == Serving && r.fresh(v.now, v.p.maxAge()) && r.Value >= 0 && !r.At.Before(pod.Since.Add(warm))
}

// smooth averages the noise out of the demand, unless there is no window downward.
func (e *evaluation) smooth(m measure) measure {
	// A reading that is missing once does not change the demand: whole is averaged.
	least := min(max(m.up, m.whole), trend.Most)
	whole := max(least, min(m.most, trend.Most))
	if before := e.state.Level; !before.At.IsZero() {
		whole = min(max(before.Value, least), whole)
	}
	m.lacking = whole > m.down
	m.down = max(m.down, whole)
	if e.p.Down.Window == 0 {
		e.state.Level, m.whole = trend.Level{Value: whole, At: e.now}, whole
		return m
	}
	e.state.Level = e.state.Level.Next(whole, e.now, e.signal.averagedOver())
	level := e.state.Level.Value
	current := m.down
	m.down = max(0, m.down+level-whole)
	if e.p.DownWindow() < levelSettles*e.signal.averagedOver() { // which does not wait until an average has risen
		m.down = max(m.down, current)
	}
	now := min(m.up, whole)
	m.up, m.whole = max(0, now+level-whole), level
	if e.signal.Law != Batching {
		m.keepUp(e, now, whole, current)
	}
	return m
}

// keepUp keeps a long average from deciding later than the HorizontalPodAutoscaler, which takes
// each reading as it is. What a few seconds ask for beyond its tolerance counts at once. So does
// a reading below the average: the window downward has what was needed before it. now, whole and
// down are what the reading asks for.
func (m *measure) keepUp(e *evaluation, now, whole, down float64) {
	if e.signal.isShare() {
		e.state.Quick = e.state.Quick.Next(whole, e.now, quickSpan)
		if quick := e.state.Quick.Value; quick > float64(e.base())*(1+DefaultTolerance) {
			m.up, m.whole = max(m.up, now+quick-whole), max(m.whole, quick)
		}
	}
	m.up, m.whole, m.down = min(m.up, now), min(m.whole, whole), min(m.down, down)
}

// replicas is more than current if the measured load alone needs more, and less
// than that if less is enough even with every replica without a reading full.
func (m *measure) replicas(current int32) int32 {
	return max(facts.Replicas(m.up), min(facts.Replicas(m.down), current))
}

// isCovered reports whether enough replicas have a reading.
func (m *measure) isCovered() bool { return float64(m.fresh) >= coverage*float64(m.of-m.young) }
