// SPDX-License-Identifier: Apache-2.0

// The host engine, its connections, and what it has: GPUs, instances, links.
#define _GNU_SOURCE
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <string.h>

// The entity ids of GPU instances and compute instances. An instance has one
// compute instance, which spans it.
static unsigned instance_id(int gpu, int mig) { return (unsigned)(gpu * MAX_MIG + mig); }

bool find(dcgm_field_entity_group_t group, unsigned id, struct where *w) {
	if (find_part(group, id, w)) return true;
	*w = (struct where){(int)id, -1, 0};
	if (group == DCGM_FE_GPU_I || group == DCGM_FE_GPU_CI) *w = (struct where){(int)id / MAX_MIG, (int)id % MAX_MIG, 0};
	else if (group != DCGM_FE_GPU && group != DCGM_FE_NONE) return false;
	return w->gpu < S.gpus && w->mig < S.gpu[w->gpu].migs;
}

const char *model_of(int gpu) { return S.gpu[gpu].model[0] ? S.gpu[gpu].model : S.model; }

const char *errorString(dcgmReturn_t r) {
	switch (r) {
	case DCGM_ST_OK: return "Success";
	case DCGM_ST_BADPARAM: return "Bad parameter passed to function";
	case DCGM_ST_NOT_SUPPORTED: return "This operation is not supported";
	case DCGM_ST_INIT_ERROR: return "The host engine could not be started";
	case DCGM_ST_CONNECTION_NOT_VALID: return "Host engine connection invalid/disconnected";
	case DCGM_ST_GPU_IS_LOST: return "GPU is lost";
	case DCGM_ST_MODULE_NOT_LOADED: return "This request is serviced by a module of DCGM that is not currently loaded";
	case DCGM_ST_IN_USE: return "The requested operation could not be completed because the affected resource is in use";
	case DCGM_ST_REQUIRES_ROOT: return "This operation requires that the host engine runs as root";
	case DCGM_ST_PROFILING_NOT_SUPPORTED: return "Profiling is not supported for this group of GPUs or GPU";
	case DCGM_ST_NVML_NOT_LOADED: return "NVML is not loaded";
	case DCGM_ST_VER_MISMATCH: return "API version mismatch";
	default: return "A failure of the fake";
	}
}

dcgmReturn_t dcgmInit(void) { return DCGM_ST_OK; }
dcgmReturn_t dcgmShutdown(void) { return DCGM_ST_OK; }

// An embedded engine holds the files of the devices while it runs. This one holds the file that
// a test names.
static int held = -1;

static dcgmReturn_t open_engine(dcgmHandle_t *h, const char *how, dcgmReturn_t otherwise) {
	lock();
	note("- %s", how);
	if (!S.engine) return end(otherwise);
	if (fails("Connect") != DCGM_ST_OK) return end(fails("Connect"));
	S.epoch++; // one user at a time
	S.xids = 0; // an engine remembers what happened while it ran
	drop_watches();
	*h = (dcgmHandle_t)(0x100 + S.epoch);
	mean_start();
	return end(DCGM_ST_OK);
}

dcgmReturn_t dcgmStartEmbedded(dcgmOperationMode_t mode, dcgmHandle_t *h) {
	(void)mode;
	dcgmReturn_t r = open_engine(h, "embedded", DCGM_ST_INIT_ERROR);
	const char *device = getenv("GPUPILOT_FAKE_DCGM_DEVICE");
	if (r == DCGM_ST_OK && device && held < 0) held = open(device, O_RDONLY | O_CLOEXEC);
	return r;
}

dcgmReturn_t dcgmConnect_v2(const char *address, dcgmConnectV2Params_t *p, dcgmHandle_t *h) {
	char how[4 * NAME];
	snprintf(how, sizeof how, "connect %s%s", p->addressIsUnixSocket ? "unix " : "", address);
	return open_engine(h, how, DCGM_ST_CONNECTION_NOT_VALID);
}

dcgmReturn_t dcgmConnect_v3(const char *address, dcgmConnectV3Params_t *p, dcgmHandle_t *h) {
	(void)p;
	char how[4 * NAME];
	snprintf(how, sizeof how, "connect %s", address);
	return open_engine(h, how, DCGM_ST_CONNECTION_NOT_VALID);
}

static dcgmReturn_t say_version(dcgmVersionInfo_t *v, const char *release) {
	if (v->version != dcgmVersionInfo_version2) return DCGM_ST_VER_MISMATCH;
	if (!*release) return DCGM_ST_NOT_SUPPORTED;
	snprintf(v->rawBuildInfoString, sizeof v->rawBuildInfoString, "arch:x86_64;version:%s;buildtype:Fake", release);
	return DCGM_ST_OK;
}

dcgmReturn_t dcgmVersionInfo(dcgmVersionInfo_t *v) {
	lock();
	return end(say_version(v, S.library));
}

dcgmReturn_t dcgmHostengineVersionInfo(dcgmHandle_t h, dcgmVersionInfo_t *v) {
	BEGIN(h, "HostengineVersionInfo", -1);
	return end(say_version(v, S.version));
}

dcgmReturn_t dcgmDisconnect(dcgmHandle_t h) {
	BEGIN(h, "Disconnect", -1);
	S.epoch++;
	drop_watches();
	return end(DCGM_ST_OK);
}

dcgmReturn_t dcgmStopEmbedded(dcgmHandle_t h) {
	if (held >= 0) close(held);
	held = -1;
	return dcgmDisconnect(h);
}

