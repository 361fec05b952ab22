// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// pciTree makes a sysfs with PCI devices; each is a vendor and a class.
func pciTree(t *testing.T, devices map[string][2]string) string {
	t.Helper()
	sys := t.TempDir()
	for slot, d := range devices {
		// As in sysfs, the entries of the bus are links.
		dir := filepath.Join(sys, "devices", slot)
		bus := filepath.Join(sys, "bus", "pci", "devices")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(bus, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"vendor": d[0], "class": d[1]} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(dir, filepath.Join(bus, slot)); err != nil {
			t.Fatal(err)
		}
	}
	return sys
}

func TestProbeCountsNVIDIAsGPUs(t *testing.T) {
	f := func(want string, devices map[string][2]string) {
		t.Helper()
		result := filepath.Join(t.TempDir(), "termination-log")
		var out bytes.Buffer
		if err := run(t.Context(), []string{"--probe", "--host-sys", pciTree(t, devices), "--probe-result", result}, &out); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(result)
		if err != nil || string(got) != want || out.String() != want {
			t.Errorf("%v: wrote %q (%v) and printed %q, want %q", devices, got, err, out.String(), want)
		}
	}
	f("gpus=0\n", nil) // no PCI at all
	f("gpus=2\n", map[string][2]string{
		"0000:1b:00.0": {"0x10de", "0x030200"}, // 3D controller: a data-centre GPU
		"0000:01:00.0": {"0x10DE", "0x030000"}, // VGA controller
		"0000:01:00.1": {"0x10de", "0x040300"}, // its audio
		"0000:05:00.0": {"0x10de", "0x068000"}, // an NvSwitch
		"0000:00:02.0": {"0x8086", "0x030000"}, // another vendor's GPU
		"0000:00:03.0": {"0x1af4", "0x020000"},
	})
	f("gpus=0\n", map[string][2]string{"0000:00:02.0": {"0x1002", "0x030200"}, "0000:00:04.0": {"", ""}})
}

func TestProbeSaysWhyItCannot(t *testing.T) {
	err := run(t.Context(), []string{"--probe", "--host-sys", pciTree(t, nil), "--probe-result", filepath.Join(t.TempDir(), "no", "dir")}, &bytes.Buffer{})
	if err == nil {
		t.Error("a result that cannot be written is no error")
	}
}
