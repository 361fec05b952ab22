// SPDX-License-Identifier: Apache-2.0

// Groups, field groups, watches, and the reads. A watched field is brought up
// to date by every read.
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_GROUPS = 1024, MAX_MEMBERS = 256 };

static struct {
	bool used;
	unsigned health; // the systems that are watched
	char name[DCGM_MAX_STR_LENGTH];
	dcgmGroupEntityPair_t member[MAX_MEMBERS];
	int members;
} group[MAX_GROUPS];

static struct {
	bool used;
	unsigned short field[MAX_FIELDS];
	int fields;
} set[MAX_GROUPS];

static int watches[PLACES][MAX_MIG + 1][MAX_FIELDS]; // of a part: by its kind

void forget_watches(void) { memset(watches, 0, sizeof watches); }

void drop_watches(void) {
	forget_watches();
	for (int i = 0; i < MAX_GROUPS; i++) group[i].used = set[i].used = false;
}

bool watched(struct where w, unsigned short field) {
	int i = field_index(field);
	return i >= 0 && watches[w.gpu][w.mig + 1][i] > 0;
}

// --- groups; a handle is the index + 16 ---

dcgmReturn_t dcgmGroupCreate(dcgmHandle_t h, dcgmGroupType_t type, const char *name, dcgmGpuGrp_t *out) {
	BEGIN(h, "GroupCreate", -1);
	for (int i = 0; i < MAX_GROUPS; i++) {
		if (group[i].used) continue;
		group[i].used = true;
		group[i].health = 0;
		group[i].members = 0;
		snprintf(group[i].name, sizeof group[i].name, "%s", name);
		for (int g = 0; type == DCGM_GROUP_DEFAULT && g < S.gpus; g++)
			group[i].member[group[i].members++] = (dcgmGroupEntityPair_t){DCGM_FE_GPU, (unsigned)g};
		*out = (dcgmGpuGrp_t)(i + 16);
		return end(DCGM_ST_OK);
	}
	return end(DCGM_ST_MAX_LIMIT);
}

static int group_at(dcgmGpuGrp_t g) {
	int i = (int)g - 16;
	return i >= 0 && i < MAX_GROUPS && group[i].used ? i : -1;
}

static int set_at(dcgmFieldGrp_t f) {
	int i = (int)f - 16;
	return i >= 0 && i < MAX_GROUPS && set[i].used ? i : -1;
}

dcgmReturn_t dcgmGroupDestroy(dcgmHandle_t h, dcgmGpuGrp_t g) {
	BEGIN(h, "GroupDestroy", -1);
	int i = group_at(g);
	if (i < 0) return end(DCGM_ST_NOT_CONFIGURED);
	group[i].used = false;
	return end(DCGM_ST_OK);
}

dcgmReturn_t dcgmGroupAddEntity(dcgmHandle_t h, dcgmGpuGrp_t g, dcgm_field_entity_group_t kind, dcgm_field_eid_t id) {
	BEGIN(h, "GroupAddEntity", -1);
	int i = group_at(g);
	if (i < 0 || group[i].members == MAX_MEMBERS) return end(DCGM_ST_NOT_CONFIGURED);
	group[i].member[group[i].members++] = (dcgmGroupEntityPair_t){kind, id};
	return end(DCGM_ST_OK);
}

dcgmReturn_t dcgmGroupAddDevice(dcgmHandle_t h, dcgmGpuGrp_t g, unsigned int gpu) { return dcgmGroupAddEntity(h, g, DCGM_FE_GPU, gpu); }

dcgmReturn_t dcgmGroupGetInfo(dcgmHandle_t h, dcgmGpuGrp_t g, dcgmGroupInfo_t *out) {
	BEGIN(h, "GroupGetInfo", -1);
	int i = group_at(g);
	if (i < 0) return end(DCGM_ST_NOT_CONFIGURED);
	out->count = (unsigned)group[i].members;
	snprintf(out->groupName, sizeof out->groupName, "%s", group[i].name);
	memcpy(out->entityList, group[i].member, sizeof group[i].member[0] * (size_t)group[i].members);
	return end(DCGM_ST_OK);
}

