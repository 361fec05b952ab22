// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

const (
	// eventWait is how long one wait for an event takes; closing waits for it.
	// Some libraries deliver an event only to a wait that begins after another
	// call has noticed it, so it also bounds how late such an event is seen.
	eventWait = 500 * time.Millisecond
	// The pauses after a failed wait, doubling.
	minBackoff, maxBackoff = 100 * time.Millisecond, 30 * time.Second
)

// noInstance is the GPU instance id of an event that concerns the whole GPU.
const noInstance = 0xFFFFFFFF

// place is where an event happened: the GPU and, under MIG, the instance.
type place struct {
	device   nvml.Device
	instance uint32 // noInstance: the whole GPU
}

// events waits for XID errors. NVML has no getter for them: what is missed
// while nobody waits is lost.
type events struct {
	ses  *session
	xids *xidLog
	log  *slog.Logger
	able bool // the library has events

	mu      sync.Mutex
	uuids   map[place]string     // cached: a GPU that is off the bus no longer tells its UUID
	wanted  map[nvml.Device]bool // whole GPUs that should be registered; false: has no XID events
	ready   map[nvml.Device]bool // those that are
	renewal bool                 // a device came back: its registration may not have

	started bool
	quit    chan struct{}
	ended   chan struct{}
}

func newEvents(s *session, xids *xidLog, log *slog.Logger) *events {
	e := &events{ses: s, xids: xids, log: log, uuids: map[place]string{}, wanted: map[nvml.Device]bool{},
		ready: map[nvml.Device]bool{}, quit: make(chan struct{}), ended: make(chan struct{})}
	e.able = s.hasAll("nvmlEventSetCreate", "nvmlEventSetFree", "nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes") &&
		s.hasAny("nvmlEventSetWait_v2", "nvmlEventSetWait")
	return e
}

// watch says which devices there are. The first call registers them before it
// returns, so that no event after it is missed, and starts the goroutine; what
// later calls add is registered between two waits.
func (e *events) watch(devices map[string]*device) {
	if !e.able {
		return
	}
	e.mu.Lock()
	clear(e.uuids)
	clear(e.wanted)
	for uuid, d := range devices {
		if d.MIG != nil {
			e.uuids[place{d.root, uint32(d.MIG.GPUInstance)}] = uuid
			continue
		}
		e.uuids[place{d.root, noInstance}] = uuid
		e.wanted[d.root] = true
	}
	e.mu.Unlock()
	if !e.started && e.ses.enter() {
		e.started = true
		set, ok := e.register(nil)
		go e.run(set, ok)
	}
}

// registered says whether XIDs of a GPU are being waited for.
func (e *events) registered(root nvml.Device) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ready[root]
}

// renew asks for all registrations to be made anew.
func (e *events) renew() {
	e.mu.Lock()
	e.renewal = true
	e.mu.Unlock()
}

// stop ends the goroutine and waits for it, for one wait's time and some.
func (e *events) stop() {
	close(e.quit)
	if !e.started {
		return
	}
	timer := time.NewTimer(closePatience)
	defer timer.Stop()
	select {
	case <-e.ended:
	case <-timer.C:
		e.log.Warn("wait for GPU events does not return")
	}
}

// run waits for events until stop. It has entered the session.
func (e *events) run(set nvml.EventSet, ok bool) {
	defer close(e.ended)
	defer e.ses.leave()
	backoff := minBackoff
	for {
		if !ok {
			if !e.pause(backoff) {
				return
			}
			backoff = min(2*backoff, maxBackoff)
			set, ok = e.register(nil)
			continue
		}
		began := time.Now()
		data, ret := set.Wait(uint32(eventWait.Milliseconds()))
		stopping := false
		switch {
		case ret == nvml.SUCCESS:
			backoff = minBackoff
			e.note(data)
		case ret == nvml.ERROR_TIMEOUT:
			backoff = minBackoff
			// A library that does not wait must not make this loop spin.
			if early := eventWait - time.Since(began); early > eventWait/2 {
				stopping = !e.pause(early)
			}
		case classify(ret) == gone:
			e.ses.broken.Store(true) // the next Devices ends this session
			e.free(set)
			<-e.quit
			return
		default:
			e.log.Warn("wait for GPU events failed", "err", reason(ret))
			e.free(set)
			ok = false
			continue
		}
		if stopping || e.stopped() {
			e.free(set)
			return
		}
		set, ok = e.register(set)
	}
}

