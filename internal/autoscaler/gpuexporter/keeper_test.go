// SPDX-License-Identifier: Apache-2.0

package gpuexporter

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

const ns = "gpupilot-system"

// world is an API server in memory, and a Keeper on it. test/e2e/exporter has the same on
// a real one.
type world struct {
	t      *testing.T
	client client.Client
	keeper *Keeper
	events []Event
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	scheme := clientgoscheme.Scheme
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t}
	w.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1alpha1.GPUExporter{}).WithReturnManagedFields().Build()
	w.keeper = New(Settings{Namespace: ns, Image: "gpupilot-agent:v1"}, Deps{
		Live: w.client, Client: w.client,
		Installed: func(o client.Object) bool { return o.GetObjectKind().GroupVersionKind().Kind == "GPUExporter" },
		Pods: func(s labels.Selector) (out []*corev1.Pod) {
			var pods corev1.PodList
			if err := w.client.List(t.Context(), &pods, client.InNamespace(ns), client.MatchingLabelsSelector{Selector: s}); err != nil {
				t.Error(err)
			}
			for i := range pods.Items {
				out = append(out, &pods.Items[i])
			}
			return out
		},
		Agents: func() []Agent { return nil },
		Ask:    func(context.Context, url.URL) (*Report, error) { return nil, errors.New("nobody is asked") },
		Parse: func(text string) (n int, bad []error) {
			for line := range strings.Lines(text) {
				if strings.Contains(line, "NOPE") {
					bad = append(bad, errors.New("line 1: unknown"))
				}
				n++
			}
			return n, bad
		},
		Defaults: func(profile string) string { return "default of " + profile },
		Record:   func(e Event) { w.events = append(w.events, e) },
		Log:      slog.New(slog.DiscardHandler),
	})
	return w
}

func (w *world) pass() { w.keeper.pass(w.t.Context()) }

func (w *world) get(o client.Object, namespace, name string) {
	w.t.Helper()
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) patch(o client.Object, body string) {
	w.t.Helper()
	if err := w.client.Patch(w.t.Context(), o, client.RawPatch(types.MergePatchType, []byte(body)), client.FieldOwner("kubectl")); err != nil {
		w.t.Fatal(err)
	}
}

// condition returns a condition of the exporter "default", as status and reason.
func (w *world) condition(kind string) string {
	w.t.Helper()
	var e v1alpha1.GPUExporter
	w.get(&e, "", "default")
	c := meta.FindStatusCondition(e.Status.Conditions, kind)
	if c == nil {
		return ""
	}
	return string(c.Status) + " " + c.Reason
}

func gpuNode(name string, labels map[string]string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Status:     corev1.NodeStatus{Capacity: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}},
	}
}

func TestKeeperAppliesAndCorrects(t *testing.T) {
	w := newWorld(t, newExporter(v1alpha1.GPUExporterSpec{}), gpuNode("n1", map[string]string{"nvidia.com/gpu.present": "true"}))
	w.pass()
	var ds appsv1.DaemonSet
	w.get(&ds, ns, "gpupilot-agent-default")
	w.get(&corev1.Service{}, ns, "gpupilot-agent-default")
	if got := w.condition("ObjectsApplied"); got != "True Applied" {
		t.Errorf("ObjectsApplied is %s", got)
	}
	if got := w.condition("NodesFound"); got != "True Found" {
		t.Errorf("NodesFound is %s", got)
	}
	// A foreign field stays, and ours is corrected.
	w.patch(&ds, `{"metadata":{"labels":{"example.com/team":"a"}},"spec":{"template":{"spec":{"priorityClassName":"x"}}}}`)
	w.pass()
	w.get(&ds, ns, "gpupilot-agent-default")
	if ds.Labels["example.com/team"] != "a" || ds.Spec.Template.Spec.PriorityClassName != "system-node-critical" {
		t.Errorf("labels %v, priority class %s", ds.Labels, ds.Spec.Template.Spec.PriorityClassName)
	}
	// What leaves the spec leaves the object.
	var e v1alpha1.GPUExporter
	w.get(&e, "", "default")
	w.patch(&e, `{"spec":{"podLabels":{"a":"b"},"runtimeClassName":"nvidia","discovery":"Probe"}}`)
	w.pass()
	w.get(&ds, ns, "gpupilot-probe-default")
	w.patch(&e, `{"spec":{"podLabels":null,"runtimeClassName":null,"discovery":"Labels"}}`)
	w.pass()
	w.get(&ds, ns, "gpupilot-agent-default")
	if p := ds.Spec.Template; p.Labels["a"] != "" || p.Spec.RuntimeClassName != nil {
		t.Errorf("labels %v, runtime class %v", p.Labels, p.Spec.RuntimeClassName)
	}
	if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "gpupilot-probe-default"}, &ds); !apierrors.IsNotFound(err) {
		t.Errorf("the probe stays: %v", err)
	}
}

