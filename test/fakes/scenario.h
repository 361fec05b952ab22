// SPDX-License-Identifier: Apache-2.0

// The state that both fakes share, and the parser of the scenario file. A fake's
// state.c includes this once, after its fake.h and its codes. It defines the
// functions that are only declared here.
#ifndef GPUPILOT_FAKE_SCENARIO_H
#define GPUPILOT_FAKE_SCENARIO_H

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 9 }; // of a line, at the most

// What one of the functions below returns for a line.
enum taken { NOT_MINE, TAKEN, WRONG };

static enum taken taken(bool ok) { return ok ? TAKEN : WRONG; }

// Each fake defines these.
static void own_defaults(void);
static enum taken own_line(char w[WORDS][NAME]);
static enum taken own_gpu_line(int i, char w[WORDS][NAME], const char *rest); // w[0] is the word after the GPU, rest what follows it
static void own_loaded(void);                                                 // the file was read

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct stat seen;
static bool loaded;
static double last;          // when the sums over time were last updated
static int raised[MAX_GPUS]; // xid lines that became XID errors, by GPU

#define AS_NAME(name, value, supported) #name,
#define AS_VALUE(name, value, supported) value,
#define AS_HAVE(name, value, supported) supported,
static const char *const key_name[NKEYS] = {KEYS(AS_NAME)};
static const long double key_value[NKEYS] = {KEYS(AS_VALUE)};
static const bool key_have[NKEYS] = {KEYS(AS_HAVE)};

double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

// code_of returns the code of a name; a number is its own code.
static int code_of(const char *name) {
	for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
		if (!strcmp(codes[i].name, name)) return codes[i].code;
	return atoi(name);
}

static int find_key(const char *name) {
	for (int k = 0; k < NKEYS; k++)
		if (!strcmp(key_name[k], name)) return k;
	return -1;
}

static void reset_device(struct device *d) {
	memcpy(d->val, key_value, sizeof d->val);
	memcpy(d->have, key_have, sizeof d->have);
}

// defaults: eight idle H200s.
static void defaults(void) {
	S.gpus = 8;
	S.seed = 0;
	S.driver = true;
	S.delay_us = 0;
	S.log[0] = 0;
	strcpy(S.model, "NVIDIA H200");
	strcpy(S.driver_version, "590.48.01");
	for (int i = 0; i < MAX_GPUS; i++) {
		struct gpu *g = &S.gpu[i];
		reset_device(&g->whole);
		g->migs = g->fails = g->xids = 0;
		g->gpm = true;
		g->hang_until = 0;
	}
	own_defaults();
}

// is_new_xid reports whether an xid line of a GPU was not in the file before.
static bool is_new_xid(int gpu) {
	if (S.gpu[gpu].xids++ < raised[gpu]) return false;
	raised[gpu]++;
	return true;
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
		// An instance's memory is some eighths of the GPU's, less its share of
		// what is reserved: 16384 MiB for 1g.18gb of an H200.
		double eighths = round(gb * 1024 * 8 / g->whole.val[K_fb_total]);
		d->val[K_fb_total] = round(g->whole.val[K_fb_total] / 8 * eighths * 0.912);
		d->val[K_fb_reserved] = 32;
	}
	return true;
}

static bool set_value(struct device *d, const char *key, const char *value) {
	int k = find_key(key);
	if (k < 0) return false;
	d->val[k] = strtold(value, NULL);
	d->have[k] = true;
	return true;
}

// instance is the K-th instance of a GPU, as a line has it; NULL: there is none.
static struct device *instance(struct gpu *g, const char *k) {
	int i = atoi(k);
	return i >= 0 && i < g->migs ? &g->mig[i] : NULL;
}

static bool add_fail(struct gpu *g, const char *function, const char *code) {
	if (g->fails == MAX_FAILS) return false;
	struct fail *f = &g->fail[g->fails++];
	snprintf(f->function, sizeof f->function, "%s", function);
	f->code = code_of(code);
	return true;
}

static bool unsupport(struct gpu *g, const char *key) {
	if (!strcmp(key, "gpm")) return g->gpm = false, true;
	int k = find_key(key);
	if (k >= 0) g->whole.have[k] = false;
	return k >= 0;
}

