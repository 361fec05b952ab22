// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/promql/adapter"
	"github.com/gpupilot/gpupilot/internal/promql/hostlabel"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// Becomes is what a rule of prometheus-adapter becomes.
type Becomes string

// What rules become.
const (
	BuiltIn       Becomes = "built-in metric"
	Signal        Becomes = "GPUAutoscaler signal"
	RecordingRule Becomes = "recording rule"
	Served        Becomes = "served as is"
	Impossible    Becomes = "not possible"
)

// RuleReport says what one rule becomes.
type RuleReport struct {
	Rule        string   `json:"rule"` // such as rules[3]
	SeriesQuery string   `json:"seriesQuery,omitempty"`
	Metric      string   `json:"metric,omitempty"` // its name; empty if it depends on the series
	Resources   []string `json:"resources,omitempty"`
	Becomes     Becomes  `json:"becomes"`
	Why         string   `json:"why"`
	// Do is what to do.
	Do string `json:"do"`
	// Signal is the equivalent signal of a GPUAutoscaler.
	Signal *v1alpha1.Signal `json:"signal,omitempty"`
}

// AdapterReport says what a file becomes.
type AdapterReport struct {
	Rules    []RuleReport `json:"rules"`
	Warnings []string     `json:"warnings,omitempty"`
}

// serveAsIs says how to serve a rule as it is.
const serveAsIs = "give the file to the controller: --adapter-config"

// Adapter says what the rules of a file become. The file may have PrometheusRules beside them, and more has further
// rules of Prometheus.
func Adapter(b []byte, more Options) (*AdapterReport, error) {
	b, o, err := splitConfig("", b)
	if err != nil {
		return nil, err
	}
	o.Recorded, o.Alerts = merge(o.Recorded, more.Recorded), merge(o.Alerts, more.Alerts)
	c, warnings, err := adapter.Parse(b)
	if err != nil {
		return nil, err
	}
	set, errs := adapter.Compile(&c, adapter.Unchecked{})
	out := &AdapterReport{Warnings: append(append(warnings, set.Warnings...), hostlabel.Rules(set.Rules, o.Recorded, o.Alerts)...)}
	rules := map[string]*adapter.Rule{}
	for _, r := range set.Rules {
		rules[r.Path] = r
	}
	add := func(name string, in []adapter.DiscoveryRule) {
		for i := range in {
			path := field.NewPath(name).Index(i).String()
			if r, ok := rules[path]; ok {
				out.Rules = append(out.Rules, reportRule(r, o.Recorded))
			} else {
				out.Rules = append(out.Rules, brokenRule(path, in[i].SeriesQuery, errs))
			}
		}
	}
	add("rules", c.Rules)
	add("externalRules", c.ExternalRules)
	if c.ResourceRules != nil {
		out.Warnings = slices.DeleteFunc(out.Warnings, func(w string) bool { return w == adapter.NoResourceMetrics })
		_, do, _ := strings.Cut(adapter.NoResourceMetrics, ". ")
		out.Rules = append(out.Rules, RuleReport{
			Rule: "resourceRules", Becomes: Impossible, Why: "GPUPilot does not serve metrics.k8s.io (kubectl top, HPAs on cpu and memory)", Do: do,
		})
	}
	return out, nil
}

// brokenRule reports the mistakes of a rule.
func brokenRule(path, seriesQuery string, errs field.ErrorList) RuleReport {
	var own []string
	for _, e := range errs {
		if strings.HasPrefix(e.Field, path+".") {
			own = append(own, e.Error())
		}
	}
	return RuleReport{
		Rule: path, SeriesQuery: seriesQuery, Becomes: Impossible, Why: strings.Join(own, "; "), Do: "correct the rule; prometheus-adapter refuses it, too, or never has a value for it",
	}
}

func reportRule(r *adapter.Rule, recorded map[string]string) RuleReport {
	out := RuleReport{Rule: r.Path, SeriesQuery: r.Source.SeriesQuery, Becomes: Served, Do: serveAsIs}
	for _, k := range r.Mapped() {
		out.Resources = append(out.Resources, k.String())
	}
	slices.Sort(out.Resources)
	series, one := r.SeriesName()
	if one {
		out.Metric, _ = r.Name(series)
	}
	switch {
	case r.External:
		out.Why = "an external metric; the controller serves it with --external-metrics"
		out.Do += ". Without an HPA: a `query` signal with the PromQL of metricsQuery"
	case one && out.Metric == "":
		out.Becomes, out.Why = Impossible, fmt.Sprintf("the name %s does not pass seriesFilters or name.matches, so the rule has no metrics", series)
		out.Do = "remove the rule, or correct it"
	case !r.MapsResources():
		out.Becomes, out.Why, out.Do = Impossible, "no label is mapped to a resource, so the rule has no metrics", "add resources.overrides or resources.template"
	case !one:
		out.Why = "the selector allows several names: which metrics there are depends on the series"
	default:
		out.ofOneSeries(r, series, recorded)
	}
	return out
}

