// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Functions called by name, on the packet's content: two texts of 32 bytes, or words, behind the request.
 * mcpu: v4 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

/* The headers of the host may be older than the functions. */
struct bpf_iter_bits {
	__u64 opaque[2];
} __attribute__((aligned(8)));
struct bpf_map {
};

extern int bpf_strcmp(const char *a, const char *b) __ksym;
extern int bpf_strcasecmp(const char *a, const char *b) __ksym;
extern int bpf_strchr(const char *s, char c) __ksym;
extern int bpf_strchrnul(const char *s, char c) __ksym;
extern int bpf_strnchr(const char *s, __u64 count, char c) __ksym;
extern int bpf_strrchr(const char *s, int c) __ksym;
extern int bpf_strlen(const char *s) __ksym;
extern int bpf_strnlen(const char *s, __u64 count) __ksym;
extern int bpf_strspn(const char *s, const char *accept) __ksym;
extern int bpf_strcspn(const char *s, const char *reject) __ksym;
extern int bpf_strstr(const char *a, const char *b) __ksym;
extern int bpf_strnstr(const char *a, const char *b, __u64 len) __ksym;
extern int bpf_iter_bits_new(struct bpf_iter_bits *it, const __u64 *words, __u32 count) __ksym;
extern int *bpf_iter_bits_next(struct bpf_iter_bits *it) __ksym;
extern void bpf_iter_bits_destroy(struct bpf_iter_bits *it) __ksym;
extern __s64 bpf_map_sum_elem_count(const struct bpf_map *map) __ksym;
extern void bpf_local_irq_save(unsigned long *flags) __ksym;
extern void bpf_local_irq_restore(unsigned long *flags) __ksym;
extern int bpf_dynptr_from_skb_meta(struct __sk_buff *skb, __u64 flags, struct bpf_dynptr *ptr) __ksym;
extern __u32 bpf_dynptr_size(const struct bpf_dynptr *ptr) __ksym;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, __u32);
} flows SEC(".maps");

struct request {
	__u32 what;
	__u32 number;
	char a[32], b[32];
};

static struct request *request(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	return data + sizeof(struct request) > end ? NULL : data;
}

SEC("xdp")
int strings(struct xdp_md *ctx)
{
	struct request *in = request(ctx);
	char a[33], b[33];

	if (!in)
		return 1000;
	__builtin_memcpy(a, in->a, 32);
	__builtin_memcpy(b, in->b, 32);
	a[32] = b[32] = 0;
	switch (in->what) {
	case 0:
		return bpf_strcmp(a, b);
	case 1:
		return bpf_strcasecmp(a, b);
	case 2:
		return bpf_strchr(a, in->number);
	case 3:
		return bpf_strchrnul(a, in->number);
	case 4:
		return bpf_strnchr(a, in->number >> 8, in->number);
	case 5:
		return bpf_strrchr(a, in->number);
	case 6:
		return bpf_strlen(a);
	case 7:
		return bpf_strnlen(a, in->number);
	case 8:
		return bpf_strspn(a, b);
	case 9:
		return bpf_strcspn(a, b);
	case 10:
		return bpf_strstr(a, b);
	case 11:
		return bpf_strnstr(a, b, in->number);
	case 12:
		return bpf_strlen(NULL);
	}
	return 1001;
}

/* Iterates over the bits that are set in up to four words, and adds them up to one number. */
SEC("xdp")
int bits(struct xdp_md *ctx)
{
	struct request *in = request(ctx);
	int error, sum = 0, *bit;
	__u64 words[4];
	struct bpf_iter_bits it;

	if (!in)
		return 1000;
	__builtin_memcpy(words, in->a, sizeof(words));
	error = bpf_iter_bits_new(&it, words, in->number);
	while ((bit = bpf_iter_bits_next(&it)))
		sum = sum * 31 + *bit;
	if (bpf_iter_bits_next(&it))
		sum = 1001;
	/* Not looked at again once the iterator is gone. */
	asm volatile("" : "+r"(sum));
	bpf_iter_bits_destroy(&it);
	return error ?: sum;
}

SEC("xdp")
int counted(struct xdp_md *ctx)
{
	struct request *in = request(ctx);
	unsigned long flags;
	__u32 key;

	if (!in)
		return 1000;
	bpf_local_irq_save(&flags);
	for (__u32 i = 0; i < 12; i++) {
		key = i;
		if (i < (in->number & 15))
			bpf_map_update_elem(&flows, &key, &key, 0);
	}
	bpf_local_irq_restore(&flags);
	key = 1;
	bpf_map_delete_elem(&flows, &key);
	return bpf_map_sum_elem_count((void *)&flows);
}

SEC("tc")
int before(struct __sk_buff *skb)
{
	struct bpf_dynptr meta;
	__u32 bytes = 0;
	int error;

	if (bpf_dynptr_from_skb_meta(skb, 1, &meta) != -22)
		return 1000;
	error = bpf_dynptr_from_skb_meta(skb, 0, &meta);
	if (error)
		return error;
	error = bpf_dynptr_read(&bytes, sizeof(bytes), &meta, 0, 0);
	return bpf_dynptr_size(&meta) << 8 | (error & 255);
}

char _license[] SEC("license") = "Dual MIT/GPL";