// gpu_line takes "WORD A B C ..." of GPU i: w[0] is the word, rest what follows it.
static bool gpu_line(int i, char w[WORDS][NAME], const char *rest) {
	struct gpu *g = &S.gpu[i];
	enum taken own = own_gpu_line(i, w, rest);
	if (own != NOT_MINE) return own == TAKEN;
	if (!strcmp(w[0], "hang")) return g->hang_until = now() + atof(w[1]) / 1000, true;
	if (!strcmp(w[0], "mig")) return add_mig(g, w[1], *w[2] ? atoi(w[2]) : 1);
	if (!strcmp(w[0], "instance")) return instance(g, w[1]) && set_value(instance(g, w[1]), w[2], w[3]);
	if (!strcmp(w[0], "fail")) return add_fail(g, w[1], w[2]);
	if (!strcmp(w[0], "unsupported")) return unsupport(g, w[1]);
	return set_value(&g->whole, w[0], w[1]);
}

// after is what follows some words of a text.
static const char *after(const char *text, int words) {
	for (; words > 0; words--) {
		text += strspn(text, " \t");
		text += strcspn(text, " \t");
	}
	return text + strspn(text, " \t");
}

static bool line(const char *text) {
	char w[WORDS + 2][NAME] = {{0}};
	int n = 0;
	for (const char *at = text; n < WORDS && sscanf(at, "%63s", w[n]) == 1; n++) at = after(at, 1);
	if (n == 0 || w[0][0] == '#') return true;
	if (!strcmp(w[0], "gpus")) return (S.gpus = atoi(w[1])) >= 0 && S.gpus <= MAX_GPUS;
	if (!strcmp(w[0], "seed")) return S.seed = (unsigned)strtoul(w[1], NULL, 0), true;
	if (!strcmp(w[0], "model")) return snprintf(S.model, sizeof S.model, "%s", after(text, 1)), true;
	if (!strcmp(w[0], "driver-version")) return snprintf(S.driver_version, sizeof S.driver_version, "%s", w[1]), true;
	if (!strcmp(w[0], "delay-us")) return S.delay_us = atoi(w[1]), true;
	if (!strcmp(w[0], "log")) return snprintf(S.log, sizeof S.log, "%s", after(text, 1)), true;
	if (!strcmp(w[0], "driver")) return S.driver = strcmp(w[1], "not-loaded"), !S.driver || !strcmp(w[1], "loaded");
	enum taken own = own_line(w);
	if (own != NOT_MINE) return own == TAKEN;
	if (strcmp(w[0], "gpu") || n < 3) return false;
	bool all = !strcmp(w[1], "*"), ok = true;
	int from = all ? 0 : atoi(w[1]), to = all ? S.gpus : from + 1;
	if (from < 0 || to > MAX_GPUS) return false;
	for (int i = from; i < to; i++) ok = gpu_line(i, w + 2, after(text, 3)) && ok;
	return ok;
}

static void load(const char *path) {
	FILE *f = fopen(path, "r");
	defaults();
	if (!f) return;
	char text[512];
	for (int n = 1; fgets(text, sizeof text, f); n++) {
		text[strcspn(text, "\r\n")] = 0;
		if (!line(text)) fprintf(stderr, "fake " FAKE ": %s:%d: cannot understand %s\n", path, n, text);
	}
	fclose(f);
	// A file with fewer xid lines than before starts a new count.
	for (int i = 0; i < MAX_GPUS; i++)
		if (S.gpu[i].xids < raised[i]) raised[i] = S.gpu[i].xids;
	own_loaded();
}

// refresh reads the file if it has changed.
static void refresh(void) {
	const char *path = getenv("GPUPILOT_FAKE_" FAKE);
	if (!path) path = "";
	struct stat st = {0};
	(void)stat(path, &st);
	if (loaded && st.st_ino == seen.st_ino && st.st_size == seen.st_size &&
	    st.st_mtim.tv_sec == seen.st_mtim.tv_sec && st.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) return;
	loaded = true;
	seen = st;
	load(path);
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

void gpu_uuid(int gpu, char out[NAME]) { snprintf(out, NAME, "GPU-%08x-6670-4000-8000-%012x", S.seed + 0x48323030, gpu); }

static void sleep_unlocked(int us) {
	unlock();
	usleep(us);
	lock();
}

int block(int gpu, const char *fn) {
	struct gpu *g = &S.gpu[gpu];
	if (S.delay_us > 0) sleep_unlocked(S.delay_us);
	while (g->hang_until > now()) sleep_unlocked(2000);
	for (int i = 0; i < g->fails; i++)
		if (!strcmp(g->fail[i].function, fn)) return g->fail[i].code;
	return 0;
}

#endif
