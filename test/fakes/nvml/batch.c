// SPDX-License-Identifier: Apache-2.0

// The fake's events, and what came to NVML after 2018: field values in one
// batch, GPM and MIG.
#define _GNU_SOURCE
#include "device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// --- events ---

struct nvmlEventSet_st {
	bool registered[MAX_GPUS];
	int next; // the first of S.event not yet looked at
};

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
	lock();
	if (!S.initialised) return end(NVML_ERROR_UNINITIALIZED);
	*set = calloc(1, sizeof **set);
	(*set)->next = S.events;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
	lock();
	free(set);
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t d, unsigned long long *types) {
	BEGIN(d, "GetSupportedEventTypes");
	*types = nvmlEventTypeXidCriticalError | nvmlEventTypePState;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t d, unsigned long long types, nvmlEventSet_t set) {
	BEGIN(d, "RegisterEvents");
	if (types & ~(unsigned long long)(nvmlEventTypeXidCriticalError | nvmlEventTypePState)) return end(NVML_ERROR_NOT_SUPPORTED);
	if (types & nvmlEventTypeXidCriticalError) set->registered[d->gpu] = true;
	return end(NVML_SUCCESS);
}

// pause_until waits until the next look, at the latest until then. A driver blocks in
// the kernel, which costs nothing: measurements of CPU time set the time between two
// looks, in ms.
static void pause_until(double then) {
	const char *ms = getenv("GPUPILOT_FAKE_NVML_POLL_MS");
	double pause = ms ? atof(ms) / 1000 : 0.002;
	double left = then - now();
	if (ms && pause > left) pause = left > 0 ? left : 0;
	usleep((useconds_t)(pause * 1e6));
}

static nvmlReturn_t event_wait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms, bool instances) {
	for (double until = now() + timeout_ms / 1000.;; pause_until(until)) {
		lock_only();
		if (!S.lazy_events) {
			unlock();
			lock();
		}
		if (!S.initialised) return end(NVML_ERROR_UNINITIALIZED);
		if (S.events_fail) return end(NVML_ERROR_UNKNOWN);
		while (set->next < S.events) {
			struct event e = S.event[set->next++];
			if (!set->registered[e.gpu]) continue;
			memset(data, 0, sizeof *data);
			data->device = handle_of(e.gpu, -1);
			data->eventType = nvmlEventTypeXidCriticalError;
			data->eventData = e.code;
			data->gpuInstanceId = instances ? e.gi : 0;
			data->computeInstanceId = 0xFFFFFFFFu;
			return end(NVML_SUCCESS);
		}
		unlock();
		if (now() >= until) return NVML_ERROR_TIMEOUT;
	}
}

#ifdef OLD
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
	return event_wait(set, data, timeout_ms, false);
}
#else
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
	return event_wait(set, data, timeout_ms, true);
}

// --- field values ---

static const struct {
	unsigned int id;
	enum key key;
	double scale;
	bool wide; // 64 bits
} field[] = {
	{NVML_FI_DEV_ECC_SBE_VOL_TOTAL, K_ecc_sbe_vol, 1, true}, {NVML_FI_DEV_ECC_DBE_VOL_TOTAL, K_ecc_dbe_vol, 1, true},
	{NVML_FI_DEV_ECC_SBE_AGG_TOTAL, K_ecc_sbe_agg, 1, true}, {NVML_FI_DEV_ECC_DBE_AGG_TOTAL, K_ecc_dbe_agg, 1, true},
	{NVML_FI_DEV_RETIRED_SBE, K_retired_sbe, 1, true}, {NVML_FI_DEV_RETIRED_DBE, K_retired_dbe, 1, true},
	{NVML_FI_DEV_RETIRED_PENDING, K_retired_pending, 1, true},
	{NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, K_nvlink_crc_flit, 1, true},
	{NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, K_nvlink_crc_data, 1, true},
	{NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, K_nvlink_replay, 1, true},
	{NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, K_nvlink_recovery, 1, true},
	{NVML_FI_DEV_PERF_POLICY_POWER, K_viol_power, 1, true}, {NVML_FI_DEV_PERF_POLICY_THERMAL, K_viol_thermal, 1, true},
	{NVML_FI_DEV_PERF_POLICY_SYNC_BOOST, K_viol_sync_boost, 1, true}, {NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT, K_viol_board_limit, 1, true},
	{NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION, K_viol_low_util, 1, true}, {NVML_FI_DEV_PERF_POLICY_RELIABILITY, K_viol_reliability, 1, true},
	{NVML_FI_DEV_MEMORY_TEMP, K_mem_temp, 1, false}, {NVML_FI_DEV_PCIE_REPLAY_COUNTER, K_pcie_replay, 1, false},
	{NVML_FI_DEV_REMAPPED_COR, K_remapped_cor, 1, false}, {NVML_FI_DEV_REMAPPED_UNC, K_remapped_unc, 1, false},
	{NVML_FI_DEV_REMAPPED_PENDING, K_remap_pending, 1, false}, {NVML_FI_DEV_REMAPPED_FAILURE, K_remap_failure, 1, false},
	{NVML_FI_DEV_POWER_INSTANT, K_power_instant, 1000, false},
};

