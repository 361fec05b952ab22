// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// LongestOverride is the longest time from when an override is first read to its end.
const LongestOverride = 30 * 24 * time.Hour

// maxReason bounds the reason of an override, in bytes.
const maxReason = 200

// Override is a spec's override. The zero Override is none.
type Override struct {
	Until  time.Time
	Reason string // one line
	// What says what it does, such as "6 replicas" or "no scale-down".
	What string

	least, most *int32 // bounds that it sets
	up, down    bool   // directions that it freezes
}

// OverrideState says whether an override applies.
type OverrideState uint8

// The states of an override.
const (
	NoOverride OverrideState = iota
	Overridden
	OverrideEnded
	OverrideTooLong // it ends more than LongestOverride after it was first read
)

// StateAt returns whether the override applies at now. since is when it was first read;
// zero: now.
func (o *Override) StateAt(now, since time.Time) OverrideState {
	if since.IsZero() {
		since = now
	}
	switch {
	case o.What == "":
		return NoOverride
	case o.Until.Sub(since) > LongestOverride:
		return OverrideTooLong
	case !now.Before(o.Until):
		return OverrideEnded
	}
	return Overridden
}

// String names the override with its end and its reason.
func (o *Override) String() string {
	return fmt.Sprintf("override until %s (%s)", Clock(o.Until), o.Reason)
}

// Clock formats a time for sentences: in UTC, without seconds unless there are some.
func Clock(t time.Time) string {
	if t = t.UTC(); t.Second() != 0 {
		return t.Format("2006-01-02 15:04:05") + " UTC"
	}
	return t.Format("2006-01-02 15:04") + " UTC"
}

// Apply sets in p, which has the bounds of the spec, the bounds that are in force at now,
// and returns the active schedules. since is when the override was first read; zero: now.
func (c *Compiled) Apply(p *scale.Policy, now, since time.Time) (schedules []string) {
	p.InForce = scale.InForce{OverBudget: p.Min}
	schedules = c.applySchedules(p, now)
	if c.Override.StateAt(now, since) == Overridden {
		c.Override.apply(p)
	}
	return schedules
}

func (o *Override) apply(p *scale.Policy) {
	by := scale.Origin{Rule: scale.RuleOverride, Text: o.String()}
	if o.least != nil {
		p.Min, p.InForce.Min = *o.least, by
		p.KeepZero = p.KeepZero && *o.least == 0 // it asks for replicas
		if p.Max < p.Min {
			p.Max, p.InForce.Max = p.Min, by
		}
	}
	if o.most != nil {
		p.Max, p.InForce.Max = *o.most, by
		if p.Min > p.Max {
			p.Min, p.InForce.Min = p.Max, by
		}
	}
	if o.up || o.down {
		by.Text = o.What + ", " + by.Text
	}
	if o.up {
		p.InForce.Up = by
	}
	if o.down {
		p.InForce.Down = by
	}
}

// CompileOverride translates and validates an override alone.
func CompileOverride(in *v1alpha1.Override) (Override, error) {
	o, errs := compileOverride(in, field.NewPath("spec", "override"))
	return o, errs.ToAggregate()
}

// compileOverride translates spec.override, if it is set.
func compileOverride(in *v1alpha1.Override, path *field.Path) (o Override, errs field.ErrorList) {
	if in == nil {
		return o, nil
	}
	o.Until = in.Until.Time
	o.Reason = excerpt.Of(strings.Join(strings.Fields(in.Reason), " "), maxReason)
	if o.Until.IsZero() {
		errs = append(errs, field.Required(path.Child("until"), `say when it ends, such as "2026-11-24T18:00:00Z"`))
	}
	if o.Reason == "" {
		errs = append(errs, field.Required(path.Child("reason"), "say why, such as an incident's number"))
	}
	set := 0
	for _, x := range []struct {
		name string
		n    *int32
		what string
	}{{"replicas", in.Replicas, "%d replicas"}, {"minReplicas", in.MinReplicas, "at least %d replicas"}, {"maxReplicas", in.MaxReplicas, "at most %d replicas"}} {
		if x.n == nil {
			continue
		}
		set++
		o.What = fmt.Sprintf(x.what, *x.n)
		if *x.n < 0 {
			errs = append(errs, field.Invalid(path.Child(x.name), *x.n, "must not be negative"))
		}
	}
	o.least, o.most = in.MinReplicas, in.MaxReplicas
	if in.Replicas != nil {
		o.least, o.most = in.Replicas, in.Replicas
	}
	if in.Freeze != "" {
		set++
		what, ok := map[v1alpha1.Freeze]string{v1alpha1.FreezeUp: "no scale-up", v1alpha1.FreezeDown: "no scale-down", v1alpha1.FreezeBoth: "no change"}[in.Freeze]
		if !ok {
			errs = append(errs, field.NotSupported(path.Child("freeze"), in.Freeze, []v1alpha1.Freeze{v1alpha1.FreezeUp, v1alpha1.FreezeDown, v1alpha1.FreezeBoth}))
		}
		o.What, o.up, o.down = what, in.Freeze != v1alpha1.FreezeDown, in.Freeze != v1alpha1.FreezeUp
	}
	if set != 1 {
		errs = slices.Insert(errs, 0, field.Required(path, "an override needs exactly one of replicas, minReplicas, maxReplicas and freeze"))
	}
	return o, errs
}
