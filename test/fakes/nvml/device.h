// SPDX-License-Identifier: Apache-2.0

// What every function on a device needs.
#ifndef GPUPILOT_FAKE_NVML_DEVICE_H
#define GPUPILOT_FAKE_NVML_DEVICE_H

#include "fake.h"

// A handle: which GPU, and which of its MIG instances (-1: the GPU itself).
struct nvmlDevice_st {
	int magic, gpu, mig;
};

// begin checks that function fn can be answered for device d. On success the
// state is locked until end.
nvmlReturn_t begin(nvmlDevice_t d, const char *fn);
nvmlReturn_t end(nvmlReturn_t r);

#define BEGIN(d, fn) \
	do { \
		nvmlReturn_t r_ = begin(d, fn); \
		if (r_ != NVML_SUCCESS) return r_; \
	} while (0)

nvmlDevice_t handle_of(int gpu, int mig);
void uuid_of(nvmlDevice_t d, char out[NAME]);
static inline struct gpu *gpu_of(nvmlDevice_t d) { return &S.gpu[d->gpu]; }
static inline struct device *dev_of(nvmlDevice_t d) { return d->mig < 0 ? &gpu_of(d)->whole : &gpu_of(d)->mig[d->mig]; }

// get looks a value of a whole GPU up; a MIG instance has only those that its
// functions look up by themselves.
bool get(nvmlDevice_t d, enum key k, long double *x);

// energy is what was set, else what the power has added up to, in mJ.
long double energy(nvmlDevice_t d);

#endif
