// SPDX-License-Identifier: Apache-2.0

// NVML's functions over the fake's state: those that monitoring uses. Built
// with -DOLD it lacks what a driver of about 2018 lacks.
#define _GNU_SOURCE
#include "device.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAGIC = 0x4e564d4c };

static struct nvmlDevice_st handle[MAX_GPUS][MAX_MIG + 1];

nvmlDevice_t handle_of(int gpu, int mig) {
	struct nvmlDevice_st *h = &handle[gpu][mig + 1];
	*h = (struct nvmlDevice_st){MAGIC, gpu, mig};
	return h;
}

nvmlReturn_t end(nvmlReturn_t r) {
	unlock();
	return r;
}

nvmlReturn_t begin(nvmlDevice_t d, const char *fn) {
	lock();
	if (!S.initialised) return end(NVML_ERROR_UNINITIALIZED);
	if (!d || d->magic != MAGIC || d->gpu >= S.gpus) return end(NVML_ERROR_INVALID_ARGUMENT);
	if (d->mig >= gpu_of(d)->migs) return end(NVML_ERROR_NOT_FOUND);
	note("%d %s", d->gpu, fn);
	nvmlReturn_t failed = block(d->gpu, fn);
	// A real library answers some calls on a lost GPU from memory.
	if (gpu_of(d)->lost && strcmp(fn, "GetTotalEnergyConsumption")) return end(NVML_ERROR_GPU_IS_LOST);
	return failed == NVML_SUCCESS ? failed : end(failed);
}

bool get(nvmlDevice_t d, enum key k, long double *x) {
	if (d->mig >= 0 || !dev_of(d)->have[k] || isnan(dev_of(d)->val[k])) return false;
	*x = dev_of(d)->val[k];
	return true;
}

static nvmlReturn_t text(char *out, unsigned int length, const char *s) {
	if (strlen(s) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, s);
	return NVML_SUCCESS;
}

// --- the library ---

// library_version is this library's. A test makes a library of another driver: it changes the
// number in a copy of the file.
char library_version[] = "library of driver 590.48.01";

bool replaced(void) { return *S.module_version && strcmp(strrchr(library_version, ' ') + 1, S.module_version); }

// A library holds the files of the devices while it is initialised. This one holds the file
// that a test names.
static int held = -1;

static void hold_device(void) {
	const char *device = getenv("GPUPILOT_FAKE_NVML_DEVICE");
	if (device && held < 0) held = open(device, O_RDONLY | O_CLOEXEC);
}

static void drop_device(void) {
	if (held >= 0) close(held);
	held = -1;
}

nvmlReturn_t nvmlInit_v2(void) {
	lock();
	if (!S.driver) return end(NVML_ERROR_DRIVER_NOT_LOADED);
	if (replaced()) return end(NVML_ERROR_LIB_RM_VERSION_MISMATCH);
	// While others use the library, init only counts: it cannot mend what a
	// driver's unloading has broken.
	if (S.users++ == 0) S.initialised = true;
	hold_device();
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlInit(void) { return nvmlInit_v2(); }

nvmlReturn_t nvmlShutdown(void) {
	lock();
	if (S.users == 0) return end(NVML_ERROR_UNINITIALIZED);
	if (--S.users == 0) {
		S.initialised = false;
		drop_device();
	}
	return end(NVML_SUCCESS);
}

#ifndef OLD
const char *nvmlErrorString(nvmlReturn_t r) { return r == NVML_SUCCESS ? "Success" : "Failure"; }
#endif

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
	lock();
	return end(S.initialised ? text(version, length, S.driver_version) : NVML_ERROR_UNINITIALIZED);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
	lock();
	return end(S.initialised ? text(version, length, "13.590.48.01") : NVML_ERROR_UNINITIALIZED);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
	lock();
	*version = 13010;
	return end(S.initialised ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED);
}

// --- enumeration and identity ---

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
	lock();
	*count = S.gpus;
	return end(S.initialised ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *d) {
	lock();
	if (!S.initialised) return end(NVML_ERROR_UNINITIALIZED);
	if ((int)index >= S.gpus) return end(NVML_ERROR_INVALID_ARGUMENT);
	if (S.gpu[index].lost) return end(NVML_ERROR_GPU_IS_LOST);
	*d = handle_of(index, -1);
	return end(NVML_SUCCESS);
}

