// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * CO-RE relocations against the types of another host (core_target_host.c). The packet's bytes are 0, 1, 2, ..., and its
 * start is taken for a structure of that host.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#pragma clang diagnostic ignored "-Wunused-parameter"
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

enum colour { RED = 1, GREEN = 2, NO_COLOUR = 3 };
enum wide { SMALL = 1, LARGE = 1ULL << 40 };

struct bits {
	__u32 first : 4;
	__u32 second : 12;
	int third : 6;
	__u32 askew : 8;
	enum colour colour : 3;
};
struct moved {
	__u32 first : 8;
	__u32 second : 8;
	__u32 third : 12;
};
struct flexible {
	__u32 count;
	__u16 items[];
};
struct flexible_inner {
	__u8 kind;
	struct flexible_inner_item {
		__u32 a;
		__u16 b;
	} items[];
};
struct arrays {
	__u8 bytes[4];
	__u32 words[4];
	__u16 grid[2][3];
	__u32 single;
};
struct sizes {
	__u64 narrower;
	__u32 wider;
	long long negative;
	int same;
	void *pointer;
	enum colour colour;
};
struct kinds {
	struct sizes *pointer;
	struct sizes inside;
	__u32 number;
	enum colour colour;
	float real;
	__u32 list[2];
	void (*function)(int);
};
struct grouped {
	__u32 plain;
	struct {
		__u32 deep;
	} named;
	__u32 inner;
};
struct grouped___renamed {
	__u32 fresh;
};
typedef struct alone {
	__u32 value;
} alone_t;
typedef __u64 number_t;
struct absent {
	__u32 value;
};
struct only_declared;
union overlay {
	__u32 a;
};
struct same {
	int a;
	__u64 b;
	struct sizes *to;
	enum wide wide;
	__u8 list[3];
};
struct other_sign {
	unsigned int a;
};
struct more {
	int a, b;
};

#pragma clang attribute pop

#define LOOK(type)                                                                                                     \
	struct type *q = (void *)(long)ctx->data;                                                                       \
	if ((void *)q + 64 > (void *)(long)ctx->data_end)                                                               \
	return -1
#define BYTES ((__u8 *)(long)ctx->data)

