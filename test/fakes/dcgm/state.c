// SPDX-License-Identifier: Apache-2.0

// The state of the fake's GPUs: read from the file that GPUPILOT_FAKE_DCGM
// names, again whenever it has changed. README.md describes its lines.
#define _GNU_SOURCE
#include "fake.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct state S;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct stat seen;
static bool loaded;
static double last;          // when energies were last brought up to date
static int raised[MAX_GPUS]; // xid lines that became samples, by GPU
static int restarts, forgot; // what has happened of the host engine's restarts and losses of memory

#define AS_NAME(name, value, supported) #name,
#define AS_VALUE(name, value, supported) value,
#define AS_HAVE(name, value, supported) supported,
static const char *const key_name[NKEYS] = {KEYS(AS_NAME)};
static const double key_value[NKEYS] = {KEYS(AS_VALUE)};
static const bool key_have[NKEYS] = {KEYS(AS_HAVE)};

double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

int64_t clock_us(void) {
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int find_key(const char *name) {
	for (int k = 0; k < NKEYS; k++)
		if (!strcmp(key_name[k], name)) return k;
	return -1;
}

dcgmReturn_t code_of(const char *name) {
	static const struct { const char *name; dcgmReturn_t code; } codes[] = {
		{"OK", DCGM_ST_OK}, {"GENERIC_ERROR", DCGM_ST_GENERIC_ERROR}, {"NOT_SUPPORTED", DCGM_ST_NOT_SUPPORTED},
		{"TIMEOUT", DCGM_ST_TIMEOUT}, {"NO_DATA", DCGM_ST_NO_DATA}, {"NOT_WATCHED", DCGM_ST_NOT_WATCHED},
		{"GPU_IS_LOST", DCGM_ST_GPU_IS_LOST}, {"CONNECTION_NOT_VALID", DCGM_ST_CONNECTION_NOT_VALID},
		{"REQUIRES_ROOT", DCGM_ST_REQUIRES_ROOT}, {"MODULE_NOT_LOADED", DCGM_ST_MODULE_NOT_LOADED}, {"IN_USE", DCGM_ST_IN_USE},
		{"PROFILING_NOT_SUPPORTED", DCGM_ST_PROFILING_NOT_SUPPORTED}, {"PROFILING_LIBRARY_ERROR", DCGM_ST_PROFILING_LIBRARY_ERROR},
		{"NVML_NOT_LOADED", DCGM_ST_NVML_NOT_LOADED},
	};
	for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
		if (!strcmp(codes[i].name, name)) return codes[i].code;
	return (dcgmReturn_t)atoi(name); // a number is itself
}

static void reset_device(struct device *d) {
	memcpy(d->val, key_value, sizeof d->val);
	memcpy(d->have, key_have, sizeof d->have);
}

// defaults: eight idle H200s.
static void defaults(void) {
	S.gpus = 8;
	S.seed = 0;
	S.driver = S.engine = true;
	S.restarts = S.forgets = 0;
	S.delay_us = 0;
	S.log[0] = 0;
	S.switches = S.cpus = S.cores = S.links = S.part_values = 0;
	memset(S.p2p, 0, sizeof S.p2p);
	S.profiling = DCGM_ST_OK;
	strcpy(S.model, "NVIDIA H200");
	strcpy(S.driver_version, "590.48.01");
	for (int i = 0; i < MAX_GPUS; i++) {
		struct gpu *g = &S.gpu[i];
		reset_device(&g->whole);
		g->migs = g->fails = g->xids = 0;
		g->model[0] = 0;
		g->status = DcgmEntityStatusOk;
		g->profiling = true;
		g->stale = 0;
		g->hang_until = 0;
	}
}

// add_mig cuts n instances of a profile such as 1g.18gb off the GPU.
static bool add_mig(struct gpu *g, const char *profile, int n) {
	int slices, gb;
	if (sscanf(profile, "%dg.%dgb", &slices, &gb) != 2) return false;
	for (; n > 0 && g->migs < MAX_MIG; n--) {
		struct device *d = &g->mig[g->migs];
		reset_device(d);
		snprintf(d->profile, sizeof d->profile, "%dg.%dgb", slices, gb);
		d->slices = slices;
		d->gi = 7 + g->migs++;
		double eighths = round(gb * 1024 * 8 / g->whole.val[K_fb_total]);
		d->val[K_fb_total] = round(g->whole.val[K_fb_total] / 8 * eighths * 0.912);
		d->val[K_fb_reserved] = 32;
	}
	return true;
}

static void raise_xid(int gpu, const char *code) {
	if (S.gpu[gpu].xids++ < raised[gpu] || S.xids == MAX_XIDS) return;
	raised[gpu]++;
	int64_t at = clock_us();
	if (S.xids > 0 && at <= S.xid[S.xids - 1].at) at = S.xid[S.xids - 1].at + 1;
	S.xid[S.xids++] = (struct xid){gpu, strtoll(code, NULL, 0), at};
}

static bool set_value(struct device *d, const char *key, const char *value) {
	int k = find_key(key);
	if (k < 0) return false;
	d->val[k] = strtod(value, NULL);
	d->have[k] = true;
	return true;
}

// gpu_line takes "WORD A B C" of GPU i; rest is what follows the word.
static bool gpu_line(int i, const char *word, const char *a, const char *b, const char *c, const char *rest) {
	struct gpu *g = &S.gpu[i];
	int k;
	if (!strcmp(word, "lost")) g->status = DcgmEntityStatusLost;
	else if (!strcmp(word, "detached")) g->status = DcgmEntityStatusDetached;
	else if (!strcmp(word, "stale")) g->stale = clock_us();
	else if (!strcmp(word, "model")) snprintf(g->model, sizeof g->model, "%s", rest);
	else if (!strcmp(word, "hang")) g->hang_until = now() + atof(a) / 1000;
	else if (!strcmp(word, "xid")) raise_xid(i, a);
	else if (!strcmp(word, "mig")) return add_mig(g, a, *b ? atoi(b) : 1);
	else if (!strcmp(word, "instance")) return atoi(a) >= 0 && atoi(a) < g->migs && set_value(&g->mig[atoi(a)], b, c);
	else if (!strcmp(word, "fail")) {
		if (g->fails == MAX_FAILS) return false;
		struct fail *f = &g->fail[g->fails++];
		snprintf(f->function, sizeof f->function, "%s", a);
		f->code = code_of(b);
	} else if (!strcmp(word, "unsupported")) {
		if (!strcmp(a, "gpm")) return g->profiling = false, true;
		if ((k = find_key(a)) < 0) return false;
		g->whole.have[k] = false;
	} else return set_value(&g->whole, word, a);
	return true;
}

static bool engine_line(const char *what, const char *n) {
	if (!strcmp(what, "lost")) S.engine = false;
	else if (!strcmp(what, "restarted")) S.restarts = atoi(n);
	else if (!strcmp(what, "forgets")) S.forgets = atoi(n);
	else return false;
	return true;
}

static const char *after(const char *text, int words) {
	for (; words > 0; words--) {
		text += strspn(text, " \t");
		text += strcspn(text, " \t");
	}
	return text + strspn(text, " \t");
}

static bool line(const char *text) {
	char w[6][NAME] = {{0}};
	int n = sscanf(text, "%63s %63s %63s %63s %63s %63s", w[0], w[1], w[2], w[3], w[4], w[5]);
	if (n <= 0 || w[0][0] == '#') return true;
	if (!strcmp(w[0], "gpus")) return (S.gpus = atoi(w[1])) >= 0 && S.gpus <= MAX_GPUS;
	if (!strcmp(w[0], "seed")) return S.seed = (unsigned)strtoul(w[1], NULL, 0), true;
	if (!strcmp(w[0], "model")) return snprintf(S.model, sizeof S.model, "%s", after(text, 1)), true;
	if (!strcmp(w[0], "driver-version")) return snprintf(S.driver_version, sizeof S.driver_version, "%s", w[1]), true;
	if (!strcmp(w[0], "delay-us")) return S.delay_us = atoi(w[1]), true;
	if (!strcmp(w[0], "log")) return snprintf(S.log, sizeof S.log, "%s", after(text, 1)), true;
	if (!strcmp(w[0], "profiling")) return S.profiling = code_of(w[1]), true;
	if (!strcmp(w[0], "engine")) return engine_line(w[1], w[2]);
	if (!strcmp(w[0], "driver")) {
		if (!strcmp(w[1], "not-loaded")) return S.driver = false, true;
		return !strcmp(w[1], "loaded");
	}
	if (part_line(w)) return true;
	if (strcmp(w[0], "gpu") || n < 3) return false;
	bool all = !strcmp(w[1], "*"), ok = true;
	int from = all ? 0 : atoi(w[1]), to = all ? S.gpus : from + 1;
	if (from < 0 || to > MAX_GPUS) return false;
	for (int i = from; i < to; i++) ok = gpu_line(i, w[2], w[3], w[4], w[5], after(text, 3)) && ok;
	return ok;
}

static void load(const char *path) {
	FILE *f = fopen(path, "r");
	defaults();
	if (!f) return;
	char text[512];
	for (int n = 1; fgets(text, sizeof text, f); n++) {
		text[strcspn(text, "\r\n")] = 0;
		if (!line(text)) fprintf(stderr, "fake DCGM: %s:%d: cannot understand %s\n", path, n, text);
	}
	fclose(f);
	// A file that was begun anew begins its xid lines anew.
	for (int i = 0; i < MAX_GPUS; i++)
		if (S.gpu[i].xids < raised[i]) raised[i] = S.gpu[i].xids;
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

// refresh reads the file if it is another than before.
static void refresh(void) {
	const char *path = getenv("GPUPILOT_FAKE_DCGM");
	if (!path) path = "";
	struct stat st = {0};
	(void)stat(path, &st);
	if (loaded && st.st_ino == seen.st_ino && st.st_size == seen.st_size &&
	    st.st_mtim.tv_sec == seen.st_mtim.tv_sec && st.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) return;
	loaded = true;
	seen = st;
	load(path);
}

void lock(void) {
	pthread_mutex_lock(&mutex);
	double t = now(), dt = last ? t - last : 0;
	last = t;
	for (int i = 0; i < S.gpus; i++) S.gpu[i].energy += S.gpu[i].whole.val[K_power] * dt * 1000;
	refresh();
}

void unlock(void) { pthread_mutex_unlock(&mutex); }

void note(const char *format, ...) {
	FILE *f = S.log[0] ? fopen(S.log, "a") : NULL;
	if (!f) return;
	va_list args;
	va_start(args, format);
	vfprintf(f, format, args);
	va_end(args);
	fputc('\n', f);
	fclose(f);
}

dcgmReturn_t end(dcgmReturn_t r) {
	unlock();
	return r;
}

dcgmReturn_t begin(dcgmHandle_t h, const char *fn, int gpu) {
	lock();
	if (gpu >= 0) note("%d %s", gpu, fn);
	if (!S.engine || h != (dcgmHandle_t)(0x100 + S.epoch)) return end(DCGM_ST_CONNECTION_NOT_VALID);
	if (gpu < 0) return DCGM_ST_OK;
	if (!S.driver) return end(DCGM_ST_NVML_NOT_LOADED);
	if (gpu >= S.gpus) return end(DCGM_ST_BADPARAM);
	if (S.delay_us > 0) {
		int us = S.delay_us;
		unlock();
		usleep(us);
		lock();
	}
	while (S.gpu[gpu].hang_until > now()) {
		unlock();
		usleep(2000);
		lock();
	}
	for (int i = 0; i < S.gpu[gpu].fails; i++)
		if (!strcmp(S.gpu[gpu].fail[i].function, fn)) return end(S.gpu[gpu].fail[i].code);
	return DCGM_ST_OK;
}
