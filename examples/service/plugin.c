// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The service's plug-in: a program for each of its three hooks, pages that one of them jumps to, and a policy.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "service.h"

/* The settings that the service gives to each version. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} settings SEC(".maps");

enum count { ADMITTED, LOGGED, DROPPED, COUNTS };

/* Kept over reloads, as `seen` and `events` are. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

/* Copied from version to version: what other plug-ins have put there stays. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, ROUTES);
	__type(key, __u32);
	__type(value, __u32);
} routes SEC(".maps");

static __u32 version(void)
{
	__u32 zero = 0, *version = bpf_map_lookup_elem(&settings, &zero);

	return version ? *version : 0;
}

static void count(__u32 what)
{
	__u64 *count = bpf_map_lookup_elem(&counts, &what);

	if (count)
		__sync_fetch_and_add(count, 1);
}

SEC("request/admit")
int admit(struct request *request)
{
	__u32 client = request->client;
	__u64 one = 1, *times = bpf_map_lookup_elem(&seen, &client);

	if (times)
		__sync_fetch_and_add(times, 1);
	else
		bpf_map_update_elem(&seen, &client, &one, BPF_ANY);
	count(ADMITTED);
	return ALLOW;
}

SEC("request/route")
int route(struct request *request)
{
	const __u8 *path = request->path;

	request->version = version();
	if (path + 2 > request->path_end || path[0] != '/')
		return REFUSE;
	switch (path[1]) {
	case 'h':
		bpf_tail_call(request, &routes, HOME);
		break;
	case 'a':
		bpf_tail_call(request, &routes, API);
		break;
	case 's':
		bpf_tail_call(request, &routes, SPIN);
		break;
	case 'l':
		bpf_tail_call(request, &routes, LEAK);
		break;
	case 'f':
		bpf_tail_call(request, &routes, FAIL);
		break;
	}
	return REFUSE;
}

SEC("request/home")
int home(struct request *request)
{
	request->torn = request->version != version();
	request->cost = 1;
	return ALLOW;
}

SEC("request/api")
int api(struct request *request)
{
	request->torn = request->version != version();
	request->cost = 10;
	return ALLOW;
}

SEC("request/log")
int record(struct request *request)
{
	__u64 *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	count(LOGGED);
	if (!event) {
		count(DROPPED);
		return 0;
	}
	*event = request->client;
	bpf_ringbuf_submit(event, 0);
	return 0;
}

SEC("struct_ops/pick")
__u32 by_client(struct choice *choice)
{
	choice->version = version();
	return choice->client % 4;
}

SEC(".struct_ops.link")
struct balance modulo = {
	.pick = by_client,
};

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
