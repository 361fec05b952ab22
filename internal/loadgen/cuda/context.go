// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"unsafe"
)

// Context is the primary context of a device. It remembers what was allocated in it, and frees that when it is closed.
//
// Its methods need a thread on which Use was called, and which runtime.LockOSThread keeps.
type Context struct {
	driver *Driver
	device *Device
	handle uintptr

	mu    sync.Mutex
	undo  []undo
	fatal Result // the result after which nothing can be freed
}

// undo frees something.
type undo struct {
	call string
	free func() Result
}

// Context retains the device's primary context and makes it current on this thread.
func (d *Device) Context() (*Context, error) {
	c := &Context{driver: d.driver, device: d}
	if err := c.check("cuDevicePrimaryCtxRetain", d.driver.contextRetain(&c.handle, d.handle)); err != nil {
		return nil, err
	}
	c.later("cuDevicePrimaryCtxRelease", func() Result { return d.driver.contextRelease(d.handle) })
	if err := c.Use(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Use makes the context current on this thread.
func (c *Context) Use() error { return c.check("cuCtxSetCurrent", c.driver.contextSet(c.handle)) }

// check is the error of a call. It remembers a fatal one.
func (c *Context) check(call string, r Result) error {
	if r.Fatal() {
		c.mu.Lock()
		c.fatal = r
		c.mu.Unlock()
	}
	return check(call, r)
}

// Fatal returns the result after which nothing can be freed; Success if there was none.
func (c *Context) Fatal() Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fatal
}

// later has Close call free.
func (c *Context) later(call string, free func() Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.undo = append(c.undo, undo{call, free})
}

// Close frees everything in reverse order and releases the context. After a fatal error it frees nothing: the calls
// could block, and the end of the process frees everything.
func (c *Context) Close() error {
	c.mu.Lock()
	list := c.undo
	c.undo = nil
	c.mu.Unlock()
	var errs []error
	if len(list) > 1 && c.Fatal() == Success {
		errs = append(errs, c.Use())
	}
	for _, u := range slices.Backward(list) {
		if c.Fatal() != Success {
			break
		}
		errs = append(errs, c.check(u.call, u.free()))
	}
	return errors.Join(errs...)
}

// FreeMemory returns the device's free memory in bytes.
func (c *Context) FreeMemory() (uint64, error) {
	var free, total uint64
	return free, c.check("cuMemGetInfo", c.driver.memoryInfo(&free, &total))
}

// EnablePeer lets this context use the memory of another.
func (c *Context) EnablePeer(peer *Context) error {
	r := c.driver.peerEnable(peer.handle, 0)
	if r == PeerAlreadyEnabled {
		return nil
	}
	return c.check("cuCtxEnablePeerAccess", r)
}

// jitLog is the size of the compiler's log.
const jitLog = 8192

// Function compiles PTX for the device and returns its function of this name. The driver's compiler log is part of the
// error.
func (c *Context) Function(ptx, name string) (Function, error) {
	image := append([]byte(ptx), 0)
	log := make([]byte, jitLog)
	options := []uint32{5, 6} // CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
	// The driver reads the size, which is a number, from a pointer's place.
	values := []unsafe.Pointer{unsafe.Pointer(&log[0]), number(jitLog)}
	var module uintptr
	r := c.driver.moduleLoad(&module, &image[0], uint32(len(options)), &options[0], &values[0])
	runtime.KeepAlive(log)
	if err := c.check("cuModuleLoadDataEx", r); err != nil {
		if text := text(log); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return Function{}, fmt.Errorf("compile kernel %s: %w", name, err)
	}
	c.later("cuModuleUnload", func() Result { return c.driver.moduleUnload(module) })
	f := Function{context: c, Name: name}
	if err := c.check("cuModuleGetFunction", c.driver.moduleFunction(&f.handle, module, name)); err != nil {
		return Function{}, fmt.Errorf("kernel %s: %w", name, err)
	}
	return f, nil
}

// number is a number in a pointer's place, as some options of the driver have it.
func number(n uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&n))
}

// Function is a kernel.
type Function struct {
	context *Context
	handle  uintptr
	Name    string
}

// AllowShared lets the kernel have more dynamic shared memory than 48 KiB.
func (f Function) AllowShared(bytes int) error {
	const maxDynamicShared = 8 // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
	return f.context.check("cuFuncSetAttribute", f.context.driver.functionSet(f.handle, maxDynamicShared, int32(bytes)))
}

// Launch is the size of a launch.
type Launch struct {
	Blocks, Threads, SharedBytes int
}

