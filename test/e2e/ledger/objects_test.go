// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package ledger

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// full is about as large as the API server takes an object: 1.5 MiB with the list of the
// fields that the client owns.
const full = 1 << 20

// kinds are the kinds of objects that the controller reads and that tenants create.
var kinds = []schema.GroupVersionKind{
	{Version: "v1", Kind: "Pod"},
	{Group: "apps", Version: "v1", Kind: "Deployment"},
	{Group: "apps", Version: "v1", Kind: "StatefulSet"},
	{Group: "apps", Version: "v1", Kind: "ReplicaSet"},
	{Group: "batch", Version: "v1", Kind: "Job"},
	{Group: "autoscaling", Version: "v2", Kind: "HorizontalPodAutoscaler"},
	{Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"},
	{Group: "resource.k8s.io", Version: "v1", Kind: "ResourceClaim"},
	{Group: "resource.k8s.io", Version: "v1", Kind: "ResourceClaimTemplate"},
	{Group: "gpupilot.dev", Version: "v1alpha1", Kind: "GPUAutoscaler"},
	{Group: "gpupilot.dev", Version: "v1alpha1", Kind: "MetricQuery"},
	{Group: "monitoring.coreos.com", Version: "v1", Kind: "PrometheusRule"},
	{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"},
}

// generator makes objects at the API server's limits.
type generator struct {
	rng       *rand.Rand
	namespace string
}

// text returns a text of n bytes that a label's value may be.
func (g *generator) text(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('a' + g.rng.IntN(26))
	}
	return string(b)
}

// labels returns labels of some bytes in all.
func (g *generator) labels(size int) map[string]any {
	key, value := 6+g.rng.IntN(50), g.rng.IntN(64)
	out := map[string]any{}
	for size > 0 {
		out[g.text(key)] = g.text(value)
		size -= 2*key + value + 30 // the key counts again in the list of owned fields
	}
	return out
}

// list returns n values.
func list(n int, f func(i int) any) []any {
	out := make([]any, n)
	for i := range out {
		out[i] = f(i)
	}
	return out
}

// sum returns an expression of about n bytes.
func (g *generator) sum(n int) string {
	terms := []string{"a", "a1", `{b="1"}`, g.text(20), "1", "sum(x)"}
	term := terms[g.rng.IntN(len(terms))]
	return strings.Repeat(term+"+", max(n/(len(term)+1), 1)) + "1"
}

// object returns an object of a kind. One of its parts is large.
func (g *generator) object(kind schema.GroupVersionKind, i int) *unstructured.Unstructured {
	metadata := map[string]any{"namespace": g.namespace, "name": fmt.Sprintf("%s-%d", strings.ToLower(kind.Kind), i)}
	spec := map[string]any{}
	size := full - g.rng.IntN(full/4)
	large := g.rng.IntN(5)
	switch large {
	case 0, 1:
		metadata["labels"] = g.labels(size)
	case 2:
		metadata["annotations"] = map[string]any{"text": g.text(200 << 10)}
	case 3:
		metadata["ownerReferences"] = []any{map[string]any{"apiVersion": "v1", "kind": "Pod", "name": g.text(size), "uid": g.text(36), "controller": true}}
	}
	grow := func(n int) int { // of the spec, if nothing else is large
		if large < 4 {
			return 1
		}
		return n
	}
	labels := map[string]any{"app": "x"}
	if large == 4 && g.rng.IntN(2) == 0 {
		labels = g.labels(size / 3)
		grow = func(int) int { return 1 }
	}
	selector := map[string]any{"matchLabels": labels}
	pods := g.podSpec(grow)
	template := map[string]any{"metadata": map[string]any{"labels": labels}, "spec": pods}
	switch kind.Kind {
	case "Pod":
		spec = pods
	case "Deployment", "ReplicaSet":
		spec = map[string]any{"replicas": int64(0), "selector": selector, "template": template}
	case "StatefulSet":
		spec = map[string]any{"replicas": int64(0), "serviceName": "x", "selector": selector, "template": template}
	case "Job":
		pods["restartPolicy"] = "Never"
		spec = map[string]any{"suspend": true, "template": template}
	case "HorizontalPodAutoscaler":
		spec = map[string]any{
			"maxReplicas":    int64(1),
			"scaleTargetRef": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": g.text(200)},
			"metrics": list(grow(4000), func(int) any {
				return map[string]any{"type": "External", "external": map[string]any{
					"metric": map[string]any{"name": g.text(20)}, "target": map[string]any{"type": "Value", "value": "1"},
				}}
			}),
		}
	case "PodDisruptionBudget":
		spec = map[string]any{"maxUnavailable": int64(0), "selector": selector}
	case "ResourceClaim", "ResourceClaimTemplate":
		claim := map[string]any{"devices": map[string]any{"requests": list(grow(32), func(i int) any {
			return map[string]any{"name": fmt.Sprint("r", i), "exactly": map[string]any{"deviceClassName": "gpu.example.com", "selectors": list(grow(3), func(int) any {
				return map[string]any{"cel": map[string]any{"expression": `device.driver == "` + g.text(grow(9000)) + `"`}}
			})}}
		})}}
		if spec = claim; kind.Kind == "ResourceClaimTemplate" {
			spec = map[string]any{"spec": claim}
		}
	case "GPUAutoscaler":
		spec = map[string]any{
			"scaleTargetRef": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": fmt.Sprintf("deployment-%d", i)}, "maxReplicas": int64(3),
			"formula": "0.0" + strings.Repeat(" + s0.replicas", grow(70)),
			"signals": list(grow(1+g.rng.IntN(16)), func(i int) any {
				return map[string]any{"name": fmt.Sprint("s", i), "activation": "1", "query": map[string]any{"promql": g.sum(32000 / (1 + g.rng.IntN(16)))}, "target": map[string]any{"value": "1"}}
			}),
		}
	case "MetricQuery":
		spec = map[string]any{"query": map[string]any{"promql": g.sum(4000)}}
	case "PrometheusRule":
		rules := 1 + g.rng.IntN(200)
		spec = map[string]any{"groups": list(1, func(int) any {
			return map[string]any{"name": "g", "rules": list(rules, func(int) any {
				return map[string]any{"record": "x:" + g.text(10), "expr": g.sum(grow(min(size/rules, 32000) / (1 + 20*g.rng.IntN(2))))}
			})}
		})}
	case "ScaledObject":
		spec = map[string]any{
			"scaleTargetRef": map[string]any{"name": fmt.Sprintf("deployment-%d", i)},
			"triggers": list(grow(64), func(int) any {
				return map[string]any{"type": "external", "metadata": map[string]any{"x": g.text(grow(10000))}}
			}),
			"advanced": list(grow(200_000), func(int) any { return []any{} }),
		}
	}
	u := &unstructured.Unstructured{Object: map[string]any{"metadata": metadata, "spec": spec}}
	u.SetGroupVersionKind(kind)
	return u
}

// podSpec returns the spec of a pod that no scheduler takes.
func (g *generator) podSpec(grow func(int) int) map[string]any {
	first := map[string]any{"name": "first", "image": "x"}
	containers := []any{first}
	switch g.rng.IntN(4) {
	case 0:
		containers = append(containers, list(grow(3000)-1, func(i int) any { return map[string]any{"name": fmt.Sprint("c", i), "image": "x"} })...)
	case 1:
		first["env"] = list(grow(20_000), func(i int) any { return map[string]any{"name": fmt.Sprint("E", i), "value": "x"} })
	case 2:
		first["ports"] = list(grow(8000), func(i int) any { return map[string]any{"containerPort": int64(1 + i)} })
	case 3:
		limits := map[string]any{}
		for i := range grow(8000) {
			limits[fmt.Sprint("nvidia.com/", i)] = "1"
		}
		first["resources"] = map[string]any{"limits": limits}
	}
	return map[string]any{"schedulerName": "none", "containers": containers}
}
