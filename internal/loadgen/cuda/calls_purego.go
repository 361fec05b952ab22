// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64) && (cgo || gpuworker)

package cuda

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ebitengine/purego"
)

// library is a loaded library.
type library uintptr

// load loads the library of this file name or path.
func load(path string) (library, error) {
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNoLibrary, err)
	}
	return library(handle), nil
}

// bind sets functions, by the names of their symbols, and returns the names that the library lacks. Their functions
// stay nil. A name may have alternatives, separated by |.
func (l library) bind(functions map[string]any) (missing []string) {
	for names, function := range functions {
		found := false
		for name := range strings.SplitSeq(names, "|") {
			if address, err := purego.Dlsym(uintptr(l), name); err == nil {
				purego.RegisterFunc(function, address)
				found = true
				break
			}
		}
		if !found {
			missing = append(missing, names)
		}
	}
	slices.Sort(missing)
	return missing
}