static void answer(nvmlFieldValue_t *v, long double x, bool wide) {
	v->nvmlReturn = NVML_SUCCESS;
	v->timestamp = (long long)time(NULL) * 1000000;
	v->latencyUsec = 5;
	v->valueType = wide ? NVML_VALUE_TYPE_UNSIGNED_LONG_LONG : NVML_VALUE_TYPE_UNSIGNED_INT;
	if (wide) v->value.ullVal = (unsigned long long)x;
	else v->value.uiVal = (unsigned int)x;
}

// link_key is what a throughput counter adds up: all links, or one, each of which
// does as link 0.
static enum key link_key(const nvmlFieldValue_t *v) {
	bool tx = v->fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX;
	if (v->scopeId == 0xFFFFFFFFu) return tx ? K_nvlink_tx : K_nvlink_rx;
	if (v->scopeId < 18) return tx ? K_nvlink0_tx : K_nvlink0_rx;
	return NKEYS;
}

static void field_value(nvmlDevice_t d, nvmlFieldValue_t *v) {
	long double x;
	v->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
	for (int i = 0; d->mig < 0 && i < gpu_of(d)->fields; i++) {
		const struct field_line *f = &gpu_of(d)->field[i];
		if (f->id == v->fieldId && f->scope == v->scopeId) answer(v, f->value, f->id != NVML_FI_DEV_GET_GPU_RECOVERY_ACTION);
	}
	switch (v->fieldId) {
	case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
		if (d->mig < 0) answer(v, energy(d), true);
		return;
	case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX:
	case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX:;
		enum key k = link_key(v);
		if (k != NKEYS && get(d, k, &x)) answer(v, dev_of(d)->sum[k], true);
		return;
	}
	for (size_t i = 0; i < sizeof field / sizeof *field; i++)
		if (field[i].id == v->fieldId && get(d, field[i].key, &x)) answer(v, x * field[i].scale + 0.5, field[i].wide);
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int count, nvmlFieldValue_t *values) {
	BEGIN(d, "GetFieldValues");
	for (int i = 0; i < count; i++) field_value(d, &values[i]);
	return end(NVML_SUCCESS);
}

// --- GPM ---

struct nvmlGpmSample_st {
	double time;
	struct device of;
};

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t d, nvmlGpmSupport_t *support) {
	BEGIN(d, "GpmQueryDeviceSupport");
	if (support->version != NVML_GPM_SUPPORT_VERSION) return end(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	support->isSupportedDevice = gpu_of(d)->gpm;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *s) { return (*s = calloc(1, sizeof **s)) ? NVML_SUCCESS : NVML_ERROR_MEMORY; }

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t s) {
	free(s);
	return NVML_SUCCESS;
}

static nvmlReturn_t sample(nvmlDevice_t d, struct device *of, nvmlGpmSample_t s) {
	if (!gpu_of(d)->gpm) return end(NVML_ERROR_NOT_SUPPORTED);
	s->time = summed_until();
	s->of = *of;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t d, nvmlGpmSample_t s) {
	BEGIN(d, "GpmSampleGet");
	return sample(d, dev_of(d), s);
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t d, unsigned int gi, nvmlGpmSample_t s) {
	BEGIN(d, "GpmMigSampleGet");
	for (int m = 0; m < gpu_of(d)->migs; m++)
		if (gpu_of(d)->mig[m].gi == (int)gi) return sample(d, &gpu_of(d)->mig[m], s);
	return end(NVML_ERROR_INVALID_ARGUMENT);
}

