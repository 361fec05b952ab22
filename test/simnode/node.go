// SPDX-License-Identifier: Apache-2.0

package simnode

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpupilot/gpupilot/internal/gpu/sim"
)

// A kubelet renews its lease every 10 s. The controller-manager marks a node as lost
// after 50 s without a renewal.
const (
	leaseSeconds   = 40
	leaseRenewal   = 10 * time.Second
	leaseTimeout   = 30 * time.Second
	leaseNamespace = "kube-node-lease"
)

// node is one simulated node. Nodes.mu guards holders and off.
type node struct {
	name   string
	addr   netip.Addr
	gpus   int
	server *grpc.Server
	// holders[i] is the container that holds GPU i.
	holders []holder
	state   sim.State // as last written; Nodes.writing guards it
	off     bool      // powered off
}

// holder is the container that holds a device; the zero value: none.
type holder struct {
	uid                       types.UID
	namespace, pod, container string
	claim                     string // by which it holds the device; empty: of the device plugin
}

// newNode makes the node's folder and serves its pod-resources API.
func (n *Nodes) newNode(i int) (*node, error) {
	name := n.cfg.Prefix + "-" + strconv.Itoa(i)
	nd := &node{name: name, addr: n.addrs.node(i), gpus: n.cfg.GPUs, holders: make([]holder, n.cfg.GPUs)}
	if err := os.MkdirAll(filepath.Join(n.cfg.Dir, name), 0o755); err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	socket := n.Socket(name)
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("node %s: its pod-resources socket cannot be served: %w", name, err)
	}
	nd.server = grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(nd.server, &lister{nodes: n, node: nd})
	n.done.Go(func() {
		if err := nd.server.Serve(l); err != nil {
			n.log.Error("pod resources not served", "node", name, "err", err)
		}
	})
	return nd, nil
}

// object returns the Node that a kubelet would register.
func (nd *node) object(now time.Time) *corev1.Node {
	amounts := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("128"),
		corev1.ResourceMemory: resource.MustParse("2Ti"),
		corev1.ResourcePods:   resource.MustParse("110"),
		GPUResource:           *resource.NewQuantity(int64(nd.gpus), resource.DecimalSI),
	}
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) corev1.NodeCondition {
		t := metav1.NewTime(now)
		return corev1.NodeCondition{Type: kind, Status: status, Reason: reason, LastHeartbeatTime: t, LastTransitionTime: t}
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nd.name, Labels: map[string]string{
			"kubernetes.io/hostname": nd.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
			"node.kubernetes.io/instance-type": "simulated-8gpu",
			"nvidia.com/gpu.present":           "true",
			"nvidia.com/gpu.count":             strconv.Itoa(nd.gpus),
			"nvidia.com/gpu.product":           "NVIDIA-H200",
		}},
		Status: corev1.NodeStatus{
			Capacity: amounts, Allocatable: amounts,
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: nd.addr.String()},
				{Type: corev1.NodeHostName, Address: nd.name},
			},
			Conditions: []corev1.NodeCondition{
				condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady"),
				condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory"),
				condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure"),
				condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID"),
			},
			NodeInfo: corev1.NodeSystemInfo{
				KubeletVersion: "v1.37.1-sim", OperatingSystem: "linux", Architecture: "amd64", OSImage: "simulated",
				ContainerRuntimeVersion: "sim://0",
			},
		},
	}
}

func (nd *node) register(ctx context.Context, client kubernetes.Interface) error {
	if _, err := client.CoreV1().Nodes().Create(ctx, nd.object(time.Now()), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("register node %s: %w", nd.name, err)
	}
	if err := nd.renew(ctx, client); err != nil {
		return fmt.Errorf("register node %s: %w", nd.name, err)
	}
	return nil
}