SEC("xdp") int bits_second(struct xdp_md *ctx) { LOOK(bits); return BPF_CORE_READ_BITFIELD(q, second); }
SEC("xdp") int bits_third(struct xdp_md *ctx) { LOOK(bits); return BPF_CORE_READ_BITFIELD(q, third); }
SEC("xdp") int bits_colour(struct xdp_md *ctx) { LOOK(bits); return BPF_CORE_READ_BITFIELD(q, colour); }
SEC("xdp") int bits_direct(struct xdp_md *ctx) { LOOK(moved); return q->second; }
SEC("xdp") int bits_askew(struct xdp_md *ctx) { LOOK(moved); return q->third; }
SEC("xdp") int bits_exist(struct xdp_md *ctx)
{
	return bpf_core_field_exists(((struct bits *)0)->second) +
	       2 * __builtin_preserve_field_info(((struct bits *)0)->third, BPF_FIELD_SIGNED) +
	       4 * __builtin_preserve_field_info(((struct bits *)0)->second, BPF_FIELD_SIGNED);
}
SEC("xdp") int flexible_item(struct xdp_md *ctx) { LOOK(flexible); return q->items[3]; }
SEC("xdp") int flexible_exists(struct xdp_md *ctx)
{
	return bpf_core_field_exists(((struct flexible *)0)->items[100]) +
	       2 * bpf_core_field_exists(((struct flexible_inner *)0)->items[7].b);
}
SEC("xdp") int flexible_member(struct xdp_md *ctx) { LOOK(flexible_inner); return q->items[1].b; }
SEC("xdp") int array_element(struct xdp_md *ctx) { LOOK(arrays); return q->words[2]; }
SEC("xdp") int array_of_arrays(struct xdp_md *ctx) { LOOK(arrays); return q->grid[1][1]; }
SEC("xdp") int array_first_bytes(struct xdp_md *ctx) { LOOK(arrays); return *(__u32 *)q->bytes; }
SEC("xdp") int array_store(struct xdp_md *ctx)
{
	LOOK(arrays);
	*(__u32 *)q->bytes = 0xaabbccdd;
	return *(__u32 *)(BYTES + 12) == 0xaabbccdd && BYTES[16] == 16;
}
SEC("xdp") int array_bounds(struct xdp_md *ctx)
{
	return bpf_core_field_exists(((struct arrays *)0)->words[2]) +
	       2 * bpf_core_field_exists(((struct arrays *)0)->words[3]) +
	       4 * bpf_core_field_exists(((struct arrays *)0)->single);
}
SEC("xdp") int sizes_narrower(struct xdp_md *ctx) { LOOK(sizes); return q->narrower == 0x0504; }
SEC("xdp") int sizes_narrower_store(struct xdp_md *ctx)
{
	LOOK(sizes);
	q->narrower = ~0ULL;
	return BYTES[5] == 0xff && BYTES[6] == 6;
}
SEC("xdp") int sizes_wider(struct xdp_md *ctx) { LOOK(sizes); return q->wider; }
SEC("xdp") int sizes_same(struct xdp_md *ctx) { LOOK(sizes); return q->same; }
SEC("xdp") int sizes_negative(struct xdp_md *ctx) { LOOK(sizes); return q->negative < 0; }
SEC("xdp") int sizes_colour(struct xdp_md *ctx) { LOOK(sizes); return q->colour; }
SEC("xdp") int kinds_exist(struct xdp_md *ctx)
{
	return bpf_core_field_exists(((struct kinds *)0)->pointer) +
	       2 * bpf_core_field_exists(((struct kinds *)0)->inside) +
	       4 * bpf_core_field_exists(((struct kinds *)0)->number) +
	       8 * bpf_core_field_exists(((struct kinds *)0)->colour) +
	       16 * bpf_core_field_exists(((struct kinds *)0)->real) +
	       32 * bpf_core_field_exists(((struct kinds *)0)->list) +
	       64 * bpf_core_field_exists(((struct kinds *)0)->function);
}
SEC("xdp") int kinds_number(struct xdp_md *ctx) { LOOK(kinds); return q->number; }
SEC("xdp") int grouped_read(struct xdp_md *ctx)
{
	LOOK(grouped);
	struct grouped___renamed *r = (void *)q;
	return (q->plain == 0x0b0a0908) + 2 * (q->named.deep == 0x13121110) + 4 * (q->inner == 0x0f0e0d0c) +
	       8 * (r->fresh == 0x17161514);
}
SEC("xdp") int typedefs(struct xdp_md *ctx)
{
	struct alone *q = (void *)(long)ctx->data;
	if ((void *)q + 64 > (void *)(long)ctx->data_end)
		return -1;
	return (q->value == 0x0b0a0908) + 2 * bpf_core_type_exists(alone_t) + 4 * bpf_core_type_exists(number_t) +
	       8 * (bpf_core_type_size(number_t) == 4);
}
SEC("xdp") int missing(struct xdp_md *ctx)
{
	return bpf_core_type_exists(struct absent) + bpf_core_type_size(struct absent) +
	       bpf_core_field_exists(((struct absent *)0)->value) + bpf_core_type_matches(struct absent) +
	       bpf_core_type_id_kernel(struct absent) + bpf_core_type_exists(union overlay) +
	       bpf_core_type_exists(struct only_declared);
}
SEC("xdp") int missing_read(struct xdp_md *ctx) { LOOK(absent); return q->value; }
SEC("xdp") int enums(struct xdp_md *ctx)
{
	return (bpf_core_type_size(enum wide) == 8) + 2 * (bpf_core_enum_value(enum wide, LARGE) == 1ULL << 41) +
	       4 * bpf_core_enum_value_exists(enum colour, NO_COLOUR) +
	       8 * ((int)bpf_core_enum_value(enum colour, GREEN) == -7) +
	       16 * (bpf_core_type_size(enum colour) == 4);
}
SEC("xdp") int matches(struct xdp_md *ctx)
{
	return bpf_core_type_matches(struct same) + 2 * bpf_core_type_matches(struct other_sign) +
	       4 * bpf_core_type_matches(struct more) + 8 * bpf_core_type_matches(enum wide) +
	       16 * bpf_core_type_matches(enum colour);
}

char _license[] SEC("license") = "GPL";
