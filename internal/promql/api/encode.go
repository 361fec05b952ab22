// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"
)

// The number of annotations in an answer, as in Prometheus.
const (
	maxWarnings = 10
	maxInfos    = 10
)

// errTooLong is the error of an answer of more than maxAnswer bytes.
var errTooLong = &apiError{
	kind: "execution", status: http.StatusUnprocessableEntity,
	err: fmt.Errorf("the answer has more than %d MiB: select fewer series, or use a longer step", maxAnswer>>20),
}

// The estimated bytes of JSON.
const (
	pointBytes  = 36 // [1435781451.781,"12.3456789"],
	seriesBytes = 64 // without its labels
)

// estimate returns the approximate size of an answer in bytes.
func estimate(data any) (n int64) {
	n = 1 << 10
	switch v := data.(type) {
	case promql.Vector:
		for i := range v {
			n += seriesBytes + pointBytes + int64(v[i].Metric.ByteSize())*2
		}
	case promql.Matrix:
		for i := range v {
			n += seriesBytes + int64(v[i].Metric.ByteSize())*2 + pointBytes*int64(len(v[i].Floats)) + 8*pointBytes*int64(len(v[i].Histograms))
		}
	case []labels.Labels:
		for i := range v {
			n += int64(v[i].ByteSize()) * 2
		}
	case []string:
		for i := range v {
			n += int64(len(v[i])) + 4
		}
	}
	return n
}

// appendAnswer appends Prometheus's envelope with data.
func appendAnswer(b []byte, query string, data any, notes annotations.Annotations) ([]byte, error) {
	b = append(b, `{"status":"success","data":`...)
	b, err := appendData(b, data)
	if err != nil {
		return nil, err
	}
	warnings, infos := notes.AsStrings(query, maxWarnings, maxInfos)
	for name, texts := range map[string][]string{"warnings": warnings, "infos": infos} {
		if len(texts) == 0 {
			continue
		}
		b = append(b, `,"`...)
		b = append(b, name...)
		b = append(b, `":`...)
		b, _ = appendJSON(b, texts) // strings can always be encoded
	}
	return append(b, '}'), nil
}

// appendError appends Prometheus's envelope with an error.
func appendError(b []byte, kind, text string) []byte {
	b = append(b, `{"status":"error","errorType":"`...)
	b = append(b, kind...)
	b = append(b, `","error":`...)
	return append(appendString(b, text), '}')
}

// appendData appends a result of the engine, or any other value by encoding/json.
func appendData(b []byte, data any) ([]byte, error) {
	switch v := data.(type) {
	case promql.Scalar:
		b = append(b, `{"resultType":"scalar","result":`...)
		return append(appendPoint(b, v.T, v.V), '}'), nil
	case promql.String:
		b = append(b, `{"resultType":"string","result":[`...)
		b = append(appendTime(b, v.T), ',')
		return append(appendString(b, v.V), `]}`...), nil
	case promql.Vector:
		return appendSeries(b, "vector", len(v), func(b []byte, i int) []byte { return appendSample(b, &v[i]) })
	case promql.Matrix:
		return appendSeries(b, "matrix", len(v), func(b []byte, i int) []byte { return appendRange(b, &v[i]) })
	case []labels.Labels:
		b = append(b, '[')
		for i := range v {
			b = appendLabels(appendComma(b, i), v[i])
			if len(b) > maxAnswer {
				return nil, errTooLong
			}
		}
		return append(b, ']'), nil
	case parser.Value:
		return nil, fmt.Errorf("a result of type %s cannot be encoded", v.Type())
	}
	return appendJSON(b, data)
}

func appendJSON(b []byte, v any) ([]byte, error) {
	x, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	if len(b)+len(x) > maxAnswer {
		return nil, errTooLong
	}
	return append(b, x...), nil
}

func appendSeries(b []byte, kind string, n int, one func([]byte, int) []byte) ([]byte, error) {
	b = append(b, `{"resultType":"`...)
	b = append(b, kind...)
	b = append(b, `","result":[`...)
	for i := range n {
		b = one(appendComma(b, i), i)
		if len(b) > maxAnswer {
			return nil, errTooLong
		}
	}
	return append(b, `]}`...), nil
}

