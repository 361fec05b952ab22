// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/node/docker"
)

// wantsContainers reports whether Docker is the source of the devices' owners. In
// Kubernetes, the kubelet is the source.
func (c *config) wantsContainers() bool { return c.containerLabels && !c.kubernetes }

// addContainers makes Docker the source of the devices' owners if a flag asks for
// that.
func (a *assembly) addContainers() {
	if a.containerLabels && a.kubernetes {
		a.log.Warn("Docker is not used: in Kubernetes, the kubelet is the source of device owners")
	}
	if !a.wantsContainers() {
		return
	}
	client := docker.New(cmp.Or(a.runtimeSocket, docker.DefaultSocket))
	a.deps.Owners = func(ctx context.Context) ([]gpu.Allocation, error) {
		containers, err := client.Containers(ctx)
		if err != nil {
			return nil, err
		}
		var devices []gpu.Device
		if s := a.agent.Snapshot(); s != nil {
			for i := range s.Devices {
				devices = append(devices, s.Devices[i].Device)
			}
		}
		return docker.Allocations(containers, devices), nil
	}
}
