// SPDX-License-Identifier: Apache-2.0

// What our kernels do, by their names, in the fake's time: the records that a GPU would have written. The layout of the
// records and the sizes of a chunk are those of internal/loadgen/load.
#define _GNU_SOURCE
#include "fake.h"

#include <math.h>
#include <string.h>

struct record {
	uint32_t sm, warps;
	uint64_t start, end, cycles, work, worked, unused[2];
};

// lanes are multiply-adds of an SM and cycle; of the tensor cores those of mma.sync, while the field shows 1.
static double lanes(int cc, const char *kernel) {
	bool wide = cc >= 86 && cc < 90;
	if (!strcmp(kernel, "fp64")) return cc == 90 ? 64 : cc == 70 || cc == 80 ? 32 : 2;
	if (!strcmp(kernel, "fp32")) return cc >= 86 ? 128 : 64;
	if (!strcmp(kernel, "fp16")) return cc == 80 || cc >= 90 ? 256 : 128;
	return cc == 90 ? 2048 / 1.5 : cc == 80 ? 1024 : wide || cc < 80 ? 512 : 4096;
}

// per_chunk is the work of a warp's chunk: multiply-adds, or bytes.
static double per_chunk(const char *kernel, double iterations) {
	if (!strcmp(kernel, "fp64")) return 2048 * iterations;
	if (!strcmp(kernel, "fp32")) return 8192 * iterations;
	if (!strcmp(kernel, "fp16")) return 16384 * iterations;
	if (!strcmp(kernel, "tensor_sm_80")) return 65536 * iterations;
	if (!strncmp(kernel, "tensor_", 7)) return 32768 * iterations;
	return 4096; // dram
}

static const struct { const char *kernel, *key; } shows[] = {
	{"fp64", "gpm_fp64"}, {"fp32", "gpm_fp32"}, {"fp16", "gpm_fp16"}, {"dram", "gpm_dram"}, {"tensor_sm_70", "gpm_tensor"},
	{"tensor_sm_75", "gpm_tensor"}, {"tensor_sm_80", "gpm_tensor"},
};

static unsigned seed = 1; // of the jitter

// jitter is a time of 0 to the device's jitter, in seconds.
static double jitter(int device) {
	seed = seed * 1664525 + 1013904223;
	return (seed >> 8) / 16777216.0 * (double)val(device, K_jitter) * 1e-9;
}

// pipe is what a load with windows does.
struct pipe {
	double chunk_ns, per_chunk; // of a round of all warps of an SM; of one warp's chunk
	double chunks;              // of a warp, in the whole kernel
};

static struct pipe pipe_of(int d, const char *name, unsigned grid, unsigned warps, double length, double window, double duty, double iterations) {
	struct pipe p = {.per_chunk = per_chunk(name, iterations)};
	double per_sm = ceil(grid / (double)val(d, K_sms)) * warps, rate = (double)val(d, K_rate);
	if (!strcmp(name, "dram")) {
		double bandwidth = 2 * (double)val(d, K_mem_clock) * 1e6 * (double)val(d, K_bus) / 8;
		p.chunk_ns = grid * warps * p.per_chunk / (bandwidth * (double)val(d, K_dram_efficiency) * rate) * 1e9;
	} else {
		double ideal = lanes((int)val(d, K_cc), name) * (double)val(d, K_efficiency) * rate;
		p.chunk_ns = per_sm * p.per_chunk / ideal / (double)val(d, K_clock) * 1000;
	}
	for (double at = 0; at < length; at += window) {
		double busy = fmin(window * duty, length - at);
		if (busy > 0) p.chunks += ceil(busy / p.chunk_ns - 1e-9);
	}
	return p;
}

// show tells the fake NVML what the launch does until its end.
static void show(int d, const char *name, unsigned grid, unsigned block, double length, double share, double end) {
	double sms = (double)val(d, K_sms), most = (double)val(d, K_threads_per_sm), slice = 0.02;
	bool spin = !strcmp(name, "spin") || !strcmp(name, "vectoradd");
	double gr = spin && grid == 1 ? fmin(1, length / 1e9 / slice) : 1;
	if (!strcmp(name, "vectoradd")) gr = fmin(1, length / 1e9 / slice);
	follow(d, "gpm_gr", gr, end);
	follow(d, "gpm_sm", spin && block == 32 && grid > 1 ? fmin(1, (grid - 1 + share) / sms) : gr * fmin(grid, sms) / sms, end);
	follow(d, "gpm_occ", gr * fmin(1, (grid - 1 + share) * block / (sms * most)), end);
}

double run_kernel(int d, const char *name, unsigned grid, unsigned block, unsigned shared, double start, void **params) {
	uint64_t p[8];
	for (int i = 0; i < 8; i++) p[i] = *(uint64_t *)params[i];
	double length = p[1], share = p[2] / 65536.0, window = p[3] ? p[3] : length, duty = p[4] / 65536.0;
	if (!owns(d, p[0], 64 + 64ul * grid) || ((!strcmp(name, "dram") || !strcmp(name, "fill")) && !owns(d, p[5], p[6]))) return -1;
	// The kernels have no tile for a block beyond the buffer.
	if (!strcmp(name, "dram") && (p[6] == 0 || p[6] % ((uint64_t)grid << 16) || !owns(d, p[7], 8ul * grid))) return -1;
	(void)shared;
	unsigned warps = block / 32, usable = (unsigned)fmax(1, (double)(val(d, K_sms) - val(d, K_missing_sms)));
	struct pipe pipe = {0};
	bool works = strncmp(name, "spin", 4) && strcmp(name, "probe") && strcmp(name, "fill") && strcmp(name, "vectoradd");
	if (works) pipe = pipe_of(d, name, grid, warps, length, window, duty, p[6]);
	if (!strcmp(name, "fill")) length = p[6] / 3e12 * 1e9;
	double last = start;
	uint64_t *header = (uint64_t *)(uintptr_t)p[0];
	struct record *r = (struct record *)(header + 8);
	*header = t_timer(start, d);
	for (unsigned b = 0; b < grid; b++) {
		double from = start + jitter(d);
		double to = start + length * (b == grid - 1 ? share : 1) * 1e-9 + fmin(jitter(d), 1e-6) + fmin(pipe.chunk_ns, window) * 0.5e-9;
		if (to < from) to = from + 1e-6;
		r[b] = (struct record){.sm = b % usable, .warps = warps, .start = t_timer(from, d), .end = t_timer(to, d)};
		r[b].cycles = (uint64_t)((to - from) * (double)val(d, K_clock) * 1e6);
		r[b].work = !strcmp(name, "probe") ? (uint64_t)val(d, K_timer) : (uint64_t)(pipe.chunks * warps);
		r[b].worked = (uint64_t)(pipe.chunks * warps * pipe.chunk_ns);
		if (to > last) last = to;
	}
	show(d, name, grid, block, length, share, last);
	double peak = (double)val(d, K_sms) * lanes((int)val(d, K_cc), name) * length * (double)val(d, K_clock) / 1000;
	if (!strcmp(name, "dram")) peak = 2 * (double)val(d, K_mem_clock) * 1e6 * (double)val(d, K_bus) / 8 * length * 1e-9;
	for (size_t i = 0; works && i < sizeof shows / sizeof *shows; i++)
		if (!strcmp(shows[i].kernel, name)) follow(d, shows[i].key, pipe.chunks * warps * grid * pipe.per_chunk / peak, last);
	return last;
}
