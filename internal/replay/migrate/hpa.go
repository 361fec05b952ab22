// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/promql/adapter"
	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/peers"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

func convertHPA(text []byte, o Options) (*Result, error) {
	in, rest, written, err := readHPA(text)
	if err != nil {
		return nil, fmt.Errorf("HorizontalPodAutoscaler %s: %w", in.Metadata.Name, err)
	}
	if in.Spec.ScaleTargetRef.Name == "" || in.Spec.MaxReplicas < 1 {
		return nil, fmt.Errorf("HorizontalPodAutoscaler %q has no spec.scaleTargetRef or no spec.maxReplicas", in.Metadata.Name)
	}
	in.Metadata.Namespace = cmp.Or(in.Metadata.Namespace, o.Namespace)
	r := newResult(KindHPA, &in.Metadata, in.Spec.ScaleTargetRef)
	r.Peer = contender.HPAObject{Name: in.Metadata.Name + " HPA", Family: contender.HPA}
	spec := &r.Object.Spec
	spec.MinReplicas, spec.MaxReplicas = in.Spec.MinReplicas, in.Spec.MaxReplicas
	r.setBehavior(in.Spec.Behavior, "spec.behavior")
	c := r.converter(o, &in.Metadata)
	c.behaviorField = "spec.behavior"
	c.ofScaledObject(&in)
	for i := range in.Spec.Metrics {
		before, field := len(r.Object.Spec.Signals), fmt.Sprintf("spec.metrics[%d]", i)
		c.hpaMetric(&in.Spec.Metrics[i], field)
		if len(r.Object.Spec.Signals) == before {
			r.lose(field, "as written: %s", valueAt(written, field))
		}
	}
	if p := in.Spec.CPUPercent; p != nil {
		r.lose("spec.targetCPUUtilizationPercentage", "%d %% of the pods' CPU requests: GPUPilot reads no CPU requests. %s", *p, insteadOfCPU)
	}
	if len(in.Spec.Metrics) == 0 && in.Spec.CPUPercent == nil {
		r.lose("spec.metrics", "empty: the HPA then scales on 80 %% of the pods' CPU requests. %s", insteadOfCPU)
	}
	r.leftOver(rest, &in.Metadata)
	c.finish()
	return r, nil
}

// ofScaledObject refuses the HPA that KEDA keeps for a ScaledObject: its metrics are the ScaledObject's triggers, and
// KEDA would go on scaling.
func (c *converter) ofScaledObject(in *hpaObject) {
	const label = "scaledobject.keda.sh/name"
	name := in.Metadata.Labels[label]
	for _, o := range in.Metadata.OwnerReferences {
		if o.Kind == KindScaledObject {
			name = o.Name
		}
	}
	for i := range in.Spec.Metrics {
		if e := in.Spec.Metrics[i].External; name == "" && e != nil && e.Metric.Selector != nil {
			name = e.Metric.Selector.MatchLabels[label]
		}
	}
	if name == "" {
		return
	}
	c.refused = true
	c.result.lose("metadata", "KEDA made this HorizontalPodAutoscaler for the ScaledObject %s: translate that, with gpupilot migrate scaledobject %[1]s", name)
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
		c.result.lose(field, "%s (target %s): GPUPilot does not read this resource", name, t)
		return
	case value == nil:
		c.result.lose(field+".target", "a percentage of the pods' requests of %s: %s. GPUPilot reads no requests. %s", name, t, insteadOfCPU)
		return
	}
	c.otherTargets(t, value, field)
	containers := `container!=""`
	if containerName != "" {
		containers = "container=" + strconv.Quote(containerName)
	}
	expr := fmt.Sprintf("%s{%s}", series, c.matchers("pod=~"+strconv.Quote(podsOf(c.result.Object.Spec.ScaleTargetRef.Name)), containers))
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
		c.result.lose(field+".target", "%s of %s has no averageValue, which the HPA requires for metrics of pods", t, m.Name)
		return
	}
	c.otherTargets(t, t.AverageValue, field)
	if rule, series, ok := c.find(m.Name, podsResource); ok {
		c.result.note(field+".metric.name", "the adapter's %s makes %s of the series %s", rule.Path, m.Name, series)
		if _, recorded := c.options.Recorded[series]; recorded || m.Selector != nil || !isPlain(rule, series) {
			c.addRuleQuery(rule, series, m, *value, field)
			return
		}
		m = &metricID{Name: series}
	} else if c.options.Rules != nil && !isGPUMetric(m.Name) {
		c.result.note(field+".metric.name", "no rule of --adapter-config makes %s of pods", m.Name)
	}
	if m.Selector != nil {
		c.result.lose(field+".metric.selector", "%s: a signal has no selector: all series of the metric count", metav1.FormatLabelSelector(m.Selector))
	}
	c.addPodMetric(m.Name, *value, peers.PodsAverage, field)
}

// otherTargets names the values of a target that are not used.
func (c *converter) otherTargets(t *hpaTarget, used *resource.Quantity, field string) {
	for name, q := range map[string]*resource.Quantity{"value": t.Value, "averageValue": t.AverageValue} {
		if q != nil && q != used {
			c.result.lose(field+".target."+name, "%s: another value of the target is used, %s", q.String(), used.String())
		}
	}
	if t.Percent != nil {
		c.result.lose(field+".target.averageUtilization", "%d: only resources have a utilization", *t.Percent)
	}
}

