// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The kernel's functions that are called by name, and the helpers on text, over a raw context: r1 = bytes, r2 = their
 * number. The kernel's loader takes the same source; nothing here is known to it that is not to the kernel.
 * mcpu: v4 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct bpf_iter_num {
	__u64 opaque;
} __attribute__((aligned(8)));

extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym __weak;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym __weak;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym __weak;
extern void bpf_rcu_read_lock(void) __ksym;
extern void bpf_rcu_read_unlock(void) __ksym;
extern void bpf_unheard_of(void) __ksym __weak;

/* A loop over a range, ended however it is left: the iterator's scope is the loop. */
#define FOR(i, start, end)                                                                                       \
	for (struct bpf_iter_num it_##i __attribute__((cleanup(bpf_iter_num_destroy))) = { 0 },                 \
				 *at_##i = (bpf_iter_num_new(&it_##i, (start), (end)), &it_##i);                \
	     ({                                                                                                 \
		     int *next_##i = bpf_iter_num_next(at_##i);                                                 \
		     int more_##i = next_##i ? ((i) = *next_##i, (i) >= (start) && (i) < (end)) : 0;             \
		     more_##i;                                                                                  \
	     });)
/* Whether the loader has found it. */
#define EXISTS(function) (!!(void *)(function))

#define NOTE(out, result) ((out) = (out) << 8 | ((__u64)(result) & 0xff))

SEC("raw/sum")
__u64 sum(void)
{
	__u64 total = 0;
	int i;

	FOR(i, -3, 100)
		total += i;
	return total;
}

/* Loops in loops, left early, begun again. */
SEC("raw/nested")
__u64 nested(void)
{
	__u64 rounds = 0;
	int i, j, k;

	bpf_rcu_read_lock();
	FOR(i, 0, 10) {
		FOR(j, i, 20) {
			if (j == 15)
				break;
			rounds++;
		}
		FOR(k, 0, 3)
			rounds += 1000;
		if (i == 7)
			break;
	}
	bpf_rcu_read_unlock();
	return rounds;
}

__u32 squares[16];

/* The element indexes memory: its bounds are known. */
SEC("raw/indexed")
__u64 indexed(void)
{
	__u64 total = 0;
	int i;

	FOR(i, 0, 16)
		squares[i] = i * i;
	FOR(i, 0, 16)
		total += squares[i];
	return total;
}

/* Told at once: the pointer ends with the iterator. */
static __always_inline int more(struct bpf_iter_num *p)
{
	int more = bpf_iter_num_next(p) != 0;

	asm volatile("" : "+r"(more));
	return more;
}

/* Empty ranges, errors, and what there is after the end. */
SEC("raw/edges")
__u64 edges(void)
{
	struct bpf_iter_num it, *p = &it;
	__u64 out = 0;

	NOTE(out, bpf_iter_num_new(p, 5, 5));
	NOTE(out, more(p));
	NOTE(out, more(p));
	bpf_iter_num_destroy(p);
	NOTE(out, bpf_iter_num_new(p, 6, 5));
	NOTE(out, more(p));
	bpf_iter_num_destroy(p);
	NOTE(out, bpf_iter_num_new(p, 0, 9000000));
	bpf_iter_num_destroy(p);
	NOTE(out, EXISTS(bpf_iter_num_new));
	NOTE(out, EXISTS(bpf_unheard_of));
	return out;
}

const char word[8] = "needle";

SEC("raw/text")
__u64 text(void)
{
	static const char fmt[] = "%d-%s%%"; /* follows an address */
	static const char good[] = "%d|%-4x|%05lld";
	__u64 args[3] = { -7, 0xab, 42 };
	char out[12];
	__u64 notes = 0;

	NOTE(notes, bpf_snprintf(out, sizeof(out), good, args, sizeof(args)));
	NOTE(notes, out[0]);
	NOTE(notes, out[10]);
	NOTE(notes, out[11]);
	NOTE(notes, bpf_snprintf(out, sizeof(out), fmt, args, 16));
	NOTE(notes, bpf_strncmp("needles", 6, word));
	NOTE(notes, bpf_strncmp("needles", 7, word));
	NOTE(notes, bpf_snprintf((void *)0, 0, good, args, 24));
	bpf_printk("%d %d %d %d", 1, 2, 3, 4);
	bpf_printk("plain");
	return notes;
}
