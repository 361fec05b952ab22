// SPDX-License-Identifier: Apache-2.0

package podres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// kubelet answers List with a fixed answer.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	answer *podresources.ListPodResourcesResponse
	conns  atomic.Int32
	offer  *podresources.AllocatableResourcesResponse // nil: as a kubelet before 1.23
}

func (k *kubelet) GetAllocatableResources(ctx context.Context, q *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	if k.offer == nil {
		return k.UnimplementedPodResourcesListerServer.GetAllocatableResources(ctx, q)
	}
	return k.offer, nil
}

func (k *kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return k.answer, nil
}

// counting counts accepted connections.
type counting struct {
	net.Listener
	n *atomic.Int32
}

func (l counting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.n.Add(1)
	}
	return c, err
}

// serve listens on socket until stop is called.
func (k *kubelet) serve(t testing.TB, socket string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(s, k)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(counting{l, &k.conns})
	}()
	stop = func() { s.Stop(); <-done }
	t.Cleanup(stop)
	return stop
}

func devices(resource string, ids ...string) *podresources.ContainerDevices {
	return &podresources.ContainerDevices{ResourceName: resource, DeviceIds: ids}
}

// What device plugins offer are the GPUs of resources that count, with each share.
func TestAllocatable(t *testing.T) {
	f := func(offer *podresources.AllocatableResourcesResponse, want ...gpu.DeviceID) {
		t.Helper()
		socket := filepath.Join(t.TempDir(), "kubelet.sock")
		k := &kubelet{answer: &podresources.ListPodResourcesResponse{}, offer: offer}
		k.serve(t, socket)
		c, err := New(socket, "example.com/a100")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		for range 2 { // beside the other call, over one connection
			if _, err := c.Allocations(t.Context()); err != nil {
				t.Fatal(err)
			}
			got, err := c.Allocatable(t.Context())
			if (err != nil) != (offer == nil) {
				t.Fatalf("error %v", err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		}
	}
	f(nil)
	f(&podresources.AllocatableResourcesResponse{})
	f(&podresources.AllocatableResourcesResponse{Devices: []*podresources.ContainerDevices{
		devices("nvidia.com/gpu", "GPU-a", "GPU-b::1"), devices("example.com/a100", "nvidia3"),
		devices("example.com/nic", "GPU-c"), devices("nvidia.com/gpumem", "GPU-d"), devices("nvidia.com/GA102GL_A10", "0000:1b:00.0"),
	}}, gpu.DeviceID{UUID: "GPU-a", Minor: -1, GPUInstance: -1}, gpu.DeviceID{UUID: "GPU-b", Minor: -1, GPUInstance: -1, Replica: "1"},
		gpu.DeviceID{Minor: 3, GPUInstance: -1})
}

func TestAllocations(t *testing.T) {
	k := &kubelet{answer: &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{
		{Name: "train-0", Namespace: "ml", Containers: []*podresources.ContainerResources{
			{Name: "main", Devices: []*podresources.ContainerDevices{
				devices("nvidia.com/gpu", "GPU-a"), devices("nvidia.com/gpu", "GPU-b"), devices("nvidia.com/gpu", "GPU-a"),
				devices("example.com/nic", "eth1"), devices("nvidia.com/hostdev", "0000:3b:00.2"), devices("volcano.sh/vgpu-number", "GPU-d"),
				devices("example.com/a100", "nvidia4"),
			}},
			{Name: "sidecar"},
		}},
		{Name: "infer", Namespace: "ml", Containers: []*podresources.ContainerResources{
			{Name: "c", Devices: []*podresources.ContainerDevices{
				devices("nvidia.com/mig-1g.10gb", "MIG-1"), devices("nvidia.com/gpu.shared", "GPU-c::1", "GPU-c::2"), devices("corp/gpu", "nvidia3"),
				devices("nvidia.com/A100", "GPU-e"), devices("nvidia.com/mig-1g.10gb.shared", "MIG-2::0"),
			}},
		}},
		{Name: "web", Namespace: "default"},
	}}}
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	k.serve(t, socket)
	c, err := New(socket, "corp/gpu")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, err := c.Allocations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	train := gpu.Owner{Namespace: "ml", Pod: "train-0", Container: "main"}
	infer := gpu.Owner{Namespace: "ml", Pod: "infer", Container: "c"}
	want := []gpu.Allocation{
		{Resource: "nvidia.com/gpu", DeviceID: "GPU-a", Owner: train},
		{Resource: "nvidia.com/gpu", DeviceID: "GPU-b", Owner: train},
		{Resource: "volcano.sh/vgpu-number", DeviceID: "GPU-d", Owner: train, Uncounted: true},
		{Resource: "example.com/a100", DeviceID: "nvidia4", Owner: train, Uncounted: true},
		{Resource: "nvidia.com/mig-1g.10gb", DeviceID: "MIG-1", Owner: infer},
		{Resource: "nvidia.com/gpu.shared", DeviceID: "GPU-c::1", Owner: infer},
		{Resource: "nvidia.com/gpu.shared", DeviceID: "GPU-c::2", Owner: infer},
		{Resource: "corp/gpu", DeviceID: "nvidia3", Owner: infer},
		{Resource: "nvidia.com/A100", DeviceID: "GPU-e", Owner: infer},
		{Resource: "nvidia.com/mig-1g.10gb.shared", DeviceID: "MIG-2::0", Owner: infer},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for range 3 {
		if _, err := c.Allocations(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := k.conns.Load(); n != 2 {
		t.Errorf("%d connections for four questions, want 2: the first question is asked over net/http, too", n)
	}
}

func TestClaims(t *testing.T) {
	claim := func(driver, device string, share ...string) *podresources.DynamicResource {
		r := &podresources.ClaimResource{DriverName: driver, PoolName: "node-1", DeviceName: device}
		if len(share) > 0 {
			r.ShareId = &share[0]
		}
		return &podresources.DynamicResource{ClaimName: "llm-0-gpu", ClaimNamespace: "ml", ClaimResources: []*podresources.ClaimResource{r}}
	}
	k := &kubelet{answer: &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{
		Name: "llm-0", Namespace: "ml", Containers: []*podresources.ContainerResources{{
			Name:             "c",
			DynamicResources: []*podresources.DynamicResource{claim(Driver, "gpu-0"), claim("compute-domain.nvidia.com", "channel-0"), claim(Driver, "gpu-1", "half")},
		}},
	}}}}
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	k.serve(t, socket)
	c, err := New(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := c.Allocations(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("claims that were not asked for: %+v, %v", got, err)
	}
	got, err := c.WithClaims().Allocations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	of := func(device, share string) gpu.Allocation {
		return gpu.Allocation{Resource: Driver, DeviceID: "node-1/" + device, Owner: gpu.Owner{
			Namespace: "ml", Pod: "llm-0", Container: "c", Replica: share,
			Claim: &gpu.Claim{Namespace: "ml", Name: "llm-0-gpu", Driver: Driver, Pool: "node-1", Device: device},
		}}
	}
	if diff := cmp.Diff([]gpu.Allocation{of("gpu-0", ""), of("gpu-1", "half")}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMissingSocketHeals(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	c, err := New(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Allocations(t.Context()); err == nil || !strings.Contains(err.Error(), "list pod resources") {
		t.Errorf("no socket, yet the error is %v", err)
	}
	k := &kubelet{answer: &podresources.ListPodResourcesResponse{}}
	stop := k.serve(t, socket)
	untilAnswer(t, c)
	stop()
	if _, err := c.Allocations(t.Context()); err == nil {
		t.Error("the kubelet is gone, yet it answers")
	}
	k.serve(t, socket)
	restarts := untilAnswer(t, c)
	if restarts != 1 {
		t.Errorf("%d answers say that the kubelet was restarted, want the first and no other", restarts)
	}
}

// untilAnswer polls like the agent does; the client's own back-off decides. It
// returns how often the error was ErrRestarted.
func untilAnswer(t *testing.T, c *Client) (restarts int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := c.Allocations(ctx)
		if err == nil {
			return restarts
		}
		if errors.Is(err, ErrRestarted) {
			restarts++
		}
		select {
		case <-ctx.Done():
			t.Fatalf("still no answer: %v", err)
		case <-tick.C:
		}
	}
}

// A kubelet, or a proxy before it, that closes the connection after each answer
// is asked again over a new connection, and it was not restarted.
func TestConnectionsThatAreClosed(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	k := &kubelet{answer: &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{
		{Name: "p", Namespace: "n", Containers: []*podresources.ContainerResources{
			{Name: "c", Devices: []*podresources.ContainerDevices{devices("nvidia.com/gpu", "GPU-a")}},
		}},
	}}}
	closing := &closing{Listener: l}
	s := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(s, k)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(closing)
	}()
	t.Cleanup(func() { s.Stop(); <-done })
	c, err := New(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range 20 {
		got, err := c.Allocations(t.Context())
		if err != nil || len(got) != 1 {
			t.Fatalf("question %d: %v, %v", i, got, err)
		}
		closing.closeAll() // no question is under way
	}
	if n := closing.accepted(); n < 20 {
		t.Errorf("%d connections for 20 questions, each of which was closed", n)
	}
}

// closing is a listener that can close the connections it made.
type closing struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
	n     int
}

func (l *closing) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.conns, l.n = append(l.conns, c), l.n+1
	}
	return c, err
}

func (l *closing) closeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
}

