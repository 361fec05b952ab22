// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package sweep

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// The auditor notes replicas, steps and pods that no wish allows, and no others: what it does not see, no episode finds.
func TestAuditor(t *testing.T) {
	r := random("auditor")
	for range 2000 {
		a := &auditor{subjects: map[string]*subject{}, ready: map[string]bool{}}
		s := &subject{name: "s", replicas: 1 + r.Int32N(most)}
		for range 1 + r.IntN(3) {
			s.now = wish{need: 1 + r.Int32N(most)}
			if r.IntN(3) == 0 {
				s.now.override = &v1alpha1.Override{Replicas: new(1 + r.Int32N(most))}
				s.now.override.Until.Time = time.Now().Add(time.Hour)
			}
			s.was = append(s.was, s.now)
		}
		if r.IntN(2) == 0 {
			s.has = []feature{steps}
		}
		a.subjects[s.name] = s
		var asked []int32
		for _, w := range s.was {
			asked = append(asked, w.need)
			if w.override != nil {
				asked[len(asked)-1] = *w.override.Replicas
			}
		}
		n, before := r.Int32N(most+2), s.replicas
		d := &appsv1.Deployment{}
		d.Name, d.Spec.Replicas = s.name, &n
		want := 0
		if n != before && (n < slices.Min(asked) || n > slices.Max(asked)) {
			want++
		}
		if s.can(steps) && n > before+1 {
			want++
		}
		if a.scaled(d); len(s.broken) != want {
			t.Fatalf("%d → %d replicas, where %v were asked for, %v: %q, want %d", before, n, asked, s.has, s.broken, want)
		}

		s.broken = nil
		serving := slices.Min(asked) + r.Int32N(2)
		for i := range serving {
			a.changed(readyPod(fmt.Sprint("s-", i)), false)
		}
		a.changed(readyPod("s-0"), r.IntN(2) == 0) // it still is, or is gone
		if lost := a.serving(s) < slices.Min(asked); lost != (len(s.broken) == 1) {
			t.Fatalf("%d of %d pods serve, where %v were asked for: %q", a.serving(s), serving, asked, s.broken)
		}
	}
}

func readyPod(name string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Name, p.Labels = name, map[string]string{"app": "s"}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return p
}
