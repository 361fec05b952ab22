// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A HorizontalPodAutoscaler is deleted only after its controller has seen that it is
// stopped: a sync that began before the deletion may write replicas after it. Until
// Kubernetes 1.37 no field says which version of the spec the controller has seen, so the
// stopped object has a metric of a name of its own, which appears in the controller's next
// condition. Nobody serves that metric, and if somebody did, both directions are disabled.

const (
	// stoppedAnnotation of a stopped HorizontalPodAutoscaler has its own metrics and behavior.
	stoppedAnnotation = "gpupilot.dev/stopped"
	// stopMetric begins the name of the metric of a stopped HorizontalPodAutoscaler.
	stopMetric = "gpupilot-takes-over-"

	// pausedAnnotation is KEDA's: its controller stops its loop, and deletes its HorizontalPodAutoscaler.
	pausedAnnotation         = "autoscaling.keda.sh/paused"
	pausedReplicasAnnotation = "autoscaling.keda.sh/paused-replicas"
	// pausedBy of a paused ScaledObject names the GPUAutoscaler that took over.
	pausedBy = "gpupilot.dev/adopted-by"
)

var hpaKind = schema.GroupVersionKind{Group: "autoscaling", Version: "v2", Kind: kindHPA}

// ownFields are the fields of a HorizontalPodAutoscaler that stopping it replaces.
type ownFields struct {
	Metrics  any `json:"metrics,omitempty"`
	Behavior any `json:"behavior,omitempty"`
}

// stopped returns a HorizontalPodAutoscaler that sets no replicas.
func stopped(u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	u = original(u)
	spec, _, _ := unstructured.NestedMap(u.Object, "spec")
	own, err := json.Marshal(ownFields{spec["metrics"], spec["behavior"]})
	if err != nil {
		return nil, err
	}
	id := make([]byte, 4)
	_, _ = rand.Read(id) // never fails
	disabled := map[string]any{"selectPolicy": "Disabled"}
	spec["behavior"] = map[string]any{"scaleUp": disabled, "scaleDown": maps.Clone(disabled)}
	spec["metrics"] = []any{map[string]any{"type": "External", "external": map[string]any{
		"metric": map[string]any{"name": stopMetric + hex.EncodeToString(id)},
		"target": map[string]any{"type": "Value", "value": "1"},
	}}}
	u.Object["spec"] = spec
	setAnnotations(u, map[string]string{stoppedAnnotation: string(own)})
	return u, nil
}

// stopMetricOf returns the name of the metric of a stopped HorizontalPodAutoscaler; empty:
// it is not stopped.
func stopMetricOf(u *unstructured.Unstructured) string {
	metrics, _, _ := unstructured.NestedSlice(u.Object, "spec", "metrics")
	if len(metrics) != 1 {
		return ""
	}
	m, _ := metrics[0].(map[string]any)
	name, _, _ := unstructured.NestedString(m, "external", "metric", "name")
	if !strings.HasPrefix(name, stopMetric) {
		return ""
	}
	for _, direction := range []string{"scaleUp", "scaleDown"} {
		if p, _, _ := unstructured.NestedString(u.Object, "spec", "behavior", direction, "selectPolicy"); p != "Disabled" {
			return ""
		}
	}
	return name
}

// isStopped reports whether an object of either kind was stopped by adopt.
func isStopped(u *unstructured.Unstructured) bool {
	a := u.GetAnnotations()
	if u.GetKind() == kindScaledObject {
		return a[pausedBy] != "" && isPaused(u)
	}
	return a[stoppedAnnotation] != "" && stopMetricOf(u) != ""
}

// isPaused reports whether KEDA shall not scale. KEDA takes what is no boolean for true.
func isPaused(u *unstructured.Unstructured) bool {
	value, ok := u.GetAnnotations()[pausedAnnotation]
	paused, err := strconv.ParseBool(value)
	return ok && (paused || err != nil)
}

// hasSeenStop reports whether the controller of an object has seen that it is stopped, and
// says what is missing. KEDA deletes its HorizontalPodAutoscaler, which is another object.
func hasSeenStop(u *unstructured.Unstructured) (missing string) {
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	metric := stopMetricOf(u)
	for _, c := range conditions {
		c, _ := c.(map[string]any)
		message, _ := c["message"].(string)
		if u.GetKind() == kindHPA && strings.Contains(message, metric) || u.GetKind() == kindScaledObject && c["type"] == "Paused" && c["status"] == "True" {
			return ""
		}
	}
	if u.GetKind() == kindScaledObject {
		return "KEDA's operator has not set the condition Paused"
	}
	return fmt.Sprintf("no condition of the HorizontalPodAutoscaler names the metric %s, so kube-controller-manager has not synced it", metric)
}

// original returns an object of either kind as it was before it was stopped.
func original(u *unstructured.Unstructured) *unstructured.Unstructured {
	u = u.DeepCopy()
	if u.GetKind() == kindScaledObject {
		if u.GetAnnotations()[pausedBy] != "" {
			setAnnotations(u, map[string]string{pausedBy: "", pausedAnnotation: ""})
		}
		return u
	}
	text := u.GetAnnotations()[stoppedAnnotation]
	var own ownFields
	if isStopped(u) && json.Unmarshal([]byte(text), &own) == nil {
		for field, value := range map[string]any{"metrics": own.Metrics, "behavior": own.Behavior} {
			if unstructured.RemoveNestedField(u.Object, "spec", field); value != nil {
				_ = unstructured.SetNestedField(u.Object, value, "spec", field) // spec is a map: it has the stop metric
			}
		}
	}
	setAnnotations(u, map[string]string{stoppedAnnotation: ""})
	return u
}

// setAnnotations sets annotations, and removes those that are empty.
func setAnnotations(u *unstructured.Unstructured, values map[string]string) {
	a := u.GetAnnotations()
	if a == nil {
		a = map[string]string{}
	}
	for k, v := range values {
		if a[k] = v; v == "" {
			delete(a, k)
		}
	}
	if len(a) == 0 {
		a = nil
	}
	u.SetAnnotations(a)
}
