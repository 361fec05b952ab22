// SPDX-License-Identifier: Apache-2.0

// The fields that the fake knows, and their values.
#define _GNU_SOURCE
#include "fake.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { OTHER = -1 };

// own: an instance has a value of its own; the others are its GPU's.
#define FIELDS(X) \
	X(1, DCGM_FT_STRING, OTHER, driver_version, 0) X(2, DCGM_FT_STRING, OTHER, nvml_version, 0) X(4, DCGM_FT_INT64, OTHER, count, 0) X(5, DCGM_FT_INT64, OTHER, cuda_version, 0) \
	X(50, DCGM_FT_STRING, OTHER, name, 1) X(51, DCGM_FT_STRING, OTHER, brand, 0) X(52, DCGM_FT_INT64, OTHER, nvml_index, 0) \
	X(53, DCGM_FT_STRING, OTHER, serial, 0) X(54, DCGM_FT_STRING, OTHER, uuid, 0) X(55, DCGM_FT_INT64, OTHER, minor_number, 0) \
	X(56, DCGM_FT_STRING, OTHER, oem_inforom, 0) X(57, DCGM_FT_STRING, OTHER, pci_busid, 0) \
	X(70, DCGM_FT_INT64, OTHER, cpu_affinity_0, 0) X(71, DCGM_FT_INT64, OTHER, cpu_affinity_1, 0) X(72, DCGM_FT_INT64, OTHER, cpu_affinity_2, 0) X(73, DCGM_FT_INT64, OTHER, cpu_affinity_3, 0) X(80, DCGM_FT_STRING, OTHER, ecc_inforom, 0) \
	X(81, DCGM_FT_STRING, OTHER, power_inforom, 0) X(82, DCGM_FT_STRING, OTHER, inforom_image, 0) X(85, DCGM_FT_STRING, OTHER, vbios, 0) \
	X(100, DCGM_FT_INT64, K_sm_clock, sm_clock, 0) X(101, DCGM_FT_INT64, K_mem_clock, mem_clock, 0) X(102, DCGM_FT_INT64, K_video_clock, video_clock, 0) \
	X(112, DCGM_FT_INT64, K_clock_reasons, clocks_event_reasons, 0) X(113, DCGM_FT_INT64, K_max_sm_clock, max_sm_clock, 0) X(114, DCGM_FT_INT64, K_max_mem_clock, max_mem_clock, 0) \
	X(140, DCGM_FT_INT64, K_mem_temp, memory_temp, 0) X(150, DCGM_FT_INT64, K_temp, gpu_temp, 0) \
	X(155, DCGM_FT_DOUBLE, K_power, power_usage, 0) X(156, DCGM_FT_INT64, OTHER, total_energy_consumption, 0) X(157, DCGM_FT_DOUBLE, K_power_instant, power_instant, 0) \
	X(158, DCGM_FT_INT64, K_slowdown_temp, slowdown_temp, 0) X(159, DCGM_FT_INT64, K_shutdown_temp, shutdown_temp, 0) \
	X(160, DCGM_FT_DOUBLE, K_power_limit, power_mgmt_limit, 0) X(164, DCGM_FT_DOUBLE, K_enforced_limit, enforced_power_limit, 0) \
	X(190, DCGM_FT_INT64, K_pstate, pstate, 0) X(191, DCGM_FT_INT64, K_fan, fan_speed, 0) X(202, DCGM_FT_INT64, K_pcie_replay, pcie_replay_counter, 0) \
	X(203, DCGM_FT_INT64, K_util, gpu_util, 0) X(204, DCGM_FT_INT64, K_mem_util, mem_copy_util, 0) X(206, DCGM_FT_INT64, K_enc_util, enc_util, 0) X(207, DCGM_FT_INT64, K_dec_util, dec_util, 0) \
	X(230, DCGM_FT_INT64, OTHER, xid_errors, 0) X(235, DCGM_FT_INT64, K_pcie_max_gen, pcie_max_link_gen, 0) X(236, DCGM_FT_INT64, K_pcie_max_width, pcie_max_link_width, 0) \
	X(237, DCGM_FT_INT64, K_pcie_gen, pcie_link_gen, 0) X(238, DCGM_FT_INT64, K_pcie_width, pcie_link_width, 0) \
	X(240, DCGM_FT_INT64, K_viol_power, power_violation, 0) X(241, DCGM_FT_INT64, K_viol_thermal, thermal_violation, 0) X(242, DCGM_FT_INT64, K_viol_sync_boost, sync_boost_violation, 0) \
	X(243, DCGM_FT_INT64, K_viol_board_limit, board_limit_violation, 0) X(244, DCGM_FT_INT64, K_viol_low_util, low_util_violation, 0) X(245, DCGM_FT_INT64, K_viol_reliability, reliability_violation, 0) \
	X(250, DCGM_FT_INT64, K_fb_total, fb_total, 1) X(251, DCGM_FT_INT64, OTHER, fb_free, 1) X(252, DCGM_FT_INT64, K_fb_used, fb_used, 1) X(253, DCGM_FT_INT64, K_fb_reserved, fb_reserved, 1) \
	X(254, DCGM_FT_DOUBLE, OTHER, fb_used_percent, 1) X(310, DCGM_FT_INT64, K_ecc_sbe_vol, ecc_sbe_volatile, 0) X(311, DCGM_FT_INT64, K_ecc_dbe_vol, ecc_dbe_volatile, 0) \
	X(312, DCGM_FT_INT64, K_ecc_sbe_agg, ecc_sbe_aggregate, 0) X(313, DCGM_FT_INT64, K_ecc_dbe_agg, ecc_dbe_aggregate, 0) \
	X(390, DCGM_FT_INT64, K_retired_sbe, retired_sbe, 0) X(391, DCGM_FT_INT64, K_retired_dbe, retired_dbe, 0) X(392, DCGM_FT_INT64, K_retired_pending, retired_pending, 0) \
	X(393, DCGM_FT_INT64, K_remapped_unc, uncorrectable_remapped_rows, 0) X(394, DCGM_FT_INT64, K_remapped_cor, correctable_remapped_rows, 0) \
	X(395, DCGM_FT_INT64, K_remap_failure, row_remap_failure, 0) X(396, DCGM_FT_INT64, K_remap_pending, row_remap_pending, 0) \
	X(409, DCGM_FT_INT64, K_nvlink_crc_flit, nvlink_crc_flit, 0) X(419, DCGM_FT_INT64, K_nvlink_crc_data, nvlink_crc_data, 0) \
	X(429, DCGM_FT_INT64, K_nvlink_replay, nvlink_replay, 0) X(439, DCGM_FT_INT64, K_nvlink_recovery, nvlink_recovery, 0) \
	X(440, DCGM_FT_INT64, OTHER, nvlink_bandwidth_l0, 0) X(449, DCGM_FT_INT64, OTHER, nvlink_bandwidth, 0) X(526, DCGM_FT_INT64, K_vgpu_license, vgpu_license, 0) \
	X(1001, DCGM_FT_DOUBLE, K_gpm_gr, gr_engine_active, 1) X(1002, DCGM_FT_DOUBLE, K_gpm_sm, sm_active, 1) X(1003, DCGM_FT_DOUBLE, K_gpm_occ, sm_occupancy, 1) \
	X(1004, DCGM_FT_DOUBLE, K_gpm_tensor, tensor_active, 1) X(1005, DCGM_FT_DOUBLE, K_gpm_dram, dram_active, 1) X(1006, DCGM_FT_DOUBLE, K_gpm_fp64, fp64_active, 1) \
	X(1007, DCGM_FT_DOUBLE, K_gpm_fp32, fp32_active, 1) X(1008, DCGM_FT_DOUBLE, K_gpm_fp16, fp16_active, 1) X(1009, DCGM_FT_INT64, K_gpm_pcie_tx, pcie_tx_bytes, 1) \
	X(1010, DCGM_FT_INT64, K_gpm_pcie_rx, pcie_rx_bytes, 1) X(1011, DCGM_FT_INT64, K_gpm_nvlink_tx, nvlink_tx_bytes, 1) X(1012, DCGM_FT_INT64, K_gpm_nvlink_rx, nvlink_rx_bytes, 1) \
	X(1013, DCGM_FT_DOUBLE, K_gpm_imma, tensor_imma_active, 1) X(1014, DCGM_FT_DOUBLE, K_gpm_hmma, tensor_hmma_active, 1) \
	X(1015, DCGM_FT_DOUBLE, K_gpm_dfma, tensor_dfma_active, 1) X(1016, DCGM_FT_DOUBLE, K_gpm_int, int_active, 1)

