// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// nameSignal gives the signal of a trigger the trigger's name, which a formula uses.
func (c *converter) nameSignal(t *trigger, before int, field string) {
	signals := c.result.Object.Spec.Signals
	first := signalName(t.Name)
	if len(signals) != before+1 || t.Name == "" {
		return
	}
	if first != t.Name {
		c.result.note(field+".name", "%s: the name of the signal is %q", t.Name, first)
	}
	if first == "" {
		return
	}
	name := first
	for i := 2; slices.ContainsFunc(signals, func(s v1alpha1.Signal) bool { return s.Name == name }); i++ {
		name = fmt.Sprintf("%.58s-%d", first, i)
	}
	signals[before].Name = name
	c.named[t.Name] = name
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// reserved are words of CEL that cannot be a variable of a formula.
var reserved = []string{"as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop", "max", "min", "namespace", "null", "package", "return", "true", "var", "void", "while"}

// signalName is the name of a signal for that of a trigger; empty: there is none.
func signalName(trigger string) string {
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(trigger), "-"), "-")
	if slices.Contains(reserved, name) || name != "" && name[0] >= '0' && name[0] <= '9' {
		name = "trigger-" + name
	}
	return strings.TrimRight(name[:min(len(name), maxName)], "-")
}

// maxName bounds the name of a signal or a schedule, in bytes.
const maxName = 63

// modifiers translates a formula over triggers: KEDA compares its result with a target per replica. It needs all triggers as
// queries, whose values are those of the workload.
func (c *converter) modifiers(in *scaledObject) {
	a := in.Spec.Advanced
	if a == nil || a.Modifiers == nil {
		return
	}
	if m := a.Modifiers; m.Formula == "" {
		if m.Target+m.ActivationTarget+m.MetricType != "" {
			c.result.lose("spec.advanced.scalingModifiers", "target %q, activationTarget %q, metricType %q: they belong to a formula, and there is none", m.Target, m.ActivationTarget, m.MetricType)
		}
		return
	}
	const field = "spec.advanced.scalingModifiers"
	m, spec := a.Modifiers, &c.result.Object.Spec
	c.result.unsimulated(field, "the formula is not simulated: the triggers are, each by itself")
	lose := func(format string, args ...any) {
		c.result.lose(field, "the formula %s (target %q, activationTarget %q, metricType %q): %s. Without it, the signal that asks for the most replicas decides",
			shown(m.Formula), m.Target, m.ActivationTarget, m.MetricType, fmt.Sprintf(format, args...))
	}
	target, err := strconv.ParseFloat(cmp.Or(m.Target, "0"), 64)
	switch {
	case err != nil || !(target > 0) || math.IsInf(target, 0):
		lose("the target %q is not a number above 0", m.Target)
		return
	case m.MetricType == "Value":
		lose("metricType Value has no equivalent; divide by a target per replica")
		return
	case slices.ContainsFunc(spec.Signals, func(s v1alpha1.Signal) bool { return s.Query == nil }):
		lose("not every trigger is a query")
		return
	}
	inCEL := map[string]string{}
	for trigger, name := range c.named {
		if slices.ContainsFunc(spec.Signals, func(s v1alpha1.Signal) bool { return s.Name == name }) {
			inCEL[trigger] = strings.ReplaceAll(name, "-", "_") + ".value"
		}
	}
	text, err := toCEL(m.Formula, inCEL)
	if err != nil {
		lose("%v", err)
		return
	}
	spec.Formula = fmt.Sprintf("(%s) / %s", text, strconv.FormatFloat(target, 'g', -1, 64))
	if _, err := policy.Compile(c.result.Object); err != nil {
		spec.Formula = ""
		lose("%v", err)
		return
	}
	if m.ActivationTarget != "" {
		c.result.lose(field+".activationTarget", "%s: each query has an activation of its own", m.ActivationTarget)
	}
	c.result.note(field, "formula: %s, of %s with the target %s", spec.Formula, shown(m.Formula), strings.TrimSpace(m.Target+" "+m.MetricType))
}

// maxToZero is the CRD's bound of behavior.scaleDown.toZeroSeconds.
const maxToZero = 86400

// cooldown translates the wait of the last replica.
func (c *converter) cooldown(in *scaledObject) {
	spec := &c.result.Object.Spec
	period := int32(300) // KEDA's default
	if p := in.Spec.CooldownPeriod; p != nil {
		period = *p
	}
	switch {
	case spec.MinReplicas == nil || *spec.MinReplicas > 0 || !slices.ContainsFunc(spec.Signals, func(s v1alpha1.Signal) bool { return s.Query != nil }):
		if in.Spec.CooldownPeriod != nil {
			c.result.note("spec.cooldownPeriod", "%d s: is for the last replica, and minReplicas is above 0", period)
		}
		return
	case period < 0 || period > maxToZero:
		c.result.lose("spec.cooldownPeriod", "%d s: toZeroSeconds is at most %d", period, maxToZero)
		return
	}
	if spec.Behavior == nil {
		spec.Behavior = &v1alpha1.Behavior{}
	}
	if spec.Behavior.ScaleDown == nil {
		spec.Behavior.ScaleDown = &v1alpha1.ScalingRules{}
	}
	spec.Behavior.ScaleDown.ToZeroSeconds = &period
	c.result.note("spec.cooldownPeriod", "%d s: behavior.scaleDown.toZeroSeconds", period)
}
