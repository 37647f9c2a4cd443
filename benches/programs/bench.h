/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Shared by the speed programs. Each is one C function over (memory, length) that is built twice: for BPF v3 (what
 * every peer knows), and natively as the yardstick.
 *
 * The programs use only features that every engine has: no maps, no helpers, no global data; subprograms in the same section as
 * the entry and after it, so that the section's bytes are the whole, linked program. Loops are bounded by `length`, which
 * is a constant where the kernel's verifier looks (the bench puts `r1 = memory; r2 = length` in front). Results have
 * 32 bits, as the kernel's test run reports no more.
 */
#ifndef BENCH_H
#define BENCH_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#ifdef __bpf__
#define SECTION __attribute__((section("bench")))
#else
#define SECTION
#endif

/* Copies of the native form (build.rs): each has a name of its own, and lies elsewhere in its cache line. */
#ifdef PLACE
#define NAMED(name, form, place) bench_##name##_##form##_##place
#define COPY(name, form, place) NAMED(name, form, place)
#define FUNCTION(name) COPY(name, FORM, PLACE)
#define QUOTED(text) #text
#define TEXT(text) QUOTED(text)
__asm__(".text\n.p2align 6\n.skip 16 * " TEXT(PLACE));
#else
#define FUNCTION(name) bench_##name
#endif

#define ENTRY(name)                                             \
	SECTION u32 FUNCTION(name)(u8 *memory, u64 length);     \
	u32 FUNCTION(name)(u8 *memory, u64 length)

#define NOINLINE static __attribute__((noinline)) SECTION
#define INLINE static inline __attribute__((always_inline))

#endif
