// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"slices"
	"strconv"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

const (
	// maxNamed limits the files that one line of the log names.
	maxNamed = 8
	// maxStray limits the names that are remembered, and logged, until a restart.
	maxStray = 4096
)

// addJobs sets the devices' jobs, and logs each file of the mapping once that names none
// of the devices.
func (l *loop) addJobs(s *gpu.Snapshot) {
	if l.deps.Jobs == nil {
		return
	}
	stray := assignJobs(s.Devices, l.deps.Jobs())
	n := len(stray)
	s.UnmatchedJobFiles = &n
	var fresh []string
	for _, name := range stray {
		if !l.strayJobs[name] && len(l.strayJobs) < maxStray {
			l.strayJobs[name] = true
			fresh = append(fresh, name)
		}
	}
	if len(fresh) > 0 {
		l.deps.Log.Warn("files of the job mapping name no GPU that the agent reads: name them by index (0), index.instance (0.7) or UUID (GPU-…, MIG-…)",
			"files", fresh[:min(len(fresh), maxNamed)], "count", len(fresh))
	}
}

// assignJobs sets the devices' jobs from a mapping by GPU index, by index.instance for a
// MIG instance, or by UUID. It returns the names that are none of these, sorted. Without
// devices, these are not known.
func assignJobs(devices []gpu.DeviceSnapshot, jobs map[string][]string) (stray []string) {
	if len(jobs) == 0 || len(devices) == 0 {
		return nil
	}
	rest := maps.Clone(jobs)
	for i := range devices {
		d := &devices[i]
		key := strconv.Itoa(d.Index)
		if d.MIG != nil {
			key += "." + strconv.Itoa(d.MIG.GPUInstance)
		}
		d.Jobs = bothJobs(jobs[key], jobs[d.UUID])
		delete(rest, key)
		delete(rest, d.UUID)
	}
	return slices.Sorted(maps.Keys(rest))
}

// bothJobs returns the sorted jobs of two files. It allocates only if both have some.
func bothJobs(a, b []string) []string {
	switch {
	case len(b) == 0:
		return a
	case len(a) == 0:
		return b
	}
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}
