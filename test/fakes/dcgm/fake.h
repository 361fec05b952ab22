// SPDX-License-Identifier: Apache-2.0

// What the fake's parts share: state.c knows what the GPUs do; engine.c lists
// them, fields.c gives their values, watch.c keeps groups and watches.
#ifndef GPUPILOT_FAKE_DCGM_H
#define GPUPILOT_FAKE_DCGM_H

#include <stdbool.h>
#include <stdint.h>
#include "dcgm_agent.h"
#include "dcgm_fields.h"
#include "dcgm_structs.h"
#include "../shared.h"

enum { MAX_GPUS = 32, MAX_MIG = 8, MAX_FAILS = 16, MAX_XIDS = 1024, MAX_PART_VALUES = 256 };

// KEYS lists every value that can be set.
#define KEYS(X) SHARED_KEYS(X)

#define AS_ENUM(name, value, supported) K_##name,
enum key { KEYS(AS_ENUM) NKEYS };

// device is a whole GPU or a GPU instance.
struct device {
	long double val[NKEYS];
	bool have[NKEYS];
	char profile[32]; // of an instance
	int slices, gi;
};

struct gpu {
	struct device whole, mig[MAX_MIG];
	int migs;
	char model[NAME]; // empty: the node's
	DcgmEntityStatus_t status;
	bool gpm; // it gives profiling fields
	int64_t stale; // when its values were last updated, in Unix microseconds; 0: now
	double hang_until, energy;
	dcgmIncidentInfo_t ill[MAX_FAILS]; // what health checks find
	int ills;
	unsigned short lack[MAX_FAILS]; // fields that it does not support
	int lacks;
	struct fail fail[MAX_FAILS];
	int fails, xids; // xids: lines seen in the file being read
};

struct xid {
	int gpu;
	long long code;
	int64_t at; // Unix microseconds
};

// part_value is a field of a switch, link, CPU or core.
struct part_value {
	dcgm_field_entity_group_t kind;
	unsigned id;
	unsigned short field;
	double x;
};

struct state {
	int gpus, switches, cpus, cores, links; // cores: of each CPU; links: that are up, of each GPU and switch
	int topology; // the highest version that is answered, plus 1; 0: all
	int totals; // the GPUs have profiling counters
	struct part_value part[MAX_PART_VALUES];
	int part_values;
	dcgmNvLinkGpuP2PStatus_t p2p[MAX_GPUS][MAX_GPUS];
	unsigned int seed;
	bool driver, engine;
	int restarts, forgets; // of the host engine, as the file counts them
	char version[NAME], library[NAME]; // of the host engine and the library; empty: none
	struct fail fail[MAX_FAILS]; // functions that fail, whatever GPU they are about
	int fails;
	char model[NAME], driver_version[NAME], log[4 * NAME];
	int delay_us;
	dcgmReturn_t profiling; // what profiling calls answer
	struct gpu gpu[MAX_GPUS];
	struct xid xid[MAX_XIDS];
	int xids;
	unsigned epoch; // of the host engine: handles of another are not valid
};

extern struct state S;

// where is an entity of the fake: a GPU (mig -1), one of its instances, or a
// part, whose gpu is MAX_GPUS and its kind.
struct where {
	int gpu, mig;
	unsigned id; // of a part
};

#define IS_PART(w) ((w).gpu >= MAX_GPUS)
enum { PLACES = MAX_GPUS + DCGM_FE_COUNT };

int64_t clock_us(void);     // Unix microseconds
void drop_watches(void);   // and all groups; the state is locked
void forget_watches(void); // but no group

// begin checks that function fn can be answered over handle h, for GPU gpu
// where that is not -1. On success the state is locked until end.
dcgmReturn_t begin(dcgmHandle_t h, const char *fn, int gpu);
dcgmReturn_t end(dcgmReturn_t r);
dcgmReturn_t fails(const char *fn); // how a function fails whatever it is about; the state is locked

#define BEGIN(h, fn, gpu) \
	do { \
		dcgmReturn_t r_ = begin(h, fn, gpu); \
		if (r_ != DCGM_ST_OK) return r_; \
	} while (0)

bool find(dcgm_field_entity_group_t group, unsigned id, struct where *w);
const char *model_of(int gpu);

// value gives a field of an entity; live: whether it is watched or not.
void value(struct where w, unsigned short field, bool live, dcgmFieldValue_v1 *v);
bool profiling_field(unsigned short field);
dcgmReturn_t profiling_has(struct where w, unsigned short field);
bool watched(struct where w, unsigned short field);
bool health_line(int gpu, const char *system, const char *result, const char *code);
int field_index(unsigned short field); // -1: unknown
int mean_key(unsigned short field); // the key of a profiling field that has means; -1: none
enum { MAX_FIELDS = 256 };

// means.c
bool shows_means(void);
void mean_watch(struct where w, enum key k, long long every_us);
void mean_pass(double t, double dt); // the values held for dt
bool mean_of(struct where w, enum key k, long double *x, int64_t *at); // false: the first interval is under way
void mean_start(void);

// parts.c
bool find_part(dcgm_field_entity_group_t kind, unsigned id, struct where *w);
int part_ids(dcgm_field_entity_group_t kind, dcgm_field_eid_t *ids, int room);
bool part_line(char w[][NAME]);
bool part_number(struct where w, unsigned short field, int level, double *x);

#endif
