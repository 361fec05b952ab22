// SPDX-License-Identifier: Apache-2.0

// Package source is the request that a source of custom metrics answers: recording
// rules and prometheus-adapter's rules are sources, the metrics API asks them. External metrics have requests of their
// own.
package source

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Query is a request for the values of a metric.
type Query struct {
	Resource  schema.GroupResource // of the objects, such as deployments.apps
	Namespace string               // empty for cluster-scoped objects
	Names     []string             // the objects; they exist, and pods among them are serving
	Metric    string
	Selector  labels.Selector // of the metric; never nil
	Now       time.Time
}

// Metric is a metric of the objects of a resource. It has the fields of CustomMetricInfo in
// custom-metrics-apiserver, whose package brings a whole API server into each program.
type Metric struct {
	GroupResource schema.GroupResource
	Namespaced    bool
	Metric        string
}

// String is the same as that of CustomMetricInfo.
func (m Metric) String() string {
	s := m.GroupResource.String() + "/" + m.Metric
	if m.Namespaced {
		s += "(namespaced)"
	}
	return s
}

// Value is the value of one object.
type Value struct {
	Name   string        // of the object
	Value  float64       // NaN and infinities are not served
	At     time.Time     // of the oldest sample that is included
	Window time.Duration // 0: instantaneous
}

// ErrUnknownMetric means that a Source does not serve the metric of the resource.
var ErrUnknownMetric = errors.New("the source does not serve this metric")

// ExternalQuery is a request for the values of an external metric.
type ExternalQuery struct {
	Namespace, Metric string
	Selector          labels.Selector // never nil
	Now               time.Time
}

// ExternalValue is one value of an external metric.
type ExternalValue struct {
	Labels map[string]string
	Value  float64
	At     time.Time // when it was measured or decided
}
