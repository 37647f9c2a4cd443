// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A plug-in that many tenants have an instance of each: globals, constants, maps of several kinds, a tail call.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define UNUSED __attribute__((unused))

/* Each tenant has its own. */
const volatile __u64 limit SEC(".rodata.tenant") = 100;
/* One for all. */
const volatile __u64 step = 2;

__u64 total;
__u64 seven = 7;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u64);
	__type(value, __u64);
} seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ring SEC(".maps");

__u64 after(const __u8 *bytes, __u64 len);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__array(values, __u64 (const __u8 *, __u64));
} next SEC(".maps") = {
	.values = { [1] = (void *)&after },
};

/* Counts the call, and what is asked for while the tenant's limit is not passed; goes on in `after`. */
SEC("raw/entry")
__u64 entry(const __u8 *bytes, __u64 len)
{
	__u32 slot = len & 3;
	__u64 one = 1, *count = bpf_map_lookup_elem(&counts, &slot);

	if (count)
		__sync_fetch_and_add(count, step);
	if (total + len > limit)
		return 0;
	total += len;
	bpf_map_update_elem(&seen, &len, &one, BPF_ANY);
	bpf_ringbuf_output(&ring, &len, sizeof(len), 0);
	bpf_tail_call((void *)bytes, &next, 1);
	return 1;
}

/* The sum so far, and seven. */
SEC("raw/after")
__u64 after(const __u8 *bytes UNUSED, __u64 len UNUSED)
{
	return total + seven;
}

/* Whether a byte is where the tenant's limit says: the limit is any number. */
SEC("raw/at")
__u64 at(const __u8 *bytes, __u64 len)
{
	__u64 i = limit;

	return i < len ? bytes[i] : 1000;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
