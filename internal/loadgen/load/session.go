// SPDX-License-Identifier: Apache-2.0

package load

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/loadgen/cuda"
)

// session is one GPU in use.
type session struct {
	device  *cuda.Device
	context *cuda.Context
	peer    *cuda.Device // the GPU of NVLink copies; nil: none
	peers   *cuda.Context
	sensors *cuda.Sensors // nil: NVML is not there
	model   model
	gpu     GPU
	bounds  Bounds
	note    func(format string, args ...any)

	timerStep float64 // ns: the least difference of two times of the device
	functions map[string]cuda.Function
	buffers   map[string]cuda.Memory
}

// open opens the first GPU that the driver shows to this process.
func open(job Job, note func(format string, args ...any)) (*session, error) {
	driver, err := cuda.Open(job.Library)
	if err != nil {
		return nil, err
	}
	devices, err := driver.Devices()
	if err != nil {
		return nil, err
	}
	if len(devices) == 0 {
		return nil, fmt.Errorf("%s: %w", job.Library, cuda.NoDevice)
	}
	m, err := modelOf(devices[0])
	if err != nil {
		return nil, err
	}
	s := &session{
		device: devices[0], model: m, bounds: job.Bounds, note: note,
		functions: map[string]cuda.Function{}, buffers: map[string]cuda.Memory{},
	}
	for _, other := range devices[1:] {
		if s.peer == nil && s.device.Reaches(other) {
			s.peer = other
		}
	}
	s.gpu = gpuOf(s.device, s.model)
	s.gpu.Index = job.Index
	if s.sensors, err = cuda.OpenSensors(job.NVML, s.device.PCI); err != nil {
		if job.Bounds.MaxWatts > 0 || job.Bounds.MaxCelsius > 0 {
			return nil, failuref(ExitUnmeasured, "--power-max and --temp-max need NVML: %v", err)
		}
		note("no power, temperature and throttling: %v", err)
	} else if s.model.memoryBytesPerSecond == 0 {
		s.model.setMemoryClock(s.sensors.MemoryHertz(), s.device.Attribute(cuda.MemoryBusBits))
	}
	return s, nil
}

func gpuOf(d *cuda.Device, m model) GPU {
	return GPU{
		Index: d.Ordinal, UUID: d.UUID, PCI: d.PCI, MIG: d.IsMIG(), Name: d.Name, SMs: m.sms, MemoryBytes: d.Bytes,
		ComputeCapability: fmt.Sprintf("%d.%d", m.capability/10, m.capability%10),
	}
}

// start retains the context and measures the device's timer.
func (s *session) start() (err error) {
	if s.context, err = s.device.Context(); err != nil {
		return err
	}
	if s.model.capability < 70 {
		return failuref(ExitKernel, "%s has compute capability %s: want 7.0 or newer", s.gpu.Name, s.gpu.ComputeCapability)
	}
	// The probe's work is the timer's step.
	list, err := s.once(probeKernel(), 2*time.Millisecond, cuda.Memory{}, 0)
	if err != nil {
		return err
	}
	s.timerStep = list[0].work
	if s.timerStep <= 0 || s.timerStep > float64(slice)/stepsPerWindow {
		return failuref(ExitUnmeasured, "the GPU's timer has steps of %v: want at most %v",
			time.Duration(s.timerStep), slice/stepsPerWindow)
	}
	return nil
}

// stepsPerWindow is how many steps of the timer a window has at least, so that a duty is exact to 2 %.
const stepsPerWindow = 50

// window is the length of the windows in which a pipe is fed for a part of the time.
func (s *session) window() time.Duration {
	return max(time.Millisecond, time.Duration(stepsPerWindow*s.timerStep))
}

// close frees everything.
func (s *session) close() (err error) {
	if s.peers != nil && s.context.Fatal() == cuda.Success {
		err = s.peers.Close()
	}
	if s.context != nil {
		err = errors.Join(err, s.context.Close())
	}
	if s.sensors != nil {
		s.sensors.Close()
	}
	return err
}

// function compiles a kernel, once.
func (s *session) function(k kernel) (cuda.Function, error) {
	f, ok := s.functions[k.Name]
	if ok {
		return f, nil
	}
	f, err := s.context.Function(k.text(), k.Name)
	if err == nil {
		s.functions[k.Name] = f
	}
	return f, err
}

