// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// Pair is a spec's pair. The zero Pair is none.
type Pair struct {
	With        string  // name of the other GPUAutoscaler
	Least, Most float64 // replicas for each of the other's; 0: no bound
}

func (p Pair) String() string {
	switch {
	case p.Least == 0:
		return fmt.Sprintf("at most %.4g for 1", p.Most)
	case p.Most == 0:
		return fmt.Sprintf("at least %.4g for 1", p.Least)
	}
	return fmt.Sprintf("%.4g to %.4g for 1", p.Least, p.Most)
}

// The bounds of a ratio.
const leastRatio, mostRatio = 0.001, 1000

// compilePair translates spec.pair, if it is set.
func compilePair(a *v1alpha1.GPUAutoscaler, path *field.Path) (p Pair, errs field.ErrorList) {
	in := a.Spec.Pair
	if in == nil {
		return p, nil
	}
	p.With = in.With
	if in.With == "" || in.With == a.Name || len(in.With) > 253 {
		errs = append(errs, field.Invalid(path.Child("with"), in.With, "must name another GPUAutoscaler of the namespace"))
	}
	path = path.Child("ratio")
	if in.Ratio.Min == nil && in.Ratio.Max == nil {
		errs = append(errs, field.Required(path, "a ratio needs min, max or both"))
	}
	for _, x := range []struct {
		name  string
		from  *resource.Quantity
		into  *float64
		least float64
	}{{"min", in.Ratio.Min, &p.Least, 0}, {"max", in.Ratio.Max, &p.Most, leastRatio}} {
		if x.from == nil {
			continue
		}
		*x.into = toFloat64(*x.from)
		if !(*x.into >= x.least && *x.into <= mostRatio) {
			errs = append(errs, field.Invalid(path.Child(x.name), x.from.String(), fmt.Sprintf("must lie between %g and %d", x.least, mostRatio)))
		}
	}
	if in.Ratio.Min != nil && in.Ratio.Max != nil && p.Least > p.Most {
		errs = append(errs, field.Invalid(path.Child("min"), in.Ratio.Min.String(), "must not be greater than max"))
	}
	return p, errs
}
