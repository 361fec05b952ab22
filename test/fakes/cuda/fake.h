// SPDX-License-Identifier: Apache-2.0

// What the fake's parts share: state.c knows the GPUs and the time; driver.c and memory.c are the library's functions;
// kernels.c computes what our kernels would have measured; follow.c tells the fake NVML.
#ifndef GPUPILOT_FAKE_CUDA_H
#define GPUPILOT_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../shared.h"

enum { MAX_GPUS = 16, MAX_MIG = 8, MAX_FAILS = 32 };

// KEYS lists every value that can be set. clock is the SM clock under load (MHz); l2 MiB; pcie, nvlink GB/s; jitter,
// timer ns; launch us; efficiency, dram_efficiency of the peak; rate slows every pipe and the memory down.
#define KEYS(X) \
	SHARED_KEYS(X) X(cc, 90, 1) X(sms, 132, 1) X(threads_per_sm, 2048, 1) X(l2, 60, 1) X(bus, 6144, 1) \
	X(shared_per_sm, 233472, 1) X(shared_per_block, 232448, 1) X(clock, 1980, 1) X(efficiency, 0.97, 1) \
	X(dram_efficiency, 0.92, 1) X(rate, 1, 1) X(pcie, 54, 1) X(nvlink, 380, 1) X(jitter, 400, 1) X(timer, 32, 1) \
	X(launch, 6, 1) X(missing_sms, 0, 1) X(compute_mode, 0, 1) X(used, 0, 1)

#define AS_ENUM(name, value, supported) K_##name,
enum key { KEYS(AS_ENUM) NKEYS };

struct device {
	long double val[NKEYS];
	bool have[NKEYS];
	char profile[32]; // of a MIG instance
	int slices, gi;
};

struct gpu {
	struct device whole, mig[MAX_MIG];
	int migs;
	bool gpm;
	double hang_until;
	struct fail fail[MAX_FAILS];
	int fails, xids;
};

struct state {
	int gpus;
	unsigned int seed;
	bool driver, free_pace, jit_fails;
	char model[NAME], driver_version[NAME];
	char log[4 * NAME];
	int delay_us, cuda_version;
	int inject_at, inject_code; // the n-th call since the file was read; 0: none
	struct gpu gpu[MAX_GPUS];
};

extern struct state S;

// visible is a device as this process sees it: a GPU, or a MIG instance of it.
struct visible {
	int gpu, mig; // -1: the GPU itself
	int retained; // primary contexts
	int dead;     // the code after which every call fails
};

enum { MAX_VISIBLE = 32 };
extern struct visible V[MAX_VISIBLE];
extern int visibles;

long double val(int device, enum key k);

// The codes that the fake gives by itself.
enum {
	OK, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, DEVICE_UNAVAILABLE = 46, NO_DEVICE = 100, INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201, NO_BINARY = 209, PEER_UNSUPPORTED = 217, INVALID_PTX = 218, PEER_ALREADY_ENABLED = 704,
	INVALID_HANDLE = 400, NOT_FOUND = 500, DRIVER_MISMATCH = 803,
};

// enter counts a call and returns the code with which it fails; 0: it does not. The mutex is held from then on, until
// leave. device -1 is none.
int enter(const char *function, int device);
int leave(int code);
int calls(void); // since the file was read

#define ENTER(function, device) \
	do { \
		int r_ = enter(function, device); \
		if (r_) return leave(r_); \
	} while (0)

extern __thread int current; // device of the thread's context; -1: none

// Time in seconds. In free pace it passes only when somebody waits.
double t_now(void);
void t_wait(double until);
uint64_t t_timer(double at, int device); // globaltimer, ns

struct stream {
	int device;
	double busy_until;
};

// What exists, and must not be left.
enum thing { CONTEXTS, MODULES, STREAMS, EVENTS, DEVICE_BYTES, HOST_BYTES, THINGS };
extern long long left[MAX_VISIBLE][THINGS];

bool owns(int device, uint64_t address, size_t bytes); // is memory of the device or pinned memory of the host
void release_all(int device);

// run_kernel fills the records and returns when the kernel ends.
double run_kernel(int device, const char *name, unsigned grid, unsigned block, unsigned shared, double start, void **params);

// follow says what a device does until a time, in the units of the fake NVML's keys.
void follow(int device, const char *key, double value, double until);
void follow_end(int device);

#endif
