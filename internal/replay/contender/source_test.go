// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// The simulation has the metrics of every preset of a server.
func TestPresetsAreSimulated(t *testing.T) {
	x, loading, at := &service.PodReport{Serving: true}, &service.PodReport{}, time.Unix(9, 0)
	x.Values[service.Running], x.Values[service.Waiting], x.Values[service.KVUse] = 6, 3, 0.5
	x.Batch, x.TokenSeconds = 5, 0.02
	for _, name := range policy.Presets() {
		c, err := policy.Compile(&v1alpha1.GPUAutoscaler{Spec: v1alpha1.GPUAutoscalerSpec{
			MaxReplicas: 9, Signals: []v1alpha1.Signal{{Preset: name}},
		}})
		switch {
		case name == v1alpha1.PresetDynamo || err == nil && c.Sources[0].Kind == policy.Query:
			continue // a gateway's, which is a query
		case err != nil:
			t.Fatal(err)
		}
		for i, want := range []float64{9, 50}[:len(c.Sources)] {
			src, err := newSource(c.Sources[i])
			if err != nil {
				t.Fatal(err)
			}
			if v, ok := src.value(x); !ok || v != want {
				t.Errorf("%s = %v, %v; want %v", c.Policy.Signals[i].Name, v, ok, want)
			}
			if p := paceOf(x, at); !p.OK || p.Batch != 5 || float32(p.TokenSeconds) != 0.02 || !p.At.Equal(at) {
				t.Errorf("pace %+v", p)
			}
			if p := paceOf(loading, at); p.OK {
				t.Errorf("a loading replica has the pace %+v", p)
			}
			if _, ok := src.value(loading); ok {
				t.Errorf("a loading replica reports %s", c.Policy.Signals[i].Name)
			}
		}
	}
}

func TestUnsimulatedSignals(t *testing.T) {
	f := func(s policy.Source, want string) {
		t.Helper()
		if _, err := newSource(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f(policy.Source{Kind: policy.Pods, Terms: []policy.Term{{{Name: "cats"}}}}, `no metric "cats"`)
	f(policy.Source{Kind: policy.GPU, Field: gpu.FBUsed}, "no field")
	f(policy.Source{Kind: policy.Query, PromQL: "sum(x)"}, `query "sum(x)"`)
}

// The queries of a policy are left out. A policy that has nothing else cannot be replayed.
func TestQueriesAreLeftOut(t *testing.T) {
	zero := resource.MustParse("0")
	query := v1alpha1.Signal{
		Query: &v1alpha1.QuerySignal{PromQL: "x"}, Target: &v1alpha1.Target{Value: resource.MustParse("1")}, Activation: &zero,
	}
	compile := func(signals ...v1alpha1.Signal) policy.Compiled {
		t.Helper()
		none := int32(0)
		c, err := policy.Compile(&v1alpha1.GPUAutoscaler{Spec: v1alpha1.GPUAutoscalerSpec{MinReplicas: &none, MaxReplicas: 9, Signals: signals}})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	both := compile(query, v1alpha1.Signal{Preset: v1alpha1.PresetTGI})
	if got := withoutQueries(both); len(got.Sources) != len(both.Sources)-1 || len(got.Policy.Signals) != len(got.Sources) || got.Policy.Min != 1 {
		t.Errorf("%+v", got)
	}
	if c := NewOurs("chat", both); c.Name != "chat, without its queries" || c.Class != OnRequests {
		t.Errorf("entry %+v", c)
	}
	if _, err := newEngine(&Replay{Min: 1, Max: 9, Scaled: true}, withoutQueries(compile(query))); err == nil || !strings.HasPrefix(err.Error(), "spec.signals: x: ") {
		t.Errorf("a policy that has only a query was replayed: %v", err)
	}
}
