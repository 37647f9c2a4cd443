// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * C's functions over memory as GCC 12 compiles them: calls of functions that no object defines.
 * compiler: bpf-gcc
 * mcpu: v3 v2 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))

struct record {
	char bytes[64];
	unsigned long words[8];
};

void *memcpy(void *to, const void *from, unsigned long n);
void *memmove(void *to, const void *from, unsigned long n);
void *memset(void *to, int byte, unsigned long n);
int memcmp(const void *a, const void *b, unsigned long n);

SEC("xdp") int copies(struct xdp_md *ctx)
{
	unsigned char *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct record a, b;

	if (data + 64 > end)
		return 1;
	memset(&a, 0, sizeof(a));
	memcpy(a.bytes, data, 64);
	b = a;
	memmove(b.bytes + 1, b.bytes, 60);
	return memcmp(a.bytes, b.bytes, 64) == 0 ? 2 : 3;
}

char LICENSE[] SEC("license") = "GPL";
