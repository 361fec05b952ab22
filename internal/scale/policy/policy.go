// SPDX-License-Identifier: Apache-2.0

// Package policy translates GPUAutoscaler objects into scale.Policy values. The
// controller, the backtester and the CLI share it, so that a replay runs the same
// policy as the cluster.
package policy

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// Compiled is a GPUAutoscaler in the engine's terms. Sources[i] is the source of
// Policy.Signals[i].
type Compiled struct {
	Policy    scale.Policy // with the bounds of the spec; Apply sets those in force
	Schedules []Schedule
	Override  Override
	Pair      Pair
	Sources   []Source
	Actuation v1alpha1.Actuation
}

// Compile translates and validates a GPUAutoscaler. Its error is the aggregate of a
// field.ErrorList: each entry names the field, the value and what is allowed. The
// caller sets GPUsPerReplica of the policy, from the pod template.
func Compile(a *v1alpha1.GPUAutoscaler) (Compiled, error) {
	spec, path := &a.Spec, field.NewPath("spec")
	c := Compiled{Actuation: spec.Actuation}
	if c.Actuation == "" {
		c.Actuation = v1alpha1.ActuationScale
	}
	if err := weigh(spec, path); err != nil {
		return c, err
	}
	var errs field.ErrorList
	if allowed := []v1alpha1.Actuation{v1alpha1.ActuationScale, v1alpha1.ActuationHPA, v1alpha1.ActuationAdvise}; !slices.Contains(allowed, c.Actuation) {
		errs = append(errs, field.NotSupported(path.Child("actuation"), c.Actuation, allowed))
	}
	if d := spec.OnDelete; d != "" && d != v1alpha1.OnDeleteKeep && d != v1alpha1.OnDeleteRestore {
		errs = append(errs, field.NotSupported(path.Child("onDelete"), d, []v1alpha1.OnDelete{v1alpha1.OnDeleteKeep, v1alpha1.OnDeleteRestore}))
	}
	errs = append(errs, compileBounds(&c.Policy, spec, path)...)
	errs = append(errs, compileSignals(&c, spec, path.Child("signals"))...)
	if err := compileFormula(&c, spec, path.Child("formula")); err != nil && len(errs) == 0 {
		errs = append(errs, err)
	}
	errs = append(errs, compileBehavior(&c.Policy, spec.Behavior, path.Child("behavior"))...)
	errs = append(errs, compileMissingData(&c.Policy, spec.MissingData, path.Child("missingData"))...)
	errs = append(errs, compileStartupAndBudget(&c.Policy, spec, path)...)
	schedules, bad := compileSchedules(spec, path.Child("schedules"))
	c.Schedules, errs = schedules, append(errs, bad...)
	override, bad := compileOverride(spec.Override, path.Child("override"))
	c.Override, errs = override, append(errs, bad...)
	pair, bad := compilePair(a, path.Child("pair"))
	c.Pair, errs = pair, append(errs, bad...)
	c.Policy.KeepZero = c.Actuation != v1alpha1.ActuationAdvise
	return c, errs.ToAggregate()
}

// compileStartupAndBudget translates spec.startup, spec.budget, spec.idle and spec.drain, if
// they are set.
func compileStartupAndBudget(p *scale.Policy, spec *v1alpha1.GPUAutoscalerSpec, path *field.Path) (errs field.ErrorList) {
	if s := spec.Startup; s != nil && s.ExpectedSeconds != nil {
		p.Startup = seconds(*s.ExpectedSeconds)
		if *s.ExpectedSeconds < 0 {
			errs = append(errs, field.Invalid(path.Child("startup", "expectedSeconds"), *s.ExpectedSeconds, "must not be negative"))
		}
	}
	if b := spec.Budget; b != nil && b.MaxGPUs != nil {
		p.MaxGPUs = *b.MaxGPUs
		if p.MaxGPUs < 1 {
			errs = append(errs, field.Invalid(path.Child("budget", "maxGPUs"), p.MaxGPUs, "must be at least 1"))
		}
	}
	if i := spec.Idle; i != nil {
		p.Idle = scale.IdlePolicy{After: i.After.Duration, To: i.To}
		if i.After.Duration < minIdle || i.After.Duration > maxIdle {
			errs = append(errs, field.Invalid(path.Child("idle", "after"), i.After.Duration.String(), "must lie between 1m and 720h, which is 30 days"))
		}
		if i.To < 0 || i.To > p.Min {
			errs = append(errs, field.Invalid(path.Child("idle", "to"), i.To, fmt.Sprintf("must lie between 0 and minReplicas (%d)", p.Min)))
		}
	}
	if d := spec.Drain; d != nil {
		if p.Drain = seconds(d.MaxSeconds); d.MaxSeconds < 1 || d.MaxSeconds > maxDrainSeconds {
			errs = append(errs, field.Invalid(path.Child("drain", "maxSeconds"), d.MaxSeconds, "must lie between 1 and 7200"))
		}
	}
	return errs
}

