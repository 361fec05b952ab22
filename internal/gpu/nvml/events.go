// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"log/slog"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

const (
	// eventWait is the time of one wait for an event; closing waits for it.
	// Each wait wakes the process, which costs as much as the start of a
	// collection. Some libraries deliver an event only to a wait that begins
	// after another call has noticed it, so eventWait also limits the delay of
	// such an event.
	eventWait = time.Second
	// The pauses after a failed wait, doubling.
	minBackoff, maxBackoff = 100 * time.Millisecond, 30 * time.Second
)

// noInstance is the GPU instance id of an event that concerns the whole GPU.
const noInstance = 0xFFFFFFFF

// place is the GPU of an event and, under MIG, the instance.
type place struct {
	device   nvml.Device
	instance uint32 // noInstance: the whole GPU
}

// events waits for XID errors. NVML has no getter for them: an error outside a
// wait is lost.
type events struct {
	ses  *session
	xids *gpu.XIDLog
	each time.Duration // of one wait: eventWait
	log  *slog.Logger
	able bool // the library has events

	mu      sync.Mutex
	uuids   map[place]string     // cached: NVML cannot read the UUID of a GPU that is off the bus
	wanted  map[nvml.Device]bool // whole GPUs to register; false: the GPU has no XID events
	ready   map[nvml.Device]bool // those that are
	renewal bool                 // a device came back, perhaps without its registration
	failing bool                 // the last wait failed

	started bool
	quit    chan struct{}
	ended   chan struct{}
}

func newEvents(s *session, xids *gpu.XIDLog, wait time.Duration, log *slog.Logger) *events {
	e := &events{
		ses: s, xids: xids, each: wait, log: log, uuids: map[place]string{}, wanted: map[nvml.Device]bool{},
		ready: map[nvml.Device]bool{}, quit: make(chan struct{}), ended: make(chan struct{}),
	}
	e.able = s.hasAll("nvmlEventSetCreate", "nvmlEventSetFree", "nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes") &&
		s.hasAny("nvmlEventSetWait_v2", "nvmlEventSetWait")
	return e
}

// watch sets the devices. The first call registers them before it returns, so
// that later events are not missed, and starts the goroutine. Devices of later
// calls are registered between two waits.
func (e *events) watch(devices map[string]*device) {
	if !e.able {
		return
	}
	e.mu.Lock()
	clear(e.uuids)
	wanted := make(map[nvml.Device]bool, len(devices))
	for uuid, d := range devices {
		if d.MIG != nil {
			e.uuids[place{d.root, uint32(d.MIG.GPUInstance)}] = uuid
			continue
		}
		e.uuids[place{d.root, noInstance}] = uuid
		able, known := e.wanted[d.root]
		wanted[d.root] = able || !known
	}
	e.wanted = wanted
	e.mu.Unlock()
	if !e.started && e.ses.Enter() {
		e.started = true
		go e.run(e.register(nil))
	}
}

// registered reports whether events waits for XIDs of a GPU.
func (e *events) registered(root nvml.Device) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ready[root] && !e.failing
}

// renew requests a new registration of all GPUs.
func (e *events) renew() {
	e.mu.Lock()
	e.renewal = true
	e.mu.Unlock()
}

// stop ends the goroutine and waits for it, for up to vendorlib.ClosePatience.
func (e *events) stop() {
	close(e.quit)
	if !e.started {
		return
	}
	timer := time.NewTimer(vendorlib.ClosePatience)
	defer timer.Stop()
	select {
	case <-e.ended:
	case <-timer.C:
		e.log.Warn("wait for GPU events does not return")
	}
}