dcgmReturn_t dcgmFieldGroupCreate(dcgmHandle_t h, int n, const unsigned short *fields, const char *name, dcgmFieldGrp_t *out) {
	(void)name;
	BEGIN(h, "FieldGroupCreate", -1);
	if (n <= 0 || n > MAX_FIELDS) return end(DCGM_ST_BADPARAM);
	for (int f = 0; f < n; f++)
		if (field_index(fields[f]) < 0) return end(DCGM_ST_UNKNOWN_FIELD);
	for (int i = 0; i < MAX_GROUPS; i++) {
		if (set[i].used) continue;
		set[i].used = true;
		set[i].fields = n;
		memcpy(set[i].field, fields, sizeof *fields * (size_t)n);
		*out = (dcgmFieldGrp_t)(i + 16);
		return end(DCGM_ST_OK);
	}
	return end(DCGM_ST_MAX_LIMIT);
}

dcgmReturn_t dcgmFieldGroupDestroy(dcgmHandle_t h, dcgmFieldGrp_t f) {
	BEGIN(h, "FieldGroupDestroy", -1);
	int i = set_at(f);
	if (i < 0) return end(DCGM_ST_NOT_CONFIGURED);
	set[i].used = false;
	return end(DCGM_ST_OK);
}

// --- watches ---

// every calls do_ for each entity and field of a watch.
static dcgmReturn_t every(int g, int f, dcgmReturn_t (*do_)(struct where, unsigned short)) {
	for (int m = 0; m < group[g].members; m++) {
		struct where w;
		if (!find(group[g].member[m].entityGroupId, group[g].member[m].entityId, &w)) return DCGM_ST_INSTANCE_NOT_FOUND;
		for (int i = 0; i < set[f].fields; i++) {
			dcgmReturn_t r = do_(w, set[f].field[i]);
			if (r != DCGM_ST_OK) return r;
		}
	}
	return DCGM_ST_OK;
}

static dcgmReturn_t can_watch(struct where w, unsigned short field) { return profiling_field(field) && !IS_PART(w) ? profiling_has(w, field) : DCGM_ST_OK; }

static long long interval_us; // of the watch that is being set

static dcgmReturn_t watch(struct where w, unsigned short field) {
	watches[w.gpu][w.mig + 1][field_index(field)]++;
	if (!IS_PART(w) && mean_key(field) >= 0) mean_watch(w, (enum key)mean_key(field), interval_us);
	return DCGM_ST_OK;
}

static dcgmReturn_t unwatch(struct where w, unsigned short field) {
	int *n = &watches[w.gpu][w.mig + 1][field_index(field)];
	if (*n > 0) --*n;
	return DCGM_ST_OK;
}

dcgmReturn_t dcgmWatchFields(dcgmHandle_t h, dcgmGpuGrp_t g, dcgmFieldGrp_t f, long long every_us, double age, int samples) {
	BEGIN(h, "WatchFields", -1);
	int gi = group_at(g), fi = set_at(f);
	if (gi < 0 || fi < 0) return end(DCGM_ST_NOT_CONFIGURED);
	note("- watch fields=%d first=%d every_us=%lld age_s=%.0f samples=%d", set[fi].fields, set[fi].field[0], every_us, age, samples);
	dcgmReturn_t r = every(gi, fi, can_watch);
	interval_us = every_us;
	return end(r != DCGM_ST_OK ? r : every(gi, fi, watch));
}

dcgmReturn_t dcgmUnwatchFields(dcgmHandle_t h, dcgmGpuGrp_t g, dcgmFieldGrp_t f) {
	BEGIN(h, "UnwatchFields", -1);
	int gi = group_at(g), fi = set_at(f);
	if (gi < 0 || fi < 0) return end(DCGM_ST_NOT_CONFIGURED);
	return end(every(gi, fi, unwatch));
}

