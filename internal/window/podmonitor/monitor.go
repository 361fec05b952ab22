// SPDX-License-Identifier: Apache-2.0

// Package podmonitor reads the Prometheus Operator's PodMonitors: which pods they
// select, the endpoints of these pods, and the labels of their series. Tenants write
// PodMonitors. They choose a port, a path and labels of their own pods, and no host, no
// credential and no namespace.
package podmonitor

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// Kind is the kind of the objects.
var Kind = schema.GroupVersionKind{Group: "monitoring.coreos.com", Version: "v1", Kind: "PodMonitor"}

// Monitor is a PodMonitor, without the endpoints that are refused. It does not change.
type Monitor struct {
	Namespace, Name string
	Created         time.Time
	Trusted         bool // it may select pods of other namespaces

	Selector   labels.Selector
	Namespaces []string // of the pods; empty: all namespaces
	Endpoints  []Endpoint
}

// Endpoint is a port and a path of each selected pod.
type Endpoint struct {
	Port     intstr.IntOrString // name or number of a container port
	Path     string
	TLS      *policy.TLS   // nil: plain HTTP
	Interval time.Duration // between two scrapes; the scraper's if that is longer

	monitor   *Monitor
	jobLabel  string   // of the pod; its value is the job
	podLabels []string // of the pod, copied to the series
	relabel   []step
}

// maxEndpoints bounds the endpoints of one PodMonitor.
const maxEndpoints = 8

// The parts of the spec that are read in a type of their own. Endpoints are maps, so
// that fields without support are found.
type spec struct {
	JobLabel          string               `json:"jobLabel"`
	PodTargetLabels   []string             `json:"podTargetLabels"`
	Selector          metav1.LabelSelector `json:"selector"`
	NamespaceSelector struct {
		Any        bool     `json:"any"`
		MatchNames []string `json:"matchNames"`
	} `json:"namespaceSelector"`
	Endpoints []map[string]any `json:"podMetricsEndpoints"`
}

// Parse reads a PodMonitor. trusted reports whether it may select pods of other
// namespaces than its own. problems are for the object's author; each names a field.
// The result is nil if nothing of the object can be used.
func Parse(u *unstructured.Unstructured, trusted bool) (m *Monitor, problems []string) {
	var s spec
	fields, _, err := unstructured.NestedMap(u.Object, "spec")
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &s)
	}
	if err != nil {
		return nil, []string{"spec cannot be read: " + err.Error()}
	}
	m = &Monitor{Namespace: u.GetNamespace(), Name: u.GetName(), Created: u.GetCreationTimestamp().Time, Trusted: trusted}
	if n := values(&s.Selector); n > maxPodLabels {
		return nil, []string{fmt.Sprintf("spec.selector has %d values, at most %d are supported", n, maxPodLabels)}
	}
	if m.Selector, err = metav1.LabelSelectorAsSelector(&s.Selector); err != nil {
		return nil, []string{"spec.selector: " + err.Error()}
	}
	if err := m.setNamespaces(&s); err != nil {
		return nil, []string{err.Error()}
	}
	if len(s.PodTargetLabels) > maxSourceLabels {
		return nil, []string{fmt.Sprintf("spec.podTargetLabels has %d labels, at most %d are supported", len(s.PodTargetLabels), maxSourceLabels)}
	}
	if len(s.Endpoints) > maxEndpoints {
		problems = append(problems, fmt.Sprintf("spec.podMetricsEndpoints has %d endpoints, only the first %d are scraped", len(s.Endpoints), maxEndpoints))
		s.Endpoints = s.Endpoints[:maxEndpoints]
	}
	relabelings := 0
	for i, fields := range s.Endpoints {
		at := fmt.Sprintf("spec.podMetricsEndpoints[%d]", i)
		e, note, err := parseEndpoint(fields)
		if err != nil {
			problems = append(problems, at+"."+err.Error())
			continue
		}
		if note != "" {
			problems = append(problems, at+"."+note)
		}
		if relabelings += len(e.relabel); relabelings > maxRelabelings {
			problems = append(problems, fmt.Sprintf("%s.relabelings: the PodMonitor has more than %d relabelings", at, maxRelabelings))
			break
		}
		e.monitor, e.jobLabel, e.podLabels = m, s.JobLabel, s.PodTargetLabels
		m.Endpoints = append(m.Endpoints, e)
	}
	if len(m.Endpoints) == 0 {
		m = nil
	}
	return m, problems
}

// values returns the number of values that a selector compares with.
func values(s *metav1.LabelSelector) (n int) {
	n = len(s.MatchLabels)
	for i := range s.MatchExpressions {
		n += max(1, len(s.MatchExpressions[i].Values))
	}
	return n
}

// setNamespaces sets the namespaces of the pods.
func (m *Monitor) setNamespaces(s *spec) error {
	n := &s.NamespaceSelector
	others := n.Any || slices.ContainsFunc(n.MatchNames, func(name string) bool { return name != m.Namespace })
	switch {
	case others && !m.Trusted:
		return fmt.Errorf("spec.namespaceSelector selects other namespaces than %s: the operator allows that with --query-namespaces", m.Namespace)
	case n.Any:
	case len(n.MatchNames) > 0:
		m.Namespaces = slices.Compact(slices.Sorted(slices.Values(n.MatchNames)))
	default:
		m.Namespaces = []string{m.Namespace}
	}
	return nil
}

// ID identifies a PodMonitor in messages.
func (m *Monitor) ID() string { return ID(m.Namespace, m.Name) }

// ID is the identity of the PodMonitor with these names.
func ID(namespace, name string) string { return "PodMonitor/" + namespace + "/" + name }
