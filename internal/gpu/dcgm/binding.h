// SPDX-License-Identifier: Apache-2.0

// The part of libdcgm.so.4's binary interface that this package uses, in our
// own words; TestLayout holds it to NVIDIA's headers. The types whose names
// begin with gp_ are what Go sees of DCGM's 4 KiB values.
#ifndef GPUPILOT_DCGM_BINDING_H
#define GPUPILOT_DCGM_BINDING_H

#include <stdint.h>

// --- DCGM's types ---

enum { DCGM_TEXT = 256, DCGM_BLOB = 4096, DCGM_GPUS = 32, DCGM_ENTITIES = 1024, DCGM_INSTANCES = 32 * 14, DCGM_PROF_GROUPS = 10, DCGM_PROF_FIELDS = 64 };

// A structure's version is its size and a number.
#define DCGM_VERSION(type, n) ((unsigned)sizeof(type) | (unsigned)(n) << 24)

union dcgm_value {
	int64_t i64;
	double dbl;
	char text[DCGM_TEXT];
	char blob[DCGM_BLOB];
};

struct dcgm_value_v1 {
	unsigned version;
	unsigned short field, type;
	int status;
	int64_t ts;
	union dcgm_value value;
};

struct dcgm_value_v2 {
	unsigned version, kind, entity;
	unsigned short field, type;
	int status;
	unsigned unused;
	int64_t ts;
	union dcgm_value value;
};

struct dcgm_entity {
	unsigned kind, id;
};

struct dcgm_connect_v2 {
	unsigned version, persist, timeout_ms, is_unix;
};

struct dcgm_connect_v3 {
	unsigned version, persist, timeout_ms;
};

struct dcgm_mig_v2 {
	unsigned version, count;
	struct dcgm_mig_entity {
		struct dcgm_entity entity, parent;
		char uuid[128];
		unsigned gpu_index, gi, ci, profile, slices;
	} list[DCGM_INSTANCES];
};

struct dcgm_prof_v3 {
	unsigned version, unused, gpu, count;
	struct dcgm_prof_group {
		unsigned short major, minor;
		unsigned count;
		unsigned short field[DCGM_PROF_FIELDS];
	} group[DCGM_PROF_GROUPS];
};

enum { DCGM_CPUS = 8, DCGM_CORES = 1024 };

// The state of all NVLinks is an array of ints, whose version says how many
// links a GPU has at the most: version, number of GPUs, for each GPU its id and
// its links' states, number of switches, for each switch the same.
enum { DCGM_SWITCHES = 12, DCGM_SWITCH_LINKS = 256, DCGM_LINKS_V4 = 18, DCGM_LINKS_V5 = 36 };
#define DCGM_LINK_INTS(gpu_links) (2 + DCGM_GPUS * (1 + (gpu_links)) + 1 + DCGM_SWITCHES * (1 + DCGM_SWITCH_LINKS))

struct dcgm_cores {
	unsigned version;
	uint64_t mask[DCGM_CORES / 64];
};

struct dcgm_cpus_v1 {
	unsigned version, count;
	struct {
		unsigned id;
		struct dcgm_cores cores;
	} cpu[DCGM_CPUS];
};

struct dcgm_cpus_v2 {
	unsigned version, count;
	struct {
		unsigned id;
		struct dcgm_cores cores;
		char serial[DCGM_TEXT];
	} cpu[DCGM_CPUS];
};

struct dcgm_p2p_v1 {
	unsigned version, count;
	struct {
		unsigned id;
		int status[DCGM_GPUS];
	} gpu[DCGM_GPUS];
};

enum { DCGM_CPU_WORDS = 8 };

struct dcgm_topology_v1 {
	unsigned version;
	unsigned long cpus[DCGM_CPU_WORDS];
	unsigned count;
	struct {
		unsigned gpu, path, links;
	} to[DCGM_GPUS - 1];
};

