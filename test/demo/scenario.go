// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	gpuload "github.com/gpupilot/gpupilot/internal/loadgen/load"
	"github.com/gpupilot/gpupilot/test/demo/load"
	"github.com/gpupilot/gpupilot/test/simnode"
)

// The two workloads: the same server under the same load, one scaled by
// GPUPilot, one by Kubernetes' own autoscaler on the same metric.
const (
	namespace = "default"
	llm       = "llm"
	classic   = "classic"
)

// The settings of the demo.
const (
	nodes, gpusPerNode = 3, 8
	maxReplicas        = 12
	target             = 60.0             // percent of GPU utilisation
	startup            = 12 * time.Second // of a replica: weights are loaded
	chainStartup       = 6 * time.Second  // beside the usual chain
	stabilization      = 10 * time.Second // before scaling down, for both
	capacity           = 10.0             // requests a second of one replica at 100 %
	peakLoad           = 36.0             // requests a second: 6 replicas at the target
	baseLoad           = 3.0              // requests a second: half a replica at the target
	chainBase          = 15.0             // requests a second at night beside the usual chain
	chainLeast         = 4                // minReplicas there: what the night needs, and one more
	// queueLimit is how many requests wait at most; clients give up on more.
	queueLimit = 30
	// lead is the quiet before a replayed load, and tail the one after it, in
	// which the replicas go.
	lead, tail = 5 * time.Second, 45 * time.Second
	// The objective: its limits are edges of vLLM's histograms.
	firstLimit, tokenLimit = time.Second, 25 * time.Millisecond
	objective              = "99%"
	allowedMisses          = 0.01
	// shortRound is the length of the built-in load where nobody gives one.
	shortRound = 3 * time.Minute
	// slowSync is Kubernetes' default for the HorizontalPodAutoscaler, quickSync
	// what lets it take three turns up and one down within a short demo.
	slowSync, quickSync = 15 * time.Second, 5 * time.Second
	// slowEnough is how long a demo lasts that keeps the default.
	slowEnough = 150 * time.Second
	// chainEnough is how long a demo lasts that shows an objective and the usual chain: they take more than a minute to
	// follow a load that falls. chainRound is its length without an end.
	chainEnough, chainRound = 6 * time.Minute, 6 * time.Minute
)

// scenario is the load of one demo and its duration.
type scenario struct {
	shape    load.Shape
	name     string        // of the load, for the screen
	length   time.Duration // of the demo; 0: until Ctrl-C
	recorded bool          // a replayed or drawn load: it need not end where it began
	hpaSync  time.Duration
	startup  time.Duration // of a replica
	least    int32         // minReplicas
	full     float64       // percent of GPU utilisation up to which a replica is not overloaded
	chain    string        // the Prometheus of the usual chain; "": classic reads GPUPilot's metrics
}

// withChain is the scenario beside the usual chain, where it is long enough and there is a Prometheus.
func (s scenario) withChain(prometheus string) scenario {
	if prometheus == "" || s.length > 0 && s.length < chainEnough {
		return s
	}
	s.chain, s.full = prometheus, fullByLimits()
	if s.recorded {
		return s
	}
	s.startup, s.least = chainStartup, chainLeast
	if s.length == 0 {
		s.shape = load.Loop{Shape: workingDay(chainRound)}
	} else {
		s.shape = workingDay(s.length)
	}
	return s
}

// newScenario parses DEMO_SECONDS, LOAD and SPEED; empty: not set.
func newScenario(seconds, file, speed string) (scenario, error) {
	s := scenario{startup: startup, least: 1, full: target}
	if seconds != "" {
		n, err := strconv.ParseFloat(seconds, 64)
		if err != nil || !(n >= 1 && n <= 86400) {
			return s, fmt.Errorf("DEMO_SECONDS=%s: want a number of seconds, 1 to 86400", seconds)
		}
		s.length = time.Duration(n * float64(time.Second))
	}
	form, value, _ := strings.Cut(file, "=")
	isShape := slices.Contains(drawable, gpuload.Form(form)) && form != file
	if speed != "" && (file == "" || isShape) {
		return s, errors.New("SPEED is for a replayed load: give LOAD=FILE too")
	}
	s.hpaSync = slowSync
	if isShape {
		return s.draw(gpuload.Form(form), value)
	}
	if file != "" {
		return s.replay(file, cmp.Or(speed, "1"))
	}
	s.name, s.shape = "built-in", builtIn(cmp.Or(s.length, shortRound))
	if s.length == 0 {
		s.shape = load.Loop{Shape: s.shape}
	} else if s.length < slowEnough {
		s.hpaSync = quickSync
	}
	return s, nil
}

