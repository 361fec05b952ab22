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

// expandGateway appends the signal of a gateway: the requests that it has for the
// workload, waiting and running. They can be read at zero replicas.
func (c *Compiled) expandGateway(in *v1alpha1.Signal, row *server, workload string, path *field.Path) *field.Error {
	if in.SLO != nil {
		return field.Forbidden(path.Child("slo"), "gateways do not expose the time between tokens per replica; set a target instead")
	}
	target, err := requestsPerReplica(in.Target, path.Child("target"))
	if err != nil {
		return err
	}
	s := scale.Signal{Name: string(in.Preset) + " requests", Target: target, Aggregate: gpu.Sum}
	if in.Activation != nil {
		x := toFloat64(*in.Activation)
		if !(x >= 0) {
			return field.Invalid(path.Child("activation"), in.Activation.String(), "must not be negative")
		}
		s.Activation = &x
	}
	pool := cmp.Or(in.Pool, workload)
	key := pool
	if row.gateway.byModel {
		if key = in.Model; key == "" {
			return field.Required(path.Child("model"), "write the value of the label model in the frontend's metrics")
		}
	}
	gateway, err := compileGateway(in, row, pool, path)
	if err != nil {
		return err
	}
	c.Policy.Signals, c.Sources = append(c.Policy.Signals, s), append(c.Sources, Source{Kind: Query, PromQL: row.gateway.query(key), Gateway: gateway})
	return nil
}

// compileGateway returns the pods of a gateway: those of the selector, or those with the
// labels that the charts and operators of the gateways set.
func compileGateway(in *v1alpha1.Signal, row *server, pool string, path *field.Path) (*Gateway, *field.Error) {
	g := &Gateway{Selectors: row.gateway.selectors(pool), Port: row.port, Metrics: slices.Sorted(slices.Values(row.gateway.metrics))}
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

// dynamoSelectors returns the selector of the pods that Dynamo's operator labels as frontends.
func dynamoSelectors(string) []labels.Selector {
	return []labels.Selector{labels.SelectorFromSet(labels.Set{"nvidia.com/dynamo-component-type": "frontend"})}
}

// dynamoRequests returns the query for the requests of a model that Dynamo's frontends have
// given to the engines and that are not complete: waiting and running ones.
func dynamoRequests(model string) string {
	return fmt.Sprintf("sum(%s{model=%s})", dynamoInFlight, strconv.Quote(model))
}
