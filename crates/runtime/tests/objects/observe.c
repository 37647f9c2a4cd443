// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Programs whose runs are recorded and repeated (tests/observe.rs).
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

struct request {
	const __u32 client;
	__u32 cost;
	const __u8 *const path;
	const __u8 *const path_end;
	__u8 *const body;
	__u8 *const body_end;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} scratch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} routes SEC(".maps");

__u64 total, peak;
const volatile __u64 price = 3;

extern __u64 sign(__u8 *out, __u64 length) __ksym;

/* The context alone: no map, no function. */
SEC("request/pure")
int pure(struct request *request)
{
	const __u8 *at = request->path;
	__u32 sum = request->client;

	for (int i = 0; i < 64 && at + i + 1 <= request->path_end; i++)
		sum = sum * 31 + at[i];
	request->cost = sum;
	return sum & 0xff;
}

struct walk {
	__u64 sum;
	__u32 times;
};

static long round_(__u64 i, struct walk *walk)
{
	walk->sum += i * total;
	walk->times++;
	return 0;
}

static long each(void *map __attribute__((unused)), __u32 *key, __u64 *value, struct walk *walk)
{
	walk->sum += *key + *value;
	return 0;
}

/* Everything that a run gets from outside. */
SEC("request/all")
int all(struct request *request)
{
	struct walk walk = { 0 };
	__u8 signature[16] = { 0 };
	__u32 key = request->client, zero = 0;
	__u64 one = 1, *count, *own, *record;

	walk.sum = bpf_ktime_get_ns() ^ bpf_get_prandom_u32();
	count = bpf_map_lookup_elem(&seen, &key);
	if (count)
		walk.sum += __sync_fetch_and_add(count, 1);
	else
		bpf_map_update_elem(&seen, &key, &one, BPF_ANY);
	own = bpf_map_lookup_elem(&scratch, &zero);
	if (own)
		walk.sum ^= ++*own;
	bpf_loop(4, round_, &walk, 0);
	bpf_for_each_map_elem(&seen, each, &walk, 0);
	walk.sum += sign(signature, sizeof(signature));
	for (int i = 0; i < 16; i++)
		walk.sum = walk.sum * 33 + signature[i];
	record = bpf_ringbuf_reserve(&events, 8, 0);
	if (record) {
		*record = walk.sum;
		walk.sum += *record;
		bpf_ringbuf_submit(record, 0);
	}
	__sync_fetch_and_add(&total, price);
	if (walk.sum > peak)
		peak = walk.sum;
	if (request->body + 8 <= request->body_end)
		*(__u64 *)request->body = walk.sum;
	request->cost = walk.times;
	return (int)(walk.sum >> 7) & 0x7fffffff;
}

/* Loads of values that other threads change meanwhile. */
SEC("request/races")
int races(struct request *request)
{
	__u64 sum = 0;

	for (int i = 0; i < 400; i++)
		sum = sum * 7 + *(volatile __u64 *)&total;
	request->cost = (__u32)sum;
	return (int)(sum >> 9) & 0x7fffffff;
}

SEC("request/routed")
int routed(struct request *request)
{
	bpf_tail_call(request, &routes, 0);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
