// SPDX-License-Identifier: Apache-2.0

package simnode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/sim"
)

// TestMain lets the test binary be a pod's process: it says where it runs and
// answers /readyz until it is told to end.
func TestMain(m *testing.M) {
	if addr := os.Getenv("SIMNODE_TEST_LISTEN"); addr != "" {
		fmt.Println(strings.Join(os.Args[1:], " "))
		err := http.ListenAndServe(net.JoinHostPort(os.Getenv("POD_IP"), addr), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, os.Getpid())
		}))
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

const patience = 5 * time.Minute

// eventually calls f until it returns nil.
func eventually(t *testing.T, ask func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v still: %v", patience, err)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func pod(name, node string, gpus int64, annotations map[string]string) *corev1.Pod {
	limits := corev1.ResourceList{}
	if gpus > 0 {
		limits[GPUResource] = *resource.NewQuantity(gpus, resource.DecimalSI)
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Annotations: annotations},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{
			{Name: "main", Image: "sim", Resources: corev1.ResourceRequirements{Limits: limits}},
		}},
	}
}

// rig is simulated nodes on an API server that is a map.
type rig struct {
	*Nodes
	t      *testing.T
	client *fake.Clientset
	serial int
}

func start(t *testing.T, cfg Config) *rig {
	t.Helper()
	// A socket's path is at most 107 bytes: t.TempDir's can be longer.
	dir, err := os.MkdirTemp("", "simnode")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &rig{t: t, client: fake.NewClientset()}
	cfg.Client, cfg.Dir = r.client, dir
	if r.Nodes, err = Start(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) create(p *corev1.Pod) {
	r.t.Helper()
	r.serial++
	p.UID = types.UID("uid-" + strconv.Itoa(r.serial)) // as the API server would
	if _, err := r.client.CoreV1().Pods("default").Create(r.t.Context(), p, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) get(name string) *corev1.Pod {
	r.t.Helper()
	p, err := r.client.CoreV1().Pods("default").Get(r.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (r *rig) awaitReady(name string, want bool) *corev1.Pod {
	r.t.Helper()
	eventually(r.t, func() error {
		if p := r.get(name); ready(p) != want || p.Status.PodIP == "" {
			return fmt.Errorf("%s: ready %v, status %+v", name, ready(p), p.Status)
		}
		return nil
	})
	return r.get(name)
}

// resources reads what pods hold from the node's pod-resources socket.
func (r *rig) resources(node string) []*podresources.PodResources {
	r.t.Helper()
	conn, err := grpc.NewClient("unix://"+r.Socket(node), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	resp, err := podresources.NewPodResourcesListerClient(conn).List(r.t.Context(), &podresources.ListPodResourcesRequest{})
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.PodResources
}

// allocations reads the device allocations.
func (r *rig) allocations(node string) map[string][]string {
	r.t.Helper()
	out := map[string][]string{}
	for _, p := range r.resources(node) {
		out[p.Name] = nil
		for _, c := range p.Containers {
			for _, d := range c.Devices {
				if len(d.DeviceIds) != 1 || d.ResourceName != GPUResource {
					r.t.Errorf("device entry %v", d)
				}
				out[p.Name] = append(out[p.Name], d.DeviceIds...)
			}
		}
	}
	return out
}

func TestNodesRegister(t *testing.T) {
	r := start(t, Config{Nodes: 2})
	nodes, err := r.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 2 {
		t.Fatalf("%d nodes, %v", len(nodes.Items), err)
	}
	for _, n := range nodes.Items {
		if q := n.Status.Allocatable[GPUResource]; q.Value() != 8 {
			t.Errorf("node %s has %v GPUs", n.Name, q.Value())
		}
		if _, err := r.client.CoordinationV1().Leases(leaseNamespace).Get(t.Context(), n.Name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
}

func TestPodLife(t *testing.T) {
	r := start(t, Config{Nodes: 1, GPUs: 4})
	node := r.NodeNames()[0]
	r.create(pod("a", node, 2, map[string]string{StartupAnnotation: "300ms"}))
	eventually(t, func() error {
		if got := r.allocations(node)["a"]; len(got) != 2 || got[0] != sim.UUID(node, 0) || got[1] != sim.UUID(node, 1) {
			return fmt.Errorf("a holds %v", got)
		}
		return nil
	})
	p := r.awaitReady("a", true)
	if p.Status.Phase != corev1.PodRunning || !strings.HasPrefix(p.Status.PodIP, "127.") {
		t.Errorf("a is %s at %s", p.Status.Phase, p.Status.PodIP)
	}
	r.create(pod("b", node, 3, nil)) // two are left
	eventually(t, func() error {
		if p := r.get("b"); p.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("b is %s", p.Status.Phase)
		}
		return nil
	})
	if got := r.allocations(node); len(got) != 1 {
		t.Errorf("allocations %v", got)
	}
	if err := r.client.CoreV1().Pods("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if got := r.allocations(node); len(got) != 0 {
			return fmt.Errorf("allocations %v", got)
		}
		return nil
	})
}

// A pod holds the GPUs that the scheduler has allocated to its claim. The pod-resources API lists them by the claim.
func TestClaims(t *testing.T) {
	r := start(t, Config{Nodes: 1, GPUs: 4})
	node := r.NodeNames()[0]
	if err := r.PublishSlices(t.Context()); err != nil {
		t.Fatal(err)
	}
	slice, err := r.client.ResourceV1().ResourceSlices().Get(t.Context(), node+"-gpus", metav1.GetOptions{})
	if err != nil || len(slice.Spec.Devices) != 4 || *slice.Spec.Devices[3].Attributes["uuid"].StringValue != sim.UUID(node, 3) {
		t.Fatalf("%v %+v", err, slice)
	}
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a-gpus"}}
	claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
		{Request: "gpus", Driver: ClaimDriver, Pool: node, Device: "gpu-1"}, {Request: "gpus", Driver: ClaimDriver, Pool: node, Device: "gpu-3"},
	}}}
	if _, err := r.client.ResourceV1().ResourceClaims("default").Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := pod("a", node, 1, nil)
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimName: &claim.Name}}
	p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpus"}}
	r.create(p)
	r.awaitReady("a", true)
	if got := r.allocations(node)["a"]; len(got) != 1 || got[0] != sim.UUID(node, 0) {
		t.Errorf("of the device plugin a holds %v", got)
	}
	if got := r.claimed(node); fmt.Sprint(got) != "[default/a-gpus gpu.nvidia.com "+node+" gpu-1 default/a-gpus gpu.nvidia.com "+node+" gpu-3]" {
		t.Errorf("by its claim a holds %q", got)
	}
	lost := pod("b", node, 0, nil)
	lost.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimName: new("nowhere")}}
	r.create(lost)
	eventually(t, func() error {
		if p := r.get("b"); p.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("b is %s", p.Status.Phase)
		}
		return nil
	})
}