// round is how long the built-in load takes before it repeats.
func (s scenario) round() time.Duration {
	if s.chain != "" {
		return chainRound
	}
	return shortRound
}

// duty is a shape of gpupilot load, as a load.Shape: its share of the peak.
type duty struct {
	gpuload.Shape
	length time.Duration
}

func (d duty) At(t time.Duration) float64 { return peakLoad * d.Shape.At(min(max(0, t), d.length)) }
func (d duty) Duration() time.Duration    { return d.length }

var drawable = []gpuload.Form{gpuload.Ramp, gpuload.Steps, gpuload.Sine, gpuload.Burst}

// draw is a scenario with a shape of gpupilot load.
func (s scenario) draw(form gpuload.Form, value string) (scenario, error) {
	shape, err := gpuload.ParseShape(form, value)
	if err != nil {
		return s, fmt.Errorf("LOAD: %w", err)
	}
	s.recorded, s.name = true, fmt.Sprintf("%s %s of %g req/s", form, value, peakLoad)
	drawn := duty{shape, shape.Length()}
	if s.length == 0 {
		s.shape = load.Loop{Shape: drawn}
		return s, nil
	}
	drawn.length = s.length - min(lead+tail, s.length/2)
	s.shape = load.Sequence{load.Constant{Rate: baseLoad, For: lead}, drawn, load.Constant{Rate: baseLoad, For: tail}}
	if s.length < slowEnough {
		s.hpaSync = quickSync
	}
	return s, nil
}

func (s scenario) replay(file, speed string) (scenario, error) {
	x, err := strconv.ParseFloat(speed, 64)
	if err != nil || !(x > 0 && x <= 1e6) {
		return s, fmt.Errorf("SPEED=%s: want a factor greater than 0, such as 20", speed)
	}
	r, err := load.Open(file, load.ReplayConfig{Speed: x, Peak: peakLoad})
	if err != nil {
		return s, fmt.Errorf("LOAD: %w", err)
	}
	s.recorded, s.name = true, fmt.Sprintf("%s, %g times as fast, scaled to a peak of %g req/s", filepath.Base(file), x, peakLoad)
	s.shape = load.Sequence{load.Constant{Rate: baseLoad, For: lead}, r, load.Constant{Rate: baseLoad, For: tail}}
	s.length = cmp.Or(s.length, s.shape.Duration())
	if s.length < slowEnough {
		s.hpaSync = quickSync
	}
	return s, nil
}

// builtIn is a day of a service in one round: quiet, a steep morning, noon, a
// steep evening, and a night that is long enough for the replicas to go.
func builtIn(d time.Duration) load.Shape {
	part := func(x float64) time.Duration { return time.Duration(x * float64(d)) }
	quiet, morning, noon, evening := part(0.05), part(0.20), part(0.38), part(0.05)
	return load.Sequence{
		load.Constant{Rate: baseLoad, For: quiet},
		load.Ramp{From: baseLoad, To: peakLoad, For: morning},
		load.Constant{Rate: peakLoad, For: noon},
		load.Ramp{From: peakLoad, To: baseLoad, For: evening},
		load.Constant{Rate: baseLoad, For: d - quiet - morning - noon - evening},
	}
}

// workingDay is the day beside the usual chain: the load more than doubles in the morning. In a round of six minutes that takes
// 180 s, as an hour at 20 times the speed, and a replica starts in 6 s, as in two minutes. The load begins softly: a day does not begin with a step. The night is longer than an objective keeps replicas.
func workingDay(d time.Duration) load.Shape {
	part := func(x float64) time.Duration { return time.Duration(x * float64(d)) }
	dawn, quiet, morning, noon, evening := part(0.03), part(0.02), part(0.50), part(0.10), part(0.05)
	return load.Sequence{
		load.Ramp{From: 0, To: chainBase, For: dawn},
		load.Constant{Rate: chainBase, For: quiet},
		load.Ramp{From: chainBase, To: peakLoad, For: morning},
		load.Constant{Rate: peakLoad, For: noon},
		load.Ramp{From: peakLoad, To: chainBase, For: evening},
		load.Constant{Rate: chainBase, For: d - dawn - quiet - morning - noon - evening},
	}
}

