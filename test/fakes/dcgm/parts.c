// SPDX-License-Identifier: Apache-2.0

// What is no GPU: switches, links, CPUs, cores; and how GPUs reach one another.
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned link_id(dcgm_field_entity_group_t of, unsigned parent, unsigned index) { return (unsigned)of | index << 8 | parent << 24; }

static bool link_exists(unsigned id) {
	unsigned of = id & 0xff, index = id >> 8 & 0xffff, parent = id >> 24;
	if (index >= (unsigned)S.links) return false;
	return of == DCGM_FE_GPU ? parent < (unsigned)S.gpus : of == DCGM_FE_SWITCH && parent < (unsigned)S.switches;
}

bool find_part(dcgm_field_entity_group_t kind, unsigned id, struct where *w) {
	*w = (struct where){MAX_GPUS + (int)kind, -1, id};
	switch (kind) {
	case DCGM_FE_SWITCH: return id < (unsigned)S.switches;
	case DCGM_FE_LINK: return link_exists(id);
	case DCGM_FE_CPU: return id < (unsigned)S.cpus;
	case DCGM_FE_CPU_CORE: return id < (unsigned)(S.cpus * S.cores);
	default: return false;
	}
}

int part_ids(dcgm_field_entity_group_t kind, dcgm_field_eid_t *ids, int room) {
	int count = kind == DCGM_FE_SWITCH ? S.switches : kind == DCGM_FE_CPU ? S.cpus : kind == DCGM_FE_CPU_CORE ? S.cpus * S.cores : 0, n = 0;
	for (; n < count && n < room; n++) ids[n] = (unsigned)n;
	return n;
}

// part_id reads a part's id: a number, or for a link gpuN:M or switchN:M.
static bool part_id(dcgm_field_entity_group_t kind, const char *text, unsigned *id) {
	unsigned parent, index;
	if (kind != DCGM_FE_LINK) return sscanf(text, "%u", id) == 1;
	if (sscanf(text, "gpu%u:%u", &parent, &index) == 2) *id = link_id(DCGM_FE_GPU, parent, index);
	else if (sscanf(text, "switch%u:%u", &parent, &index) == 2) *id = link_id(DCGM_FE_SWITCH, parent, index);
	else return false;
	return true;
}

static bool set_part(char w[][NAME]) {
	static const struct { const char *name; dcgm_field_entity_group_t kind; } kinds[] = {
		{"nvswitch", DCGM_FE_SWITCH}, {"nvlink", DCGM_FE_LINK}, {"cpu", DCGM_FE_CPU}, {"cpucore", DCGM_FE_CPU_CORE},
	};
	if (S.part_values == MAX_PART_VALUES) return false;
	struct part_value *p = &S.part[S.part_values];
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		if (strcmp(kinds[i].name, w[1])) continue;
		*p = (struct part_value){kinds[i].kind, 0, (unsigned short)atoi(w[3]), strtod(w[4], NULL)};
		if (!part_id(p->kind, w[2], &p->id)) return false;
		return S.part_values++, true;
	}
	return false;
}

// part_line takes a line of the file, if it is about parts or peers.
bool part_line(char w[][NAME]) {
	if (!strcmp(w[0], "switches")) return S.switches = atoi(w[1]), S.switches <= DCGM_MAX_NUM_SWITCHES;
	if (!strcmp(w[0], "links")) return S.links = atoi(w[1]), S.links <= DCGM_NVLINK_MAX_LINKS_PER_GPU;
	if (!strcmp(w[0], "topology")) return S.topology = 1 + atoi(w[1]), true;
	if (!strcmp(w[0], "totals")) return S.totals = atoi(w[1]), true;
	if (!strcmp(w[0], "cpus")) return S.cpus = atoi(w[1]), S.cores = atoi(w[2]), S.cpus <= (int)DCGM_MAX_NUM_CPUS && S.cpus * S.cores <= DCGM_MAX_NUM_CPU_CORES;
	if (!strcmp(w[0], "p2p")) {
		int i = atoi(w[1]), j = atoi(w[2]);
		if (i < 0 || j < 0 || i >= MAX_GPUS || j >= MAX_GPUS) return false;
		return S.p2p[i][j] = (dcgmNvLinkGpuP2PStatus_t)atoi(w[3]), true;
	}
	return !strcmp(w[0], "part") && set_part(w);
}

// part_number gives a field of a part. A switch sums up its links, a CPU its cores.
bool part_number(struct where w, unsigned short field, int level, double *x) {
	int kind = w.gpu - MAX_GPUS;
	if (level != kind && !(kind == DCGM_FE_SWITCH && level == DCGM_FE_LINK) && !(kind == DCGM_FE_CPU && level == DCGM_FE_CPU_CORE)) return false;
	*x = 0;
	for (int i = 0; i < S.part_values; i++)
		if ((int)S.part[i].kind == kind && S.part[i].id == w.id && S.part[i].field == field) *x = S.part[i].x;
	return true;
}

// states writes count entries of an id and as many link states as there is room
// for, and gives the word behind all entries.
static unsigned *states(unsigned *out, int count, int entries, int room) {
	for (int i = 0; i < count; i++) {
		unsigned *e = out + i * (1 + room);
		e[0] = (unsigned)i;
		for (int l = 0; l < S.links && l < room; l++) e[1 + l] = DcgmNvLinkLinkStateUp;
	}
	return out + entries * (1 + room);
}