dcgmReturn_t dcgmGetAllDevices(dcgmHandle_t h, unsigned int ids[DCGM_MAX_NUM_DEVICES], int *count) {
	BEGIN(h, "GetAllDevices", -1);
	if (!S.driver) return end(DCGM_ST_NVML_NOT_LOADED);
	*count = S.gpus;
	for (int i = 0; i < S.gpus; i++) ids[i] = (unsigned)i;
	return end(DCGM_ST_OK);
}

dcgmReturn_t dcgmGetAllSupportedDevices(dcgmHandle_t h, unsigned int ids[DCGM_MAX_NUM_DEVICES], int *count) {
	BEGIN(h, "GetAllSupportedDevices", -1);
	if (!S.driver) return end(DCGM_ST_NVML_NOT_LOADED);
	*count = 0;
	for (int i = 0; i < S.gpus; i++)
		if (S.gpu[i].status == DcgmEntityStatusOk) ids[(*count)++] = (unsigned)i;
	return end(DCGM_ST_OK);
}

dcgmReturn_t dcgmGetEntityGroupEntities(dcgmHandle_t h, dcgm_field_entity_group_t group, dcgm_field_eid_t *ids, int *count, unsigned int flags) {
	(void)flags;
	BEGIN(h, "GetEntityGroupEntities", -1);
	if (!S.driver) return end(DCGM_ST_NVML_NOT_LOADED);
	int room = *count, n = part_ids(group, ids, room);
	for (int i = 0; i < S.gpus; i++) {
		if (group == DCGM_FE_GPU && n < room) ids[n++] = (unsigned)i;
		for (int m = 0; m < S.gpu[i].migs; m++)
			if ((group == DCGM_FE_GPU_I || group == DCGM_FE_GPU_CI) && n < room) ids[n++] = instance_id(i, m);
	}
	*count = n;
	return end(DCGM_ST_OK);
}

dcgmReturn_t dcgmGetGpuStatus(dcgmHandle_t h, unsigned int gpu, DcgmEntityStatus_t *status) {
	BEGIN(h, "GetGpuStatus", -1);
	if (!S.driver) return end(DCGM_ST_NVML_NOT_LOADED);
	if ((int)gpu >= S.gpus) return end(DCGM_ST_BADPARAM);
	*status = S.gpu[gpu].status;
	return end(DCGM_ST_OK);
}

dcgmReturn_t dcgmGetGpuInstanceHierarchy(dcgmHandle_t h, dcgmMigHierarchy_v2 *out) {
	BEGIN(h, "GetGpuInstanceHierarchy", -1);
	if (out->version != dcgmMigHierarchy_version2) return end(DCGM_ST_VER_MISMATCH);
	out->count = 0;
	for (int i = 0; i < S.gpus; i++)
		for (int m = 0; m < S.gpu[i].migs; m++)
			for (int ci = 0; ci < 2; ci++) {
				dcgmMigHierarchyInfo_v2 *e = &out->entityList[out->count++];
				memset(e, 0, sizeof *e);
				unsigned id = instance_id(i, m);
				e->entity = (dcgmGroupEntityPair_t){ci ? DCGM_FE_GPU_CI : DCGM_FE_GPU_I, id};
				e->parent = ci ? (dcgmGroupEntityPair_t){DCGM_FE_GPU_I, id} : (dcgmGroupEntityPair_t){DCGM_FE_GPU, (unsigned)i};
				gpu_uuid(i, e->info.gpuUuid);
				e->info.nvmlGpuIndex = (unsigned)i;
				e->info.nvmlInstanceId = (unsigned)S.gpu[i].mig[m].gi;
				e->info.nvmlComputeInstanceId = ci ? 0 : (unsigned)-1;
				e->info.nvmlProfileSlices = (unsigned)S.gpu[i].mig[m].slices;
			}
	return end(DCGM_ST_OK);
}

dcgmReturn_t dcgmGetDeviceAttributes(dcgmHandle_t h, unsigned int gpu, dcgmDeviceAttributes_t *a) {
	BEGIN(h, "GetDeviceAttributes", (int)gpu);
	if (a->version != dcgmDeviceAttributes_version3) return end(DCGM_ST_VER_MISMATCH);
	unsigned version = a->version;
	memset(a, 0, sizeof *a);
	a->version = version;
	dcgmDeviceIdentifiers_t *id = &a->identifiers;
	gpu_uuid((int)gpu, id->uuid);
	snprintf(id->deviceName, sizeof id->deviceName, "%s", model_of((int)gpu));
	snprintf(id->brandName, sizeof id->brandName, "NVIDIA");
	snprintf(id->pciBusId, sizeof id->pciBusId, "00000000:%02X:00.0", (0x10 + 9 * gpu) & 0xff);
	snprintf(id->serial, sizeof id->serial, "16500240%05d", (int)gpu);
	snprintf(id->vbios, sizeof id->vbios, "96.00.BC.00.01");
	snprintf(id->inforomImageVersion, sizeof id->inforomImageVersion, "G520.0201.00.05");
	snprintf(id->driverVersion, sizeof id->driverVersion, "%s", S.driver_version);
	a->powerLimits.defaultPowerLimit = (unsigned)S.gpu[gpu].whole.val[K_power_limit];
	a->memoryUsage.fbTotal = (unsigned)S.gpu[gpu].whole.val[K_fb_total];
	return end(DCGM_ST_OK);
}
