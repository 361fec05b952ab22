// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// The names of the chart's objects.
const (
	controllerName = "gpupilot-controller"
	agentName      = "gpupilot-agent"
)

// The reasons of problems of a GPUExporter that are those of another check.
const (
	secondAgent  = "SecondAgent"       // another GPUExporter has an agent on the node
	deviceDown   = "DeviceDown"        // a GPU cannot be read
	notAnswering = "AgentNotAnswering" // the controller does not reach the agent
)

var nodeChecks = []Check{
	{
		Code: "GP201", Group: Node, Level: Error, Title: "each GPU node has an agent that is ready",
		Fix: "see why its pod is missing or not ready: kubectl describe gpuexporters, and docs/agent.md", at: []evidence{nodes, exporters}, run: checkAgents,
	},
	{
		Code: "GP202", Group: Node, Level: Error, Title: "no node has the agents of two GPUExporters",
		Fix: "exclude the node by the nodeSelector of one of them", at: []evidence{applied}, run: checkSecondAgent,
	},
	{
		Code: "GP203", Group: Node, Level: Error, Title: "agents read their GPUs",
		Fix: "docs/gpuexporter.md explains each reason", at: []evidence{applied}, run: checkExporterProblems,
	},
	{
		Code: "GP204", Group: Node, Level: Error, Title: "no node reports broken GPUs",
		Fix: "drain the node, and reset or replace the GPU: docs/operate.md#mark-nodes-with-broken-gpus", at: []evidence{nodes}, run: checkNodeHealth,
	},
	{
		Code: "GP205", Group: Node, Level: Warning, Title: "all agents have one version",
		Fix: "finish the rollout of the agents, or set one image", at: []evidence{agents}, run: checkAgentVersions,
	},
	{
		Code: "GP206", Group: Node, Level: Error, Title: "GPUExporters are applied as they are written",
		Fix: "the condition says what is refused: docs/gpuexporter.md", at: []evidence{applied}, run: checkExporterConditions,
	},
}

// checkAgents looks at GPU nodes without an agent or a dcgm-exporter, if there are any of them:
// an installation may have no exporter of its own.
func checkAgents(f *Facts) (out []Finding) {
	if f.Nodes.Err != nil || f.Pods.Err != nil {
		return nil
	}
	ready, present := map[string]bool{}, map[string]*pod{}
	for i := range f.Pods.Items {
		if p := &f.Pods.Items[i]; p.isAgent() || p.isDCGM() {
			present[p.Spec.NodeName] = p
			ready[p.Spec.NodeName] = ready[p.Spec.NodeName] || p.ready()
		}
	}
	known := f.exporterProblems()
	for i := range f.Nodes.Items {
		n := &f.Nodes.Items[i]
		name := n.Metadata.Name
		if !n.hasGPUs() || ready[name] || known[name] {
			continue
		}
		message := "no agent runs on it: its GPUs are unknown, and workloads on it hold their replicas"
		if p := present[name]; p != nil {
			message = "the pod " + p.name() + " is not ready: " + p.waiting()
		}
		out = append(out, Finding{"Node " + name, message})
	}
	return out
}

