// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#include "binding.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

const char *gp_load(const char *path, gp_lib *lib) {
	memset(lib, 0, sizeof *lib);
	lib->handle = dlopen(path, RTLD_LAZY | RTLD_GLOBAL); // as NVIDIA's binding does; never unloaded
	if (!lib->handle) return "";
	const struct {
		const char *name;
		void *to;
	} want[] = {
		{"dcgmInit", &lib->init}, {"dcgmShutdown", &lib->shutdown},
		{"dcgmStartEmbedded", &lib->start_embedded}, {"dcgmStopEmbedded", &lib->stop_embedded},
		{"dcgmConnect_v2", &lib->connect_v2}, {"dcgmDisconnect", &lib->disconnect},
		{"errorString", &lib->error_string}, {"dcgmGetEntityGroupEntities", &lib->entities},
		{"dcgmGetGpuStatus", &lib->gpu_status}, {"dcgmGetGpuInstanceHierarchy", &lib->hierarchy},
		{"dcgmProfGetSupportedMetricGroups", &lib->prof_groups}, {"dcgmGroupCreate", &lib->group_create},
		{"dcgmGroupAddEntity", &lib->group_add}, {"dcgmGroupDestroy", &lib->group_destroy},
		{"dcgmFieldGroupCreate", &lib->fields_create}, {"dcgmFieldGroupDestroy", &lib->fields_destroy},
		{"dcgmWatchFields", &lib->watch}, {"dcgmUnwatchFields", &lib->unwatch},
		{"dcgmUpdateAllFields", &lib->update}, {"dcgmEntityGetLatestValues", &lib->latest},
		{"dcgmEntitiesGetLatestValues", &lib->latest_of}, {"dcgmGetValuesSince_v2", &lib->since},
	};
	for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
		void *f = dlsym(lib->handle, want[i].name);
		if (!f) return want[i].name;
		memcpy(want[i].to, &f, sizeof f);
	}
	void *f = dlsym(lib->handle, "dcgmConnect_v3");
	memcpy(&lib->connect_v3, &f, sizeof f);
	return NULL;
}

const char *gp_error(const gp_lib *lib, int code) { return lib->error_string(code); }

int gp_embedded(const gp_lib *lib, uintptr_t *h) {
	enum { AUTO = 1 }; // DCGM updates by itself
	int r = lib->init();
	return r ? r : lib->start_embedded(AUTO, h);
}

int gp_connect(const gp_lib *lib, const char *address, int is_unix, uintptr_t *h) {
	struct dcgm_connect_v2 p = {.version = DCGM_VERSION(p, 2), .is_unix = (unsigned)is_unix};
	int r = lib->init();
	return r ? r : lib->connect_v2(address, &p, h);
}

int gp_connect_url(const gp_lib *lib, const char *url, uintptr_t *h) {
	enum { FUNCTION_NOT_FOUND = -20 };
	struct dcgm_connect_v3 p = {.version = DCGM_VERSION(p, 1)};
	if (!lib->connect_v3) return FUNCTION_NOT_FOUND;
	int r = lib->init();
	return r ? r : lib->connect_v3(url, &p, h);
}

int gp_end(const gp_lib *lib, uintptr_t h, int embedded) {
	int r = embedded ? lib->stop_embedded(h) : lib->disconnect(h);
	int s = lib->shutdown();
	return r ? r : s;
}

int gp_entities(const gp_lib *lib, uintptr_t h, int kind, unsigned *ids, int *count) { return lib->entities(h, kind, ids, count, 0); }
int gp_status(const gp_lib *lib, uintptr_t h, unsigned gpu, int *status) { return lib->gpu_status(h, gpu, status); }

int gp_instances(const gp_lib *lib, uintptr_t h, gp_instance *out, int *count) {
	struct dcgm_mig_v2 *mig = calloc(1, sizeof *mig);
	if (!mig) return GP_NO_MEMORY;
	mig->version = DCGM_VERSION(*mig, 2);
	int r = lib->hierarchy(h, mig), n = 0;
	for (; !r && n < (int)mig->count && n < DCGM_INSTANCES && n < *count; n++) {
		const struct dcgm_mig_entity *e = &mig->list[n];
		out[n] = (gp_instance){e->entity, e->parent, e->gi, e->ci, e->slices};
	}
	*count = n;
	free(mig);
	return r;
}

