// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/promql/adapter"
	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/peers"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

func convertHPA(text []byte, o Options) (*Result, error) {
	in, err := readHPA(text)
	if err != nil {
		return nil, fmt.Errorf("HorizontalPodAutoscaler %s: %w", in.Metadata.Name, err)
	}
	if in.Spec.ScaleTargetRef.Name == "" || in.Spec.MaxReplicas < 1 {
		return nil, fmt.Errorf("HorizontalPodAutoscaler %q has no spec.scaleTargetRef or no spec.maxReplicas", in.Metadata.Name)
	}
	r := newResult(KindHPA, &in.Metadata, in.Spec.ScaleTargetRef)
	r.Peer = contender.HPAObject{Name: in.Metadata.Name + " HPA", Family: contender.HPA}
	spec := &r.Object.Spec
	spec.MinReplicas, spec.MaxReplicas = in.Spec.MinReplicas, in.Spec.MaxReplicas
	r.setBehavior(in.Spec.Behavior, "spec.behavior")
	c := converter{result: r, options: o, namespace: in.Metadata.Namespace}
	for i := range in.Spec.Metrics {
		c.hpaMetric(&in.Spec.Metrics[i], fmt.Sprintf("spec.metrics[%d]", i))
	}
	if p := in.Spec.CPUPercent; p != nil {
		r.lose("spec.targetCPUUtilizationPercentage", "%d %% of the pods' CPU requests: GPUPilot reads no CPU requests. %s", *p, insteadOfCPU)
	}
	if len(in.Spec.Metrics) == 0 && in.Spec.CPUPercent == nil {
		r.lose("spec.metrics", "empty: the HPA then scales on 80 %% of the pods' CPU requests. %s", insteadOfCPU)
	}
	c.finish()
	return r, nil
}

// insteadOfCPU says what to do about CPU metrics.
const insteadOfCPU = "Scale on the GPU or on the requests; else write a query of the CPU time in cores"

// setBehavior sets the behavior, which has the shape of the HPA's.
func (r *Result) setBehavior(b *v1alpha1.Behavior, field string) {
	r.Object.Spec.Behavior = b
	up, down := b != nil && b.ScaleUp != nil, b != nil && b.ScaleDown != nil
	if !up {
		r.note(field+".scaleUp", "the HPA's default adds at most 4 pods or 100 %% per 15 s. A GPUAutoscaler has no rate limit: starting replicas count as capacity")
	}
	if !down {
		r.note(field+".scaleDown", "the HPA's default waits for 300 s. A GPUAutoscaler waits for the start-up time of a replica, at least 300 s, and removes at most 20 %% at a time")
	}
	compiled, err := policy.Compile(&v1alpha1.GPUAutoscaler{Spec: v1alpha1.GPUAutoscalerSpec{Behavior: b}})
	_ = err // of the other fields; the behavior is compiled again with the whole object
	rules := func(x *scale.Rules, isSet bool, defaults peers.Rules) peers.Rules {
		return contender.RulesOf(x, isSet, defaults)
	}
	r.Peer.Up = rules(&compiled.Policy.Up, up, peers.DefaultUp())
	r.Peer.Down = rules(&compiled.Policy.Down, down, peers.DefaultDown())
}

// hpaMetric translates one metric, which has the form of v2.
func (c *converter) hpaMetric(m *hpaMetric, field string) {
	switch {
	case m.Resource == nil && m.ContainerResource == nil && m.Pods == nil && m.Object == nil && m.External == nil:
		c.result.lose(field+".type", "%q without its field: resource, containerResource, pods, object or external", m.Type)
	case m.Resource != nil:
		c.resourceMetric(m.Resource.Name, "", &m.Resource.Target, field+".resource")
	case m.ContainerResource != nil:
		c.resourceMetric(m.ContainerResource.Name, m.ContainerResource.Container, &m.ContainerResource.Target, field+".containerResource")
	case m.name() == "":
		c.result.lose(field, "a metric of type %q has no name (metric.name; in autoscaling/v2beta1, metricName)", m.Type)
	case isCloudMonitoring(m.name()):
		c.result.lose(field, "%s is a metric of Google's Cloud Monitoring, which GPUPilot does not read. Scale on the GPUs themselves, such as `gpu: {metric: Utilization}`", m.name())
	case m.Pods != nil:
		c.podsMetric(&m.Pods.Metric, &m.Pods.Target, field+".pods")
	case m.Object != nil:
		c.objectMetric(&m.Object.Metric, &m.Object.DescribedObject, &m.Object.Target.hpaTarget, field+".object")
	case m.External != nil:
		c.externalMetric(&m.External.Metric, &m.External.Target, field+".external")
	}
}

// isCloudMonitoring reports whether a name is that of a metric of Cloud Monitoring, such as
// kubernetes.io|container|accelerator|duty_cycle.
func isCloudMonitoring(name string) bool {
	return strings.Contains(name, "|")
}

