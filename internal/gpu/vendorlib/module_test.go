// SPDX-License-Identifier: Apache-2.0

package vendorlib

import (
	"os"
	"path/filepath"
	"testing"
)

// The driver is away where a GPU is on the bus and no driver is loaded: not on a machine without GPUs, and a network card
// of NVIDIA is no GPU.
func TestDriverAway(t *testing.T) {
	f := func(files map[string]string, version string, away bool) {
		t.Helper()
		sys := t.TempDir()
		for name, text := range files {
			file := filepath.Join(sys, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := moduleVersion(sys); got != version {
			t.Errorf("version %q, want %q", got, version)
		}
		if got := driverAway(sys); got != away {
			t.Errorf("%v: away %v", files, got)
		}
	}
	const bus, module = "bus/pci/devices/0000:1b:00.0/", "module/nvidia/version"
	f(nil, "", false)
	f(map[string]string{bus + "vendor": "0x10de", bus + "class": "0x030200"}, "", true)
	f(map[string]string{bus + "vendor": "0x10de", bus + "class": "0x030200", module: "590.48.01"}, "590.48.01", false)
	f(map[string]string{bus + "vendor": "0x10de", bus + "class": "0x020000"}, "", false)
	f(map[string]string{bus + "vendor": "0x1002", bus + "class": "0x030000"}, "", false)
}
