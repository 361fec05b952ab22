// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

const (
	// idleAfter is the age at which a process's last sample counts as idle. The
	// driver samples busy processes only, up to a second apart. (The device's
	// own samples are "between 1 second and 1/6 second depending on the
	// product", says nvidia-smi.)
	idleAfter = 1500 * time.Millisecond
	// mostProcesses limits the processes that are stored for one device.
	mostProcesses = 4096
)

// unavailable is NVML_VALUE_NOT_AVAILABLE.
const unavailable = math.MaxUint64

// processLists are the NVML calls that list processes.
var processLists = [...]struct {
	function string // without its version
	is       gpu.ProcessType
	get      func(nvml.Device) ([]nvml.ProcessInfo, nvml.Return)
}{
	{"nvmlDeviceGetComputeRunningProcesses", gpu.Compute, nvml.Device.GetComputeRunningProcesses},
	{"nvmlDeviceGetGraphicsRunningProcesses", gpu.Graphics, nvml.Device.GetGraphicsRunningProcesses},
	{"nvmlDeviceGetMPSComputeRunningProcesses", gpu.MPSClient, nvml.Device.GetMPSComputeRunningProcesses},
}

// processAbilities is the support for processes in a library and its driver.
type processAbilities struct {
	lists [len(processLists)]bool
	times bool
	why   error // why processes cannot be listed
}

func processAbilitiesOf(s *session) processAbilities {
	var a processAbilities
	some := false
	for i, l := range processLists {
		a.lists[i] = s.hasAny(l.function, l.function+"_v2", l.function+"_v3")
		some = some || a.lists[i]
	}
	a.times = s.has("nvmlDeviceGetProcessUtilization")
	if !some {
		a.why = errors.New("this driver does not list processes")
	} else if v := s.driverVersion(); writesTooMuch(v) {
		a.why = fmt.Errorf("driver %s lists processes in a form of its own; drivers before 535.43 and from 535.98 on do not", v)
	}
	return a
}

// driverVersion returns the driver's version; empty if the library does not
// give it.
func (s *session) driverVersion() string {
	if !s.has("nvmlSystemGetDriverVersion") {
		return ""
	}
	v, ret := s.lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return ""
	}
	return v
}

// writesTooMuch reports whether a driver's list of processes has longer entries
// than in nvml.h and go-nvml, so that the driver would write beyond the buffer.
// 535.43 to 535.86 changed version 3 of the call without a new version; 535.98
// reverted that.
func writesTooMuch(driver string) bool {
	major, rest, _ := strings.Cut(driver, ".")
	minor, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(minor)
	return major == "535" && err == nil && 43 <= n && n < 98
}

// processState is the state of a device between two lists of processes.
type processState struct {
	mu      sync.Mutex // held by processes; Read does not wait for it
	lists   [len(processLists)]vendorlib.Refusal
	refusal nvml.Return       // the return code of the last list that was refused
	times   vendorlib.Refusal // utilisation
	newest  uint64            // the newest sample's time in the driver's clock, in µs; 0: no sample
	at      time.Time         // when the newest sample was read
	shares  map[uint32]share
}

// share is a process's last sample: its share of the device's time, 0 to 1, and
// the sample's time in the driver's clock.
type share struct {
	part float64
	at   uint64
}

// Processes lists the processes that use a device. Utilisation is of about the
// last second, as the driver samples it; a MIG instance has none.
func (r *Reader) Processes(uuid string) (gpu.Processes, error) {
	d, ses, err := r.Enter(uuid)
	if err != nil {
		return gpu.Processes{}, err
	}
	defer ses.Leave()
	return d.processes(time.Now())
}

