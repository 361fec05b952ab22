// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lifecycle

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/terminal/hold"
	"github.com/gpupilot/gpupilot/test/stack"
)

// runHold runs gpupilot hold or resume, and returns what it prints.
func runHold(t *testing.T, args ...string) string {
	t.Helper()
	out, err := tryHold(t, args...)
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return out
}

func tryHold(t *testing.T, args ...string) (string, error) {
	t.Helper()
	config, err := rig.Cluster.KubeconfigFor("oncall", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range hold.Commands() {
		if cmd.Name() == args[0] {
			var out bytes.Buffer
			cmd.SetArgs(append(args[1:], "--kubeconfig", config))
			cmd.SetOut(&out)
			err := cmd.ExecuteContext(t.Context())
			return out.String(), err
		}
	}
	return "", fmt.Errorf("no command %q", args)
}

// overridden waits until ConditionOverridden has a status and a reason.
func overridden(t *testing.T, name string, want metav1.ConditionStatus, reason string) (since time.Time) {
	t.Helper()
	stack.Eventually(t, func() error {
		c := meta.FindStatusCondition(rig.Status(t, name).Conditions, v1alpha1.ConditionOverridden)
		if c == nil || c.Status != want || c.Reason != reason {
			return fmt.Errorf("condition %+v, want %s with %s", c, want, reason)
		}
		since = c.LastTransitionTime.Time
		return nil
	})
	return since
}

// A person on call holds a workload. The controller is killed meanwhile: the override is not lost, and ends after its end.
func TestOverride(t *testing.T) {
	const name = "hold"
	rig.Offer(name, 0.3)
	rig.Deploy(t, name, 1, time.Second)
	rig.Spread(t, name, 1)
	rig.Autoscale(t, name, nil)
	object := namespace + "/" + name
	if out := runHold(t, "hold", object, "--replicas", "3", "--for", "1h", "--reason", "incident 4711"); !strings.Contains(out, "3 replicas, override until") {
		t.Errorf("hold prints %q", out)
	}
	rig.WantReplicas(t, name, "3", func(n int32) bool { return n == 3 })
	overridden(t, name, metav1.ConditionTrue, "Overridden")

	seen := rig.Record(t, name)
	runHold(t, "hold", object, "--replicas", "4", "--for", "1h", "--reason", "incident 4711")
	rig.WantReplicas(t, name, "4", func(n int32) bool { return n == 4 })
	var end time.Time
	for left := 10 * time.Second; ; left *= 2 { // an end that has passed is refused
		end = time.Now().Add(left).Truncate(time.Second)
		_, err := tryHold(t, "hold", object, "--replicas", "4", "--until", end.UTC().Format(time.RFC3339), "--reason", "incident 4711")
		if err == nil {
			break
		}
		if left > stack.Patience {
			t.Fatal(err)
		}
	}
	rig.KillController()
	if err := rig.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ended := overridden(t, name, metav1.ConditionFalse, "OverrideEnded"); ended.Before(end) {
		t.Errorf("it ended %v before its end", end.Sub(ended))
	}
	rig.WantReplicas(t, name, "1", func(n int32) bool { return n == 1 })
	stack.Eventually(t, func() error {
		if st := rig.Status(t, name); st.CurrentReplicas != 1 || st.LastScaleTime.Time.Before(end) {
			return fmt.Errorf("%d replicas since %v, and the override ended at %v", st.CurrentReplicas, st.LastScaleTime, end)
		}
		return nil
	})
	for _, n := range seen.Values() {
		if n > 4 {
			t.Errorf("replicas went %v", seen.Values())
		}
	}

	// What somebody sets to 0 stays 0, also over a restart, until an override asks for more.
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := rig.Client.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, []byte(`{"spec": {"replicas": 0}}`))); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, func() error {
		c := meta.FindStatusCondition(rig.Status(t, name).Conditions, v1alpha1.ConditionScalingActive)
		if c == nil || c.Reason != "ScalingDisabled" {
			return fmt.Errorf("condition %+v", c)
		}
		return nil
	})
	rig.KillController()
	if err := rig.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	stack.Leads(t, rig.ControllerURL, true)
	zero := rig.Record(t, name)
	runHold(t, "hold", object, "--replicas", "2", "--for", "1h", "--reason", "go on")
	rig.WantReplicas(t, name, "2", func(n int32) bool { return n == 2 })
	stack.Eventually(t, func() error { // what is recorded comes by a watch of its own
		if v := zero.Values(); !slices.Equal(v, []int32{0, 2}) && !slices.Equal(v, []int32{2}) {
			return fmt.Errorf("replicas went %v, want 0, then 2", v)
		}
		return nil
	})
	runHold(t, "resume", object)
	rig.WantReplicas(t, name, "1", func(n int32) bool { return n == 1 })
	overridden(t, name, metav1.ConditionFalse, "NoOverride")
}

// A schedule raises the minimum so early that the replicas serve when it starts: by the start-up that the controller has
// learned from those that became ready before.
func TestSchedule(t *testing.T) {
	t.Parallel() // it waits for a full minute
	const name = "schedule"
	rig.Offer(name, 0.3)
	a := rig.Autoscale(t, name, nil)
	rig.Deploy(t, name, 3, 5*time.Second)
	var lead time.Duration
	stack.Eventually(t, func() error {
		s := rig.Status(t, name)
		if s.Startup == nil || s.Startup.Samples < 3 {
			return fmt.Errorf("learned %+v", s.Startup)
		}
		lead = time.Duration(s.Startup.P95Seconds) * time.Second
		return nil
	})
	rig.WantReplicas(t, name, "1", func(n int32) bool { return n == 1 })
	start := time.Now().Add(lead + time.Minute + 2*time.Second).Truncate(time.Minute).UTC()
	three, auto := int32(3), intstr.FromString("Auto")
	schedule := v1alpha1.Schedule{Name: "office", TimeZone: "UTC", Start: start.Format("15:04"), End: start.Add(time.Hour).Format("15:04"), MinReplicas: &three, LeadTime: &auto}
	stack.Eventually(t, func() error {
		if err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(a), a); err != nil {
			return err
		}
		a.Spec.Schedules = []v1alpha1.Schedule{schedule}
		return rig.Client.Update(t.Context(), a)
	})
	rig.WantReplicas(t, name, "3", func(n int32) bool { return n == 3 })
	stack.Eventually(t, func() error {
		if n := rig.Serving(t, name); n != int(three) {
			return fmt.Errorf("%d replicas serve", n)
		}
		return nil
	})
	var asked time.Duration // after the lead time began
	stack.Eventually(t, func() error {
		st := rig.Status(t, name)
		if b := st.Bounds; b == nil || b.MinReplicas != 3 || len(b.Schedules) != 1 || *st.DesiredReplicas != 3 {
			return fmt.Errorf("bounds %+v, %d replicas", b, *st.DesiredReplicas)
		}
		asked = st.LastScaleTime.Sub(start.Add(-lead))
		return nil
	})
	t.Logf("lead time %v, and it scaled %v after that began", lead, asked)
	if asked < 0 { // the first decision from then on scales: TestScheduleLeadsByTheStartup of internal/autoscaler/controller
		t.Errorf("it scaled %v before the lead time began", -asked)
	}
}