// Fields that always have the same value; NAN: an H200 does not have it.
#define CONSTANTS(X) \
	X(65, INT64, 0) X(66, INT64, 1) X(67, INT64, 0) X(69, INT64, 7) X(74, INT64, 0) X(83, INT64, 1234567) X(84, INT64, 1) X(90, INT64, 262144) \
	X(91, INT64, NAN) X(92, INT64, 3) X(93, INT64, 262141) X(110, INT64, 1980) X(111, INT64, 3201) X(115, INT64, 1965) X(120, INT64, NAN) \
	X(151, INT64, 95) X(152, INT64, 87) X(161, DOUBLE, 200) X(162, DOUBLE, 700) X(163, DOUBLE, 700) X(170, INT64, 3) X(173, INT64, 0) X(174, INT64, 341) \
	X(175, INT64, 1) X(200, INT64, 12) X(201, INT64, 15) X(246, INT64, 0) X(247, INT64, 0) X(285, INT64, NAN) X(286, INT64, NAN) X(287, INT64, NAN) \
	X(300, INT64, 1) X(301, INT64, 1) X(314, INT64, 0) X(315, INT64, 0) X(316, INT64, 0) X(317, INT64, 0) X(318, INT64, 0) X(319, INT64, 0) \
	X(320, INT64, 0) X(321, INT64, 0) X(322, INT64, NAN) X(323, INT64, NAN) X(324, INT64, 0) X(325, INT64, 0) X(326, INT64, 0) X(327, INT64, 0) \
	X(328, INT64, 0) X(329, INT64, 0) X(330, INT64, 0) X(331, INT64, 0) X(332, INT64, NAN) X(333, INT64, NAN) X(385, INT64, 192) X(386, INT64, 0) \
	X(387, INT64, 0) X(388, INT64, 0) X(389, INT64, 0) X(441, INT64, 0) X(442, INT64, 0) X(443, INT64, 0) X(444, INT64, 0) X(445, INT64, 0) \
	X(446, INT64, 0) X(447, INT64, 0) X(448, INT64, 0) X(450, INT64, 0) X(475, INT64, 0) X(476, INT64, 0) X(477, INT64, 0) X(478, INT64, 0) \
	X(479, INT64, 0) X(480, INT64, 0) X(494, INT64, 0) X(495, INT64, 0) X(496, INT64, 0) X(1017, DOUBLE, 0) X(1018, DOUBLE, 0) X(1019, DOUBLE, 0) \
	X(1020, DOUBLE, 0) X(1021, DOUBLE, 0) X(1022, DOUBLE, 0) X(1023, DOUBLE, 0) X(1024, DOUBLE, 0) X(1025, DOUBLE, 0) X(1026, DOUBLE, 0) \
	X(1027, DOUBLE, 0) X(1028, DOUBLE, 0) X(1029, DOUBLE, 0) X(1030, DOUBLE, 0) X(1031, DOUBLE, 0) X(1032, DOUBLE, 0) X(1033, DOUBLE, 0)

