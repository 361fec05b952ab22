// SPDX-License-Identifier: Apache-2.0

package meters

import (
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/autoscaler/objective"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/facts"
)

// workloadDescs describe the metrics of one GPUAutoscaler. Their number of series is
// bounded: by the signals of a spec, and by the rules. They end with the object.
type workloadDescs struct {
	replicas, limit, condition, malformed *prometheus.Desc
	value, target, age, demand            *prometheus.Desc
	requests, tokens, podsSum, gpus       *prometheus.Desc
	decisions, rule, scales, lastScale    *prometheus.Desc
}

// workloadPrefix begins the names of the metrics of GPUAutoscalers.
const workloadPrefix = "gpupilot_autoscaler_"

func newWorkloadDescs() workloadDescs {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(workloadPrefix+name, help, append([]string{"namespace", "name"}, labels...), nil)
	}
	return workloadDescs{
		replicas:  desc("replicas", "Replicas of a workload by state; desired is the number that was decided.", "state"),
		limit:     desc("replicas_limit", "minReplicas (min) and maxReplicas (max) of a GPUAutoscaler.", "limit"),
		condition: desc("condition", "Whether a condition of a GPUAutoscaler is True.", "type"),
		malformed: desc("malformed", "1 for a GPUAutoscaler whose part (spec or status) cannot be decoded.", "part"),

		value:  desc("signal_value", "Value of a signal in the last decision, per serving replica or per workload; absent while a serving replica has no value.", "signal", "unit", "per"),
		target: desc("signal_target", "Target of a signal in the last decision, per serving replica or per workload.", "signal", "unit", "per"),
		age:    desc("signal_age_seconds", "Age of the oldest value of a signal that the last decision used; absent with the value.", "signal"),
		demand: desc("signal_demand_replicas", "Replicas that a signal asked for in the last decision, before limits; absent while a serving replica has no value.", "signal"),

		requests: desc("signal_requests_per_second", "Requests per second that arrive at all serving replicas, of signals that count them; absent if a replica has no value.", "signal"),
		tokens:   desc("signal_tokens_per_second", "Tokens per second that all serving replicas are asked for, of signals with an objective, by type (prompt or output); absent without a reading.", "signal", "type"),
		podsSum:  desc("pods_sum", "Sum over the serving replicas of a metric that a signal reads from pods, every 15 s; absent if a replica has no value.", "metric"),
		gpus:     desc("gpus", "GPUs that the pods of a workload request, every 15 s."),

		decisions: desc("decisions_total", "Decisions for a GPUAutoscaler, by the rule that made them.", "rule"),
		rule:      desc("last_decision_info", "1 for the rule that made the last decision.", "rule"),
		scales:    desc("scales_total", "Changes of the replicas that this controller wrote, by direction (up or down).", "direction"),
		lastScale: desc("last_scale_timestamp_seconds", "When this controller last changed the replicas, in seconds since 1970, with the direction and the rule.", "direction", "rule"),
	}
}

func (m *workloadDescs) describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		m.replicas, m.limit, m.condition, m.malformed, m.value, m.target, m.age, m.demand,
		m.requests, m.tokens, m.podsSum, m.gpus, m.decisions, m.rule, m.scales, m.lastScale,
	} {
		ch <- d
	}
}

// directions of a change of replicas, as in scale metrics.
const (
	scaledUp   = "up"
	scaledDown = "down"
)

// Workload is what /metrics shows of one GPUAutoscaler. The zero Workload is ready for use.
type Workload struct {
	Conditions []metav1.Condition
	Objectives []objective.Report
	Counts     Counts
	Signals    []Signal // in the last decision
	Sampled    Sampled
	// MalformedSpec and MalformedStatus are set if the part cannot be decoded.
	MalformedSpec, MalformedStatus bool

	rule      scale.Rule // of the last decision; empty: no decision was made
	min, max  int32      // limits of the spec
	decisions map[scale.Rule]uint64
	scales    map[string]uint64 // by direction
	last      lastScale
}

// Counts are a workload's replicas.
type Counts struct {
	Current, Desired, Serving, Starting, Unschedulable int32

	At time.Time // of the decision
	OK bool      // false: the last pass made no decision
}

// Sampled is what a decision does not read.
type Sampled struct {
	At   time.Time // zero: nothing was read
	GPUs int
	Sums []Sum
}

// Sum is the sum of a metric over the serving pods.
type Sum struct {
	Metric string
	Value  float64
}

// Has reports whether there is a sum of the metric.
func (s *Sampled) Has(metric string) bool {
	return slices.ContainsFunc(s.Sums, func(x Sum) bool { return x.Metric == metric })
}

type lastScale struct {
	at        time.Time // zero: this controller has changed nothing
	direction string
	rule      scale.Rule
}

// Signal is one signal in a decision.
type Signal struct {
	name, unit          string
	value, target       float64
	valueIsTotal        bool // value is the workload's, else a serving replica's
	targetIsTotal       bool
	age                 time.Duration
	demand              float64 // replicas
	Requests            float64 // requests/s; NaN: unknown
	Prompt, Output      float64 // tokens/s; NaN: unknown
	hasValue, hasDemand bool    // whether value and age, and demand, are set
}

// types of tokens.
const (
	typePrompt = "prompt"
	typeOutput = "output"
)

// Undecided says that no decision was made: the last one no longer counts.
func (s *Workload) Undecided() { s.Counts.OK, s.rule = false, "" }

