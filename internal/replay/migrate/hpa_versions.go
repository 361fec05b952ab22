// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// hpaObject is what is read of a HorizontalPodAutoscaler of any version: autoscaling/v1,
// v2beta1, v2beta2 or v2. The fields decide which form a metric has, because published
// files mix them. The types of k8s.io/api would double the size of the program.
type hpaObject struct {
	Metadata objectMeta `json:"metadata"`
	Spec     struct {
		ScaleTargetRef v1alpha1.CrossVersionObjectReference `json:"scaleTargetRef"`
		MinReplicas    *int32                               `json:"minReplicas"`
		MaxReplicas    int32                                `json:"maxReplicas"`
		Metrics        []hpaMetric                          `json:"metrics"`
		Behavior       *v1alpha1.Behavior                   `json:"behavior"`
		CPUPercent     *int32                               `json:"targetCPUUtilizationPercentage"` // v1
	} `json:"spec"`
}

// The annotations in which autoscaling/v1 keeps what it has no fields for: metrics in the
// form of v2beta1, and the behavior.
const (
	metricsAnnotation  = "autoscaling.alpha.kubernetes.io/metrics"
	behaviorAnnotation = "autoscaling.alpha.kubernetes.io/behavior"
)

// hpaMetric is one metric of an HPA.
type hpaMetric struct {
	Type     string `json:"type"`
	Resource *struct {
		Name   string    `json:"name"`
		Target hpaTarget `json:"target"`
		beta1Metric
	} `json:"resource"`
	ContainerResource *struct {
		Name      string    `json:"name"`
		Container string    `json:"container"`
		Target    hpaTarget `json:"target"`
		beta1Metric
	} `json:"containerResource"`
	Pods *struct {
		Metric metricID  `json:"metric"`
		Target hpaTarget `json:"target"`
		beta1Metric
	} `json:"pods"`
	Object *struct {
		DescribedObject v1alpha1.CrossVersionObjectReference `json:"describedObject"`
		Metric          metricID                             `json:"metric"`
		// Target is the target; in v2beta1, where it has a name, the described object.
		Target struct {
			hpaTarget
			v1alpha1.CrossVersionObjectReference
		} `json:"target"`
		beta1Metric
	} `json:"object"`
	External *struct {
		Metric metricID  `json:"metric"`
		Target hpaTarget `json:"target"`
		beta1Metric
	} `json:"external"`
}

// metricID names a metric.
type metricID struct {
	Name     string                `json:"name"`
	Selector *metav1.LabelSelector `json:"selector"`
}

// hpaTarget is the target of a metric.
type hpaTarget struct {
	Type         string             `json:"type"`
	Value        *resource.Quantity `json:"value"`
	AverageValue *resource.Quantity `json:"averageValue"`
	Percent      *int32             `json:"averageUtilization"`
}

// get returns the target's value; nil if it is a percentage or missing.
func (t *hpaTarget) get() (*resource.Quantity, v1alpha1.TargetType) {
	if t.AverageValue != nil {
		return t.AverageValue, v1alpha1.AverageValue
	}
	return t.Value, v1alpha1.Value
}

// String lists the values of a target.
func (t *hpaTarget) String() string {
	var out []string
	for _, v := range []struct {
		name  string
		value *resource.Quantity
	}{{"value", t.Value}, {"averageValue", t.AverageValue}} {
		if v.value != nil {
			out = append(out, v.name+" "+v.value.String())
		}
	}
	if t.Percent != nil {
		out = append(out, fmt.Sprintf("averageUtilization %d", *t.Percent))
	}
	if t.Type != "" {
		out = append(out, "type "+t.Type)
	}
	return cmp.Or(strings.Join(out, ", "), "an empty target")
}

// beta1Metric has the fields that v2beta1 has in place of metric and target.
type beta1Metric struct {
	MetricName         string                `json:"metricName"`
	Selector           *metav1.LabelSelector `json:"selector"`
	MetricSelector     *metav1.LabelSelector `json:"metricSelector"` // of external
	TargetValue        *resource.Quantity    `json:"targetValue"`
	TargetAverageValue *resource.Quantity    `json:"targetAverageValue"`
	AverageValue       *resource.Quantity    `json:"averageValue"` // of object
	TargetPercent      *int32                `json:"targetAverageUtilization"`
}

// fill sets what the fields of v2 lack.
func (b *beta1Metric) fill(m *metricID, t *hpaTarget) {
	if m.Name == "" {
		m.Name = b.MetricName
	}
	// A series of Google's Managed Prometheus, such as prometheus.googleapis.com|up|gauge.
	if parts := strings.Split(m.Name, "|"); len(parts) == 3 && parts[0] == "prometheus.googleapis.com" {
		m.Name = parts[1]
	}
	for _, s := range []*metav1.LabelSelector{b.Selector, b.MetricSelector} {
		if m.Selector == nil {
			m.Selector = s
		}
	}
	if t.Value == nil {
		t.Value = b.TargetValue
	}
	for _, average := range []*resource.Quantity{b.TargetAverageValue, b.AverageValue} {
		if t.AverageValue == nil {
			t.AverageValue = average
		}
	}
	if t.Percent == nil {
		t.Percent = b.TargetPercent
	}
}

// name returns the name of a metric that is not of a resource.
func (m *hpaMetric) name() string {
	switch {
	case m.Pods != nil:
		return m.Pods.Metric.Name
	case m.Object != nil:
		return m.Object.Metric.Name
	case m.External != nil:
		return m.External.Metric.Name
	}
	return ""
}

// toV2 gives a metric the form of v2.
func (m *hpaMetric) toV2() {
	switch {
	case m.Resource != nil:
		m.Resource.fill(new(metricID), &m.Resource.Target)
	case m.ContainerResource != nil:
		m.ContainerResource.fill(new(metricID), &m.ContainerResource.Target)
	case m.Pods != nil:
		m.Pods.fill(&m.Pods.Metric, &m.Pods.Target)
	case m.Object != nil:
		m.Object.fill(&m.Object.Metric, &m.Object.Target.hpaTarget)
		if m.Object.DescribedObject.Name == "" {
			m.Object.DescribedObject = m.Object.Target.CrossVersionObjectReference
		}
	case m.External != nil:
		m.External.fill(&m.External.Metric, &m.External.Target)
	}
}

// readHPA reads an HPA of any version. The annotations of v1 count where the spec has no
// field of the same meaning, as in the API server.
func readHPA(text []byte) (in hpaObject, rest unread, written any, err error) {
	if rest, written, err = decode(text, &in); err != nil {
		return in, nil, nil, err
	}
	fromAnnotation := func(key string, has bool, to any) error {
		value := in.Metadata.Annotations[key]
		if value == "" || has {
			return nil
		}
		if err := json.Unmarshal([]byte(value), to); err != nil {
			return fmt.Errorf("metadata.annotations[%s]: %w", key, err)
		}
		return nil
	}
	err = errors.Join(
		fromAnnotation(metricsAnnotation, len(in.Spec.Metrics) > 0, &in.Spec.Metrics),
		fromAnnotation(behaviorAnnotation, in.Spec.Behavior != nil, &in.Spec.Behavior),
	)
	for i := range in.Spec.Metrics {
		in.Spec.Metrics[i].toV2()
	}
	return in, rest, written, err
}