func appendComma(b []byte, i int) []byte {
	if i > 0 {
		return append(b, ',')
	}
	return b
}

func appendSample(b []byte, s *promql.Sample) []byte {
	b = append(b, `{"metric":`...)
	b = appendLabels(b, s.Metric)
	if s.H != nil {
		b = append(b, `,"histogram":`...)
		return append(appendHistogramPoint(b, s.T, s.H), '}')
	}
	b = append(b, `,"value":`...)
	return append(appendPoint(b, s.T, s.F), '}')
}

func appendRange(b []byte, s *promql.Series) []byte {
	b = append(b, `{"metric":`...)
	b = appendLabels(b, s.Metric)
	for i, p := range s.Floats {
		if i == 0 {
			b = append(b, `,"values":[`...)
		}
		b = appendPoint(appendComma(b, i), p.T, p.F)
	}
	if len(s.Floats) > 0 {
		b = append(b, ']')
	}
	for i, p := range s.Histograms {
		if i == 0 {
			b = append(b, `,"histograms":[`...)
		}
		b = appendHistogramPoint(appendComma(b, i), p.T, p.H)
	}
	if len(s.Histograms) > 0 {
		b = append(b, ']')
	}
	return append(b, '}')
}

func appendLabels(b []byte, l labels.Labels) []byte {
	b = append(b, '{')
	i := 0
	l.Range(func(l labels.Label) {
		b = appendString(appendComma(b, i), l.Name)
		b = appendString(append(b, ':'), l.Value)
		i++
	})
	return append(b, '}')
}

func appendPoint(b []byte, t int64, v float64) []byte {
	b = append(appendTime(append(b, '['), t), ',')
	return append(appendFloat(b, v), ']')
}

func appendHistogramPoint(b []byte, t int64, h *histogram.FloatHistogram) []byte {
	b = append(appendTime(append(b, '['), t), `,{"count":`...)
	b = append(appendFloat(b, h.Count), `,"sum":`...)
	b = appendFloat(b, h.Sum)
	n := 0
	for it := h.AllBucketIterator(); it.Next(); {
		x := it.At()
		if x.Count == 0 {
			continue
		}
		if n == 0 {
			b = append(b, `,"buckets":[`...)
		}
		b = appendBucket(appendComma(b, n), x)
		n++
	}
	if n > 0 {
		b = append(b, ']')
	}
	return append(b, `}]`...)
}

// appendBucket appends a bucket as Prometheus does. The first number says which
// boundaries belong to it: 0 the upper, 1 the lower, 2 none, 3 both.
func appendBucket(b []byte, x histogram.Bucket[float64]) []byte {
	boundaries := byte('2')
	switch {
	case x.LowerInclusive && x.UpperInclusive:
		boundaries = '3'
	case x.LowerInclusive:
		boundaries = '1'
	case x.UpperInclusive:
		boundaries = '0'
	}
	b = append(b, '[', boundaries)
	for _, v := range []float64{x.Lower, x.Upper, x.Count} {
		b = appendFloat(append(b, ','), v)
	}
	return append(b, ']')
}

// appendTime appends milliseconds as seconds, with three decimals if there are any.
func appendTime(b []byte, t int64) []byte {
	if t < 0 {
		b, t = append(b, '-'), -t
	}
	b = strconv.AppendInt(b, t/1000, 10)
	if t %= 1000; t != 0 {
		b = append(b, '.', byte('0'+t/100), byte('0'+t/10%10), byte('0'+t%10))
	}
	return b
}

// appendFloat appends a number as a string, so that NaN and infinities are possible.
func appendFloat(b []byte, v float64) []byte {
	format := byte('f')
	if abs := math.Abs(v); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	return append(strconv.AppendFloat(append(b, '"'), v, format, -1, 64), '"')
}

// appendString appends a JSON string.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x80 || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			x, _ := json.Marshal(s) // a string can always be encoded
			return append(b, x...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