func compileBounds(p *scale.Policy, spec *v1alpha1.GPUAutoscalerSpec, path *field.Path) (errs field.ErrorList) {
	p.Min, p.Max = 1, spec.MaxReplicas
	if spec.MinReplicas != nil {
		p.Min = *spec.MinReplicas
	}
	if p.Max < 1 {
		errs = append(errs, field.Invalid(path.Child("maxReplicas"), p.Max, "is required, and must be at least 1"))
	} else if p.Min > p.Max {
		errs = append(errs, field.Invalid(path.Child("minReplicas"), p.Min, fmt.Sprintf("must not be greater than maxReplicas (%d)", p.Max)))
	}
	switch {
	case p.Min < 0:
		errs = append(errs, field.Invalid(path.Child("minReplicas"), p.Min, "must not be negative"))
	case p.Min == 0 && !wakes(spec.Signals):
		errs = append(errs, field.Invalid(path.Child("minReplicas"), p.Min, needsWaking))
	}
	return errs
}

// needsWaking is the message about a minimum of 0 that no signal can end.
const needsWaking = "0 needs a signal that has a value at zero replicas, and a threshold for leaving zero: a query with an activation"

// wakes reports whether one of the signals can ask for replicas when there are none.
func wakes(signals []v1alpha1.Signal) bool {
	return slices.ContainsFunc(signals, func(s v1alpha1.Signal) bool {
		return (s.Query != nil || serverOf(s.Preset).isGateway()) && s.Activation != nil
	})
}

// The CRD's bounds of lists and windows. They also apply to objects that were
// stored before the CRD had them.
const (
	maxSignals       = 16
	maxPolicies      = 16
	maxWindowSeconds = 3600
	maxToZeroSeconds = 86400
	maxDrainSeconds  = 7200
	minIdle, maxIdle = time.Minute, 30 * 24 * time.Hour
)

func compileSignals(c *Compiled, spec *v1alpha1.GPUAutoscalerSpec, path *field.Path) (errs field.ErrorList) {
	in := spec.Signals
	switch {
	case len(in) == 0:
		return field.ErrorList{field.Required(path, "name at least one signal")}
	case len(in) > maxSignals:
		return field.ErrorList{field.TooMany(path, len(in), maxSignals)}
	}
	for i := range in {
		before := len(c.Sources)
		err := c.compileSignal(&in[i], spec.ScaleTargetRef.Name, path.Index(i))
		if err == nil {
			err = nameSignals(c.Policy.Signals[before:], &in[i], path.Index(i))
		}
		if err != nil {
			errs = append(errs, err)
		}
		for j := range c.Sources[before:] {
			c.Sources[before+j].Signal = i
		}
	}
	numberDuplicateNames(c.Policy.Signals)
	return append(errs, checkUniqueNames(in, path)...)
}

// numberDuplicateNames appends numbers to repeated signal names, because the engine
// keeps its state by name.
func numberDuplicateNames(signals []scale.Signal) {
	used := map[string]bool{}
	for i := range signals {
		name := signals[i].Name
		for n := 2; used[signals[i].Name]; n++ {
			signals[i].Name = fmt.Sprintf("%s (%d)", name, n)
		}
		used[signals[i].Name] = true
	}
}