// buffer allocates memory of the device, once for each name.
func (s *session) buffer(name string, bytes uint64) (cuda.Memory, error) {
	m, ok := s.buffers[name]
	if ok {
		return m, nil
	}
	m, err := s.context.Alloc(bytes)
	if err == nil {
		s.buffers[name] = m
	}
	return m, err
}

// once runs a kernel on a few blocks and returns their records.
func (s *session) once(k kernel, length time.Duration, data cuda.Memory, bytes uint64) ([]block, error) {
	w := &kernelWork{kernel: k, model: s.model, maxBlocks: 1, data: data, size: bytes, kind: Kind{Field: gpu.GREngineActive}}
	if bytes > 0 {
		w.maxBlocks = s.model.sms
	}
	var err error
	if w.function, err = s.function(k); err != nil {
		return nil, err
	}
	if err := w.prepare(s.context); err != nil {
		return nil, err
	}
	if _, err := w.start(0, length, 1); err != nil {
		return nil, err
	}
	if _, err := w.finish(0); err != nil {
		return nil, err
	}
	return blocks(w.slot[0].host[:recordBytes(w.maxBlocks)]), nil
}

// The values of p_arg: -1 in each type.
const (
	minusOne32 = 0xbf800000
	minusOne16 = 0xbc00bc00
)

// work prepares a kind of load. alone says that no other kind runs at the same time.
func (s *session) work(k Kind, alone bool) (work, error) {
	switch k.Field {
	case gpu.PCIeTxBytes, gpu.PCIeRxBytes, gpu.NVLinkTxBytes, gpu.NVLinkRxBytes:
		return s.copies(k)
	}
	w := &kernelWork{kind: k, model: s.model, window: s.window(), alone: alone, maxBlocks: s.model.sms, perSM: 1}
	w.kernel, w.size, w.arg = s.kernelOf(k)
	w.perChunk = w.kernel.perChunk * float64(max(1, w.size))
	var err error
	switch {
	case k.Name == VectorAdd:
		w.perSM, w.maxBlocks = 0, (vectorLength+vectorThreads-1)/vectorThreads
		w.data, err = s.buffer("vectors", 3*4*vectorLength)
	case k.Field == gpu.GREngineActive:
		w.perSM, w.maxBlocks = 0, 1
	case k.Field == gpu.SMOccupancy:
		w.perSM, w.maxBlocks = 0, s.model.sms*s.model.warpsPerSM*32/w.kernel.threads
	case k.Field == gpu.DRAMActive:
		w.perSM, w.perChunk = 2, w.kernel.perChunk
		err = s.stream(w)
	}
	if err != nil {
		return nil, err
	}
	if w.function, err = s.function(w.kernel); err != nil {
		return nil, err
	}
	return w, w.prepare(s.context)
}

// kernelOf returns a kind's kernel, its p_bytes and its p_arg. The iterations of a chunk take a few microseconds.
func (s *session) kernelOf(k Kind) (_ kernel, bytes, arg uint64) {
	switch k.Field {
	case gpu.TensorActive:
		for _, m := range mmas {
			if s.model.capability >= m.least {
				return tensorKernel(m), 2, 0
			}
		}
	case gpu.FP64Active:
		iterations := uint64(1)
		if peak, _ := s.model.fmaPerCycle(k.Field); peak >= 32 {
			iterations = 8
		}
		return fp64Kernel(), iterations, math.Float64bits(-1)
	case gpu.FP32Active:
		return fp32Kernel(), 4, minusOne32
	case gpu.FP16Active:
		return fp16Kernel(), 4, minusOne16
	case gpu.DRAMActive:
		return dramKernel(), 0, 0
	}
	if k.Name == VectorAdd {
		return vectorAddKernel(), vectorLength, 0
	}
	spin := spinKernel()
	if k.Field == gpu.SMOccupancy {
		spin.threads = 128 // divides what every SM holds, within its limit of blocks
	}
	return spin, 0, 0
}

// The memory that copies take, and how much more than the second-level cache a stream must read.
const (
	pcieBytes   = 16 << 20
	nvlinkBytes = 64 << 20
	overL2      = 8
)

