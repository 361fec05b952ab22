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
	// eventWait is how long one wait for an event takes; closing waits for it. Each
	// wait wakes the process, which costs as much as a collection's start.
	// Some libraries deliver an event only to a wait that begins after another
	// call has noticed it, so it also bounds how late such an event is seen.
	eventWait = time.Second
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
	xids *gpu.XIDLog
	log  *slog.Logger
	able bool // the library has events

	mu      sync.Mutex
	uuids   map[place]string     // cached: a GPU that is off the bus no longer tells its UUID
	wanted  map[nvml.Device]bool // whole GPUs that should be registered; false: has no XID events
	ready   map[nvml.Device]bool // those that are
	renewal bool                 // a device came back: its registration may not have
	failing bool                 // the last wait failed

	started bool
	quit    chan struct{}
	ended   chan struct{}
}

func newEvents(s *session, xids *gpu.XIDLog, log *slog.Logger) *events {
	e := &events{
		ses: s, xids: xids, log: log, uuids: map[place]string{}, wanted: map[nvml.Device]bool{},
		ready: map[nvml.Device]bool{}, quit: make(chan struct{}), ended: make(chan struct{}),
	}
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

// registered says whether XIDs of a GPU are being waited for.
func (e *events) registered(root nvml.Device) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ready[root] && !e.failing
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

// wait waits for one event and counts it. Without a set, or with nothing in
// it, there is nothing to ask the library.
func (e *events) wait(set nvml.EventSet) nvml.Return {
	e.mu.Lock()
	none := len(e.ready) == 0
	e.mu.Unlock()
	if set == nil || none {
		e.pause(eventWait)
		return nvml.ERROR_TIMEOUT
	}
	began := time.Now()
	data, ret := set.Wait(uint32(eventWait.Milliseconds()))
	switch early := eventWait - time.Since(began); {
	case ret == nvml.SUCCESS:
		e.note(data)
	case ret == nvml.ERROR_TIMEOUT && early > eventWait/2:
		e.pause(early) // a library that does not wait must not make the caller spin
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
	_ = set.Free() // nothing is left to do about it
	e.mu.Lock()
	clear(e.ready)
	e.mu.Unlock()
}

// register registers what is wanted and not yet registered, in set or, where
// that is nil or must be renewed, in a new one. It returns nil where no set can
// be made.
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

// registerOne says whether the GPU has XID events at all and whether it is
// registered now.
func (e *events) registerOne(d nvml.Device, set nvml.EventSet) (able, done bool) {
	types, ret := d.GetSupportedEventTypes()
	if ret == nvml.SUCCESS && types&nvml.EventTypeXidCriticalError != 0 {
		ret = d.RegisterEvents(nvml.EventTypeXidCriticalError, set)
		return classify(ret) != unsupported, ret == nvml.SUCCESS
	}
	return ret != nvml.SUCCESS && classify(ret) != unsupported, false
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
	if !ok { // a library that makes a new handle for each event
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