struct dcgm_topology_v2 {
	unsigned version;
	unsigned long cpus[DCGM_CPU_WORDS];
	unsigned count;
	struct {
		unsigned gpu;
		uint64_t path, links;
	} to[DCGM_GPUS - 1];
};

struct dcgm_health_v5 {
	unsigned version;
	int overall;
	unsigned count;
	struct dcgm_incident {
		unsigned system;
		int health;
		char message[1024];
		unsigned code;
		struct dcgm_entity entity;
	} list[DCGM_ENTITIES];
};

struct dcgm_version_v2 {
	unsigned version;
	char text[2 * DCGM_TEXT]; // key:value, separated by semicolons
};

struct dcgm_field_meta {
	unsigned short id;
	char type;
	unsigned char size;
	char tag[48];
	int scope, nvml, level;
	const void *format;
};

// --- what Go sees ---

typedef struct {
	uint16_t field, type;
	int32_t status;
	int64_t ts;    // Unix microseconds, of the host engine's clock
	uint64_t word; // the value's first eight bytes
} gp_value;

typedef struct {
	gp_value value;
	char text[DCGM_TEXT];
} gp_text;

typedef struct {
	struct dcgm_entity entity, parent;
	unsigned gi, ci, slices;
} gp_instance;

typedef struct {
	int kind; // of what it belongs to
	unsigned parent, index;
} gp_link; // a NVLink that is up

typedef struct {
	unsigned id;
	uint64_t cores[DCGM_CORES / 64];
	char serial[DCGM_TEXT];
} gp_cpu;

typedef struct {
	unsigned gpu, peer;
	int status;
} gp_peer;

typedef struct {
	uint64_t cpus[DCGM_CPU_WORDS];
	unsigned count;
	struct {
		unsigned gpu;
		uint64_t path; // the PCIe level, and the number of NVLinks as a bit
	} to[DCGM_GPUS - 1];
} gp_place; // of a GPU

typedef struct {
	unsigned system, code, kind, id;
	int health;
} gp_incident;

// gp_lib is a loaded library: a pointer for each function.
typedef struct {
	void *handle;
	int (*init)(void);
	int (*shutdown)(void);
	int (*start_embedded)(int, uintptr_t *);
	int (*stop_embedded)(uintptr_t);
	int (*connect_v2)(const char *, struct dcgm_connect_v2 *, uintptr_t *);
	int (*connect_v3)(const char *, struct dcgm_connect_v3 *, uintptr_t *); // since 4.5; may be NULL
	int (*disconnect)(uintptr_t);
	const char *(*error_string)(int);
	int (*entities)(uintptr_t, int, unsigned *, int *, unsigned);
	int (*gpu_status)(uintptr_t, unsigned, int *);
	int (*hierarchy)(uintptr_t, struct dcgm_mig_v2 *);
	int (*prof_groups)(uintptr_t, struct dcgm_prof_v3 *);
	int (*group_create)(uintptr_t, int, const char *, uintptr_t *);
	int (*group_add)(uintptr_t, uintptr_t, int, unsigned);
	int (*group_destroy)(uintptr_t, uintptr_t);
	int (*fields_create)(uintptr_t, int, const unsigned short *, const char *, uintptr_t *);
	int (*fields_destroy)(uintptr_t, uintptr_t);
	int (*watch)(uintptr_t, uintptr_t, uintptr_t, long long, double, int);
	int (*unwatch)(uintptr_t, uintptr_t, uintptr_t);
	int (*update)(uintptr_t, int);
	int (*latest)(uintptr_t, int, int, unsigned short *, unsigned, struct dcgm_value_v1 *);
	int (*latest_of)(uintptr_t, struct dcgm_entity *, unsigned, unsigned short *, unsigned, unsigned, struct dcgm_value_v2 *);
	// These are of some releases only, or may be NULL.
	int (*version)(struct dcgm_version_v2 *);
	int (*engine_version)(uintptr_t, struct dcgm_version_v2 *);
	const struct dcgm_field_meta *(*field)(unsigned short);
	int (*links)(uintptr_t, void *);
	int (*cpus_v1)(uintptr_t, struct dcgm_cpus_v1 *);
	int (*cpus_v2)(uintptr_t, struct dcgm_cpus_v2 *);
	int (*topology)(uintptr_t, unsigned, void *);
	int (*p2p)(uintptr_t, struct dcgm_p2p_v1 *);
	int (*health_set)(uintptr_t, uintptr_t, unsigned);
	int (*health_check)(uintptr_t, uintptr_t, struct dcgm_health_v5 *);
	int (*since)(uintptr_t, uintptr_t, uintptr_t, long long, long long *, int (*)(int, unsigned, struct dcgm_value_v1 *, int, void *), void *);
} gp_lib;

