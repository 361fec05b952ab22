// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package realnode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	custommetrics "k8s.io/metrics/pkg/apis/custom_metrics/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/internal/gpu/sim"
	"github.com/gpupilot/gpupilot/test/cluster"
	"github.com/gpupilot/gpupilot/test/journeys/walkthrough"
	"github.com/gpupilot/gpupilot/test/stack"
)

// TestWalkthroughNode runs the walkthrough k8s-gpu-hpa on a real node: the load of the GPUs comes from the processes in
// the pod's container, and kubectl exec starts the second one.
func TestWalkthroughNode(t *testing.T) { runNested(t, "TestWalkthroughOnNode") }

// processLoad is the utilisation of a GPU in percent that each process of its container causes.
const processLoad = 4

// beginner is the node and the cluster of a reader of the walkthrough.
type beginner struct {
	*stack.Stack
	t      *testing.T
	ctx    context.Context
	client *kubernetes.Clientset
}

// TestWalkthroughOnNode is the test stage, in the node's namespaces.
func TestWalkthroughOnNode(t *testing.T) {
	if CurrentStage() != StageTest {
		t.Skip("TestWalkthroughNode runs it on a node")
	}
	b := newBeginner(t)
	b.apply(walkthrough.PrometheusRuleCRD)
	b.apply(cudaTest)
	b.apply(walkthrough.RecordingRule)
	b.eventually("the metric is 4, with one process in the pod", func() error { return b.metric(4, 4) })
	b.apply(walkthrough.HPA)

	pod := b.pod()
	began := time.Now()
	b.exec(pod)
	// It is 8 until another replica, whose GPU is at 4, is a part of the average.
	b.eventually("the metric is above 5, with a second process in the pod", func() error { return b.metric(5, 8) })
	b.eventually("the HorizontalPodAutoscaler has added a replica", func() error {
		n, err := b.Replicas(b.ctx, "default", "cuda-test")
		if err == nil && n < 2 {
			err = fmt.Errorf("%d replicas", n)
		}
		return err
	})
	t.Logf("the replica was added %.1f s after kubectl exec", time.Since(began).Seconds())
	processes := b.processes(pod)
	if len(processes) != 2 {
		t.Fatalf("the pod has the processes %v, want two", processes)
	}
	must(t, syscall.Kill(processes[1], syscall.SIGTERM))
	b.eventually("the metric is 4, after the second process has ended", func() error { return b.metric(4, 4) })
}

// newBeginner starts the agent, the control plane with the controller, the node and its GPUs.
func newBeginner(t *testing.T) *beginner {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	parts, err := InheritParts()
	must(t, err)
	state := filepath.Join(runDir, "gpus.json")
	var uuids []string
	for i := range gpus {
		uuids = append(uuids, sim.UUID(nodeName, i))
	}
	must(t, followProcesses(state, uuids))
	agent, err := start(parts.Logs, "agent", parts.Agent, []string{
		"--backend", "sim", "--sim-state", state, "--node-name", nodeName, "-a", NodeAddress + ":9400", "-k", "--pod-resources-kubelet-socket", PodResourcesSocket,
	}, nil)
	must(t, err)
	t.Cleanup(func() { agent.stop(5 * time.Second) })

	b := &beginner{t: t, ctx: ctx}
	b.Stack, err = stack.Start(ctx, stack.Config{
		NoNodes: true, HPASyncPeriod: time.Second, ControllerArgs: []string{"--prometheus-rules"},
		ClusterArgs: map[string][]string{cluster.APIServer: {"--advertise-address=" + NodeAddress}}, // there is no default route
	})
	must(t, err)
	t.Cleanup(b.Close)
	t.Cleanup(func() { dumpLogs(t, parts.Logs, b.Cluster.Dir(), filepath.Dir(b.ControllerLog())) })
	b.client, err = kubernetes.NewForConfig(b.REST)
	must(t, err)
	kubeconfig, err := b.Cluster.KubeconfigFor("system:node:"+nodeName, "system:nodes")
	must(t, err)
	node, err := StartNode(ctx, NodeConfig{
		Name: nodeName, Kube: parts.Kube, Runtime: parts.Runtime, Payload: parts.Payload, Kubeconfig: kubeconfig, Cgroup: parts.Cgroup, Logs: parts.Logs,
	})
	must(t, err)
	t.Cleanup(node.Stop)
	b.background(cancel, NewPlugin(DevicePluginDir, uuids).Run)
	b.background(cancel, func(ctx context.Context) {
		for wait(ctx, 100*time.Millisecond) {
			if err := followProcesses(state, uuids); err != nil {
				t.Error(err)
			}
		}
	})
	b.eventually("the node offers its GPUs", func() error {
		n, err := b.client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
		if offered := n.Status.Allocatable[GPUResource]; err == nil && offered.Value() != gpus {
			err = fmt.Errorf("it offers %s", offered.String())
		}
		return errors.Join(err, node.Err())
	})
	b.apply(agentPod)
	return b
}

