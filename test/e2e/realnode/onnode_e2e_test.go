// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package realnode

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpupilot/gpupilot/test/cluster"
	"github.com/gpupilot/gpupilot/test/stack"
)

const (
	nodeName = "real-1"
	gpus     = 8
	agentURL = "http://127.0.0.1:9400/metrics"

	// outage is an absence of the kubelet that no agent can overlook.
	outage = 3 * time.Second
)

// world is the node and what the test knows about it.
type world struct {
	t       *testing.T
	ctx     context.Context
	began   time.Time
	node    *Node
	plugin  *Plugin
	watch   *Watch
	client  *kubernetes.Clientset
	devices map[string][]string // by "pod/container": what each container was given, deleted ones included
	stopped time.Time           // when the kubelet was stopped last
}

// TestOnNode is the test stage, in the node's namespaces: pods come and go and the kubelet restarts, and at every moment
// the agent names no wrong owner and loses no GPU.
func TestOnNode(t *testing.T) {
	if CurrentStage() != StageTest {
		t.Skip("TestRealNode runs it on a node")
	}
	w := newWorld(t)

	w.awaitNode(time.Time{})
	w.createPod("one", 1)
	w.createPod("two", 2)
	w.createPod("three", 1)
	w.awaitOwners("one/c0", "two/c0", "three/c0")
	w.checkPlaces("one/c0", "two/c0", "three/c0")

	w.deletePod("two")
	w.awaitOwners("one/c0", "three/c0")
	w.createPod("done", 1, 2)
	w.awaitOwners("one/c0", "three/c0", "done/c0", "done/c1")
	w.checkPlaces("done/c0", "done/c1")
	w.endPod("done")
	w.awaitOwners("one/c0", "three/c0")
	w.checkSteady("one/c0", "three/c0")

	w.restartKubelet(0)
	w.awaitOwners("one/c0", "three/c0")
	w.logGaps("one/c0", "three/c0") // that it is over between two of the agent's questions may take labels away until it is noticed

	w.createPod("late", 2, 1)
	w.awaitOwners("one/c0", "three/c0", "late/c0", "late/c1")

	w.restartKubelet(outage)
	w.awaitOwners("one/c0", "three/c0", "late/c0", "late/c1")
	if gap := w.logGaps("one/c0", "three/c0", "late/c0", "late/c1"); gap > 0 {
		t.Errorf("the kubelet's restart took labels away for %v", gap)
	}

	w.checkHistory()
}

// newWorld starts the agent, with no kubelet there yet, the control plane, the device plugin and the node.
func newWorld(t *testing.T) *world {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &world{t: t, ctx: ctx, began: time.Now(), devices: map[string][]string{}}
	parts, err := InheritParts()
	must(t, err)
	t.Cleanup(func() { dumpLogs(t, parts.Logs, filepath.Join(runDir, "cluster")) })

	agent, err := start(parts.Logs, "agent", parts.Agent, agentArgs, nil)
	must(t, err)
	t.Cleanup(func() { agent.stop(5 * time.Second) })
	w.watch = NewWatch(agentURL)
	var uuids []string
	w.eventually("the agent serves", func() error {
		owners, err := ScrapeOwners(ctx, agentURL)
		uuids = slices.Sorted(maps.Keys(owners))
		return errors.Join(err, agent.ended())
	})
	if len(uuids) != gpus {
		t.Fatalf("the agent has %d GPUs, the test wants %d: %q", len(uuids), gpus, uuids)
	}
	w.log("the agent serves %d GPUs", len(uuids))
	w.background(cancel, w.watch.Run)

	control, err := cluster.Start(ctx, cluster.Config{
		Binary: parts.Kube, Dir: filepath.Join(runDir, "cluster"), BindAddress: NodeAddress,
	})
	must(t, err)
	t.Cleanup(control.Stop)
	w.client = newClient(t, control)
	w.log("the control plane is ready")

	kubeconfig, err := control.KubeconfigFor("system:node:"+nodeName, "system:nodes")
	must(t, err)
	w.node, err = StartNode(ctx, NodeConfig{
		Name: nodeName, Kube: parts.Kube, Runtime: parts.Runtime, Payload: parts.Payload,
		Kubeconfig: kubeconfig, Cgroup: parts.Cgroup, Logs: parts.Logs,
	})
	must(t, err)
	t.Cleanup(w.node.Stop)
	w.log("%s; the kubelet starts", parts.Runtime.Version)
	w.plugin = NewPlugin(DevicePluginDir, uuids)
	w.background(cancel, w.plugin.Run)
	return w
}

// agentArgs are the agent's flags: those of dcgm-exporter that a DaemonSet sets, at their defaults otherwise.
var agentArgs = []string{
	"--backend", "sim", "-a", "127.0.0.1:9400", "-k", "--pod-resources-kubelet-socket", PodResourcesSocket,
}

