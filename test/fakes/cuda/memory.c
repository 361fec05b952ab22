// SPDX-License-Identifier: Apache-2.0

// The functions about memory, streams and events. A device's address is one of this process, so that copies are memcpy.
#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_HELD = 4096 };

static struct memory {
	char *at;
	size_t bytes;
	int device;
	bool host;
} held[MAX_HELD];
static int held_count;

static char *reserve(size_t bytes) {
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

static int add(size_t bytes, bool host, char **out) {
	if (current < 0) return INVALID_CONTEXT;
	if (!bytes || held_count == MAX_HELD) return INVALID_VALUE;
	long long total = ((long long)val(current, K_fb_total) - (long long)val(current, K_used)) << 20;
	if (!host && left[current][DEVICE_BYTES] + (long long)bytes > total) return OUT_OF_MEMORY;
	if (!(*out = reserve(bytes))) return OUT_OF_MEMORY;
	held[held_count++] = (struct memory){*out, bytes, current, host};
	left[current][host ? HOST_BYTES : DEVICE_BYTES] += (long long)bytes;
	return OK;
}

static void forget(int i) {
	munmap(held[i].at, held[i].bytes);
	left[held[i].device][held[i].host ? HOST_BYTES : DEVICE_BYTES] -= (long long)held[i].bytes;
	held[i] = held[--held_count];
}

static int drop(char *at, bool host) {
	for (int i = 0; i < held_count; i++)
		if (held[i].at == at && held[i].host == host) return forget(i), OK;
	return INVALID_VALUE;
}

// release_all frees what a context owned, when it ends.
void release_all(int device) {
	for (int i = held_count - 1; i >= 0; i--)
		if (held[i].device == device) forget(i);
	for (int i = 0; i < THINGS; i++) left[device][i] = 0;
	follow_end(device);
}

bool owns(int device, uint64_t address, size_t bytes) {
	for (int i = 0; i < held_count; i++) {
		uint64_t at = (uint64_t)(uintptr_t)held[i].at;
		if (address >= at && address + bytes <= at + held[i].bytes) return held[i].host || held[i].device == device || device < 0;
	}
	return false;
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
	ENTER("cuMemGetInfo", current);
	if (current < 0) return leave(INVALID_CONTEXT);
	*total = (size_t)val(current, K_fb_total) << 20;
	*free = *total - ((size_t)val(current, K_used) << 20) - (size_t)left[current][DEVICE_BYTES];
	return leave(OK);
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
	ENTER("cuMemAlloc", current);
	char *at = NULL;
	int r = add(bytes, false, &at);
	*address = (uint64_t)(uintptr_t)at;
	return leave(r);
}

int cuMemFree_v2(uint64_t address) {
	ENTER("cuMemFree", current);
	return leave(drop((char *)(uintptr_t)address, false));
}

int cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
	(void)flags;
	ENTER("cuMemHostAlloc", current);
	char *at = NULL;
	int r = add(bytes, true, &at);
	*out = at;
	return leave(r);
}

int cuMemFreeHost(void *at) {
	ENTER("cuMemFreeHost", current);
	return leave(drop(at, true));
}

int cuMemsetD32Async(uint64_t address, unsigned value, size_t n, struct stream *s) {
	ENTER("cuMemsetD32Async", s->device);
	if (!owns(s->device, address, 4 * n)) return leave(INVALID_VALUE);
	unsigned *at = (unsigned *)(uintptr_t)address;
	for (size_t i = 0; i < n; i++) at[i] = value;
	return leave(OK);
}

// transfer makes a copy take its time in the stream.
static void transfer(struct stream *s, double bytes, double gigabytes) {
	double start = t_now();
	if (s->busy_until > start) start = s->busy_until;
	s->busy_until = start + bytes / (gigabytes * 1e9);
}

enum { SMALL = 1 << 20 }; // copies of records take no time, and are no load

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, struct stream *s) {
	ENTER("cuMemcpyDtoHAsync", s->device);
	if (!owns(s->device, from, bytes) || !owns(s->device, (uint64_t)(uintptr_t)to, bytes)) return leave(INVALID_VALUE);
	double rate = (double)(val(s->device, K_pcie) * val(s->device, K_rate));
	if (bytes < SMALL) memcpy(to, (void *)(uintptr_t)from, bytes);
	transfer(s, bytes, rate);
	if (bytes >= SMALL) follow(s->device, "gpm_pcie_tx", rate * 1e9 / 1048576, s->busy_until);
	return leave(OK);
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, struct stream *s) {
	ENTER("cuMemcpyHtoDAsync", s->device);
	if (!owns(s->device, to, bytes) || !owns(s->device, (uint64_t)(uintptr_t)from, bytes)) return leave(INVALID_VALUE);
	double rate = (double)(val(s->device, K_pcie) * val(s->device, K_rate));
	transfer(s, bytes, rate);
	follow(s->device, "gpm_pcie_rx", rate * 1e9 / 1048576, s->busy_until);
	return leave(OK);
}

int cuMemcpyPeerAsync(uint64_t to, uintptr_t to_context, uint64_t from, uintptr_t from_context, size_t bytes, struct stream *s) {
	ENTER("cuMemcpyPeerAsync", s->device);
	if (!owns((int)to_context - 1, to, bytes) || !owns((int)from_context - 1, from, bytes)) return leave(INVALID_VALUE);
	double rate = (double)(val(s->device, K_nvlink) * val(s->device, K_rate));
	transfer(s, bytes, rate);
	follow(s->device, (int)to_context - 1 == s->device ? "gpm_nvlink_rx" : "gpm_nvlink_tx", rate * 1e9 / 1048576, s->busy_until);
	return leave(OK);
}

int cuStreamCreate(struct stream **out, unsigned flags) {
	ENTER("cuStreamCreate", current);
	if (current < 0 || flags != 1) return leave(INVALID_CONTEXT);
	*out = calloc(1, sizeof **out);
	(*out)->device = current;
	left[current][STREAMS]++;
	return leave(OK);
}

int cuStreamDestroy_v2(struct stream *s) {
	ENTER("cuStreamDestroy", s->device);
	left[s->device][STREAMS]--;
	free(s);
	return leave(OK);
}

struct event {
	int device;
	double at;
};

int cuEventCreate(struct event **out, unsigned flags) {
	(void)flags;
	ENTER("cuEventCreate", current);
	if (current < 0) return leave(INVALID_CONTEXT);
	*out = calloc(1, sizeof **out);
	(*out)->device = current;
	left[current][EVENTS]++;
	return leave(OK);
}

int cuEventDestroy_v2(struct event *e) {
	ENTER("cuEventDestroy", e->device);
	left[e->device][EVENTS]--;
	free(e);
	return leave(OK);
}

int cuEventRecord(struct event *e, struct stream *s) {
	ENTER("cuEventRecord", e->device);
	e->at = t_now();
	if (s->busy_until > e->at) e->at = s->busy_until;
	return leave(OK);
}

int cuEventSynchronize(struct event *e) {
	ENTER("cuEventSynchronize", e->device);
	t_wait(e->at + 30e-6); // the host wakes up late
	return leave(OK);
}

int cuEventElapsedTime(float *ms, struct event *from, struct event *to) {
	ENTER("cuEventElapsedTime", to->device);
	*ms = (float)((to->at - from->at) * 1000);
	return leave(OK);
}
