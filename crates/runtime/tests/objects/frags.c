// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Operations on a packet in pieces, one in each run: its first bytes say which. The result is the error or a hash of
 * the bytes that were read.
 * mcpu: v4 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

extern int bpf_dynptr_from_xdp(struct xdp_md *xdp, __u64 flags, struct bpf_dynptr *ptr) __ksym;
extern void *bpf_dynptr_slice(const struct bpf_dynptr *ptr, __u32 offset, void *buffer, __u32 size) __ksym;
extern void *bpf_dynptr_slice_rdwr(const struct bpf_dynptr *ptr, __u32 offset, void *buffer, __u32 size) __ksym;
extern __u32 bpf_dynptr_size(const struct bpf_dynptr *ptr) __ksym;
extern int bpf_dynptr_copy(struct bpf_dynptr *to, __u32 to_at, struct bpf_dynptr *from, __u32 from_at,
			   __u32 size) __ksym;
extern int bpf_dynptr_memset(struct bpf_dynptr *ptr, __u32 offset, __u32 size, __u8 byte) __ksym;
extern int bpf_xdp_pull_data(struct xdp_md *xdp, __u32 len) __ksym;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u8[32]);
} room SEC(".maps");

struct request {
	__u32 what;
	__u32 offset;
	__u32 len;
	__s32 delta;
};

static __u32 mixed(const __u8 *bytes, int len)
{
	__u32 sum = 0;

	for (int i = 0; i < len; i++)
		sum = sum * 31 + bytes[i];
	return sum;
}

SEC("xdp.frags")
int ask(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u8 bytes[32] = {}, buffer[32] = {};
	struct bpf_dynptr packet;
	struct request ask;
	__u32 key = 0, len;
	__u8 *found;
	int error;

	if (data + sizeof(ask) > end)
		return 1000;
	__builtin_memcpy(&ask, data, sizeof(ask));
	len = ask.len & 31;
	switch (ask.what) {
	case 0:
		return bpf_xdp_get_buff_len(ctx) ^ (__u32)(end - data) << 16;
	case 1:
		error = bpf_xdp_load_bytes(ctx, ask.offset, bytes, len ?: 1);
		return error ?: mixed(bytes, sizeof(bytes));
	case 2:
		for (int i = 0; i < 32; i++)
			bytes[i] = 0xa0 + i;
		return bpf_xdp_store_bytes(ctx, ask.offset, bytes, len ?: 1);
	case 3:
		return bpf_xdp_adjust_tail(ctx, ask.delta);
	case 4:
		return bpf_xdp_adjust_head(ctx, ask.delta);
	case 5:
		return bpf_xdp_adjust_meta(ctx, ask.delta);
	case 6:
		error = bpf_xdp_pull_data(ctx, ask.len);
		return error ?: ctx->data_end - ctx->data;
	}
	if (bpf_dynptr_from_xdp(ctx, 0, &packet))
		return 1001;
	switch (ask.what) {
	case 7:
		return bpf_dynptr_size(&packet);
	case 8:
		found = bpf_dynptr_slice(&packet, ask.offset, buffer, 16);
		return found ? mixed(found, 16) ^ (found == buffer) : 1;
	case 9:
		found = bpf_dynptr_slice_rdwr(&packet, ask.offset, buffer, 16);
		if (!found)
			return 1;
		for (int i = 0; i < 16; i++)
			found[i] ^= 0x55;
		if (found == buffer && bpf_dynptr_write(&packet, ask.offset, buffer, 16, 0))
			return 1002;
		return mixed(found, 16);
	case 10:
		found = bpf_dynptr_slice(&packet, ask.offset, NULL, 16);
		return found ? mixed(found, 16) : 1;
	case 11:
		found = bpf_map_lookup_elem(&room, &key);
		if (!found)
			return 1003;
		found = bpf_dynptr_slice(&packet, ask.offset, found, 32);
		return found ? mixed(found, 32) : 1;
	case 12:
		error = bpf_dynptr_read(bytes, len, &packet, ask.offset, 0);
		return error ?: mixed(bytes, sizeof(bytes));
	case 13:
		for (int i = 0; i < 32; i++)
			bytes[i] = 0x40 + i;
		return bpf_dynptr_write(&packet, ask.offset, bytes, len, 0);
	case 14:
		return bpf_dynptr_copy(&packet, ask.offset, &packet, ask.delta, ask.len);
	case 15:
		return bpf_dynptr_memset(&packet, ask.offset, ask.len, ask.delta);
	}
	return 1004;
}

/* Not made for packets in pieces. */
SEC("xdp")
int whole(struct xdp_md *ctx)
{
	return bpf_xdp_get_buff_len(ctx);
}

char _license[] SEC("license") = "Dual MIT/GPL";