// All versions are made of words alike, and differ in the number of links that
// a GPU and a switch have room for.
dcgmReturn_t dcgmGetNvLinkLinkStatus(dcgmHandle_t h, dcgmNvLinkStatus_v5 *out) {
	enum { HEAD = 3 }; // the version and the two counts
	static const struct { int version, gpu, nvswitch; } layouts[] = {{3, 18, 64}, {4, 18, 256}, {5, 36, 256}};
	BEGIN(h, "GetNvLinkLinkStatus", -1);
	for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
		int per_gpu = layouts[i].gpu, per_switch = layouts[i].nvswitch;
		unsigned words = HEAD + DCGM_MAX_NUM_DEVICES * (1 + per_gpu) + DCGM_MAX_NUM_SWITCHES * (1 + per_switch);
		unsigned version = words * sizeof(unsigned) | (unsigned)layouts[i].version << 24, *word = (unsigned *)out;
		if (out->version != version) continue;
		memset(out, 0, words * sizeof(unsigned));
		*word++ = version;
		*word++ = (unsigned)S.gpus;
		word = states(word, S.gpus, DCGM_MAX_NUM_DEVICES, per_gpu);
		*word++ = (unsigned)S.switches;
		states(word, S.switches, DCGM_MAX_NUM_SWITCHES, per_switch);
		return end(DCGM_ST_OK);
	}
	return end(DCGM_ST_VER_MISMATCH);
}

dcgmReturn_t dcgmGetNvLinkP2PStatus(dcgmHandle_t h, dcgmNvLinkP2PStatus_v1 *out) {
	BEGIN(h, "GetNvLinkP2PStatus", -1);
	out->numGpus = (unsigned)S.gpus;
	for (int i = 0; i < S.gpus; i++) {
		out->gpus[i].entityId = (unsigned)i;
		memcpy(out->gpus[i].linkStatus, S.p2p[i], sizeof out->gpus[i].linkStatus);
	}
	return end(DCGM_ST_OK);
}

#define FILL(out, gpu) \
	do { \
		int half = (S.gpus + 1) / 2, near = (int)(gpu) >= half; \
		for (int c = 56 * near; c < 56 * (1 + near); c++) (out)->cpuAffinityMask[c / 64] |= 1ul << c % 64; \
		for (int i = 0; i < S.gpus; i++) { \
			if (i == (int)(gpu) || S.gpu[i].status != DcgmEntityStatusOk) continue; \
			(out)->gpuPaths[(out)->numGpus].gpuId = (unsigned)i; \
			(out)->gpuPaths[(out)->numGpus++].path = ((i >= half) == near ? DCGM_TOPOLOGY_CPU : DCGM_TOPOLOGY_SYSTEM) | (S.links ? 1u << (7 + S.links) : 0); \
		} \
	} while (0)

// The first half of the GPUs is near the CPUs 0-55, the rest near 56-111.
dcgmReturn_t dcgmGetDeviceTopology(dcgmHandle_t h, unsigned gpu, dcgmDeviceTopology_v2 *out) {
	BEGIN(h, "GetDeviceTopology", (int)gpu);
	unsigned version = out->version;
	int most = S.topology ? S.topology - 1 : 2;
	if (version == dcgmDeviceTopology_version2 && most >= 2) {
		*out = (dcgmDeviceTopology_v2){.version = version};
		FILL(out, gpu);
	} else if (version == dcgmDeviceTopology_version1 && most >= 1) {
		dcgmDeviceTopology_v1 *old = (dcgmDeviceTopology_v1 *)out;
		*old = (dcgmDeviceTopology_v1){.version = version};
		FILL(old, gpu);
	} else {
		return end(DCGM_ST_VER_MISMATCH);
	}
	return end(DCGM_ST_OK);
}

// owned sets the bits of a CPU's cores, and its id.
static void owned(int cpu, unsigned *id, dcgmCpuHierarchyOwnedCores_v1 *cores) {
	*id = (unsigned)cpu;
	memset(cores->bitmask, 0, sizeof cores->bitmask);
	for (int c = cpu * S.cores; c < (cpu + 1) * S.cores; c++) cores->bitmask[c / 64] |= 1ull << c % 64;
}

dcgmReturn_t dcgmGetCpuHierarchy(dcgmHandle_t h, dcgmCpuHierarchy_v1 *out) {
	BEGIN(h, "GetCpuHierarchy", -1);
	if (S.cpus == 0) return end(DCGM_ST_MODULE_NOT_LOADED);
	out->numCpus = (unsigned)S.cpus;
	for (int i = 0; i < S.cpus; i++) owned(i, &out->cpus[i].cpuId, &out->cpus[i].ownedCores);
	return end(DCGM_ST_OK);
}

dcgmReturn_t dcgmGetCpuHierarchy_v2(dcgmHandle_t h, dcgmCpuHierarchy_v2 *out) {
	BEGIN(h, "GetCpuHierarchy_v2", -1);
	if (S.cpus == 0) return end(DCGM_ST_MODULE_NOT_LOADED);
	if (out->version != dcgmCpuHierarchy_version2) return end(DCGM_ST_VER_MISMATCH);
	out->numCpus = (unsigned)S.cpus;
	for (int i = 0; i < S.cpus; i++) {
		owned(i, &out->cpus[i].cpuId, &out->cpus[i].ownedCores);
		snprintf(out->cpus[i].serial, sizeof out->cpus[i].serial, "0x%08x", 0x6b000000 + i);
	}
	return end(DCGM_ST_OK);
}
