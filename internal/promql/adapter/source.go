// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"context"
	"errors"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpupilot/gpupilot/internal/promql/source"
)

// Source is a source of custom metrics, such as the metrics API asks: the rules of a
// Server.
type Source struct {
	server *Server

	mu    sync.Mutex
	of    []Listed // that infos were made of
	infos []source.Metric
}

// Source returns the metrics of objects as a source.
func (s *Server) Source() *Source { return &Source{server: s} }

// Metrics lists what the rules serve now. While nothing changes, it is the same list.
func (s *Source) Metrics() []source.Metric {
	listed := s.server.Metrics()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(listed) == len(s.of) && (len(listed) == 0 || &listed[0] == &s.of[0]) {
		return s.infos
	}
	s.of, s.infos = listed, make([]source.Metric, len(listed))
	for i, m := range listed {
		s.infos[i] = source.Metric{GroupResource: m.Resource, Namespaced: m.Namespaced, Metric: m.Name}
	}
	return s.infos
}

// Values returns the values of a metric for some objects. The error is
// source.ErrUnknownMetric, or an API status error.
func (s *Source) Values(ctx context.Context, q source.Query) ([]source.Value, error) {
	values, err := s.server.Values(ctx, q.Metric, &Objects{Resource: q.Resource, Namespace: q.Namespace, Names: q.Names, Selector: q.Selector}, q.Now)
	if err != nil {
		return nil, statusError(err)
	}
	out := make([]source.Value, len(values))
	for i, v := range values {
		out[i] = source.Value{Name: v.Name, Value: v.Value, At: v.At}
	}
	return out, nil
}

// statusError returns the API error of a request. What the backend says is only logged.
func statusError(err error) error {
	switch {
	case errors.Is(err, ErrUnknown):
		return source.ErrUnknownMetric
	case errors.Is(err, ErrRequest):
		return apierrors.NewBadRequest(err.Error())
	}
	return apierrors.NewServiceUnavailable("the query of the metric failed; the log of the controller has the reason")
}
