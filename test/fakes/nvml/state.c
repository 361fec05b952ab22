// SPDX-License-Identifier: Apache-2.0

// The state of the fake's GPUs: read from the file that GPUPILOT_FAKE_NVML
// names, again whenever it has changed. README.md describes its lines.
#define _GNU_SOURCE
#include "fake.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>

struct state S;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct stat seen;
static bool loaded;
static double last;          // when sums were last brought up to date
static int raised[MAX_GPUS]; // xid lines that became events, by GPU

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

static int find_key(const char *name) {
	for (int k = 0; k < NKEYS; k++)
		if (!strcmp(key_name[k], name)) return k;
	return -1;
}

static nvmlReturn_t code_of(const char *name) {
	static const struct { const char *name; nvmlReturn_t code; } codes[] = {
		{"UNINITIALIZED", NVML_ERROR_UNINITIALIZED}, {"INVALID_ARGUMENT", NVML_ERROR_INVALID_ARGUMENT},
		{"NOT_SUPPORTED", NVML_ERROR_NOT_SUPPORTED}, {"NO_PERMISSION", NVML_ERROR_NO_PERMISSION},
		{"NOT_FOUND", NVML_ERROR_NOT_FOUND}, {"DRIVER_NOT_LOADED", NVML_ERROR_DRIVER_NOT_LOADED},
		{"TIMEOUT", NVML_ERROR_TIMEOUT}, {"GPU_IS_LOST", NVML_ERROR_GPU_IS_LOST},
		{"RESET_REQUIRED", NVML_ERROR_RESET_REQUIRED}, {"NO_DATA", NVML_ERROR_NO_DATA}, {"UNKNOWN", NVML_ERROR_UNKNOWN},
	};
	for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
		if (!strcmp(codes[i].name, name)) return codes[i].code;
	return (nvmlReturn_t)atoi(name); // a number is itself
}

static void reset_device(struct device *d) {
	memcpy(d->val, key_value, sizeof d->val);
	memcpy(d->have, key_have, sizeof d->have);
	d->processes = 0;
}

// defaults: eight idle H200s.
static void defaults(void) {
	S.gpus = 8;
	S.seed = 0;
	S.driver = true;
	S.lazy_events = S.events_fail = false;
	S.delay_us = 0;
	S.log[0] = 0;
	strcpy(S.model, "NVIDIA H200");
	strcpy(S.driver_version, "590.48.01");
	for (int i = 0; i < MAX_GPUS; i++) {
		struct gpu *g = &S.gpu[i];
		reset_device(&g->whole);
		g->migs = g->fails = g->xids = 0;
		g->lost = false;
		g->gpm = true;
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
		snprintf(d->profile, sizeof d->profile, "%s", profile);
		d->slices = slices;
		d->gi = 7 + g->migs++;
		// An instance's memory is some eighths of the GPU's, less its share of
		// what is reserved: 16384 MiB for 1g.18gb of an H200.
		double eighths = round(gb * 1024 * 8 / g->whole.val[K_fb_total]);
		d->val[K_fb_total] = round(g->whole.val[K_fb_total] / 8 * eighths * 0.912);
		d->val[K_fb_reserved] = 32;
	}
	return true;
}

static void raise_xid(int gpu, const char *code, const char *gi) {
	if (S.gpu[gpu].xids++ < raised[gpu] || S.events == MAX_EVENTS) return;
	raised[gpu]++;
	S.event[S.events++] = (struct event){gpu, strtoull(code, NULL, 0), *gi ? (unsigned)atoi(gi) : 0xFFFFFFFFu};
}

static bool set_value(struct device *d, const char *key, const char *value) {
	int k = find_key(key);
	if (k < 0) return false;
	d->val[k] = strtod(value, NULL);
	d->have[k] = true;
	return true;
}

// add_process takes "PID MIB PERCENT [TYPE]".
static bool add_process(struct device *d, char *const w[4]) {
	if (d->processes == MAX_PROCESSES || !*w[2]) return false;
	struct process *p = &d->process[d->processes++];
	*p = (struct process){(unsigned)strtoul(w[0], NULL, 0), atof(w[1]), atof(w[2]), 0};
	if (!*w[3] || strstr(w[3], "compute")) p->type |= COMPUTE;
	if (strstr(w[3], "graphics")) p->type |= GRAPHICS;
	if (strstr(w[3], "mps")) p->type |= MPS;
	return p->type != 0;
}