// Fields that GPUPilot has no table for: the type, the level, and the value that they
// always have; NAN: an H200 does not have it. 9001 to 9004 are those of a newer DCGM.
#define PASSED(X) \
	X(500, INT64, GPU, 0) X(525, INT64, VGPU, 4096) X(572, STRING, GPU, 0) X(879, INT64, GPU, 12) X(1084, INT64, GPU_I, 123456789012) X(1216, DOUBLE, GPU, 1e-15) \
	X(1300, INT64, CONNECTX, 1) X(1420, INT64, GPU, NAN) X(1523, INT64, GPU, 2) X(9001, DOUBLE, GPU, -0.5) X(9005, BINARY, GPU, 0)

// The fields of parts: of switches, links, CPUs, cores.
#define PART_FIELDS(X) \
	X(701, INT64, SWITCH, nvswitch_voltage) X(705, INT64, SWITCH, nvswitch_power_vdd) X(706, INT64, SWITCH, nvswitch_power_dvdd) X(707, INT64, SWITCH, nvswitch_power_hvdd) \
	X(780, INT64, LINK, nvswitch_link_tx) X(781, INT64, LINK, nvswitch_link_rx) X(782, INT64, LINK, nvswitch_link_fatal) X(783, INT64, LINK, nvswitch_link_non_fatal) \
	X(784, INT64, LINK, nvswitch_link_replay) X(785, INT64, LINK, nvswitch_link_recovery) X(786, INT64, LINK, nvswitch_link_flit) X(787, INT64, LINK, nvswitch_link_crc) \
	X(788, INT64, LINK, nvswitch_link_ecc) X(856, INT64, SWITCH, sxid_fatal) X(857, INT64, SWITCH, sxid_non_fatal) X(858, INT64, SWITCH, nvswitch_temp) \
	X(859, INT64, SWITCH, nvswitch_temp_slowdown) X(860, INT64, SWITCH, nvswitch_temp_shutdown) X(861, INT64, SWITCH, nvswitch_tx) X(862, INT64, SWITCH, nvswitch_rx) \
	X(863, INT64, SWITCH, nvswitch_physical_id) X(864, INT64, SWITCH, nvswitch_reset_required) X(865, INT64, LINK, nvswitch_link_id) X(870, INT64, LINK, nvswitch_link_status) \
	X(871, INT64, LINK, nvswitch_link_type) X(1100, DOUBLE, CPU_CORE, cpu_util) X(1101, DOUBLE, CPU_CORE, cpu_util_user) X(1102, DOUBLE, CPU_CORE, cpu_util_nice) \
	X(1103, DOUBLE, CPU_CORE, cpu_util_sys) X(1104, DOUBLE, CPU_CORE, cpu_util_irq) X(1110, DOUBLE, CPU, cpu_temp) X(1111, DOUBLE, CPU, cpu_temp_warning) \
	X(1112, DOUBLE, CPU, cpu_temp_critical) X(1120, INT64, CPU_CORE, cpu_clock) X(1130, DOUBLE, CPU, cpu_power) X(1131, DOUBLE, CPU, cpu_power_limit) \
	X(1132, DOUBLE, CPU, sysio_power) X(1133, DOUBLE, CPU, module_power) X(1140, STRING, CPU, cpu_vendor) X(1141, STRING, CPU, cpu_model) \
	X(702, INT64, SWITCH, nvswitch_iddq) X(1201, INT64, LINK, nvlink_tx_total) X(9002, INT64, CPU, newer_cpu) X(9003, DOUBLE, CPU_CORE, newer_core) X(9004, INT64, SWITCH, newer_switch)

