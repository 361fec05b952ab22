// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

// pageServer answers GET /metrics at a pod's address, as a program in that pod would.
type pageServer struct{ *stack.Page }

func servePage(t *testing.T, ip string, port int, page func() string) *pageServer {
	t.Helper()
	p, err := stack.ServePage(ip, port, stack.Text(page))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return &pageServer{p}
}

// awaitScrapes waits until each page was asked for n times more.
func awaitScrapes(t *testing.T, n int64, pages ...*pageServer) {
	t.Helper()
	before := make([]int64, len(pages))
	for i, p := range pages {
		before[i] = p.Requests.Load()
	}
	stack.Eventually(t, func() error {
		for i, p := range pages {
			if is := p.Requests.Load() - before[i]; is < n {
				return fmt.Errorf("page %d was asked for %d of %d times", i, is, n)
			}
		}
		return nil
	})
}

// place creates a pod on a node, whatever the scheduler thinks, and returns it when it runs.
func place(t *testing.T, ns, name, node string, labels map[string]string) *corev1.Pod {
	t.Helper()
	_ = rig.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}) // it may be there
	on := &corev1.Node{}
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Name: node}, on); err != nil {
		t.Fatal(err)
	}
	grace, controller := int64(0), true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ns, Name: name, Labels: labels,
			// As a static pod has it: or the DaemonSet of the agents would take a pod with its labels for its own.
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: on.UID, Controller: &controller}},
		},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "exporter", Image: "exporter"}},
		},
	}
	stack.Eventually(t, func() error { return rig.Client.Create(t.Context(), pod) }) // the namespace's account is made after it
	t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), pod) })           // with its node, perhaps
	return running(t, client.ObjectKeyFromObject(pod))
}

func running(t *testing.T, key client.ObjectKey) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	stack.Eventually(t, func() error {
		err := rig.Client.Get(t.Context(), key, pod)
		if err == nil && (pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == "") {
			err = fmt.Errorf("pod %s is %s at %q", key, pod.Status.Phase, pod.Status.PodIP)
		}
		return err
	})
	return pod
}

// withoutAgent takes the agent from a node until the test ends.
func withoutAgent(t *testing.T, node string) {
	t.Helper()
	label := func(ctx context.Context, value string) error {
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, stack.NoAgentLabel, value)
		return rig.Client.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch(types.MergePatchType, []byte(patch)))
	}
	if err := label(t.Context(), `""`); err != nil {
		t.Fatal(err)
	}
	all := len(rig.Nodes.NodeNames())
	t.Cleanup(func() {
		ctx := context.Background()
		if err := label(ctx, "null"); err != nil {
			t.Error(err)
		}
		if err := rig.AwaitAgents(ctx, all); err != nil {
			t.Error(err)
		}
	})
	if err := rig.AwaitAgents(t.Context(), all-1); err != nil {
		t.Fatal(err)
	}
}

// deployOn is deploy with all replicas on the nodes named.
func deployOn(t *testing.T, name string, replicas int32, nodes ...string) {
	t.Helper()
	d := stack.Deployment(namespace, name, replicas, 0)
	d.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: nodes}},
		}}},
	}}
	rig.DeployThat(t, d)
}

// podsOf are the names of the workload's pods that are not being deleted, sorted.
func podsOf(ctx context.Context, name string) (out []string) {
	var pods corev1.PodList
	if err := rig.Client.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels{"app": name}); err != nil {
		return nil // asked again a second later
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.DeletionTimestamp == nil {
			out = append(out, p.Name)
		}
	}
	slices.Sort(out)
	return out
}

// claims is a page of utilisations, one GPU for each pod, as dcgm-exporter and our agent write it.
func claims(prefix, ns string, pods []string, utilization float64) string {
	var b strings.Builder
	for i, pod := range pods {
		fmt.Fprintf(&b, "DCGM_FI_DEV_GPU_UTIL{gpu=\"%d\",UUID=\"GPU-%s-%d\",device=\"nvidia%d\",modelName=\"NVIDIA H200\",container=\"server\",namespace=%q,pod=%q} %g\n",
			i, prefix, i, i, ns, pod, utilization)
	}
	return b.String()
}

// collected are the lines by which an agent says when it read its GPUs.
func collected(at time.Time) string {
	return fmt.Sprintf("gpupilot_collection_timestamp_seconds %.3f\ngpupilot_collection_interval_seconds 1\n", float64(at.UnixMilli())/1000)
}

// An agent's clock jumps an hour ahead, and back: nothing scales for it, and the load is followed all the while.
func TestClockSteps(t *testing.T) {
	const name = "clock"
	node := rig.Nodes.NodeNames()[3]
	withoutAgent(t, node)
	agent := place(t, stack.Namespace, "agent-of-another-time", node, map[string]string{"app.kubernetes.io/name": "gpupilot-agent"})
	var skew, utilization atomic.Int64
	utilization.Store(45)
	page := servePage(t, agent.Status.PodIP, 9400, func() string {
		at := time.Now().Add(time.Duration(skew.Load()))
		return claims("clock", namespace, podsOf(t.Context(), name), float64(utilization.Load())) + collected(at)
	})
	deployOn(t, name, 3, node)
	rig.Autoscale(t, name, nil)
	rig.Measured(t, name, 3)
	seen := rig.Record(t, name)
	for _, step := range []time.Duration{time.Hour, 0, -time.Hour, 0, time.Hour} {
		skew.Store(int64(step))
		awaitScrapes(t, 4, page)
		rig.Measured(t, name, 3)
		if v := seen.Values(); len(v) != 1 {
			t.Fatalf("replicas went %v when the clock went to %v", v, step)
		}
	}
	// Still an hour ahead: what is measured counts.
	utilization.Store(95)
	rig.WantReplicas(t, name, "5 or more", func(n int32) bool { return n >= 5 })
	// And back, under load: the new replicas stay.
	skew.Store(0)
	awaitScrapes(t, 4, page)
	if v := seen.Values(); !slices.IsSorted(v) {
		t.Errorf("replicas went %v", v)
	}
}

