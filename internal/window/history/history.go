// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of what a workload's row may have. Names are chosen by tenants.
const (
	// MaxName is the longest namespace, kind or name: Kubernetes allows 253 bytes.
	MaxName = 253
	// MaxMetric is the longest metric's name, in bytes.
	MaxMetric = 200
	// MaxSignal is the longest name of a signal, in bytes. Its unit and scope fit beside it.
	MaxSignal = 130
	// MaxMetrics is the most metrics that a workload has within the retention.
	MaxMetrics = 256
)

// Retention is how far back the minutes go.
const Retention = 14 * 24 * time.Hour

// Workload identifies what a row is about.
type Workload struct {
	Namespace string
	Kind      string // such as GPUAutoscaler or Deployment
	Name      string
}

// String returns KIND NAMESPACE/NAME.
func (w Workload) String() string { return w.Kind + " " + w.Namespace + "/" + w.Name }

// check returns an error if a name is empty or too long.
func (w Workload) check() error {
	for _, x := range []struct{ what, name string }{{"namespace", w.Namespace}, {"kind", w.Kind}, {"name", w.Name}} {
		if x.name == "" || len(x.name) > MaxName || !utf8.ValidString(x.name) {
			return fmt.Errorf("the %s has %d bytes, want 1 to %d of UTF-8", x.what, len(x.name), MaxName)
		}
	}
	return nil
}

// Metric names a metric of a workload as GROUP/NAME, such as replicas/serving.
type Metric string

// The groups of metrics.
const (
	GroupReplicas = "replicas" // by state: current, desired, serving, starting, unschedulable
	GroupGPUs     = "gpus"     // by state: allocated, active
	GroupSignal   = "signal"   // a GPUAutoscaler's signals as decided on: see NewSignal
	GroupRequests = "requests" // requests/s that arrive at all replicas, by signal
	GroupPods     = "pods"     // sums over the serving pods of pods' own metrics, such as queued requests
	GroupGPU      = "gpu"      // a field of the allocated GPUs
	GroupActive   = "active"   // a field of the active GPUs
)

// NewMetric returns the metric of a group. Longer names are cut to MaxMetric bytes.
func NewMetric(group, name string) Metric {
	m := group + "/" + name
	return Metric(strings.ToValidUTF8(m[:min(len(m), MaxMetric)], ""))
}

// NewSignal returns the metric of a signal's value: signal/NAME, with its unit and whether
// it is per replica or per workload. Values that differ in these are different metrics. A
// name that is too long is cut.
func NewSignal(name, unit, per string) Metric {
	clean := func(s string) string {
		return strings.ToValidUTF8(strings.ReplaceAll(s[:min(len(s), maxSignalLabel)], signalSeparator, "/"), "")
	}
	end := signalSeparator + clean(unit) + signalSeparator + clean(per)
	m := GroupSignal + "/" + name
	return Metric(strings.ToValidUTF8(m[:min(len(m), MaxMetric-len(end))], "") + end)
}

// The end of a signal's metric: |UNIT|PER.
const (
	signalSeparator = "|"
	maxSignalLabel  = 40 // bytes of a unit
)

// Signal returns the name, the unit and the scope of a signal's value; ok is false for
// another metric, and for a signal without them.
func (m Metric) Signal() (name, unit, per string, ok bool) {
	group, rest := m.Split()
	last := strings.LastIndex(rest, signalSeparator)
	if group != GroupSignal || last < 0 {
		return "", "", "", false
	}
	first := strings.LastIndex(rest[:last], signalSeparator)
	if first < 0 {
		return "", "", "", false
	}
	return rest[:first], rest[first+1 : last], rest[last+1:], true
}

// Base returns GROUP/NAME without the unit and the scope of a signal.
func (m Metric) Base() Metric {
	if name, _, _, ok := m.Signal(); ok {
		return GroupSignal + "/" + Metric(name)
	}
	return m
}

// valid reports whether a metric can be stored.
func (m Metric) valid() bool { return m != "" && len(m) <= MaxMetric && utf8.ValidString(string(m)) }

// Split returns the group and the name of a metric.
func (m Metric) Split() (group, name string) {
	group, name, _ = strings.Cut(string(m), "/")
	return group, name
}

// Value is the aggregate of a metric over one minute.
type Value struct {
	Metric Metric
	Mean   float64 // over the readings of the minute
	Max    float64 // the highest reading; NaN: unknown
	// Count is the mean number of pods or GPUs with a value; NaN: it does not apply, or
	// it is unknown. Mean × Count is the sum over them.
	Count float64
}

// Row is a workload's metrics in one minute. Only metrics with a mean are in it.
type Row struct {
	At     time.Time // the start of the minute
	Values []Value
}

// minuteOf returns the number of the minute since 1970.
func minuteOf(t time.Time) int64 {
	s := t.Unix()
	if s < 0 {
		return -1
	}
	return s / 60
}

// timeOf returns the start of a minute.
func timeOf(minute int64) time.Time { return time.Unix(minute*60, 0).UTC() }

// maxMinute is the last minute that can be stored: of the year 6053.
const maxMinute = math.MaxInt32

// The bits of a float32 that a value keeps: the sign, the exponent and the first 12 of
// the 23 bits of its fraction.
const (
	droppedBits = 11
	missing     = uint32(0x7fc00000) // a quiet NaN
)

// narrow returns the stored form of a value. NaN, infinities and values beyond the range
// of a float32 are missing.
func narrow(v float64) uint32 {
	f := float32(v)
	if f != f || math.IsInf(float64(f), 0) {
		return missing
	}
	b := (math.Float32bits(f) + 1<<(droppedBits-1)) &^ (1<<droppedBits - 1)
	if b&0x7f800000 == 0x7f800000 { // rounded up to an infinity
		return missing
	}
	return b
}

// widen is the inverse of narrow. A missing value is NaN.
func widen(b uint32) float64 {
	f := math.Float32frombits(b)
	if f != f || math.IsInf(float64(f), 0) {
		return math.NaN()
	}
	return float64(f)
}
