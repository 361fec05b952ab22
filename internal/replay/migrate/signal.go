// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/promql/adapter"
	"github.com/gpupilot/gpupilot/internal/promql/scope"
	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/scale/peers"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// converter translates the metrics of one object.
type converter struct {
	result    *Result
	options   Options
	namespace string
	scope     *scope.Scope
	// refused says that the API server would refuse the object, whatever its signals are.
	refused bool
	// signalFields and scheduleFields are the fields of the source behind the signals and the
	// schedules, and behaviorField the one behind the behavior.
	signalFields, scheduleFields []string
	behaviorField                string
	// activation is the threshold of a KEDA trigger; nil: none.
	activation *resource.Quantity
	// zeroIfMissing is true for KEDA's triggers, where an empty result is 0.
	zeroIfMissing bool
	// named are the names of the signals by those of KEDA's triggers.
	named map[string]string
}

func (r *Result) converter(o Options, m *objectMeta) *converter {
	return &converter{result: r, options: o, namespace: m.Namespace, scope: newScope(), named: map[string]string{}}
}

var podsResource = schema.GroupResource{Resource: "pods"}

// isGPUMetric reports whether a name is that of a GPU's field.
func isGPUMetric(name string) bool {
	_, ok := names.Metric(name)
	return ok
}

// find finds the adapter's rule of a metric. The resource of an external one is empty.
func (c *converter) find(name string, r schema.GroupResource) (*adapter.Rule, string, bool) {
	if c.options.Rules == nil {
		return nil, "", false
	}
	return c.options.Rules.Find(name, r)
}

// add appends a signal of a field of the source.
func (c *converter) add(s v1alpha1.Signal, value resource.Quantity, kind v1alpha1.TargetType, field string) {
	c.signalFields = append(c.signalFields, field)
	s.Target = &v1alpha1.Target{Type: kind, Value: value}
	if s.Query != nil {
		s.Activation = c.activation
	}
	c.result.Object.Spec.Signals = append(c.result.Object.Spec.Signals, s)
}

// addPodMetric adds a signal of a pod's GPUs or of its own metric, whose target is per
// replica.
func (c *converter) addPodMetric(name string, value resource.Quantity, kind peers.Kind, field string) {
	if expr, ok := c.options.Recorded[name]; ok && !isGPUMetric(name) {
		c.result.note(field, "a recording rule makes %s (%s): load it into the controller, or set --prometheus-url. The query selects the pods by the prefix of their names: check it", name, excerptOf(expr))
		query := "sum(" + selector(name, c.matchers("pod=~"+strconv.Quote(podsOf(c.result.Object.Spec.ScaleTargetRef.Name)))) + ")"
		c.addValueQuery(query, value, v1alpha1.AverageValue, field)
		return
	}
	if !metricName.MatchString(name) {
		c.result.lose(field, "%s (target %s): this is not the name of a metric of pods: its server makes it of something else. Write a query of the series behind it, or give prometheus-adapter's file (--adapter-config)", name, value.String())
		return
	}
	s := v1alpha1.Signal{GPU: &v1alpha1.GPUSignal{Metric: name}}
	if !isGPUMetric(name) {
		s = v1alpha1.Signal{Pods: &v1alpha1.PodsSignal{Metric: name}}
		if preset, ok := policy.PresetOf(name); ok {
			c.result.note(field, "%s is a metric of %s: `preset: %s` reads the requests, the queue and the cache, and counts a burst once", name, preset, preset)
		} else {
			c.result.note(field, "the pods must expose %s themselves (at /metrics of their only port, or set pods.port and pods.path). If a recording rule makes it, give that beside (a PrometheusRule in the file)", name)
		}
	}
	c.add(s, value, v1alpha1.AverageValue, field)
	c.simulate(&s, value, kind, field)
}