// gpu_line takes "WORD A B C …" of GPU i: w[0] is the word.
static bool gpu_line(int i, char *const *w) {
	struct gpu *g = &S.gpu[i];
	char *word = w[0], *a = w[1], *b = w[2], *c = w[3];
	int k;
	if (!strcmp(word, "lost")) g->lost = true;
	else if (!strcmp(word, "hang")) g->hang_until = now() + atof(a) / 1000;
	else if (!strcmp(word, "xid")) raise_xid(i, a, b);
	else if (!strcmp(word, "mig")) return add_mig(g, a, *b ? atoi(b) : 1);
	else if (!strcmp(word, "process")) return add_process(&g->whole, w + 1);
	else if (!strcmp(word, "instance") && !strcmp(b, "process"))
		return atoi(a) >= 0 && atoi(a) < g->migs && add_process(&g->mig[atoi(a)], w + 3);
	else if (!strcmp(word, "instance")) return atoi(a) >= 0 && atoi(a) < g->migs && set_value(&g->mig[atoi(a)], b, c);
	else if (!strcmp(word, "fail")) {
		if (g->fails == MAX_FAILS) return false;
		struct fail *f = &g->fail[g->fails++];
		snprintf(f->function, sizeof f->function, "%s", a);
		f->code = code_of(b);
	} else if (!strcmp(word, "unsupported")) {
		if (!strcmp(a, "gpm")) return g->gpm = false, true;
		if ((k = find_key(a)) < 0) return false;
		g->whole.have[k] = false;
	} else return set_value(&g->whole, word, a);
	return true;
}

static bool line(char *text) {
	char w[9][NAME] = {{0}};
	int n = sscanf(text, "%63s %63s %63s %63s %63s %63s %63s %63s %63s", w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8]);
	if (n <= 0 || w[0][0] == '#') return true;
	char *rest = text + strspn(text, " \t") + strlen(w[0]);
	rest += strspn(rest, " \t");
	if (!strcmp(w[0], "gpus")) return (S.gpus = atoi(w[1])) >= 0 && S.gpus <= MAX_GPUS;
	if (!strcmp(w[0], "seed")) return S.seed = (unsigned)strtoul(w[1], NULL, 0), true;
	if (!strcmp(w[0], "model")) return snprintf(S.model, sizeof S.model, "%s", rest), true;
	if (!strcmp(w[0], "driver-version")) return snprintf(S.driver_version, sizeof S.driver_version, "%s", w[1]), true;
	if (!strcmp(w[0], "delay-us")) return S.delay_us = atoi(w[1]), true;
	if (!strcmp(w[0], "log")) return snprintf(S.log, sizeof S.log, "%s", rest), true;
	if (!strcmp(w[0], "events-fail")) return S.events_fail = true;
	if (!strcmp(w[0], "lazy-events")) return S.lazy_events = true;
	if (!strcmp(w[0], "driver")) {
		if (!strcmp(w[1], "not-loaded")) return S.driver = false, true;
		return !strcmp(w[1], "loaded");
	}
	if (strcmp(w[0], "gpu") || n < 3) return false;
	char *const words[] = {w[2], w[3], w[4], w[5], w[6], w[7], w[8]};
	if (strcmp(w[1], "*")) {
		int i = atoi(w[1]);
		return i >= 0 && i < MAX_GPUS && gpu_line(i, words);
	}
	bool ok = true;
	for (int i = 0; i < S.gpus; i++) ok = gpu_line(i, words) && ok;
	return ok;
}

static void load(const char *path) {
	FILE *f = fopen(path, "r");
	defaults();
	if (!f) return;
	char text[512];
	for (int n = 1; fgets(text, sizeof text, f); n++) {
		text[strcspn(text, "\r\n")] = 0;
		if (!line(text)) fprintf(stderr, "fake NVML: %s:%d: cannot understand %s\n", path, n, text);
	}
	fclose(f);
	// A file that was begun anew begins its xid lines anew.
	for (int i = 0; i < MAX_GPUS; i++)
		if (S.gpu[i].xids < raised[i]) raised[i] = S.gpu[i].xids;
}

// refresh reads the file if it is another than before.
static void refresh(void) {
	const char *path = getenv("GPUPILOT_FAKE_NVML");
	if (!path) path = "";
	struct stat st = {0};
	(void)stat(path, &st);
	if (loaded && st.st_ino == seen.st_ino && st.st_size == seen.st_size &&
	    st.st_mtim.tv_sec == seen.st_mtim.tv_sec && st.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) return;
	loaded = true;
	seen = st;
	load(path);
	if (!S.driver) S.initialised = false;
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

void unlock(void) { pthread_mutex_unlock(&mutex); }