// heartbeat renews the node's lease until ctx is done, except while the node is off.
func (n *Nodes) heartbeat(ctx context.Context, nd *node) {
	tick := time.NewTicker(leaseRenewal)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n.mu.Lock()
		off := nd.off
		n.mu.Unlock()
		if off {
			continue
		}
		once, cancel := context.WithTimeout(ctx, leaseTimeout)
		if err := nd.renew(once, n.client); err != nil && ctx.Err() == nil {
			n.log.Warn("lease not renewed", "node", nd.name, "err", err)
		}
		cancel()
	}
}

// renew creates or updates the node's lease.
func (nd *node) renew(ctx context.Context, client kubernetes.Interface) error {
	leases := client.CoordinationV1().Leases(leaseNamespace)
	seconds, now := int32(leaseSeconds), metav1.NowMicro()
	spec := coordinationv1.LeaseSpec{HolderIdentity: &nd.name, LeaseDurationSeconds: &seconds, RenewTime: &now}
	old, err := leases.Get(ctx, nd.name, metav1.GetOptions{})
	if err != nil {
		_, err = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: nd.name}, Spec: spec}, metav1.CreateOptions{})
		return err
	}
	old.Spec = spec
	_, err = leases.Update(ctx, old, metav1.UpdateOptions{})
	return err
}

// allocate assigns the requested GPUs to the containers of the pod, with those of its
// claims, all or none of them, and reports whether it did. Nodes.mu is held.
func (nd *node) allocate(pod *corev1.Pod, claims []claimed) bool {
	holders := slices.Clone(nd.holders)
	for _, c := range claims {
		if holders[c.gpu] != (holder{}) {
			return false
		}
		holders[c.gpu] = holder{pod.UID, pod.Namespace, pod.Name, c.container, c.claim}
	}
	for _, c := range pod.Spec.Containers {
		q := c.Resources.Limits[GPUResource]
		for range q.Value() {
			i := slices.Index(holders, holder{})
			if i < 0 {
				return false
			}
			holders[i] = holder{pod.UID, pod.Namespace, pod.Name, c.Name, ""}
		}
	}
	nd.holders = holders
	return true
}

// free releases the pod's GPUs. Nodes.mu is held.
func (nd *node) free(uid types.UID) {
	for i := range nd.holders {
		if nd.holders[i].uid == uid {
			nd.holders[i] = holder{}
		}
	}
}

// lister serves the kubelet's pod-resources API for one node.
type lister struct {
	podresources.UnimplementedPodResourcesListerServer
	nodes *Nodes
	node  *node
}

// List returns the devices of every container. As in the kubelet, they are listed from
// the allocation on, before the pod runs, and each device has an entry of its own.
func (l *lister) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	l.nodes.mu.Lock()
	defer l.nodes.mu.Unlock()
	out := &podresources.ListPodResourcesResponse{}
	for _, p := range l.nodes.pods {
		if p.node != l.node || !p.admitted {
			continue
		}
		pod := &podresources.PodResources{Name: p.pod.Name, Namespace: p.pod.Namespace}
		for _, c := range p.pod.Spec.Containers {
			container := &podresources.ContainerResources{Name: c.Name}
			for i, h := range l.node.holders {
				switch {
				case h.uid != p.pod.UID || h.container != c.Name:
				case h.claim != "":
					addClaimed(container, h.namespace, h.claim, l.node.name, i)
				default:
					container.Devices = append(container.Devices, &podresources.ContainerDevices{
						ResourceName: GPUResource, DeviceIds: []string{l.nodes.cfg.DeviceID(l.node.name, i)},
					})
				}
			}
			pod.Containers = append(pod.Containers, container)
		}
		out.PodResources = append(out.PodResources, pod)
	}
	return out, nil
}

// GetAllocatableResources returns all devices of the node.
func (l *lister) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	out := &podresources.AllocatableResourcesResponse{}
	for i := range l.node.gpus {
		out.Devices = append(out.Devices, &podresources.ContainerDevices{
			ResourceName: GPUResource, DeviceIds: []string{l.nodes.cfg.DeviceID(l.node.name, i)},
		})
	}
	return out, nil
}