// A spec whose DaemonSet the API server refuses changes no other object, and the status
// says why.
func TestKeeperAppliesNothingByHalves(t *testing.T) {
	w := newWorld(t, newExporter(v1alpha1.GPUExporterSpec{}), gpuNode("n1", nil))
	w.pass()
	refuses := true
	w.keeper.deps.Client = interceptor.NewClient(w.client.(client.WithWatch), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption) error {
			if refuses && o.GetObjectKind().GroupVersionKind().Kind == "DaemonSet" {
				return apierrors.NewInvalid(schema.GroupKind{Group: "apps", Kind: "DaemonSet"}, o.GetName(), nil)
			}
			return c.Patch(ctx, o, p, options...)
		},
	})
	var before, after corev1.ConfigMap
	w.get(&before, ns, "gpupilot-agent-default")
	var e v1alpha1.GPUExporter
	w.get(&e, "", "default")
	w.patch(&e, `{"metadata":{"generation":2},"spec":{"interval":"5s","podLabels":{"a":"no label"}}}`)
	w.pass()
	if w.get(&after, ns, "gpupilot-agent-default"); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("the DaemonSet is refused, and the ConfigMap was changed: %v", after.Data)
	}
	if got := w.condition("ObjectsApplied"); got != "False InvalidSpec" {
		t.Errorf("ObjectsApplied is %s", got)
	}
	refuses = false
	w.pass()
	if w.get(&after, ns, "gpupilot-agent-default"); !strings.Contains(after.Data[configKey], "5000ms") {
		t.Errorf("the ConfigMap has %v", after.Data)
	}
	if got := w.condition("ObjectsApplied"); got != "True Applied" {
		t.Errorf("ObjectsApplied is %s", got)
	}
}

func TestKeeperAdoptsNothing(t *testing.T) {
	theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "gpupilot-agent-default"}, Data: map[string]string{"a": "b"}}
	// One of an earlier GPUExporter of this name.
	earlier := newExporter(v1alpha1.GPUExporterSpec{})
	earlier.UID = "before"
	old := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "gpupilot-agent-default", OwnerReferences: []metav1.OwnerReference{ownerReference(earlier)}}}
	w := newWorld(t, newExporter(v1alpha1.GPUExporterSpec{}), theirs, old)
	w.pass()
	w.pass()
	var m corev1.ConfigMap
	w.get(&m, ns, theirs.Name)
	if len(m.Data) != 1 || len(m.OwnerReferences) > 0 || len(m.Labels) > 0 {
		t.Errorf("the ConfigMap was touched: %+v", m)
	}
	var s corev1.Service
	w.get(&s, ns, old.Name)
	if s.OwnerReferences[0].UID != "before" || len(s.Labels) > 0 {
		t.Errorf("the Service was touched: %+v", s)
	}
	if got := w.condition("ObjectsApplied"); got != "False NameTaken" {
		t.Errorf("ObjectsApplied is %s", got)
	}
	told := slices.DeleteFunc(slices.Clone(w.events), func(e Event) bool { return e.Reason != "NameTaken" })
	if len(told) != 1 || told[0].Kind != "Warning" || told[0].About.Kind != "GPUExporter" {
		t.Errorf("events %+v, want one Warning", w.events)
	}
}

