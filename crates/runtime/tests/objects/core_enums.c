// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Questions about enumerations of the kernel's interface. The values here are wrong on purpose, so that only relocated
 * ones are right.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

enum bpf_func_id {
	BPF_FUNC_map_lookup_elem = 1000,
	BPF_FUNC_tail_call,
	BPF_FUNC_ringbuf_output,
	BPF_FUNC_get_stackid,
	BPF_FUNC_xdp_adjust_head,
	BPF_FUNC_skb_store_bytes,
	BPF_FUNC_of_no_kernel,
};
enum bpf_map_type___probe {
	BPF_MAP_TYPE_RINGBUF = 1000,
	BPF_MAP_TYPE_STACK_TRACE,
	BPF_MAP_TYPE_LPM_TRIE,
	BPF_MAP_TYPE_INODE_STORAGE,
	BPF_MAP_TYPE_PROG_ARRAY,
	BPF_MAP_TYPE_OF_NO_KERNEL,
	BPF_MAP_TYPE_PERCPU_ARRAY,
};
enum xdp_action { XDP_PASS = 1000 };
enum bpf_adj_room_mode { BPF_ADJ_ROOM_MAC = 1000 };
enum sk_action { SK_PASS = 1000 };
enum bpf_ret_code { BPF_REDIRECT = 1000 };
struct xdp_md;

#define FUNC(name) bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_##name)
#define MAP(name) bpf_core_enum_value_exists(enum bpf_map_type___probe, BPF_MAP_TYPE_##name)

SEC("xdp")
int features(struct xdp_md *ctx)
{
	(void)ctx;
	return FUNC(map_lookup_elem) << 0 | FUNC(tail_call) << 1 | FUNC(ringbuf_output) << 2 | FUNC(get_stackid) << 3 |
	       FUNC(xdp_adjust_head) << 4 | FUNC(of_no_kernel) << 5 | MAP(RINGBUF) << 6 | MAP(STACK_TRACE) << 7 |
	       MAP(LPM_TRIE) << 8 | MAP(INODE_STORAGE) << 9 | MAP(PROG_ARRAY) << 10 | MAP(OF_NO_KERNEL) << 11 |
	       MAP(PERCPU_ARRAY) << 12;
}

SEC("xdp")
int values(struct xdp_md *ctx)
{
	(void)ctx;
	return (bpf_core_enum_value(enum bpf_func_id, BPF_FUNC_ringbuf_output) == 130) << 0 |
	       (bpf_core_enum_value(enum bpf_map_type___probe, BPF_MAP_TYPE_LPM_TRIE) == 11) << 1 |
	       (bpf_core_enum_value(enum xdp_action, XDP_PASS) == 2) << 2 |
	       (bpf_core_enum_value(enum bpf_adj_room_mode, BPF_ADJ_ROOM_MAC) == 1) << 3 |
	       (bpf_core_enum_value(enum sk_action, SK_PASS) == 1) << 4 |
	       (bpf_core_enum_value(enum bpf_ret_code, BPF_REDIRECT) == 7) << 5;
}

char _license[] SEC("license") = "GPL";
