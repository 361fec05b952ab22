// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

// gp_load loads a library. Without one, why is the loader's reason, to be freed.
static void *gp_load(const char *path, char **why) {
	dlerror();
	void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
	if (!library) *why = strdup(dlerror());
	return library;
}

static int gp_call(void *function) { return ((int (*)(void))function)(); }
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// trial is the library, loaded without go-nvml. go-nvml would hide why a library cannot
// be loaded, would call a missing function, which ends the process, and would keep a
// library that does not fit the driver.
type trial struct{ library, begin, end unsafe.Pointer }

// try loads the library and looks for the functions that are always needed.
func try(path string) (*trial, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var why *C.char
	t := &trial{library: C.gp_load(name, &why)}
	if t.library == nil {
		defer C.free(unsafe.Pointer(why))
		return nil, errors.New(C.GoString(why))
	}
	var found []unsafe.Pointer
	for _, either := range [][2]string{
		{"nvmlInit_v2", "nvmlInit"},
		{"nvmlShutdown", "nvmlShutdown"},
		{"nvmlDeviceGetUUID", "nvmlDeviceGetUUID"},
		{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"},
		{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
	} {
		f := t.lookup(either[0])
		if f == nil {
			f = t.lookup(either[1])
		}
		if f == nil {
			t.close()
			return nil, fmt.Errorf("%s is not NVML: it lacks %s", path, either[0])
		}
		found = append(found, f)
	}
	t.begin, t.end = found[0], found[1]
	return t, nil
}

func (t *trial) lookup(symbol string) unsafe.Pointer {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	return C.dlsym(t.library, name)
}

// init starts NVML. NVML counts starts and ends.
func (t *trial) init() nvml.Return { return nvml.Return(C.gp_call(t.begin)) }

// shutdown ends NVML.
func (t *trial) shutdown() { C.gp_call(t.end) }

// close unloads the library, unless others use it.
func (t *trial) close() { C.dlclose(t.library) }