enum { GP_NO_MEMORY = -4, GP_VERSION = -12, GP_NO_DATA = -14, GP_NO_FUNCTION = -20 }; // DCGM_ST_MEMORY, VER_MISMATCH, NO_DATA, FUNCTION_NOT_FOUND

// gp_load loads a library. It returns NULL, or the name of the function that
// the library lacks; lib->handle is NULL where it could not be loaded at all.
const char *gp_load(const char *path, gp_lib *lib);

// The rest return a dcgmReturn_t. Those that fill an array are given its room,
// or fill one for each field.
int gp_embedded(const gp_lib *lib, uintptr_t *h);
int gp_connect(const gp_lib *lib, const char *address, int is_unix, uintptr_t *h);
int gp_connect_url(const gp_lib *lib, const char *url, uintptr_t *h);
int gp_end(const gp_lib *lib, uintptr_t h, int embedded);
const char *gp_error(const gp_lib *lib, int code);
int gp_version(const gp_lib *lib, struct dcgm_version_v2 *out);
int gp_engine_version(const gp_lib *lib, uintptr_t h, struct dcgm_version_v2 *out);
int gp_entities(const gp_lib *lib, uintptr_t h, int kind, unsigned *ids, int *count);
int gp_status(const gp_lib *lib, uintptr_t h, unsigned gpu, int *status);
int gp_instances(const gp_lib *lib, uintptr_t h, gp_instance *out, int *count);
int gp_profiling(const gp_lib *lib, uintptr_t h, unsigned gpu, uint16_t *fields, int *count);
int gp_field(const gp_lib *lib, uint16_t field, char *type, int *level); // 0: unknown
int gp_links(const gp_lib *lib, uintptr_t h, gp_link *out, int *count);
int gp_cpus(const gp_lib *lib, uintptr_t h, gp_cpu *out, int *count);
int gp_peers(const gp_lib *lib, uintptr_t h, gp_peer *out, int *count);
int gp_topology(const gp_lib *lib, uintptr_t h, unsigned gpu, gp_place *out);
int gp_health_set(const gp_lib *lib, uintptr_t h, uintptr_t group);
int gp_health(const gp_lib *lib, uintptr_t h, uintptr_t group, gp_incident *out, int *count);
int gp_group(const gp_lib *lib, uintptr_t h, const char *name, const struct dcgm_entity *of, int n, uintptr_t *group);
int gp_watch(const gp_lib *lib, uintptr_t h, uintptr_t group, const char *name, uint16_t *fields, int n, int64_t every_us, double keep_seconds, int keep_samples, uintptr_t *set);
void gp_unwatch(const gp_lib *lib, uintptr_t h, uintptr_t group, uintptr_t set);
void gp_ungroup(const gp_lib *lib, uintptr_t h, uintptr_t group);
int gp_latest(const gp_lib *lib, uintptr_t h, int kind, unsigned id, uint16_t *fields, int n, gp_value *out);
int gp_live(const gp_lib *lib, uintptr_t h, int kind, unsigned id, uint16_t *fields, int n, gp_text *out);
int gp_since(const gp_lib *lib, uintptr_t h, uintptr_t group, uintptr_t set, int64_t from, gp_value *out, int *count);

#endif
