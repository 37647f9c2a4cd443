// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A tenant's plug-in: each client has a key, and the key-value server has the number of requests that the key allows.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "../request.h"

#define KEY_BYTES 32

/* Requests so far, by key. Maps are kept over reloads. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u8[KEY_BYTES]);
	__type(value, __u64);
} used SEC(".maps");

static int answer(struct request *request, __u32 status)
{
	request->status = status;
	return ANSWER;
}

SEC("gateway.s/request")
int on_request(struct request *request)
{
	const __u8 *byte = request->key, *end = request->key_end;
	__u8 key[KEY_BYTES] = {};
	__u64 quota = 0, none = 0, *count;

	for (int i = 0; i < KEY_BYTES && byte + 1 <= end; i++)
		key[i] = *byte++;
	if (!key[0])
		return answer(request, 401);
	switch (lookup(key, sizeof(key), &quota)) {
	case 0:
		break;
	case -ENOENT:
		return answer(request, 403);
	default:
		return answer(request, 503);
	}
	/* After the lookup: an element of a hash may be gone when a run has waited. */
	count = bpf_map_lookup_elem(&used, key);
	if (!count) {
		/* If another run has inserted the key meanwhile, BPF_NOEXIST keeps that run's element. */
		bpf_map_update_elem(&used, key, &none, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&used, key);
	}
	if (!count)
		return answer(request, 503);
	return __sync_fetch_and_add(count, 1) < quota ? PASS : answer(request, 429);
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
