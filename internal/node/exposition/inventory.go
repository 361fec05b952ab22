// SPDX-License-Identifier: Apache-2.0

package exposition

// gpusBySource has the name of the node itself: without a GPU there is no gpupilot_gpu_info
// to join it with.
func gpusBySource(b []byte, in *renderInput) []byte {
	for _, s := range in.snap.Inventory.Sources() {
		b = appendLabel(append(b, "gpupilot_gpus_by_source{"...), "source", s.Name)
		if s.Bound != "" {
			b = appendLabel(append(b, ','), "bound", s.Bound)
		}
		if in.cfg.Hostname != "" {
			b = appendLabel(append(b, ','), "hostname", in.cfg.Hostname)
		}
		b = append(appendUint(append(b, "} "...), uint64(s.GPUs)), '\n')
	}
	return b
}
