// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// godcgm is the module that has NVIDIA's headers.
const godcgm = "../../../test/godcgm"

// layout compares our declarations with NVIDIA's, in C.
const layout = `
#include <stddef.h>
#include "dcgm_agent.h"
#include "dcgm_fields.h"
#include "dcgm_structs.h"
#include "binding.h"
#define SIZE(ours, theirs) _Static_assert(sizeof(struct ours) == sizeof(theirs), #ours);
#define AT(ours, a, theirs, b) _Static_assert(offsetof(struct ours, a) == offsetof(theirs, b), #ours "." #a);
SIZE(dcgm_value_v1, dcgmFieldValue_v1)
AT(dcgm_value_v1, field, dcgmFieldValue_v1, fieldId) AT(dcgm_value_v1, type, dcgmFieldValue_v1, fieldType)
AT(dcgm_value_v1, status, dcgmFieldValue_v1, status) AT(dcgm_value_v1, ts, dcgmFieldValue_v1, ts) AT(dcgm_value_v1, value, dcgmFieldValue_v1, value)
SIZE(dcgm_value_v2, dcgmFieldValue_v2)
AT(dcgm_value_v2, field, dcgmFieldValue_v2, fieldId) AT(dcgm_value_v2, type, dcgmFieldValue_v2, fieldType)
AT(dcgm_value_v2, status, dcgmFieldValue_v2, status) AT(dcgm_value_v2, ts, dcgmFieldValue_v2, ts) AT(dcgm_value_v2, value, dcgmFieldValue_v2, value)
SIZE(dcgm_entity, dcgmGroupEntityPair_t)
SIZE(dcgm_field_meta, dcgm_field_meta_t)
AT(dcgm_field_meta, type, dcgm_field_meta_t, fieldType) AT(dcgm_field_meta, level, dcgm_field_meta_t, entityLevel)
_Static_assert(DCGM_FT_TIMESTAMP == 't' && DCGM_FE_NONE == 0 && DCGM_FE_VGPU == 2, "levels");
SIZE(dcgm_topology_v1, dcgmDeviceTopology_v1) AT(dcgm_topology_v1, to[1].path, dcgmDeviceTopology_v1, gpuPaths[1].path) AT(dcgm_topology_v1, cpus, dcgmDeviceTopology_v1, cpuAffinityMask)
SIZE(dcgm_topology_v2, dcgmDeviceTopology_v2) AT(dcgm_topology_v2, to[1].path, dcgmDeviceTopology_v2, gpuPaths[1].path) AT(dcgm_topology_v2, count, dcgmDeviceTopology_v2, numGpus)
_Static_assert(DCGM_CPU_WORDS == DCGM_AFFINITY_BITMASK_ARRAY_SIZE && DCGM_TOPOLOGY_SYSTEM == 0x20 && DCGM_TOPOLOGY_NVLINK1 == 0x100, "topology");
SIZE(dcgm_health_v5, dcgmHealthResponse_v5) SIZE(dcgm_incident, dcgmIncidentInfo_t)
AT(dcgm_health_v5, count, dcgmHealthResponse_v5, incidentCount) AT(dcgm_health_v5, list, dcgmHealthResponse_v5, incidents)
AT(dcgm_incident, health, dcgmIncidentInfo_t, health) AT(dcgm_incident, code, dcgmIncidentInfo_t, error.code) AT(dcgm_incident, entity, dcgmIncidentInfo_t, entityInfo)
_Static_assert((unsigned)DCGM_HEALTH_WATCH_ALL == 0xffffffff && DCGM_HEALTH_WATCH_PCIE == 1 && DCGM_HEALTH_WATCH_DRIVER == 1 << 9, "systems");
_Static_assert(DCGM_HEALTH_RESULT_WARN == 10 && DCGM_HEALTH_RESULT_FAIL == 20, "results");
SIZE(dcgm_version_v2, dcgmVersionInfo_v2) AT(dcgm_version_v2, text, dcgmVersionInfo_v2, rawBuildInfoString)
SIZE(dcgm_connect_v2, dcgmConnectV2Params_v2) AT(dcgm_connect_v2, is_unix, dcgmConnectV2Params_v2, addressIsUnixSocket)
SIZE(dcgm_connect_v3, dcgmConnectV3Params_v1)
SIZE(dcgm_mig_v2, dcgmMigHierarchy_v2) SIZE(dcgm_mig_entity, dcgmMigHierarchyInfo_v2)
AT(dcgm_mig_entity, parent, dcgmMigHierarchyInfo_v2, parent) AT(dcgm_mig_entity, gi, dcgmMigHierarchyInfo_v2, info.nvmlInstanceId)
AT(dcgm_mig_entity, ci, dcgmMigHierarchyInfo_v2, info.nvmlComputeInstanceId) AT(dcgm_mig_entity, slices, dcgmMigHierarchyInfo_v2, info.nvmlProfileSlices)
SIZE(dcgm_prof_v3, dcgmProfGetMetricGroups_v3) SIZE(dcgm_prof_group, dcgmProfMetricGroupInfo_v2)
AT(dcgm_prof_v3, gpu, dcgmProfGetMetricGroups_v3, gpuId) AT(dcgm_prof_v3, count, dcgmProfGetMetricGroups_v3, numMetricGroups)
AT(dcgm_prof_v3, group, dcgmProfGetMetricGroups_v3, metricGroups) AT(dcgm_prof_group, field, dcgmProfMetricGroupInfo_v2, fieldIds)
_Static_assert(DCGM_LINK_INTS(DCGM_LINKS_V4) * sizeof(int) == sizeof(dcgmNvLinkStatus_v4) && DCGM_LINK_INTS(DCGM_LINKS_V5) * sizeof(int) == sizeof(dcgmNvLinkStatus_v5), "links");
_Static_assert(offsetof(dcgmNvLinkStatus_v5, numNvSwitches) == sizeof(int) * (2 + DCGM_GPUS * (1 + DCGM_LINKS_V5)) && DcgmNvLinkLinkStateUp == 3, "links");
SIZE(dcgm_cpus_v1, dcgmCpuHierarchy_v1) SIZE(dcgm_cpus_v2, dcgmCpuHierarchy_v2) SIZE(dcgm_cores, dcgmCpuHierarchyOwnedCores_v1)
AT(dcgm_cpus_v2, cpu[1].serial, dcgmCpuHierarchy_v2, cpus[1].serial) AT(dcgm_cpus_v1, cpu[1].cores, dcgmCpuHierarchy_v1, cpus[1].ownedCores)
SIZE(dcgm_p2p_v1, dcgmNvLinkP2PStatus_v1) AT(dcgm_p2p_v1, gpu[1].status, dcgmNvLinkP2PStatus_v1, gpus[1].linkStatus)
_Static_assert(DCGM_FE_SWITCH == 3 && DCGM_FE_LINK == 6 && DCGM_FE_CPU == 7 && DCGM_FE_CPU_CORE == 8, "kinds");
_Static_assert(DCGM_ST_NO_DATA == GP_NO_DATA && DCGM_ST_VER_MISMATCH == -12 && DCGM_ST_FUNCTION_NOT_FOUND == -20 && DCGM_ST_MODULE_NOT_LOADED == -33, "codes");
_Static_assert(DCGM_ENTITIES == DCGM_GROUP_MAX_ENTITIES_V2 && DCGM_INSTANCES == DCGM_MAX_HIERARCHY_INFO, "room");
_Static_assert(DCGM_OPERATION_MODE_AUTO == 1 && DCGM_GROUP_EMPTY == 1 && DCGM_FV_FLAG_LIVE_DATA == 1, "constants");
_Static_assert(DCGM_FE_GPU == 1 && DCGM_FE_GPU_I == 4 && DCGM_FE_GPU_CI == 5, "kinds");
_Static_assert(DCGM_FT_INT64 == 'i' && DCGM_FT_DOUBLE == 'd' && DCGM_FT_STRING == 's', "types of values");
_Static_assert(DCGM_ST_NOT_SUPPORTED == -6 && DCGM_ST_UNINITIALIZED == -10 && DCGM_ST_NOT_WATCHED == -16 && DCGM_ST_GPU_IS_LOST == -18 && DCGM_ST_CONNECTION_NOT_VALID == -21, "codes");
_Static_assert(DCGM_ST_INSTANCE_NOT_FOUND == -45 && DCGM_ST_NVML_NOT_LOADED == -56 && DCGM_ST_GPUS_DETACHED == -67, "codes");
_Static_assert(DcgmEntityStatusInaccessible == 3 && DcgmEntityStatusLost == 4 && DcgmEntityStatusDisabled == 6 && DcgmEntityStatusDetached == 7, "status");
`

