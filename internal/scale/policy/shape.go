// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// shape is the format of a field's value. It makes better error messages than the
// decoder, which names neither the field nor a valid value.
type shape struct {
	isValid func(value any) bool
	want    string
}

var (
	quantity = shape{isQuantity, `want a number, such as "60" or "0.6"`}
	whole    = shape{isWhole, "want a whole number, without quotes"}
	hpaField = shape{
		func(any) bool { return false },
		`is a field of the HorizontalPodAutoscaler: write it as value, in the metric's unit, such as target: {value: "60"}`,
	}
)

// shapes has the format of fields by name, at any level of the spec. It includes
// names of the HorizontalPodAutoscaler that users write by mistake.
var shapes = map[string]shape{
	"value": quantity, "activation": quantity, "tolerance": quantity,
	"averageValue": hpaField, "averageUtilization": hpaField,
	"interTokenLatency": {isDuration, `want a duration with its unit, such as "50ms"`},
	"timeToFirstToken":  {isDuration, `want a duration with its unit, such as "2s"`},
	"minReplicas":       whole, "maxReplicas": whole, "maxGPUs": whole,
	"duration": {isDuration, `want a duration with its unit, such as "90m"`},
	"replicas": whole, "until": {isTime, `want a time, such as "2026-11-24T18:00:00Z"`},
	"expectedSeconds": whole, "stabilizationWindowSeconds": whole, "periodSeconds": whole, "maxSeconds": whole,
	"after": {isDuration, `want a duration with its unit, such as "2h"`}, "to": whole,
}

func isQuantity(v any) bool {
	text, ok := v.(string)
	if !ok {
		_, ok = v.(float64)
		return ok
	}
	_, err := resource.ParseQuantity(text)
	return err == nil
}

func isWhole(v any) bool {
	x, ok := v.(float64)
	return ok && x == math.Trunc(x) && math.Abs(x) <= math.MaxInt32
}

func isDuration(v any) bool {
	text, ok := v.(string)
	if !ok {
		return false
	}
	_, err := time.ParseDuration(text)
	return err == nil
}

func isTime(v any) bool {
	text, ok := v.(string)
	if !ok {
		return false
	}
	_, err := time.Parse(time.RFC3339, text)
	return err == nil
}

// shapeErrors returns an error for each field below path with a malformed value.
func shapeErrors(node any, path *field.Path) (errs field.ErrorList) {
	switch node := node.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(node)) {
			at := path.Child(name)
			if s, ok := shapes[name]; ok && !s.isValid(node[name]) {
				errs = append(errs, field.Invalid(at, node[name], s.want))
				continue
			}
			errs = append(errs, shapeErrors(node[name], at)...)
		}
	case []any:
		for i := range node {
			errs = append(errs, shapeErrors(node[i], path.Index(i))...)
		}
	}
	return errs
}
