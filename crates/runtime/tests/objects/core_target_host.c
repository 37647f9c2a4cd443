// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The types that core_target.c is resolved to. Nothing here is run.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/types.h>

enum colour { GREEN = -7, RED = 9 };
enum wide { LARGE = 1ULL << 41, SMALL = 5 };
enum part { PART };

struct bits {
	__u64 lead;
	__u8 first : 2;
	__u16 second : 12;
	__u64 pad : 28;
	enum colour colour : 4;
	int third : 6;
} bits;
struct moved {
	__u32 lead;
	__u32 first : 8;
	__u32 : 4;
	__u32 third : 12;
	__u32 second : 8;
} moved;
struct flexible {
	__u64 lead;
	__u32 count;
	__u16 items[];
};
struct flexible_inner {
	__u32 kind;
	struct flexible_inner_item {
		__u16 b;
		__u64 a;
	} items[];
};
struct arrays {
	__u32 lead[3];
	__u8 bytes[8];
	__u32 words[3];
	__u16 grid[3][4];
} arrays;
struct sizes {
	__u32 lead;
	__u16 narrower;
	__u64 wider;
	int negative;
	int same;
	__u32 other;
	void *pointer;
	__u8 tail;
	enum colour colour;
} sizes;
struct kinds {
	__u64 pointer;
	__u32 inside;
	void *number;
	enum part colour;
	float real;
	__u64 list[4];
	__u64 function;
} kinds;
struct grouped {
	__u32 lead;
	union {
		struct {
			__u32 plain, inner;
		};
		__u64 both;
	};
	union {
		__u32 deep;
	} named;
	__u32 fresh;
} grouped;
typedef struct alone {
	__u64 lead;
	__u32 value;
} alone_t;
alone_t alone;
typedef __u32 number_t;
number_t number;
struct overlay {
	__u32 a;
} overlay;
struct only_declared {
	__u32 a;
} only_declared;
struct same {
	__u8 list[3];
	struct sizes *to;
	__u64 b;
	int a, c;
	enum wide wide;
} same;
struct other_sign {
	int a;
} other_sign;
struct more {
	int a;
} more;
enum colour colour;
enum wide wide;
int flexibles(struct flexible *a, struct flexible_inner *b) { return a && b; }
