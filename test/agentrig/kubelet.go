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
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Grant is a device that a container holds.
type Grant struct {
	Namespace, Pod, Container string
	Resource, DeviceID        string
}

// Kubelet answers the pod-resources API on a socket.
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

// List implements the pod-resources API.
func (k *Kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := &podresources.ListPodResourcesResponse{}
	for _, g := range k.grants {
		out.PodResources = append(out.PodResources, &podresources.PodResources{
			Name: g.Pod, Namespace: g.Namespace, Containers: []*podresources.ContainerResources{{
				Name: g.Container, Devices: []*podresources.ContainerDevices{{ResourceName: g.Resource, DeviceIds: []string{g.DeviceID}}},
			}},
		})
	}
	return out, nil
}