dcgmReturn_t dcgmUpdateAllFields(dcgmHandle_t h, int wait) {
	(void)wait;
	BEGIN(h, "UpdateAllFields", -1);
	note("- UpdateAllFields");
	return end(DCGM_ST_OK);
}

// --- reads ---

static dcgmReturn_t gpu_of(dcgm_field_entity_group_t kind, unsigned id, struct where *w) {
	lock();
	bool found = find(kind, id, w);
	return end(found ? DCGM_ST_OK : kind == DCGM_FE_GPU ? DCGM_ST_BADPARAM : DCGM_ST_INSTANCE_NOT_FOUND);
}

dcgmReturn_t dcgmEntityGetLatestValues(dcgmHandle_t h, dcgm_field_entity_group_t kind, int id, unsigned short fields[], unsigned int n, dcgmFieldValue_v1 out[]) {
	struct where w;
	dcgmReturn_t r = gpu_of(kind, (unsigned)id, &w);
	if (r != DCGM_ST_OK) return r;
	BEGIN(h, "EntityGetLatestValues", IS_PART(w) ? -1 : w.gpu);
	if (!find(kind, (unsigned)id, &w)) return end(DCGM_ST_INSTANCE_NOT_FOUND);
	for (unsigned i = 0; i < n; i++) value(w, fields[i], false, &out[i]);
	return end(DCGM_ST_OK);
}

dcgmReturn_t dcgmGetLatestValuesForFields(dcgmHandle_t h, int gpu, unsigned short fields[], unsigned int n, dcgmFieldValue_v1 out[]) {
	return dcgmEntityGetLatestValues(h, DCGM_FE_GPU, gpu, fields, n, out);
}

static void widen(dcgmGroupEntityPair_t e, const dcgmFieldValue_v1 *v, dcgmFieldValue_v2 *out) {
	*out = (dcgmFieldValue_v2){
		.version = dcgmFieldValue_version2, .entityGroupId = e.entityGroupId, .entityId = e.entityId,
		.fieldId = v->fieldId, .fieldType = v->fieldType, .status = v->status, .ts = v->ts,
	};
	memcpy(&out->value, &v->value, sizeof out->value);
}

dcgmReturn_t dcgmEntitiesGetLatestValues(dcgmHandle_t h, dcgmGroupEntityPair_t entities[], unsigned int count, unsigned short fields[], unsigned int n, unsigned int flags, dcgmFieldValue_v2 out[]) {
	for (unsigned e = 0; e < count; e++) {
		struct where w;
		dcgmReturn_t r = gpu_of(entities[e].entityGroupId, entities[e].entityId, &w);
		if (r != DCGM_ST_OK) return r;
		BEGIN(h, "EntitiesGetLatestValues", IS_PART(w) ? -1 : w.gpu);
		for (unsigned i = 0; i < n; i++) {
			dcgmFieldValue_v1 v;
			value(w, fields[i], flags & DCGM_FV_FLAG_LIVE_DATA, &v);
			widen(entities[e], &v, &out[e * n + i]);
		}
		end(DCGM_ST_OK);
	}
	return DCGM_ST_OK;
}

// since gathers the samples of one field: all XIDs, and the latest of the rest.
static int since(struct where w, unsigned short field, long long from, dcgmFieldValue_v1 *out, int room) {
	int n = 0;
	if (!watched(w, field) || IS_PART(w)) return 0;
	if (field != DCGM_FI_DEV_XID_ERROR) {
		value(w, field, false, out);
		return out->ts >= from;
	}
	for (int i = 0; i < S.xids && n < room; i++) {
		if (S.xid[i].gpu != w.gpu || S.xid[i].at < from) continue;
		value(w, field, false, &out[n]);
		out[n].status = DCGM_ST_OK; // a sample, also of a GPU that was lost since
		out[n].ts = S.xid[i].at;
		out[n++].value.i64 = S.xid[i].code;
	}
	return n;
}