func (e *events) stopped() bool {
	select {
	case <-e.quit:
		return true
	default:
		return false
	}
}

// pause returns false when the pause was cut short by stop.
func (e *events) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-e.quit:
		return false
	case <-timer.C:
		return true
	}
}

func (e *events) free(set nvml.EventSet) {
	set.Free()
	e.mu.Lock()
	clear(e.ready)
	e.mu.Unlock()
}

// register registers what is wanted and not yet registered, in set or, where
// that is nil or must be renewed, in a new one.
func (e *events) register(set nvml.EventSet) (nvml.EventSet, bool) {
	e.mu.Lock()
	renewal := e.renewal
	e.renewal = false
	var missing []nvml.Device
	for d, able := range e.wanted {
		if able && (!e.ready[d] || renewal) {
			missing = append(missing, d)
		}
	}
	e.mu.Unlock()
	if set != nil && renewal {
		// What the old set still holds is taken out before it goes.
		for data, ret := set.Wait(0); ret == nvml.SUCCESS; data, ret = set.Wait(0) {
			e.note(data)
		}
		e.free(set)
		set = nil
	}
	if set == nil {
		fresh, ret := e.ses.lib.EventSetCreate()
		if ret != nvml.SUCCESS {
			e.log.Warn("GPU events cannot be waited for", "err", reason(ret))
			return nil, false
		}
		set = fresh
	}
	for _, d := range missing {
		types, ret := d.GetSupportedEventTypes()
		if classify(ret) == unsupported || ret == nvml.SUCCESS && types&nvml.EventTypeXidCriticalError == 0 {
			e.mu.Lock()
			e.wanted[d] = false
			e.mu.Unlock()
			continue
		}
		if d.RegisterEvents(nvml.EventTypeXidCriticalError, set) == nvml.SUCCESS {
			e.mu.Lock()
			e.ready[d] = true
			e.mu.Unlock()
		}
	}
	return set, true
}

// note counts an event on the instance that it names, else on its GPU.
func (e *events) note(data nvml.EventData) {
	if data.EventType&nvml.EventTypeXidCriticalError == 0 {
		return
	}
	e.mu.Lock()
	uuid, ok := e.uuids[place{data.Device, data.GpuInstanceId}]
	if !ok {
		uuid, ok = e.uuids[place{data.Device, noInstance}]
	}
	e.mu.Unlock()
	if !ok {
		e.log.Warn("XID error on an unknown GPU", "xid", data.EventData)
		return
	}
	e.log.Warn("XID error", "xid", data.EventData, "uuid", uuid)
	e.xids.add(uuid, data.EventData, time.Now())
}

// xidLog counts XID errors by device and code. It outlives sessions.
type xidLog struct {
	mu      sync.Mutex
	devices map[string]*xidsOf
}

type xidsOf struct {
	last   uint64 // the code of the last one
	counts []gpu.XIDCount
}

func (x *xidLog) add(uuid string, code uint64, at time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.devices == nil {
		x.devices = map[string]*xidsOf{}
	}
	d := x.devices[uuid]
	if d == nil {
		d = &xidsOf{}
		x.devices[uuid] = d
	}
	d.last = code
	i, found := slices.BinarySearchFunc(d.counts, code, func(c gpu.XIDCount, code uint64) int { return cmp.Compare(c.Code, code) })
	if !found {
		d.counts = slices.Insert(d.counts, i, gpu.XIDCount{Code: code})
	}
	d.counts[i].Count++
	d.counts[i].Last = at
}

func (x *xidLog) counts(uuid string) []gpu.XIDCount {
	x.mu.Lock()
	defer x.mu.Unlock()
	if d := x.devices[uuid]; d != nil {
		return slices.Clone(d.counts)
	}
	return nil
}

// last is the code of the device's last XID error, 0 while there was none.
func (x *xidLog) last(uuid string) uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if d := x.devices[uuid]; d != nil {
		return d.last
	}
	return 0
}
