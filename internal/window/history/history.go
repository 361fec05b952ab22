// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"math"
	"time"
	"unicode/utf8"
)

// Limits of what a workload's row may have. Names are chosen by tenants.
const (
	// MaxName is the longest namespace, kind or name: Kubernetes allows 253 bytes.
	MaxName = 253
	// MaxMetric is the longest metric with its labels, in bytes.
	MaxMetric = 512
	// MaxSignal is the longest name of a signal, in bytes. It fits into MaxMetric with its
	// escapes, its unit and its scope.
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

// Value is the aggregate of a metric over one minute.
type Value struct {
	Metric Metric
	Mean   float64 // over the readings of the minute
	Max    float64 // the highest reading; NaN: unknown
	// Count is the mean number of GPUs with a value; NaN: it does not apply, or it is
	// unknown. Mean × Count is the sum over them.
	Count float64
}

// Reading returns a value that is read once, of a metric that is not over GPUs.
func Reading(m Metric, v float64) Value { return Value{Metric: m, Mean: v, Max: v, Count: math.NaN()} }

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
