// SPDX-License-Identifier: Apache-2.0

// The functions about devices, contexts, modules and launches.
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool initialised;

static void uuid_text(int gpu, int mig, char out[NAME]) {
	if (mig < 0) gpu_uuid(gpu, out);
	else snprintf(out, NAME, "MIG-%08x-6670-5000-8000-%04x%08x", S.seed + 0x48323030, gpu, S.gpu[gpu].mig[mig].gi);
}

static void show(int gpu, int mig) {
	if (visibles < MAX_VISIBLE) V[visibles++] = (struct visible){gpu, mig, 0, 0};
}

// show_named shows what an element of CUDA_VISIBLE_DEVICES names. It returns false if there is no such device: CUDA
// ignores that and all further elements.
static bool show_named(const char *name) {
	char uuid[NAME], *end;
	long index = strtol(name, &end, 10);
	if (*name && !*end) {
		if (index < 0 || index >= S.gpus) return false;
		return show((int)index, S.gpu[index].migs ? 0 : -1), true;
	}
	for (int g = 0; g < S.gpus; g++)
		for (int m = -1; m < S.gpu[g].migs; m++) {
			uuid_text(g, m, uuid);
			if (*name && !strncasecmp(uuid, name, strlen(name))) return show(g, m < 0 && S.gpu[g].migs ? 0 : m), true;
		}
	return false;
}

static void enumerate(void) {
	visibles = 0;
	const char *env = getenv("CUDA_VISIBLE_DEVICES");
	if (!env) {
		for (int g = 0; g < S.gpus; g++) show(g, S.gpu[g].migs ? 0 : -1);
		return;
	}
	char list[1024], *at = list, *name;
	snprintf(list, sizeof list, "%s", env);
	while ((name = strsep(&at, ",")) && show_named(name)) {}
}

int cuInit(unsigned flags) {
	(void)flags;
	ENTER("cuInit", -1);
	if (!S.driver) return leave(NO_DEVICE);
	// A process's devices do not change, except in tests that have a new scenario and nothing left of the old one.
	long long n = 0;
	for (int d = 0; d < visibles; d++) n += left[d][CONTEXTS];
	if (!initialised || n == 0) enumerate();
	initialised = true;
	return leave(visibles ? OK : NO_DEVICE);
}

int cuDriverGetVersion(int *version) {
	ENTER("cuDriverGetVersion", -1);
	*version = S.cuda_version;
	return leave(OK);
}

int cuDeviceGetCount(int *n) {
	ENTER("cuDeviceGetCount", -1);
	if (!initialised) return leave(NOT_INITIALIZED);
	*n = visibles;
	return leave(OK);
}

int cuDeviceGet(int *device, int ordinal) {
	ENTER("cuDeviceGet", ordinal);
	if (ordinal < 0 || ordinal >= visibles) return leave(INVALID_DEVICE);
	*device = ordinal;
	return leave(OK);
}

int cuDeviceGetName(char *name, int size, int d) {
	ENTER("cuDeviceGetName", d);
	if (V[d].mig < 0) snprintf(name, size, "%s", S.model);
	else snprintf(name, size, "%s MIG %s", S.model, S.gpu[V[d].gpu].mig[V[d].mig].profile);
	return leave(OK);
}

static int get_uuid(unsigned char *bytes, int d) {
	ENTER("cuDeviceGetUuid", d);
	char text[NAME];
	uuid_text(V[d].gpu, V[d].mig, text);
	int n = 0;
	for (const char *at = text + 4; *at && n < 16;) {
		unsigned v;
		if (*at == '-') { at++; continue; }
		if (sscanf(at, "%2x", &v) != 1) break;
		bytes[n++] = (unsigned char)v;
		at += 2;
	}
	return leave(OK);
}

int cuDeviceGetUuid(unsigned char *bytes, int d) { return get_uuid(bytes, d); }
int cuDeviceGetUuid_v2(unsigned char *bytes, int d) { return get_uuid(bytes, d); }

int cuDeviceGetPCIBusId(char *id, int size, int d) {
	ENTER("cuDeviceGetPCIBusId", d);
	snprintf(id, size, "0000:%02X:00.0", (0x10 + 9 * V[d].gpu) & 0xff);
	return leave(OK);
}

int cuDeviceTotalMem_v2(size_t *bytes, int d) {
	ENTER("cuDeviceTotalMem", d);
	*bytes = (size_t)val(d, K_fb_total) << 20;
	return leave(OK);
}

int cuDeviceGetAttribute(int *v, int attribute, int d) {
	ENTER("cuDeviceGetAttribute", d);
	int cc = (int)val(d, K_cc);
	switch (attribute) {
	case 1: *v = 1024; break;
	case 16: *v = (int)val(d, K_sms); break;
	case 36: *v = (int)(val(d, K_mem_clock) * 1000); break;
	case 37: *v = (int)val(d, K_bus); break;
	case 38: *v = (int)val(d, K_l2) << 20; break;
	case 39: *v = (int)val(d, K_threads_per_sm); break;
	case 75: *v = cc / 10; break;
	case 76: *v = cc % 10; break;
	case 81: *v = (int)val(d, K_shared_per_sm); break;
	case 97: *v = (int)val(d, K_shared_per_block); break;
	default: return leave(INVALID_VALUE);
	}
	return leave(OK);
}