// compileSignal appends one signal of the spec, or the signals of its preset.
func (c *Compiled) compileSignal(in *v1alpha1.Signal, workload string, path *field.Path) *field.Error {
	row := serverOf(in.Preset)
	if err := checkOneSource(in, row, path); err != nil {
		return err
	}
	switch {
	case row.isGateway():
		return c.expandGateway(in, row, workload, path)
	case in.Preset != "":
		return c.expandPreset(in, row, path)
	}
	if in.Target == nil {
		return field.Required(path.Child("target"), "set the value that the signal should have")
	}
	value, kind, err := parseTarget(in.Target, path.Child("target"))
	if err != nil {
		return err
	}
	s := scale.Signal{Type: kind, Target: value}
	var src Source
	switch {
	case in.Query != nil:
		s, src, err = compileQuery(s, in, path)
	case in.Pods != nil:
		s, src, err = compilePods(s, in.Pods, path.Child("pods"))
	default:
		s, src, err = compileGPU(s, in, path)
	}
	if err != nil {
		return err
	}
	c.Policy.Signals = append(c.Policy.Signals, s)
	c.Sources = append(c.Sources, src)
	return nil
}

// checkOneSource checks that a signal has exactly one source, and only fields that
// belong to it.
func checkOneSource(in *v1alpha1.Signal, row *server, path *field.Path) *field.Error {
	n := 0
	for _, is := range []bool{in.GPU != nil, in.Pods != nil, in.Query != nil, in.Preset != ""} {
		if is {
			n++
		}
	}
	switch {
	case n != 1:
		return field.Required(path, "a signal needs exactly one of gpu, pods, query and preset")
	case in.Preset == "" && (in.Port != nil || in.Path != ""):
		return field.Forbidden(path.Child("port"), "port and path of the signal are for presets; set pods.port and pods.path instead")
	case in.Preset == "" && (in.Scheme != "" || in.TLS != nil):
		return field.Forbidden(path.Child("scheme"), "scheme and tls of the signal are for presets; set pods.scheme and pods.tls instead")
	case in.Preset == "" && in.SLO != nil:
		return field.Forbidden(path.Child("slo"), "an slo needs a preset, which names the server's latency metrics")
	case in.Query == nil && !row.isGateway() && in.Activation != nil:
		return field.Forbidden(path.Child("activation"), "an activation needs a signal that has a value at zero replicas: a query")
	case in.Pool != "" && (!row.isGateway() || row.gateway.byModel):
		return field.Forbidden(path.Child("pool"), "is for the preset epp")
	case in.Selector != nil && !row.isGateway():
		return field.Forbidden(path.Child("selector"), "is for the presets epp and dynamo; other signals read the workload's own pods")
	case in.Model != "" && (!row.isGateway() || !row.gateway.byModel):
		return field.Forbidden(path.Child("model"), "is for the preset dynamo")
	}
	return nil
}

// parseTarget validates and converts a target.
func parseTarget(t *v1alpha1.Target, path *field.Path) (value float64, kind scale.TargetType, _ *field.Error) {
	value = toFloat64(t.Value)
	if value <= 0 || math.IsInf(value, 0) || math.IsNaN(value) {
		return 0, 0, field.Invalid(path.Child("value"), t.Value.String(), "must be greater than 0")
	}
	switch t.Type {
	case "", v1alpha1.AverageValue:
		return value, scale.AverageValue, nil
	case v1alpha1.Value:
		return value, scale.Value, nil
	}
	if t.Type == "Utilization" {
		return 0, 0, field.Invalid(path.Child("type"), t.Type, "is a type of the HorizontalPodAutoscaler: leave the type out and write the target as value, in the metric's unit")
	}
	return 0, 0, field.NotSupported(path.Child("type"), t.Type, []v1alpha1.TargetType{v1alpha1.AverageValue, v1alpha1.Value})
}

// defaultPath is the path at which most servers expose their metrics.
const defaultPath = "/metrics"

func compilePods(s scale.Signal, in *v1alpha1.PodsSignal, path *field.Path) (scale.Signal, Source, *field.Error) {
	if in.Metric == "" {
		return s, Source{}, field.Required(path.Child("metric"), "name the metric")
	}
	if err := validatePort(in.Port, path.Child("port")); err != nil {
		return s, Source{}, err
	}
	metricsPath, err := parsePath(in.Path, path.Child("path"))
	if err != nil {
		return s, Source{}, err
	}
	verify, err := parseTLS(in.Scheme, in.TLS, path)
	if err != nil {
		return s, Source{}, err
	}
	s.Name, s.Aggregate = in.Metric, gpu.Sum
	return s, Source{Kind: Pods, Terms: []Term{{{Name: in.Metric}}}, Port: Port{Given: in.Port}, Path: metricsPath, TLS: verify}, nil
}

