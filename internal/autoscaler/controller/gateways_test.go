// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// gatewayScaled is a GPUAutoscaler with the preset of a gateway behind another signal.
func gatewayScaled(name string) *v1alpha1.GPUAutoscaler {
	a := autoscaler(name)
	zero := resource.MustParse("0")
	a.Spec.Signals = append(a.Spec.Signals, v1alpha1.Signal{Preset: v1alpha1.PresetEPP, Activation: &zero})
	return a
}

// In a namespace whose queries may read all namespaces, a gateway that this controller
// scrapes still speaks for its own namespace only: a pod of another namespace could
// claim to be one. At a backend the operator's trust counts.
func TestGatewaysSpeakForTheirNamespace(t *testing.T) {
	f := func(own, trusted bool, scope string) {
		t.Helper()
		r := newRig(t)
		r.cfg.Discovery.Gateways = own
		r.deps.LimitQuery = func(_, promql string) (string, bool, error) { return promql, trusted, nil }
		w := r.add(gatewayScaled("web"))
		w.compile(w.object.Load())
		p := w.plan.Load()
		if p == nil || len(p.queries) != 2 || p.queries[1].Scope != scope || p.queries[1].PromQL == "" {
			t.Errorf("own %v, trusted %v: %+v, want the scope %q", own, trusted, p, scope)
		}
	}
	f(true, true, "ns")
	f(true, false, "ns")
	f(false, false, "ns")
	f(false, true, "")
}

// The condition says why a gateway has no value, and the windows keep its series.
func TestGatewayProblems(t *testing.T) {
	r := newRig(t)
	var held [][]string
	r.deps.HoldSeries = func(names []string) { held = append(held, names) }
	r.discover(func(c *discovery.Config) { c.Gateways = true })
	w := r.add(gatewayScaled("web"))
	w.compile(w.object.Load())
	selector := labels.SelectorFromSet(labels.Set{"app": "web"})
	w.selector.Store(&selector)
	r.workloads[types.NamespacedName{Namespace: "ns", Name: "web"}] = w
	r.listTargets(r.now)
	contains(t, r.gatewayProblem(w.key), "no running pod of namespace ns has the labels of the gateway (inferencepool=web-epp")
	epp := pod("web-epp", "epp-1", r.now)
	r.pods.Pods = append(r.pods.Pods, epp)
	r.listTargets(r.now)
	if why := r.gatewayProblem(w.key); why != "" {
		t.Error(why)
	}
	r.states = []view.Target{{Name: "pod/ns/epp-1:9090/metrics", Error: "answered 401 Unauthorized"}}
	r.failing.asOf = time.Time{}
	contains(t, r.gatewayProblem(w.key), "the gateway at pod/ns/epp-1:9090/metrics does not answer: answered 401")
	if len(held) != 1 || !slices.Contains(held[0], "llm_d_epp_average_queue_size") || !slices.Contains(held[0], "inference_pool_ready_pods") {
		t.Errorf("held %q", held)
	}
	delete(r.workloads, w.key)
	if r.listTargets(r.now); len(held) != 2 || len(held[1]) != 0 {
		t.Errorf("held %q after the last gateway", held)
	}
}
