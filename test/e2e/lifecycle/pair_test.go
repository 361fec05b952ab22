// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lifecycle

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/stack"
)

// Two workloads with loads of their own are kept in a ratio, up and down.
func TestPair(t *testing.T) {
	t.Parallel() // beside TestSchedule, as TestRollout
	const prefill, decode = "hold", "drain"
	for _, name := range []string{prefill, decode} {
		rig.Offer(name, 0.3)
		rig.Deploy(t, name, 1, time.Second)
		rig.Spread(t, name, 1)
	}
	half, two := resource.MustParse("0.5"), resource.MustParse("2")
	rig.Autoscale(t, prefill, func(a *v1alpha1.GPUAutoscaler) {
		a.Spec.Pair = &v1alpha1.Pair{With: decode, Ratio: v1alpha1.PairRatio{Min: &half, Max: &two}}
	})
	is := func(reason string) {
		t.Helper()
		stack.Eventually(t, func() error {
			c := meta.FindStatusCondition(rig.Status(t, prefill).Conditions, v1alpha1.ConditionPaired)
			if c == nil || c.Reason != reason {
				return fmt.Errorf("condition %+v, want %s", c, reason)
			}
			return nil
		})
	}
	is(v1alpha1.ReasonPairNotFound)
	rig.Autoscale(t, decode, nil)
	is(v1alpha1.ReasonPairKept)
	rig.Offer(decode, 3)
	n := stack.Need(3)
	rig.WantReplicas(t, decode, fmt.Sprint(n), func(got int32) bool { return got == n })
	rig.WantReplicas(t, prefill, "half of them", func(got int32) bool { return got == (n+1)/2 })
	rig.Offer(decode, 0.3)
	for _, name := range []string{decode, prefill} {
		rig.WantReplicas(t, name, "1", func(got int32) bool { return got == 1 })
	}
}
