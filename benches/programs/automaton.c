// SPDX-License-Identifier: MIT OR Apache-2.0
// A hand-written automaton that counts numbers, words and quoted strings among bytes. mcpu: v3
#include "bench.h"

enum state { BETWEEN, NUMBER, WORD, QUOTED, ESCAPED };

ENTRY(automaton)
{
	u32 state = BETWEEN, numbers = 0, words = 0, strings = 0;

	for (u64 i = 0; i < length; i++) {
		u8 c = memory[i] & 127;

		switch (state) {
		case BETWEEN:
			if (c >= '0' && c <= '9')
				state = NUMBER;
			else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_')
				state = WORD;
			else if (c == '"')
				state = QUOTED;
			break;
		case NUMBER:
			if (c < '0' || c > '9') {
				numbers++;
				state = BETWEEN;
			}
			break;
		case WORD:
			if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_')) {
				words++;
				state = BETWEEN;
			}
			break;
		case QUOTED:
			if (c == '"') {
				strings++;
				state = BETWEEN;
			} else if (c == '\\') {
				state = ESCAPED;
			}
			break;
		default:
			state = QUOTED;
		}
	}
	return numbers << 20 | words << 8 | strings;
}