void uuid_of(nvmlDevice_t d, char out[NAME]) {
	if (d->mig < 0) gpu_uuid(d->gpu, out);
	else snprintf(out, NAME, "MIG-%08x-6670-5000-8000-%04x%08x", S.seed + 0x48323030, d->gpu, dev_of(d)->gi);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *uuid, unsigned int length) {
	BEGIN(d, "GetUUID");
	char s[NAME];
	uuid_of(d, s);
	return end(text(uuid, length, s));
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *name, unsigned int length) {
	BEGIN(d, "GetName");
	char s[2 * NAME];
	if (d->mig < 0) snprintf(s, sizeof s, "%s", S.model);
	else snprintf(s, sizeof s, "%s MIG %s", S.model, dev_of(d)->profile);
	return end(text(name, length, s));
}

static nvmlReturn_t pci_info(nvmlDevice_t d, nvmlPciInfo_t *pci) {
	BEGIN(d, "GetPciInfo");
	memset(pci, 0, sizeof *pci);
	pci->bus = 0x10 + 9 * d->gpu;
	snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus & 0xff);
	snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:00.0", 0, pci->bus & 0xff);
	pci->pciDeviceId = 0x233510de;
	pci->pciSubSystemId = 0x18be10de;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t d, nvmlPciInfo_t *pci) { return pci_info(d, pci); }
#ifndef OLD
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *pci) { return pci_info(d, pci); }
#endif

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor) {
	BEGIN(d, "GetCudaComputeCapability");
	*major = 9, *minor = 0;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned int *minor) {
	BEGIN(d, "GetMinorNumber");
	*minor = d->gpu;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t d, nvmlBrandType_t *brand) {
	BEGIN(d, "GetBrand");
	*brand = NVML_BRAND_NVIDIA;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t d, char *serial, unsigned int length) {
	BEGIN(d, "GetSerial");
	char s[NAME];
	snprintf(s, sizeof s, "16500240%05d", d->gpu);
	return end(text(serial, length, s));
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t d, char *version, unsigned int length) {
	BEGIN(d, "GetVbiosVersion");
	return end(text(version, length, "96.00.BC.00.01"));
}

nvmlReturn_t nvmlDeviceGetInforomImageVersion(nvmlDevice_t d, char *version, unsigned int length) {
	BEGIN(d, "GetInforomImageVersion");
	return end(text(version, length, "G520.0280.00.05"));
}

nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t d, nvmlInforomObject_t object, char *version, unsigned int length) {
	BEGIN(d, "GetInforomVersion");
	static const char *const of[] = {"2.1", "7.16", "N/A"};
	if (object > NVML_INFOROM_ECC) return end(NVML_ERROR_NOT_SUPPORTED);
	return end(text(version, length, of[object]));
}

// --- values ---

