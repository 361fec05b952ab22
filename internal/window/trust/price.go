// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/gpu/price"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// Priced reports whether there are prices.
func (d *Devices) Priced() bool { return d.prices.Has() }

// PriceOf returns the USD of an hour of one of a pod's devices on a node. nil: its model has no
// price, or its share of a GPU is not known.
func (d *Devices) PriceOf(node string, device *series.DeviceWindow, pod *corev1.Pod) *float64 {
	about := d.About(node)
	return price.Part(device.Device, about.Share(device.Device, device.Slices, pod), about.Model, about.USDPerHour)
}

// Share returns the share of a GPU that a MIG instance is; 0: it is no instance, or it is not known.
// Without its slices, from its exporter, it is the mean of the instances of its pod.
func (a *About) Share(device string, slices int, pod *corev1.Pod) (share float64) {
	switch {
	case !price.IsInstance(device):
		return 0
	case slices > 0:
		return price.Share(slices, a.Model)
	}
	share, _ = shareOf(a.Model, pod)
	return share
}

// migResource is the prefix of the resources that count MIG instances of one profile.
const migResource = "nvidia.com/mig-"

// shareOf returns the share of a GPU that a pod's MIG instances are, on the mean: by the resources
// that it requests or, where all GPUs of a node are divided alike, by the name of the model.
func shareOf(model string, pod *corev1.Pod) (share float64, ok bool) {
	if share, ok := price.ModelShare(model); ok || pod == nil {
		return share, ok
	}
	sum, n := 0.0, 0.0
	for i := range pod.Spec.Containers {
		for name, q := range pod.Spec.Containers[i].Resources.Limits {
			profile, mig := strings.CutPrefix(string(name), migResource)
			if slices, known := price.Slices(profile); mig && known {
				count := float64(min(max(q.Value(), 0), maxResourceCount))
				sum += price.Share(slices, model) * count
				n += count
			}
		}
	}
	if n == 0 {
		return 0, false
	}
	return sum / n, true
}
