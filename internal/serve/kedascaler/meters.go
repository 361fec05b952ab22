// SPDX-License-Identifier: Apache-2.0

package kedascaler

import (
	"path"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

// meters holds the scaler's metrics.
type meters struct {
	requests *prometheus.CounterVec
	duration prometheus.Histogram
	streams  prometheus.GaugeFunc
}

func newMeters(s *Server) *meters {
	return &meters{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpupilot_keda_requests_total", Help: "Requests of KEDA, by method and gRPC status code. A stream counts when it ends.",
		}, []string{"method", "code"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gpupilot_keda_request_duration_seconds", Help: "Time that a request of KEDA took, without streams.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 4, 8),
		}),
		streams: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "gpupilot_keda_streams", Help: "Open streams of external-push triggers.",
		}, func() float64 { return float64(s.streams.count()) }),
	}
}

func (m *meters) observe(method string, code codes.Code, took time.Duration) {
	m.count(method, code)
	m.duration.Observe(took.Seconds())
}

// count counts a request. The method is one of the service's: package grpc answers
// unknown ones itself.
func (m *meters) count(method string, code codes.Code) {
	m.requests.WithLabelValues(path.Base(method), code.String()).Inc()
}

// Describe implements prometheus.Collector.
func (s *Server) Describe(ch chan<- *prometheus.Desc) {
	s.meters.requests.Describe(ch)
	s.meters.duration.Describe(ch)
	s.meters.streams.Describe(ch)
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	s.meters.requests.Collect(ch)
	s.meters.duration.Collect(ch)
	s.meters.streams.Collect(ch)
}
