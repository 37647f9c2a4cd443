// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Somebody else's plug-ins, which do what plug-ins should not.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "service.h"

struct value {
	__u64 bytes[32];
};

/* Takes memory as it grows. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 14);
	__type(key, __u64);
	__type(value, struct value);
} hoard SEC(".maps");

__u64 next, refused;

/* A function of the service's. */
static void (*fail)(void) = (void *)1001;

/* Whether this ends, nobody knows: it is loaded with checks (`hybrid`). */
SEC("request/spin")
int spin(struct request *request)
{
	volatile __u64 n = request->client | 1;

	while (n)
		n = n * 5 | 1;
	return ALLOW;
}

SEC("request/leak")
int leak(struct request *request)
{
	struct value value = {};
	__u64 key = __sync_fetch_and_add(&next, 1);

	if (bpf_map_update_elem(&hoard, &key, &value, BPF_ANY)) {
		__sync_fetch_and_add(&refused, 1);
		request->cost = 1000;
	}
	return ALLOW;
}

SEC("request/fail")
int failing(struct request *request __attribute__((unused)))
{
	fail();
	return ALLOW;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
