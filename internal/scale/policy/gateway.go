// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// isGateway reports whether a preset is about a gateway. A gateway exposes its metrics on
// pods of its own, so the preset is a query. As any query, it reads the series of the
// workload's own namespace only.
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
	if in.SLO != nil {
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
	gateway, err := compileGateway(in, cmp.Or(in.Pool, workload), path)
	if err != nil {
		return err
	}
	c.Policy.Signals, c.Sources = append(c.Policy.Signals, s), append(c.Sources, Source{Kind: Query, PromQL: promql, Gateway: gateway})
	return nil
}

// compileGateway returns the pods of a gateway: those of the selector, or those with the
// labels that the charts and operators of the gateways set.
func compileGateway(in *v1alpha1.Signal, pool string, path *field.Path) (*Gateway, *field.Error) {
	g := &Gateway{
		Selectors: pickerSelectors(pool), Port: Port{Default: 9090, SeparateFromAPI: true},
		Metrics: slices.Sorted(slices.Values(slices.Concat(pickerQueue, pickerRunning, pickerEndpoints, pickerFlowQueue))),
	}
	if in.Preset == v1alpha1.PresetDynamo {
		g.Selectors = []labels.Selector{labels.SelectorFromSet(labels.Set{"nvidia.com/dynamo-component-type": "frontend"})}
		g.Port, g.Metrics = Port{Default: 8000}, []string{dynamoInFlight}
	}
	if in.Selector != nil {
		selector, err := metav1.LabelSelectorAsSelector(in.Selector)
		switch {
		case err != nil:
			return nil, field.Invalid(path.Child("selector"), in.Selector, err.Error())
		case selector.Empty():
			return nil, field.Invalid(path.Child("selector"), in.Selector, "selects every pod of the namespace: name the labels of the gateway's pods")
		}
		g.Selectors = []labels.Selector{selector}
	}
	if err := validatePort(in.Port, path.Child("port")); err != nil {
		return nil, err
	}
	g.Port.Given = in.Port
	var err *field.Error
	if g.TLS, err = parseTLS(in.Scheme, in.TLS, path); err != nil {
		return nil, err
	}
	g.Path, err = parsePath(in.Path, path.Child("path"))
	return g, err
}

// pickerSelectors returns the selectors of a pool's endpoint picker. The charts of the
// Gateway API inference extension and of llm-d-router name the picker after their
// release, which has the pool's name, shortened to 40 characters. Older manifests have
// that name in the label app. KServe names pool and picker after its LLMInferenceService.
func pickerSelectors(pool string) (out []labels.Selector) {
	picker := pool[:min(len(pool), 40)] + "-epp"
	for _, key := range []string{"inferencepool", "llm-d-router-gateway", "llm-d-router-standalone", "epp", "app"} {
		out = append(out, labels.SelectorFromSet(labels.Set{key: picker}))
	}
	if service, ok := strings.CutSuffix(pool, "-inference-pool"); ok {
		out = append(out, labels.SelectorFromSet(labels.Set{
			"app.kubernetes.io/component": "llminferenceservice-router-scheduler", "app.kubernetes.io/name": service,
		}))
	}
	return out
}

// eppRequests returns the query for the requests of an InferencePool: those that wait in
// the picker's flow control, and those that wait and run on the ready endpoints. The pool's
// gauges are means over the endpoints, of the current names or of the deprecated ones, which
// the picker also exposes: they are never added up. Several replicas of the picker see the
// same endpoints, but each has a queue of its own. Without the feature gate flowControl
// there is no queue. A picker of the pool that has a queue, and none of the pool's name, is
// missing data: the names of the label may have changed.
func eppRequests(pool string) string {
	either := func(label, operator string, names []string) string {
		selectors := make([]string, len(names))
		for i, n := range names {
			selectors[i] = fmt.Sprintf("%s{%s%s%s}", n, label, operator, strconv.Quote(pool))
		}
		return "(" + strings.Join(selectors, " or ") + ")"
	}
	ready := either("name", "=", pickerEndpoints)
	return fmt.Sprintf("(max%s + max%s) * max%s + (sum%s or vector(0) unless on () (%s and on (pod) %s))",
		either("name", "=", pickerQueue), either("name", "=", pickerRunning), ready,
		either("inference_pool", "=", pickerFlowQueue), either("inference_pool", "!=", pickerFlowQueue), ready)
}

// The metrics of a picker, by their current and their deprecated names.
var (
	pickerQueue     = []string{"llm_d_epp_average_queue_size", "inference_pool_average_queue_size"}
	pickerRunning   = []string{"llm_d_epp_average_running_requests", "inference_pool_average_running_requests"}
	pickerEndpoints = []string{"llm_d_epp_ready_endpoints", "inference_pool_ready_pods"}
	pickerFlowQueue = []string{"llm_d_epp_flow_control_queue_size", "inference_extension_flow_control_queue_size"}
)

// dynamoInFlight is the metric of Dynamo's frontends.
const dynamoInFlight = "dynamo_frontend_inflight_requests"

// dynamoRequests returns the query for the requests of a model that Dynamo's frontends have
// given to the engines and that are not complete: waiting and running ones.
func dynamoRequests(model string) string {
	return fmt.Sprintf("sum(%s{model=%s})", dynamoInFlight, strconv.Quote(model))
}
