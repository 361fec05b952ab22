// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// podMetric is a metric of kube-state-metrics about pods. each calls f with the labels
// of each of a pod's series, beside namespace, pod and uid, and with their value.
type podMetric struct {
	name string
	help string
	each func(pod *corev1.Pod, f func(pairs []labels.Label, v float64))
}

// podMetrics are the metrics of kube-state-metrics that queries about GPUs join with,
// with its help texts.
func podMetrics() []podMetric {
	return []podMetric{
		{"kube_pod_labels", "Kubernetes labels converted to Prometheus labels.", func(pod *corev1.Pod, f func([]labels.Label, float64)) { f(podLabels(pod), 1) }},
		{"kube_pod_info", "Information about pod.", func(pod *corev1.Pod, f func([]labels.Label, float64)) { f(podInfo(pod), 1) }},
		{"kube_pod_owner", "Information about the Pod's owner.", func(pod *corev1.Pod, f func([]labels.Label, float64)) { f(podOwner(pod), 1) }},
		{"kube_pod_status_phase", "The pods current phase.", eachPhase},
	}
}

func podInfo(pod *corev1.Pod) []labels.Label {
	pairs := []labels.Label{
		{Name: "host_ip", Value: pod.Status.HostIP},
		{Name: "pod_ip", Value: pod.Status.PodIP},
		{Name: "node", Value: pod.Spec.NodeName},
		{Name: "host_network", Value: fmt.Sprint(pod.Spec.HostNetwork)},
	}
	if o := metav1.GetControllerOfNoCopy(pod); o != nil {
		pairs = append(pairs, labels.Label{Name: "created_by_kind", Value: o.Kind}, labels.Label{Name: "created_by_name", Value: o.Name})
	}
	return pairs
}

func podOwner(pod *corev1.Pod) []labels.Label {
	o := metav1.GetControllerOfNoCopy(pod)
	if o == nil {
		return nil
	}
	return []labels.Label{{Name: "owner_kind", Value: o.Kind}, {Name: "owner_name", Value: o.Name}, {Name: "owner_is_controller", Value: "true"}}
}

func eachPhase(pod *corev1.Pod, f func([]labels.Label, float64)) {
	for _, phase := range []corev1.PodPhase{corev1.PodPending, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown, corev1.PodRunning} {
		v := 0.0
		if pod.Status.Phase == phase {
			v = 1
		}
		f([]labels.Label{{Name: "phase", Value: string(phase)}}, v)
	}
}

// podLabelPrefix is the prefix of the labels that a pod's labels become.
const podLabelPrefix = "label_"

func isPodLabel(name string) bool { return strings.HasPrefix(name, podLabelPrefix) }

// podLabels returns a pod's labels under the names of kube-state-metrics. Labels whose
// names become equal get the suffixes _conflict1, _conflict2 and so on.
func podLabels(pod *corev1.Pod) []labels.Label {
	pairs := make([]labels.Label, 0, len(pod.Labels)+8)
	uses := make(map[string]int, len(pod.Labels))
	for key := range pod.Labels {
		uses[podLabel(key)]++
	}
	next := map[string]int{}
	for _, key := range slices.Sorted(maps.Keys(pod.Labels)) {
		name := podLabel(key)
		if uses[name] > 1 {
			next[name]++
			name = fmt.Sprintf("%s_conflict%d", name, next[name])
		}
		pairs = append(pairs, labels.Label{Name: name, Value: pod.Labels[key]})
	}
	return pairs
}

// podLabel returns the name of a pod's label in Prometheus: in snake case, with other
// characters than letters, digits and underscores replaced by an underscore.
func podLabel(key string) string {
	var b strings.Builder
	b.WriteString(podLabelPrefix)
	lower := false // the last character is a lower-case letter or a digit
	for i := range len(key) {
		c := key[i]
		switch {
		case c >= 'A' && c <= 'Z':
			if lower {
				b.WriteByte('_')
			}
			b.WriteByte(c + 'a' - 'A')
			lower = false
			continue
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			lower = true
		default:
			c, lower = '_', false
		}
		b.WriteByte(c)
	}
	return b.String()
}
