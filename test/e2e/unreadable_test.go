// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/terminal/doctor"
	"github.com/gpupilot/gpupilot/internal/terminal/remote"
	"github.com/gpupilot/gpupilot/internal/window/view"
	"github.com/gpupilot/gpupilot/test/stack"
)

// Where one looks, the cause of a signal without a value stands: in the condition, the Event, explain, the page and doctor.
func TestUnreadableSignalsSayWhy(t *testing.T) {
	signal := func(metric string, port *intstr.IntOrString) v1alpha1.Signal {
		return v1alpha1.Signal{Pods: &v1alpha1.PodsSignal{Metric: metric, Port: port}, Target: &v1alpha1.Target{Value: resource.MustParse("8")}}
	}
	f := func(name string, s v1alpha1.Signal, want string) {
		t.Helper()
		rig.Deploy(t, name, 1, time.Second)
		rig.Autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) { a.Spec.Signals = []v1alpha1.Signal{s} })
		var a v1alpha1.GPUAutoscaler
		stack.Eventually(t, func() error {
			if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &a); err != nil {
				return err
			}
			c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionSignals)
			if c == nil || c.Status != "False" || !strings.Contains(c.Message, want) {
				return fmt.Errorf("the condition is %+v, want %q", c, want)
			}
			return nil
		})
		var text strings.Builder
		remote.Write(&text, &a, time.Now())
		places := map[string]string{"explain": text.String(), "doctor": doctorSays(t, name), "page": problemOf(t, name)}
		for place, says := range places {
			if !strings.Contains(says, want) {
				t.Errorf("%s of %s says %q, want %q", place, name, says, want)
			}
		}
		stack.Eventually(t, func() error { return eventSays(t, name, want) })
	}
	f("port", signal("vllm:num_requests_running", new(intstr.FromInt32(9))), "port 9, which no container declares, path /metrics, cannot be read: connect: connection refused; set port or path")
	f("misspelt", signal("vllm:num_requests_runing", nil), "answers without vllm:num_requests_runing: did you mean vllm:num_requests_running?")
}

// eventSays returns an error as long as no Event about a GPUAutoscaler says it.
func eventSays(t *testing.T, name, want string) error {
	var events eventsv1.EventList
	if err := rig.Client.List(t.Context(), &events, client.InNamespace(namespace)); err != nil {
		return err
	}
	for i := range events.Items {
		if e := &events.Items[i]; e.Regarding.Name == name && e.Reason == "NoFreshData" && strings.Contains(e.Note, want) {
			return nil
		}
	}
	return fmt.Errorf("no Event about %s says %q", name, want)
}

// doctorSays is what GP406 finds about a GPUAutoscaler.
func doctorSays(t *testing.T, name string) (out string) {
	t.Helper()
	api, err := remote.NewAPI(rig.REST)
	if err != nil {
		t.Fatal(err)
	}
	w := doctor.Where{API: api, Namespace: stack.Namespace, Now: time.Now, Controller: func(ctx context.Context, v *view.View) error {
		return page().Get(ctx, "api/v1/view", nil, v)
	}}
	checks, err := (&doctor.Selection{Only: []string{"GP406"}}).Select()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range doctor.Run(checks, w.Gather(t.Context(), false)) {
		for _, found := range r.Findings {
			if strings.HasSuffix(found.Object, "/"+name) {
				out += found.Message + "\n"
			}
		}
	}
	return out
}

func page() *remote.Controller {
	return &remote.Controller{Cluster: &remote.Cluster{}, Address: rig.ControllerURL}
}

// problemOf is what the page says about a GPUAutoscaler.
func problemOf(t *testing.T, name string) string {
	t.Helper()
	var v view.View
	if err := page().Get(t.Context(), "api/v1/view", nil, &v); err != nil {
		t.Fatal(err)
	}
	for i := range v.Workloads {
		if v.Workloads[i].Name == name {
			return v.Workloads[i].Problem
		}
	}
	return ""
}