func (l *closing) accepted() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

// More than maxDevices ids of one container count as one that matches no device.
func TestManyDevicesOfOneContainer(t *testing.T) {
	const n = 100_000
	ids := make([]string, 0, 2*n)
	for i := range n {
		id := fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i)
		ids = append(ids, id, id)
	}
	c, err := New("/nowhere")
	if err != nil {
		t.Fatal(err)
	}
	pod := func(name string, ids ...string) podResources {
		return podResources{name: name, namespace: "n", containers: []containerResources{
			{name: "c", devices: []containerDevices{{resource: "nvidia.com/gpu", ids: ids}}},
		}}
	}
	answer := []podResources{pod("many", ids...), pod("few", "GPU-a", "GPU-a", "GPU-b")}
	got := c.allocations(answer)
	if len(got) != maxDevices+1+2 {
		t.Fatalf("%d allocations", len(got))
	}
	last := got[maxDevices]
	if _, ok := gpu.ParseDeviceID(last.DeviceID); ok || last.Owner.Pod != "many" {
		t.Errorf("what was left out: %+v", last)
	}
	if got[maxDevices+1].DeviceID != "GPU-a" || got[maxDevices+2].DeviceID != "GPU-b" {
		t.Errorf("the other pod: %+v", got[maxDevices+1:])
	}
}