func TestKeeperKeepsTheLastGoodList(t *testing.T) {
	w := newWorld(t, newExporter(v1alpha1.GPUExporterSpec{Collectors: &v1alpha1.Collectors{CSV: "good"}}))
	f := func(spec, wantList, wantCondition string) {
		t.Helper()
		var e v1alpha1.GPUExporter
		w.get(&e, "", "default")
		w.patch(&e, spec)
		w.pass()
		var m corev1.ConfigMap
		w.get(&m, ns, "gpupilot-agent-default")
		if got := w.condition("CollectorsValid"); m.Data[collectorsKey] != wantList || got != wantCondition {
			t.Errorf("%s: list %q, condition %s; want %q, %s", spec, m.Data[collectorsKey], got, wantList, wantCondition)
		}
	}
	f(`{}`, "good", "True Valid")
	f(`{"spec":{"collectors":{"csv":"NOPE"}}}`, "good", "False InvalidCollectors")
	f(`{"spec":{"collectors":{"csv":null,"configMap":{"name":"mine"}}}}`, "good", "False CollectorsNotFound")
	mine := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "mine"}, Data: map[string]string{"metrics": "better"}}
	if err := w.client.Create(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	f(`{}`, "better", "True Valid")
	f(`{"spec":{"collectors":{"configMap":{"key":"other"}}}}`, "better", "False CollectorsNotFound")
	f(`{"spec":{"collectors":null,"profile":"4.9"}}`, "default of 4.9", "True Valid")

	// Without an earlier one, the profile's own list is used.
	w = newWorld(t, newExporter(v1alpha1.GPUExporterSpec{Collectors: &v1alpha1.Collectors{CSV: "NOPE"}}))
	f(`{}`, "default of 4.8", "False InvalidCollectors")
}

// The controller labels nodes that only their capacity tells of, and takes its labels
// back. Labels of others stay.
func TestKeeperLabelsNodes(t *testing.T) {
	w := newWorld(t, newExporter(v1alpha1.GPUExporterSpec{}),
		gpuNode("by-capacity", nil), gpuNode("by-label", map[string]string{"nvidia.com/gpu.present": "true"}),
		gpuNode("excluded", map[string]string{"gpupilot.dev/gpu": "false"}), gpuNode("by-hand", map[string]string{"gpupilot.dev/gpu": "true"}),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "cpu"}},
	)
	f := func(want map[string]string) {
		t.Helper()
		w.pass()
		var nodes corev1.NodeList
		if err := w.client.List(t.Context(), &nodes); err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes.Items {
			if got := n.Labels["gpupilot.dev/gpu"]; got != want[n.Name] {
				t.Errorf("%s has the label %q, want %q", n.Name, got, want[n.Name])
			}
		}
	}
	f(map[string]string{"by-capacity": "true", "excluded": "false", "by-hand": "true"})
	if err := w.client.Delete(t.Context(), newExporter(v1alpha1.GPUExporterSpec{})); err != nil {
		t.Fatal(err)
	}
	f(map[string]string{"excluded": "false", "by-hand": "true"})
}

func TestKeeperLabelsWhatTheProbeFinds(t *testing.T) {
	probe := func(node, message string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "probe-" + node, Labels: map[string]string{LabelName: probeName, LabelExporter: "default"}},
			Spec:       corev1.PodSpec{NodeName: node},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message}},
			}}},
		}
	}
	node := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	stranger := probe("n4", "gpus=8")
	stranger.Labels[LabelExporter] = "another"
	w := newWorld(t, newExporter(v1alpha1.GPUExporterSpec{Discovery: v1alpha1.DiscoveryProbe}), node("n1"), node("n2"), node("n3"), node("n4"),
		probe("n1", "gpus=8\n"), probe("n2", "gpus=0\n"), probe("n3", "something"), stranger)
	w.pass()
	for name, want := range map[string]string{"n1": "true", "n2": "false", "n3": "", "n4": ""} {
		var n corev1.Node
		if w.get(&n, "", name); n.Labels["gpupilot.dev/gpu"] != want {
			t.Errorf("%s has the label %q, want %q", name, n.Labels["gpupilot.dev/gpu"], want)
		}
	}
}

