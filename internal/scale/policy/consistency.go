// SPDX-License-Identifier: Apache-2.0

package policy

import "github.com/gpupilot/gpupilot/internal/gpu"

// UtilizationBesideRequests reports whether the policy has both a signal on device
// utilisation and one on requests, and returns their names. The pair wastes GPUs:
// the signal that asks for the most replicas wins, and a server that batches
// requests keeps its GPU close to 100 % busy at any load.
func (c *Compiled) UtilizationBesideRequests() (device, requests string, found bool) {
	for i := range c.Sources {
		switch s := &c.Policy.Signals[i]; {
		case c.Sources[i].Kind == Pods && requests == "":
			requests = s.Name
		case c.Sources[i].Kind == GPU && device == "" && isUtilization(c.Sources[i].Field):
			device = s.Name
		}
	}
	return device, requests, device != "" && requests != ""
}

// isUtilization reports whether a field is a share of time or of a capacity,
// such as GPU utilisation and SM activity.
func isUtilization(id gpu.FieldID) bool {
	f, ok := gpu.Lookup(id)
	return ok && (f.Unit == gpu.Percent || f.Unit == gpu.Ratio)
}
