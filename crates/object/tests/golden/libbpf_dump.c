// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Prints what libbpf makes of BPF objects, as the rows of samples.tsv and objects.tsv.
 *
 * libbpf only relocates code on its way into the kernel, so this program stands in for the kernel: it defines the
 * syscall() that libbpf calls, answers every bpf(2) with success, and looks at the instructions of BPF_PROG_LOAD.
 * Map references are rewritten from file descriptors to the map's position in the object. Needs no privilege.
 *
 *   gcc -O2 -Wall -Wextra libbpf_dump.c -lbpf -o libbpf_dump && ./libbpf_dump FILE.o ...   (libbpf 1.1)
 *
 * Rows, tab separated:
 *   prog FILE NAME SECTION INSTRUCTIONS TYPE
 *   map  FILE NAME TYPE KEY VALUE MAX_ENTRIES FLAGS EXTRA NUMA_NODE PINNED
 *   code FILE NAME INSTRUCTIONS FNV1A64     with subprograms, relocated, as libbpf hands it to the kernel
 *   inner FILE MAP TYPE KEY VALUE MAX_ENTRIES FLAGS   the shape of a map of maps' inner maps
 *   data  FILE MAP BYTES FNV1A64            what global data is before the first run
 *   init  FILE MAP SLOT TARGET              initial value of a map of maps or prog array, by name
 *   open FILE refused / load FILE refused   libbpf does not accept the object (the reason is on stderr)
 */
#define _GNU_SOURCE
#include <bpf/libbpf.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct bpf_object *current;
static const char *file;

static unsigned long long fnv1a(unsigned long long hash, const void *data, size_t size)
{
	for (size_t i = 0; i < size; i++)
		hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3;
	return hash;
}

#define FNV_START 0xcbf29ce484222325ULL

static void print_value(const union bpf_attr *attr)
{
	struct bpf_map *map, *target;
	struct bpf_program *prog;
	const void *value = (const void *)attr->value;

	bpf_object__for_each_map(map, current)
		if ((__u32)bpf_map__fd(map) == attr->map_fd)
			break;
	if (!map)
		return;
	if (bpf_map__is_internal(map)) {
		printf("data\t%s\t%s\t%u\t%016llx\n", file, bpf_map__name(map), bpf_map__value_size(map),
		       fnv1a(FNV_START, value, bpf_map__value_size(map)));
		return;
	}
	bpf_object__for_each_map(target, current)
		if (bpf_map__fd(target) == *(const int *)value)
			printf("init\t%s\t%s\t%u\t%s\n", file, bpf_map__name(map), *(const __u32 *)attr->key,
			       bpf_map__name(target));
	bpf_object__for_each_program(prog, current)
		if (bpf_program__fd(prog) == *(const int *)value)
			printf("init\t%s\t%s\t%u\t%s\n", file, bpf_map__name(map), *(const __u32 *)attr->key,
			       bpf_program__name(prog));
}

static void print_code(const union bpf_attr *attr)
{
	struct bpf_program *prog, *found = NULL;
	unsigned long long hash = FNV_START;

	bpf_object__for_each_program(prog, current)
		if (!strncmp(attr->prog_name, bpf_program__name(prog), BPF_OBJ_NAME_LEN - 1) &&
		    bpf_program__insns(prog) == (const struct bpf_insn *)attr->insns)
			found = prog;
	if (!found)
		return; /* One of libbpf's probes. */
	for (unsigned int i = 0; i < attr->insn_cnt; i++) {
		struct bpf_insn insn = ((const struct bpf_insn *)attr->insns)[i];

		if (insn.code == (BPF_LD | BPF_IMM | BPF_DW) &&
		    (insn.src_reg == BPF_PSEUDO_MAP_FD || insn.src_reg == BPF_PSEUDO_MAP_VALUE)) {
			struct bpf_map *map;
			int index = 0;

			bpf_object__for_each_map(map, current) {
				if (bpf_map__fd(map) == insn.imm)
					break;
				index++;
			}
			insn.imm = index;
			insn.src_reg = insn.src_reg == BPF_PSEUDO_MAP_FD ? BPF_PSEUDO_MAP_IDX : BPF_PSEUDO_MAP_IDX_VALUE;
		}
		hash = fnv1a(hash, &insn, sizeof(insn));
	}
	printf("code\t%s\t%s\t%u\t%016llx\n", file, bpf_program__name(found), attr->insn_cnt, hash);
}

long syscall(long number, ...)
{
	va_list args;
	va_start(args, number);
	long cmd = va_arg(args, long);
	const union bpf_attr *attr = va_arg(args, void *);
	va_end(args);

	if (number != __NR_bpf)
		return -1;
	switch ((enum bpf_cmd)cmd) {
	case BPF_PROG_LOAD:
		if (current)
			print_code(attr);
		return open("/dev/null", O_RDONLY);
	case BPF_MAP_CREATE:
	case BPF_BTF_LOAD:
		return open("/dev/null", O_RDONLY);
	case BPF_MAP_UPDATE_ELEM:
		if (current)
			print_value(attr);
		return 0;
	case BPF_OBJ_GET: /* No map is pinned yet. */
		return -1;
	default:
		return 0;
	}
}

static int warnings(enum libbpf_print_level level, const char *format, va_list args)
{
	return level == LIBBPF_WARN ? vfprintf(stderr, format, args) : 0;
}

int main(int argc, char **argv)
{
	libbpf_set_print(warnings);
	for (int i = 1; i < argc; i++) {
		struct bpf_program *prog;
		struct bpf_map *map;

		file = argv[i];
		current = bpf_object__open_file(file, NULL);
		if (!current) {
			printf("open\t%s\trefused\n", file);
			continue;
		}
		bpf_object__for_each_program(prog, current)
			printf("prog\t%s\t%s\t%s\t%zu\t%d\n", file, bpf_program__name(prog), bpf_program__section_name(prog),
			       bpf_program__insn_cnt(prog), bpf_program__type(prog));
		bpf_object__for_each_map(map, current)
			printf("map\t%s\t%s\t%d\t%u\t%u\t%u\t%#x\t%llu\t%u\t%d\n", file, bpf_map__name(map),
			       bpf_map__type(map), bpf_map__key_size(map), bpf_map__value_size(map),
			       bpf_map__max_entries(map), bpf_map__map_flags(map),
			       (unsigned long long)bpf_map__map_extra(map), bpf_map__numa_node(map),
			       bpf_map__pin_path(map) != NULL);
		bpf_object__for_each_map(map, current) {
			struct bpf_map *inner = bpf_map__inner_map(map);

			if (inner)
				printf("inner\t%s\t%s\t%d\t%u\t%u\t%u\t%#x\n", file, bpf_map__name(map),
				       bpf_map__type(inner), bpf_map__key_size(inner), bpf_map__value_size(inner),
				       bpf_map__max_entries(inner), bpf_map__map_flags(inner));
		}
		bpf_object__for_each_map(map, current)
			bpf_map__set_pin_path(map, NULL);
		/* Section names that libbpf 1.x does not know have no type; loading needs one. */
		bpf_object__for_each_program(prog, current)
			if (!bpf_program__type(prog))
				bpf_program__set_type(prog, BPF_PROG_TYPE_SOCKET_FILTER);
		if (bpf_object__load(current))
			printf("load\t%s\trefused\n", file);
		bpf_object__close(current);
		current = NULL;
	}
	return 0;
}
