// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// A host engine and a library that do not understand one another are named with their
// releases, the older one on either side.
func TestVersionMismatch(t *testing.T) {
	const address = "tcp://127.0.0.1:5555"
	f := func(name, lines, want string) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			newFake(t).Put("lines", lines)
			r := New(Config{Library: library(t), Remote: address})
			defer func() {
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}()
			_, err := r.Devices()
			if !errors.Is(err, gpu.ErrNoDriver) {
				t.Fatalf("the error is %v", err)
			}
			if err.Error() != want {
				t.Errorf("the error is\n%v, want\n%s", err, want)
			}
		})
	}
	const both = "; install the same release on both sides"
	f("older host engine", "versions 4.2.3 4.6.0\nfail GetEntityGroupEntities VER_MISMATCH",
		"list GPUs: list entities: DCGM: API version mismatch (-12): libdcgm is 4.6.0 and host engine "+address+" is 4.2.3"+both)
	f("older library", "versions 4.6.0 4.2.3\nfail GetEntityGroupEntities VER_MISMATCH",
		"list GPUs: list entities: DCGM: API version mismatch (-12): libdcgm is 4.2.3 and host engine "+address+" is 4.6.0"+both)
	f("it refuses the connection", "versions 3.3.9 4.6.0\nfail Connect VER_MISMATCH",
		"connect to host engine "+address+": DCGM: API version mismatch (-12): libdcgm is 4.6.0 and host engine "+address+" is of an unknown version"+both)
	f("without versions", "fail GetEntityGroupEntities VER_MISMATCH",
		"list GPUs: list entities: DCGM: API version mismatch (-12): libdcgm is of an unknown version and host engine "+address+" is of an unknown version"+both)
}

// A call that the other side does not understand hides no GPU, and says the releases.
func TestPartialVersionMismatch(t *testing.T) {
	f := newFake(t)
	f.Put("lines", "versions 4.2.3 4.6.0\nfail GetGpuInstanceHierarchy VER_MISMATCH\ngpu 1 fail EntityGetLatestValues VER_MISMATCH\nfail GetCpuHierarchy_v2 VER_MISMATCH")
	f.Put("cpus", "cpus 1 2")
	var log bytes.Buffer
	r := New(Config{Library: library(t), Remote: "localhost:5555", Log: slog.New(slog.NewTextHandler(&log, nil))})
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	const versions = "libdcgm is 4.6.0 and host engine localhost:5555 is 4.2.3"
	devices, err := r.Devices()
	if len(devices) != 3 || err == nil || !strings.Contains(err.Error(), versions) {
		t.Fatalf("%d devices, %v", len(devices), err)
	}
	if got := log.String(); strings.Count(got, `msg="connected to a host engine" address=localhost:5555 version=4.2.3 libdcgm=4.6.0`) != 1 {
		t.Errorf("log:\n%s", got)
	}
	var v gpu.Values
	if err := r.Read(devices[1].UUID, gpu.SetOf(gpu.GPUUtil), &v); err == nil || !strings.Contains(err.Error(), versions) {
		t.Errorf("a read says %v", err)
	}
	if err := r.Read(devices[0].UUID, gpu.SetOf(gpu.GPUUtil), &v); err != nil || !v.Has(gpu.GPUUtil) {
		t.Errorf("another GPU: %v", err)
	}
	parts, err := r.ReadParts(gpu.SetOf(gpu.CPUUtil), func(p *gpu.Part) bool { return p.Kind == gpu.CPU })
	if err != nil || len(parts) != 1 {
		t.Errorf("CPUs: %v, %v", parts, err)
	}
}

func TestRelease(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if diff := cmp.Diff(want, release(text)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
	f("version:4.5.2;arch:x86_64;buildtype:Release", "4.5.2")
	f("arch:x86_64;version:4.6.0", "4.6.0")
	f("driverversion:1", "")
	f("", "")
}