// The account exists if an agent asks the API server. One that is there is used as it is.
func TestKeeperMakesTheAccount(t *testing.T) {
	spec := v1alpha1.GPUExporterSpec{Kubernetes: &v1alpha1.KubernetesOptions{PodLabels: true}}
	w := newWorld(t, newExporter(spec))
	w.pass()
	w.pass()
	var a corev1.ServiceAccount
	if w.get(&a, ns, "gpupilot-agent"); len(a.OwnerReferences) != 1 || *a.AutomountServiceAccountToken {
		t.Errorf("account %+v", a)
	}
	w = newWorld(t, newExporter(spec), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "gpupilot-agent"}})
	w.pass()
	a = corev1.ServiceAccount{}
	if w.get(&a, ns, "gpupilot-agent"); len(a.OwnerReferences) != 0 || len(a.Labels) != 0 {
		t.Errorf("the account was touched: %+v", a)
	}
	w = newWorld(t, newExporter(v1alpha1.GPUExporterSpec{}))
	w.pass()
	if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "gpupilot-agent"}, &a); !apierrors.IsNotFound(err) {
		t.Errorf("there is an account that no agent needs: %v", err)
	}
}

func TestKeeperSaysThatNoNodeHasGPUs(t *testing.T) {
	w := newWorld(t, newExporter(v1alpha1.GPUExporterSpec{}))
	w.pass()
	if got := w.condition("Ready"); got != "False NoGPUNode" {
		t.Errorf("Ready is %s", got)
	}
	w.keeper.settings.Image = ""
	w.pass()
	if got := w.condition("ObjectsApplied"); got != "False InvalidSpec" {
		t.Errorf("without an image, ObjectsApplied is %s", got)
	}
}

// A node that has yet to get our label is found, and a probe that runs is no warning.
func TestKeeperFindsNodesAtOnce(t *testing.T) {
	warnings := func(w *world) (reasons []string) {
		for _, e := range w.events {
			if e.Kind == corev1.EventTypeWarning {
				reasons = append(reasons, e.Reason)
			}
		}
		return reasons
	}
	w := newWorld(t, newExporter(v1alpha1.GPUExporterSpec{}), gpuNode("by-capacity", nil))
	w.pass()
	if got := w.condition("NodesFound"); got != "True Found" || len(warnings(w)) > 0 {
		t.Errorf("after the first pass NodesFound is %s, warnings %v", got, warnings(w))
	}

	w = newWorld(t, newExporter(v1alpha1.GPUExporterSpec{Discovery: v1alpha1.DiscoveryProbe}), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	var ds appsv1.DaemonSet
	f := func(desired int32, age time.Duration, want string, wantWarnings ...string) {
		t.Helper()
		w.get(&ds, ns, "gpupilot-probe-default")
		ds.CreationTimestamp = metav1.NewTime(time.Now().Add(-age))
		ds.Generation = 1
		if err := w.client.Update(t.Context(), &ds); err != nil {
			t.Fatal(err)
		}
		ds.Status.ObservedGeneration, ds.Status.DesiredNumberScheduled = int64(min(desired, 1)), desired
		if err := w.client.Status().Update(t.Context(), &ds); err != nil {
			t.Fatal(err)
		}
		w.pass()
		if got := w.condition("NodesFound"); got != want || !slices.Equal(warnings(w), wantWarnings) {
			t.Errorf("%d nodes to probe for %v: NodesFound is %s, warnings %v; want %s, %v", desired, age, got, warnings(w), want, wantWarnings)
		}
	}
	w.pass()
	w.events = nil // the client in memory gives the probe no time of creation
	f(0, 0, "False Probing")
	f(1, time.Second, "False Probing")
	f(1, startGrace+time.Second, "False NoGPUNode", reasonNoNode)
	f(1, time.Second, "False Probing", reasonNoNode)
	probe := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "probe", Labels: map[string]string{LabelName: probeName, LabelExporter: "default"}},
		Spec:       corev1.PodSpec{NodeName: "n1"},
		Status:     corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: "gpus=0"}}}}},
	}
	if err := w.client.Create(t.Context(), probe); err != nil {
		t.Fatal(err)
	}
	f(1, time.Second, "False NoGPUNode", reasonNoNode, reasonNoNode)
}

