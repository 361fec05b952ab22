// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agentrig

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	alpha "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
)

// Grant is a device that a container holds.
type Grant struct {
	Namespace, Pod, Container string
	Resource, DeviceID        string
}

// Kubelet answers the pod-resources API on a socket, in both of its versions: dcgm-exporter before 4.x asks for the older one.
type Kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	socket string

	mu     sync.Mutex
	grants []Grant
	server *grpc.Server // nil while it is down
	served sync.WaitGroup
}

// StartKubelet serves grants on a socket at path.
func StartKubelet(path string, grants []Grant) (*Kubelet, error) {
	k := &Kubelet{socket: path, grants: grants}
	if err := k.Start(); err != nil {
		return nil, err
	}
	return k, nil
}

// Args returns the agent's flags for this kubelet.
func (k *Kubelet) Args() []string {
	return []string{"--kubernetes", "--pod-resources-kubelet-socket", k.socket}
}

// Start starts it again after Stop.
func (k *Kubelet) Start() error {
	if err := os.Remove(k.socket); err != nil && !os.IsNotExist(err) {
		return err // a kubelet that starts removes its old socket
	}
	l, err := net.Listen("unix", k.socket)
	if err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	s := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(s, k)
	alpha.RegisterPodResourcesListerServer(s, alphaKubelet{k: k})
	k.mu.Lock()
	k.server = s
	k.mu.Unlock()
	k.served.Go(func() { _ = s.Serve(l) }) // ends by Stop
	return nil
}

// Stop closes all connections and removes the socket.
func (k *Kubelet) Stop() {
	k.mu.Lock()
	s := k.server
	k.server = nil
	k.mu.Unlock()
	if s != nil {
		s.Stop()
	}
	k.served.Wait()
}

// Set replaces the grants.
func (k *Kubelet) Set(grants []Grant) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.grants = grants
}

// List implements the pod-resources API: the grants that follow one another of a pod are in one entry.
func (k *Kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := &podresources.ListPodResourcesResponse{}
	var last *podresources.PodResources
	for _, g := range k.grants {
		devices := &podresources.ContainerDevices{ResourceName: g.Resource, DeviceIds: []string{g.DeviceID}}
		if last != nil && last.Namespace == g.Namespace && last.Name == g.Pod && last.Containers[0].Name == g.Container {
			last.Containers[0].Devices = append(last.Containers[0].Devices, devices)
			continue
		}
		last = &podresources.PodResources{
			Name: g.Pod, Namespace: g.Namespace, Containers: []*podresources.ContainerResources{{Name: g.Container, Devices: []*podresources.ContainerDevices{devices}}},
		}
		out.PodResources = append(out.PodResources, last)
	}
	return out, nil
}

// alphaKubelet has the older version, whose messages are the same on the wire.
type alphaKubelet struct {
	alpha.UnimplementedPodResourcesListerServer
	k *Kubelet
}

// List implements the older pod-resources API.
func (a alphaKubelet) List(ctx context.Context, _ *alpha.ListPodResourcesRequest) (*alpha.ListPodResourcesResponse, error) {
	list, err := a.k.List(ctx, nil)
	if err != nil {
		return nil, err
	}
	wire, err := proto.Marshal(list)
	if err != nil {
		return nil, err
	}
	out := &alpha.ListPodResourcesResponse{}
	return out, proto.Unmarshal(wire, out)
}