int gp_profiling(const gp_lib *lib, uintptr_t h, unsigned gpu, uint16_t *fields, int *count) {
	struct dcgm_prof_v3 p = {.version = DCGM_VERSION(p, 3), .gpu = gpu};
	int r = lib->prof_groups(h, &p), n = 0;
	for (unsigned g = 0; !r && g < p.count && g < DCGM_PROF_GROUPS; g++)
		for (unsigned i = 0; i < p.group[g].count && i < DCGM_PROF_FIELDS && n < *count; i++) fields[n++] = p.group[g].field[i];
	*count = n;
	return r;
}

int gp_group(const gp_lib *lib, uintptr_t h, const char *name, int kind, unsigned id, uintptr_t *group) {
	enum { EMPTY = 1 };
	int r = lib->group_create(h, EMPTY, name, group);
	if (r) return r;
	if ((r = lib->group_add(h, *group, kind, id))) lib->group_destroy(h, *group);
	return r;
}

int gp_watch(const gp_lib *lib, uintptr_t h, uintptr_t group, const char *name, uint16_t *fields, int n, int64_t every_us, double keep_seconds, int keep_samples, uintptr_t *set) {
	int r = lib->fields_create(h, n, fields, name, set);
	if (r) return r;
	if ((r = lib->watch(h, group, *set, every_us, keep_seconds, keep_samples))) lib->fields_destroy(h, *set);
	else lib->update(h, 1); // whether there are values now is seen when they are read
	return r;
}

void gp_unwatch(const gp_lib *lib, uintptr_t h, uintptr_t group, uintptr_t set) {
	lib->unwatch(h, group, set); // fails where the entity is gone: so is its watch
	lib->fields_destroy(h, set);
}

void gp_ungroup(const gp_lib *lib, uintptr_t h, uintptr_t group) { lib->group_destroy(h, group); }

#define SHORT(v) ((gp_value){(v)->field, (v)->type, (v)->status, (v)->ts, (uint64_t)(v)->value.i64})

int gp_latest(const gp_lib *lib, uintptr_t h, int kind, unsigned id, uint16_t *fields, int n, gp_value *out) {
	enum { AT_ONCE = 30 }; // below malloc's 128 KiB, above which memory is mapped and unmapped each time
	struct dcgm_value_v1 *buffer = malloc(AT_ONCE * sizeof *buffer);
	if (!buffer) return GP_NO_MEMORY;
	int r = 0;
	for (int from = 0; !r && from < n; from += AT_ONCE) {
		int m = n - from < AT_ONCE ? n - from : AT_ONCE;
		r = lib->latest(h, kind, (int)id, fields + from, (unsigned)m, buffer);
		for (int i = 0; !r && i < m; i++) out[from + i] = SHORT(&buffer[i]);
	}
	free(buffer);
	return r;
}

int gp_live(const gp_lib *lib, uintptr_t h, int kind, unsigned id, uint16_t *fields, int n, gp_text *out) {
	enum { LIVE = 1 };
	struct dcgm_value_v2 *buffer = malloc((size_t)n * sizeof *buffer);
	if (!buffer) return GP_NO_MEMORY;
	struct dcgm_entity e = {(unsigned)kind, id};
	int r = lib->latest_of(h, &e, 1, fields, (unsigned)n, LIVE, buffer);
	for (int i = 0; !r && i < n; i++) {
		out[i].value = SHORT(&buffer[i]);
		out[i].text[0] = 0;
		if (buffer[i].type == 's') strncat(out[i].text, buffer[i].value.text, DCGM_TEXT - 1);
	}
	free(buffer);
	return r;
}

struct sink {
	gp_value *out;
	int count, room;
};

static int collect(int kind, unsigned id, struct dcgm_value_v1 *values, int n, void *user) {
	struct sink *s = user;
	(void)kind, (void)id;
	for (int i = 0; i < n && s->count < s->room; i++) s->out[s->count++] = SHORT(&values[i]);
	return 0;
}

int gp_since(const gp_lib *lib, uintptr_t h, uintptr_t group, uintptr_t set, int64_t from, gp_value *out, int *count) {
	struct sink s = {out, 0, *count};
	long long next = 0;
	int r = lib->since(h, group, set, from, &next, collect, &s);
	*count = s.count;
	return r;
}
