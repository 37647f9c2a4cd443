/* The host's context and functions, made from its description. Do not edit. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

struct request {
	const __u32 client;
	__u32 cost;
	const __u8 *const path;
	const __u8 *const path_end;
} __attribute__((preserve_access_index));

extern void say(const void *, __u64) __ksym;
extern __u32 price(__u32) __ksym;

