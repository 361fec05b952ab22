// SPDX-License-Identifier: Apache-2.0

package gpuexporter

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
)

// The reasons of conditions and problems. They are public.
const (
	reasonApplied        = "Applied"
	reasonInvalidSpec    = "InvalidSpec"
	reasonNameTaken      = "NameTaken"
	reasonForbidden      = "Forbidden"
	reasonFailed         = "ApplyFailed"
	reasonValid          = "Valid"
	reasonInvalid        = "InvalidCollectors"
	reasonNotFound       = "CollectorsNotFound"
	reasonGiven          = "Given"
	reasonNotGiven       = "NeedDCGM"
	reasonFound          = "Found"
	reasonNoNode         = "NoGPUNode"
	reasonProbing        = "Probing"
	reasonReady          = "AgentsReady"
	reasonStarting       = "AgentsStarting"
	reasonProblems       = "NodesWithProblems"
	reasonDriverNotReady = "DriverNotReady"
	reasonDeviceDown     = "DeviceDown"
	reasonNotAnswering   = "AgentNotAnswering"
	reasonSecondAgent    = "SecondAgent"
	reasonPodMissing     = "PodNotCreated"
	reasonNotReady       = "NotReady"
)

const (
	maxProblems = 32
	maxMessage  = 400  // bytes of a problem's message
	maxGiven    = 1200 // bytes of the message of FieldsGiven, which names nodes and fields
	// startGrace is how long a pod may take to start without being a problem.
	startGrace = 60 * time.Second
)

// observed is the input of makeStatus.
type observed struct {
	generation int64
	now        time.Time
	nodes      int32 // with GPUs, by discovery
	probing    bool  // the probe has not examined every node yet
	daemonSet  *appsv1.DaemonSet
	pods       []podState
	missing    string // why the DaemonSet lacks pods; empty: not known
	applied    condition
	collectors condition
}

// podState is the state of an agent's pod, with the agent's report.
type podState struct {
	name, node string
	created    time.Time
	ready      bool
	reason     string // why it is not ready, if that is known
	message    string
	other      string // an older GPUExporter that has an agent on the node; empty: none
	report     *Report
	askErr     error
}

// condition is a condition without its times.
type condition struct {
	ok              bool
	reason, message string
}

// makeStatus computes the status. before is the last status: conditions that have not
// changed keep its times.
func makeStatus(before *v1alpha1.GPUExporterStatus, o *observed) v1alpha1.GPUExporterStatus {
	s := v1alpha1.GPUExporterStatus{ObservedGeneration: o.generation, Nodes: o.nodes}
	s.Conditions = slices.Clone(before.Conditions)
	if ds := o.daemonSet; ds != nil {
		s.DesiredAgents, s.ReadyAgents, s.UpdatedAgents = ds.Status.DesiredNumberScheduled, ds.Status.NumberReady, ds.Status.UpdatedNumberScheduled
		s.Nodes = max(s.Nodes, s.DesiredAgents)
	}
	countGPUs(&s, o.pods)
	problems := problemsOf(o)
	s.NodesWithProblems = int32(len(problems))
	s.Problems = problems[:min(len(problems), maxProblems)]
	found := condition{true, reasonFound, fmt.Sprintf("%d nodes have GPUs", s.Nodes)}
	switch {
	case s.Nodes > 0:
	case o.probing:
		found = condition{false, reasonProbing, "the probe examines the nodes' PCI devices"}
	default:
		found = condition{false, reasonNoNode, "no node has a label or a resource of NVIDIA GPUs: set discovery: Probe to examine the nodes' PCI devices, or discovery: None to select nodes by nodeSelector only"}
	}
	for _, c := range []struct {
		kind string
		condition
	}{
		{v1alpha1.ConditionObjectsApplied, o.applied},
		{v1alpha1.ConditionCollectorsValid, o.collectors},
		{v1alpha1.ConditionFieldsGiven, given(o.pods)},
		{v1alpha1.ConditionNodesFound, found},
		{v1alpha1.ConditionExporterReady, readiness(&s, o, found)},
	} {
		status := metav1.ConditionFalse
		if c.ok {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: c.kind, Status: status, Reason: c.reason, Message: c.message, ObservedGeneration: o.generation,
			LastTransitionTime: metav1.NewTime(o.now.Truncate(time.Second)),
		})
	}
	return s
}

// readiness returns the condition Ready: the first problem, if there is one.
func readiness(s *v1alpha1.GPUExporterStatus, o *observed, found condition) condition {
	switch {
	case !o.applied.ok:
		return o.applied
	case !found.ok:
		return found
	case len(s.Problems) > 0:
		p := s.Problems[0]
		return condition{false, reasonProblems, excerpt.Of(fmt.Sprintf("%d of %d nodes; %s: %s: %s", s.NodesWithProblems, s.Nodes, p.Node, p.Reason, p.Message), maxMessage)}
	case s.ReadyAgents < s.DesiredAgents || s.DesiredAgents == 0:
		return condition{false, reasonStarting, fmt.Sprintf("%d of %d agents are ready", s.ReadyAgents, s.DesiredAgents)}
	case !o.collectors.ok:
		return o.collectors
	}
	return condition{true, reasonReady, fmt.Sprintf("%d agents are ready", s.ReadyAgents)}
}

