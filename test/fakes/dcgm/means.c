// SPDX-License-Identifier: Apache-2.0

// With GPUPILOT_FAKE_DCGM_MEANS, profiling fields are as the real host engine has them: means over the interval of their
// watch, and brought up to date once per interval. A thread stands for the engine's own.
#define _GNU_SOURCE
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <pthread.h>

enum { LOOK_US = 5000 }; // between two looks at the file

static struct mean {
	double every;      // seconds; 0: not watched
	double sum, since; // of the interval under way
	double shown;      // the mean of the interval before
	int64_t at;        // when that ended, Unix microseconds; 0: there is none
} means[MAX_GPUS][MAX_MIG + 1][NKEYS];

bool shows_means(void) { return getenv("GPUPILOT_FAKE_DCGM_MEANS") != NULL; }

void mean_watch(struct where w, enum key k, long long every_us) {
	means[w.gpu][w.mig + 1][k] = (struct mean){.every = (double)every_us / 1e6, .since = now()};
}

static void pass_device(const struct device *d, struct mean *of, double t, double dt) {
	for (int k = 0; k < NKEYS; k++) {
		struct mean *m = &of[k];
		if (m->every <= 0) continue;
		m->sum += (double)d->val[k] * dt;
		if (t - m->since < m->every) continue;
		m->shown = m->sum / (t - m->since);
		m->at = clock_us();
		m->sum = 0;
		m->since = t;
	}
}

void mean_pass(double t, double dt) {
	for (int i = 0; shows_means() && i < S.gpus; i++) {
		pass_device(&S.gpu[i].whole, means[i][0], t, dt);
		for (int m = 0; m < S.gpu[i].migs; m++) pass_device(&S.gpu[i].mig[m], means[i][m + 1], t, dt);
	}
}

bool mean_of(struct where w, enum key k, long double *x, int64_t *at) {
	const struct mean *m = &means[w.gpu][w.mig + 1][k];
	*x = m->shown;
	*at = m->at;
	return m->at != 0;
}

static void *look(void *unused) {
	for (;; usleep(LOOK_US)) {
		lock();
		unlock();
	}
	return unused;
}

void mean_start(void) {
	static bool started;
	pthread_t thread;
	if (started || !shows_means()) return;
	started = pthread_create(&thread, NULL, look, NULL) == 0 && pthread_detach(thread) == 0;
}