// maxNameLength is the number of characters of a query that make up its name.
const maxNameLength = 80

func compileQuery(s scale.Signal, in *v1alpha1.Signal, path *field.Path) (scale.Signal, Source, *field.Error) {
	promql := strings.TrimSpace(in.Query.PromQL)
	if promql == "" {
		return s, Source{}, field.Required(path.Child("query", "promql"), "write the query")
	}
	name := []rune(strings.Join(strings.Fields(promql), " "))
	if len(name) > maxNameLength {
		name = append(name[:maxNameLength], '…')
	}
	s.Name, s.Aggregate = string(name), gpu.Sum
	if in.Activation != nil {
		x := toFloat64(*in.Activation)
		if !(x >= 0) {
			return s, Source{}, field.Invalid(path.Child("activation"), in.Activation.String(), "must not be negative")
		}
		s.Activation = &x
	}
	return s, Source{Kind: Query, PromQL: promql}, nil
}

func compileGPU(s scale.Signal, in *v1alpha1.Signal, path *field.Path) (scale.Signal, Source, *field.Error) {
	metric, at := in.GPU.Metric, path.Child("gpu", "metric")
	ref, ok := names.Resolve(metric)
	if !ok {
		return s, Source{}, field.Invalid(at, metric,
			"is not a known metric; use Utilization, MemoryUtilization, MemoryUsed, SMActive, SMOccupancy, TensorActive, DRAMActive, Power, a field id or a profile's metric name")
	}
	f, ok := gpu.Lookup(ref.Field)
	if !ok || f.PodAgg == gpu.NoAggregate {
		return s, Source{}, field.Invalid(at, metric, "has no meaningful value for a pod as a whole and cannot be scaled on")
	}
	s.Name, s.Unit, s.Aggregate = metric, string(f.Unit), f.LoadAgg
	switch f.Unit {
	case gpu.Percent:
		s.Ceiling = 100
	case gpu.Ratio:
		s.Ceiling = 1
	}
	if f.PodAgg == gpu.Rate {
		s.Unit += "/s"
	}
	if ceiling := s.Ceiling / ref.Scale; s.Ceiling > 0 && s.Target > ceiling {
		return s, Source{}, field.Invalid(path.Child("target", "value"), in.Target.Value.String(), targetTooHigh(metric, s.Target, ceiling))
	}
	if f.Unit == gpu.Percent && ref.Scale == 1 && s.Target < 1 {
		return s, Source{}, field.Invalid(path.Child("target", "value"), in.Target.Value.String(), targetTooLow(metric, s.Target))
	}
	s.Target *= ref.Scale
	return s, Source{Kind: GPU, Field: ref.Field}, nil
}

// targetTooHigh returns the message about a target above the highest value of its
// metric. If a percentage was written for a ratio, it contains the ratio.
func targetTooHigh(metric string, target, ceiling float64) string {
	text := fmt.Sprintf("can never be exceeded: the highest value of %s is %g", metric, ceiling)
	if ceiling == 1 && target <= 100 {
		text += fmt.Sprintf(`; it is a ratio, write "%g" for %g %%`, target/100, target)
	}
	return text
}

// targetTooLow returns the message about a target below 1 %. If a ratio was written for a
// percentage, it contains the percentage.
func targetTooLow(metric string, target float64) string {
	text := fmt.Sprintf("is less than 1 %%: %s is in percent", metric)
	if percent := 100 * target; percent >= 1 {
		text += fmt.Sprintf(`, write "%g" for %g %%`, percent, percent)
	}
	return text
}

func compileBehavior(p *scale.Policy, b *v1alpha1.Behavior, path *field.Path) (errs field.ErrorList) {
	p.Up.Tolerance, p.Down.Tolerance = scale.AutoTolerance, scale.AutoTolerance
	p.Down.Window = scale.Auto
	if b == nil {
		return nil
	}
	errs = append(errs, compileRules(&p.Up, b.ScaleUp, path.Child("scaleUp"))...)
	if b.ScaleUp != nil && b.ScaleUp.ToZeroSeconds != nil {
		errs = append(errs, field.Forbidden(path.Child("scaleUp", "toZeroSeconds"), "is for scaleDown"))
	}
	return append(errs, compileRules(&p.Down, b.ScaleDown, path.Child("scaleDown"))...)
}

