// SPDX-License-Identifier: Apache-2.0

//go:build !(linux && (amd64 || arm64) && (cgo || gpuworker))

package cuda

// library stands for a library that this program cannot load.
type library uintptr

func load(string) (library, error) { return 0, ErrNotBuilt }

func (library) bind(map[string]any) (missing []string) { return nil }