// builtInResources are those whose GPU metrics the controller serves without a rule.
var builtInResources = []string{
	"pods", "namespaces", "nodes", "deployments.apps", "statefulsets.apps", "replicasets.apps", "jobs.batch", "leaderworkersets.leaderworkerset.x-k8s.io",
}

// ofOneSeries reports a rule about the series of one name.
func (out *RuleReport) ofOneSeries(r *adapter.Rule, series string, recorded map[string]string) {
	op, plain := aggregateOf(r, series)
	preset, isServer := policy.PresetOf(series)
	other := slices.IndexFunc(out.Resources, func(r string) bool { return !slices.Contains(builtInResources, r) })
	forPods := len(out.Resources) == 0 || slices.Contains(out.Resources, "pods")
	expr, isRecorded := recorded[series]
	switch {
	case isRecorded && plain && op == "":
		out.Becomes = RecordingRule
		out.Why = fmt.Sprintf("the series %s is of a recording rule (%s): with the labels namespace and a resource it is a custom metric by itself", series, excerptOf(expr))
		out.Do = "load the recording rule into the controller (PrometheusRule or file), and remove this one; without that, " + serveAsIs
	case isRecorded:
		out.Why = fmt.Sprintf("a query of the series %s, which a recording rule makes (%s)", series, excerptOf(expr))
		out.Do += ", and load the recording rule (PrometheusRule or file). In a GPUAutoscaler: a `query` signal"
	case plain && isGPUMetric(series) && other >= 0:
		out.Why = fmt.Sprintf("%s of %s, which custom.metrics does not serve by itself", series, out.Resources[other])
		out.Do = "use it in a GPUAutoscaler; for HPAs, " + serveAsIs
		out.Signal = &v1alpha1.Signal{GPU: &v1alpha1.GPUSignal{Metric: series}}
	case plain && isGPUMetric(series):
		out.Becomes = BuiltIn
		out.Why = "custom.metrics serves " + series + " of pods, workloads, namespaces and nodes by itself, from the agents"
		out.Do = "remove the rule"
		if out.Metric != series {
			out.Do = fmt.Sprintf("change metric.name in the HPAs from %s to %s, and remove the rule; until then, %s", out.Metric, series, serveAsIs)
		}
		if op == "sum" || op == "max" || op == "min" {
			out.Why += fmt.Sprintf(". The rule's %s over the GPUs of a pod differs if a pod has several: GPUPilot serves the mean of shares and the sum of amounts", op)
		}
		out.Signal = &v1alpha1.Signal{GPU: &v1alpha1.GPUSignal{Metric: series}}
	case isServer && forPods:
		out.Becomes, out.Why = Signal, fmt.Sprintf("a metric of the inference server %s, which GPUPilot reads from the pods", preset)
		out.Do = fmt.Sprintf("use preset: %s in a GPUAutoscaler; for HPAs, %s", preset, serveAsIs)
		out.Signal = &v1alpha1.Signal{Preset: preset}
	case plain && op == "" && len(out.Resources) > 0 && !slices.Contains(out.Resources, "pods"), plain && op == "" && strings.Contains(series, ":"):
		out.Becomes = RecordingRule
		out.Why = "the series as it is, which a recording rule makes: with the labels namespace and a resource it is a custom metric by itself"
		out.Do = "load the recording rule into the controller (PrometheusRule or file), and remove this one; without that, " + serveAsIs
	case plain && forPods:
		out.Becomes, out.Why = Signal, "a metric of the pods themselves, if they expose it. A recording rule may make it, too: then give its file beside this one"
		out.Do = "use it in a GPUAutoscaler; for HPAs, " + serveAsIs
		out.Signal = &v1alpha1.Signal{Pods: &v1alpha1.PodsSignal{Metric: series}}
	case plain && len(out.Resources) > 0 && !forPods:
		out.Why = "a metric of " + strings.Join(out.Resources, ", ") + ", and not of pods"
	default:
		out.Why = "the query computes more than a mean of the series, such as a rate"
		out.Do += ". In a GPUAutoscaler: a `query` signal with the PromQL of metricsQuery, aggregated to one number for the workload"
	}
}
