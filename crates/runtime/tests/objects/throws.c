// mcpu: v3
// Exceptions: thrown at each depth, by global and static functions, by the target of a tail call; and handled.
// A packet is where to throw, and what.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

extern void bpf_throw(__u64 cookie) __ksym;

#define __exception_cb(name) __attribute__((btf_decl_tag("exception_callback:" #name)))

struct ask {
	__u64 where;
	__u64 what;
};

static __always_inline struct ask *asked(struct xdp_md *ctx)
{
	struct ask *ask = (void *)(long)ctx->data;

	return (void *)(ask + 1) <= (void *)(long)ctx->data_end ? ask : 0;
}

__u64 left, handled;

static __noinline __u64 third(__u64 where, __u64 what)
{
	if (where == 3)
		bpf_throw(what);
	return what * 3;
}

static __noinline __u64 second(__u64 where, __u64 what)
{
	__u64 below = third(where, what + 1);

	if (where == 2)
		bpf_throw(what);
	left += 1;
	return below + what;
}

__noinline __u64 global(__u64 where, __u64 what)
{
	if (where == 4)
		bpf_throw(what ^ 5);
	return second(where, what) + 7;
}

static __noinline __u64 first(__u64 where, __u64 what)
{
	__u64 sum = second(where, what) ^ where;

	if (where == 1)
		bpf_throw(what);
	return sum + global(where, what + 2);
}

static __always_inline __u64 all(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	__u64 kept = 0;

	if (!ask)
		return 0;
	if (ask->where == 9)
		bpf_throw(ask->what);
	kept = ask->what * 5;
	return first(ask->where, ask->what) + kept;
}

SEC("xdp")
int thrown(struct xdp_md *ctx)
{
	return all(ctx);
}

__noinline int handles(__u64 cookie)
{
	handled += 1;
	return cookie + 1000 * handled;
}

// An older libbpf than the tag puts into a program only what it refers to.
const volatile __u32 never;

SEC("xdp")
__exception_cb(handles)
int caught(struct xdp_md *ctx)
{
	if (never)
		return bpf_loop(1, handles, 0, 0);
	return all(ctx);
}

// In a loop: many rounds before one throws.
SEC("xdp")
int looped(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	__u64 sum = 0;
	int i;

	if (!ask)
		return 0;
	for (i = 0; i < 20; i++)
		sum += third(i == (int)ask->where ? 3 : 0, ask->what + i) & 0xff;
	return sum;
}

// Through the address of a function.
static __noinline __u64 adds(__u64 what)
{
	if (what == 11)
		bpf_throw(110);
	return what + 1;
}

static __noinline __u64 takes(__u64 what)
{
	if (what == 12)
		bpf_throw(120);
	return what - 1;
}

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__array(values, int (struct xdp_md *));
} progs SEC(".maps") = {
	.values = { (void *)&thrown },
};

static __noinline int jumps(struct xdp_md *ctx)
{
	int missed = 1;

	bpf_tail_call(ctx, &progs, 0);
	// Keeps the compiler from taking it for the only result.
	asm volatile("" : "+r"(missed));
	return missed;
}

// An exception of another program ends that program, and this one continues behind its function.
SEC("xdp")
int jumped(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	__u64 where;
	int there;

	if (!ask)
		return 0;
	where = ask->where;
	there = jumps(ctx);
	left += 1;
	if (where == 5)
		bpf_throw(there);
	return there + 100000 + adds(where) + takes(where);
}

char _license[] SEC("license") = "GPL";
