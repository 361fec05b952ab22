// SPDX-License-Identifier: Apache-2.0

// A fake NVML that reads the file of GPUPILOT_FAKE_CUDA_FOLLOW shows the load that this fake runs. The file begins with
// the lines of the same name with .base, if that exists.
#define _GNU_SOURCE
#include "fake.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const keys[] = {
	"gpm_gr", "gpm_sm", "gpm_occ", "gpm_tensor", "gpm_dram", "gpm_fp64", "gpm_fp32", "gpm_fp16",
	"gpm_pcie_tx", "gpm_pcie_rx", "gpm_nvlink_tx", "gpm_nvlink_rx",
};
enum { KEY_COUNT = sizeof keys / sizeof *keys };

static struct {
	double value[KEY_COUNT], until[KEY_COUNT];
} shown[MAX_VISIBLE];
static double written; // when the file was last written

static void line_of(FILE *f, int d, const char *key, double value) {
	if (V[d].mig < 0) fprintf(f, "gpu %d %s %.6f\n", V[d].gpu, key, value);
	else fprintf(f, "gpu %d instance %d %s %.6f\n", V[d].gpu, V[d].mig, key, value);
}

static void write_file(void) {
	const char *path = getenv("GPUPILOT_FAKE_CUDA_FOLLOW");
	if (!path || S.free_pace) return;
	char name[1024], text[512];
	snprintf(name, sizeof name, "%s.base", path);
	FILE *base = fopen(name, "r");
	snprintf(name, sizeof name, "%s.%d", path, (int)getpid());
	FILE *f = fopen(name, "w");
	while (base && f && fgets(text, sizeof text, base)) fputs(text, f);
	if (base) fclose(base);
	if (!f) return;
	double t = now();
	for (int d = 0; d < visibles; d++) {
		double most = 0;
		for (int k = 0; k < KEY_COUNT; k++) {
			double v = shown[d].until[k] > t ? shown[d].value[k] : 0;
			if (k < 8 && v > most) most = v;
			line_of(f, d, keys[k], v);
		}
		if (V[d].mig >= 0) continue;
		line_of(f, d, "power", 77.7 + 550 * most);
		line_of(f, d, "power_instant", 77.7 + 550 * most);
		line_of(f, d, "temp", 28 + 24 * most);
		line_of(f, d, "util", 100 * (shown[d].until[0] > t ? shown[d].value[0] : 0));
		line_of(f, d, "sm_clock", most > 0 ? (double)val(d, K_clock) : 345);
		line_of(f, d, "fb_used", (double)(left[d][DEVICE_BYTES] >> 20));
	}
	fclose(f);
	rename(name, path);
	written = t;
}

void follow(int device, const char *key, double value, double until) {
	bool changed = false;
	for (int k = 0; k < KEY_COUNT; k++)
		if (!strcmp(keys[k], key)) {
			changed = fabs(shown[device].value[k] - value) > 1e-4 || shown[device].until[k] < now();
			shown[device].value[k] = value;
			shown[device].until[k] = until;
		}
	if (changed || now() - written > 0.1) write_file();
}

void follow_end(int device) {
	memset(&shown[device], 0, sizeof shown[device]);
	write_file();
}
