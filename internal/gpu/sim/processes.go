// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// errNoProcesses is the error of a GPU without processes in the state file.
var errNoProcesses = errors.New("the simulated GPU does not tell its processes; the state file may")

// Processes returns the GPU's processes from the state file.
func (r *Reader) Processes(uuid string) (gpu.Processes, error) {
	i := r.find(uuid)
	if i < 0 {
		return gpu.Processes{}, fmt.Errorf("processes of %s: %w", uuid, gpu.ErrUnknownDevice)
	}
	s, err := r.await(i)
	switch {
	case err == nil && s.Lost:
		err = gpu.ErrLost
	case err == nil && s.Processes == nil:
		err = errNoProcesses
	}
	if err != nil {
		return gpu.Processes{}, fmt.Errorf("processes of %s: %w", uuid, err)
	}
	out := gpu.Processes{Times: true}
	for _, p := range s.Processes {
		q, err := p.read()
		if err != nil {
			return gpu.Processes{}, fmt.Errorf("processes of %s: %w", uuid, err)
		}
		out.List = append(out.List, q)
	}
	slices.SortFunc(out.List, func(a, b gpu.Process) int { return cmp.Compare(a.PID, b.PID) })
	return out, nil
}

// read checks a process of a state file.
func (p *Process) read() (gpu.Process, error) {
	q := gpu.Process{PID: p.PID, Utilization: gpu.Read(0)}
	if p.PID <= 0 {
		return q, fmt.Errorf("pid: %d is no process", p.PID)
	}
	for name := range strings.SplitSeq(cmp.Or(p.Type, gpu.Compute.String()), "+") {
		t, ok := map[string]gpu.ProcessType{"compute": gpu.Compute, "graphics": gpu.Graphics, "mps": gpu.MPSClient}[name]
		if !ok {
			return q, fmt.Errorf("type: %q is none of compute, graphics, mps", name)
		}
		q.Type |= t
	}
	if m := p.MemoryMiB; m != nil {
		if *m < 0 {
			return q, fmt.Errorf("memoryMiB: %v is negative", *m)
		}
		q.Memory = gpu.Read(*m * (1 << 20))
	}
	if u := p.Utilization; u != nil {
		if *u < 0 || *u > 100 {
			return q, fmt.Errorf("utilization: %v is not within 0 to 100", *u)
		}
		q.Utilization = gpu.Read(*u / 100)
	}
	return q, nil
}
