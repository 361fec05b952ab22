// SPDX-License-Identifier: Apache-2.0

// The state of the fake's GPUs. It is read from the file that GPUPILOT_FAKE_NVML
// names, and read again when the file changes. README.md describes the lines.
#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>
#include <string.h>

#define FAKE "NVML"

struct state S;

static const struct code codes[] = {
	{"UNINITIALIZED", NVML_ERROR_UNINITIALIZED}, {"INVALID_ARGUMENT", NVML_ERROR_INVALID_ARGUMENT},
	{"NOT_SUPPORTED", NVML_ERROR_NOT_SUPPORTED}, {"NO_PERMISSION", NVML_ERROR_NO_PERMISSION},
	{"NOT_FOUND", NVML_ERROR_NOT_FOUND}, {"DRIVER_NOT_LOADED", NVML_ERROR_DRIVER_NOT_LOADED},
	{"TIMEOUT", NVML_ERROR_TIMEOUT}, {"GPU_IS_LOST", NVML_ERROR_GPU_IS_LOST},
	{"RESET_REQUIRED", NVML_ERROR_RESET_REQUIRED}, {"NO_DATA", NVML_ERROR_NO_DATA}, {"UNKNOWN", NVML_ERROR_UNKNOWN},
};

#include "../scenario.h"

static void own_defaults(void) {
	S.lazy_events = S.events_fail = false;
	S.module_version[0] = 0;
	for (int i = 0; i < MAX_GPUS; i++) {
		S.gpu[i].lost = false;
		S.gpu[i].fields = 0;
		S.gpu[i].whole.processes = 0;
		for (int m = 0; m < MAX_MIG; m++) S.gpu[i].mig[m].processes = 0;
	}
}

static void own_loaded(void) {
	if (!S.driver || replaced()) S.initialised = false;
}

static enum taken own_line(char w[WORDS][NAME]) {
	if (!strcmp(w[0], "events-fail")) return S.events_fail = true, TAKEN;
	if (!strcmp(w[0], "module-version")) return snprintf(S.module_version, sizeof S.module_version, "%s", w[1]), TAKEN;
	if (!strcmp(w[0], "lazy-events")) return S.lazy_events = true, TAKEN;
	return NOT_MINE;
}

static void raise_xid(int gpu, const char *code, const char *gi) {
	if (!is_new_xid(gpu) || S.events == MAX_EVENTS) return;
	S.event[S.events++] = (struct event){gpu, strtoull(code, NULL, 0), *gi ? (unsigned)atoi(gi) : 0xFFFFFFFFu};
}

// add_process takes "PID MIB PERCENT [TYPE]".
static bool add_process(struct device *d, char w[][NAME]) {
	if (!d || d->processes == MAX_PROCESSES || !*w[2]) return false;
	struct process *p = &d->process[d->processes++];
	*p = (struct process){(unsigned)strtoul(w[0], NULL, 0), atof(w[1]), atof(w[2]), 0};
	if (!*w[3] || strstr(w[3], "compute")) p->type |= COMPUTE;
	if (strstr(w[3], "graphics")) p->type |= GRAPHICS;
	if (strstr(w[3], "mps")) p->type |= MPS;
	return p->type != 0;
}

// add_field takes "ID VALUE [SCOPE]": no scope is 0, all is the sum over all links.
static bool add_field(struct gpu *g, char w[][NAME]) {
	if (g->fields == MAX_FIELDS || !*w[1]) return false;
	unsigned int scope = !strcmp(w[2], "all") ? 0xFFFFFFFFu : (unsigned)strtoul(w[2], NULL, 0);
	g->field[g->fields++] = (struct field_line){(unsigned)strtoul(w[0], NULL, 0), scope, strtoull(w[1], NULL, 0)};
	return true;
}

static enum taken own_gpu_line(int i, char w[WORDS][NAME], const char *rest) {
	(void)rest;
	struct gpu *g = &S.gpu[i];
	if (!strcmp(w[0], "lost")) return g->lost = true, TAKEN;
	if (!strcmp(w[0], "xid")) return raise_xid(i, w[1], w[2]), TAKEN;
	if (!strcmp(w[0], "field")) return taken(add_field(g, w + 1));
	if (!strcmp(w[0], "process")) return taken(add_process(&g->whole, w + 1));
	if (!strcmp(w[0], "instance") && !strcmp(w[2], "process")) return taken(add_process(instance(g, w[1]), w + 3));
	return NOT_MINE;
}

static void add_up(struct device *d, double dt) {
	for (int k = 0; k < NKEYS; k++)
		if (!isnan(d->val[k])) d->sum[k] += d->val[k] * dt;
}

// pass brings the sums up to date with the values that held until now.
static void pass(void) {
	double t = now(), dt = last ? t - last : 0;
	last = t;
	for (int i = 0; i < S.gpus; i++) {
		add_up(&S.gpu[i].whole, dt);
		for (int m = 0; m < S.gpu[i].migs; m++) add_up(&S.gpu[i].mig[m], dt);
	}
}

double summed_until(void) { return last; }

void lock_only(void) {
	pthread_mutex_lock(&mutex);
	if (!loaded) refresh();
	pass();
}

void lock(void) {
	lock_only();
	refresh();
}
