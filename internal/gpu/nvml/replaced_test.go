// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/test/gputest"
)

// A library that does not fit the driver is not kept: the file that replaces it is opened
// without a restart. What was replaced after that is an ErrReplaced until the process ends.
// It runs in a process of its own.
func TestAReplacedLibraryIsOpened(t *testing.T) {
	path := os.Getenv(variantEnv)
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		library(t)
		cmd := exec.Command(self, "-test.run=^TestAReplacedLibraryIsOpened$", "-test.v")
		cmd.Env = append(os.Environ(), variantEnv+"="+filepath.Join(t.TempDir(), "libnvidia-ml.so.1"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	code, err := os.ReadFile(gputest.Library(t, "libnvidia-ml-fake.so"))
	if err != nil {
		t.Fatal(err)
	}
	const version = "library of driver 590.48.01"
	if !bytes.Contains(code, []byte(version)) {
		t.Fatalf("the fake library has no %q", version)
	}
	put := func(code []byte) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path+".new", code, 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	put(bytes.ReplaceAll(code, []byte(version), []byte("library of driver 580.00.00")))
	f := newFake(t)
	f.Put("module", "module-version 590.48.01")
	r := New(Config{Library: path, eventWait: shortWait})
	defer func() { _ = r.Close() }()
	for range 3 {
		if devices, err := r.Devices(); !errors.Is(err, gpu.ErrReplaced) || !errors.Is(err, gpu.ErrNoDriver) || devices != nil {
			t.Fatalf("with the old library: %v, %v", devices, err)
		}
	}
	put(code)
	devices, err := r.Devices()
	if err != nil || len(devices) == 0 {
		t.Fatalf("with the new library: %v, %v", devices, err)
	}
	expect(t, read(t, r, devices[0].UUID, gpu.GPUUtil), gpu.GPUUtil, 0)

	f.Put("module", "module-version 600.00.00")
	for range 3 {
		if devices, err := r.Devices(); !errors.Is(err, gpu.ErrReplaced) || devices != nil {
			t.Fatalf("with a driver replaced under it: %v, %v", devices, err)
		}
	}
	var v gpu.Values
	if err := r.Read(devices[0].UUID, gpu.SetOf(gpu.GPUUtil), &v); !errors.Is(err, gpu.ErrNoDriver) {
		t.Errorf("read: %v", err)
	}
}
