// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A plug-in that logs: by the host's function of a name, with a level, and by the kernel's helper.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

extern void write_log(__u32 level, const void *text, __u64 length) __ksym;

/* The context: a level, and the text. */
SEC("raw/logs")
__u64 logs(const __u8 *bytes, __u64 len)
{
	if (len < 2)
		return 0;
	write_log(bytes[0], bytes + 1, len - 1);
	return 1;
}

/* Prints as many lines as the context has bytes. */
SEC("raw/prints")
__u64 prints(const __u8 *bytes, __u64 len)
{
	__u64 i;

	(void)bytes;
	for (i = 0; i < len; i++)
		bpf_printk("line %d", i);
	return i;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