// fullByLimits is the utilisation, in percent, from which a server misses a limit of the objective.
func fullByLimits() float64 {
	l, u := latency(), 0.0
	for u < 100 && l.Missed(simnode.Load{Utilization: u + 0.1}, capacity) == 0 {
		u += 0.1
	}
	return u
}

// latency is that of both workloads' servers: at 70 % utilisation the first requests exceed tokenLimit.
func latency() *simnode.Latency {
	return &simnode.Latency{First: 300 * time.Millisecond, Token: 12 * time.Millisecond, FirstLimit: firstLimit, TokenLimit: tokenLimit}
}

func model() simnode.Model {
	return simnode.Model{Capacity: capacity, Concurrency: 64, QueueLimit: queueLimit}
}

// need returns the number of replicas that the offered load needs.
func (s *scenario) need(offered float64) int {
	m := model()
	return m.Need(offered, s.full)
}

// autoscaler is llm's.
func (s *scenario) autoscaler() *v1alpha1.GPUAutoscaler {
	least, window := s.least, int32(stabilization.Seconds())
	return &v1alpha1.GPUAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: llm},
		Spec: v1alpha1.GPUAutoscalerSpec{
			ScaleTargetRef: v1alpha1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: llm},
			MinReplicas:    &least, MaxReplicas: maxReplicas,
			Signals: []v1alpha1.Signal{{
				GPU:    &v1alpha1.GPUSignal{Metric: "Utilization"},
				Target: &v1alpha1.Target{Type: v1alpha1.AverageValue, Value: *resource.NewQuantity(target, resource.DecimalSI)},
			}},
			Behavior: &v1alpha1.Behavior{ScaleDown: &v1alpha1.ScalingRules{StabilizationWindowSeconds: &window}},
		},
	}
}

// promise is llm's beside the usual chain.
func (s *scenario) promise() *v1alpha1.GPUAutoscaler {
	a := s.autoscaler()
	a.Spec.Signals = []v1alpha1.Signal{{
		Preset: v1alpha1.PresetVLLM,
		SLO: &v1alpha1.SLO{
			Objective: objective, TimeToFirstToken: &metav1.Duration{Duration: firstLimit}, InterTokenLatency: &metav1.Duration{Duration: tokenLimit},
		},
	}}
	return a
}

// chainHPA is classic's behind the usual chain: on the recording rule, with the settings of plainHPA.
func (s *scenario) chainHPA() *autoscalingv2.HorizontalPodAutoscaler {
	h := s.plainHPA()
	h.Spec.Metrics = []autoscalingv2.MetricSpec{{
		Type: autoscalingv2.ExternalMetricSourceType,
		External: &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: chainMetric},
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: resource.NewQuantity(target, resource.DecimalSI)},
		},
	}}
	return h
}

// plainHPA is classic's: Kubernetes' own, on the same metric through
// custom.metrics.k8s.io. Its behavior is as free as llm's.
func (s *scenario) plainHPA() *autoscalingv2.HorizontalPodAutoscaler {
	least, none, window := s.least, int32(0), int32(stabilization.Seconds())
	most := autoscalingv2.MaxChangePolicySelect
	all := []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PercentScalingPolicy, Value: 900, PeriodSeconds: 1}}
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: classic},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: classic},
			MinReplicas:    &least, MaxReplicas: maxReplicas,
			Metrics: []autoscalingv2.MetricSpec{{
				Type: autoscalingv2.PodsMetricSourceType,
				Pods: &autoscalingv2.PodsMetricSource{
					Metric: autoscalingv2.MetricIdentifier{Name: "DCGM_FI_DEV_GPU_UTIL"},
					Target: autoscalingv2.MetricTarget{
						Type: autoscalingv2.AverageValueMetricType, AverageValue: resource.NewQuantity(target, resource.DecimalSI),
					},
				},
			}},
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{
				ScaleUp:   &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &none, SelectPolicy: &most, Policies: all},
				ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &window},
			},
		},
	}
}
