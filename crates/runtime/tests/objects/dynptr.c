// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Dynptrs over packets, map values and records, each by one program. Each returns an error that it finds as a number above
 * 1000.
 * mcpu: v4 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

extern int bpf_dynptr_from_xdp(struct xdp_md *xdp, __u64 flags, struct bpf_dynptr *ptr) __ksym;
extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags, struct bpf_dynptr *ptr) __ksym;
extern void *bpf_dynptr_slice(const struct bpf_dynptr *ptr, __u32 offset, void *buffer, __u32 size) __ksym;
extern void *bpf_dynptr_slice_rdwr(const struct bpf_dynptr *ptr, __u32 offset, void *buffer, __u32 size) __ksym;
extern int bpf_dynptr_adjust(const struct bpf_dynptr *ptr, __u32 start, __u32 end) __ksym;
extern _Bool bpf_dynptr_is_null(const struct bpf_dynptr *ptr) __ksym;
extern _Bool bpf_dynptr_is_rdonly(const struct bpf_dynptr *ptr) __ksym;
extern __u32 bpf_dynptr_size(const struct bpf_dynptr *ptr) __ksym;
extern int bpf_dynptr_clone(const struct bpf_dynptr *ptr, struct bpf_dynptr *clone) __ksym;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u8[64]);
} memory SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ring SEC(".maps");

/* The IPv4 header's protocol, and the time to live one less. */
SEC("xdp/headers")
int headers(struct xdp_md *ctx)
{
	struct bpf_dynptr packet, rest;
	struct ethhdr *eth, room;
	struct iphdr *ip, buffer;
	__u8 protocol;

	if (bpf_dynptr_from_xdp(ctx, 0, &packet))
		return 1001;
	if (bpf_dynptr_size(&packet) != (__u32)(ctx->data_end - ctx->data))
		return 1002;
	eth = bpf_dynptr_slice(&packet, 0, &room, sizeof(room));
	if (!eth)
		return 1;
	if (eth->h_proto != bpf_htons(ETH_P_IP))
		return 2;
	bpf_dynptr_clone(&packet, &rest);
	if (bpf_dynptr_adjust(&rest, sizeof(*eth), bpf_dynptr_size(&packet)))
		return 1003;
	ip = bpf_dynptr_slice_rdwr(&rest, 0, &buffer, sizeof(buffer));
	if (!ip)
		return 3;
	protocol = ip->protocol;
	ip->ttl--;
	if (bpf_dynptr_slice(&rest, bpf_dynptr_size(&rest), 0, 1))
		return 1004;
	if (bpf_dynptr_data(&packet, 0, 1))
		return 1005;
	return 100 + protocol;
}

/* Writes behind the packet and into it. */
SEC("tc/writes")
int writes(struct __sk_buff *skb)
{
	__u8 bytes[4] = { 1, 2, 3, 4 }, back[4] = { 9, 9, 9, 9 };
	struct bpf_dynptr packet;
	__u32 size;

	if (bpf_dynptr_from_skb(skb, 1, &packet) != -22 || !bpf_dynptr_is_null(&packet))
		return 1001;
	if (bpf_dynptr_from_skb(skb, 0, &packet) || bpf_dynptr_is_null(&packet) || bpf_dynptr_is_rdonly(&packet))
		return 1002;
	size = bpf_dynptr_size(&packet);
	if (bpf_dynptr_write(&packet, size - 3, bytes, 4, 0) != -7)
		return 1003;
	if (bpf_dynptr_write(&packet, size - 4, bytes, 4, 0))
		return 1004;
	if (bpf_dynptr_read(back, 4, &packet, size - 4, 0) || back[3] != 4)
		return 1005;
	if (bpf_dynptr_read(back, 4, &packet, size - 4, 1) != -22 || back[3] != 0)
		return 1006;
	return size;
}

SEC("xdp/values")
int values(struct xdp_md *ctx)
{
	struct bpf_dynptr of, part;
	__u32 key = 0, number = 7;
	void *value;
	__u8 *byte;

	(void)ctx;
	value = bpf_map_lookup_elem(&memory, &key);
	if (!value)
		return 1001;
	if (bpf_dynptr_from_mem(value, 64, 0, &of))
		return 1002;
	if (bpf_dynptr_write(&of, 60, &number, 4, 0) || bpf_dynptr_write(&of, 61, &number, 4, 0) != -7)
		return 1003;
	if (bpf_dynptr_clone(&of, &part) || bpf_dynptr_adjust(&part, 60, 64))
		return 1004;
	if (bpf_dynptr_adjust(&part, 3, 2) != -22 || bpf_dynptr_adjust(&part, 0, 5) != -34)
		return 1005;
	byte = bpf_dynptr_data(&part, 0, 1);
	if (!byte)
		return 1006;
	*byte += 1;
	return *byte + bpf_dynptr_size(&part);
}

SEC("xdp/records")
int records(struct xdp_md *ctx)
{
	struct bpf_dynptr record;
	__u64 number = 42;
	__u64 *data;
	int err;

	err = bpf_ringbuf_reserve_dynptr(&ring, ctx->rx_queue_index, 0, &record);
	if (!err)
		err = bpf_dynptr_write(&record, 0, &number, sizeof(number), 0);
	data = bpf_dynptr_data(&record, 8, 8);
	if (data) {
		*data = 43;
		bpf_ringbuf_submit_dynptr(&record, 0);
	} else {
		bpf_ringbuf_discard_dynptr(&record, 0);
	}
	return -err;
}
