// SPDX-License-Identifier: Apache-2.0

// The fake's processes: lists by type, in each version that a driver has had,
// and samples of utilisation.
#define _GNU_SOURCE
#include "device.h"

#include <string.h>
#include <sys/time.h>

// SAMPLE_US is how often samples of processes are taken.
enum { SAMPLE_US = 100000 };

static int count(nvmlDevice_t d, int type) {
	int n = 0;
	for (int i = 0; i < dev_of(d)->processes; i++) n += (dev_of(d)->process[i].type & type) != 0;
	return n;
}

// LIST defines a function that lists the processes of a type. ENTRY is the
// struct of its version; rest says what its further fields are.
#define LIST(name, ENTRY, TYPE, rest) \
	nvmlReturn_t name(nvmlDevice_t d, unsigned int *n, ENTRY *out) { \
		BEGIN(d, "GetRunningProcesses"); \
		unsigned int room = *n, k = 0; \
		*n = count(d, TYPE); \
		if (*n > room) return end(NVML_ERROR_INSUFFICIENT_SIZE); \
		for (int i = 0; i < dev_of(d)->processes; i++) { \
			struct process *p = &dev_of(d)->process[i]; \
			if (!(p->type & TYPE)) continue; \
			memset(&out[k], 0, sizeof out[k]); \
			out[k].pid = p->pid; \
			out[k].usedGpuMemory = p->memory < 0 ? ~0ull : (unsigned long long)(p->memory * 1048576); \
			rest; \
			k++; \
		} \
		return end(NVML_SUCCESS); \
	}

#ifdef OLD
LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, COMPUTE, )
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, GRAPHICS, )
#else
#define INSTANCE out[k].gpuInstanceId = d->mig < 0 ? ~0u : (unsigned)dev_of(d)->gi; out[k].computeInstanceId = d->mig < 0 ? ~0u : 0
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, COMPUTE, INSTANCE)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, GRAPHICS, INSTANCE)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, MPS, INSTANCE)

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t d, nvmlProcessUtilizationSample_t *out, unsigned int *n, unsigned long long since) {
	BEGIN(d, "GetProcessUtilization");
	if (gpu_of(d)->migs > 0) return end(NVML_ERROR_NOT_SUPPORTED);
	struct timeval t;
	gettimeofday(&t, NULL);
	unsigned long long now = t.tv_sec * 1000000ull + t.tv_usec, at = now - now % SAMPLE_US;
	unsigned int room = *n, k = 0;
	for (int i = 0; i < dev_of(d)->processes; i++) {
		struct process *p = &dev_of(d)->process[i];
		if (p->util <= 0 || at <= since) continue;
		if (out && k < room) out[k] = (nvmlProcessUtilizationSample_t){.pid = p->pid, .timeStamp = at, .smUtil = (unsigned)p->util};
		k++;
	}
	*n = k;
	if (k == 0) return end(NVML_ERROR_NOT_FOUND);
	return end(!out || k > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS);
}
#endif