func newClient(t *testing.T, control *cluster.Cluster) *kubernetes.Clientset {
	t.Helper()
	kubeconfig, err := control.KubeconfigFor("kubernetes-admin", "system:masters")
	must(t, err)
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	must(t, err)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	return client
}

// background runs f until the test ends, which waits for it.
func (w *world) background(cancel func(), f func(context.Context)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(w.ctx)
	}()
	w.t.Cleanup(func() {
		cancel()
		<-done
	})
}

// awaitNode waits until the node is Ready and offers all GPUs by a report that is younger than since.
func (w *world) awaitNode(since time.Time) {
	w.t.Helper()
	w.eventually("the node is ready with its GPUs", func() error {
		if err := w.node.Err(); err != nil {
			w.t.Fatal(err)
		}
		node, err := w.client.CoreV1().Nodes().Get(w.ctx, nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if n := node.Status.Allocatable[GPUResource]; n.Value() != gpus {
			return fmt.Errorf("the node offers %s GPUs", n.String())
		}
		for _, c := range node.Status.Conditions {
			// The API keeps whole seconds.
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && c.LastHeartbeatTime.After(since) {
				return nil
			}
		}
		return fmt.Errorf("the node's conditions: %v", node.Status.Conditions)
	})
	w.log("the node is ready with %d GPUs", gpus)
}

// createPod creates a pod with a container for each count of GPUs, waits until it runs and takes down what its
// containers were given, by what the processes themselves have.
func (w *world) createPod(name string, counts ...int) {
	w.t.Helper()
	pod := podWith(name, counts)
	pod, err := w.client.CoreV1().Pods("default").Create(w.ctx, pod, metav1.CreateOptions{})
	must(w.t, err)
	var given []Container
	w.eventually("pod "+name+" runs", func() error {
		pod, err = w.client.CoreV1().Pods("default").Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod.Status.Phase == corev1.PodFailed {
			w.t.Fatalf("pod %s failed: %s %s", name, pod.Status.Reason, pod.Status.Message)
		}
		if pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("it is %s: %v", pod.Status.Phase, pod.Status.ContainerStatuses)
		}
		// A pod is Running as soon as one of its containers runs.
		if given = w.givenTo(string(pod.UID)); len(given) != len(counts) {
			return fmt.Errorf("%d containers with GPUs run, want %d", len(given), len(counts))
		}
		return nil
	})
	// Which process is which container: they differ in how many GPUs they asked for.
	for i, count := range counts {
		at := slices.IndexFunc(given, func(c Container) bool { return len(c.GPUs) == count })
		if at < 0 {
			w.t.Fatalf("no container of pod %s was given %d GPUs: %v", name, count, given)
		}
		w.devices[fmt.Sprintf("%s/c%d", name, i)] = given[at].GPUs
	}
	w.log("pod %s runs: %v", name, given)
}

// podWith is a pod with a container for each count of GPUs.
func podWith(name string, counts []int) *corev1.Pod {
	no, second := false, int64(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{
			HostNetwork:                   true, // there is no other
			AutomountServiceAccountToken:  &no,
			EnableServiceLinks:            &no,
			RestartPolicy:                 corev1.RestartPolicyNever, // who ends has ended
			TerminationGracePeriodSeconds: &second,
		},
	}
	for i, count := range counts {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name: fmt.Sprintf("c%d", i), Image: PayloadImage, ImagePullPolicy: corev1.PullNever,
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{GPUResource: *resource.NewQuantity(int64(count), resource.DecimalSI)}},
		})
	}
	return pod
}

// givenTo lists the running containers with GPUs of a pod.
func (w *world) givenTo(podUID string) []Container {
	w.t.Helper()
	containers, err := RunningContainers()
	must(w.t, err)
	return slices.DeleteFunc(containers, func(c Container) bool { return c.PodUID != podUID })
}

func (w *world) deletePod(name string) {
	w.t.Helper()
	must(w.t, w.client.CoreV1().Pods("default").Delete(w.ctx, name, metav1.DeleteOptions{}))
	w.log("pod %s is deleted", name)
}

// restartKubelet stops it, starts it again some time later and waits until it knows the plugin and has said so.
func (w *world) restartKubelet(away time.Duration) {
	w.t.Helper()
	before, err := RunningContainers()
	must(w.t, err)
	known := w.plugin.Registrations()
	w.stopped = time.Now()
	w.node.StopKubelet()
	w.log("the kubelet is stopped, for %s", away)
	wait(w.ctx, away)
	must(w.t, w.node.StartKubelet())
	w.log("the kubelet is started again")
	w.eventually("the plugin registers again", func() error {
		if w.plugin.Registrations() == known {
			return errors.Join(errors.New("it has not"), w.node.Err())
		}
		return nil
	})
	w.awaitNode(time.Now())
	after, err := RunningContainers()
	must(w.t, err)
	if diff := cmp.Diff(before, after); diff != "" {
		w.t.Errorf("the restart changed containers (-before +after):\n%s", diff)
	}
}

