// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Storage for the thread that runs a program.
 * mcpu: v4 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct kept {
	__u64 runs;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct kept);
} threads SEC(".maps");

SEC("xdp")
int count(struct xdp_md *ctx __attribute__((unused)))
{
	void *thread = bpf_get_current_task_btf();
	struct kept first = { 100 };
	struct kept *kept;

	kept = bpf_task_storage_get(&threads, thread, &first, BPF_LOCAL_STORAGE_GET_F_CREATE);
	return kept ? ++kept->runs : 0;
}

/* Made, found, taken away: what each step finds wrong. */
SEC("xdp")
int steps(struct xdp_md *ctx __attribute__((unused)))
{
	void *thread = bpf_get_current_task_btf();
	struct kept *kept;

	bpf_task_storage_delete(&threads, thread);
	if (bpf_task_storage_get(&threads, thread, 0, 0))
		return 1;
	if (bpf_task_storage_delete(&threads, thread) != -2)
		return 2;
	if (bpf_task_storage_get(&threads, thread, 0, 2))
		return 3;
	kept = bpf_task_storage_get(&threads, thread, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!kept || kept->runs)
		return 4;
	kept->runs = 7;
	kept = bpf_task_storage_get(&threads, thread, 0, 0);
	if (!kept || kept->runs != 7)
		return 5;
	if (bpf_task_storage_delete(&threads, thread))
		return 6;
	return bpf_task_storage_get(&threads, thread, 0, 0) ? 8 : 77;
}

char _license[] SEC("license") = "Dual MIT/GPL";
