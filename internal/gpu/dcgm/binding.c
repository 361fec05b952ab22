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
	const struct {
		const char *name;
		void *to;
	} may[] = {
		{"dcgmVersionInfo", &lib->version}, {"dcgmHostengineVersionInfo", &lib->engine_version},
		{"DcgmFieldGetById", &lib->field}, {"dcgmConnect_v3", &lib->connect_v3}, {"dcgmGetNvLinkLinkStatus", &lib->links}, {"dcgmGetNvLinkP2PStatus", &lib->p2p}, {"dcgmGetDeviceTopology", &lib->topology},
		{"dcgmHealthSet", &lib->health_set}, {"dcgmHealthCheck", &lib->health_check},
		{"dcgmGetCpuHierarchy", &lib->cpus_v1}, {"dcgmGetCpuHierarchy_v2", &lib->cpus_v2},
	};
	for (size_t i = 0; i < sizeof may / sizeof *may; i++) {
		void *f = dlsym(lib->handle, may[i].name);
		memcpy(may[i].to, &f, sizeof f);
	}
	return NULL;
}

const char *gp_error(const gp_lib *lib, int code) { return lib->error_string(code); }

int gp_version(const gp_lib *lib, struct dcgm_version_v2 *out) {
	*out = (struct dcgm_version_v2){.version = DCGM_VERSION(*out, 2)};
	return lib->version ? lib->version(out) : GP_NO_FUNCTION;
}

int gp_engine_version(const gp_lib *lib, uintptr_t h, struct dcgm_version_v2 *out) {
	*out = (struct dcgm_version_v2){.version = DCGM_VERSION(*out, 2)};
	return lib->engine_version ? lib->engine_version(h, out) : GP_NO_FUNCTION;
}

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
	struct dcgm_connect_v3 p = {.version = DCGM_VERSION(p, 1)};
	if (!lib->connect_v3) return GP_NO_FUNCTION;
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

int gp_field(const gp_lib *lib, uint16_t field, char *type, int *level) {
	const struct dcgm_field_meta *m = lib->field ? lib->field(field) : NULL;
	if (!m) return 0;
	*type = m->type;
	*level = m->level;
	return 1;
}

// take adds the links that are up of what of an array says: ids, each with the
// states of so many links.
static int take(gp_link *out, int n, int room, int kind, const int *of, int ids, int links) {
	enum { UP = 3 };
	for (int i = 0; i < ids; i++, of += 1 + links)
		for (int link = 0; link < links && n < room; link++)
			if (of[1 + link] == UP) out[n++] = (gp_link){kind, (unsigned)of[0], (unsigned)link};
	return n;
}

static int at_most(int n, int most) { return n < 0 ? 0 : n < most ? n : most; }

static int links_of(const gp_lib *lib, uintptr_t h, int version, int gpu_links, gp_link *out, int *count) {
	enum { GPU = 1, SWITCH = 3 };
	int room = *count, ints = DCGM_LINK_INTS(gpu_links);
	*count = 0;
	int *list = calloc((size_t)ints, sizeof *list);
	if (!list) return GP_NO_MEMORY;
	list[0] = (int)((size_t)ints * sizeof *list) | version << 24;
	int r = lib->links(h, list);
	if (!r) {
		const int *switches = list + 2 + DCGM_GPUS * (1 + gpu_links);
		int n = take(out, 0, room, GPU, list + 2, at_most(list[1], DCGM_GPUS), gpu_links);
		*count = take(out, n, room, SWITCH, switches + 1, at_most(*switches, DCGM_SWITCHES), DCGM_SWITCH_LINKS);
	}
	free(list);
	return r;
}

int gp_links(const gp_lib *lib, uintptr_t h, gp_link *out, int *count) {
	int room = *count;
	if (!lib->links) return GP_NO_FUNCTION;
	int r = links_of(lib, h, 5, DCGM_LINKS_V5, out, count);
	if (r != GP_VERSION) return r;
	*count = room; // a DCGM from before GPUs had more than 18 links
	return links_of(lib, h, 4, DCGM_LINKS_V4, out, count);
}