func (d *device) processes(now time.Time) (gpu.Processes, error) {
	s := &d.procs
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := d.ses.processes.why; err != nil {
		return gpu.Processes{}, err
	}
	byPID := map[uint32]gpu.Process{}
	listed := false
	for i, l := range processLists {
		if !d.ses.processes.lists[i] || s.lists[i].Holds(now) {
			continue
		}
		infos, ret := l.get(d.handle)
		switch classify(ret) {
		case good:
			listed = true
			addProcesses(byPID, infos, l.is)
		case unsupported:
			s.lists[i].Record(now)
			s.refusal = ret
		default:
			return gpu.Processes{}, fmt.Errorf("list processes: %w", failure(ret))
		}
	}
	if !listed {
		return gpu.Processes{}, fmt.Errorf("list processes: %s", reason(s.refusal))
	}
	shares, ok := d.utilizations(now)
	out := gpu.Processes{List: make([]gpu.Process, 0, len(byPID)), Times: ok}
	for pid, p := range byPID {
		if ok {
			p.Utilization = gpu.Read(shares[pid].part) // a process without a sample was idle
		}
		out.List = append(out.List, p)
	}
	slices.SortFunc(out.List, func(a, b gpu.Process) int { return cmp.Compare(a.PID, b.PID) })
	return out, nil
}

// addProcesses adds a list. A process with both compute and graphics is in two
// lists, with all of its memory in each.
func addProcesses(byPID map[uint32]gpu.Process, infos []nvml.ProcessInfo, is gpu.ProcessType) {
	for _, i := range infos {
		p, ok := byPID[i.Pid]
		if !ok && len(byPID) == mostProcesses {
			return
		}
		p.PID = int(i.Pid)
		p.Type |= is
		if i.UsedGpuMemory != unavailable {
			p.Memory = gpu.Read(max(p.Memory.Value, float64(i.UsedGpuMemory)))
		}
		byPID[i.Pid] = p
	}
}

// utilizations returns the shares of the busy processes.
func (d *device) utilizations(now time.Time) (map[uint32]share, bool) {
	s := &d.procs
	// Not supported on MIG-enabled GPUs (nvml.h).
	if !d.ses.processes.times || d.MIG != nil || s.times.Holds(now) {
		return nil, false
	}
	samples, ret := processUtilization(d.handle, max(s.newest, s.horizon(now)))
	switch c := classify(ret); {
	case c == unsupported:
		s.times.Record(now)
		return nil, false
	case c != good && ret != nvml.ERROR_NOT_FOUND: // NOT_FOUND: no busy process since
		return nil, false
	}
	first := s.newest == 0
	s.take(samples, now)
	if first && s.newest != 0 {
		// The first samples may be old: use only their time.
		clear(s.shares)
		return nil, false
	}
	return s.shares, true
}

// horizon returns idleAfter before now in the driver's clock, which can differ
// from ours; 0 if its time is unknown.
func (s *processState) horizon(now time.Time) uint64 {
	if s.newest == 0 {
		return 0
	}
	return uint64(max(0, int64(s.newest)+(now.Sub(s.at)-idleAfter).Microseconds()))
}

// take adds samples and removes those before the horizon. It stores the mean of
// several samples of one process.
func (s *processState) take(samples []nvml.ProcessUtilizationSample, now time.Time) {
	if s.shares == nil {
		s.shares = map[uint32]share{}
	}
	since, newest := s.newest, s.newest
	sums, counts := map[uint32]float64{}, map[uint32]float64{}
	for _, x := range samples {
		// Drivers leave entries of the list empty or unchanged.
		if x.Pid == 0 || x.TimeStamp <= since || x.SmUtil > 100 || len(s.shares) == mostProcesses {
			continue
		}
		newest = max(newest, x.TimeStamp)
		sums[x.Pid] += float64(x.SmUtil) / 100
		counts[x.Pid]++
		s.shares[x.Pid] = share{sums[x.Pid] / counts[x.Pid], max(x.TimeStamp, s.shares[x.Pid].at)}
	}
	if newest > since {
		s.newest, s.at = newest, now
	}
	horizon := s.horizon(now)
	maps.DeleteFunc(s.shares, func(_ uint32, x share) bool { return x.at < horizon })
}

// processUtilization reads the samples newer than since. go-nvml asks for their
// number first and cuts its slice to the number of the second answer. That
// panics if a process has started in between; the next call then reads the
// samples.
func processUtilization(handle nvml.Device, since uint64) (samples []nvml.ProcessUtilizationSample, ret nvml.Return) {
	defer func() {
		if recover() != nil {
			samples, ret = nil, nvml.ERROR_INSUFFICIENT_SIZE
		}
	}()
	return handle.GetProcessUtilization(since)
}
