// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
)

// histograms are native ones: with buckets of each kind of boundaries, and without any.
func histograms() []*histogram.FloatHistogram {
	return []*histogram.FloatHistogram{
		{
			Schema: 1, Count: 12.5, Sum: -3.25, ZeroThreshold: 0.001, ZeroCount: 2,
			PositiveSpans: []histogram.Span{{Offset: -2, Length: 2}, {Offset: 1, Length: 1}}, PositiveBuckets: []float64{1, 0, 4.5},
			NegativeSpans: []histogram.Span{{Offset: 3, Length: 2}}, NegativeBuckets: []float64{2, 3},
		},
		{Schema: histogram.CustomBucketsSchema, Count: 3, Sum: 9, CustomValues: []float64{1, 2.5}, PositiveSpans: []histogram.Span{{Length: 3}}, PositiveBuckets: []float64{1, 1, 1}},
		{Schema: 0, Count: 0, Sum: math.NaN()},
	}
}

// The values are those that package promql encodes, which is slower.
func TestEncodeAsPrometheus(t *testing.T) {
	f := func(got []byte, reference any) {
		t.Helper()
		text, err := json.Marshal(reference)
		if err != nil {
			t.Fatal(err)
		}
		var a, b any
		if err := json.Unmarshal(got, &a); err != nil {
			t.Fatalf("%v: %s", err, got)
		}
		if err := json.Unmarshal(text, &b); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(b, a); d != "" {
			t.Errorf("(-Prometheus +got)\n%s", d)
		}
	}
	l := labels.FromStrings("__name__", "x", "é", "\"<\x01")
	var points []promql.HPoint
	for i, h := range histograms() {
		s := promql.Sample{Metric: l, T: 1_800_000_000_007 + int64(i), H: h}
		f(appendSample(nil, &s), s)
		points = append(points, promql.HPoint{T: int64(i) - 1500, H: h})
	}
	for _, v := range []float64{0, 1.5, -2, math.Inf(1), math.NaN(), 123456789.125} {
		s := promql.Sample{Metric: labels.EmptyLabels(), T: 999, F: v}
		f(appendSample(nil, &s), s)
	}
	for _, s := range []promql.Series{
		{Metric: l, Histograms: points}, {Metric: l, Histograms: points, Floats: []promql.FPoint{{T: 1, F: 2}, {T: 2, F: 3}}}, {Metric: l, Floats: []promql.FPoint{{T: -1, F: 2}}}, {Metric: l},
	} {
		f(appendRange(nil, &s), s)
	}
}

// No answer is longer than the limit, whatever it has.
func TestLongAnswers(t *testing.T) {
	long := strings.Repeat("x", maxAnswer/4)
	f := func(data any, want string) {
		t.Helper()
		b, err := appendAnswer(nil, "", data, nil)
		if want == "" && (err != nil || len(b) > maxAnswer+100) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%T: %d bytes, %v, want %q", data, len(b), err, want)
		}
		if n := estimate(data); want == "" && n < int64(len(b))*9/10 {
			t.Errorf("%T: the estimate is %d of %d bytes", data, n, len(b))
		}
	}
	const tooLong = "more than 32 MiB: select fewer series"
	sets := func(n int) (out []labels.Labels) {
		for range n {
			out = append(out, labels.FromStrings("a", long))
		}
		return out
	}
	vector := func(n int) (out promql.Vector) {
		for _, l := range sets(n) {
			out = append(out, promql.Sample{Metric: l})
		}
		return out
	}
	f(sets(3), "")
	f(sets(4), tooLong)
	f([]string{long, long, long}, "")
	f([]string{long, long, long, long}, tooLong)
	f(vector(3), "")
	f(vector(4), tooLong)
	f(promql.Matrix{{Metric: sets(1)[0], Floats: make([]promql.FPoint, 1000), Histograms: []promql.HPoint{{H: histograms()[0]}}}}, "")
	f(func() {}, "encode the answer")
}
