// SPDX-License-Identifier: Apache-2.0

// The errors of the fake's NVLinks, and how its GPUs reach one another.
#define _GNU_SOURCE
#include "device.h"

#ifndef OLD
nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t d, unsigned int link, nvmlNvLinkErrorCounter_t counter, unsigned long long *value) {
	BEGIN(d, "GetNvLinkErrorCounter");
	static const enum key keys[] = {K_nvlink_replay, K_nvlink_recovery, K_nvlink_crc_flit, K_nvlink_crc_data};
	long double errors;
	if (link >= 18 || counter >= sizeof keys / sizeof *keys) return end(NVML_ERROR_NOT_SUPPORTED);
	if (!get(d, keys[counter], &errors)) return end(NVML_ERROR_NOT_SUPPORTED);
	*value = link == 0 ? (unsigned long long)errors : 0; // all of them are the first link's
	return end(NVML_SUCCESS);
}
#endif

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t d, nvmlDevice_t e, nvmlGpuP2PCapsIndex_t index, nvmlGpuP2PStatus_t *status) {
	BEGIN(d, "GetP2PStatus");
	long double links;
	bool linked = get(d, K_nvlinks, &links) && links > 0 && get(e, K_nvlinks, &links) && links > 0;
	*status = index != NVML_P2P_CAPS_INDEX_NVLINK ? NVML_P2P_STATUS_UNKNOWN : linked ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
	return end(NVML_SUCCESS);
}