// The ids of one container take linear time: ns/id of 16,000 ids is at most twice that of 2,000.
func BenchmarkDevicesOfOneContainer(b *testing.B) {
	for _, n := range []int{2000, 16_000} {
		b.Run(fmt.Sprintf("ids=%d", n), func(b *testing.B) {
			ids := make([]string, 0, 2*n)
			for i := range n {
				id := fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i)
				ids = append(ids, id, id)
			}
			c, err := New("/nowhere")
			if err != nil {
				b.Fatal(err)
			}
			answer := []podResources{{name: "many", namespace: "n", containers: []containerResources{
				{name: "c", devices: []containerDevices{{resource: "nvidia.com/gpu", ids: ids}}},
			}}}
			for b.Loop() {
				c.allocations(answer)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(ids)), "ns/id")
		})
	}
}

// gRPC's default limit is 4 MiB; this answer has more.
func TestBigAnswer(t *testing.T) {
	k := &kubelet{answer: &podresources.ListPodResourcesResponse{}}
	for i := range 400 {
		ids := make([]string, 4)
		for j := range ids {
			ids[j] = fmt.Sprintf("GPU-%08d-0000-0000-0000-%012d::%d%s", i, j, j, strings.Repeat("0", 3000))
		}
		k.answer.PodResources = append(k.answer.PodResources, &podresources.PodResources{
			Name: fmt.Sprint("p", i), Namespace: "n", Containers: []*podresources.ContainerResources{
				{Name: "c", Devices: []*podresources.ContainerDevices{devices("nvidia.com/gpu", ids...)}},
			},
		})
	}
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	k.serve(t, socket)
	c, err := New("unix://" + socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, err := c.Allocations(t.Context())
	if err != nil || len(got) != 400*4 {
		t.Errorf("%d allocations, %v", len(got), err)
	}
}