// GETTER defines a function that gives one value, times scale.
#define GETTER(name, type, key, scale) \
	nvmlReturn_t nvmlDevice##name(nvmlDevice_t d, type *out) { \
		BEGIN(d, #name); \
		long double x; \
		if (!get(d, K_##key, &x)) return end(NVML_ERROR_NOT_SUPPORTED); \
		*out = (type)(x * (scale) + 0.5); \
		return end(NVML_SUCCESS); \
	}

GETTER(GetPowerUsage, unsigned int, power, 1000)
GETTER(GetPowerManagementLimit, unsigned int, power_limit, 1000)
GETTER(GetEnforcedPowerLimit, unsigned int, enforced_limit, 1000)
GETTER(GetPerformanceState, nvmlPstates_t, pstate, 1)
GETTER(GetFanSpeed, unsigned int, fan, 1)
GETTER(GetPcieReplayCounter, unsigned int, pcie_replay, 1)
GETTER(GetMaxPcieLinkGeneration, unsigned int, pcie_max_gen, 1)
GETTER(GetMaxPcieLinkWidth, unsigned int, pcie_max_width, 1)
GETTER(GetCurrPcieLinkGeneration, unsigned int, pcie_gen, 1)
GETTER(GetCurrPcieLinkWidth, unsigned int, pcie_width, 1)
GETTER(GetCurrentClocksThrottleReasons, unsigned long long, clock_reasons, 1)
#ifndef OLD
GETTER(GetCurrentClocksEventReasons, unsigned long long, clock_reasons, 1)
#endif

// SETTING defines a function that gives how every whole GPU is set up.
#define SETTING(name, type, value) \
	nvmlReturn_t nvmlDevice##name(nvmlDevice_t d, type *out) { \
		BEGIN(d, #name); \
		*out = value; \
		return end(d->mig < 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED); \
	}

SETTING(GetComputeMode, nvmlComputeMode_t, NVML_COMPUTEMODE_DEFAULT)
SETTING(GetPersistenceMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
SETTING(GetPowerManagementDefaultLimit, unsigned int, 700000)

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t d, unsigned int *least, unsigned int *most) {
	BEGIN(d, "GetPowerManagementLimitConstraints");
	*least = 200000;
	*most = 700000;
	return end(d->mig < 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED);
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t d, nvmlEnableState_t *current, nvmlEnableState_t *pending) {
	BEGIN(d, "GetEccMode");
	*current = *pending = NVML_FEATURE_ENABLED;
	return end(d->mig < 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED);
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t d, nvmlBAR1Memory_t *m) {
	BEGIN(d, "GetBAR1MemoryInfo");
	m->bar1Total = 262144ull << 20;
	m->bar1Used = 3ull << 20;
	m->bar1Free = m->bar1Total - m->bar1Used;
	return end(d->mig < 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED);
}

long double energy(nvmlDevice_t d) {
	struct device *w = dev_of(d);
	return w->have[K_energy] ? w->val[K_energy] : w->sum[K_power] * 1000;
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t d, unsigned long long *out) {
	BEGIN(d, "GetTotalEnergyConsumption");
	*out = (unsigned long long)energy(d);
	return end(d->mig < 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, nvmlTemperatureSensors_t sensor, unsigned int *out) {
	BEGIN(d, "GetTemperature");
	long double x;
	if (sensor != NVML_TEMPERATURE_GPU) return end(NVML_ERROR_INVALID_ARGUMENT);
	if (!get(d, K_temp, &x)) return end(NVML_ERROR_NOT_SUPPORTED);
	*out = (unsigned int)x;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t d, nvmlTemperatureThresholds_t which, unsigned int *out) {
	BEGIN(d, "GetTemperatureThreshold");
	long double x;
	if (which == NVML_TEMPERATURE_THRESHOLD_MEM_MAX) return *out = 95, end(NVML_SUCCESS);
	if (which == NVML_TEMPERATURE_THRESHOLD_GPU_MAX) return *out = 88, end(NVML_SUCCESS);
	enum key k = which == NVML_TEMPERATURE_THRESHOLD_SLOWDOWN ? K_slowdown_temp : K_shutdown_temp;
	if (which > NVML_TEMPERATURE_THRESHOLD_SLOWDOWN || !get(d, k, &x)) return end(NVML_ERROR_NOT_SUPPORTED);
	*out = (unsigned int)x;
	return end(NVML_SUCCESS);
}

static nvmlReturn_t clock_of(nvmlDevice_t d, const enum key of[4], nvmlClockType_t type, unsigned int *out) {
	long double x;
	if (type > NVML_CLOCK_VIDEO) return end(NVML_ERROR_INVALID_ARGUMENT);
	if (of[type] == NKEYS || !get(d, of[type], &x)) return end(NVML_ERROR_NOT_SUPPORTED);
	*out = (unsigned int)x;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t d, nvmlClockType_t type, unsigned int *out) {
	BEGIN(d, "GetClockInfo");
	static const enum key of[4] = {K_sm_clock, K_sm_clock, K_mem_clock, K_video_clock};
	return clock_of(d, of, type, out);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, nvmlClockType_t type, unsigned int *out) {
	BEGIN(d, "GetMaxClockInfo");
	static const enum key of[4] = {K_max_sm_clock, K_max_sm_clock, K_max_mem_clock, NKEYS};
	return clock_of(d, of, type, out);
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t d, nvmlClockType_t type, unsigned int *out) {
	BEGIN(d, "GetApplicationsClock");
	*out = type == NVML_CLOCK_MEM ? 3201 : 1830;
	return end(type > NVML_CLOCK_MEM ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *u) {
	BEGIN(d, "GetUtilizationRates");
	long double x, y;
	if (gpu_of(d)->migs > 0 || !get(d, K_util, &x)) return end(NVML_ERROR_NOT_SUPPORTED);
	u->gpu = (unsigned int)x;
	u->memory = get(d, K_mem_util, &y) ? (unsigned int)y : 0;
	return end(NVML_SUCCESS);
}

#define CODER(name, key) \
	nvmlReturn_t nvmlDevice##name(nvmlDevice_t d, unsigned int *out, unsigned int *period) { \
		BEGIN(d, #name); \
		long double x; \
		if (gpu_of(d)->migs > 0 || !get(d, K_##key, &x)) return end(NVML_ERROR_NOT_SUPPORTED); \
		*out = (unsigned int)x; \
		*period = 167000; \
		return end(NVML_SUCCESS); \
	}
CODER(GetEncoderUtilization, enc_util)
CODER(GetDecoderUtilization, dec_util)

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t d, nvmlPcieUtilCounter_t counter, unsigned int *kb) {
	BEGIN(d, "GetPcieThroughput");
	long double x;
	if (!get(d, counter == NVML_PCIE_UTIL_TX_BYTES ? K_pcie_tx_kb : K_pcie_rx_kb, &x)) return end(NVML_ERROR_NOT_SUPPORTED);
	*kb = (unsigned int)x;
	return end(NVML_SUCCESS);
}

static unsigned long long bytes(nvmlDevice_t d, enum key k) { return (unsigned long long)(dev_of(d)->val[k] * 1048576); }

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *m) {
	BEGIN(d, "GetMemoryInfo");
	if (!dev_of(d)->have[K_fb_total]) return end(NVML_ERROR_NOT_SUPPORTED);
	m->total = bytes(d, K_fb_total);
	m->used = bytes(d, K_fb_used) + bytes(d, K_fb_reserved); // v1 counts what is reserved as used
	m->free = m->total - m->used;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, unsigned long long *out) {
	BEGIN(d, "GetTotalEccErrors");
	static const enum key of[2][2] = {{K_ecc_sbe_vol, K_ecc_sbe_agg}, {K_ecc_dbe_vol, K_ecc_dbe_agg}};
	long double x;
	if (type > 1 || counter > 1) return end(NVML_ERROR_INVALID_ARGUMENT);
	if (!get(d, of[type][counter], &x)) return end(NVML_ERROR_NOT_SUPPORTED);
	*out = (unsigned long long)x;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t d, nvmlPageRetirementCause_t cause, unsigned int *count, unsigned long long *pages) {
	BEGIN(d, "GetRetiredPages");
	long double x;
	if (!get(d, cause == NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR ? K_retired_dbe : K_retired_sbe, &x)) return end(NVML_ERROR_NOT_SUPPORTED);
	unsigned int room = *count;
	*count = (unsigned int)x;
	if (room < *count) return end(NVML_ERROR_INSUFFICIENT_SIZE);
	for (unsigned int i = 0; i < *count; i++) pages[i] = 0x1000 * (i + 1);
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t d, nvmlEnableState_t *pending) {
	BEGIN(d, "GetRetiredPagesPendingStatus");
	long double x;
	if (!get(d, K_retired_pending, &x)) return end(NVML_ERROR_NOT_SUPPORTED);
	*pending = x > 0;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t d, nvmlPerfPolicyType_t policy, nvmlViolationTime_t *v) {
	BEGIN(d, "GetViolationStatus");
	long double x;
	if (policy > NVML_PERF_POLICY_RELIABILITY) return end(NVML_ERROR_NOT_SUPPORTED);
	if (!get(d, K_viol_power + policy, &x)) return end(NVML_ERROR_NOT_SUPPORTED);
	v->referenceTime = (unsigned long long)(now() * 1e6);
	v->violationTime = (unsigned long long)x;
	return end(NVML_SUCCESS);
}

static nvmlReturn_t licences(nvmlDevice_t d, nvmlGridLicensableFeatures_t *f) {
	BEGIN(d, "GetGridLicensableFeatures");
	long double x;
	memset(f, 0, sizeof *f);
	if (!get(d, K_vgpu_license, &x)) return end(NVML_SUCCESS);
	f->isGridLicenseSupported = 1;
	f->licensableFeaturesCount = 1;
	f->gridLicensableFeatures[0].featureCode = NVML_GRID_LICENSE_FEATURE_CODE_VGPU;
	f->gridLicensableFeatures[0].featureState = x > 0;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetGridLicensableFeatures_v3(nvmlDevice_t d, nvmlGridLicensableFeatures_t *f) { return licences(d, f); }
#ifndef OLD
nvmlReturn_t nvmlDeviceGetGridLicensableFeatures_v4(nvmlDevice_t d, nvmlGridLicensableFeatures_t *f) { return licences(d, f); }

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemory_v2_t *m) {
	BEGIN(d, "GetMemoryInfo_v2");
	if (m->version != nvmlMemory_v2) return end(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	if (!dev_of(d)->have[K_fb_total]) return end(NVML_ERROR_NOT_SUPPORTED);
	m->total = bytes(d, K_fb_total);
	m->reserved = bytes(d, K_fb_reserved);
	m->used = bytes(d, K_fb_used);
	m->free = m->total - m->used - m->reserved;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t d, unsigned int *corr, unsigned int *unc, unsigned int *pending, unsigned int *failure) {
	BEGIN(d, "GetRemappedRows");
	long double c, u, p, f;
	if (!get(d, K_remapped_cor, &c) || !get(d, K_remapped_unc, &u) || !get(d, K_remap_pending, &p) || !get(d, K_remap_failure, &f))
		return end(NVML_ERROR_NOT_SUPPORTED);
	*corr = (unsigned int)c;
	*unc = (unsigned int)u;
	*pending = p > 0;
	*failure = f > 0;
	return end(NVML_SUCCESS);
}
#endif