int cuDeviceCanAccessPeer(int *can, int d, int peer) {
	ENTER("cuDeviceCanAccessPeer", d);
	*can = d != peer && V[d].mig < 0 && V[peer].mig < 0 && val(d, K_nvlink) > 0;
	return leave(OK);
}

// A context's handle is its device plus one, so that 0 is none.
int cuDevicePrimaryCtxRetain(uintptr_t *context, int d) {
	ENTER("cuDevicePrimaryCtxRetain", d);
	if (val(d, K_compute_mode) > 1) return leave(DEVICE_UNAVAILABLE);
	V[d].retained++;
	left[d][CONTEXTS]++;
	*context = (uintptr_t)d + 1;
	return leave(OK);
}

static int release(int d) {
	ENTER("cuDevicePrimaryCtxRelease", d);
	if (!V[d].retained) return leave(INVALID_CONTEXT);
	left[d][CONTEXTS]--;
	if (--V[d].retained == 0) {
		long long *n = left[d];
		note("%d left modules %lld streams %lld events %lld device-bytes %lld host-bytes %lld", d, n[MODULES], n[STREAMS],
		     n[EVENTS], n[DEVICE_BYTES], n[HOST_BYTES]);
		release_all(d);
	}
	return leave(OK);
}

int cuDevicePrimaryCtxRelease(int d) { return release(d); }
int cuDevicePrimaryCtxRelease_v2(int d) { return release(d); }

int cuCtxSetCurrent(uintptr_t context) {
	int d = (int)context - 1;
	ENTER("cuCtxSetCurrent", d);
	if (d >= visibles || (d >= 0 && !V[d].retained)) return leave(INVALID_CONTEXT);
	current = d;
	return leave(OK);
}

int cuCtxEnablePeerAccess(uintptr_t context, unsigned flags) {
	(void)flags;
	ENTER("cuCtxEnablePeerAccess", current);
	return leave(current < 0 || !context ? INVALID_CONTEXT : OK);
}

struct module {
	int device;
	char *text;
};

struct function {
	struct module *module;
	char name[NAME];
};

int cuModuleLoadDataEx(struct module **out, const char *text, unsigned n, const unsigned *options, void **values) {
	ENTER("cuModuleLoadDataEx", current);
	if (current < 0) return leave(INVALID_CONTEXT);
	if (S.jit_fails) {
		for (unsigned i = 0; i < n; i++)
			if (options[i] == 5) snprintf(values[i], 256, "ptxas fatal   : the fake does not compile");
		return leave(INVALID_PTX);
	}
	const char *target = strstr(text, ".target sm_");
	if (!target || strncmp(text, ".version ", 9)) return leave(INVALID_PTX);
	if (atoi(target + 11) > (int)val(current, K_cc)) return leave(NO_BINARY);
	struct module *m = malloc(sizeof *m);
	*m = (struct module){current, strdup(text)};
	left[current][MODULES]++;
	note("%d module %zu bytes", current, strlen(text));
	*out = m;
	return leave(OK);
}

int cuModuleUnload(struct module *m) {
	ENTER("cuModuleUnload", m->device);
	left[m->device][MODULES]--;
	free(m->text);
	free(m);
	return leave(OK);
}

int cuModuleGetFunction(struct function **out, struct module *m, const char *name) {
	ENTER("cuModuleGetFunction", m->device);
	char entry[2 * NAME];
	snprintf(entry, sizeof entry, ".visible .entry %.60s(", name);
	if (!strstr(m->text, entry)) return leave(NOT_FOUND);
	// A function lives as long as the process: there are few.
	struct function *f = malloc(sizeof *f);
	f->module = m;
	snprintf(f->name, sizeof f->name, "%s", name);
	*out = f;
	return leave(OK);
}

int cuFuncSetAttribute(struct function *f, int attribute, int value) {
	ENTER("cuFuncSetAttribute", f->module->device);
	return leave(attribute == 8 && value <= (int)val(f->module->device, K_shared_per_block) ? OK : INVALID_VALUE);
}

int cuLaunchKernel(struct function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, struct stream *s, void **params, void **extra) {
	ENTER("cuLaunchKernel", s->device);
	int d = s->device;
	if (gy != 1 || gz != 1 || by != 1 || bz != 1 || extra || !gx || !bx || bx > 1024 || bx % 32) return leave(INVALID_VALUE);
	if (shared > (unsigned)val(d, K_shared_per_block)) return leave(INVALID_VALUE);
	double start = t_now() + (double)val(d, K_launch) * 1e-6;
	if (s->busy_until + 2e-6 > start) start = s->busy_until + 2e-6;
	uint64_t *p[8];
	for (int i = 0; i < 8; i++) p[i] = params[i];
	note("%d launch %s grid %u block %u shared %u length %llu last %llu window %llu duty %llu", d, f->name, gx, bx, shared,
	     (unsigned long long)*p[1], (unsigned long long)*p[2], (unsigned long long)*p[3], (unsigned long long)*p[4]);
	double end = run_kernel(d, f->name, gx, bx, shared, start, params);
	if (end < 0) {
		V[d].dead = 700;
		return leave(700);
	}
	s->busy_until = end;
	return leave(OK);
}
