// SPDX-License-Identifier: Apache-2.0

// What the fake's parts share: state.c knows what the GPUs do; nvml.c and
// batch.c say it through NVML's functions.
#ifndef GPUPILOT_FAKE_NVML_H
#define GPUPILOT_FAKE_NVML_H

#include <stdbool.h>
#include <stdint.h>
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include "nvml.h"

enum { MAX_GPUS = 64, MAX_MIG = 8, MAX_FAILS = 32, MAX_EVENTS = 4096, MAX_PROCESSES = 64, NAME = 64 };

// KEYS lists every value that can be set: name in the file, the default of an
// idle H200, whether the GPU supports it by default.
#define KEYS(X) \
	X(util, 0, 1) X(mem_util, 0, 1) X(enc_util, 0, 1) X(dec_util, 0, 1) \
	X(temp, 28, 1) X(mem_temp, 34, 1) X(slowdown_temp, 87, 1) X(shutdown_temp, 92, 1) \
	X(power, 77.7, 1) X(power_instant, 77.7, 1) X(power_limit, 700, 1) X(enforced_limit, 700, 1) X(energy, 0, 0) \
	X(sm_clock, 345, 1) X(mem_clock, 3201, 1) X(video_clock, 765, 1) X(max_sm_clock, 1980, 1) X(max_mem_clock, 3201, 1) \
	X(clock_reasons, 1, 1) X(pstate, 0, 1) X(fan, 0, 0) \
	X(pcie_replay, 0, 1) X(pcie_max_gen, 5, 1) X(pcie_max_width, 16, 1) X(pcie_gen, 5, 1) X(pcie_width, 16, 1) \
	X(pcie_tx_kb, 0, 1) X(pcie_rx_kb, 0, 1) \
	X(viol_power, 0, 1) X(viol_thermal, 0, 1) X(viol_sync_boost, 0, 1) X(viol_board_limit, 0, 1) X(viol_low_util, 0, 1) X(viol_reliability, 0, 1) \
	X(fb_total, 143771, 1) X(fb_reserved, 614, 1) X(fb_used, 0, 1) \
	X(ecc_sbe_vol, 0, 1) X(ecc_dbe_vol, 0, 1) X(ecc_sbe_agg, 0, 1) X(ecc_dbe_agg, 0, 1) \
	X(retired_sbe, 0, 0) X(retired_dbe, 0, 0) X(retired_pending, 0, 0) \
	X(remapped_unc, 0, 1) X(remapped_cor, 0, 1) X(remap_failure, 0, 1) X(remap_pending, 0, 1) \
	X(nvlink_crc_flit, 0, 1) X(nvlink_crc_data, 0, 1) X(nvlink_replay, 0, 1) X(nvlink_recovery, 0, 1) \
	X(nvlink_tx, 0, 1) X(nvlink_rx, 0, 1) X(nvlink0_tx, 0, 1) X(nvlink0_rx, 0, 1) \
	X(vgpu_license, 0, 0) X(nvlinks, 18, 1) \
	X(gpm_gr, 0, 1) X(gpm_sm, 0, 1) X(gpm_occ, 0, 1) X(gpm_tensor, 0, 1) X(gpm_dram, 0, 1) \
	X(gpm_fp64, 0, 1) X(gpm_fp32, 0, 1) X(gpm_fp16, 0, 1) X(gpm_int, 0, 1) X(gpm_imma, 0, 1) X(gpm_hmma, 0, 1) X(gpm_dfma, 0, 1) \
	X(gpm_pcie_tx, 0, 1) X(gpm_pcie_rx, 0, 1) X(gpm_nvlink_tx, 0, 1) X(gpm_nvlink_rx, 0, 1)

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

struct fail {
	char function[NAME];
	nvmlReturn_t code;
};

struct gpu {
	struct device whole, mig[MAX_MIG];
	int migs;
	bool lost, gpm;
	double hang_until; // in now()'s seconds
	struct fail fail[MAX_FAILS];
	int fails, xids; // xids: lines seen in the file being read
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
	char model[NAME], driver_version[NAME];
	char log[4 * NAME]; // where calls on devices are written; empty: nowhere
	int delay_us; // every call on a device takes this long
	struct gpu gpu[MAX_GPUS];
	struct event event[MAX_EVENTS];
	int events;
	bool initialised; // false from the driver's unloading until all users have shut down
	int users;        // nvmlInit minus nvmlShutdown
};

extern struct state S;

double now(void);
double summed_until(void); // the time that every sum stands for
void lock(void);   // and take in the file, if it has changed, and the time
void lock_only(void); // without looking at the file
void unlock(void);

#endif