// simulate adds a metric of the simulated HPA.
func (c *converter) simulate(s *v1alpha1.Signal, value resource.Quantity, kind peers.Kind, field string) {
	copied := *s
	copied.Target = &v1alpha1.Target{Value: value}
	compiled, err := policy.Compile(&v1alpha1.GPUAutoscaler{Spec: v1alpha1.GPUAutoscalerSpec{MaxReplicas: 1, Signals: []v1alpha1.Signal{copied}}})
	if err != nil {
		c.result.unsimulated(field, "%v", err)
		return
	}
	c.result.addPeerMetric(contender.HPAMetric{
		Kind: kind, Source: compiled.Sources[0], Target: compiled.Policy.Signals[0].Target, Mean: true, ZeroIfMissing: c.zeroIfMissing,
	}, field)
}

// sourceOfQuery finds the source of one pod's values behind a query that adds them up or
// averages them; mean says which. The scale converts the query's unit to the source's.
func sourceOfQuery(text string) (source policy.Source, scale float64, mean bool, err error) {
	expr, err := queryParser.ParseExpr(text)
	if err != nil {
		return source, 1, false, fmt.Errorf("the query is not PromQL: %w", err)
	}
	metrics, mean, ok := summands(expr)
	if !ok {
		return source, 1, false, fmt.Errorf("the query %q is neither the sum nor the mean of metrics that the simulated service has", excerptOf(text))
	}
	if ref, isGPU := names.Metric(metrics[0]); isGPU && len(metrics) == 1 {
		return policy.Source{Kind: policy.GPU, Field: ref.Field}, ref.Scale, mean, nil
	}
	source.Kind = policy.Pods
	for _, m := range metrics {
		source.Terms = append(source.Terms, policy.Term{{Name: m}})
	}
	return source, 1, mean, nil
}

// smoothing are the functions that leave a value about what it is.
var smoothing = []string{"avg_over_time", "last_over_time", "ceil", "floor", "round"}

// summands returns the names of the metrics that an expression adds up over pods, or the
// one that it averages.
func summands(e parser.Expr) (metrics []string, mean, ok bool) {
	switch e := e.(type) {
	case *parser.ParenExpr:
		return summands(e.Expr)
	case *parser.StepInvariantExpr:
		return summands(e.Expr)
	case *parser.AggregateExpr:
		metrics, _, ok = summands(e.Expr)
		return metrics, e.Op == parser.AVG, ok && (e.Op == parser.SUM || e.Op == parser.AVG && len(metrics) == 1)
	case *parser.BinaryExpr:
		if e.Op == parser.LOR { // … or vector(0)
			return summands(e.LHS)
		}
		left, leftMean, leftOK := summands(e.LHS)
		right, rightMean, rightOK := summands(e.RHS)
		return append(left, right...), false, e.Op == parser.ADD && leftOK && rightOK && !leftMean && !rightMean
	case *parser.Call:
		if len(e.Args) == 1 && slices.Contains(smoothing, e.Func.Name) {
			return summands(e.Args[0])
		}
	case *parser.MatrixSelector:
		return summands(e.VectorSelector)
	case *parser.VectorSelector:
		for _, m := range e.LabelMatchers {
			if m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual {
				return []string{m.Value}, false, true
			}
		}
	}
	return nil, false, false
}

// podsOf is a regular expression of the names of a workload's pods.
func podsOf(workload string) string { return regexp.QuoteMeta(workload) + "-.*" }

// matchers returns the matcher of the object's namespace and others, separated by commas.
// Empty ones are left out.
func (c *converter) matchers(others ...string) string {
	all := slices.DeleteFunc(others, func(s string) bool { return s == "" })
	if c.namespace != "" {
		all = slices.Insert(all, 0, "namespace="+strconv.Quote(c.namespace))
	}
	return strings.Join(all, ",")
}

// resourceOf returns the resource of a kind, and the label that usually names it.
func resourceOf(kind string) (schema.GroupResource, string) {
	lower := strings.ToLower(kind)
	if k, ok := (adapter.Builtin{}).Find("", lower); ok {
		return k.GroupResource, k.Singular
	}
	return schema.GroupResource{Resource: lower + "s"}, lower
}

// selectorMatchers returns the labels of a selector as matchers.
func selectorMatchers(s *metav1.LabelSelector) (string, error) {
	if s == nil {
		return "", nil
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return "", err
	}
	return adapter.Matchers(selector)
}

// excerptOf shortens a query for a note.
func excerptOf(s string) string { return excerpt.Of(strings.Join(strings.Fields(s), " "), 80) }
