// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// found lists the targets as lines.
func (f *Finder) found(readers ...Reader) (out []string) {
	for _, t := range f.Find(time.Now(), gpu.FieldSet{}, readers).Targets {
		out = append(out, t.URL.String())
	}
	return out
}

func in(namespace string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Namespace = namespace } }

// reader reads pods with the label app=web in the namespace ns.
func reader(sources ...policy.Source) Reader {
	return Reader{Namespace: "ns", Name: "web", Selector: labels.SelectorFromSet(labels.Set{"app": "web"}), Sources: sources}
}

func gateway(port int32, app string) policy.Source {
	return policy.Source{Kind: policy.Query, PromQL: "x", Gateway: &policy.Gateway{
		Selectors: []labels.Selector{labels.SelectorFromSet(labels.Set{"app": app}), labels.SelectorFromSet(labels.Set{"app": app, "also": "this"})},
		Port:      policy.Port{Default: port, SeparateFromAPI: true}, Path: "/metrics",
	}}
}

// The gateways of an autoscaler are the pods of its own namespace.
func TestGateways(t *testing.T) {
	var pods podList
	r := finder(&pods)
	epp := reader(gateway(9090, "epp"))
	f := func(problem string, want ...string) {
		t.Helper()
		list := r.Find(time.Now(), gpu.FieldSet{}, []Reader{epp})
		var got []string
		for i := range list.Targets {
			got = append(got, list.Targets[i].URL.String())
		}
		g := list.Gateways[types.NamespacedName{Namespace: "ns", Name: "web"}]
		if diff := cmp.Diff(want, got); diff != "" || !strings.Contains(g.Problem, problem) || (g.Problem == "") != (problem == "") || len(g.Targets) != len(want) {
			t.Errorf("%s %+v, want %q", diff, g, problem)
		}
	}
	first := pod("epp", "epp-1", ports("grpc", 9002), func(p *corev1.Pod) { p.UID, p.Labels["also"] = "1", "this" })
	pods = podList{first, pod("epp", "epp-1", in("other"))}
	if got := r.found(epp); len(got) != 0 || r.IsSource(first) {
		t.Errorf("with a backend: %q", got)
	}
	r.cfg.Gateways = true
	f("", "http://10.0.0.1:9090/metrics")
	if !r.IsSource(first) || r.IsSource(pods[1]) {
		t.Error("changes of which pods matter?")
	}
	first.Labels["app"] = "no"
	f("no running pod of namespace ns has the labels of the gateway (app=epp")
	pods = podList{pod("epp", "epp-1", addressed("192.168.0.1", "192.168.0.1", true))}
	f("on its node's network")
	pods = nil
	for i := range 100 {
		pods = append(pods, pod("epp", fmt.Sprintf("epp-%03d", i)))
	}
	if got := r.found(epp); len(got) != maxGateways {
		t.Errorf("%d pods of a gateway are scraped", len(got))
	}
}