dcgmReturn_t dcgmGetValuesSince_v2(dcgmHandle_t h, dcgmGpuGrp_t g, dcgmFieldGrp_t f, long long from, long long *next, dcgmFieldValueEntityEnumeration_f each, void *user) {
	enum { ROOM = 256 };
	BEGIN(h, "GetValuesSince", -1);
	int gi = group_at(g), fi = set_at(f);
	if (gi < 0 || fi < 0) return end(DCGM_ST_NOT_CONFIGURED);
	dcgmFieldValue_v1 *buffer = malloc(ROOM * sizeof *buffer);
	*next = from;
	for (int m = 0; m < group[gi].members; m++) {
		dcgmGroupEntityPair_t e = group[gi].member[m];
		struct where w;
		int n = 0;
		if (!find(e.entityGroupId, e.entityId, &w)) continue;
		for (int i = 0; i < set[fi].fields; i++) n += since(w, set[fi].field[i], from, buffer + n, ROOM - n);
		for (int i = 0; i < n; i++)
			if (buffer[i].ts >= *next) *next = buffer[i].ts + 1;
		unlock(); // the callback may call the library
		int stop = n > 0 && each(e.entityGroupId, e.entityId, buffer, n, user);
		lock();
		if (stop) break;
	}
	free(buffer);
	return end(DCGM_ST_OK);
}

// --- health ---

bool health_line(int gpu, const char *system, const char *result, const char *code) {
	static const char *const names[] = {"PCIE", "NVLINK", "PMU", "MCU", "MEM", "SM", "INFOROM", "THERMAL", "POWER", "DRIVER"};
	struct gpu *g = &S.gpu[gpu];
	if (g->ills == MAX_FAILS) return false;
	dcgmIncidentInfo_t *in = &g->ill[g->ills];
	*in = (dcgmIncidentInfo_t){.health = (dcgmHealthWatchResults_t)atoi(result), .error = {"made up by the fake", (unsigned)atoi(code)}, .entityInfo = {DCGM_FE_GPU, (unsigned)gpu}};
	if (!strcmp(system, "ALL")) in->system = DCGM_HEALTH_WATCH_ALL;
	for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
		if (!strcmp(system, names[i])) in->system = (dcgmHealthSystems_t)(1u << i);
	return in->system && ++g->ills;
}

dcgmReturn_t dcgmHealthSet(dcgmHandle_t h, dcgmGpuGrp_t g, dcgmHealthSystems_t systems) {
	BEGIN(h, "HealthSet", -1);
	int gi = group_at(g);
	if (gi < 0) return end(DCGM_ST_NOT_CONFIGURED);
	note("- HealthSet %x", (unsigned)systems);
	group[gi].health = (unsigned)systems;
	return end(DCGM_ST_OK);
}

// Incidents of the GPU as a whole are found whatever is watched.
dcgmReturn_t dcgmHealthCheck(dcgmHandle_t h, dcgmGpuGrp_t g, dcgmHealthResponse_t *out) {
	BEGIN(h, "HealthCheck", -1);
	int gi = group_at(g);
	if (gi < 0) return end(DCGM_ST_NOT_CONFIGURED);
	if (out->version != dcgmHealthResponse_version5) return end(DCGM_ST_VER_MISMATCH);
	note("- HealthCheck");
	out->overallHealth = DCGM_HEALTH_RESULT_PASS;
	out->incidentCount = 0;
	for (int m = 0; m < group[gi].members; m++) {
		struct where w;
		dcgmGroupEntityPair_t e = group[gi].member[m];
		if (e.entityGroupId != DCGM_FE_GPU || !find(e.entityGroupId, e.entityId, &w)) continue;
		for (int i = 0; group[gi].health && i < S.gpu[w.gpu].ills; i++) {
			const dcgmIncidentInfo_t *in = &S.gpu[w.gpu].ill[i];
			if (!(group[gi].health & (unsigned)in->system)) continue;
			out->incidents[out->incidentCount++] = *in;
			if (in->health > out->overallHealth) out->overallHealth = in->health;
		}
	}
	return end(DCGM_ST_OK);
}
