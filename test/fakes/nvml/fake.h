// SPDX-License-Identifier: Apache-2.0

// What the fake's parts share: state.c knows what the GPUs do; nvml.c and
// batch.c say it through NVML's functions.
#ifndef GPUPILOT_FAKE_NVML_H
#define GPUPILOT_FAKE_NVML_H

#include <stdbool.h>
#include <stdint.h>
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include "nvml.h"
#include "../shared.h"

enum { MAX_GPUS = 64, MAX_MIG = 8, MAX_FAILS = 32, MAX_EVENTS = 4096, MAX_PROCESSES = 64, MAX_FIELDS = 128 };

// KEYS lists every value that can be set.
#define KEYS(X) SHARED_KEYS(X) X(pcie_tx_kb, 0, 1) X(pcie_rx_kb, 0, 1) X(nvlinks, 18, 1)

#define AS_ENUM(name, value, supported) K_##name,
enum key { KEYS(AS_ENUM) NKEYS };

enum { COMPUTE = 1, GRAPHICS = 2, MPS = 4 };

struct process {
	unsigned int pid;
	double memory, util; // MiB, negative: not told; percent
	int type;
};

// device is a whole GPU or a MIG instance: what the file says of it, and what
// has added up over time.
struct device {
	long double val[NKEYS];
	bool have[NKEYS];
	double sum[NKEYS]; // the integral of val over time, in val's unit times seconds
	char profile[32];  // of a MIG instance
	int slices, gi, processes;
	struct process process[MAX_PROCESSES];
};

struct field_line {
	unsigned int id, scope;
	unsigned long long value;
};

struct gpu {
	struct device whole, mig[MAX_MIG];
	int migs;
	bool lost, gpm;
	double hang_until; // in now()'s seconds
	struct fail fail[MAX_FAILS];
	int fails, xids; // xids: lines seen in the file being read
	struct field_line field[MAX_FIELDS]; // field values that are no key
	int fields;
};

struct event {
	int gpu;
	unsigned long long code;
	unsigned int gi;
};

struct state {
	int gpus;
	unsigned int seed;
	bool driver, lazy_events, events_fail;
	char model[NAME], driver_version[NAME], module_version[NAME];
	char log[4 * NAME]; // where calls on devices are written; empty: nowhere
	int delay_us; // every call on a device takes this long
	struct gpu gpu[MAX_GPUS];
	struct event event[MAX_EVENTS];
	int events;
	bool initialised; // false from the driver's unloading until all users have shut down
	int users;        // nvmlInit minus nvmlShutdown
};

extern struct state S;

bool replaced(void); // the driver is another version than this library

double summed_until(void); // the time that every sum stands for
void lock_only(void); // without looking at the file

#endif