// stream gives the load of memory the buffer that it reads, full of random bits.
func (s *session) stream(w *kernelWork) error {
	free, err := s.context.FreeMemory()
	if err != nil {
		return err
	}
	bytes := min(s.bounds.MemoryBytes, free/10*9)
	bytes -= min(2*nvlinkBytes, bytes/4) // for copies at the same time
	if bytes < tileBytes {
		return failuref(ExitMemory, "%d bytes of memory for reads: want at least %d (--memory, and what the GPU has free)", bytes, tileBytes)
	}
	if bytes < overL2*s.model.l2 {
		s.note("reads of %d MiB, less than %d times the cache of %d MiB, reach the memory in part only", bytes>>20, overL2, s.model.l2>>20)
	}
	w.maxBlocks = max(1, min(w.perSM*s.model.sms, int(bytes/tileBytes)))
	bytes -= bytes % (uint64(w.maxBlocks) * tileBytes) // so that no block reads the tiles of another
	w.size = bytes
	_, filled := s.buffers["stream"]
	if w.data, err = s.buffer("stream", bytes); err != nil || filled {
		w.size = w.data.Bytes
		return err
	}
	// All blocks of the fill have a tile.
	if bytes/tileBytes < uint64(s.model.sms) {
		return nil
	}
	_, err = s.once(fillKernel(), 5*time.Second, w.data, bytes)
	return err
}

// part limits the memory of copies to an eighth of what the load may use.
func (s *session) part(bytes uint64) uint64 {
	return min(bytes, max(leastCopy, s.bounds.MemoryBytes/8/leastCopy*leastCopy))
}

// copies prepares a load of PCIe or NVLink.
func (s *session) copies(k Kind) (work, error) {
	w := &copyWork{kind: k, model: s.model}
	if err := w.prepare(s.context); err != nil {
		return nil, err
	}
	var err error
	if k.Field == gpu.PCIeTxBytes || k.Field == gpu.PCIeRxBytes {
		err = s.pcie(w)
	} else {
		err = s.nvlink(w)
	}
	if err != nil {
		return nil, err
	}
	return w, w.measure()
}

func (s *session) pcie(w *copyWork) error {
	w.most = s.part(pcieBytes)
	memory, err := s.buffer(w.kind.Name, w.most)
	if err != nil {
		return err
	}
	host, err := s.context.HostAlloc(w.most)
	if err != nil {
		return err
	}
	for i := 0; i+8 <= len(host); i += 8 {
		binary.LittleEndian.PutUint64(host[i:], uint64(i+1)*0x9e3779b97f4a7c15) // random bits
	}
	if s.sensors != nil {
		w.peak = pcieBytesPerSecond(s.sensors.PCIeLink())
	}
	w.copy = func(bytes uint64) error { return w.stream.ToHost(host[:bytes], memory) }
	if w.kind.Field == gpu.PCIeRxBytes {
		w.copy = func(bytes uint64) error { return w.stream.ToDevice(memory, host[:bytes]) }
	}
	return nil
}

func (s *session) nvlink(w *copyWork) (err error) {
	if s.peer == nil {
		return failuref(ExitUnmeasured, "%s needs a second GPU whose memory this one can use: this process sees none", w.kind.Name)
	}
	if s.peers == nil {
		if s.peers, err = s.peer.Context(); err != nil {
			return err
		}
		if err := s.peers.EnablePeer(s.context); err != nil {
			return err
		}
		if s.buffers["peer"], err = s.peers.Alloc(s.part(nvlinkBytes)); err != nil {
			return err
		}
		if err := s.context.Use(); err != nil {
			return err
		}
		if err := s.context.EnablePeer(s.peers); err != nil {
			return err
		}
	}
	here, err := s.buffer("nvlink", s.part(nvlinkBytes))
	if err != nil {
		return err
	}
	to, from := s.buffers["peer"], here
	if w.kind.Field == gpu.NVLinkRxBytes {
		to, from = here, s.buffers["peer"]
	}
	w.most = here.Bytes
	w.copy = func(bytes uint64) error {
		to.Bytes = bytes
		return w.stream.ToPeer(to, from)
	}
	return nil
}