// run waits for events until stop. It has entered the session.
func (e *events) run(set nvml.EventSet) {
	defer close(e.ended)
	defer e.ses.Leave()
	backoff := minBackoff
	for !e.stopped() {
		set = e.register(set)
		ret := e.wait(set)
		failed := ret != nvml.SUCCESS && ret != nvml.ERROR_TIMEOUT
		e.mu.Lock()
		e.failing = failed
		e.mu.Unlock()
		if !failed {
			backoff = minBackoff
			continue
		}
		e.free(set)
		set = nil
		if classify(ret) == gone {
			e.ses.Break() // the next Devices ends this session
			<-e.quit
			return
		}
		if backoff == minBackoff {
			e.log.Warn("wait for GPU events failed, will try again", "err", reason(ret))
		}
		e.pause(backoff)
		backoff = min(2*backoff, maxBackoff)
	}
	e.free(set)
}

// wait waits for one event and counts it. Without a registered GPU it does not
// call the library.
func (e *events) wait(set nvml.EventSet) nvml.Return {
	e.mu.Lock()
	none := len(e.ready) == 0
	e.mu.Unlock()
	if set == nil || none {
		e.pause(e.each)
		return nvml.ERROR_TIMEOUT
	}
	began := time.Now()
	data, ret := set.Wait(uint32(e.each.Milliseconds()))
	switch early := e.each - time.Since(began); {
	case ret == nvml.SUCCESS:
		e.note(data)
	case ret == nvml.ERROR_TIMEOUT && early > e.each/2:
		e.pause(early) // if a library does not wait, wait here, so that the caller does not spin
	}
	return ret
}

func (e *events) stopped() bool {
	select {
	case <-e.quit:
		return true
	default:
		return false
	}
}

// pause waits for d, or until stop.
func (e *events) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-e.quit:
	case <-timer.C:
	}
}

func (e *events) free(set nvml.EventSet) {
	if set == nil {
		return
	}
	_ = set.Free() // an error cannot be handled
	e.mu.Lock()
	clear(e.ready)
	e.mu.Unlock()
}

// register registers the wanted GPUs that are not registered, in set, or in a
// new set if set is nil or must be renewed. It returns nil if no set can be
// created.
func (e *events) register(set nvml.EventSet) nvml.EventSet {
	e.mu.Lock()
	renewal := e.renewal && set != nil
	e.renewal = false
	var missing []nvml.Device
	for d, able := range e.wanted {
		if able && (!e.ready[d] || renewal) {
			missing = append(missing, d)
		}
	}
	e.mu.Unlock()
	if len(missing) == 0 {
		return set
	}
	if renewal {
		// Read the remaining events of the old set before it is freed.
		for data, ret := set.Wait(0); ret == nvml.SUCCESS; data, ret = set.Wait(0) {
			e.note(data)
		}
		e.free(set)
		set = nil
	}
	if set == nil {
		fresh, ret := e.ses.lib.EventSetCreate()
		if ret != nvml.SUCCESS {
			return nil
		}
		set = fresh
	}
	for _, d := range missing {
		able, done := e.registerOne(d, set)
		e.mu.Lock()
		if done {
			e.ready[d] = true
		}
		if _, still := e.wanted[d]; still {
			e.wanted[d] = able
		}
		e.mu.Unlock()
	}
	return set
}

// registerOne reports whether the GPU has XID events, and whether it is
// registered now.
func (e *events) registerOne(d nvml.Device, set nvml.EventSet) (able, done bool) {
	types, ret := d.GetSupportedEventTypes()
	if ret == nvml.SUCCESS && types&nvml.EventTypeXidCriticalError != 0 {
		ret = d.RegisterEvents(nvml.EventTypeXidCriticalError, set)
		return classify(ret) != unsupported, ret == nvml.SUCCESS
	}
	return ret != nvml.SUCCESS && classify(ret) != unsupported, false
}

// note counts an event for the instance that it names, or for its GPU.
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
	if !ok { // some libraries create a new handle for each event
		id, ret := data.Device.GetUUID()
		uuid, ok = id, ret == nvml.SUCCESS && id != ""
	}
	if !ok {
		e.log.Warn("XID error on an unknown GPU", "xid", data.EventData)
		return
	}
	e.log.Warn("XID error", "xid", data.EventData, "uuid", uuid)
	e.xids.Add(uuid, data.EventData, time.Now())
}
