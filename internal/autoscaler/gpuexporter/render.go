// SPDX-License-Identifier: Apache-2.0

package gpuexporter

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// Inputs are what the objects depend on besides the spec.
type Inputs struct {
	Settings   Settings
	Collectors string // the list of metrics, CSV
	// Installed reports whether a kind of the Prometheus Operator is installed.
	Installed func(kind string) bool
}

// Render returns the objects of an exporter, in the order in which they are to be
// applied: what the pods need comes before the DaemonSet. It does not change e.
func Render(e *v1alpha1.GPUExporter, in Inputs) ([]*unstructured.Unstructured, error) {
	config, err := configMap(e, in)
	if err != nil {
		return nil, err
	}
	typed := []runtime.Object{config, service(e, in.Settings), daemonSet(e, in.Settings)}
	if probes(e) {
		typed = append(typed, probeDaemonSet(e, in.Settings))
	}
	var out []*unstructured.Unstructured
	for _, o := range typed {
		u, err := toUnstructured(o)
		if err != nil {
			return nil, err
		}
		out = append(out, u)
	}
	monitors, err := monitoring(e, in)
	if err != nil {
		return nil, err
	}
	out = append(out, monitors...)
	for _, u := range out {
		u.SetNamespace(in.Settings.Namespace)
		u.SetOwnerReferences([]metav1.OwnerReference{ownerReference(e)})
	}
	return out, nil
}

// ownerReference makes the garbage collector delete an object with its GPUExporter.
func ownerReference(e *v1alpha1.GPUExporter) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "GPUExporter", Name: e.Name, UID: e.UID,
		Controller: &yes, BlockOwnerDeletion: &yes,
	}
}

// toUnstructured converts a typed object and removes its unset fields.
func toUnstructured(o runtime.Object) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", o, err)
	}
	delete(fields, "status")
	prune(fields)
	return &unstructured.Unstructured{Object: fields}, nil
}

// prune removes null values, and objects that are empty but for an emptyDir or the like,
// which we do not use.
func prune(fields map[string]any) {
	for key, value := range fields {
		switch v := value.(type) {
		case nil:
			delete(fields, key)
		case map[string]any:
			if prune(v); len(v) == 0 {
				delete(fields, key)
			}
		case []any:
			for _, x := range v {
				if m, ok := x.(map[string]any); ok {
					prune(m)
				}
			}
		}
	}
}

func objectMeta(e *v1alpha1.GPUExporter, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: labelsOf(e, AgentName)}
}

// configMap returns the ConfigMap with the settings that the agent reads again while it
// runs.
func configMap(e *v1alpha1.GPUExporter, in Inputs) (*corev1.ConfigMap, error) {
	every, err := intervalOf(e)
	if err != nil {
		return nil, err
	}
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: objectMeta(e, ObjectName(e)),
		Data: map[string]string{
			collectorsKey: in.Collectors,
			configKey:     fmt.Sprintf("version: 1\ncollection:\n  interval: %dms\n", every.Milliseconds()),
		},
	}, nil
}

// The limits of spec.interval, as in the CRD.
const (
	minInterval = 10 * time.Millisecond
	maxInterval = time.Hour
)

func intervalOf(e *v1alpha1.GPUExporter) (time.Duration, error) {
	if e.Spec.Interval == nil {
		return time.Second, nil
	}
	d := e.Spec.Interval.Duration
	if d < minInterval || d > maxInterval {
		return 0, fmt.Errorf("spec.interval is %s: set a duration from %s to %s", d, minInterval, maxInterval)
	}
	return d.Truncate(time.Millisecond), nil
}

func service(e *v1alpha1.GPUExporter, _ Settings) *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: objectMeta(e, ObjectName(e)),
		Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone, // every agent is scraped by itself
			Selector:  selectorOf(e, AgentName),
			Ports: []corev1.ServicePort{{
				Name: metricsPortName, Port: metricsPort, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString(metricsPortName),
			}},
		},
	}
}

// monitoringVersion is the version of the Prometheus Operator's kinds.
const monitoringVersion = "monitoring.coreos.com/v1"