func compileRules(r *scale.Rules, in *v1alpha1.ScalingRules, path *field.Path) (errs field.ErrorList) {
	if in == nil {
		return nil
	}
	if w := in.StabilizationWindowSeconds; w != nil {
		r.Window = seconds(*w)
		if *w < 0 || *w > maxWindowSeconds {
			errs = append(errs, field.Invalid(path.Child("stabilizationWindowSeconds"), *w, "must lie between 0 and 3600"))
		}
	}
	if z := in.ToZeroSeconds; z != nil {
		r.ToZero = seconds(*z)
		if *z < 0 || *z > maxToZeroSeconds {
			errs = append(errs, field.Invalid(path.Child("toZeroSeconds"), *z, "must lie between 0 and 86400"))
		}
	}
	if in.Tolerance != nil {
		r.Tolerance = toFloat64(*in.Tolerance)
		if in.Tolerance.Cmp(resource.MustParse("0")) < 0 {
			errs = append(errs, field.Invalid(path.Child("tolerance"), in.Tolerance.String(), "must not be negative"))
		}
	}
	if in.SelectPolicy != nil {
		sel, ok := map[string]scale.Select{"Max": scale.SelectMax, "Min": scale.SelectMin, "Disabled": scale.SelectDisabled}[*in.SelectPolicy]
		if !ok {
			errs = append(errs, field.NotSupported(path.Child("selectPolicy"), *in.SelectPolicy, []string{"Max", "Min", "Disabled"}))
		}
		r.Select = sel
	}
	if len(in.Policies) > maxPolicies {
		return append(errs, field.TooMany(path.Child("policies"), len(in.Policies), maxPolicies))
	}
	for i, sp := range in.Policies {
		at := path.Child("policies").Index(i)
		switch {
		case sp.Type != "Pods" && sp.Type != "Percent":
			errs = append(errs, field.NotSupported(at.Child("type"), sp.Type, []string{"Pods", "Percent"}))
		case sp.Value < 1:
			errs = append(errs, field.Invalid(at.Child("value"), sp.Value, "must be at least 1"))
		case sp.PeriodSeconds < 1 || sp.PeriodSeconds > 1800:
			errs = append(errs, field.Invalid(at.Child("periodSeconds"), sp.PeriodSeconds, "must lie between 1 and 1800"))
		default:
			r.Policies = append(r.Policies, scale.RatePolicy{Percent: sp.Type == "Percent", Value: sp.Value, Period: seconds(sp.PeriodSeconds)})
		}
	}
	return errs
}

func compileMissingData(p *scale.Policy, m *intstr.IntOrString, path *field.Path) field.ErrorList {
	switch {
	case m == nil || m.Type == intstr.String && m.StrVal == "Hold":
		p.Missing = scale.MissingHold
	case m.Type == intstr.String && m.StrVal == "Max":
		p.Missing = scale.MissingMax
	case m.Type == intstr.Int && m.IntVal >= 0:
		p.Missing, p.MissingFloor = scale.MissingFloor, m.IntVal
	default:
		return field.ErrorList{field.Invalid(path, m.String(), "must be Hold, Max or a number of replicas that is not negative")}
	}
	return nil
}

// toFloat64 returns the float64 nearest to q. Quantity.AsApproximateFloat64 converts
// 600m to slightly more than 0.6.
func toFloat64(q resource.Quantity) float64 {
	x, err := strconv.ParseFloat(q.AsDec().String(), 64)
	if err != nil {
		return math.NaN()
	}
	return x
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

// StartupOf returns the start-up time that the spec gives, or that the controller learned;
// 0: unknown.
func StartupOf(a *v1alpha1.GPUAutoscaler) time.Duration {
	switch {
	case a.Spec.Startup != nil && a.Spec.Startup.ExpectedSeconds != nil:
		return time.Duration(*a.Spec.Startup.ExpectedSeconds) * time.Second
	case a.Status.Startup != nil:
		return time.Duration(a.Status.Startup.P50Seconds) * time.Second
	}
	return 0
}
