// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The plug-in of docs/book/tutorials/c-plugin.md: limits the requests of each client, on a context of the service's own.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "limit_request.h"

enum verdict { ALLOW, REFUSE };

/* Requests of each client. The least recently seen make room for new ones. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

/* Records for the service, which nobody waits for. */
struct event {
	__u32 client;
	__u32 verdict;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} events SEC(".maps");

/* Programs for parts of the site; empty slots are passed over. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} routes SEC(".maps");

/* Part of the plug-in: .rodata. */
const volatile __u64 limit_per_client = 3;

/* A function of the service's, called by its name. */
extern void say(const char *text, __u64 length) __ksym;

static void tell(const struct request *request, enum verdict verdict)
{
	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event)
		return;
	event->client = request->client;
	event->verdict = verdict;
	bpf_ringbuf_submit(event, 0);
}

SEC("request/limit")
int limit(struct request *request)
{
	const __u8 *path = request->path;
	__u32 client = request->client;
	__u64 one = 1, *count;

	/* Two bytes are there, or the comparison says so. */
	if (path + 2 <= request->path_end && path[0] == '/' && path[1] == '~')
		bpf_tail_call(request, &routes, 0);

	count = bpf_map_lookup_elem(&seen, &client);
	if (!count) {
		bpf_map_update_elem(&seen, &client, &one, BPF_ANY);
		return ALLOW;
	}
	if (__sync_fetch_and_add(count, 1) < limit_per_client)
		return ALLOW;
	tell(request, REFUSE);
	return REFUSE;
}

SEC("request/home")
int home(struct request *request)
{
	static const char text[] = "a home page";

	say(text, sizeof(text) - 1);
	request->cost = 10;
	return ALLOW;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
