// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * About how many values are distinct (HyperLogLog), as an aggregate function of SQL.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 *
 * A sketch is REGISTERS bytes, each the longest run of leading zeros (and one) in the hashes of its share of the values.
 * Sketches of parts merge into that of the whole, so partitions count by themselves.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "batch.h"

#define BITS 10
#define REGISTERS (1 << BITS)

/* The finalizer of MurmurHash3. */
static __always_inline __u64 hash(__u64 value)
{
	value ^= value >> 33;
	value *= 0xff51afd7ed558ccdULL;
	value ^= value >> 33;
	value *= 0xc4ceb9fe1a85ec53ULL;
	return value ^ value >> 33;
}

/* One more than the leading zeros: BPF has no instruction for it. */
static __always_inline __u8 rank(__u64 bits)
{
	__u8 rank = 1;

	for (int width = 32; width; width >>= 1) {
		if (bits >> (64 - width))
			continue;
		rank += width;
		bits <<= width;
	}
	return rank;
}

SEC("sketch/add")
int add(struct sketch *sketch)
{
	const __u64 *value = (const __u64 *)sketch->values, *end = (const __u64 *)sketch->values_end;
	__u8 *registers = sketch->registers;

	if (registers + REGISTERS > sketch->registers_end)
		return 1;
	for (; value + 1 <= end; value++) {
		__u64 bits = hash(*value);
		__u8 *of = &registers[bits >> (64 - BITS)];
		/* The last bit ends the run if no other does. */
		__u8 found = rank(bits << BITS | 1ULL << (BITS - 1));

		if (found > *of)
			*of = found;
	}
	return 0;
}

/* The values are another sketch. */
SEC("sketch/merge")
int merge(struct sketch *sketch)
{
	const __u8 *other = sketch->values;
	__u8 *registers = sketch->registers;

	if (registers + REGISTERS > sketch->registers_end || other + REGISTERS > sketch->values_end)
		return 1;
	for (int i = 0; i < REGISTERS; i++)
		if (other[i] > registers[i])
			registers[i] = other[i];
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
