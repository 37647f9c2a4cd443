// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A score of payments, as a scalar function of SQL.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 *
 * One run scores a batch: the columns are read where Arrow has them, and so the result is written. The loop ends where
 * the shortest column does, which is what the verifier proves the accesses by.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "batch.h"

/* Cents; set by the host before the program is loaded. */
const volatile __s64 large = 100000;

SEC("rows/score")
int score(struct rows *rows)
{
	const __s64 *amount = (const __s64 *)rows->amount, *amount_end = (const __s64 *)rows->amount_end;
	const __s64 *hour = (const __s64 *)rows->hour, *hour_end = (const __s64 *)rows->hour_end;
	__s64 *score = (__s64 *)rows->score, *score_end = (__s64 *)rows->score_end;

	while (amount + 1 <= amount_end && hour + 1 <= hour_end && score + 1 <= score_end) {
		__s64 points = 0;

		if (*amount > large)
			points += 500;
		if ((__u64)*amount % 10000 == 0)
			points += 100;
		if (*hour < 6)
			points += 300;
		*score = points;
		amount++;
		hour++;
		score++;
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
