// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A plug-in that lets clients read only, without asking anybody.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "../request.h"

SEC("gateway.s/request")
int on_request(struct request *request)
{
	if (request->method == GET || request->method == HEAD)
		return PASS;
	request->status = 405;
	return ANSWER;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