// waiting says why a pod is not ready.
func (p *pod) waiting() string {
	for i := range p.Status.ContainerStatuses {
		if w := p.Status.ContainerStatuses[i].State.Waiting; w != nil {
			return strings.TrimSpace(w.Reason + " " + w.Message)
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Status != corev1.ConditionTrue && c.Message != "" {
			return c.Message
		}
	}
	return "its phase is " + string(p.Status.Phase)
}

// exporterProblems are the nodes of which a GPUExporter reports a problem.
func (f *Facts) exporterProblems() map[string]bool {
	out := map[string]bool{}
	for i := range f.Exporters.Items {
		for _, p := range f.Exporters.Items[i].Status.Problems {
			out[p.Node] = true
		}
	}
	return out
}

// problemsOf returns the problems of GPUExporters that are those of a check.
func (f *Facts) problemsOf(is func(*v1alpha1.NodeProblem) bool) (out []Finding) {
	for i := range f.Exporters.Items {
		e := &f.Exporters.Items[i]
		for j := range e.Status.Problems {
			if p := &e.Status.Problems[j]; is(p) {
				out = append(out, Finding{"Node " + p.Node, fmt.Sprintf("%s: %s (GPUExporter %s)", p.Reason, p.Message, e.Name)})
			}
		}
	}
	return out
}

func checkSecondAgent(f *Facts) []Finding {
	return f.problemsOf(func(p *v1alpha1.NodeProblem) bool { return p.Reason == secondAgent })
}

func checkExporterProblems(f *Facts) []Finding {
	broken, silent := f.nodesOf(checkNodeHealth), f.silentNodes()
	return f.problemsOf(func(p *v1alpha1.NodeProblem) bool {
		switch p.Reason {
		case secondAgent:
			return false
		case deviceDown:
			return !broken[p.Node]
		case notAnswering:
			return !silent[p.Node]
		}
		return true
	})
}

// nodesOf are the nodes for which one of these checks fails. What follows from that has no code of its own.
func (f *Facts) nodesOf(checks ...func(*Facts) []Finding) map[string]bool {
	out := map[string]bool{}
	for _, check := range checks {
		for _, x := range check(f) {
			out[strings.TrimPrefix(x.Object, "Node ")] = true
		}
	}
	return out
}

// silentNodes are the nodes with an exporter that does not answer the controller.
func (f *Facts) silentNodes() map[string]bool {
	out := map[string]bool{}
	if v, err := f.view(); err == nil {
		for i := range v.Targets {
			if t := &v.Targets[i]; t.Kind != view.KindPod && !t.Up {
				out[t.Node] = true
			}
		}
	}
	return out
}

func checkNodeHealth(f *Facts) (out []Finding) {
	for i := range f.Nodes.Items {
		n := &f.Nodes.Items[i]
		for _, c := range n.Status.Conditions {
			if c.Type == "GPUHealthy" && c.Status == "False" {
				out = append(out, Finding{"Node " + n.Metadata.Name, c.Message})
			}
		}
	}
	return out
}

func checkAgentVersions(f *Facts) (out []Finding) {
	images := map[string]int{}
	for i := range f.Pods.Items {
		if p := &f.Pods.Items[i]; p.isAgent() && len(p.Spec.Containers) > 0 {
			images[p.Spec.Containers[0].Image]++
		}
	}
	if len(images) < 2 {
		return nil
	}
	most := ""
	for image, n := range images {
		if n > images[most] || n == images[most] && image < most {
			most = image
		}
	}
	for image, n := range images {
		if image != most {
			out = append(out, Finding{"image " + image, fmt.Sprintf("%d agents run it, and %d run %s", n, images[most], most)})
		}
	}
	return out
}

func checkExporterConditions(f *Facts) (out []Finding) {
	for i := range f.Exporters.Items {
		e := &f.Exporters.Items[i]
		for _, c := range e.Status.Conditions {
			if c.Status == "False" && c.Type != v1alpha1.ConditionExporterReady && c.Type != v1alpha1.ConditionFieldsGiven { // Ready is the sum of the others and of the problems
				out = append(out, Finding{"GPUExporter " + e.Name, fmt.Sprintf("%s is False, %s: %s", c.Type, c.Reason, c.Message)})
			}
		}
	}
	return out
}

// metricsChecks are about what the controller scrapes.
var metricsChecks = []Check{
	{
		Code: "GP301", Group: Metrics, Level: Error, Title: "exporters and pods answer the controller",
		Fix: "check the pod, its port, NetworkPolicies and TLS: docs/sources.md", at: []evidence{scraped}, run: checkAnswers,
	},
	{
		Code: "GP302", Group: Metrics, Level: Error, Title: "no exporter contradicts the API server",
		Fix: "its GPUs are not believed until it agrees: docs/sources.md#what-an-exporter-may-report", at: []evidence{scraped}, run: targets(func(t *view.Target) string { return t.Contradiction }),
	},
	{
		Code: "GP303", Group: Metrics, Level: Warning, Title: "no limit of memory or series is reached",
		Fix: "raise the limit or expose fewer series: docs/operate.md#memory", at: []evidence{scraped}, run: targets(func(t *view.Target) string { return t.Limited }),
	},
	{
		Code: "GP304", Group: Metrics, Level: Warning, Title: "values of GPUs change",
		Fix: "the exporter or its GPU library hangs: restart it. docs/sources.md#how-old-a-value-may-be", at: []evidence{scraped}, run: targets(func(t *view.Target) string {
			return some(t.Frozen, "devices whose values have not changed for too long: they do not count")
		}),
	},
	{
		Code: "GP305", Group: Metrics, Level: Warning, Title: "values are within their ranges",
		Fix: "docs/sources.md#what-is-read-of-an-exporter has the ranges", at: []evidence{scraped}, run: targets(func(t *view.Target) string {
			return some(t.OutOfRange, "values outside of their ranges: they are left out")
		}),
	},
	{
		Code: "GP306", Group: Metrics, Level: Warning, Title: "no GPU has two exporters",
		Fix: "remove dcgm-exporter from the node, or the agent", at: []evidence{exporters}, run: checkTwoExporters,
	},
	{
		Code: "GP307", Group: Metrics, Level: Warning, Title: "GPUs have fresh values",
		Fix: "look at the node's agent: gpupilot top --agent HOST:PORT", at: []evidence{scraped}, run: checkStale,
	},
	{
		Code: "GP308", Group: Metrics, Level: Warning, Title: "no collectors file asks for fields that only DCGM gives where DCGM is not",
		Fix: "give the agents libdcgm or a host engine, or remove the lines: docs/dcgm-exporter.md", at: []evidence{applied}, run: checkFields,
	},
}

// checkFields looks for agents that lack what only DCGM gives.
func checkFields(f *Facts) (out []Finding) {
	for i := range f.Exporters.Items {
		e := &f.Exporters.Items[i]
		if c := condition(e.Status.Conditions, v1alpha1.ConditionFieldsGiven); c != nil && c.Status == metav1.ConditionFalse {
			out = append(out, Finding{"GPUExporter " + e.Name, c.Message})
		}
	}
	return out
}

func some(n int, what string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d %s", n, what)
}

// view returns the controller's view.
func (f *Facts) view() (*view.View, error) {
	if len(f.View.Items) == 0 {
		return nil, orMissing(f.View.Err, "the controller was not asked")
	}
	return &f.View.Items[0], nil
}

func orMissing(err error, otherwise string) error {
	if err != nil {
		return err
	}
	return errors.New(otherwise)
}

// targets is a check of each target of the controller.
func targets(wrong func(*view.Target) string) func(*Facts) []Finding {
	return func(f *Facts) (out []Finding) {
		v, err := f.view()
		if err != nil {
			return nil
		}
		for i := range v.Targets {
			t := &v.Targets[i]
			if message := wrong(t); message != "" {
				out = append(out, Finding{t.Kind + " " + t.Name, message})
			}
		}
		return out
	}
}

// checkAnswers leaves out the exporters of nodes whose agent is known not to work, and the pods of GPUAutoscalers whose
// signals are unreadable: GP201, GP203 and GP406 have them. GP304 has those that answer with the values of before.
func checkAnswers(f *Facts) []Finding {
	broken, unread := f.nodesOf(checkAgents, checkExporterProblems), map[*view.Target]bool{}
	for _, all := range f.unreadable() {
		for _, t := range all {
			unread[t] = true
		}
	}
	return targets(func(t *view.Target) string {
		if t.Up || !t.Starting.IsZero() || t.Frozen > 0 || unread[t] || t.Kind != view.KindPod && broken[t.Node] {
			return ""
		}
		return "no answer: " + t.Error
	})(f)
}

func checkTwoExporters(f *Facts) (out []Finding) {
	agents := map[string]string{}
	for i := range f.Pods.Items {
		if p := &f.Pods.Items[i]; p.isAgent() && p.Spec.NodeName != "" {
			agents[p.Spec.NodeName] = p.name()
		}
	}
	for i := range f.Pods.Items {
		p := &f.Pods.Items[i]
		if agent := agents[p.Spec.NodeName]; agent != "" && p.isDCGM() {
			out = append(out, Finding{"Node " + p.Spec.NodeName, fmt.Sprintf("the pods %s and %s export the same GPUs: sums in Prometheus count them twice", agent, p.name())})
		}
	}
	return out
}

// checkStale looks at nodes whose exporters answer, and whose GPUs have no fresh value all the
// same, for no reason that another check has.
func checkStale(f *Facts) (out []Finding) {
	v, err := f.view()
	if err != nil {
		return nil
	}
	down := f.nodesOf(checkAgents, checkExporterProblems, checkNodeHealth)
	for i := range v.Targets {
		if t := &v.Targets[i]; t.Kind != view.KindPod && (!t.Up || t.Frozen > 0 || t.OutOfRange > 0) {
			down[t.Node] = true
		}
	}
	for i := range v.Problems {
		if p := &v.Problems[i]; p.Stale > 0 && !down[p.Name] {
			out = append(out, Finding{"Node " + p.Name, fmt.Sprintf("%d of %d GPUs are stale: their workloads hold their replicas", p.Stale, p.GPUs)})
		}
	}
	return out
}
