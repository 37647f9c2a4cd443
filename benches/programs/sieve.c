// SPDX-License-Identifier: MIT OR Apache-2.0
// The sieve of Eratosthenes over `length` flags: byte stores with growing strides. mcpu: v3
#include "bench.h"

ENTRY(sieve)
{
	u32 primes = 1;

	for (u64 i = 0; i < length; i++)
		memory[i] = i & 1;
	for (u64 i = 3; i < length; i += 2) {
		if (!memory[i])
			continue;
		primes++;
		for (u64 multiple = i * i; multiple < length; multiple += 2 * i)
			memory[multiple] = 0;
	}
	return primes;
}
