// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// finish sets the bounds, and removes what the controller would refuse.
func (c *converter) finish() {
	r := c.result
	spec := &r.Object.Spec
	c.checkNames()
	c.prune()
	wakes := slices.ContainsFunc(spec.Signals, func(s v1alpha1.Signal) bool { return s.Query != nil })
	switch {
	case spec.MinReplicas == nil || *spec.MinReplicas != 0:
	case wakes:
		for i := range spec.Signals {
			if s := &spec.Signals[i]; s.Query != nil && s.Activation == nil {
				s.Activation = new(resource.MustParse("0"))
			}
		}
	default:
		spec.MinReplicas = new(int32(1))
		r.lose("spec.minReplicas", "0 needs a query with an activation, because pods have no metrics at zero replicas: minReplicas is 1")
	}
	r.Peer.Min, r.Peer.Max = 1, int(spec.MaxReplicas)
	if spec.MinReplicas != nil {
		r.Peer.Min = max(1, int(*spec.MinReplicas))
	}
	c.accept()
}

// accept removes what the controller would refuse, and says whether a useful object is left.
func (c *converter) accept() {
	r := c.result
	c.prune()
	r.usable = false
	switch _, err := policy.Compile(r.Object); {
	case c.refused:
	case len(r.Object.Spec.Signals) == 0:
		r.loseOnce("spec.signals", "no metric has an equivalent: add a signal, such as `gpu: {metric: Utilization}` or `preset: vllm`")
	case err != nil:
		r.lose("spec", "the GPUAutoscaler is refused: %v", err)
	default:
		r.usable = true
	}
}

// checkNames refuses an object whose names the API server refuses.
func (c *converter) checkNames() {
	m, to := &c.result.Object.ObjectMeta, c.result.Object.Spec.ScaleTargetRef
	check := func(at, name string, problems []string) {
		if len(problems) > 0 {
			c.refused = true
			c.result.lose(at, "%q: %s%s", name, strings.Join(problems, "; "), helmHint(name))
		}
	}
	check("metadata.name", m.Name, validation.IsDNS1123Subdomain(m.Name))
	if m.Namespace != "" {
		check("metadata.namespace", m.Namespace, validation.IsDNS1123Label(m.Namespace))
	}
	name := validation.IsDNS1123Subdomain(to.Name)
	check("spec.scaleTargetRef.name", to.Name, name)
	if !kindName.MatchString(to.Kind) || len(to.Kind) > 63 {
		check("spec.scaleTargetRef.kind", to.Kind, []string{"want a kind, such as Deployment"})
	}
	if !apiVersionName.MatchString(to.APIVersion) || len(to.APIVersion) > 317 {
		check("spec.scaleTargetRef.apiVersion", to.APIVersion, []string{"want GROUP/VERSION, such as apps/v1"})
	}
}

