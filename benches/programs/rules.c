// SPDX-License-Identifier: MIT OR Apache-2.0
// Each eight bytes are a packet's five fields, which are held against sixteen rules of ranges; first match. mcpu: v3
#include "bench.h"

struct rule {
	u16 source_low, source_span, target_low, target_span;
	u8 protocol, mask;
	u16 action;
};

ENTRY(rules)
{
	const struct rule *rules = (const struct rule *)memory;
	u32 sum = 0;

	for (u64 at = 256; at + 8 <= length; at += 8) {
		const u8 *packet = memory + at;
		u16 source = (u16)(packet[0] << 8 | packet[1]), target = (u16)(packet[2] << 8 | packet[3]);
		u8 protocol = packet[4], flags = packet[5];

		for (u32 i = 0; i < 16; i++) {
			const struct rule *rule = rules + i;

			if ((u16)(source - rule->source_low) > rule->source_span)
				continue;
			if ((u16)(target - rule->target_low) > rule->target_span)
				continue;
			if ((rule->protocol ^ protocol) & 3)
				continue;
			if (rule->mask & flags & 1) {
				sum += rule->action ^ i;
				break;
			}
		}
	}
	return sum;
}