// resourceMetric translates CPU and memory, which only cAdvisor's series have.
func (c *converter) resourceMetric(name, containerName string, t *hpaTarget, field string) {
	value, kind := t.get()
	series, ok := map[string]string{"cpu": "container_cpu_usage_seconds_total", "memory": "container_memory_working_set_bytes"}[name]
	switch {
	case !ok:
		c.result.lose(field, "%s: GPUPilot does not read this resource", name)
		return
	case value == nil:
		c.result.lose(field+".target", "a percentage of the pods' requests of %s: GPUPilot reads no requests. %s", name, insteadOfCPU)
		return
	}
	containers := `container!=""`
	if containerName != "" {
		containers = "container=" + strconv.Quote(containerName)
	}
	expr := fmt.Sprintf("%s{%s}", series, c.matchers("pod=~"+strconv.Quote(c.result.Object.Spec.ScaleTargetRef.Name+"-.*"), containers))
	if name == "cpu" {
		expr = "rate(" + expr + "[2m])"
	}
	c.result.note(field, "becomes a query of cAdvisor's series, which a Prometheus must scrape (--prometheus-url). It selects pods by the prefix of their names: check it")
	c.addValueQuery("sum("+expr+")", *value, kind, field)
}

// podsMetric translates a metric per pod.
func (c *converter) podsMetric(m *metricID, t *hpaTarget, field string) {
	value := t.AverageValue
	if value == nil {
		c.result.lose(field+".target", "has no averageValue, which the HPA requires for metrics of pods")
		return
	}
	if m.Selector != nil {
		c.result.lose(field+".metric.selector", "a signal has no selector: all series of the metric count")
	}
	if rule, series, ok := c.find(m.Name, podsResource); ok {
		c.result.note(field+".metric.name", "the adapter's %s makes %s of the series %s", rule.Path, m.Name, series)
		if !isPlain(rule, series) {
			c.addRuleQuery(rule, series, m, *value, field)
			return
		}
		m = &metricID{Name: series}
	}
	c.addPodMetric(m.Name, *value, peers.PodsAverage, field)
}

// objectMetric translates a metric of one object.
func (c *converter) objectMetric(m *metricID, about *v1alpha1.CrossVersionObjectReference, t *hpaTarget, field string) {
	value, kind := t.get()
	if value == nil {
		c.result.lose(field+".target", "has no value and no averageValue")
		return
	}
	ref := c.result.Object.Spec.ScaleTargetRef
	ofTarget := about.Kind == ref.Kind && about.Name == ref.Name
	resource, label := resourceOf(about.Kind)
	rule, series, ok := c.find(m.Name, resource)
	gpu := m.Name
	if ok {
		if op, plain := aggregateOf(rule, series); plain && op == "avg" {
			gpu = series
		}
	}
	if isGPUMetric(gpu) && kind == v1alpha1.Value && (ofTarget || about.Kind == "Service") {
		c.result.note(field, "%s of the %s %s is taken for a mean over its pods: it becomes a signal of the pods' own GPUs, whose target is per serving replica", m.Name, about.Kind, about.Name)
		c.addPodMetric(gpu, *value, peers.ObjectValue, field)
		return
	}
	if ok {
		query, err := objectQuery(rule, series, &adapter.Objects{Resource: resource, Namespace: c.namespace, Names: []string{about.Name}}, m.Selector)
		if err == nil {
			c.result.note(field, "the query is that of the adapter's %s", rule.Path)
			c.addValueQuery(query, *value, kind, field)
			return
		}
		c.result.lose(field, "the adapter's %s: %v", rule.Path, err)
		return
	}
	c.result.note(field, "prometheus-adapter decides what %s is: the query assumes a series of that name with the labels namespace and %s. "+
		"Check it, or give the adapter's file (--adapter-config)", m.Name, label)
	query := fmt.Sprintf("%s{%s}", m.Name, c.matchers(label+"="+strconv.Quote(about.Name), selectorMatchers(m.Selector)))
	c.addValueQuery(query, *value, kind, field)
}

// externalMetric translates an external metric.
func (c *converter) externalMetric(m *metricID, t *hpaTarget, field string) {
	value, kind := t.get()
	if value == nil {
		c.result.lose(field+".target", "has no value and no averageValue")
		return
	}
	if rule, series, ok := c.find(m.Name, schema.GroupResource{}); ok {
		query, err := externalQuery(rule, series, c.namespace, m.Selector)
		if err == nil {
			c.result.note(field, "the query is that of the adapter's %s; the HPA adds up several series", rule.Path)
			c.addValueQuery("sum("+query+")", *value, kind, field)
			return
		}
		c.result.lose(field, "the adapter's %s: %v", rule.Path, err)
		return
	}
	c.result.note(field, "the server of external.metrics.k8s.io decides what %s is: the query assumes series of that name with the selector as labels. "+
		"Check it, or give prometheus-adapter's file (--adapter-config)", m.Name)
	c.addValueQuery(fmt.Sprintf("sum(%s{%s})", m.Name, c.matchers(selectorMatchers(m.Selector))), *value, kind, field)
}

// toFloat returns a quantity as a number.
func toFloat(q resource.Quantity) float64 {
	x, err := strconv.ParseFloat(q.AsDec().String(), 64)
	if err != nil {
		return math.NaN()
	}
	return x
}