// The forms of the CRD.
var (
	kindName       = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]*$`)
	apiVersionName = regexp.MustCompile(`^(([a-z0-9.-]+/)?[a-z0-9]+)?$`)
)

// helmHint says what to do about a template of Helm.
func helmHint(text string) string {
	if !strings.Contains(text, "{{") {
		return ""
	}
	return ". It is a template that was not rendered: helm template renders it"
}

// prunable are the parts of a spec that an object can do without.
var (
	ofSignal   = regexp.MustCompile(`^spec\.signals\[(\d+)\]`)
	ofSchedule = regexp.MustCompile(`^spec\.schedules\[(\d+)\]`)
)

// prune removes the parts that the controller refuses, with a note for each.
func (c *converter) prune() {
	spec := &c.result.Object.Spec
	for range 64 { // each round removes a part
		_, err := policy.Compile(c.result.Object)
		var all []error
		if list, ok := errors.AsType[utilerrors.Aggregate](err); ok {
			all = list.Errors()
		}
		removed := false
		for _, err := range all {
			bad, ok := errors.AsType[*field.Error](err)
			if !ok {
				continue
			}
			if removed = c.pruneOne(spec, bad); removed {
				break
			}
		}
		if !removed {
			return
		}
	}
}

// pruneOne removes the part of the spec that an error is about.
func (c *converter) pruneOne(spec *v1alpha1.GPUAutoscalerSpec, bad *field.Error) bool {
	r, why := c.result, bad.Error()
	index := func(form *regexp.Regexp, n int) int {
		m := form.FindStringSubmatch(bad.Field)
		if m == nil {
			return -1
		}
		if i, err := strconv.Atoi(m[1]); err == nil && i < n {
			return i
		}
		return -1
	}
	if i := index(ofSignal, len(spec.Signals)); i >= 0 {
		r.lose(c.origin(c.signalFields, i, "spec.signals"), "%s: the signal is refused: %s", describeSignal(&spec.Signals[i]), why)
		spec.Signals = slices.Delete(spec.Signals, i, i+1)
		if i < len(c.signalFields) {
			c.signalFields = slices.Delete(c.signalFields, i, i+1)
		}
		return true
	}
	if i := index(ofSchedule, len(spec.Schedules)); i >= 0 {
		s := &spec.Schedules[i]
		r.lose(c.origin(c.scheduleFields, i, "spec.schedules"), "the schedule %s, %q in %q, is refused: %s", s.Name, s.Cron, s.TimeZone, why)
		spec.Schedules = slices.Delete(spec.Schedules, i, i+1)
		if i < len(c.scheduleFields) {
			c.scheduleFields = slices.Delete(c.scheduleFields, i, i+1)
		}
		return true
	}
	switch {
	case len(spec.Signals) > maxSignals && bad.Field == "spec.signals":
		for _, at := range c.signalFields[maxSignals:] {
			r.lose(at, "the object has more than %d signals: this one is left out", maxSignals)
		}
		spec.Signals, c.signalFields = spec.Signals[:maxSignals], c.signalFields[:maxSignals]
	case len(spec.Schedules) > maxSchedules && bad.Field == "spec.schedules":
		for _, at := range c.scheduleFields[maxSchedules:] {
			r.lose(at, "the object has more than %d schedules: this one is left out", maxSchedules)
		}
		spec.Schedules, c.scheduleFields = spec.Schedules[:maxSchedules], c.scheduleFields[:maxSchedules]
	case strings.HasPrefix(bad.Field, "spec.behavior.scaleUp") && spec.Behavior != nil && spec.Behavior.ScaleUp != nil:
		r.lose(c.behaviorField+".scaleUp", "%s is refused, and left out: %s", shown(spec.Behavior.ScaleUp), why)
		spec.Behavior.ScaleUp = nil
	case strings.HasPrefix(bad.Field, "spec.behavior.scaleDown") && spec.Behavior != nil && spec.Behavior.ScaleDown != nil:
		r.lose(c.behaviorField+".scaleDown", "%s is refused, and left out: %s", shown(spec.Behavior.ScaleDown), why)
		spec.Behavior.ScaleDown = nil
	case bad.Field == "spec.missingData" && spec.MissingData != nil:
		r.lose("spec.fallback", "missingData: %s is refused, and left out: %s", spec.MissingData, why)
		spec.MissingData = nil
	case bad.Field == "spec.formula" && spec.Formula != "":
		r.lose("spec.advanced.scalingModifiers", "the formula %s is refused, and left out: %s", spec.Formula, why)
		spec.Formula = ""
	default:
		return false
	}
	return true
}

// The bounds of the CRD.
const (
	maxSignals   = 16
	maxSchedules = 16
)

// origin is the field of the source behind an entry of a list.
func (c *converter) origin(fields []string, i int, otherwise string) string {
	if i < len(fields) {
		return fields[i]
	}
	return otherwise
}

// describeSignal names a signal with its target.
func describeSignal(s *v1alpha1.Signal) string {
	name := string(s.Preset)
	switch {
	case s.Query != nil:
		name = excerptOf(s.Query.PromQL)
	case s.Pods != nil:
		name = s.Pods.Metric
	case s.GPU != nil:
		name = s.GPU.Metric
	}
	if s.Target == nil {
		return name
	}
	return fmt.Sprintf("%s with the target %s %s", name, cmp.Or(s.Target.Type, v1alpha1.AverageValue), s.Target.Value.String())
}
