// SPDX-License-Identifier: Apache-2.0

package nodehealth

import "github.com/gpupilot/gpupilot/internal/window/discovery"

// AgentsOf returns the agents of targets.
func AgentsOf(targets []discovery.Target) []Agent {
	agents := make([]Agent, 0, len(targets))
	for i := range targets {
		agents = append(agents, Agent{Name: targets[i].Name, Node: targets[i].Labels.Node, URL: targets[i].URL})
	}
	return agents
}
