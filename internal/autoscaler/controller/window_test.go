// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// A condition of the GPUAutoscaler reports that a target of its pods is limited, and
// later that it no longer is. Other objects do not have the condition.
func TestWindowCondition(t *testing.T) {
	r, w := loaded(t, 90)
	w.pass(r.now)
	st := statusOf(w.status.next, &v1alpha1.GPUAutoscalerStatus{})
	if c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionWindow); c != nil {
		t.Errorf("nothing is limited: %+v", c)
	}

	node := r.pods.Pods[0].Spec.NodeName
	hostile := r.store.Target("hostile", series.TargetLabels{Node: node})
	other := r.store.Target("elsewhere", series.TargetLabels{Node: "elsewhere"})
	flood := func(x *series.Target, n int) {
		for i := range n {
			x.Ref(series.Key{Device: fmt.Sprint("GPU-", i), Field: gpu.GPUUtil})
		}
	}
	flood(other, series.MaxDevices+1)
	r.now = r.now.Add(2 * time.Second)
	w.pass(r.now)
	st = statusOf(w.status.next, st)
	if c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionWindow); c != nil {
		t.Errorf("a target of another node is limited: %+v", c)
	}

	flood(hostile, series.MaxDevices+7)
	r.now = r.now.Add(2 * time.Second)
	w.pass(r.now)
	st = statusOf(w.status.next, st)
	c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionWindow)
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason != "TargetLimit" || !strings.HasPrefix(c.Message, "target hostile takes 0.") || !strings.HasSuffix(c.Message, "7 series, devices, owners or names were refused") {
		t.Fatalf("condition %+v", c)
	}

	// Numbers that change are not written again and again.
	flood(hostile, series.MaxDevices+9)
	r.now = r.now.Add(2 * time.Second)
	w.pass(r.now)
	if again := meta.FindStatusCondition(statusOf(w.status.next, st).Conditions, v1alpha1.ConditionWindow); again.Message != c.Message {
		t.Errorf("message %q became %q", c.Message, again.Message)
	}

	r.store.Drop("hostile")
	r.now = r.now.Add(2 * time.Second)
	w.pass(r.now)
	st = statusOf(w.status.next, st)
	if c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionWindow); c == nil || c.Status != metav1.ConditionTrue || c.Reason != "Complete" {
		t.Errorf("the target is gone: %+v", c)
	}
}
