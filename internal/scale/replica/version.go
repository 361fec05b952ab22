// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// versionLabels are the labels with which controllers mark the pods of one version of a
// template. A leader of a LeaderWorkerSet has those of its StatefulSet, too.
var versionLabels = []string{
	"rollouts-pod-template-hash",                // Argo Rollouts
	"leaderworkerset.sh/template-revision-hash", // LeaderWorkerSet
	"pod-template-hash",                         // Deployment
	"controller-revision-hash",                  // StatefulSet
}

// Version returns the version of the pod's template; empty if its controller does not say.
func Version(pod *corev1.Pod) string {
	for _, name := range versionLabels {
		if v := pod.Labels[name]; v != "" {
			return v
		}
	}
	return ""
}

// NewestVersion returns the version of the pods that are created now: that of the youngest
// pod that is not being deleted, or of the youngest one if all are. Among pods of the same
// second, the version decides, so that the result does not depend on their order.
func NewestVersion(pods []*corev1.Pod) (version string) {
	var at time.Time
	live := false
	for _, pod := range pods {
		v, created, lives := Version(pod), pod.CreationTimestamp.Time, pod.DeletionTimestamp == nil
		if Finished(pod) || v == "" || live && !lives {
			continue
		}
		if version == "" || lives && !live || created.After(at) || created.Equal(at) && v > version {
			version, at, live = v, created, lives
		}
	}
	return version
}