// Agents are asked only if a GPUExporter shows the answers.
func TestKeeperAsksAgents(t *testing.T) {
	w := newWorld(t, newExporter(v1alpha1.GPUExporterSpec{}))
	count := 0
	answer := &Report{Error: "no driver"}
	w.keeper.deps.Agents = func() []Agent { return []Agent{{Pod: "a", Node: "n1"}} }
	w.keeper.deps.Ask = func(context.Context, url.URL) (*Report, error) {
		count++
		return answer, nil
	}
	start := time.Now()
	f := func(wantCount int, wantChanged bool, after time.Duration) {
		t.Helper()
		if changed := w.keeper.askAll(t.Context(), start.Add(after)); changed != wantChanged || count != wantCount {
			t.Errorf("after %v: changed %v, %d questions; want %v, %d", after, changed, count, wantChanged, wantCount)
		}
	}
	f(0, false, 0)
	w.pass()
	f(1, true, 0)
	f(2, false, askEvery) // ill ones in each round
	answer = &Report{}
	f(3, true, 2*askEvery)
	f(3, false, 3*askEvery)
	f(4, false, 2*askEvery+askWell)
	if err := w.client.Delete(t.Context(), newExporter(v1alpha1.GPUExporterSpec{})); err != nil {
		t.Fatal(err)
	}
	w.pass()
	f(4, false, time.Hour)
}

// Of two GPUExporters with an agent on one node, the newer one says so.
func TestKeeperReportsTwoAgentsOnANode(t *testing.T) {
	older, newer := newExporter(v1alpha1.GPUExporterSpec{}), newExporter(v1alpha1.GPUExporterSpec{})
	newer.Name, newer.UID = "another", "5678"
	older.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	newer.CreationTimestamp = metav1.NewTime(older.CreationTimestamp.Add(time.Minute))
	agent := func(exporter, node string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: exporter + "-" + node, Labels: map[string]string{LabelName: AgentName, LabelExporter: exporter}},
			Spec:       corev1.PodSpec{NodeName: node},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		}
	}
	there := map[string]string{"nvidia.com/gpu.present": "true"}
	w := newWorld(t, older, newer, gpuNode("n1", there), gpuNode("n2", there), gpuNode("n3", there),
		agent("default", "n1"), agent("another", "n1"), agent("default", "n2"), agent("another", "n3"), agent("deleted", "n3"))
	problems := func(name string) (out []string) {
		var e v1alpha1.GPUExporter
		w.get(&e, "", name)
		for _, p := range e.Status.Problems {
			out = append(out, p.Node+" "+p.Reason)
		}
		return out
	}
	w.pass() // makes the DaemonSets
	w.pass()
	if got := problems("another"); !slices.Equal(got, []string{"n1 SecondAgent"}) {
		t.Errorf("the newer one has the problems %v", got)
	}
	if got := problems("default"); len(got) > 0 {
		t.Errorf("the older one has the problems %v", got)
	}
	if !slices.ContainsFunc(w.events, func(e Event) bool {
		return e.About.Name == "another" && strings.Contains(e.Note, "the GPUExporter default has an agent")
	}) {
		t.Errorf("no Event names the older one: %v", w.events)
	}
	if err := w.client.Delete(t.Context(), agent("default", "n1")); err != nil {
		t.Fatal(err)
	}
	w.pass()
	if got := problems("another"); len(got) > 0 {
		t.Errorf("after the deletion of the older agent, the newer one has the problems %v", got)
	}
}
