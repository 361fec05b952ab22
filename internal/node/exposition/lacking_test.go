// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Every line of the collectors file that has no value is logged once, under its own name and with the reason, when there
// has been time for all values. New collectors are looked at again.
func TestLinesWithoutAValueAreLogged(t *testing.T) {
	c, bad := ParseCollectors("DCGM_FI_DEV_GPU_UTIL, gauge, h\n" +
		"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS, gauge, a former name\n" +
		"DCGM_FI_DEV_PCIE_RX_THROUGHPUT, gauge, h\n" +
		"DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION, gauge, a former name\n" +
		"1201, counter, h\n" +
		"DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT, gauge, of a part\n" +
		"DCGM_FI_DEV_FB_USED, gauge, h\n" +
		"DCGM_FI_DEV_SERIAL, label, h\n" +
		"DCGM_FI_DEV_UUID, label, h\n" +
		"DCGM_EXP_XID_ERRORS_COUNT, gauge, h\n")
	if len(bad) > 0 {
		t.Fatal(bad)
	}
	var log bytes.Buffer
	now := soon()
	e := New(Config{Collectors: c, Log: slog.New(slog.NewTextHandler(&log, nil))})
	update := func(after time.Duration, err error) string {
		t.Helper()
		log.Reset()
		at := now.Add(after)
		d := wholeGPU(0, at, map[gpu.FieldID]float64{gpu.GPUUtil: 3, gpu.GPUTemp: 40})
		d.Values.Take(1201, gpu.Whole(5))
		d.Values.SetLabel(54, "GPU-0")
		d.Reasons = gpu.Reasons{Asked: gpu.SetOf(gpu.ClocksEventReasons, gpu.FBUsed, gpu.Serial), Refused: "refused", Unasked: "no libdcgm"}
		s := snapshot(at, d)
		s.PartsErr = err
		e.Update(s, Stats{}, at)
		return log.String()
	}
	listed := func() int {
		d := wholeGPU(0, now, map[gpu.FieldID]float64{gpu.GPUUtil: 3})
		n := 0
		for _, l := range e.Lacking(snapshot(now, d), now) {
			n += len(l.Fields)
		}
		return n
	}
	if text := update(0, nil) + update(lackingAfter-time.Second, nil); text != "" || listed() != 0 {
		t.Errorf("before there was time for all values: %d listed\n%s", listed(), text)
	}
	text := update(lackingAfter, errors.New("no host engine"))
	for _, want := range []string{
		`fields=DCGM_FI_DEV_CLOCK_THROTTLE_REASONS,DCGM_FI_DEV_SERIAL reason=refused`,
		`fields=DCGM_FI_DEV_PCIE_RX_THROUGHPUT reason="no libdcgm; DCGM_FI_PROF_PCIE_RX_BYTES replaces it"`,
		`fields=DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION reason="no libdcgm"`,
		`fields=DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT reason="no host engine"`,
		`fields=DCGM_FI_DEV_FB_USED reason="the GPU has no memory of its own, or does not give it: refused"`,
	} {
		if strings.Count(text, want) != 1 {
			t.Errorf("the log lacks %s", want)
		}
	}
	if n := strings.Count(text, "\n"); n != 5 {
		t.Errorf("%d lines:\n%s", n, text)
	}
	if text := update(2*lackingAfter, nil); text != "" || listed() != 8 {
		t.Errorf("again, with %d listed:\n%s", listed(), text)
	}
	c.Metrics = c.Metrics[:2]
	e.Reconfigure(c, 0)
	if text := update(3*lackingAfter, nil) + update(4*lackingAfter, nil); strings.Count(text, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS") != 1 || strings.Contains(text, "FB_USED") {
		t.Errorf("after a reload:\n%s", text)
	}
}
