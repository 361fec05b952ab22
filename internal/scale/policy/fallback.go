// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
)

var signalName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// nameSignals gives the signals of one entry of the spec its name and its fallback. Those of
// a preset keep the part after the preset's name.
func nameSignals(signals []scale.Signal, in *v1alpha1.Signal, path *field.Path) *field.Error {
	f, err := compileFallback(in.Fallback, path.Child("fallback"))
	if err != nil {
		return err
	}
	if in.Name != "" && !signalName.MatchString(in.Name) {
		return field.Invalid(path.Child("name"), in.Name, "must be lower-case letters, digits and -, at most 63")
	}
	for i := range signals {
		s := &signals[i]
		s.Fallback = f
		switch rest, ok := strings.CutPrefix(s.Name, string(in.Preset)+" "); {
		case in.Name == "":
		case in.Preset != "" && ok:
			s.Name = in.Name + " " + rest
		default:
			s.Name = in.Name
		}
	}
	return nil
}

func compileFallback(in *intstr.IntOrString, path *field.Path) (scale.Fallback, *field.Error) {
	switch {
	case in == nil:
		return scale.Fallback{}, nil
	case in.Type == intstr.Int && in.IntVal >= 0:
		return scale.Fallback{Mode: scale.FallbackReplicas, Replicas: in.IntVal}, nil
	}
	mode, ok := map[string]scale.FallbackMode{"Hold": scale.FallbackHold, "Ignore": scale.FallbackIgnore, "Max": scale.FallbackMax}[in.StrVal]
	if in.Type == intstr.Int || !ok {
		return scale.Fallback{}, field.Invalid(path, in.String(), "must be Hold, Ignore, Max or a number of replicas that is not negative")
	}
	return scale.Fallback{Mode: mode}, nil
}

// checkUniqueNames returns an error for each name that an earlier signal has.
func checkUniqueNames(in []v1alpha1.Signal, path *field.Path) (errs field.ErrorList) {
	used := map[string]bool{}
	for i := range in {
		if name := in[i].Name; name != "" && used[name] {
			errs = append(errs, field.Duplicate(path.Index(i).Child("name"), name))
		}
		used[in[i].Name] = true
	}
	return errs
}