// claimed reads the devices of claims from the node's pod-resources socket.
func (r *rig) claimed(node string) (out []string) {
	r.t.Helper()
	for _, p := range r.resources(node) {
		for _, c := range p.Containers {
			for _, d := range c.DynamicResources {
				for _, x := range d.ClaimResources {
					out = append(out, d.ClaimNamespace+"/"+d.ClaimName, x.DriverName, x.PoolName, x.DeviceName)
				}
			}
		}
	}
	return out
}

func TestWorkloadDrivesGPUsAndMetrics(t *testing.T) {
	r := start(t, Config{Nodes: 1, GPUs: 2, Workloads: []Workload{{
		Name: "chat", Model: Model{Capacity: 10, Concurrency: 32}, Offered: func(time.Time) float64 { return 20 },
	}}})
	node := r.NodeNames()[0]
	r.create(pod("a", node, 1, map[string]string{WorkloadAnnotation: "chat"}))
	p := r.awaitReady("a", true)
	reader, err := sim.New(sim.Config{GPUs: 2, Node: node, StateFile: r.StateFile(node)})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	util := func(i int) float64 {
		var v gpu.Values
		if err := reader.Read(sim.UUID(node, i), gpu.SetOf(gpu.GPUUtil), &v); err != nil {
			t.Fatal(err)
		}
		u, _ := v.Get(gpu.GPUUtil)
		return u
	}
	eventually(t, func() error {
		if busy, idle := util(0), util(1); busy < 90 || idle != 0 {
			return fmt.Errorf("utilisation %v and %v", busy, idle)
		}
		return nil
	})
	eventually(t, func() error {
		resp, err := http.Get(fmt.Sprintf("http://%s:%d/metrics", p.Status.PodIP, MetricsPort))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		for _, want := range []string{`vllm:num_requests_waiting{engine="0",model_name="chat"} `, `vllm:num_requests_running{engine="0",model_name="chat"} 32`} {
			if err != nil || !strings.Contains(string(b), want) {
				return fmt.Errorf("metrics %q, %v; want %q", b, err, want)
			}
		}
		return nil
	})
	eventually(t, func() error {
		if s, ok := r.Status("chat"); !ok || s.Serving != 1 || s.Load.Utilization != 100 || s.Load.Queue <= 0 {
			return fmt.Errorf("status %+v, %v", s, ok)
		}
		return nil
	})
}

func TestExecRunsDiesAndRestarts(t *testing.T) {
	const port = 18123
	t.Setenv("SIMNODE_TEST_LISTEN", strconv.Itoa(port))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	argv, err := json.Marshal([]string{self, "$(NODE_NAME)", "$(SIM_STATE)"})
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, Config{Nodes: 1, RestartDelay: 300 * time.Millisecond})
	node := r.NodeNames()[0]
	p := pod("agent", node, 0, map[string]string{ExecAnnotation: string(argv)})
	p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/readyz"}}}
	p.Spec.Containers[0].ReadinessProbe.HTTPGet.Port.IntVal = port
	r.create(p)
	pid := func(p *corev1.Pod) int {
		t.Helper()
		resp, err := http.Get(fmt.Sprintf("http://%s:%d/", p.Status.PodIP, port))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		n, err := strconv.Atoi(string(b))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	first := pid(r.awaitReady("agent", true))
	if err := r.Kill("default", "agent"); err != nil {
		t.Fatal(err)
	}
	r.awaitReady("agent", false)
	p = r.awaitReady("agent", true)
	second := pid(p)
	if second == first || p.Status.ContainerStatuses[0].RestartCount != 1 {
		t.Errorf("pid %d, was %d; %+v", second, first, p.Status.ContainerStatuses[0])
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(second, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("after Close the process is there: %v", err)
	}
}

func TestTwoClustersDoNotMeet(t *testing.T) {
	a, err := newAddresses()
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	seen := map[string]bool{}
	for range 1000 {
		ip := a.pod()
		if seen[ip.String()] || !ip.IsLoopback() {
			t.Fatalf("address %s", ip)
		}
		seen[ip.String()] = true
	}
	b, err := newAddresses()
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	if a.x == b.x {
		t.Errorf("both have 127.%d", a.x)
	}
}

func TestStartFailsWhole(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir, err := os.MkdirTemp("", "simnode")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if n, err := Start(ctx, Config{Client: fake.NewClientset(), Dir: dir}); err == nil {
		t.Error("a start under a context that has ended succeeded")
		_ = n.Close()
	}
}
