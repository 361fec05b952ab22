// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/test/gputest"
)

// fakeLib is one of make's fake libraries.

// A host engine's address selects DCGM; so does its name.
func TestWhoSelectsDCGM(t *testing.T) {
	for args, want := range map[string]bool{
		"": false, "--backend dcgm": true, "-r localhost:5555": true, "--remote-hostengine-info=unix:///run/he.sock": true,
		"--backend nvml -r localhost:5555": false, "--backend dcgm -r localhost:5555": true,
	} {
		if c, err := parse(args); err != nil || c.wantsDCGM() != want {
			t.Errorf("%q: %v, want %v (%v)", args, c.wantsDCGM(), want, err)
		}
	}
	if c, err := parse("", "DCGM_REMOTE_HOSTENGINE_INFO", "dcgm:5555"); err != nil || !c.wantsDCGM() {
		t.Errorf("the variable: %+v, %v", c, err)
	}
}

func TestDCGM(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gpus")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GPUPILOT_FAKE_DCGM", file)
	write("gpus 2\ngpu 1 util 63\ngpu 1 gpm_tensor 0.25\n")
	url, _, stop := start(t, "-r", "tcp://127.0.0.1:5555", "--dcgm-library", gputest.Library(t, "libdcgm-fake.so"), "-c", "50", "-n")
	shows := func(want ...string) {
		t.Helper()
		var body string
		until(t, func() bool {
			_, body = get(t, url+"/metrics")
			for _, w := range want {
				if !strings.Contains(body, w) {
					return false
				}
			}
			return true
		})
	}
	shows(`gpupilot_backend_up{backend="dcgm"} 1`, `DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-48323030-6670-4000-8000-000000000001"`, "} 63\n", "} 0.250000\n")
	// A host engine that goes away costs its values, not the process.
	write("gpus 2\nengine lost\n")
	shows(`gpupilot_backend_up{backend="dcgm"} 0`)
	if code, _ := get(t, url+"/health"); code != http.StatusOK {
		t.Errorf("/health: %d", code)
	}
	write("gpus 2\ngpu 0 util 41\n")
	shows(`gpupilot_backend_up{backend="dcgm"} 1`, "} 41\n")
	stop()
}

// With the DCGM backend, DCGM's own verdicts are shown; with NVML, ours. Both have
// the system ALL.
func TestHealthOfDCGM(t *testing.T) {
	t.Setenv("GPUPILOT_FAKE_DCGM", writeFile(t, "dcgm", "gpus 1\ngpu 0 health INFOROM 10 9\ngpu 0 health ALL 20 120\n"))
	t.Setenv("GPUPILOT_FAKE_NVML", writeFile(t, "nvml", "gpus 1\ngpu 0 remap_failure 1\n"))
	collectors := writeFile(t, "c.csv", "DCGM_EXP_GPU_HEALTH_STATUS,gauge,Health\n")
	f := func(want []string, never string, args ...string) {
		t.Helper()
		url, _, stop := start(t, append(args, "-f", collectors, "-c", "50", "-n")...)
		until(t, func() bool {
			_, body := get(t, url+"/metrics")
			for _, w := range want {
				if !strings.Contains(body, w) {
					return false
				}
			}
			return never == "" || !strings.Contains(body, never)
		})
		stop()
	}
	f([]string{
		`health_error_code="DCGM_FR_CORRUPT_INFOROM",health_watch="INFOROM"} 10`, `health_error_code="DCGM_FR_FALLEN_OFF_BUS",health_watch="ALL"} 20`,
		`health_error_code="DCGM_FR_OK",health_watch="SM"} 0`, `health_error_code="DCGM_FR_OK",health_watch="MEM"} 0`,
	}, "", "--backend", "dcgm", "--dcgm-library", gputest.Library(t, "libdcgm-fake.so"))
	f([]string{`health_error_code="DCGM_FR_ROW_REMAP_FAILURE",health_watch="MEM"} 20`, `health_error_code="DCGM_FR_OK",health_watch="ALL"} 0`},
		`health_watch="SM"`, "--backend", "nvml", "--nvml-library", gputest.Library(t, "libnvidia-ml-fake.so"))
}

