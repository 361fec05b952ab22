// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// lastingCollectors are fields and counters of both kinds: readings, and what has
// happened to a GPU.
func lastingCollectors(t *testing.T) Collectors {
	t.Helper()
	c, bad := ParseCollectors(`DCGM_FI_DEV_GPU_TEMP, gauge, t
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, e
DCGM_FI_DEV_XID_ERRORS, gauge, x
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, counter, d
DCGM_FI_DEV_ROW_REMAP_FAILURE, gauge, r
DCGM_FI_DRIVER_VERSION, label, v
DCGM_EXP_XID_ERRORS_COUNT, gauge, x
DCGM_EXP_XID_ERRORS_TOTAL, counter, x
DCGM_EXP_GPU_HEALTH_STATUS, gauge, h
DCGM_EXP_P2P_STATUS, gauge, p
`)
	if bad != nil {
		t.Fatal(bad)
	}
	return c
}

// aGPUFails shows a GPU as it was read a minute ago, with an error since then.
func aGPUFails(t *testing.T, d *gpu.DeviceSnapshot, now time.Time) string {
	t.Helper()
	d.Collected = now.Add(-time.Minute)
	cfg := Config{Collectors: lastingCollectors(t), Kubernetes: true, Hostname: "n1"}
	e := New(cfg)
	e.Update(snapshot(now, *d), Stats{}, now)
	_, body := get(t, e, "/metrics")
	return body
}

// Readings of a GPU end when it cannot be read, in whatever way it fails. What is known
// about it stays with the same labels, and takes a new code.
func TestWhatIsKnownOfALostGPUStays(t *testing.T) {
	now := soon()
	for _, err := range []error{gpu.ErrLost, gpu.ErrNoDriver, gpu.ErrUnknownDevice, errors.New("hangs")} {
		d := wholeGPU(3, now, map[gpu.FieldID]float64{
			gpu.GPUTemp: 50, gpu.TotalEnergy: 9, gpu.XIDErrors: 0, gpu.ECCDBEVolatile: 2, gpu.RowRemapFailure: 1,
		})
		d.Owners = []gpu.Owner{{Namespace: "team", Pod: "train-0", Container: "main"}}
		d.Links = gpu.Links{Errors: []gpu.LinkError{{Link: 1, Type: "replay", Count: 4}}, Peers: []gpu.Peer{{Index: 1}}}
		d.Err = err
		d.XIDs = []gpu.XIDCount{{Code: 31, Count: 2, Last: now.Add(-5 * time.Second)}, {Code: 79, Count: 1, Last: now.Add(-2 * time.Second)}}
		body := aGPUFails(t, &d, now)
		labels := `{gpu="3",UUID="GPU-00000003-aaaa",pci_bus_id="00000000:1E:00.0",device="nvidia3",modelName="NVIDIA H200",hostname="n1",DCGM_FI_DRIVER_VERSION="580.105.08"`
		owner := `,container="main",namespace="team",pod="train-0"`
		for _, want := range []string{
			`DCGM_FI_DEV_XID_ERRORS` + labels + `,container="main",err_code="79",err_msg="GPU has fallen off the bus",namespace="team",pod="train-0"} 79`,
			`DCGM_FI_DEV_ECC_DBE_VOL_TOTAL` + labels + owner + `} 2`,
			`DCGM_FI_DEV_ROW_REMAP_FAILURE` + labels + owner + `} 1`,
			`DCGM_EXP_XID_ERRORS_COUNT` + labels + `,window_size_in_ms="300000",xid="79"` + owner + `} 1`,
			`DCGM_EXP_XID_ERRORS_TOTAL` + labels + `,xid="31"` + owner + `} 2`,
			`DCGM_EXP_GPU_HEALTH_STATUS` + labels + `,health_error_code="DCGM_FR_FALLEN_OFF_BUS",health_watch="ALL"` + owner + `} 20`,
			`DCGM_EXP_GPU_HEALTH_STATUS` + labels + `,health_error_code="DCGM_FR_ROW_REMAP_FAILURE",health_watch="MEM"` + owner + `} 20`,
			`gpupilot_xid_errors_total{uuid="GPU-00000003-aaaa",xid="79"} 1`,
			`gpupilot_nvlink_errors_total{uuid="GPU-00000003-aaaa",link="1",type="replay"} 4`,
			`gpupilot_device_up{uuid="GPU-00000003-aaaa"} 0`,
			`gpupilot_device_last_success_timestamp_seconds{uuid="GPU-00000003-aaaa"} ` + string(appendTime(nil, d.Collected)),
		} {
			if !strings.Contains(body, want+"\n") {
				t.Errorf("%v: no %s in\n%s", err, want, body)
			}
		}
		for _, gone := range []string{"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "gpupilot_gpu_energy_joules_total", "DCGM_EXP_P2P_STATUS"} {
			if strings.Contains(body, gone) {
				t.Errorf("%v: the page has %s", err, gone)
			}
		}
	}
}

