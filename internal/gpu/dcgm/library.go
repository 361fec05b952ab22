// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
*/
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// soname is what go-dcgm loads.
const soname = "libdcgm.so.4"

// symbols are the functions that this package has go-dcgm call. Each is bound
// at its first call, and a missing one would end the process.
var symbols = [...]string{
	"dcgmInit", "dcgmShutdown", "dcgmStartEmbedded", "dcgmStopEmbedded", "dcgmConnect_v2", "dcgmDisconnect", "errorString",
	"DcgmFieldsInit", "dcgmGetAllSupportedDevices", "dcgmGetEntityGroupEntities", "dcgmGetGpuStatus", "dcgmGetGpuInstanceHierarchy",
	"dcgmGroupCreate", "dcgmGroupDestroy", "dcgmGroupAddEntity", "dcgmFieldGroupCreate", "dcgmFieldGroupDestroy",
	"dcgmWatchFields", "dcgmUnwatchFields", "dcgmUpdateAllFields", "dcgmEntityGetLatestValues", "dcgmEntitiesGetLatestValues",
	"dcgmGetValuesSince_v2", "dcgmProfGetSupportedMetricGroups",
}

// load loads the library, for go-dcgm to find, and looks whether it is DCGM 4.
// It is not unloaded: functions that were bound to it stay bound.
func load(path string) error {
	lib, err := dlopen(path, C.RTLD_LAZY|C.RTLD_GLOBAL)
	if err != nil {
		return fmt.Errorf("%w: %w", gpu.ErrNoLibrary, err)
	}
	named, err := dlopen(soname, C.RTLD_LAZY|C.RTLD_NOLOAD)
	if err != nil || named != lib {
		return fmt.Errorf("%w: %s is not DCGM 4: it does not call itself %s", gpu.ErrNoLibrary, path, soname)
	}
	for _, name := range symbols {
		c := C.CString(name)
		found := C.dlsym(lib, c) != nil
		C.free(unsafe.Pointer(c))
		if !found {
			return fmt.Errorf("%w: %s is not DCGM 4: it lacks %s", gpu.ErrNoLibrary, path, name)
		}
	}
	return nil
}

func dlopen(path string, flags C.int) (unsafe.Pointer, error) {
	c := C.CString(path)
	defer C.free(unsafe.Pointer(c))
	lib := C.dlopen(c, flags)
	if lib == nil {
		return nil, fmt.Errorf("%s", C.GoString(C.dlerror()))
	}
	return lib, nil
}
