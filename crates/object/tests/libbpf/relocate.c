// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Prints the instructions that libbpf makes of BPF objects against a target's BTF: of each pair of files `pair N`, then
 * `code NAME HEX` for each program, or `refused`.
 *
 * libbpf only relocates code on its way into the kernel, so this program stands in for the kernel: it defines the
 * syscall() that libbpf calls and answers every bpf(2) with success. Needs no privilege.
 *
 *   cc -O2 -Wall -Wextra relocate.c -lbpf -o relocate && ./relocate TARGET OBJECT [TARGET OBJECT]...
 */
#define _GNU_SOURCE
#include <bpf/libbpf.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct bpf_object *current;

static void print_code(const union bpf_attr *attr)
{
	struct bpf_program *prog;
	const unsigned char *code = (const void *)attr->insns;

	bpf_object__for_each_program(prog, current) {
		/* The others are libbpf's probes. */
		if (bpf_program__insns(prog) != (const struct bpf_insn *)attr->insns)
			continue;
		printf("code %s ", bpf_program__name(prog));
		for (size_t i = 0; i < attr->insn_cnt * sizeof(struct bpf_insn); i++)
			printf("%02x", code[i]);
		printf("\n");
	}
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
	for (int i = 1; i + 1 < argc; i += 2) {
		LIBBPF_OPTS(bpf_object_open_opts, options, .btf_custom_path = argv[i]);

		printf("pair %d\n", i / 2);
		current = bpf_object__open_file(argv[i + 1], &options);
		if (!current || bpf_object__load(current))
			printf("refused\n");
		bpf_object__close(current);
		current = NULL;
	}
	return 0;
}