static dcgm_field_output_format_t format;

#define LEVEL(id, own) ((id) < 50 ? DCGM_FE_NONE : (own) && (id) >= 1000 ? DCGM_FE_GPU_I : DCGM_FE_GPU)
#define AS_META(id, type, key, tag, own) {id, type, (type) == DCGM_FT_STRING ? 0 : 8, #tag, (id) < 50 ? DCGM_FS_GLOBAL : DCGM_FS_DEVICE, 0, LEVEL(id, own), &format},
#define AS_CONSTANT(id, type, value) {id, DCGM_FT_##type, 8, #id, DCGM_FS_DEVICE, 0, LEVEL(id, 0), &format},
#define AS_PART(id, type, level, tag) {id, DCGM_FT_##type, (DCGM_FT_##type) == DCGM_FT_STRING ? 0 : 8, #tag, DCGM_FS_ENTITY, 0, DCGM_FE_##level, &format},
#define AS_PASSED(id, type, level, value) {id, DCGM_FT_##type, (DCGM_FT_##type) == DCGM_FT_STRING ? 0 : 8, #id, DCGM_FS_ENTITY, 0, DCGM_FE_##level, &format},
#define NO_KEY(...) OTHER,
#define NOT_OWN(...) 0,
#define AS_KEY(id, type, key, tag, own) key,
#define AS_OWN(id, type, key, tag, own) own,
static const dcgm_field_meta_t meta[] = {FIELDS(AS_META) CONSTANTS(AS_CONSTANT) PASSED(AS_PASSED) PART_FIELDS(AS_PART)};
static const int key_of[] = {FIELDS(AS_KEY) CONSTANTS(NO_KEY) PASSED(NO_KEY) PART_FIELDS(NO_KEY)};
static const bool own_of[] = {FIELDS(AS_OWN) CONSTANTS(NOT_OWN) PASSED(NOT_OWN) PART_FIELDS(NOT_OWN)};
#define AS_ROW(id, type, value) {id, value},
#define AS_LEVEL_ROW(id, type, level, value) {id, value},
static const struct {
	unsigned short id;
	double value;
} constant[] = {CONSTANTS(AS_ROW) PASSED(AS_LEVEL_ROW)};
enum { NFIELDS = sizeof meta / sizeof *meta };
_Static_assert((int)NFIELDS <= (int)MAX_FIELDS, "MAX_FIELDS");