// A cache in front of an agent answers every other scrape with a page from when there was less load: the replicas stay.
func TestPagesFromThePast(t *testing.T) {
	const name = "past"
	node := rig.Nodes.NodeNames()[3]
	withoutAgent(t, node)
	agent := place(t, stack.Namespace, "agent-behind-a-cache", node, map[string]string{"app.kubernetes.io/name": "gpupilot-agent"})
	var old atomic.Pointer[string]
	var asked atomic.Int64
	page := servePage(t, agent.Status.PodIP, 9400, func() string {
		if p := old.Load(); p != nil && asked.Add(1)%2 == 0 {
			return *p
		}
		return claims(name, namespace, podsOf(t.Context(), name), 55) + collected(time.Now())
	})
	deployOn(t, name, 4, node)
	rig.Autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) {
		zero := int32(0)
		a.Spec.Behavior.ScaleDown.StabilizationWindowSeconds = &zero // one old value would count at once
	})
	rig.Measured(t, name, 4)
	seen := rig.Record(t, name)
	calm := claims(name, namespace, podsOf(t.Context(), name), 40) + collected(time.Now().Add(-time.Minute)) // 3 replicas are enough for it
	old.Store(&calm)
	awaitScrapes(t, 10, page)
	rig.Measured(t, name, 4)
	if v := seen.Values(); len(v) != 1 {
		t.Errorf("replicas went %v by a page from the past", v)
	}
}

// A pod whose page has new labels at each scrape, and an exporter in a namespace that is trusted which names new
// GPUs and pods each time: the honest workload beside them is decided on as ever.
func TestChurnedIdentities(t *testing.T) {
	const name, load, tenant = "churn", 1.6, "churning-tenant"
	nodes := rig.Nodes.NodeNames()
	withoutAgent(t, nodes[3])
	rig.Offer(name, load)
	deployOn(t, name, 3, nodes[:3]...)
	rig.Spread(t, name, 3)
	rig.Autoscale(t, name, nil)
	rig.Measured(t, name, 3)
	seen := rig.Record(t, name)

	var round atomic.Int64
	exporter := place(t, stack.Namespace, "churning-exporter", nodes[3], map[string]string{"app.kubernetes.io/name": "dcgm-exporter"})
	gpus := servePage(t, exporter.Status.PodIP, 9400, func() string {
		n := round.Add(1)
		pods := make([]string, 500)
		for i := range pods {
			pods[i] = fmt.Sprintf("%s-%d-%d", name, n, i)
		}
		return claims(fmt.Sprint("churn-", n), namespace, pods, 100)
	})
	page := churningWorkload(t, tenant, func(w *strings.Builder) {
		n := round.Add(1)
		for i := range 2000 {
			fmt.Fprintf(w, "queue_depth{request=\"%d-%d\",user=%q} 1\n", n, i, strings.Repeat("x", 100))
		}
	})
	awaitScrapes(t, 6, gpus, page)
	rig.Measured(t, name, 3)
	if v := seen.Values(); len(v) != 1 {
		t.Errorf("replicas went %v beside identities that churn", v)
	}
	rig.Offer(name, 3)
	rig.WantReplicas(t, name, "5 or more", func(n int32) bool { return n >= 5 })
	rises(t, seen.Values(), 3)
}

// churningWorkload is a tenant's workload, autoscaled by its pod's own metric queue_depth.
func churningWorkload(t *testing.T, tenant string, write func(*strings.Builder)) *pageServer {
	t.Helper()
	_ = rig.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenant}}) // it may be there
	d := stack.Deployment(tenant, "churner", 1, 0)
	delete(d.Spec.Template.Annotations, simnode.WorkloadAnnotation) // its page is ours
	stack.Eventually(t, func() error { return rig.Client.Create(t.Context(), d) })
	a := stack.Autoscaler("churner")
	a.Namespace, a.Spec.MaxReplicas = tenant, 2
	a.Spec.Signals = []v1alpha1.Signal{{
		Pods:   &v1alpha1.PodsSignal{Metric: "queue_depth"},
		Target: &v1alpha1.Target{Value: resource.MustParse("1000000")},
	}}
	if err := rig.Client.Create(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, o := range []client.Object{a, d} {
			if err := rig.Client.Delete(context.Background(), o); err != nil {
				t.Error(err)
			}
		}
	})
	var pods corev1.PodList
	stack.Eventually(t, func() error {
		err := rig.Client.List(t.Context(), &pods, client.InNamespace(tenant), client.MatchingLabels{"app": "churner"})
		if err == nil && len(pods.Items) != 1 {
			err = fmt.Errorf("%d pods of the tenant's", len(pods.Items))
		}
		return err
	})
	pod := running(t, client.ObjectKeyFromObject(&pods.Items[0]))
	return servePage(t, pod.Status.PodIP, simnode.MetricsPort, func() string {
		var b strings.Builder
		write(&b)
		return b.String()
	})
}
