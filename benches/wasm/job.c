// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The job of docs/book/explanation/comparison.md: filter a record, call the host twice, count in a map. job.wat is the same.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "job.h"

enum verdict { DROP, PASS };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

static __u64 (*allowed)(__u64 source) = (void *)1001;
static void (*note)(__u64 port, __u64 length) = (void *)1002;

SEC("record/filter")
int filter(struct record *record)
{
	__u32 slot = record->source & 255;
	__u64 *count;

	if (record->kind != 6 || !allowed(record->source))
		return DROP;
	count = bpf_map_lookup_elem(&counts, &slot);
	if (count)
		__sync_fetch_and_add(count, 1);
	note(record->port, record->length);
	return PASS;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