func TestLayout(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip(err)
	}
	module, err := exec.Command("go", "-C", godcgm, "list", "-f", "{{.Dir}}", "github.com/NVIDIA/go-dcgm/pkg/dcgm").Output()
	if err != nil {
		t.Fatal(err)
	}
	src := filepath.Join(t.TempDir(), "layout.c")
	if err := os.WriteFile(src, []byte(layout), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("gcc", "-std=gnu11", "-fsyntax-only", "-I.", "-I"+strings.TrimSpace(string(module)), src).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestLayout compares NVIDIA's constants with these numbers.
func TestConstants(t *testing.T) {
	if kindGPU != 1 || kindInstance != 4 || kindCompute != 5 {
		t.Error("kinds of entities")
	}
	if typeInt64 != 'i' || typeDouble != 'd' || typeString != 's' {
		t.Error("types of values")
	}
}

// The names of health errors are the header's, by number.
func TestErrorNames(t *testing.T) {
	module, err := exec.Command("go", "-C", godcgm, "list", "-f", "{{.Dir}}", "github.com/NVIDIA/go-dcgm/pkg/dcgm").Output()
	if err != nil {
		t.Fatal(err)
	}
	header, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(module)), "dcgm_errors.h"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, m := range regexp.MustCompile(`(DCGM_FR_\w+)\s*=\s*(\w+)`).FindAllStringSubmatch(string(header), -1) {
		if _, known := names[m[1]]; !known {
			names[m[1]] = m[2]
		}
	}
	for code := range errorNames {
		name := errorName(uint(code))
		n := names[name]
		if alias, ok := names[n]; ok { // an older name
			n = alias
		}
		if n != strconv.Itoa(code) {
			t.Errorf("%s is %s, not %d", name, n, code)
		}
	}
	if n := names["DCGM_FR_ERROR_SENTINEL"]; n != strconv.Itoa(len(errorNames)) {
		t.Errorf("%d names of %s", len(errorNames), n)
	}
}
