// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lifecycle

import (
	"bytes"
	"fmt"
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
	"github.com/gpupilot/gpupilot/internal/serve/hold"
	"github.com/gpupilot/gpupilot/test/scalerig"
)

// runHold runs gpupilot hold or resume, and returns what it prints.
func runHold(t *testing.T, args ...string) string {
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
			if err := cmd.ExecuteContext(t.Context()); err != nil {
				t.Fatalf("%q: %v", args, err)
			}
			return out.String()
		}
	}
	t.Fatalf("no command %q", args)
	return ""
}

// overridden waits until ConditionOverridden has a status and a reason.
func overridden(t *testing.T, name string, want metav1.ConditionStatus, reason string) (since time.Time) {
	t.Helper()
	scalerig.Eventually(t, func() error {
		c := meta.FindStatusCondition(rig.Status(t, name).Conditions, v1alpha1.ConditionOverridden)
		if c == nil || c.Status != want || c.Reason != reason {
			return fmt.Errorf("condition %+v, want %s with %s", c, want, reason)
		}
		since = c.LastTransitionTime.Time
		return nil
	})
	return since
}

// A person on call holds a workload. The controller is killed before and restarted after
// the end of the override, which is neither lost nor extended.
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
	rig.KillController()
	if err := rig.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(25 * time.Second).Truncate(time.Second)
	runHold(t, "hold", object, "--replicas", "4", "--until", end.UTC().Format(time.RFC3339), "--reason", "incident 4711")
	rig.WantReplicas(t, name, "4", func(n int32) bool { return n == 4 })
	ended := overridden(t, name, metav1.ConditionFalse, "OverrideEnded")
	if late := ended.Sub(end); late < 0 || late > 2*time.Second {
		t.Errorf("it ended %v after its end", late)
	}
	rig.WantReplicas(t, name, "1", func(n int32) bool { return n == 1 })
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
	scalerig.Eventually(t, func() error {
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
	scalerig.Leads(t, rig.ControllerURL, true)
	zero := rig.Record(t, name)
	runHold(t, "hold", object, "--replicas", "2", "--for", "1h", "--reason", "go on")
	rig.WantReplicas(t, name, "2", func(n int32) bool { return n == 2 })
	if v := zero.Values(); len(v) < 1 || v[0] != 2 && (v[0] != 0 || v[1] != 2) {
		t.Errorf("replicas went %v, want 0, then 2", v)
	}
	runHold(t, "resume", object)
	rig.WantReplicas(t, name, "1", func(n int32) bool { return n == 1 })
	overridden(t, name, metav1.ConditionFalse, "NoOverride")
}

// A schedule raises the minimum from its lead time on, and the status says so.
func TestSchedule(t *testing.T) {
	const name = "hold"
	rig.Offer(name, 0.3)
	rig.Deploy(t, name, 1, time.Second)
	rig.Spread(t, name, 1)
	a := rig.Autoscale(t, name, nil)
	rig.Stays(t, name, 1, time.Second)
	start := time.Now().Add(80 * time.Second).Truncate(time.Minute).UTC()
	three, lead := int32(3), intstr.FromInt(int(time.Until(start).Seconds())-5)
	schedule := v1alpha1.Schedule{Name: "office", TimeZone: "UTC", Start: start.Format("15:04"), End: start.Add(time.Hour).Format("15:04"), MinReplicas: &three, LeadTime: &lead}
	seen := rig.Record(t, name)
	scalerig.Eventually(t, func() error {
		if err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(a), a); err != nil {
			return err
		}
		a.Spec.Schedules = []v1alpha1.Schedule{schedule}
		return rig.Client.Update(t.Context(), a)
	})
	rig.WantReplicas(t, name, "3", func(n int32) bool { return n == 3 })
	if early := start.Add(-time.Duration(lead.IntVal) * time.Second).Sub(seen.Changed()); early > 0 {
		t.Errorf("it scaled %v before the lead time", early)
	}
	scalerig.Eventually(t, func() error {
		b := rig.Status(t, name).Bounds
		if b == nil || b.MinReplicas != 3 || len(b.Schedules) != 1 {
			return fmt.Errorf("bounds %+v", b)
		}
		return nil
	})
}
