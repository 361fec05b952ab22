// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// Two workloads with loads of their own are kept in a ratio, up and down.
func TestPair(t *testing.T) {
	const prefill, decode = "hold", "drain"
	for _, name := range []string{prefill, decode} {
		offer(name, 0.3)
		deploy(t, name, 1, time.Second)
		spread(t, name, 1)
	}
	half, two := resource.MustParse("0.5"), resource.MustParse("2")
	autoscale(t, prefill, func(a *v1alpha1.GPUAutoscaler) {
		a.Spec.Pair = &v1alpha1.Pair{With: decode, Ratio: v1alpha1.PairRatio{Min: &half, Max: &two}}
	})
	is := func(reason string) {
		t.Helper()
		eventually(t, func() error {
			c := meta.FindStatusCondition(status(t, prefill).Conditions, v1alpha1.ConditionPaired)
			if c == nil || c.Reason != reason {
				return fmt.Errorf("condition %+v, want %s", c, reason)
			}
			return nil
		})
	}
	is(v1alpha1.ReasonPairNotFound)
	autoscale(t, decode, nil)
	is(v1alpha1.ReasonPairKept)
	offer(decode, 3)
	n := need(3)
	wantReplicas(t, decode, fmt.Sprint(n), func(got int32) bool { return got == n })
	wantReplicas(t, prefill, "half of them", func(got int32) bool { return got == (n+1)/2 })
	offer(decode, 0.3)
	for _, name := range []string{decode, prefill} {
		wantReplicas(t, name, "1", func(got int32) bool { return got == 1 })
	}
}