static const struct {
	unsigned int metric;
	enum key key;
	double scale;
} gpm[] = {
	{1, K_gpm_gr, 100}, {2, K_gpm_sm, 100}, {3, K_gpm_occ, 100}, {4, K_gpm_int, 100}, {5, K_gpm_tensor, 100}, {6, K_gpm_dfma, 100},
	{7, K_gpm_hmma, 100}, {9, K_gpm_imma, 100}, {10, K_gpm_dram, 100}, {11, K_gpm_fp64, 100}, {12, K_gpm_fp32, 100}, {13, K_gpm_fp16, 100},
	{20, K_gpm_pcie_tx, 1}, {21, K_gpm_pcie_rx, 1}, {60, K_gpm_nvlink_rx, 1}, {61, K_gpm_nvlink_tx, 1},
};

static void metric(nvmlGpmMetric_t *m, nvmlGpmSample_t a, nvmlGpmSample_t b) {
	m->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
	for (size_t i = 0; i < sizeof gpm / sizeof *gpm; i++) {
		enum key k = gpm[i].key;
		if (gpm[i].metric != m->metricId || !b->of.have[k]) continue;
		double dt = b->time - a->time;
		m->nvmlReturn = NVML_SUCCESS;
		// The hardware refreshes its sample each 100 ms: closer ones are blank.
		m->value = dt < 0.1 || isnan(b->of.val[k]) ? NAN : (b->of.sum[k] - a->of.sum[k]) / dt * gpm[i].scale;
	}
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *g) {
	lock();
	if (g->version != NVML_GPM_METRICS_GET_VERSION) return end(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	if (!g->sample1 || !g->sample2 || g->numMetrics > NVML_GPM_METRIC_MAX) return end(NVML_ERROR_INVALID_ARGUMENT);
	for (unsigned int i = 0; i < g->numMetrics; i++) metric(&g->metrics[i], g->sample1, g->sample2);
	return end(NVML_SUCCESS);
}

// --- MIG ---

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned int *current, unsigned int *pending) {
	BEGIN(d, "GetMigMode");
	*current = *pending = gpu_of(d)->migs > 0;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned int *count) {
	BEGIN(d, "GetMaxMigDeviceCount");
	*count = 7;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned int index, nvmlDevice_t *mig) {
	BEGIN(d, "GetMigDeviceHandleByIndex");
	if ((int)index >= gpu_of(d)->migs) return end(NVML_ERROR_NOT_FOUND);
	*mig = handle_of(d->gpu, index);
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *d) {
	lock();
	if (!S.initialised) return end(NVML_ERROR_UNINITIALIZED);
	for (int i = 0; i < S.gpus; i++)
		for (int m = -1; m < S.gpu[i].migs; m++) {
			char s[NAME];
			*d = handle_of(i, m);
			uuid_of(*d, s);
			if (!strcmp(s, uuid)) return end(NVML_SUCCESS);
		}
	return end(NVML_ERROR_NOT_FOUND);
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *d) {
	BEGIN(mig, "GetDeviceHandleFromMigDeviceHandle");
	*d = handle_of(mig->gpu, -1);
	return end(mig->mig < 0 ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t d, unsigned int *id) {
	BEGIN(d, "GetGpuInstanceId");
	if (d->mig < 0) return end(NVML_ERROR_INVALID_ARGUMENT);
	*id = dev_of(d)->gi;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t d, unsigned int *id) {
	BEGIN(d, "GetComputeInstanceId");
	*id = 0;
	return end(d->mig < 0 ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t d, nvmlDeviceAttributes_t *a) {
	BEGIN(d, "GetAttributes");
	if (d->mig < 0) return end(NVML_ERROR_INVALID_ARGUMENT);
	memset(a, 0, sizeof *a);
	a->gpuInstanceSliceCount = a->computeInstanceSliceCount = dev_of(d)->slices;
	a->multiprocessorCount = 16 * dev_of(d)->slices;
	a->memorySizeMB = (unsigned long long)dev_of(d)->val[K_fb_total];
	return end(NVML_SUCCESS);
}
#endif