// Launch starts the kernel in a stream. Every parameter of our kernels is a 64-bit number.
func (f Function) Launch(l Launch, s Stream, params []uint64) error {
	pointers := make([]unsafe.Pointer, len(params))
	for i := range params {
		pointers[i] = unsafe.Pointer(&params[i])
	}
	r := f.context.driver.launch(f.handle, uint32(l.Blocks), 1, 1, uint32(l.Threads), 1, 1, uint32(l.SharedBytes), s.handle, &pointers[0], nil)
	runtime.KeepAlive(params)
	runtime.KeepAlive(pointers)
	if err := f.context.check("cuLaunchKernel", r); err != nil {
		return fmt.Errorf("kernel %s: %w", f.Name, err)
	}
	return nil
}

// Memory is memory of the device.
type Memory struct {
	context *Context
	Address uint64
	Bytes   uint64
}

// Alloc allocates memory of the device.
func (c *Context) Alloc(bytes uint64) (Memory, error) {
	m := Memory{context: c, Bytes: bytes}
	if err := c.check("cuMemAlloc", c.driver.alloc(&m.Address, bytes)); err != nil {
		return Memory{}, fmt.Errorf("%d bytes: %w", bytes, err)
	}
	c.later("cuMemFree", func() Result { return c.driver.free(m.Address) })
	return m, nil
}

// HostAlloc allocates pinned memory of the host. It is freed when the context is closed.
func (c *Context) HostAlloc(bytes uint64) ([]byte, error) {
	var p unsafe.Pointer
	if err := c.check("cuMemHostAlloc", c.driver.hostAlloc(&p, bytes, 0)); err != nil {
		return nil, fmt.Errorf("%d bytes of the host: %w", bytes, err)
	}
	c.later("cuMemFreeHost", func() Result { return c.driver.hostFree(p) })
	return unsafe.Slice((*byte)(p), bytes), nil
}

// Stream is a queue of the device.
type Stream struct {
	context *Context
	handle  uintptr
}

// NewStream creates a stream that does not wait for others.
func (c *Context) NewStream() (Stream, error) {
	const nonBlocking = 1
	s := Stream{context: c}
	if err := c.check("cuStreamCreate", c.driver.streamCreate(&s.handle, nonBlocking)); err != nil {
		return Stream{}, err
	}
	c.later("cuStreamDestroy", func() Result { return c.driver.streamDestroy(s.handle) })
	return s, nil
}

// Zero sets the first bytes of memory to 0.
func (s Stream) Zero(m Memory, bytes uint64) error {
	return s.context.check("cuMemsetD32Async", s.context.driver.memset(m.Address, 0, bytes/4, s.handle))
}

// ToHost copies the first len(to) bytes of memory to pinned memory of the host.
func (s Stream) ToHost(to []byte, from Memory) error {
	return s.context.check("cuMemcpyDtoHAsync", s.context.driver.copyToHost(unsafe.Pointer(&to[0]), from.Address, uint64(len(to)), s.handle))
}

// ToDevice copies pinned memory of the host.
func (s Stream) ToDevice(to Memory, from []byte) error {
	return s.context.check("cuMemcpyHtoDAsync", s.context.driver.copyToDevice(to.Address, unsafe.Pointer(&from[0]), uint64(len(from)), s.handle))
}

// ToPeer copies memory of one device to another's.
func (s Stream) ToPeer(to, from Memory) error {
	return s.context.check("cuMemcpyPeerAsync",
		s.context.driver.copyPeer(to.Address, to.context.handle, from.Address, from.context.handle, min(to.Bytes, from.Bytes), s.handle))
}

// Event marks a point of a stream.
type Event struct {
	context *Context
	handle  uintptr
}

// NewEvent creates an event. A thread that waits for it sleeps.
func (c *Context) NewEvent() (Event, error) {
	const blockingSync = 1
	e := Event{context: c}
	if err := c.check("cuEventCreate", c.driver.eventCreate(&e.handle, blockingSync)); err != nil {
		return Event{}, err
	}
	c.later("cuEventDestroy", func() Result { return c.driver.eventDestroy(e.handle) })
	return e, nil
}

// Record puts the event at the end of a stream.
func (e Event) Record(s Stream) error {
	return e.context.check("cuEventRecord", e.context.driver.eventRecord(e.handle, s.handle))
}

// Wait waits until the stream has reached the event.
func (e Event) Wait() error {
	return e.context.check("cuEventSynchronize", e.context.driver.eventSynchronize(e.handle))
}

// Since returns the milliseconds between two events that were reached; the resolution is half a microsecond.
func (e Event) Since(before Event) (float64, error) {
	var ms float32
	r := e.context.driver.eventElapsed(&ms, before.handle, e.handle)
	return float64(ms), e.context.check("cuEventElapsedTime", r)
}
