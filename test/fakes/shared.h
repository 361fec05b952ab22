// SPDX-License-Identifier: Apache-2.0

// What both fakes declare. scenario.h defines the functions.
#ifndef GPUPILOT_FAKE_SHARED_H
#define GPUPILOT_FAKE_SHARED_H

#include <stdbool.h>

enum { NAME = 64 };

// code is a return code of the library by its name in the scenario file.
struct code {
	const char *name;
	int code;
};

// fail is a function that fails for a GPU.
struct fail {
	char function[NAME];
	int code;
};

double now(void);    // seconds, monotonic
void lock(void);     // takes the mutex and reads the scenario file if it has changed
void unlock(void);
void note(const char *format, ...) __attribute__((format(printf, 1, 2))); // appends a line to the log file
void gpu_uuid(int gpu, char out[NAME]);

// block waits for the delay and the hang of a GPU, without the mutex, and returns
// the code with which function fn fails; 0 if it does not. The mutex must be held.
int block(int gpu, const char *fn);

// SHARED_KEYS lists for each value: its name in the scenario file, its default on
// an idle H200, and whether the GPU supports it by default.
#define SHARED_KEYS(X) \
	X(util, 0, 1) X(mem_util, 0, 1) X(enc_util, 0, 1) X(dec_util, 0, 1) \
	X(temp, 28, 1) X(mem_temp, 34, 1) X(slowdown_temp, 87, 1) X(shutdown_temp, 92, 1) \
	X(power, 77.7, 1) X(power_instant, 77.7, 1) X(power_limit, 700, 1) X(enforced_limit, 700, 1) X(energy, 0, 0) \
	X(sm_clock, 345, 1) X(mem_clock, 3201, 1) X(video_clock, 765, 1) X(max_sm_clock, 1980, 1) X(max_mem_clock, 3201, 1) \
	X(clock_reasons, 1, 1) X(pstate, 0, 1) X(fan, 0, 0) \
	X(pcie_replay, 0, 1) X(pcie_max_gen, 5, 1) X(pcie_max_width, 16, 1) X(pcie_gen, 5, 1) X(pcie_width, 16, 1) \
	X(viol_power, 0, 1) X(viol_thermal, 0, 1) X(viol_sync_boost, 0, 1) X(viol_board_limit, 0, 1) X(viol_low_util, 0, 1) X(viol_reliability, 0, 1) \
	X(fb_total, 143771, 1) X(fb_reserved, 614, 1) X(fb_used, 0, 1) \
	X(ecc_sbe_vol, 0, 1) X(ecc_dbe_vol, 0, 1) X(ecc_sbe_agg, 0, 1) X(ecc_dbe_agg, 0, 1) \
	X(retired_sbe, 0, 0) X(retired_dbe, 0, 0) X(retired_pending, 0, 0) \
	X(remapped_unc, 0, 1) X(remapped_cor, 0, 1) X(remap_failure, 0, 1) X(remap_pending, 0, 1) \
	X(nvlink_crc_flit, 0, 1) X(nvlink_crc_data, 0, 1) X(nvlink_replay, 0, 1) X(nvlink_recovery, 0, 1) \
	X(nvlink_tx, 0, 1) X(nvlink_rx, 0, 1) X(nvlink0_tx, 0, 1) X(nvlink0_rx, 0, 1) \
	X(vgpu_license, 0, 0) \
	X(gpm_gr, 0, 1) X(gpm_sm, 0, 1) X(gpm_occ, 0, 1) X(gpm_tensor, 0, 1) X(gpm_dram, 0, 1) \
	X(gpm_fp64, 0, 1) X(gpm_fp32, 0, 1) X(gpm_fp16, 0, 1) X(gpm_int, 0, 1) X(gpm_imma, 0, 1) X(gpm_hmma, 0, 1) X(gpm_dfma, 0, 1) \
	X(gpm_pcie_tx, 0, 1) X(gpm_pcie_rx, 0, 1) X(gpm_nvlink_tx, 0, 1) X(gpm_nvlink_rx, 0, 1)

#endif