int gp_cpus(const gp_lib *lib, uintptr_t h, gp_cpu *out, int *count) {
	int n = 0, r = GP_NO_FUNCTION, room = *count;
	*count = 0;
	if (lib->cpus_v2) {
		struct dcgm_cpus_v2 list = {.version = DCGM_VERSION(list, 2)};
		r = lib->cpus_v2(h, &list);
		for (; !r && n < (int)list.count && n < DCGM_CPUS && n < room; n++) {
			out[n].id = list.cpu[n].id;
			memcpy(out[n].cores, list.cpu[n].cores.mask, sizeof out[n].cores);
			memcpy(out[n].serial, list.cpu[n].serial, DCGM_TEXT - 1); // out is zeroed
		}
	}
	if ((r == GP_NO_FUNCTION || r == GP_VERSION) && lib->cpus_v1) {
		struct dcgm_cpus_v1 list = {.version = DCGM_VERSION(list, 1)};
		r = lib->cpus_v1(h, &list);
		for (; !r && n < (int)list.count && n < DCGM_CPUS && n < room; n++) {
			out[n].id = list.cpu[n].id;
			memcpy(out[n].cores, list.cpu[n].cores.mask, sizeof out[n].cores);
		}
	}
	*count = n;
	return r;
}

int gp_peers(const gp_lib *lib, uintptr_t h, gp_peer *out, int *count) {
	if (!lib->p2p) return GP_NO_FUNCTION;
	struct dcgm_p2p_v1 list = {.version = DCGM_VERSION(list, 1)};
	int n = 0, r = lib->p2p(h, &list);
	for (unsigned i = 0; !r && i < list.count && i < DCGM_GPUS; i++)
		for (unsigned j = 0; j < list.count && n < *count; j++)
			if (i != j) out[n++] = (gp_peer){list.gpu[i].id, list.gpu[j].id, list.gpu[i].status[j]};
	*count = n;
	return r;
}

#define PLACE(from) \
	do { \
		for (int i = 0; i < DCGM_CPU_WORDS; i++) out->cpus[i] = (from).cpus[i]; \
		for (; out->count < (from).count && out->count < DCGM_GPUS - 1; out->count++) { \
			out->to[out->count].gpu = (from).to[out->count].gpu; \
			out->to[out->count].path = (from).to[out->count].path; \
		} \
	} while (0)

int gp_topology(const gp_lib *lib, uintptr_t h, unsigned gpu, gp_place *out) {
	if (!lib->topology) return GP_NO_FUNCTION;
	struct dcgm_topology_v2 new = {.version = DCGM_VERSION(new, 2)};
	int r = lib->topology(h, gpu, &new);
	if (!r) PLACE(new);
	if (r != GP_VERSION) return r;
	struct dcgm_topology_v1 old = {.version = DCGM_VERSION(old, 1)};
	r = lib->topology(h, gpu, &old);
	if (!r) PLACE(old);
	return r;
}

int gp_health_set(const gp_lib *lib, uintptr_t h, uintptr_t group) {
	enum { ALL = ~0 };
	return lib->health_set && lib->health_check ? lib->health_set(h, group, (unsigned)ALL) : GP_NO_FUNCTION;
}

int gp_health(const gp_lib *lib, uintptr_t h, uintptr_t group, gp_incident *out, int *count) {
	struct dcgm_health_v5 *all = calloc(1, sizeof *all); // 1 MiB, of which DCGM writes what it tells
	int n = 0, room = *count;
	*count = 0;
	if (!all) return GP_NO_MEMORY;
	all->version = DCGM_VERSION(*all, 5);
	int r = lib->health_check(h, group, all);
	if (r == GP_NO_DATA) r = 0; // of some systems: the rest is there
	for (; !r && n < (int)all->count && n < DCGM_ENTITIES && n < room; n++) {
		const struct dcgm_incident *i = &all->list[n];
		out[n] = (gp_incident){i->system, i->code, i->entity.kind, i->entity.id, i->health};
	}
	*count = n;
	free(all);
	return r;
}

int gp_group(const gp_lib *lib, uintptr_t h, const char *name, const struct dcgm_entity *of, int n, uintptr_t *group) {
	enum { EMPTY = 1 };
	int r = lib->group_create(h, EMPTY, name, group);
	if (r) return r;
	for (int i = 0; !r && i < n; i++) r = lib->group_add(h, *group, (int)of[i].kind, of[i].id);
	if (r) lib->group_destroy(h, *group);
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