// objectMetric translates a metric of one object.
func (c *converter) objectMetric(m *metricID, about *v1alpha1.CrossVersionObjectReference, t *hpaTarget, field string) {
	value, kind := t.get()
	if value == nil {
		c.result.lose(field+".target", "%s of %s has no value and no averageValue", t, m.Name)
		return
	}
	c.otherTargets(t, value, field)
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
		if m.Selector != nil {
			c.result.lose(field+".metric.selector", "%s: a signal of GPUs has no selector: all GPUs of the pods count", metav1.FormatLabelSelector(m.Selector))
		}
		c.result.note(field, "%s of the %s %s is taken for a mean over its pods: it becomes a signal of the pods' own GPUs, whose target is per serving replica", m.Name, about.Kind, about.Name)
		c.addPodMetric(gpu, *value, peers.ObjectValue, field)
		return
	}
	if ok {
		objects := adapter.Objects{Resource: resource, Namespace: c.namespace, Names: []string{about.Name}}
		if k, known := (adapter.Builtin{}).Find("", strings.ToLower(about.Kind)); known && !k.Namespaced {
			objects.Namespace = ""
		}
		query, err := objectQuery(rule, series, &objects, m.Selector)
		if err == nil {
			c.result.note(field, "the query is that of the adapter's %s for %s of the %s %s", rule.Path, m.Name, about.Kind, about.Name)
			c.addValueQuery(query, *value, kind, field)
			return
		}
		c.result.lose(field, "%s of the %s %s (target %s): the adapter's %s: %v", m.Name, about.Kind, about.Name, t, rule.Path, err)
		return
	}
	selected, ok := c.mayGuess(m, about.Kind+" "+about.Name, field, *value, kind)
	if !ok {
		return
	}
	labels, object := "labels namespace and "+label, label+"="+strconv.Quote(about.Name)
	if label == "namespace" && c.namespace == about.Name {
		labels, object = "label namespace", ""
	}
	c.result.note(field, "prometheus-adapter decides what %s of the %s %s is: the query assumes a series of that name with the %s. "+
		"Check it, or give the adapter's file (--adapter-config)", m.Name, about.Kind, about.Name, labels)
	c.addValueQuery(selector(m.Name, c.matchers(object, selected)), *value, kind, field)
}

// ofTrigger matches the names of the metrics of KEDA's own HPAs.
var ofTrigger = regexp.MustCompile(`^s[0-9]+-`)

// mayGuess reports whether a metric without a rule may be a series of its name, with the matchers of its selector. A note
// says why it cannot be.
func (c *converter) mayGuess(m *metricID, of, field string, value resource.Quantity, kind v1alpha1.TargetType) (selected string, ok bool) {
	what := fmt.Sprintf("%s of %s (target %s %s)", m.Name, of, kind, value.String())
	if m.Selector != nil {
		what += " with the selector " + metav1.FormatLabelSelector(m.Selector)
	}
	selected, err := selectorMatchers(m.Selector)
	switch {
	case ofTrigger.MatchString(m.Name):
		c.result.lose(field, "%s: this is the name of a trigger in KEDA's own HorizontalPodAutoscaler. Translate the ScaledObject: gpupilot migrate scaledobject", what)
	case c.options.Rules != nil:
		c.result.lose(field, "%s: no rule of --adapter-config makes it, so another server does. Write a query of the series behind it", what)
	case !metricName.MatchString(m.Name):
		c.result.lose(field, "%s: this is not the name of a series in PromQL: the server of the metric makes it of something else. Write a query of the series behind it, or give prometheus-adapter's file (--adapter-config)", what)
	case err != nil:
		c.result.lose(field, "%s: the selector has no equivalent in PromQL: %v", what, err)
	default:
		c.result.Guessed = append(c.result.Guessed, m.Name+" of "+of)
		return selected, true
	}
	return "", false
}

// externalMetric translates an external metric.
func (c *converter) externalMetric(m *metricID, t *hpaTarget, field string) {
	value, kind := t.get()
	if value == nil {
		c.result.lose(field+".target", "%s of %s has no value and no averageValue", t, m.Name)
		return
	}
	c.otherTargets(t, value, field)
	if rule, series, ok := c.find(m.Name, schema.GroupResource{}); ok {
		query, err := externalQuery(rule, series, c.namespace, m.Selector)
		if err == nil {
			c.result.note(field, "the query is that of the adapter's %s for %s; the HPA adds up several series", rule.Path, m.Name)
			c.addValueQuery(sumOf(query), *value, kind, field)
			return
		}
		c.result.lose(field, "%s (target %s): the adapter's %s: %v", m.Name, t, rule.Path, err)
		return
	}
	selected, ok := c.mayGuess(m, "external.metrics.k8s.io", field, *value, kind)
	if !ok {
		return
	}
	c.result.note(field, "the server of external.metrics.k8s.io decides what %s is: the query assumes series of that name with the selector as labels. "+
		"Check it, or give prometheus-adapter's file (--adapter-config)", m.Name)
	c.addValueQuery("sum("+selector(m.Name, c.matchers(selected))+")", *value, kind, field)
}

// toFloat returns a quantity as a number.
func toFloat(q resource.Quantity) float64 {
	x, err := strconv.ParseFloat(q.AsDec().String(), 64)
	if err != nil {
		return math.NaN()
	}
	return x
}
