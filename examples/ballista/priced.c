// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Amounts at the rate of their hour, as a scalar function of SQL. The host knows the rates.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 *
 * Columns of different lengths are an error, so that the loop has one condition to end by, for which a proof is found.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "../datafusion/batch.h"

/* Thousandths. */
extern __u64 rate(__u64 hour) __ksym;

/* Thousandths too; set by the sender of the function. */
const volatile __u64 fee = 0;

SEC("rows/priced")
int priced(struct rows *rows)
{
	const __u64 *amount = (const __u64 *)rows->amount, *amount_end = (const __u64 *)rows->amount_end;
	const __u64 *hour = (const __u64 *)rows->hour, *hour_end = (const __u64 *)rows->hour_end;
	__u64 *price = (__u64 *)rows->score, *price_end = (__u64 *)rows->score_end;

	for (; amount + 1 <= amount_end; amount++, hour++, price++) {
		if (hour + 1 > hour_end || price + 1 > price_end)
			return 1;
		*price = *amount * (rate(*hour) + fee) / 1000;
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