// auto reads through NVML, and loads DCGM for the profiling fields that a GPU
// does not give to NVML, if there is one.
func TestAuto(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	log := filepath.Join(dir, "dcgm-calls")
	t.Setenv("GPUPILOT_FAKE_DCGM", write("dcgm", "gpus 2\nlog "+log+"\ngpu * gpm_gr 0.5\ngpu 1 mig 1g.18gb 1\ngpu 1 instance 0 gpm_gr 0.25\n"))
	t.Setenv("GPUPILOT_FAKE_NVML", write("nvml", "gpus 2\ngpu 0 util 63\n"))
	args := []string{"--nvml-library", gputest.Library(t, "libnvidia-ml-fake.so"), "--dcgm-library", gputest.Library(t, "libdcgm-fake.so"), "-c", "50", "-n"}
	shows := func(url string, want ...string) {
		t.Helper()
		until(t, func() bool {
			_, body := get(t, url+"/metrics")
			for _, w := range want {
				if !strings.Contains(body, w) {
					return false
				}
			}
			return true
		})
	}
	// GPUs that give them to NVML.
	url, _, stop := start(t, args...)
	shows(url, `gpupilot_backend_up{backend="nvml"} 1`, "DCGM_FI_PROF_GR_ENGINE_ACTIVE{")
	stop()
	if calls, err := os.ReadFile(log); err == nil {
		t.Errorf("DCGM was called:\n%s", calls)
	}
	// GPUs that do not.
	t.Setenv("GPUPILOT_FAKE_NVML", write("old", "gpus 2\ngpu * unsupported gpm\ngpu 0 util 63\ngpu 1 mig 1g.18gb 1\n"))
	url, out, stop := start(t, args...)
	shows(url, `gpupilot_backend_up{backend="nvml"} 1`, "} 63\n", "} 0.500000\n", "} 0.250000\n")
	if n := strings.Count(out.String(), "read through DCGM"); n != 2 {
		t.Errorf("said %d times:\n%s", n, out)
	}
	stop()
	// The same without DCGM.
	url, _, stop = start(t, append(args[:3:3], filepath.Join(dir, "no-dcgm"), "-c", "50", "-n")...)
	shows(url, "} 63\n", `gpupilot_field_supported{field="DCGM_FI_PROF_GR_ENGINE_ACTIVE",uuid="GPU-48323030-6670-4000-8000-000000000000",reason="NVML gives profiling fields from Hopper on; through DCGM: `)
	stop()
}

// With a collectors file of all fields, auto shows whatever either library gives;
// each field that is not there has a reason, and the reason is true.
func TestAutoGivesWhatEitherGives(t *testing.T) {
	var csv strings.Builder
	missing := map[string]bool{}
	for _, f := range gpu.Fields() {
		if f.Kind == gpu.Label {
			fmt.Fprintf(&csv, "%s,label,\n", f.Name)
			continue
		}
		fmt.Fprintf(&csv, "%s,gauge,\n", f.Name)
		missing[f.Name] = true
	}
	// Neither gives these for an idle H200; the board cannot tell a VGPU licence in
	// the fake, and MEMORY_TEMP is DCGM's alone here.
	const lacked = "DCGM_FI_SYNC_BOOST DCGM_FI_DEV_AUTOBOOST DCGM_FI_DEV_FAN_SPEED DCGM_FI_DEV_C2C_LINK_COUNT DCGM_FI_DEV_C2C_LINK_STATUS DCGM_FI_DEV_C2C_MAX_BANDWIDTH " +
		"DCGM_FI_DEV_ECC_SBE_VOL_TEX DCGM_FI_DEV_ECC_DBE_VOL_TEX DCGM_FI_DEV_ECC_SBE_AGG_TEX DCGM_FI_DEV_ECC_DBE_AGG_TEX DCGM_FI_DEV_RETIRED_SBE DCGM_FI_DEV_RETIRED_DBE DCGM_FI_DEV_RETIRED_PENDING"
	t.Setenv("GPUPILOT_FAKE_NVML", writeFile(t, "nvml", "gpus 1\ngpu 0 unsupported mem_temp\ngpu 0 util 63\n"))
	t.Setenv("GPUPILOT_FAKE_DCGM", writeFile(t, "dcgm", "gpus 1\ngpu 0 mem_temp 41\ngpu 0 util 17\n"))
	args := []string{"-f", writeFile(t, "all.csv", csv.String()), "-c", "50", "-n", "--nvml-library", gputest.Library(t, "libnvidia-ml-fake.so"), "--dcgm-library"}
	url, _, stop := start(t, append(args, gputest.Library(t, "libdcgm-fake.so"))...)
	var body string
	until(t, func() bool {
		_, body = get(t, url+"/metrics")
		for name := range missing {
			if strings.Contains(body, "\n"+name+"{") || strings.HasPrefix(body, "# HELP "+name+" ") {
				delete(missing, name)
			}
		}
		return len(missing) <= len(strings.Fields(lacked))
	})
	for name := range missing {
		if !slices.Contains(strings.Fields(lacked), name) {
			t.Errorf("%s is missing", name)
		}
		want := fmt.Sprintf(`gpupilot_field_supported{field="%s",uuid="GPU-48323030-6670-4000-8000-000000000000",reason="`, name)
		_, reason, _ := strings.Cut(body, want)
		if reason, _, _ = strings.Cut(reason, `"`); !strings.HasSuffix(reason, "; DCGM does not give it for this device") {
			t.Errorf("%s: reason %q", name, reason)
		}
	}
	for _, want := range []string{"DCGM_FI_DEV_GPU_UTIL{", "DCGM_FI_DEV_MEMORY_TEMP{"} {
		_, line, _ := strings.Cut(body, "\n"+want)
		line, _, _ = strings.Cut(line, "\n")
		value := map[string]string{"DCGM_FI_DEV_GPU_UTIL{": "} 63", "DCGM_FI_DEV_MEMORY_TEMP{": "} 41"}[want]
		if !strings.HasSuffix(line, value) || !strings.Contains(line, `DCGM_FI_DEV_VBIOS_VERSION="96.00.BC.00.01"`) {
			t.Errorf("%s%s, want the value %s", want, line, value)
		}
	}
	stop()
	url, _, stop = start(t, append(args, filepath.Join(t.TempDir(), "none"))...)
	until(t, func() bool {
		_, body = get(t, url+"/metrics")
		return strings.Contains(body, `field="DCGM_FI_DEV_ECC_SBE_VOL_L1",uuid="GPU-48323030-6670-4000-8000-000000000000",reason="not read through NVML; through DCGM: GPU library not found: `) && strings.Contains(body, "\nDCGM_FI_DEV_BAR1_TOTAL{") && strings.Contains(body, "\nDCGM_FI_DEV_NVLINK_BANDWIDTH_L17{") &&
			strings.Contains(body, `field="DCGM_FI_DEV_FAN_SPEED",uuid="GPU-48323030-6670-4000-8000-000000000000",reason="NVML does not give it for this GPU and driver; through DCGM: GPU library not found: `)
	})
	stop()
}

