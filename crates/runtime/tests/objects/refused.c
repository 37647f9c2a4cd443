// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Something of everything that a load makes, in several programs, so that it can be refused at any of them: prog arrays with programs in them and in
 * each other's, a map of maps with inner maps, a hash, constants, a loop with a callback, a host function.
 * mcpu: v4 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

static __u64 (*note)(__u64) = (void *)1001;

int start(void *ctx), second(void *ctx), third(void *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 4);
	__uint(key_size, sizeof(__u32));
	__array(values, int (void *));
} stages SEC(".maps") = { .values = { [0] = &start, [1] = &second, [3] = &third } };

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__uint(key_size, sizeof(__u32));
	__array(values, int (void *));
} ends SEC(".maps") = { .values = { [1] = &third } };

struct inner {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} one SEC(".maps"), two SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 2);
	__type(key, __u32);
	__array(values, struct inner);
} outer SEC(".maps") = { .values = { [0] = &one, [1] = &two } };

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u64);
} table SEC(".maps");

const volatile __u32 step = 3;
__u64 total;

SEC("raw/start")
int start(void *ctx)
{
	__u32 key = 1;
	__u64 *value = bpf_map_lookup_elem(&table, &key);

	if (value)
		total += *value + note(*value);
	bpf_tail_call(ctx, &stages, 1);
	return 1;
}

SEC("raw/second")
int second(void *ctx)
{
	__u32 key = 0, index = step & 1;
	void *inner = bpf_map_lookup_elem(&outer, &index);
	__u64 *value = inner ? bpf_map_lookup_elem(inner, &key) : 0;

	if (value)
		total += *value;
	bpf_tail_call(ctx, &stages, total & 3);
	bpf_tail_call(ctx, &ends, 1);
	return 2;
}

#define UNUSED __attribute__((unused))

static long add(__u32 i, void *ctx UNUSED)
{
	total += i;
	return 0;
}

SEC("raw/third")
int third(void *ctx UNUSED)
{
	__u64 now = bpf_ktime_get_ns();

	bpf_loop(step, add, 0, 0);
	bpf_map_update_elem(&table, &(__u32){1}, &now, BPF_ANY);
	return note(3);
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
