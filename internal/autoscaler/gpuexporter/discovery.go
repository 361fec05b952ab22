// SPDX-License-Identifier: Apache-2.0

package gpuexporter

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
)

// terms returns the selector of the nodes on which the agents run: one term per label
// of a GPU. A DaemonSet runs on a node that any term matches. NodeLabel with the value
// false excludes a node, also if it has other labels.
func terms() []corev1.NodeSelectorTerm {
	notExcluded := corev1.NodeSelectorRequirement{Key: gpu.NodeLabel, Operator: corev1.NodeSelectorOpNotIn, Values: []string{"false"}}
	var out []corev1.NodeSelectorTerm
	for _, sign := range gpu.NodeSigns() {
		out = append(out, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{requirement(sign), notExcluded}})
	}
	return out
}

func requirement(sign gpu.NodeSign) corev1.NodeSelectorRequirement {
	if sign.Value == "" {
		return corev1.NodeSelectorRequirement{Key: sign.Label, Operator: corev1.NodeSelectorOpExists}
	}
	return corev1.NodeSelectorRequirement{Key: sign.Label, Operator: corev1.NodeSelectorOpIn, Values: []string{sign.Value}}
}

// unknownTerms returns the selector of the Linux nodes without a label for GPUs.
func unknownTerms() []corev1.NodeSelectorTerm {
	all := []corev1.NodeSelectorRequirement{{Key: corev1.LabelOSStable, Operator: corev1.NodeSelectorOpNotIn, Values: []string{"windows"}}}
	for _, sign := range gpu.NodeSigns() {
		r := corev1.NodeSelectorRequirement{Key: sign.Label, Operator: corev1.NodeSelectorOpDoesNotExist}
		if sign.Value != "" && sign.Label != gpu.NodeLabel {
			r.Operator, r.Values = corev1.NodeSelectorOpNotIn, []string{sign.Value}
		}
		all = append(all, r)
	}
	return []corev1.NodeSelectorTerm{{MatchExpressions: all}}
}

// hasSign reports whether the node has a label of GPU nodes.
func hasSign(labels map[string]string) bool {
	return slices.ContainsFunc(gpu.NodeSigns(), func(s gpu.NodeSign) bool { return s.Matches(labels) })
}

// selected reports whether discovery selects the node.
func selected(node *corev1.Node) bool {
	return node.Labels[gpu.NodeLabel] != "false" && hasSign(node.Labels)
}

// needsLabel reports whether only the node's capacity shows that it has GPUs, so that
// no term matches it. A value of the label that another client has set stays.
func needsLabel(node *corev1.Node) bool {
	if _, set := node.Labels[gpu.NodeLabel]; set || hasSign(node.Labels) {
		return false
	}
	for name, n := range node.Status.Capacity {
		if strings.HasPrefix(string(name), "nvidia.com/") && gpu.IsResource(string(name), nil) && !n.IsZero() {
			return true
		}
	}
	return false
}

// probed returns the number of GPUs that the probe's pod found on its node. ok is false
// until the probe has ended successfully.
func probed(pod *corev1.Pod) (gpus int, ok bool) {
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		for _, end := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
			if end == nil || end.ExitCode != 0 {
				continue
			}
			text, found := strings.CutPrefix(strings.TrimSpace(end.Message), gpu.ProbeResult)
			if n, err := strconv.ParseUint(text, 10, 16); found && err == nil {
				return int(n), true
			}
		}
	}
	return 0, false
}

// probes reports whether the exporter's discovery uses the probe.
func probes(e *v1alpha1.GPUExporter) bool { return e.Spec.Discovery == v1alpha1.DiscoveryProbe }