// What is no GPU, through DCGM: as far as -s and -p select it.
func TestParts(t *testing.T) {
	t.Setenv("GPUPILOT_FAKE_DCGM", writeFile(t, "gpus", "gpus 1\nswitches 2\nlinks 1\ncpus 1 2\npart nvswitch 1 858 47\npart cpucore 1 1100 0.5\npart nvlink gpu0:0 787 3\n"))
	collectors := writeFile(t, "c.csv", "DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT,gauge,Warm\nDCGM_FI_DEV_NVSWITCH_LINK_CRC_ERRORS,counter,CRC\nDCGM_FI_DEV_CPU_UTIL_TOTAL,gauge,Busy\n")
	url, _, _ := start(t, "-r", "localhost:5555", "--dcgm-library", gputest.Library(t, "libdcgm-fake.so"), "-f", collectors, "-s", "g:1", "-p", "i", "-c", "50", "-n", "--enable-exporter-metrics")
	until(t, func() bool {
		_, body := get(t, url+"/metrics")
		for _, want := range []string{
			`DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT{nvswitch="nvswitch1"} 47`, `DCGM_FI_DEV_NVSWITCH_LINK_CRC_ERRORS{nvlink="1",gpu="0",`,
			`DCGM_FI_DEV_CPU_UTIL_TOTAL{cpucore="1",cpu="0"} 0.500000`, `gpupilot_collector_errors_total{collector="parts"} 0`,
		} {
			if !strings.Contains(body, want) {
				return false
			}
		}
		return !strings.Contains(body, `"nvswitch0"`) && !strings.Contains(body, `UTIL_TOTAL{cpu=`)
	})
	if _, body := get(t, url+"/api/v1/gpus"); !strings.Contains(body, `"kind": "cpucore"`) {
		t.Errorf("/api/v1/gpus:\n%s", body)
	}
}

func TestDCGMNotThere(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "libdcgm.so.4")
	err := run(t.Context(), []string{"-r", "localhost:5555", "--dcgm-library", missing, "-a", "127.0.0.1:0"}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "--dcgm-library") {
		t.Errorf("run: %v", err)
	}
	url, _, _ := start(t, "--backend", "dcgm", "--dcgm-library", missing, "-c", "50", "--disable-startup-validate")
	until(t, func() bool {
		_, body := get(t, url+"/metrics")
		return strings.Contains(body, `gpupilot_backend_up{backend="dcgm"} 0`)
	})
}

// NVML says what DCGM does not: the UUIDs that the kubelet goes by.
func TestMIGUUIDs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gpus")
	if err := os.WriteFile(file, []byte("gpus 2\ngpu 1 mig 1g.18gb 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GPUPILOT_FAKE_NVML", file)
	m := &migUUIDs{library: gputest.Library(t, "libnvidia-ml-fake.so")}
	parent := "GPU-48323030-6670-4000-8000-000000000001"
	for gi, want := range map[int]string{7: "MIG-", 8: "MIG-", 9: ""} {
		got := m.of(parent, gi, 0)
		if _, ok := gpu.ParseDeviceID(got); ok != (want != "") || !strings.HasPrefix(got, want) {
			t.Errorf("instance %d: %q", gi, got)
		}
	}
	if a, b := m.of(parent, 7, 0), m.of(parent, 8, 0); a == b {
		t.Error(fmt.Sprint("both are ", a))
	}
}
