// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Functions of the host by name, declared as the host has them and otherwise.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct point {
	__u32 x;
};
struct pair {
	__u32 x, y;
};

extern __u64 emit(__u64 value) __ksym;
extern void say(const void *text, __u32 length) __ksym;
extern __u64 wider(void) __ksym;
extern void dropped(struct pair *of) __ksym;

extern __u64 fewer(__u64 a) __ksym;
extern __u64 narrow(__u32 value) __ksym;
extern __u64 swapped(__u64 length, const char *text) __ksym;
extern __u32 cut(void) __ksym;
extern _Bool whether(void) __ksym;
extern _Bool odd(void) __ksym;
extern int nothing(void) __ksym __weak;
extern __u64 smaller(struct point *of) __ksym;
extern __u64 by_value(const __u8 *value) __ksym;

/* Flavours: of a function of the host, declared as it is, and otherwise. */
extern __u64 emit___same(__u64 value) __ksym;
extern __u64 narrow___old(__u32 value) __ksym;
/* A name of which a message shows the start. */
typedef __u64 seventy_letters_are_more_than_a_message_of_the_host_shows_of_any_name_t;
extern __u64 named(seventy_letters_are_more_than_a_message_of_the_host_shows_of_any_name_t value) __ksym;

SEC("raw/agree") __u64 agree(void)
{
	static const char text[] = "hello";
	struct pair pair = { 1, 2 };

	say(text, sizeof(text) - 1);
	dropped(&pair);
	return emit(pair.x + wider());
}

SEC("raw/a") __u64 calls_fewer(void) { return fewer(1); }
SEC("raw/b") __u64 calls_narrow(void) { return narrow(1); }
SEC("raw/c") __u64 calls_swapped(void) { return swapped(1, "x"); }
SEC("raw/d") __u64 calls_cut(void) { return cut(); }
SEC("raw/e") __u64 calls_nothing(void) { return nothing(); }
SEC("raw/f") __u64 calls_smaller(void)
{
	struct point point = { 1 };

	return smaller(&point);
}
SEC("raw/g") __u64 calls_by_value(void)
{
	__u8 byte = 1;

	return by_value(&byte);
}
SEC("raw/h") __u64 calls_emit___same(void) { return emit___same(1); }
SEC("raw/i") __u64 calls_narrow___old(void) { return narrow___old(1); }
SEC("raw/j") __u64 calls_named(void) { return named(1); }
SEC("raw/k") __u64 calls_whether(void) { return whether() ? 5 : 6; }
SEC("raw/l") __u64 calls_odd(void) { return odd() ? 5 : 6; }

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