int field_index(unsigned short field) {
	for (int i = 0; i < NFIELDS; i++)
		if (meta[i].fieldId == field) return i;
	return -1;
}

int DcgmFieldsInit(void) { return 0; }
int DcgmFieldsTerm(void) { return 0; }

dcgm_field_meta_p DcgmFieldGetById(unsigned short field) {
	int i = field_index(field);
	return i < 0 ? NULL : &meta[i];
}

dcgm_field_meta_p DcgmFieldGetByTag(const char *tag) {
	for (int i = 0; i < NFIELDS; i++)
		if (!strcmp(meta[i].tag, tag)) return &meta[i];
	return NULL;
}

bool profiling_field(unsigned short field) { return field >= 1001 && field < 1100; }

int mean_key(unsigned short field) {
	int i = field_index(field);
	return i >= 0 && profiling_field(field) ? key_of[i] : -1;
}

dcgmReturn_t profiling_has(struct where w, unsigned short field) {
	int i = field_index(field);
	if (S.profiling != DCGM_ST_OK) return S.profiling;
	if (!S.gpu[w.gpu].gpm || (field >= 1084 && !S.totals)) return DCGM_ST_PROFILING_NOT_SUPPORTED;
	return i >= 0 && (key_of[i] == OTHER || S.gpu[w.gpu].whole.have[key_of[i]]) ? DCGM_ST_OK : DCGM_ST_PROFILING_NOT_SUPPORTED;
}

dcgmReturn_t dcgmProfGetSupportedMetricGroups(dcgmHandle_t h, dcgmProfGetMetricGroups_t *out) {
	BEGIN(h, "ProfGetSupportedMetricGroups", -1);
	if (out->version != dcgmProfGetMetricGroups_version3) return end(DCGM_ST_VER_MISMATCH);
	if ((int)out->gpuId >= S.gpus) return end(DCGM_ST_BADPARAM);
	struct where w = {(int)out->gpuId, -1, 0};
	if (S.profiling != DCGM_ST_OK) return end(S.profiling);
	if (!S.gpu[w.gpu].gpm) return end(DCGM_ST_PROFILING_NOT_SUPPORTED);
	out->numMetricGroups = 1;
	dcgmProfMetricGroupInfo_v2 *g = &out->metricGroups[0];
	memset(g, 0, sizeof *g);
	for (int i = 0; i < NFIELDS; i++)
		if (profiling_field(meta[i].fieldId) && profiling_has(w, meta[i].fieldId) == DCGM_ST_OK) g->fieldIds[g->numFieldIds++] = meta[i].fieldId;
	return end(DCGM_ST_OK);
}

