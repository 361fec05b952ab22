// SPDX-License-Identifier: Apache-2.0

package gpuexporter

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// fleet is a DaemonSet of desired agents with these pods.
func fleet(desired int32, pods ...podState) *observed {
	ready := int32(0)
	for _, p := range pods {
		if p.ready {
			ready++
		}
	}
	return &observed{
		generation: 3, now: now, nodes: desired, pods: pods, applied: condition{ok: true, reason: reasonApplied}, collectors: condition{ok: true, reason: reasonValid},
		daemonSet: &appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: desired, NumberReady: ready, UpdatedNumberScheduled: desired}},
	}
}

func agent(node string, change func(*podState)) podState {
	p := podState{name: "pod-" + node, node: node, created: now.Add(-time.Hour), ready: true, report: &Report{Models: map[string]int{"NVIDIA H200": 8}}}
	if change != nil {
		change(&p)
	}
	return p
}

func TestStatusCountsGPUsByModel(t *testing.T) {
	s := makeStatus(&v1alpha1.GPUExporterStatus{}, fleet(2, agent("n1", nil), agent("n2", func(p *podState) {
		p.report = &Report{Models: map[string]int{"NVIDIA L4": 1, "NVIDIA H200": 1}}
	})))
	want := []v1alpha1.GPUModelStatus{{Model: "NVIDIA H200", Count: 9}, {Model: "NVIDIA L4", Count: 1}}
	if d := cmp.Diff(want, s.GPUs); d != "" || s.GPUCount != 10 || s.Nodes != 2 || s.ReadyAgents != 2 || s.ObservedGeneration != 3 {
		t.Errorf("%+v\n%s", s, d)
	}
	if !meta.IsStatusConditionTrue(s.Conditions, "Ready") {
		t.Errorf("conditions %+v", s.Conditions)
	}
}

// FieldsGiven names the nodes and the fields that only DCGM gives, and does not change Ready.
func TestFieldsGiven(t *testing.T) {
	f := func(status metav1.ConditionStatus, says string, pods ...podState) {
		t.Helper()
		s := makeStatus(&v1alpha1.GPUExporterStatus{}, fleet(int32(len(pods)), pods...))
		c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionFieldsGiven)
		if c == nil || c.Status != status || !strings.Contains(c.Message, says) || len(c.Message) > maxGiven || !meta.IsStatusConditionTrue(s.Conditions, "Ready") {
			t.Errorf("%+v, want %s and %q", s.Conditions, status, says)
		}
	}
	lacks := func(node string, fields ...string) podState {
		return agent(node, func(p *podState) { p.report = &Report{Lacks: fields, Why: "no libdcgm"} })
	}
	f(metav1.ConditionTrue, "no agent lacks", agent("n1", nil), agent("n2", func(p *podState) { p.report = nil }))
	f(metav1.ConditionFalse, "2 nodes (n1, n3) do not give A, B, C: no libdcgm", lacks("n3", "B", "C"), agent("n2", nil), lacks("n1", "A", "B"))
	var many []podState
	for i := range 200 {
		many = append(many, lacks(fmt.Sprint("node-with-a-long-name-", i), strings.Repeat("A", 100)+fmt.Sprint(i)))
	}
	f(metav1.ConditionFalse, "200 nodes (node-with-a-long-name-0, ", many...)
}

func TestReadySaysWhatIsWrong(t *testing.T) {
	f := func(reason, message string, o *observed) {
		t.Helper()
		s := makeStatus(&v1alpha1.GPUExporterStatus{}, o)
		c := meta.FindStatusCondition(s.Conditions, "Ready")
		if c == nil || c.Reason != reason || !strings.Contains(c.Message, message) || (c.Status == metav1.ConditionTrue) != (reason == reasonReady) {
			t.Errorf("condition %+v, want %s with %q", c, reason, message)
		}
	}
	one := func(change func(*podState)) *observed { return fleet(1, agent("n1", change)) }
	f(reasonReady, "1 agents", one(nil))
	f(reasonNoNode, "discovery: Probe", fleet(0))
	f(reasonProblems, "n1: DriverNotReady: libnvidia-ml.so.1 is missing", one(func(p *podState) { p.report = &Report{Error: "libnvidia-ml.so.1 is missing"} }))
	f(reasonProblems, "n1: DeviceDown: 1 devices", one(func(p *podState) { p.report.Down = 1 }))
	f(reasonProblems, "n1: ImagePullBackOff: no such image", one(func(p *podState) { p.ready, p.reason, p.message = false, "ImagePullBackOff", "no such image" }))
	f(reasonProblems, "n1: NotReady: the pod is not ready; it was created at", one(func(p *podState) { p.ready = false }))
	f(reasonStarting, "0 of 1", one(func(p *podState) { p.ready, p.created = false, now }))
	f(reasonProblems, "n1: AgentNotAnswering: timeout", one(func(p *podState) { p.report, p.askErr = nil, errors.New("timeout") }))
	f(reasonProblems, "n1: SecondAgent: the GPUExporter old has an agent on this node", one(func(p *podState) { p.other = "old" }))
	f(reasonReady, "", one(func(p *podState) { p.report, p.askErr, p.created = nil, errors.New("timeout"), now }))
	missing := fleet(3, agent("n1", nil))
	missing.missing = `FailedCreate: RuntimeClass "nvidia" not found`
	f(reasonProblems, `(2 nodes): PodNotCreated: FailedCreate: RuntimeClass "nvidia" not found`, missing)
	taken := one(nil)
	taken.applied = condition{false, reasonNameTaken, "DaemonSet x"}
	f(reasonNameTaken, "DaemonSet x", taken)
	broken := one(nil)
	broken.collectors = condition{false, reasonInvalid, "line 1"}
	f(reasonInvalid, "line 1", broken)
}