// Without an XID, the loss itself is the verdict. Verdicts of the library stay.
func TestHealthOfALostGPU(t *testing.T) {
	now := soon()
	d := wholeGPU(0, now, map[gpu.FieldID]float64{gpu.XIDErrors: 0})
	d.Err = errors.New("hangs")
	body := aGPUFails(t, &d, now)
	for _, want := range []string{`err_code="0"`, `health_error_code="DCGM_FR_FIELD_QUERY",health_watch="ALL"} 20`, `health_error_code="DCGM_FR_NVML_API",health_watch="DRIVER"} 20`} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in\n%s", want, body)
		}
	}
	d.Verdicts = &gpu.Verdicts{gpu.WatchInforom: {Health: gpu.HealthWarn, Code: "DCGM_FR_CORRUPT_INFOROM"}}
	body = aGPUFails(t, &d, now)
	for _, want := range []string{`health_error_code="DCGM_FR_CORRUPT_INFOROM",health_watch="INFOROM"} 10`, `health_error_code="DCGM_FR_FIELD_QUERY",health_watch="ALL"} 20`} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in\n%s", want, body)
		}
	}
}

// An error of a GPU as a whole is its instances' too; our own counter has it once.
func TestXIDsOfAnInstancesGPU(t *testing.T) {
	now := soon()
	instance := func(id int) gpu.DeviceSnapshot {
		d := wholeGPU(0, now.Add(-time.Minute), map[gpu.FieldID]float64{gpu.XIDErrors: 0})
		d.UUID, d.MIG = "MIG-"+string(rune('0'+id)), &gpu.MIG{ParentUUID: "GPU-0", GPUInstance: id, Profile: "1g.18gb"}
		d.GPUXIDs = []gpu.XIDCount{{Code: 79, Count: 1, Last: now}}
		return d
	}
	a, b := instance(1), instance(2)
	a.XIDs = []gpu.XIDCount{{Code: 31, Count: 3, Last: now.Add(-time.Second)}}
	s := snapshot(now, a, b)
	var codes []string
	for _, l := range seriesOf(t, s, Config{Collectors: lastingCollectors(t)}, "DCGM_FI_DEV_XID_ERRORS") {
		codes = append(codes, l[strings.LastIndex(l, " ")+1:])
	}
	if diff := cmp.Diff([]string{"79", "79"}, codes); diff != "" {
		t.Errorf("last codes (-want +got):\n%s", diff)
	}
	want := []string{`gpupilot_xid_errors_total{uuid="MIG-1",xid="31"} 3`, `gpupilot_xid_errors_total{uuid="GPU-0",xid="79"} 1`}
	if diff := cmp.Diff(want, seriesOf(t, s, Config{}, "gpupilot_xid_errors_total")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	counts := 0
	for _, l := range seriesOf(t, s, Config{Collectors: lastingCollectors(t)}, "DCGM_EXP_XID_ERRORS_TOTAL") {
		if !strings.HasSuffix(l, " 0") {
			counts++
		}
	}
	if counts != 3 {
		t.Errorf("%d counts, want 3: of each instance its GPU's error, and of one its own", counts)
	}
}
