// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/test/podtest"
)

func TestVersions(t *testing.T) {
	of := func(label, version string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Labels = map[string]string{"controller-revision-hash": "sts", label: version} }
	}
	deleted := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: at(50)} }
	done := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	const deployment = "pod-template-hash"
	f := func(what, want string, pods ...*corev1.Pod) {
		t.Helper()
		if got := NewestVersion(pods); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
		slices.Reverse(pods)
		if got := NewestVersion(pods); got != want {
			t.Errorf("%s, in another order: %q, want %q", what, got, want)
		}
	}
	f("none", "")
	f("pods without a controller", "", podtest.Pod("a", "x", at(0)))
	f("the youngest", "v2", podtest.Pod("a", "x", at(0), of(deployment, "v1")), podtest.Pod("a", "y", at(9), of(deployment, "v2")))
	f("of one second", "v2", podtest.Pod("a", "x", at(9), of(deployment, "v1")), podtest.Pod("a", "y", at(9), of(deployment, "v2")))
	f("that lives", "v1", podtest.Pod("a", "x", at(0), of(deployment, "v1")), podtest.Pod("a", "y", at(9), of(deployment, "v2"), deleted))
	f("and has not ended", "v1", podtest.Pod("a", "x", at(0), of(deployment, "v1")), podtest.Pod("a", "y", at(9), of(deployment, "v2"), done))
	f("all are stopping", "v1", podtest.Pod("a", "x", at(0), of(deployment, "v1"), deleted))
	f("a StatefulSet", "sts", podtest.Pod("a", "x", at(0), of("app", "web")))
	f("a LeaderWorkerSet", "lws", podtest.Pod("a", "x", at(0), of("leaderworkerset.sh/template-revision-hash", "lws")))
	f("a Rollout", "argo", podtest.Pod("a", "x", at(0), of("rollouts-pod-template-hash", "argo")))
}
