// SPDX-License-Identifier: Apache-2.0

// The fake's topology: a machine of two sockets with 56 cores each, the first
// half of its GPUs at the first, all of them linked to switches.
#define _GNU_SOURCE
#include "device.h"

#include <string.h>

enum { CORES = 56 };

static int socket_of(nvmlDevice_t d) { return d->gpu >= (S.gpus + 1) / 2; }

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t d, unsigned int words, unsigned long *set) {
	BEGIN(d, "GetCpuAffinity");
	if (words == 0) return end(NVML_ERROR_INVALID_ARGUMENT);
	memset(set, 0, words * sizeof *set);
	for (unsigned int cpu = socket_of(d) * CORES; cpu < (unsigned)(socket_of(d) + 1) * CORES && cpu / 64 < words; cpu++)
		set[cpu / 64] |= 1ul << cpu % 64;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t d, nvmlDevice_t e, nvmlGpuTopologyLevel_t *level) {
	BEGIN(d, "GetTopologyCommonAncestor");
	*level = socket_of(d) == socket_of(e) ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
	return end(NVML_SUCCESS);
}

#ifndef OLD
nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t d, unsigned int words, unsigned long *set, nvmlAffinityScope_t scope) {
	BEGIN(d, "GetMemoryAffinity");
	if (words == 0 || scope > NVML_AFFINITY_SCOPE_SOCKET) return end(NVML_ERROR_INVALID_ARGUMENT);
	memset(set, 0, words * sizeof *set);
	set[0] = 1ul << socket_of(d);
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned int link, nvmlEnableState_t *active) {
	BEGIN(d, "GetNvLinkState");
	long double links;
	if (!get(d, K_nvlinks, &links)) return end(NVML_ERROR_NOT_SUPPORTED);
	if (link >= 18) return end(NVML_ERROR_INVALID_ARGUMENT);
	*active = link < links ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t d, unsigned int link, nvmlIntNvLinkDeviceType_t *type) {
	BEGIN(d, "GetNvLinkRemoteDeviceType");
	if (link >= 18) return end(NVML_ERROR_INVALID_ARGUMENT);
	*type = NVML_NVLINK_DEVICE_TYPE_SWITCH;
	return end(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t d, unsigned int link, nvmlPciInfo_t *pci) {
	BEGIN(d, "GetNvLinkRemotePciInfo");
	if (link >= 18) return end(NVML_ERROR_INVALID_ARGUMENT);
	memset(pci, 0, sizeof *pci);
	pci->bus = 0xc0 + link / 5;
	return end(NVML_SUCCESS);
}
#endif
