// SPDX-License-Identifier: MIT OR Apache-2.0
// Nothing at all: the cost of a call. mcpu: v3
#include "bench.h"

ENTRY(empty)
{
	(void)memory;
	(void)length;
	return 0;
}
