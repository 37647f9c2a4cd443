// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The types that core_candidates.c is resolved to: two of each name, in scopes of their own. Nothing here is run.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/types.h>

#define KEEP __attribute__((used))

void one(void)
{
	enum level { LOW = 3 };
	static KEEP struct twice {
		__u32 pad[3];
		__u32 in_first;
	} twice;
	static KEEP struct differs {
		__u32 pad;
		__u32 value;
	} differs;
	static KEEP struct agrees {
		__u32 pad[2];
		__u32 value;
		__u32 only_here;
	} agrees;
	static KEEP enum level level;
}

void other(void)
{
	enum level { HIGH = 5 };
	static KEEP struct twice {
		__u64 pad[2];
		__u32 in_second;
	} twice;
	static KEEP struct differs {
		__u64 pad;
		__u32 value;
	} differs;
	static KEEP struct agrees {
		__u64 pad;
		__u32 value;
	} agrees;
	static KEEP enum level level;
}