// RecordDecision takes over what a decision by a policy says, whose signals have these
// names. requests are the requests/s of each signal, as far as they are known, and state is
// that after the decision.
func (s *Workload) RecordDecision(d *scale.Decision, p *scale.Policy, names []SignalNames, requests []float64, state *scale.State) {
	s.Counts = Counts{d.Current, d.Replicas, d.Serving, d.Starting, d.Unschedulable, d.Time, true}
	if s.decisions == nil {
		s.decisions = map[scale.Rule]uint64{}
	}
	s.decisions[d.Rule]++
	s.rule, s.min, s.max = d.Rule, p.Min, p.Max
	s.Signals = s.Signals[:0]
	for i := range min(len(d.Inputs), len(names)) {
		in := &d.Inputs[i]
		out := Signal{
			name: names[i].Name, unit: in.Unit, value: in.Value, target: in.Target, age: in.Age, hasValue: in.Fresh > 0 && in.Silent == 0,
			targetIsTotal: p.Signals[i].Type == scale.Value, Requests: math.NaN(),
			Prompt: math.NaN(), Output: math.NaN(),
		}
		if i < len(requests) {
			out.Requests = requests[i]
		}
		if l, ok := state.Load(i); ok {
			out.Prompt, out.Output = float64(l.Prompt), float64(l.Output)
		}
		out.valueIsTotal = out.targetIsTotal
		if f := demandOf(d, in.Signal); f != nil {
			out.demand, out.hasDemand, out.valueIsTotal = f.Demand, in.Silent == 0, f.Total
		}
		s.Signals = append(s.Signals, out)
	}
}

// demandOf finds the facts of the step in which a signal asked for replicas; nil: it
// asked for none.
func demandOf(d *scale.Decision, signal string) *facts.Demand {
	for i := range d.Steps {
		if f, ok := d.Steps[i].Facts.(*facts.Demand); ok && d.Steps[i].Signal == signal {
			return f
		}
	}
	return nil
}

// RecordScale takes over a change of replicas that was written.
func (s *Workload) RecordScale(d *scale.Decision, now time.Time) {
	s.last = lastScale{at: now, direction: scaledUp, rule: d.Rule}
	if d.Replicas < d.Current {
		s.last.direction = scaledDown
	}
	if s.scales == nil {
		s.scales = map[string]uint64{}
	}
	s.scales[s.last.direction]++
}

// collect sends the metrics of one workload.
func (m *workloadDescs) collect(ch chan<- prometheus.Metric, key types.NamespacedName, s *Workload) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, append([]string{key.Namespace, key.Name}, labels...)...)
	}
	for i := range s.Conditions {
		c := &s.Conditions[i]
		send(m.condition, prometheus.GaugeValue, oneIf(c.Status == metav1.ConditionTrue), c.Type)
	}
	if s.MalformedSpec {
		send(m.malformed, prometheus.GaugeValue, 1, "spec")
	}
	if s.MalformedStatus {
		send(m.malformed, prometheus.GaugeValue, 1, "status")
	}
	if n := &s.Counts; n.OK {
		send(m.replicas, prometheus.GaugeValue, float64(n.Current), "current")
		send(m.replicas, prometheus.GaugeValue, float64(n.Desired), "desired")
		send(m.replicas, prometheus.GaugeValue, float64(n.Serving), "serving")
		send(m.replicas, prometheus.GaugeValue, float64(n.Starting), "starting")
		send(m.replicas, prometheus.GaugeValue, float64(n.Unschedulable), "unschedulable")
	}
	for _, direction := range []string{scaledUp, scaledDown} {
		send(m.scales, prometheus.CounterValue, float64(s.scales[direction]), direction)
	}
	if l := &s.last; !l.at.IsZero() {
		send(m.lastScale, prometheus.GaugeValue, float64(l.at.UnixMilli())/1000, l.direction, string(l.rule))
	}
	for rule, n := range s.decisions {
		send(m.decisions, prometheus.CounterValue, float64(n), string(rule))
	}
	m.collectSampled(send, &s.Sampled)
	if s.rule == "" {
		return
	}
	send(m.rule, prometheus.GaugeValue, 1, string(s.rule))
	send(m.limit, prometheus.GaugeValue, float64(s.min), "min")
	send(m.limit, prometheus.GaugeValue, float64(s.max), "max")
	for i := range s.Signals {
		in := &s.Signals[i]
		send(m.target, prometheus.GaugeValue, in.target, in.name, in.unit, scopeOf(in.targetIsTotal))
		if in.hasValue {
			send(m.value, prometheus.GaugeValue, in.value, in.name, in.unit, scopeOf(in.valueIsTotal))
			send(m.age, prometheus.GaugeValue, in.age.Seconds(), in.name)
		}
		if in.hasDemand {
			send(m.demand, prometheus.GaugeValue, in.demand, in.name)
		}
		if !math.IsNaN(in.Requests) {
			send(m.requests, prometheus.GaugeValue, in.Requests, in.name)
		}
		if !math.IsNaN(in.Prompt) {
			send(m.tokens, prometheus.GaugeValue, in.Prompt, in.name, typePrompt)
			send(m.tokens, prometheus.GaugeValue, in.Output, in.name, typeOutput)
		}
	}
}

// collectSampled sends what is sampled.
func (m *workloadDescs) collectSampled(send func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string), s *Sampled) {
	if s.At.IsZero() {
		return
	}
	send(m.gpus, prometheus.GaugeValue, float64(s.GPUs))
	for _, x := range s.Sums {
		send(m.podsSum, prometheus.GaugeValue, x.Value, x.Metric)
	}
}

// scopeOf is the label per of a signal's value or target.
func scopeOf(total bool) string {
	if total {
		return "workload"
	}
	return "replica"
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
