// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// isGateway reports whether a preset is about a gateway. A gateway exposes its metrics on
// pods of its own, so the preset is a query. As any query, it reads the series of the
// workload's own namespace only, unless the operator trusts that namespace.
func isGateway(p v1alpha1.Preset) bool {
	return p == v1alpha1.PresetEPP || p == v1alpha1.PresetDynamo
}

// gatewayPresets returns the names of the presets of gateways.
func gatewayPresets() []v1alpha1.Preset {
	return []v1alpha1.Preset{v1alpha1.PresetDynamo, v1alpha1.PresetEPP}
}

// expandGateway appends the signal of a gateway: the requests that it has for the
// workload, waiting and running. They can be read at zero replicas.
func (c *Compiled) expandGateway(in *v1alpha1.Signal, workload string, path *field.Path) *field.Error {
	switch {
	case in.Port != nil || in.Path != "":
		return field.Forbidden(path.Child("port"), "the presets epp and dynamo are queries of a PromQL backend: leave port and path out")
	case in.SLO != nil:
		return field.Forbidden(path.Child("slo"), "gateways do not expose the time between tokens per replica; set a target instead")
	}
	s := scale.Signal{Name: string(in.Preset) + " requests", Target: defaultConcurrency, Aggregate: gpu.Sum}
	if in.Target != nil {
		value, kind, err := parseTarget(in.Target, path.Child("target"))
		if err != nil {
			return err
		}
		if kind != scale.AverageValue {
			return field.NotSupported(path.Child("target", "type"), in.Target.Type, []v1alpha1.TargetType{v1alpha1.AverageValue})
		}
		s.Target = value
	}
	if in.Activation != nil {
		x := toFloat64(*in.Activation)
		if !(x >= 0) {
			return field.Invalid(path.Child("activation"), in.Activation.String(), "must not be negative")
		}
		s.Activation = &x
	}
	promql := eppRequests(cmp.Or(in.Pool, workload))
	if in.Preset == v1alpha1.PresetDynamo {
		if in.Model == "" {
			return field.Required(path.Child("model"), "write the value of the label model in the frontend's metrics")
		}
		promql = dynamoRequests(in.Model)
	}
	c.Policy.Signals, c.Sources = append(c.Policy.Signals, s), append(c.Sources, Source{Kind: Query, PromQL: promql})
	return nil
}

// eppRequests returns the query for the requests of an InferencePool: those that wait in
// the picker's flow control, and those that wait and run on the ready endpoints. The pool's
// gauges are means over the endpoints, of the current names or of the deprecated ones, which
// the picker also exposes: they are never added up. Several replicas of the picker see the
// same endpoints, but each has a queue of its own. Without the feature gate flowControl
// there is no queue.
func eppRequests(pool string) string {
	either := func(names ...string) string {
		for i, n := range names {
			names[i] = fmt.Sprintf("%s{name=%s}", n, strconv.Quote(pool))
		}
		return "max(" + strings.Join(names, " or ") + ")"
	}
	queue := fmt.Sprintf("%[1]s{inference_pool=%[3]s} or %[2]s{inference_pool=%[3]s}",
		"llm_d_epp_flow_control_queue_size", "inference_extension_flow_control_queue_size", strconv.Quote(pool))
	return fmt.Sprintf("(%s + %s) * %s + (sum(%s) or vector(0))",
		either("llm_d_epp_average_queue_size", "inference_pool_average_queue_size"),
		either("llm_d_epp_average_running_requests", "inference_pool_average_running_requests"),
		either("llm_d_epp_ready_endpoints", "inference_pool_ready_pods"), queue)
}

// dynamoRequests returns the query for the requests of a model that Dynamo's frontends have
// given to the engines and that are not complete: waiting and running ones.
func dynamoRequests(model string) string {
	return fmt.Sprintf("sum(dynamo_frontend_inflight_requests{model=%s})", strconv.Quote(model))
}