// background runs f until the test ends, which waits for it.
func (b *beginner) background(cancel func(), f func(context.Context)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(b.ctx)
	}()
	b.t.Cleanup(func() {
		cancel()
		<-done
	})
}

// followProcesses writes the state of the GPUs: each process of a container with a GPU causes load.
func followProcesses(file string, uuids []string) error {
	running, err := RunningContainers()
	if err != nil {
		return err
	}
	state := sim.State{GPUs: make([]sim.GPUState, len(uuids))}
	for i, uuid := range uuids {
		load := 0.0
		for _, c := range running {
			if slices.Contains(c.GPUs, uuid) {
				load += processLoad
			}
		}
		state.GPUs[i] = sim.Busy(load, 0)
	}
	return sim.WriteState(file, state)
}

// The pods are on the node's network, because there is no other. The agent runs beside its pod: its program is not on the
// node's only image.
const (
	agentPod = `
apiVersion: v1
kind: Pod
metadata: {name: gpupilot-agent, namespace: gpupilot-system, labels: {app.kubernetes.io/name: gpupilot-agent}}
spec:
  hostNetwork: true
  nodeName: ` + nodeName + `
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: 1
  containers:
  - {name: agent, image: "` + PayloadImage + `", imagePullPolicy: Never, ports: [{name: metrics, containerPort: 9400}]}
`
	cudaTest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: cuda-test, namespace: default, labels: {app: cuda-test}}
spec:
  selector: {matchLabels: {app: cuda-test}}
  template:
    metadata: {labels: {app: cuda-test}}
    spec:
      hostNetwork: true
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: 1
      containers:
      - name: cuda-test-main
        image: ` + PayloadImage + `
        imagePullPolicy: Never
        resources: {limits: {nvidia.com/gpu: 1}}
`
)

// apply is kubectl apply. It retries, because the accounts of a new namespace appear after a moment.
func (b *beginner) apply(manifest string) {
	b.t.Helper()
	b.eventually("applied", func() error { return b.Apply(b.ctx, []byte(manifest)) })
}

// metric returns nil if the walkthrough's metric is within these limits.
func (b *beginner) metric(low, high float64) error {
	body, err := b.client.Discovery().RESTClient().Get().AbsPath(walkthrough.Metric).DoRaw(b.ctx)
	if err != nil {
		return err
	}
	var list custommetrics.MetricValueList
	if err := json.Unmarshal(body, &list); err != nil {
		return err
	}
	if len(list.Items) != 1 {
		return fmt.Errorf("%d values: %s", len(list.Items), body)
	}
	if v := list.Items[0].Value.AsApproximateFloat64(); v < low || v > high {
		return fmt.Errorf("it is %v", v)
	}
	return nil
}

// pod is the only pod of the Deployment.
func (b *beginner) pod() *corev1.Pod {
	b.t.Helper()
	var pods corev1.PodList
	must(b.t, b.Client.List(b.ctx, &pods, client.InNamespace("default"), client.MatchingLabels{"app": "cuda-test"}))
	if len(pods.Items) != 1 {
		b.t.Fatalf("%d pods, want one", len(pods.Items))
	}
	return &pods.Items[0]
}

// exec is kubectl exec POD -- /payload. The process runs on when the test closes the connection.
func (b *beginner) exec(pod *corev1.Pod) {
	b.t.Helper()
	c, err := rest.TLSConfigFor(b.REST)
	must(b.t, err)
	u := b.client.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("exec").URL()
	u.Scheme = "wss"
	u.RawQuery = url.Values{"container": {"cuda-test-main"}, "command": {"/payload"}, "stdout": {"true"}}.Encode()
	config, err := websocket.NewConfig(u.String(), b.Cluster.URL())
	must(b.t, err)
	config.TlsConfig, config.Protocol = c, []string{"v4.channel.k8s.io"}
	conn, err := config.DialContext(b.ctx)
	must(b.t, err)
	b.t.Cleanup(func() { _ = conn.Close() })
	b.t.Logf("kubectl exec %s -- /payload", pod.Name)
}

// processes are the processes of the pod with its GPU, the oldest one first.
func (b *beginner) processes(pod *corev1.Pod) []int {
	b.t.Helper()
	running, err := RunningContainers()
	must(b.t, err)
	pids := map[int]bool{}
	for _, c := range running {
		if c.PodUID == string(pod.UID) {
			pids[c.PID] = true
		}
	}
	return slices.Sorted(maps.Keys(pids))
}

func (b *beginner) eventually(what string, f func() error) {
	b.t.Helper()
	if err := stack.Await(b.ctx, stack.Patience, f); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
	b.t.Log(what)
}