static double rate_mb(const struct device *d, enum key tx, enum key rx) { return (d->val[tx] + d->val[rx]) * 1024 / 1e6; }

// other computes the numbers that are no key by themselves.
static bool other(struct where w, const struct device *d, unsigned short field, long double *x) {
	switch (field) {
	case 4: *x = S.gpus; return true;
	case 5: *x = 13010; return true;
	case 52:
	case 55: *x = w.gpu; return true;
	case 70: *x = 0xffff; return true; // CPUs 0 to 15
	case 71:
	case 72:
	case 73: *x = 0; return true;
	case 156: *x = d->have[K_energy] ? d->val[K_energy] : S.gpu[w.gpu].energy; return true;
	case 251: *x = d->val[K_fb_total] - d->val[K_fb_used] - d->val[K_fb_reserved]; return d->have[K_fb_total];
	case 254: *x = d->val[K_fb_used] / (d->val[K_fb_total] - d->val[K_fb_reserved]); return d->have[K_fb_total];
	case 440: *x = rate_mb(d, K_nvlink0_tx, K_nvlink0_rx); return d->have[K_nvlink0_tx];
	case 449: *x = rate_mb(d, K_nvlink_tx, K_nvlink_rx); return d->have[K_nvlink_tx];
	}
	for (size_t i = 0; i < sizeof constant / sizeof *constant; i++)
		if (constant[i].id == field) return *x = constant[i].value, !isnan(*x);
	return false;
}

static void text(struct where w, unsigned short field, char out[DCGM_MAX_STR_LENGTH]) {
	switch (field) {
	case 1: snprintf(out, DCGM_MAX_STR_LENGTH, "%s", S.driver_version); break;
	case 2: snprintf(out, DCGM_MAX_STR_LENGTH, "13.590.48.01"); break;
	case 50: snprintf(out, DCGM_MAX_STR_LENGTH, "%s", w.mig < 0 ? model_of(w.gpu) : S.gpu[w.gpu].mig[w.mig].profile); break;
	case 51: snprintf(out, DCGM_MAX_STR_LENGTH, "NVIDIA"); break;
	case 53: snprintf(out, DCGM_MAX_STR_LENGTH, "16500240%05d", w.gpu); break;
	case 54: gpu_uuid(w.gpu, out); break; // DCGM does not know the UUIDs of instances
	case 57: snprintf(out, DCGM_MAX_STR_LENGTH, "00000000:%02X:00.0", (0x10 + 9 * w.gpu) & 0xff); break;
	case 80: snprintf(out, DCGM_MAX_STR_LENGTH, "7.16"); break;
	case 82: snprintf(out, DCGM_MAX_STR_LENGTH, "G520.0201.00.05"); break;
	case 85: snprintf(out, DCGM_MAX_STR_LENGTH, "96.00.BC.00.01"); break;
	case 572: snprintf(out, DCGM_MAX_STR_LENGTH, "chassis-7"); break;
	case 1140: snprintf(out, DCGM_MAX_STR_LENGTH, "NVIDIA"); break;
	case 1141: snprintf(out, DCGM_MAX_STR_LENGTH, "Grace A02"); break;
	default: snprintf(out, DCGM_MAX_STR_LENGTH, DCGM_STR_NOT_SUPPORTED);
	}
}

