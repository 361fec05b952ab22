// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// podChecks are about the pods of workloads that GPUAutoscalers scale.
var podChecks = []Check{
	{
		Code: "GP411", Group: Scaling, Level: Warning, Title: "scaled pods have a readiness probe",
		Fix: "add a readinessProbe that succeeds when the model is loaded, such as /health of vLLM", run: checkReadiness,
	},
	{
		Code: "GP412", Group: Scaling, Level: Warning, Title: "the grace period is longer than preStop and the server's drain",
		Fix: "raise terminationGracePeriodSeconds above their sum", run: checkGrace,
	},
	{
		Code: "GP413", Group: Scaling, Level: Warning, Title: "PodDisruptionBudgets allow to drain a node",
		Fix: "set maxUnavailable: 1, or minAvailable below minReplicas", run: checkDisruption,
	},
}

// scaled calls do with each GPUAutoscaler and the workload that it scales.
func (f *Facts) scaled(do func(*v1alpha1.GPUAutoscaler, *workload) string) (out []Finding, err error) {
	for i := range f.Autoscalers.Items {
		a := &f.Autoscalers.Items[i]
		if w := f.workload(a); w != nil {
			if message := do(a, w); message != "" {
				out = append(out, Finding{a.Spec.ScaleTargetRef.Kind + " " + w.name(), message})
			}
		}
	}
	return out, errors.Join(f.Autoscalers.Err, f.Deployments.Err, f.StatefulSet.Err)
}

func checkReadiness(f *Facts) ([]Finding, error) {
	return f.scaled(func(_ *v1alpha1.GPUAutoscaler, w *workload) string {
		spec := &w.Spec.Template.Spec
		for i := range spec.Containers {
			if spec.Containers[i].ReadinessProbe != nil {
				return ""
			}
		}
		if len(spec.ReadinessGates) > 0 {
			return ""
		}
		return "no container has a readinessProbe: a replica counts as serving, and gets requests, while it loads its model"
	})
}

// defaultGrace is the grace period of a pod that does not set one, in seconds.
const defaultGrace = 30

func checkGrace(f *Facts) ([]Finding, error) {
	return f.scaled(func(_ *v1alpha1.GPUAutoscaler, w *workload) string {
		spec := &w.Spec.Template.Spec
		grace := int64(defaultGrace)
		if spec.TerminationGracePeriodSeconds != nil {
			grace = *spec.TerminationGracePeriodSeconds
		}
		for i := range spec.Containers {
			c := &spec.Containers[i]
			before, drain := preStop(c), drainSeconds(c)
			if need := before + drain; need > 0 && need >= grace {
				return fmt.Sprintf("the container %s needs %d s to end (%d s preStop, %d s drain), and is killed after %d s: requests in flight are lost at each scale-down", c.Name, need, before, drain, grace)
			}
		}
		return ""
	})
}

// preStop is how long a container's preStop hook sleeps, in seconds; 0: not known.
func preStop(c *corev1.Container) int64 {
	if c.Lifecycle == nil || c.Lifecycle.PreStop == nil {
		return 0
	}
	switch h := c.Lifecycle.PreStop; {
	case h.Sleep != nil:
		return h.Sleep.Seconds
	case h.Exec != nil:
		return sleepOf(strings.Join(h.Exec.Command, " "))
	}
	return 0
}

// sleepOf is the longest sleep of a command line, in seconds.
func sleepOf(command string) (longest int64) {
	words := strings.FieldsFunc(command, func(r rune) bool { return strings.ContainsRune(" \t\n;&|()", r) })
	for i, word := range words {
		if strings.TrimPrefix(word, "/bin/") == "sleep" && i+1 < len(words) {
			longest = max(longest, seconds(words[i+1]))
		}
	}
	return longest
}

// maxSeconds bounds a number of seconds from an object.
const maxSeconds = 1 << 20

// seconds parses a whole number of seconds, with a unit or without; 0: it is none.
func seconds(s string) int64 {
	unit := int64(1)
	for suffix, n := range map[string]int64{"s": 1, "m": 60, "h": 3600} {
		if rest, ok := strings.CutSuffix(s, suffix); ok {
			s, unit = rest, n
			break
		}
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || !(n > 0 && n < maxSeconds) {
		return 0
	}
	return int64(n * float64(unit))
}

// drainFlags are the flags of servers with the time that they take to finish requests after
// SIGTERM, in seconds.
var drainFlags = map[string]int64{
	"--shutdown-timeout":  0,  // vLLM: by default it aborts them
	"--exit-timeout-secs": 30, // Triton, and its default
}

// drainSeconds is how long a container's server waits for requests in flight.
func drainSeconds(c *corev1.Container) int64 {
	line := strings.Fields(strings.Join(append(append([]string{}, c.Command...), c.Args...), " "))
	for i, word := range line {
		name, value, ok := strings.Cut(word, "=")
		if _, known := drainFlags[name]; known {
			if !ok && i+1 < len(line) {
				value = line[i+1]
			}
			return seconds(value)
		}
	}
	if len(line) > 0 && strings.HasSuffix(line[0], "tritonserver") {
		return drainFlags["--exit-timeout-secs"]
	}
	return 0
}

func checkDisruption(f *Facts) (out []Finding, err error) {
	found, err := f.scaled(func(a *v1alpha1.GPUAutoscaler, w *workload) string {
		for i := range f.PDBs.Items {
			b := &f.PDBs.Items[i]
			if b.Metadata.Namespace != w.Metadata.Namespace || !selects(b.Spec.Selector, w.Spec.Template.Labels) {
				continue
			}
			least := int32(1)
			if a.Spec.MinReplicas != nil {
				least = *a.Spec.MinReplicas
			}
			if why := b.blocks(least); why != "" {
				return fmt.Sprintf("the PodDisruptionBudget %s %s: its nodes cannot be drained, and a node autoscaler keeps their GPUs", b.name(), why)
			}
		}
		return ""
	})
	return found, cmp.Or(err, f.PDBs.Err)
}

func selects(s *metav1.LabelSelector, set map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(labels.Set(set))
}

// blocks says why a budget allows no eviction of that many pods; empty: it does.
func (b *disruptionBudget) blocks(pods int32) string {
	if pods == 0 {
		return ""
	}
	if m := b.Spec.MaxUnavailable; m != nil {
		if n, err := intstr.GetScaledValueFromIntOrPercent(m, int(pods), true); err == nil && n == 0 {
			return "has maxUnavailable " + m.String()
		}
	}
	if m := b.Spec.MinAvailable; m != nil {
		if n, err := intstr.GetScaledValueFromIntOrPercent(m, int(pods), true); err == nil && n >= int(pods) {
			return fmt.Sprintf("has minAvailable %s, and minReplicas is %d", m.String(), pods)
		}
	}
	return ""
}
