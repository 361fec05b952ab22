// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"log/slog"

	"github.com/gpupilot/gpupilot/internal/agent"
	"github.com/gpupilot/gpupilot/internal/docker"
	"github.com/gpupilot/gpupilot/internal/gpu"
)

// wantsContainers says whether Docker is to be asked who holds the devices. In
// Kubernetes, the kubelet is.
func (c *config) wantsContainers() bool { return c.containerLabels && !c.kubernetes }

func (c *config) addContainers(p *program, deps *agent.Deps, log *slog.Logger) {
	if c.containerLabels && c.kubernetes {
		log.Warn("Docker is not asked: in Kubernetes, the kubelet says who holds the devices")
	}
	if !c.wantsContainers() {
		return
	}
	client := docker.New(cmp.Or(c.runtimeSocket, docker.DefaultSocket))
	deps.Owners = func(ctx context.Context) ([]gpu.Allocation, error) {
		containers, err := client.Containers(ctx)
		if err != nil {
			return nil, err
		}
		var devices []gpu.Device
		if s := p.agent.Snapshot(); s != nil {
			for i := range s.Devices {
				devices = append(devices, s.Devices[i].Device)
			}
		}
		return docker.Allocations(containers, devices), nil
	}
}
