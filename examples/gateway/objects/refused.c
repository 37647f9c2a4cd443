// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A plug-in with a mistake that the verifier refuses: it keeps a pointer to an element of a hash while it waits.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "../request.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
} by_method SEC(".maps");

SEC("gateway.s/request")
int on_request(struct request *request)
{
	__u32 method = request->method;
	__u64 extra = 0, *count = bpf_map_lookup_elem(&by_method, &method);

	if (!count)
		return PASS;
	lookup("extra", 5, &extra);
	*count += extra;
	return PASS;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