// awaitOwners waits until the agent's labels say that exactly these containers, "pod/container", have the GPUs that they
// were given, and checks that the kubelet says the same.
func (w *world) awaitOwners(containers ...string) {
	w.t.Helper()
	want := w.owners(containers)
	began := time.Now()
	w.eventually("the kubelet's allocations", func() error {
		have, err := AllocatedOwners(w.ctx, PodResourcesSocket)
		if diff := cmp.Diff(want, have); err == nil && diff != "" {
			return fmt.Errorf("the kubelet differs from the containers (-containers +kubelet):\n%s", diff)
		}
		return err
	})
	agreed := time.Now()
	w.eventually("the agent's labels", func() error {
		if diff := cmp.Diff(want, w.watch.Owners().Taken()); diff != "" {
			return fmt.Errorf("the agent differs from the containers (-containers +agent):\n%s", diff)
		}
		return nil
	})
	w.log("kubelet (after %.1f s) and agent (%.1f s later) agree on %d GPUs", agreed.Sub(began).Seconds(), time.Since(agreed).Seconds(), len(want))
}

// owners are the GPUs of these containers.
func (w *world) owners(containers []string) Owners {
	owners := Owners{}
	for _, name := range containers {
		pod, container := filepath.Split(name)
		for _, id := range w.devices[name] {
			owners[id] = Owner{Namespace: "default", Pod: filepath.Clean(pod), Container: container}
		}
	}
	return owners
}

// checkSteady checks that the labels of these containers have not wavered since they appeared.
func (w *world) checkSteady(containers ...string) {
	w.t.Helper()
	changes := w.watch.Changes()
	for id, owner := range w.owners(containers) {
		past := changes[id]
		if len(past) != 2 || past[0].Owner != (Owner{}) || past[1].Owner != owner {
			w.t.Errorf("GPU %s of %v had other owners: %v", id, owner, past)
		}
	}
}

// logGaps returns for how long the labels of these containers have been gone since the kubelet was stopped. A kubelet
// that is away gives no device to anybody else. One that has just started answers the pod-resources List, without an
// error, with no pods at all until it has heard from the API server: for about a second here.
func (w *world) logGaps(containers ...string) (longest time.Duration) {
	w.t.Helper()
	changes := w.watch.Changes()
	for id := range w.owners(containers) {
		var gone time.Time
		for _, change := range changes[id] {
			if change.Owner == (Owner{}) {
				gone = change.At
			} else if gone.After(w.stopped) {
				longest = max(longest, change.At.Sub(gone))
			}
		}
	}
	w.log("labels were gone for at most %.1f s", longest.Seconds())
	return longest
}

// checkHistory checks that no scrape failed, none lacked a GPU, and that none named an owner that never had the GPU.
func (w *world) checkHistory() {
	w.t.Helper()
	for _, line := range w.watch.Errors() {
		w.t.Error(line)
	}
	had := map[string][]Owner{}
	for name := range w.devices {
		for id, owner := range w.owners([]string{name}) {
			had[id] = append(had[id], owner)
		}
	}
	for id, past := range w.watch.Changes() {
		for _, change := range past {
			if change.Owner != (Owner{}) && !slices.Contains(had[id], change.Owner) {
				w.t.Errorf("GPU %s was said to belong to %v, but belonged to %v only", id, change.Owner, had[id])
			}
		}
		w.log("GPU %s: %s", id, w.describe(past))
	}
	w.log("%d scrapes", w.watch.Polls())
}

// describe is the history of a GPU in words.
func (w *world) describe(past []Change) string {
	text := ""
	for _, change := range past {
		pod := change.Owner.Pod
		if pod == "" {
			pod = "nobody"
		}
		text += fmt.Sprintf("%s from %.1f s; ", pod, change.At.Sub(w.began).Seconds())
	}
	return text
}

func (w *world) log(format string, args ...any) {
	w.t.Helper()
	w.t.Logf("%5.1f s  %s", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
}

// eventually polls until f is nil.
func (w *world) eventually(what string, f func() error) {
	w.t.Helper()
	if err := stack.Await(w.ctx, stack.Patience, f); err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
}

// dumpLogs prints the ends of all programs' logs when the test has failed.
func dumpLogs(t *testing.T, dirs ...string) {
	t.Helper()
	if !t.Failed() {
		return
	}
	for _, dir := range dirs {
		logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
		must(t, err)
		for _, log := range logs {
			t.Logf("%s ends:\n%s", filepath.Base(log), tail(log))
		}
	}
}
