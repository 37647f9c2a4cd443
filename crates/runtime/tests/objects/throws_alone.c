// mcpu: v3
// An exception callback that nothing calls, whatever libbpf is installed; and tags that name none.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

extern void bpf_throw(__u64 cookie) __ksym;

#define __exception_cb(name) __attribute__((btf_decl_tag("exception_callback:" #name)))

static __noinline int checks(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + 8 > end)
		bpf_throw(1);
	return *(__u8 *)data;
}

__noinline int handles(__u64 cookie)
{
	return cookie + 500;
}

SEC("xdp")
__exception_cb(handles)
int caught(struct xdp_md *ctx)
{
	return checks(ctx);
}

SEC("xdp/missing")
__exception_cb(nobody)
int missing(struct xdp_md *ctx)
{
	return checks(ctx);
}

SEC("xdp/static")
__exception_cb(checks)
int is_static(struct xdp_md *ctx)
{
	return checks(ctx);
}

char _license[] SEC("license") = "GPL";
