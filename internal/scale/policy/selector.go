// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/weight"
)

// weigh returns the error of the first program of an object that is above its weight: a *weight.Error with the field.
func weigh(spec *v1alpha1.GPUAutoscalerSpec, path *field.Path) error {
	at := func(p *field.Path, err error) error {
		if err == nil {
			return nil
		}
		return fmt.Errorf("%s: %w", p, err)
	}
	if err := weight.Check(weight.Formula, "the formula has %d bytes", len(spec.Formula), weight.MostFormula, "use fewer signals or shorter names of them"); err != nil {
		return at(path.Child("formula"), err)
	}
	for i := range spec.Signals {
		if s := spec.Signals[i].Selector; s != nil {
			if err := WeighSelector(s); err != nil {
				return at(path.Child("signals").Index(i).Child("selector"), err)
			}
		}
	}
	for i := range spec.Schedules {
		err := weight.Check(weight.Schedule, "the cron expression has %d bytes", len(spec.Schedules[i].Cron), weight.MostSchedule, "use ranges and steps, or several schedules")
		if err != nil {
			return at(path.Child("schedules").Index(i).Child("cron"), err)
		}
	}
	return nil
}

// WeighSelector returns a *weight.Error for a selector that takes long to match.
func WeighSelector(s *metav1.LabelSelector) error {
	n, bytes := len(s.MatchLabels), 0
	for key, value := range s.MatchLabels {
		bytes += len(key) + len(value)
	}
	for i := range s.MatchExpressions {
		e := &s.MatchExpressions[i]
		n, bytes = n+max(1, len(e.Values)), bytes+len(e.Key)
		for _, value := range e.Values {
			bytes += len(value)
		}
	}
	return weight.CheckSelector(n, bytes)
}

// ParseSelector parses the text of a selector that is not too heavy; else the error is a *weight.Error.
func ParseSelector(text string) (labels.Selector, error) {
	if err := weight.CheckSelectorText(text); err != nil {
		return nil, err
	}
	s, err := labels.Parse(text)
	if err != nil {
		return nil, err
	}
	return s, WeighParsed(s)
}

// WeighParsed is WeighSelector for a parsed selector.
func WeighParsed(s labels.Selector) error {
	n, bytes := 0, 0
	requirements, _ := s.Requirements()
	for i := range requirements {
		values := requirements[i].ValuesUnsorted()
		n, bytes = n+max(1, len(values)), bytes+len(requirements[i].Key())
		for _, value := range values {
			bytes += len(value)
		}
	}
	return weight.CheckSelector(n, bytes)
}