static void blank(dcgmFieldValue_v1 *v, int kind, dcgmReturn_t status) {
	v->status = status;
	if (v->fieldType == DCGM_FT_DOUBLE) v->value.dbl = DCGM_FP64_BLANK + kind;
	else if (v->fieldType == DCGM_FT_INT64) v->value.i64 = DCGM_INT64_BLANK + kind;
	else snprintf(v->value.str, sizeof v->value.str, kind == 2 ? DCGM_STR_NOT_SUPPORTED : DCGM_STR_BLANK);
}

static void last_xid(struct where w, dcgmFieldValue_v1 *v) {
	for (int i = S.xids - 1; i >= 0; i--)
		if (S.xid[i].gpu == w.gpu) {
			v->value.i64 = S.xid[i].code;
			v->ts = S.xid[i].at;
			return;
		}
	v->ts = 0;
	blank(v, 0, DCGM_ST_NO_DATA);
}

static void number(dcgmFieldValue_v1 *v, long double x) {
	if (v->fieldType == DCGM_FT_DOUBLE) v->value.dbl = (double)x;
	else v->value.i64 = llroundl(x);
}

// part_value gives meta[i] of a part.
static void part_value(struct where w, int i, bool live, dcgmFieldValue_v1 *v) {
	double x;
	v->ts = clock_us();
	if (!live && !watched(w, meta[i].fieldId)) return blank(v, 0, DCGM_ST_NOT_WATCHED);
	if (!part_number(w, meta[i].fieldId, meta[i].entityLevel, &x)) return blank(v, 2, DCGM_ST_NOT_SUPPORTED);
	if (v->fieldType == DCGM_FT_STRING) return text(w, meta[i].fieldId, v->value.str);
	if (isnan(x)) return blank(v, 0, DCGM_ST_OK);
	number(v, x);
}

void value(struct where w, unsigned short field, bool live, dcgmFieldValue_v1 *v) {
	int i = field_index(field);
	v->version = dcgmFieldValue_version1; // the rest of its 4 KiB stays as it is
	v->fieldId = field;
	v->fieldType = DCGM_FT_INT64;
	v->status = DCGM_ST_OK;
	v->ts = 0;
	if (i < 0) return blank(v, 1, DCGM_ST_UNKNOWN_FIELD);
	v->fieldType = (unsigned short)meta[i].fieldType;
	if (IS_PART(w)) {
		part_value(w, i, live, v);
		return;
	}
	const struct gpu *g = &S.gpu[w.gpu];
	v->ts = g->stale ? g->stale : clock_us();
	if (live ? profiling_field(field) : !watched(w, field)) return blank(v, 0, DCGM_ST_NOT_WATCHED);
	if (g->status == DcgmEntityStatusLost) return blank(v, 0, DCGM_ST_GPU_IS_LOST);
	if (field == DCGM_FI_DEV_XID_ERROR) return last_xid(w, v);
	if (v->fieldType == DCGM_FT_STRING) return text(w, field, v->value.str);
	const struct device *d = w.mig >= 0 && own_of[i] ? &g->mig[w.mig] : &g->whole;
	long double x = 0;
	// A GPU that is cut into instances does not say how busy it is as a whole.
	for (int k = 0; k < g->lacks; k++)
		if (g->lack[k] == field) return blank(v, 2, DCGM_ST_NOT_SUPPORTED);
	bool have = key_of[i] == OTHER ? other(w, d, field, &x) : d->have[key_of[i]] && !(g->migs > 0 && field >= 203 && field <= 207);
	if (!have) return blank(v, 2, DCGM_ST_NOT_SUPPORTED);
	if (key_of[i] != OTHER) x = d->val[key_of[i]];
	if (shows_means() && mean_key(field) >= 0 && !mean_of((struct where){w.gpu, own_of[i] ? w.mig : -1, 0}, key_of[i], &x, &v->ts))
		return blank(v, 0, DCGM_ST_NO_DATA);
	if (isnan(x)) return blank(v, 0, DCGM_ST_OK);
	if (field >= 1009 && field <= 1012) x *= 1048576;
	number(v, x);
}