// given returns the condition FieldsGiven: which nodes lack what only DCGM may give. It does
// not change Ready: the other fields are there.
func given(pods []podState) condition {
	const most = 8 // nodes that are named
	var nodes, fields []string
	why := ""
	for i := range pods {
		r := pods[i].report
		if r == nil || len(r.Lacks) == 0 {
			continue
		}
		nodes, why = append(nodes, pods[i].node), r.Why
		for _, f := range r.Lacks {
			if !slices.Contains(fields, f) {
				fields = append(fields, f)
			}
		}
	}
	if len(nodes) == 0 {
		return condition{true, reasonGiven, "no agent lacks a field of its collectors that only DCGM gives"}
	}
	slices.Sort(nodes)
	slices.Sort(fields)
	named := strings.Join(nodes[:min(len(nodes), most)], ", ")
	if len(nodes) > most {
		named += ", …"
	}
	return condition{false, reasonNotGiven, excerpt.Of(fmt.Sprintf("%d nodes (%s) do not give %s: %s", len(nodes), named, strings.Join(fields, ", "), why), maxGiven)}
}

func countGPUs(s *v1alpha1.GPUExporterStatus, pods []podState) {
	models := map[string]int32{}
	for i := range pods {
		if r := pods[i].report; r != nil {
			for model, n := range r.Models {
				models[model] += int32(n)
				s.GPUCount += int32(n)
			}
		}
	}
	for model, n := range models {
		s.GPUs = append(s.GPUs, v1alpha1.GPUModelStatus{Model: model, Count: n})
	}
	slices.SortFunc(s.GPUs, func(a, b v1alpha1.GPUModelStatus) int { return strings.Compare(a.Model, b.Model) })
}

// problemsOf lists the nodes whose agent does not work, by name.
func problemsOf(o *observed) []v1alpha1.NodeProblem {
	var out []v1alpha1.NodeProblem
	for i := range o.pods {
		if p, bad := problemOf(&o.pods[i], o.now); bad {
			p.Message = excerpt.Of(p.Message, maxMessage)
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b v1alpha1.NodeProblem) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Pod, b.Pod))
	})
	if ds := o.daemonSet; ds != nil && o.missing != "" && int(ds.Status.DesiredNumberScheduled) > len(o.pods) {
		n := int(ds.Status.DesiredNumberScheduled) - len(o.pods)
		out = append([]v1alpha1.NodeProblem{{
			Node: fmt.Sprintf("(%d nodes)", n), Reason: reasonPodMissing, Message: excerpt.Of(o.missing, maxMessage),
		}}, out...)
	}
	return out
}

func problemOf(p *podState, now time.Time) (v1alpha1.NodeProblem, bool) {
	problem := v1alpha1.NodeProblem{Node: p.node, Pod: p.name}
	young := now.Sub(p.created) < startGrace
	switch {
	case p.other != "":
		problem.Reason, problem.Message = reasonSecondAgent, fmt.Sprintf("the GPUExporter %s has an agent on this node, and Prometheus gets its GPUs twice: exclude the node by the nodeSelector of one of them", p.other)
	case !p.ready && p.reason != "":
		problem.Reason, problem.Message = p.reason, p.message
	case !p.ready && !young:
		problem.Reason, problem.Message = reasonNotReady, cmp.Or(p.message, "the pod is not ready; it was created at "+p.created.UTC().Format(time.RFC3339))
	case !p.ready:
		return problem, false
	case p.report == nil && p.askErr != nil && !young:
		problem.Reason, problem.Message = reasonNotAnswering, p.askErr.Error()
	case p.report == nil:
		return problem, false
	case p.report.Error != "":
		problem.Reason, problem.Message = reasonDriverNotReady, p.report.Error
	case p.report.Down > 0:
		problem.Reason, problem.Message = reasonDeviceDown, fmt.Sprintf("%d devices cannot be read: see the agent's log", p.report.Down)
	default:
		return problem, false
	}
	return problem, true
}

// stateOf returns the state from a pod's status.
func stateOf(pod *corev1.Pod) podState {
	p := podState{name: pod.Name, node: pod.Spec.NodeName, created: pod.CreationTimestamp.Time}
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		switch {
		case c.Type == corev1.PodReady:
			p.ready = c.Status == corev1.ConditionTrue
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse:
			p.reason, p.message = orDefault(c.Reason, "Unschedulable"), c.Message
		}
	}
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		if w := s.State.Waiting; w != nil && w.Reason != "" && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			p.reason, p.message = w.Reason, w.Message
		}
		for _, end := range []*corev1.ContainerStateTerminated{s.LastTerminationState.Terminated, s.State.Terminated} {
			if end != nil && end.ExitCode != 0 && !p.ready { // the reason of the last end is more useful than the waiting state
				p.reason = orDefault(p.reason, orDefault(end.Reason, "Error"))
				p.message = orDefault(lastLine(end.Message), p.message)
			}
		}
	}
	if pod.Status.Phase == corev1.PodFailed {
		p.reason, p.message = orDefault(pod.Status.Reason, "Failed"), pod.Status.Message
	}
	return p
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
