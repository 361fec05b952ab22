// SPDX-License-Identifier: Apache-2.0

// The state of the fake's GPUs, and its time. It is read from the file that GPUPILOT_FAKE_CUDA names, and read again when
// the file changes. README.md describes the lines.
#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>
#include <string.h>

#define FAKE "CUDA"

struct state S;
struct visible V[MAX_VISIBLE];
int visibles;
long long left[MAX_VISIBLE][THINGS];
__thread int current = -1;

static const struct code codes[] = {
	{"OUT_OF_MEMORY", OUT_OF_MEMORY}, {"DEVICE_UNAVAILABLE", DEVICE_UNAVAILABLE}, {"NO_DEVICE", NO_DEVICE},
	{"NO_BINARY_FOR_GPU", NO_BINARY}, {"ECC_UNCORRECTABLE", 214}, {"INVALID_PTX", INVALID_PTX}, {"UNSUPPORTED_PTX_VERSION", 222},
	{"LAUNCH_TIMEOUT", 702}, {"LAUNCH_FAILED", 719}, {"SYSTEM_DRIVER_MISMATCH", DRIVER_MISMATCH}, {"UNKNOWN", 999},
};

#include "../scenario.h"

static int count;      // of calls since the file was read
static double virtual; // seconds, in free pace

static void own_defaults(void) {
	S.free_pace = S.jit_fails = false;
	S.cuda_version = 13000;
	S.inject_at = S.inject_code = 0;
}

static void own_loaded(void) {
	count = 0;
	// The process of a dead device has ended, as far as a new file is concerned.
	for (int d = 0; d < visibles; d++)
		if (V[d].dead) {
			release_all(d);
			V[d].dead = V[d].retained = 0;
		}
}

static enum taken own_line(char w[WORDS][NAME]) {
	if (!strcmp(w[0], "pace")) return S.free_pace = !strcmp(w[1], "free"), taken(S.free_pace || !strcmp(w[1], "real"));
	if (!strcmp(w[0], "cuda-version")) return S.cuda_version = atoi(w[1]), TAKEN;
	if (!strcmp(w[0], "jit-fails")) return S.jit_fails = true, TAKEN;
	if (!strcmp(w[0], "inject")) return S.inject_at = atoi(w[1]), S.inject_code = code_of(w[2]), taken(S.inject_at > 0 && S.inject_code > 0);
	return NOT_MINE;
}

static enum taken own_gpu_line(int i, char w[WORDS][NAME], const char *rest) {
	(void)i, (void)w, (void)rest;
	return NOT_MINE;
}

void lock(void) {
	pthread_mutex_lock(&mutex);
	refresh();
	(void)last;
	(void)is_new_xid;
}

static const struct device *dev_of(int d) {
	struct gpu *g = &S.gpu[V[d].gpu];
	return V[d].mig < 0 ? &g->whole : &g->mig[V[d].mig];
}

long double val(int d, enum key k) {
	long double v = dev_of(d)->val[k];
	if (V[d].mig < 0) return v;
	if (k == K_sms) return floorl(v * dev_of(d)->slices / 8);
	return v;
}

// is_fatal reports whether a code leaves the device's contexts unusable.
static bool is_fatal(int code) {
	return code == 214 || code == 220 || code == 700 || code == 702 || (code >= 714 && code <= 719);
}

int enter(const char *function, int device) {
	lock();
	count++;
	int code = 0;
	if (S.inject_at == count) code = S.inject_code;
	if (!code && device >= 0 && device < visibles) {
		note("%d %s", device, function);
		code = V[device].dead ? V[device].dead : block(V[device].gpu, function);
	}
	if (is_fatal(code))
		for (int d = 0; d < visibles; d++)
			if (device < 0 || d == device) V[d].dead = code;
	return code;
}

int leave(int code) {
	unlock();
	return code;
}

int calls(void) { return count; }

double t_now(void) { return S.free_pace ? virtual += 1e-6 : now(); }

// t_wait waits, without the mutex.
void t_wait(double until) {
	if (S.free_pace) {
		if (until > virtual) virtual = until;
		return;
	}
	double rest = until - now();
	if (rest > 0) sleep_unlocked((int)(rest * 1e6) + 1);
}

uint64_t t_timer(double at, int device) {
	uint64_t step = (uint64_t)val(device, K_timer), ns = (uint64_t)(at * 1e9) + 1000000000000000000ull;
	return ns / step * step;
}

// What tests ask.
uint64_t gpupilot_fake_now(void);
void gpupilot_fake_sleep_until(uint64_t ns);
long long gpupilot_fake_left(int thing);
int gpupilot_fake_calls(void);
void gpupilot_fake_reset(void);

uint64_t gpupilot_fake_now(void) {
	lock();
	uint64_t ns = (uint64_t)(t_now() * 1e9);
	unlock();
	return ns;
}

void gpupilot_fake_sleep_until(uint64_t ns) {
	lock();
	t_wait(ns / 1e9);
	unlock();
}

// gpupilot_fake_left counts what is left on all devices; what a dead device had, the driver frees.
long long gpupilot_fake_left(int thing) {
	lock();
	long long n = 0;
	for (int d = 0; d < visibles; d++)
		if (!V[d].dead) n += left[d][thing];
	unlock();
	return n;
}

int gpupilot_fake_calls(void) {
	lock();
	int n = count;
	unlock();
	return n;
}

// gpupilot_fake_reset does what the end of a process does.
void gpupilot_fake_reset(void) {
	lock();
	for (int d = 0; d < visibles; d++) {
		release_all(d);
		V[d].dead = V[d].retained = 0;
	}
	unlock();
}
