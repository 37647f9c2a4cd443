// mcpu: v3 v4
//
// Loops over packets, between data and data_end.
#include <linux/bpf.h>
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used))
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

SEC("xdp/sum") int sum(struct xdp_md *ctx) {
	u8 *data = (u8 *)(long)ctx->data, *data_end = (u8 *)(long)ctx->data_end;
	u32 sum = 0;
	for (u8 *p = data; p < data_end; p++)
		sum += *p;
	return sum & 1 ? XDP_DROP : XDP_PASS;
}

// The Internet checksum over 16-bit words.
SEC("xdp/checksum") int checksum(struct xdp_md *ctx) {
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	u32 sum = 0;
	u16 *w = data;
	while ((void *)(w + 1) <= data_end) {
		sum += *w;
		w++;
	}
	sum = (sum & 0xffff) + (sum >> 16);
	return (u16)sum == 0xffff ? XDP_PASS : XDP_DROP;
}

// TCP options: variable steps.
SEC("xdp/options") int options(struct xdp_md *ctx) {
	u8 *p = (u8 *)(long)ctx->data, *end = (u8 *)(long)ctx->data_end;
	while (p + 2 <= end) {
		if (p[0] == 0)
			break;
		if (p[0] == 1) {
			p++;
			continue;
		}
		u8 n = p[1];
		if (n < 2)
			return XDP_DROP;
		if (p[0] == 8)
			return XDP_TX;
		p += n;
	}
	return XDP_PASS;
}

// Is a name in the payload?
SEC("xdp/search") int search(struct xdp_md *ctx) {
	u8 *data = (u8 *)(long)ctx->data, *data_end = (u8 *)(long)ctx->data_end;
	static const char name[4] = "host";
	for (u8 *p = data; p + 4 <= data_end; p++) {
		int i;
		for (i = 0; i < 4; i++)
			if (p[i] != name[i])
				break;
		if (i == 4)
			return XDP_DROP;
	}
	return XDP_PASS;
}

// Copies the head of the packet to its tail, by index.
SEC("xdp/swap") int swap(struct xdp_md *ctx) {
	u8 *data = (u8 *)(long)ctx->data, *data_end = (u8 *)(long)ctx->data_end;
	u32 len = data_end - data;
	for (u32 i = 0; i < 64; i++) {
		if (data + i + 1 > data_end)
			break;
		data[i] ^= 0x55;
	}
	return len > 60 ? XDP_PASS : XDP_DROP;
}
