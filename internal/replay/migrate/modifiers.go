// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// nameSignal gives the signal of a trigger the trigger's name, which a formula uses.
func (c *converter) nameSignal(t *trigger, before int) {
	signals := c.result.Object.Spec.Signals
	if name := signalName(t.Name); name != "" && len(signals) == before+1 {
		signals[before].Name = name
		c.named[t.Name] = before
	}
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// signalName is the name of a signal for that of a trigger; empty: there is none.
func signalName(trigger string) string {
	return strings.Trim(notInNames.ReplaceAllString(strings.ToLower(trigger), "-"), "-")
}

var identifier = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)

// modifiers translates a formula over triggers: KEDA compares its result with a target per replica. It needs all triggers as
// queries, whose values are those of the workload.
func (c *converter) modifiers(in *scaledObject) {
	a := in.Spec.Advanced
	if a == nil || a.Modifiers == nil || a.Modifiers.Formula == "" {
		return
	}
	const field = "spec.advanced.scalingModifiers"
	m, spec := a.Modifiers, &c.result.Object.Spec
	c.result.unsimulated(field, "the formula is not simulated: the triggers are, each by itself")
	lose := func(format string, args ...any) {
		c.result.lose(field, "the formula %q: %s. Without it, the signal that asks for the most replicas decides", excerptOf(m.Formula), fmt.Sprintf(format, args...))
	}
	target, err := strconv.ParseFloat(cmp.Or(m.Target, "0"), 64)
	switch {
	case err != nil || target <= 0:
		lose("the target %q is not a number above 0", m.Target)
		return
	case m.MetricType == "Value":
		lose("metricType Value has no equivalent; divide by a target per replica")
		return
	case slices.ContainsFunc(spec.Signals, func(s v1alpha1.Signal) bool { return s.Query == nil }):
		lose("not every trigger is a query")
		return
	}
	text := identifier.ReplaceAllStringFunc(m.Formula, func(word string) string {
		if i, ok := c.named[word]; ok {
			return strings.ReplaceAll(spec.Signals[i].Name, "-", "_") + ".value"
		}
		return word
	})
	spec.Formula = fmt.Sprintf("(%s) / %s", text, m.Target)
	if _, err := policy.Compile(c.result.Object); err != nil {
		spec.Formula = ""
		lose("%v", err)
		return
	}
	if m.ActivationTarget != "" {
		c.result.lose(field+".activationTarget", "%s: each query has an activation of its own", m.ActivationTarget)
	}
	c.result.note(field, "formula: %s", spec.Formula)
}

// cooldown translates the wait of the last replica.
func (c *converter) cooldown(in *scaledObject) {
	spec := &c.result.Object.Spec
	if *spec.MinReplicas > 0 || !slices.ContainsFunc(spec.Signals, func(s v1alpha1.Signal) bool { return s.Query != nil }) {
		return
	}
	period := int32(300) // KEDA's default
	if p := in.Spec.CooldownPeriod; p != nil {
		period = *p
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

// cronTrigger translates a window of at least a number of replicas.
func (c *converter) cronTrigger(t *trigger, field string) {
	md, spec := t.Metadata, &c.result.Object.Spec
	replicas, err := strconv.ParseInt(md["desiredReplicas"], 10, 32)
	start, end := strings.Fields(md["start"]), strings.Fields(md["end"])
	if err != nil || replicas < 0 || len(start) != 5 || len(end) != 5 {
		c.result.lose(field, "a schedule with start %q, end %q and desiredReplicas %q, which is not one of KEDA's", md["start"], md["end"], md["desiredReplicas"])
		return
	}
	from, ok1 := minuteOfDay(start)
	to, ok2 := minuteOfDay(end)
	if !ok1 || !ok2 || from == to || !slices.Equal(start[2:], end[2:]) {
		c.result.lose(field, "a schedule from %q to %q: only a start and an end at one time of the same days have an equivalent; write it as schedules", md["start"], md["end"])
		return
	}
	n := int32(replicas)
	name := cmp.Or(signalName(t.Name), fmt.Sprintf("cron-%d", len(spec.Schedules)+1))
	spec.Schedules = append(spec.Schedules, v1alpha1.Schedule{
		Name: name, TimeZone: md["timezone"], Cron: strings.Join(start, " "),
		Duration: &metav1.Duration{Duration: time.Duration((to-from+24*60)%(24*60)) * time.Minute}, MinReplicas: &n,
	})
	c.result.note(field, "the schedule %s: at least %d replicas, which serve at the start (leadTime: Auto), where KEDA begins to start them then", name, n)
}

// minuteOfDay is the time of a cron expression that names one minute and one hour.
func minuteOfDay(cron []string) (minute int, ok bool) {
	m, err1 := strconv.Atoi(cron[0])
	h, err2 := strconv.Atoi(cron[1])
	return 60*h + m, err1 == nil && err2 == nil && m >= 0 && m < 60 && h >= 0 && h < 24
}
