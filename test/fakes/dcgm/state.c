// SPDX-License-Identifier: Apache-2.0

// The state of the fake's GPUs. It is read from the file that GPUPILOT_FAKE_DCGM
// names, and read again when the file changes. README.md describes the lines.
#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>
#include <string.h>

#define FAKE "DCGM"

struct state S;

static int restarts, forgot; // the restarts and losses of memory that the host engine has had

static const struct code codes[] = {
	{"OK", DCGM_ST_OK}, {"GENERIC_ERROR", DCGM_ST_GENERIC_ERROR}, {"NOT_SUPPORTED", DCGM_ST_NOT_SUPPORTED},
	{"TIMEOUT", DCGM_ST_TIMEOUT}, {"NO_DATA", DCGM_ST_NO_DATA}, {"NOT_WATCHED", DCGM_ST_NOT_WATCHED},
	{"GPU_IS_LOST", DCGM_ST_GPU_IS_LOST}, {"CONNECTION_NOT_VALID", DCGM_ST_CONNECTION_NOT_VALID},
	{"REQUIRES_ROOT", DCGM_ST_REQUIRES_ROOT}, {"MODULE_NOT_LOADED", DCGM_ST_MODULE_NOT_LOADED}, {"IN_USE", DCGM_ST_IN_USE},
	{"PROFILING_NOT_SUPPORTED", DCGM_ST_PROFILING_NOT_SUPPORTED}, {"PROFILING_LIBRARY_ERROR", DCGM_ST_PROFILING_LIBRARY_ERROR},
	{"NVML_NOT_LOADED", DCGM_ST_NVML_NOT_LOADED}, {"VER_MISMATCH", DCGM_ST_VER_MISMATCH},
};

#include "../scenario.h"

int64_t clock_us(void) {
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void own_defaults(void) {
	S.engine = true;
	S.restarts = S.forgets = S.fails = 0;
	S.version[0] = S.library[0] = 0;
	S.switches = S.cpus = S.cores = S.links = S.totals = S.part_values = 0;
	memset(S.p2p, 0, sizeof S.p2p);
	S.profiling = DCGM_ST_OK;
	for (int i = 0; i < MAX_GPUS; i++) {
		S.gpu[i].model[0] = 0;
		S.gpu[i].status = DcgmEntityStatusOk;
		S.gpu[i].stale = 0;
		S.gpu[i].lacks = S.gpu[i].ills = 0;
	}
}

static void own_loaded(void) {
	if (!S.engine || S.restarts != restarts) {
		restarts = S.restarts;
		S.epoch++;
		drop_watches();
	}
	if (S.forgets != forgot) {
		forgot = S.forgets;
		forget_watches();
	}
}

static bool engine_line(const char *what, const char *n) {
	if (!strcmp(what, "lost")) S.engine = false;
	else if (!strcmp(what, "restarted")) S.restarts = atoi(n);
	else if (!strcmp(what, "forgets")) S.forgets = atoi(n);
	else return false;
	return true;
}

static enum taken own_line(char w[WORDS][NAME]) {
	if (!strcmp(w[0], "profiling")) return S.profiling = code_of(w[1]), TAKEN;
	if (!strcmp(w[0], "versions")) {
		snprintf(S.version, sizeof S.version, "%s", w[1]);
		snprintf(S.library, sizeof S.library, "%s", w[2]);
		return TAKEN;
	}
	if (!strcmp(w[0], "fail") && S.fails < MAX_FAILS) {
		snprintf(S.fail[S.fails].function, sizeof S.fail[0].function, "%s", w[1]);
		S.fail[S.fails++].code = code_of(w[2]);
		return TAKEN;
	}
	if (!strcmp(w[0], "engine")) return taken(engine_line(w[1], w[2]));
	return part_line(w) ? TAKEN : NOT_MINE;
}

static void raise_xid(int gpu, const char *code) {
	if (!is_new_xid(gpu) || S.xids == MAX_XIDS) return;
	int64_t at = clock_us();
	if (S.xids > 0 && at <= S.xid[S.xids - 1].at) at = S.xid[S.xids - 1].at + 1;
	S.xid[S.xids++] = (struct xid){gpu, strtoll(code, NULL, 0), at};
}

static enum taken own_gpu_line(int i, char w[WORDS][NAME], const char *rest) {
	struct gpu *g = &S.gpu[i];
	if (!strcmp(w[0], "lost")) g->status = DcgmEntityStatusLost;
	else if (!strcmp(w[0], "detached")) g->status = DcgmEntityStatusDetached;
	else if (!strcmp(w[0], "stale")) g->stale = clock_us();
	else if (!strcmp(w[0], "model")) snprintf(g->model, sizeof g->model, "%s", rest);
	else if (!strcmp(w[0], "xid")) raise_xid(i, w[1]);
	else if (!strcmp(w[0], "health")) return taken(health_line(i, w[1], w[2], w[3]));
	else if (!strcmp(w[0], "lacks") && g->lacks < MAX_FAILS) g->lack[g->lacks++] = (unsigned short)atoi(w[1]);
	else return NOT_MINE;
	return TAKEN;
}

void lock(void) {
	pthread_mutex_lock(&mutex);
	double t = now(), dt = last ? t - last : 0;
	last = t;
	for (int i = 0; i < S.gpus; i++) S.gpu[i].energy += S.gpu[i].whole.val[K_power] * dt * 1000;
	mean_pass(t, dt);
	refresh();
}

dcgmReturn_t end(dcgmReturn_t r) {
	unlock();
	return r;
}

dcgmReturn_t fails(const char *fn) {
	for (int i = 0; i < S.fails; i++)
		if (!strcmp(S.fail[i].function, fn)) return S.fail[i].code;
	return DCGM_ST_OK;
}

dcgmReturn_t begin(dcgmHandle_t h, const char *fn, int gpu) {
	lock();
	if (gpu >= 0) note("%d %s", gpu, fn);
	if (!S.engine || h != (dcgmHandle_t)(0x100 + S.epoch)) return end(DCGM_ST_CONNECTION_NOT_VALID);
	if (fails(fn) != DCGM_ST_OK) return end(fails(fn));
	if (gpu < 0) return DCGM_ST_OK;
	if (!S.driver) return end(DCGM_ST_NVML_NOT_LOADED);
	if (gpu >= S.gpus) return end(DCGM_ST_BADPARAM);
	dcgmReturn_t failed = block(gpu, fn);
	return failed == DCGM_ST_OK ? failed : end(failed);
}