func TestProblemsAreBounded(t *testing.T) {
	var pods []podState
	for i := range 100 {
		pods = append(pods, agent(fmt.Sprintf("n%03d", i), func(p *podState) { p.report = &Report{Error: strings.Repeat("ä", 1000)} }))
	}
	s := makeStatus(&v1alpha1.GPUExporterStatus{}, fleet(100, pods...))
	if len(s.Problems) != maxProblems || s.NodesWithProblems != 100 || len(s.Problems[0].Message) > maxMessage || s.Problems[0].Node != "n000" {
		t.Errorf("%d problems of %d, the first %+v", len(s.Problems), s.NodesWithProblems, s.Problems[0])
	}
}

func TestConditionsKeepTheirTimes(t *testing.T) {
	first := makeStatus(&v1alpha1.GPUExporterStatus{}, fleet(1, agent("n1", nil)))
	o := fleet(1, agent("n1", nil))
	o.now = now.Add(time.Hour)
	if d := cmp.Diff(first, makeStatus(&first, o)); d != "" {
		t.Errorf("a status is written again although nothing has changed:\n%s", d)
	}
}

func TestStateOfAPod(t *testing.T) {
	f := func(wantReason, wantMessage string, s corev1.PodStatus) {
		t.Helper()
		if p := stateOf(&corev1.Pod{Status: s}); p.reason != wantReason || p.message != wantMessage {
			t.Errorf("%q %q, want %q %q", p.reason, p.message, wantReason, wantMessage)
		}
	}
	waiting := func(reason, message string, last *corev1.ContainerStateTerminated) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
			LastTerminationState: corev1.ContainerState{Terminated: last},
		}}}
	}
	f("", "", corev1.PodStatus{})
	f("", "", waiting("ContainerCreating", "", nil))
	f("ImagePullBackOff", "no such image", waiting("ImagePullBackOff", "no such image", nil))
	f("CrashLoopBackOff", "gpupilot-agent: no library", waiting("CrashLoopBackOff", "back-off 10s",
		&corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "level=INFO\ngpupilot-agent: no library\n"}))
	f("Unschedulable", "0/3 nodes", corev1.PodStatus{Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes"},
	}})
	f("Evicted", "disk", corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "disk"})
}

func TestJudge(t *testing.T) {
	gr := schema.GroupResource{Resource: "daemonsets"}
	f := func(want string, err error) {
		t.Helper()
		if got := judge(err); got.reason != want || got.ok != (err == nil) {
			t.Errorf("%v: %+v, want %s", err, got, want)
		}
	}
	f(reasonApplied, nil)
	f(reasonInvalidSpec, &specError{errors.New("x")})
	f(reasonNameTaken, errors.Join(fmt.Errorf("DaemonSet x: %w", errForeign)))
	f(reasonForbidden, errors.Join(errors.New("y"), fmt.Errorf("apply: %w", apierrors.NewForbidden(gr, "x", errors.New("policy")))))
	f(reasonInvalidSpec, errors.Join(fmt.Errorf("apply: %w", apierrors.NewInvalid(schema.GroupKind{}, "x", nil))))
	f(reasonFailed, errors.New("timeout"))
}

func TestCollectorsAreChecked(t *testing.T) {
	parse := func(text string) (metrics int, invalid []error) {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "bad") {
				invalid = append(invalid, errors.New(strings.TrimSpace(line)))
			} else {
				metrics++
			}
		}
		return metrics, invalid
	}
	f := func(want, csv string) {
		t.Helper()
		got := ""
		if err := checkCollectors(csv, parse); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", csv, got, want)
		}
	}
	f("", "a\nb\n")
	f("the list has no metric", "")
	f("bad 1", "a\nbad 1\n")
	f("bad 1, and 1 more lines", "bad 1\nbad 2\n")
}

// What a CRD of another version has let in costs its object only.
func TestMalformedObjects(t *testing.T) {
	f := func(ok bool, spec, status any) {
		t.Helper()
		u := &unstructured.Unstructured{Object: map[string]any{"spec": spec, "status": status}}
		u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("GPUExporter"))
		u.SetName("default")
		u.SetUID("1234")
		e, err := decode(u)
		if (err == nil) != ok || e.Name != "default" || e.UID != "1234" {
			t.Errorf("%v %v: %+v, %v", spec, status, e.ObjectMeta, err)
		}
	}
	f(true, nil, nil)
	f(true, map[string]any{"image": "x", "laterField": true}, nil)
	f(true, map[string]any{}, map[string]any{"nodes": "many"})
	f(false, "x", nil)
	f(false, map[string]any{"image": int64(7)}, nil)
	f(false, map[string]any{"interval": "soon"}, map[string]any{"gpus": "x"})
}
