// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// given lists what is read of the fields, as text.
func given(v *gpu.Values, ids []gpu.FieldID) (out []string) {
	for _, id := range ids {
		if n, ok := v.Passed(id); ok {
			out = append(out, fmt.Sprintf("%d=%v", id, n.Float))
		}
		if s, ok := v.GetLabel(id); ok {
			out = append(out, fmt.Sprintf("%d=%s", id, s))
		}
	}
	return out
}

// A field outside of the table is read of the entities that dcgm-exporter asks for it:
// whatever DcgmFieldGetById knows, by its level. Blank values are absent, and the log
// says once what cannot be read.
func TestPassed(t *testing.T) {
	f := newFake(t)
	f.Put("gpus", "gpus 2")
	f.Put("mig", "gpu 1 mig 1g.18gb 1")
	f.Put("switches", "switches 1")
	f.Put("links", "links 1")
	f.Put("cpus", "cpus 1 2")
	f.Put("totals", "totals 1")
	f.Put("a", "part nvswitch 0 702 33")
	f.Put("b", "part nvlink gpu0:0 1201 77")
	f.Put("c", "part cpu 0 9002 5")
	f.Put("d", "part cpucore 1 9003 0.25")
	f.Put("e", "part nvswitch 0 9004 6")
	var log bytes.Buffer
	r, devices := reader(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	ids := []gpu.FieldID{500, 525, 572, 702, 879, 1084, 1201, 1216, 1300, 1420, 1523, 9001, 9002, 9003, 9004, 9005, 9999}
	r.Pass(ids)
	want := gpu.SetOf(gpu.GPUUtil)
	const all = "500=0 525=4096 572=chassis-7 879=12 1084=1.23456789012e+11 1216=1e-15 1523=2 9001=-0.5"
	for _, d := range devices {
		var v gpu.Values
		for range 2 {
			if err := r.Read(d.UUID, want, &v); err != nil {
				t.Fatal(err)
			}
		}
		if got := strings.Join(given(&v, ids), " "); got != all {
			t.Errorf("%s gives\n%s, want\n%s", d.UUID, got, all)
		}
	}
	parts, err := r.ReadParts(gpu.FieldSet{}, func(*gpu.Part) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := range parts {
		p := &parts[i]
		got = append(got, fmt.Sprintf("%s %d: %s", p.Kind, p.ID, strings.Join(given(&p.Values, ids), " ")))
	}
	slices.Sort(got)
	wantParts := []string{
		"cpu 0: 9002=5 9003=0", "cpucore 0: 9003=0", "cpucore 1: 9003=0.25", "nvlink 0: 1201=0", "nvlink 0: 1201=0",
		"nvlink 0: 1201=77", "nvswitch 0: 702=33 1201=0 9004=6",
	}
	if diff := cmp.Diff(wantParts, got); diff != "" {
		t.Errorf("parts (-want +got):\n%s", diff)
	}
	for _, line := range []string{
		`field=DCGM_FI_DEV_CONNECTX_HEALTH id=1300 reason="it belongs to neither`, `id=9005 reason="its values are neither`,
		`field=DCGM_FI_9999 id=9999 reason="this DCGM does not know it"`,
	} {
		if strings.Count(log.String(), line) != 1 {
			t.Errorf("the log lacks %s:\n%s", line, &log)
		}
	}
	var v gpu.Values
	r.Pass([]gpu.FieldID{1523})
	if err := r.Read(devices[0].UUID, gpu.FieldSet{}, &v); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(given(&v, ids), " "); got != "1523=2" {
		t.Errorf("after a change it gives %s", got)
	}
	r.Pass(nil)
	if err := r.Read(devices[0].UUID, want, &v); err != nil || len(given(&v, ids)) > 0 {
		t.Errorf("without fields to pass it gives %v, %v", given(&v, ids), err)
	}
}

// The fields that are not collected have a log of their own: auto discards the others.
func TestPassedLog(t *testing.T) {
	newFake(t)
	var log, passed bytes.Buffer
	r, devices := reader(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil)), PassedLog: slog.New(slog.NewTextHandler(&passed, nil))})
	r.Pass([]gpu.FieldID{1523, 9999})
	var v gpu.Values
	for _, d := range devices {
		if err := r.Read(d.UUID, gpu.SetOf(gpu.GPUUtil), &v); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Contains(log.String(), "9999") || strings.Count(passed.String(), "level=WARN") != 1 || !strings.Contains(passed.String(), "id=9999") {
		t.Errorf("log:\n%s\nand of passed fields:\n%s", &log, &passed)
	}
}
