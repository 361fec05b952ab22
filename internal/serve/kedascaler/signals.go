// SPDX-License-Identifier: Apache-2.0

package kedascaler

import (
	"context"
	"errors"
	"time"
)

// ScaledObject is what the scaler reads of a ScaledObject in the API server.
type ScaledObject struct {
	Namespace, Name string
	Target          ScaleTarget
	MinReplicas     int32 // minReplicaCount; KEDA's default is 0
	Triggers        []ObjectTrigger
}

// ScaleTarget is a scale target, in the ScaledObject's namespace.
type ScaleTarget struct{ APIVersion, Kind, Name string }

// ObjectTrigger is a trigger as the ScaledObject has it.
type ObjectTrigger struct {
	Type       string // such as external or external-push
	MetricType string // AverageValue or Value; empty: AverageValue
	Metadata   map[string]string
}

// WorkloadQuery asks for a metric of a workload's serving pods.
type WorkloadQuery struct {
	Namespace string
	Target    ScaleTarget
	Metric    string        // a GPU metric of any profile, or a pod metric that is scraped
	Stat      string        // how the pods' values are combined: avg, sum, min, max or a percentile such as p95
	Window    time.Duration // over which values are taken; 0: the newest
	Active    bool          // only pods whose GPUs were used within the window
}

// WorkloadValue is the answer to a WorkloadQuery.
type WorkloadValue struct {
	Value   float64 // of the statistic
	At      time.Time
	Serving int // pods that serve
	Pods    int // pods that are not finished, starting ones included
}

// Sample is a value with the time at which it was measured or decided.
type Sample struct {
	Value float64
	At    time.Time
}

// Signals reads what triggers name. It is called often and from several goroutines, so
// it answers from memory where it can. Its errors wrap ErrNotFound, ErrInvalid or
// ErrNoValue; their text is shown in the ScaledObject's events.
type Signals interface {
	// ScaledObject returns a ScaledObject from memory or, with live, from the API server.
	ScaledObject(ctx context.Context, namespace, name string, live bool) (*ScaledObject, error)
	Workload(ctx context.Context, q *WorkloadQuery) (WorkloadValue, error)
	// Desired returns the desired replicas of a GPUAutoscaler.
	Desired(namespace, autoscaler string) (Sample, error)
	// Query returns the value of a MetricQuery.
	Query(namespace, name string) (Sample, error)
	// Follow has a MetricQuery evaluated more often, until stop is called.
	Follow(namespace, query string) (stop func())
}

// The kinds of errors of Signals.
var (
	ErrNotFound = errors.New("not found")
	ErrInvalid  = errors.New("invalid")
	ErrNoValue  = errors.New("no value")
)