// monitoring returns the objects of the Prometheus Operator whose kinds are installed.
func monitoring(e *v1alpha1.GPUExporter, in Inputs) (out []*unstructured.Unstructured, err error) {
	m := e.Spec.Monitoring
	if m == nil {
		return nil, nil
	}
	add := func(kind string, labels map[string]string, spec map[string]any) {
		if !in.Installed(kind) {
			return
		}
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": monitoringVersion, "kind": kind, "spec": spec}}
		u.SetName(ObjectName(e))
		all := labelsOf(e, AgentName)
		for k, v := range labels {
			all[k] = v
		}
		u.SetLabels(all)
		out = append(out, u)
	}
	for _, monitor := range []struct {
		kind, endpoints string
		spec            *v1alpha1.MonitorSpec
	}{{"ServiceMonitor", "endpoints", m.ServiceMonitor}, {"PodMonitor", "podMetricsEndpoints", m.PodMonitor}} {
		if monitor.spec == nil {
			continue
		}
		endpoint, err := endpointOf(e, monitor.spec)
		if err != nil {
			return nil, fmt.Errorf("spec.monitoring: %w", err)
		}
		if in.Settings.Tokens && monitor.kind == "ServiceMonitor" && !hasCredentials(endpoint) {
			endpoint["bearerTokenFile"] = prometheusToken
		}
		add(monitor.kind, monitor.spec.Labels, map[string]any{
			"selector":        map[string]any{"matchLabels": anyMap(selectorOf(e, AgentName))},
			monitor.endpoints: []any{endpoint},
		})
	}
	if m.PrometheusRule != nil {
		spec, err := rules(e)
		if err != nil {
			return nil, err
		}
		add("PrometheusRule", m.PrometheusRule.Labels, spec)
	}
	return out, nil
}

// prometheusToken is the token of Prometheus's own account. A PodMonitor cannot name a
// file: its endpoint needs an authorization with a Secret.
const prometheusToken = "/var/run/secrets/kubernetes.io/serviceaccount/token" //nolint:gosec // a path

// hasCredentials reports whether an endpoint has credentials of its own.
func hasCredentials(endpoint map[string]any) bool {
	for _, field := range []string{"authorization", "basicAuth", "oauth2", "bearerTokenFile", "bearerTokenSecret"} {
		if endpoint[field] != nil {
			return true
		}
	}
	return false
}

func anyMap(in map[string]string) map[string]any {
	out := make(map[string]any, len(in))
	for k, v := range in {
		out[k] = v
	}
	return out
}

// endpointOf returns an endpoint of a ServiceMonitor or a PodMonitor.
func endpointOf(e *v1alpha1.GPUExporter, m *v1alpha1.MonitorSpec) (map[string]any, error) {
	endpoint := map[string]any{"port": metricsPortName, "honorLabels": m.HonorLabels == nil || *m.HonorLabels}
	if m.Interval != "" {
		endpoint["interval"] = m.Interval
	}
	if m.ScrapeTimeout != "" {
		endpoint["scrapeTimeout"] = m.ScrapeTimeout
	}
	if e.Spec.Web != nil {
		endpoint["scheme"] = orDefault(e.Spec.Web.Scheme, "https")
	}
	var relabelings []any
	for i := range m.MetricRelabelings {
		var r map[string]any
		if err := json.Unmarshal(m.MetricRelabelings[i].Raw, &r); err != nil {
			return nil, fmt.Errorf("metricRelabelings[%d]: %w", i, err)
		}
		relabelings = append(relabelings, r)
	}
	if len(relabelings) > 0 {
		endpoint["metricRelabelings"] = relabelings
	}
	if m.Endpoint != nil && len(m.Endpoint.Raw) > 0 {
		var more map[string]any
		if err := json.Unmarshal(m.Endpoint.Raw, &more); err != nil {
			return nil, fmt.Errorf("endpoint: %w", err)
		}
		for k, v := range more {
			endpoint[k] = v
		}
	}
	return endpoint, nil
}

// alerts are the rules of a GPUExporter's PrometheusRule: those of the chart about agents and GPUs that cannot be read.
// deploy/monitoring writes them, and the admission policy allows no others.
//
//go:embed alerts.json
var alerts []byte

// rules returns the spec of the PrometheusRule.
func rules(e *v1alpha1.GPUExporter) (map[string]any, error) {
	var all []any
	if err := json.Unmarshal(alerts, &all); err != nil {
		return nil, fmt.Errorf("alerts.json: %w", err)
	}
	return map[string]any{"groups": []any{map[string]any{"name": ObjectName(e), "rules": all}}}, nil
}
