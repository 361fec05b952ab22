// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

// Package godcgm tests the fake libdcgm through NVIDIA's go-dcgm, which dcgm-exporter uses.
// It is a module of its own: GPUPilot does not depend on go-dcgm, only this test, and its headers.
package godcgm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"
)

// The fake DCGM answers go-dcgm, in the calls that dcgm-exporter makes. go-dcgm looks
// for libdcgm.so.4 by name, so the test runs in a process of its own whose
// loader finds the fake by that name.
func TestThroughGoDCGM(t *testing.T) {
	const child = "GPUPILOT_TEST_FAKE_DCGM"
	if os.Getenv(child) != "" {
		exporterCalls(t)
		return
	}
	lib, err := filepath.Abs("../../bin/libdcgm-fake.so")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(lib); err != nil {
		t.Skipf("%v: make fakes", err)
	}
	dir := t.TempDir()
	gpus := filepath.Join(dir, "gpus")
	text := "gpus 3\ngpu 0 util 57\ngpu 1 mig 1g.18gb 2\ngpu 1 instance 1 fb_used 1234\ngpu 2 lost\n"
	if err := os.WriteFile(gpus, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(lib, filepath.Join(dir, "libdcgm.so.4")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestThroughGoDCGM$", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1", "LD_LIBRARY_PATH="+dir, "GPUPILOT_FAKE_DCGM="+gpus)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func exporterCalls(t *testing.T) {
	cleanup, err := dcgm.Init(dcgm.Embedded)
	must(t, err)
	defer cleanup()
	dcgm.FieldsInit()
	n, err := dcgm.GetAllDeviceCount()
	must(t, err)
	supported, err := dcgm.GetSupportedDevices()
	must(t, err)
	if n != 3 || len(supported) != 2 {
		t.Errorf("%d GPUs, %d supported", n, len(supported))
	}
	info, err := dcgm.GetDeviceInfo(0)
	must(t, err)
	if !strings.HasPrefix(info.UUID, "GPU-") || info.Identifiers.Model != "NVIDIA H200" || info.PCI.BusID != "00000000:10:00.0" {
		t.Errorf("GPU 0 is %+v", info)
	}
	if m, err := dcgm.FieldGetByID(203); err != nil || uint(m.FieldType) != dcgm.DCGM_FT_INT64 || m.EntityLevel != dcgm.FE_GPU {
		t.Errorf("field 203 is %+v", m)
	}
	groups, err := dcgm.GetSupportedMetricGroups(0)
	must(t, err)
	if len(groups) == 0 || len(groups[0].FieldIds) != 33 {
		t.Errorf("metric groups %v", groups)
	}
	hierarchy(t)
	values(t)
	_, err = dcgm.GetNvLinkLinkStatus()
	must(t, err)
	_, err = dcgm.GetNvLinkP2PStatus()
	must(t, err)
	if _, err := dcgm.GetCPUHierarchy(); err == nil {
		t.Error("there are CPUs")
	}
	if ids, err := dcgm.GetEntityGroupEntities(dcgm.FE_SWITCH); err != nil || len(ids) != 0 {
		t.Errorf("switches %v, %v", ids, err)
	}
}

func hierarchy(t *testing.T) {
	h, err := dcgm.GetGPUInstanceHierarchy()
	must(t, err)
	list := h.EntityList[:h.Count]
	if len(list) != 4 || list[0].Entity.EntityGroupId != dcgm.FE_GPU_I || list[1].Entity.EntityGroupId != dcgm.FE_GPU_CI ||
		list[1].Parent != list[0].Entity || list[2].Parent.EntityId != 1 || list[2].Info.NvmlInstanceId != 8 {
		t.Errorf("hierarchy %+v", list)
	}
	name, err := dcgm.EntitiesGetLatestValues([]dcgm.GroupEntityPair{list[2].Entity}, []dcgm.Short{50}, dcgm.DCGM_FV_FLAG_LIVE_DATA)
	must(t, err)
	if s := name[0].StringValue; s == nil || *s != "1g.18gb" {
		t.Errorf("an instance's name is %v", s)
	}
}

func values(t *testing.T) {
	fields := []dcgm.Short{203, 155, 230}
	if v, err := dcgm.EntityGetLatestValues(dcgm.FE_GPU, 0, fields); err != nil || !dcgm.IsInt64Blank(v[0].Int64()) {
		t.Errorf("what is not watched has the value %d (%v)", v[0].Int64(), err)
	}
	group, err := dcgm.NewDefaultGroup("all")
	must(t, err)
	set, err := dcgm.FieldGroupCreate("some", fields)
	must(t, err)
	must(t, dcgm.WatchFieldsWithGroupEx(set, group, 1_000_000, 600, 0))
	v, err := dcgm.EntityGetLatestValues(dcgm.FE_GPU, 0, fields)
	must(t, err)
	if v[0].Int64() != 57 || v[1].Float64() != 77.7 || !dcgm.IsInt64Blank(v[2].Int64()) {
		t.Errorf("GPU 0: %d %%, %v W, XID %d", v[0].Int64(), v[1].Float64(), v[2].Int64())
	}
	if v, err = dcgm.EntityGetLatestValues(dcgm.FE_GPU, 2, fields); err != nil || !dcgm.IsInt64Blank(v[0].Int64()) {
		t.Errorf("the lost GPU has the value %d (%v)", v[0].Int64(), err)
	}
	since, _, err := dcgm.GetValuesSince(group, set, time.Now().Add(-time.Minute))
	must(t, err)
	if len(since) != 6 {
		t.Errorf("%d samples of 3 GPUs and 2 fields", len(since))
	}
	g, err := dcgm.GetGroupInfo(group)
	must(t, err)
	if len(g.EntityList) != 3 {
		t.Errorf("the group has %v", g.EntityList)
	}
	must(t, dcgm.HealthSet(group, dcgm.DCGM_HEALTH_WATCH_ALL))
	health, err := dcgm.HealthCheck(group)
	must(t, err)
	if health.OverallHealth != dcgm.DCGM_HEALTH_RESULT_PASS {
		t.Errorf("health %v", health)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
