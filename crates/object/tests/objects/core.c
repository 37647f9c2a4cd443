// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * CO-RE relocations of several kinds, in a program and in a subprogram; and a program without any.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

struct nested {
	int a, b;
} __attribute__((preserve_access_index));

struct task {
	long state;
	struct nested items[4];
	unsigned char bits : 3;
} __attribute__((preserve_access_index));

enum mode { MODE_A = 1, MODE_B = 5 };

static __attribute__((noinline)) int item(struct task *task)
{
	return task->items[2].b;
}

SEC("raw_tp/test")
int reads(void *ctx)
{
	struct task *task = ctx;

	return task->state + item(task);
}

SEC("raw_tp/test")
int asks(void *ctx)
{
	(void)ctx;
	if (!bpf_core_field_exists(struct task, items) || !bpf_core_type_exists(struct nested))
		return 0;
	return bpf_core_type_size(struct task) + bpf_core_enum_value(enum mode, MODE_B);
}

SEC("raw_tp/test")
int plain(void *ctx)
{
	(void)ctx;
	return 7;
}

char LICENSE[] SEC("license") = "GPL";
