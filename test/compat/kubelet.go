// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	alpha "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
)

// pod holds devices, in a container named after its name.
type pod struct {
	name, resource string
	devices        []string
}

const namespace = "team"

// kubelet answers the pod-resources API, in both of its versions: exporters
// before 4.x ask for the older one.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	pods []pod
}

func (k *kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	out := &podresources.ListPodResourcesResponse{}
	for _, p := range k.pods {
		out.PodResources = append(out.PodResources, &podresources.PodResources{
			Name: p.name, Namespace: namespace,
			Containers: []*podresources.ContainerResources{{
				Name:    "c-" + p.name,
				Devices: []*podresources.ContainerDevices{{ResourceName: p.resource, DeviceIds: p.devices}},
			}},
		})
	}
	return out, nil
}

type alphaKubelet struct {
	alpha.UnimplementedPodResourcesListerServer
	pods []pod
}

func (k *alphaKubelet) List(context.Context, *alpha.ListPodResourcesRequest) (*alpha.ListPodResourcesResponse, error) {
	out := &alpha.ListPodResourcesResponse{}
	for _, p := range k.pods {
		out.PodResources = append(out.PodResources, &alpha.PodResources{
			Name: p.name, Namespace: namespace,
			Containers: []*alpha.ContainerResources{{
				Name:    "c-" + p.name,
				Devices: []*alpha.ContainerDevices{{ResourceName: p.resource, DeviceIds: p.devices}},
			}},
		})
	}
	return out, nil
}

// serveKubelet listens on socket until stop is called.
func serveKubelet(socket string, pods []pod) (stop func(), err error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	s := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(s, &kubelet{pods: pods})
	alpha.RegisterPodResourcesListerServer(s, &alphaKubelet{pods: pods})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // ends by Stop
	}()
	return func() { s.Stop(); <-done }, nil
}
