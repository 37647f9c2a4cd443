// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * References to the outside: host functions (required, optional), the kernel's version, weak and required variables.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

extern __u64 host_now(void) __ksym;
extern int host_log(__u64 value, __u32 level) __ksym;
extern int host_optional(__u64 value) __ksym __weak;
extern int LINUX_KERNEL_VERSION __kconfig;
extern int CONFIG_MISSING __kconfig __weak;
extern int CONFIG_REQUIRED __kconfig;
extern const void weak_symbol __ksym __weak;
extern const void required_symbol __ksym;

SEC("socket")
int calls_host(void *ctx)
{
	(void)ctx;
	return host_log(host_now(), 3) + host_log(1, 2);
}

SEC("socket")
int calls_optional(void *ctx)
{
	(void)ctx;
	if (&host_optional)
		return host_optional(5);
	return -1;
}

SEC("socket")
int kernel_version(void *ctx)
{
	(void)ctx;
	return LINUX_KERNEL_VERSION + CONFIG_MISSING;
}

SEC("socket")
int weak_variable(void *ctx)
{
	(void)ctx;
	return &weak_symbol != 0;
}

SEC("socket")
int required_config(void *ctx)
{
	(void)ctx;
	return CONFIG_REQUIRED;
}

SEC("socket")
int required_variable(void *ctx)
{
	(void)ctx;
	return (long)&required_symbol;
}

char LICENSE[] SEC("license") = "GPL";
