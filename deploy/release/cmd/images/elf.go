// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/gpupilot/gpupilot/deploy/release/rootfs"
)

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// checkProgram reports whether the program and the libraries in the tree have all that they are linked with: the
// libraries, and the versions of their symbols. A program that was linked with a newer C library than the image's fails.
func checkProgram(program []byte, arch string, tree rootfs.Tree) error {
	libraries := map[string]*elf.File{}
	versions := map[string]bool{} // "libc.so.6 GLIBC_2.34"
	for name, e := range tree {
		f, err := elf.NewFile(bytes.NewReader(e.Data))
		if e.Mode&fs.ModeSymlink != 0 || err != nil {
			continue
		}
		libraries[filepath.Base(name)] = f
		defined, err := f.DynamicVersions()
		if err != nil {
			return fmt.Errorf("symbol versions of %s: %w", name, err)
		}
		for _, v := range defined {
			versions[filepath.Base(name)+" "+v.Name] = true
		}
	}
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return err
	}
	if f.Machine != machines[arch] {
		return fmt.Errorf("it is a program for %s, not for %s", f.Machine, arch)
	}
	problem := missing("the program", f, libraries, versions)
	for name, l := range libraries {
		problem = errors.Join(problem, missing(name, l, libraries, versions))
	}
	return problem
}

// missing returns an error that names what f needs and the libraries do not have.
func missing(name string, f *elf.File, libraries map[string]*elf.File, versions map[string]bool) error {
	needed, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, n := range needed {
		if libraries[n] == nil {
			return fmt.Errorf("%s needs the library %s, which the image lacks", name, n)
		}
	}
	needs, err := f.DynamicVersionNeeds()
	if errors.Is(err, elf.ErrNoSymbols) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, n := range needs {
		for _, v := range n.Needs {
			if key := n.Name + " " + v.Dep; !versions[key] && slices.Contains(needed, n.Name) {
				return fmt.Errorf("%s needs %s, which the image lacks: build on the distribution that the packages are from", name, key)
			}
		}
	}
	return nil
}
