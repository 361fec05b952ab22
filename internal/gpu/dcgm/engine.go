// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
#include "binding.h"
*/
import "C"

import (
	"cmp"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// The kinds of entities, from dcgm_field_entity_group_t.
const (
	kindNone     = 0 // of the node
	kindGPU      = 1
	kindVGPU     = 2
	kindSwitch   = 3
	kindInstance = 4
	kindCompute  = 5
	kindLink     = 6
	kindCPU      = 7
	kindCore     = 8
)

// entity is DCGM's identity of a device.
type entity struct {
	kind C.int
	id   uint
}

type (
	value    = C.gp_value
	instance = C.gp_instance
	group    = C.uintptr_t // of entities
	fieldSet = C.uintptr_t
)

// engine is a host engine that was started or connected to.
type engine struct {
	lib      *C.gp_lib
	handle   C.uintptr_t
	embedded bool
	remote   string // the host engine's address; empty: embedded
	client   string // the library's version; empty: not known
	server   string // the host engine's version; empty: not known
}

// start loads the library and starts an engine, or connects to a remote one.
// The library stays loaded.
func start(library, remote string) (*engine, error) {
	lib, err := load(library)
	if err != nil {
		return nil, err
	}
	e := &engine{lib: lib, embedded: remote == "", remote: remote}
	address, how := parseAddress(remote)
	c := C.CString(address)
	defer C.free(unsafe.Pointer(c))
	var r C.int
	switch {
	case e.embedded:
		r = C.gp_embedded(lib, &e.handle)
	case how == byURL:
		r = C.gp_connect_url(lib, c, &e.handle)
	default:
		r = C.gp_connect(lib, c, C.int(how), &e.handle)
	}
	e.askVersions(r == 0)
	if err := e.failed("start DCGM's engine", r); err != nil {
		if !e.embedded {
			err = noEngine{e.failed("connect to host engine "+remote, r)}
		} else {
			err = fmt.Errorf("%w: %w", gpu.ErrNoDriver, err)
		}
		e.free()
		return nil, err
	}
	return e, nil
}

// askVersions asks the library for its release, and a host engine to which there
// is a connection for its own.
func (e *engine) askVersions(connected bool) {
	var v C.struct_dcgm_version_v2
	if C.gp_version(e.lib, &v) == 0 {
		e.client = release(textOf(v.text[:]))
	}
	if connected && !e.embedded && C.gp_engine_version(e.lib, e.handle, &v) == 0 {
		e.server = release(textOf(v.text[:]))
	}
}

// release returns the release in DCGM's text about a version, such as
// "version:4.5.2;arch:x86_64"; empty if there is none.
func release(text string) string {
	for part := range strings.SplitSeq(text, ";") {
		if v, ok := strings.CutPrefix(part, "version:"); ok {
			return v
		}
	}
	return ""
}

// versions says which releases do not understand one another.
func (e *engine) versions() string {
	client := "libdcgm is " + cmp.Or(e.client, "of an unknown version")
	if e.embedded {
		return client + "; all of its files must be of one release"
	}
	return fmt.Sprintf("%s and host engine %s is %s; install the same release on both sides", client, e.remote, cmp.Or(e.server, "of an unknown version"))
}

func load(path string) (*C.gp_lib, error) {
	c := C.CString(path)
	defer C.free(unsafe.Pointer(c))
	runtime.LockOSThread() // dlerror is per thread
	defer runtime.UnlockOSThread()
	lib := (*C.gp_lib)(C.calloc(1, C.sizeof_gp_lib))
	missing := C.gp_load(c, lib)
	switch {
	case missing == nil:
		return lib, nil
	case lib.handle == nil:
		err := fmt.Errorf("%w: %s", gpu.ErrNoLibrary, C.GoString(C.dlerror()))
		C.free(unsafe.Pointer(lib))
		return nil, err
	}
	C.free(unsafe.Pointer(lib))
	return nil, fmt.Errorf("%w: %s is not DCGM 4: it lacks %s", gpu.ErrNoLibrary, path, C.GoString(missing))
}

// The ways to pass an address to DCGM.
const (
	byTCP = iota
	byUnix
	byURL // needs DCGM 4.5
)

// parseAddress parses a host engine's address.
func parseAddress(remote string) (address string, how int) {
	switch scheme, rest, _ := strings.Cut(remote, "://"); strings.ToLower(scheme) {
	case "vsock":
		return remote, byURL
	case "unix":
		return rest, byUnix
	case "tcp":
		return rest, byTCP
	}
	if strings.HasPrefix(remote, "/") {
		return remote, byUnix
	}
	return remote, byTCP
}

// end stops the engine or disconnects from it.
func (e *engine) end() error {
	err := e.failed("leave DCGM", C.gp_end(e.lib, e.handle, boolInt(e.embedded)))
	e.free()
	return err
}

func (e *engine) free() {
	C.free(unsafe.Pointer(e.lib))
	e.lib = nil
}

// textOf returns the C string in an array.
func textOf(chars []C.char) string { return C.GoString(&chars[0]) }

func boolInt(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// entities lists DCGM's ids of all entities of a kind.
func (e *engine) entities(kind C.int) ([]uint, error) {
	var ids [C.DCGM_ENTITIES]C.uint
	n := C.int(len(ids))
	if err := e.failed("list entities", C.gp_entities(e.lib, e.handle, kind, &ids[0], &n)); err != nil {
		return nil, err
	}
	out := make([]uint, n)
	for i := range out {
		out[i] = uint(ids[i])
	}
	return out, nil
}

// status returns DCGM's status of the GPU.
func (e *engine) status(gpuID uint) (status, error) {
	var s C.int
	r := C.gp_status(e.lib, e.handle, C.uint(gpuID), &s)
	return status(s), e.failed("ask for the GPU's status", r)
}

// instances lists GPU instances and compute instances.
func (e *engine) instances() ([]instance, error) {
	list := make([]instance, C.DCGM_INSTANCES)
	n := C.int(len(list))
	if err := e.failed("list MIG instances", C.gp_instances(e.lib, e.handle, &list[0], &n)); err != nil {
		return nil, err
	}
	return list[:n], nil
}

// profiling lists the profiling fields that a GPU gives.
func (e *engine) profiling(gpuID uint) (map[gpu.FieldID]bool, error) {
	var fields [C.DCGM_PROF_GROUPS * C.DCGM_PROF_FIELDS]C.uint16_t
	n := C.int(len(fields))
	if err := e.failed("ask for profiling fields", C.gp_profiling(e.lib, e.handle, C.uint(gpuID), &fields[0], &n)); err != nil {
		return nil, err
	}
	out := make(map[gpu.FieldID]bool, n)
	for _, id := range fields[:n] {
		out[gpu.FieldID(id)] = true
	}
	return out, nil
}

// meta returns the type of a field's values, and the kind of entity that has it. ok is
// false if the library does not know the field.
func (e *engine) meta(id gpu.FieldID) (fieldType byte, level int, ok bool) {
	var t C.char
	var kind C.int
	known := C.gp_field(e.lib, C.uint16_t(id), &t, &kind)
	return byte(t), int(kind), known != 0
}

// links lists the NVLinks that are up.
func (e *engine) links() ([]C.gp_link, error) {
	list := make([]C.gp_link, C.DCGM_GPUS*C.DCGM_LINKS_V5+C.DCGM_SWITCHES*C.DCGM_SWITCH_LINKS)
	n := C.int(len(list))
	err := e.failed("list NVLinks", C.gp_links(e.lib, e.handle, &list[0], &n))
	return list[:n], err
}

func (e *engine) cpus() ([]C.gp_cpu, error) {
	list := make([]C.gp_cpu, C.DCGM_CPUS)
	n := C.int(len(list))
	err := e.failed("list CPUs", C.gp_cpus(e.lib, e.handle, &list[0], &n))
	return list[:n], err
}

func (e *engine) peers() ([]C.gp_peer, error) {
	list := make([]C.gp_peer, C.DCGM_GPUS*C.DCGM_GPUS)
	n := C.int(len(list))
	err := e.failed("ask for peers", C.gp_peers(e.lib, e.handle, &list[0], &n))
	return list[:n], err
}

func (e *engine) topology(gpu uint) (C.gp_place, error) {
	var p C.gp_place
	return p, e.failed("ask for the topology", C.gp_topology(e.lib, e.handle, C.uint(gpu), &p))
}

func (e *engine) group(name string, of ...entity) (group, error) {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	list := make([]C.struct_dcgm_entity, len(of))
	for i, o := range of {
		list[i] = C.struct_dcgm_entity{kind: C.uint(o.kind), id: C.uint(o.id)}
	}
	var g group
	r := C.gp_group(e.lib, e.handle, c, &list[0], C.int(len(list)), &g)
	return g, e.failed("make a group", r)
}

func (e *engine) ungroup(g group) { C.gp_ungroup(e.lib, e.handle, g) }

// keep limits the samples that DCGM keeps of a watch.
type keep struct {
	seconds float64 // 0: no limit
	samples int     // 0: no limit
}

// watch makes DCGM update fields of a group every everyMicros, and waits for
// the first update.
func (e *engine) watch(g group, name string, ids []gpu.FieldID, everyMicros int64, k keep) (fieldSet, error) {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	fields := fieldList(ids)
	var set fieldSet
	r := C.gp_watch(e.lib, e.handle, g, c, &fields[0], C.int(len(fields)), C.int64_t(everyMicros), C.double(k.seconds), C.int(k.samples), &set)
	return set, e.failed("watch", r)
}

func (e *engine) unwatch(g group, set fieldSet) { C.gp_unwatch(e.lib, e.handle, g, set) }

// latest reads watched fields into values, one each.
func (e *engine) latest(of entity, fields []C.uint16_t, values []value) error {
	return e.failed("read", C.gp_latest(e.lib, e.handle, of.kind, C.uint(of.id), &fields[0], C.int(len(fields)), &values[0]))
}

// live reads fields as text, without DCGM's cache. A missing value is empty.
func (e *engine) live(of entity, ids ...gpu.FieldID) ([]string, error) {
	fields := fieldList(ids)
	out := make([]C.gp_text, len(ids))
	if err := e.failed("read", C.gp_live(e.lib, e.handle, of.kind, C.uint(of.id), &fields[0], C.int(len(fields)), &out[0])); err != nil {
		return nil, err
	}
	texts := make([]string, len(ids))
	for i := range out {
		v := &out[i].value
		texts[i] = decodeText(byte(v._type), int(v.status), uint64(v.word), textOf(out[i].text[:]))
	}
	return texts, nil
}

// since reads the samples of a watch from a time on, up to the length of
// values.
func (e *engine) since(g group, set fieldSet, fromMicros int64, values []value) ([]value, error) {
	n := C.int(len(values))
	if err := e.failed("read samples", C.gp_since(e.lib, e.handle, g, set, C.int64_t(fromMicros), &values[0], &n)); err != nil {
		return nil, err
	}
	return values[:n], nil
}
