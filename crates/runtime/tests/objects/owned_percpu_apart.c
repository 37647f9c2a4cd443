// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Forbidden uses of objects that have an instance for each CPU, and assumptions of the kernel. Each
 * is in a section of its own, which no loader loads; a test makes "xdp" of one's name. bpftool wants to know what the
 * others are all the same.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include "owned.h"

struct counter {
	__u64 sum;
	__u64 adds;
};

struct other {
	__u64 sum;
};

struct leads {
	__u64 sum;
	struct counter *to;
};

struct locked {
	struct bpf_spin_lock lock;
	__u64 sum;
};

struct large {
	__u64 words[65];
};

struct shelf {
	__u64 puts;
	struct counter __percpu_kptr *counter;
	struct counter __kptr *plain;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct shelf);
} shelves SEC(".maps");

static __always_inline struct shelf *shelf(void)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&shelves, &key);
}

SEC("?kprobe/is_left")
int is_left(void *ctx __attribute__((unused)))
{
	return !bpf_percpu_obj_new(struct counter);
}

SEC("?kprobe/drops_as_plain")
int drops_as_plain(void *ctx __attribute__((unused)))
{
	struct counter __percpu_kptr *counter = bpf_percpu_obj_new(struct counter);

	if (counter)
		bpf_obj_drop(counter);
	return 0;
}

SEC("?kprobe/drops_plain")
int drops_plain(void *ctx __attribute__((unused)))
{
	struct counter *counter = bpf_obj_new(struct counter);

	if (counter)
		bpf_percpu_obj_drop(counter);
	return 0;
}

SEC("?kprobe/makes_pointers")
int makes_pointers(void *ctx __attribute__((unused)))
{
	struct leads __percpu_kptr *leads = bpf_percpu_obj_new(struct leads);

	if (leads)
		bpf_percpu_obj_drop(leads);
	return 0;
}

SEC("?kprobe/makes_locks")
int makes_locks(void *ctx __attribute__((unused)))
{
	struct locked __percpu_kptr *locked = bpf_percpu_obj_new(struct locked);

	if (locked)
		bpf_percpu_obj_drop(locked);
	return 0;
}

SEC("?kprobe/makes_large")
int makes_large(void *ctx __attribute__((unused)))
{
	struct large __percpu_kptr *large = bpf_percpu_obj_new(struct large);

	if (large)
		bpf_percpu_obj_drop(large);
	return 0;
}

SEC("?kprobe/reads_it_directly")
int reads_it_directly(void *ctx __attribute__((unused)))
{
	struct shelf *at = shelf();
	struct counter *counter;

	if (!at)
		return 0;
	counter = (void *)at->counter;
	return counter ? counter->sum : 0;
}

SEC("?kprobe/writes_its_own_directly")
int writes_its_own_directly(void *ctx __attribute__((unused)))
{
	struct counter *counter = (void *)bpf_percpu_obj_new(struct counter);

	if (!counter)
		return 0;
	counter->sum = 1;
	bpf_percpu_obj_drop(counter);
	return 0;
}

SEC("?kprobe/asks_its_own")
int asks_its_own(void *ctx __attribute__((unused)))
{
	struct counter __percpu_kptr *counter = bpf_percpu_obj_new(struct counter);
	struct counter *mine;

	if (!counter)
		return 0;
	mine = bpf_this_cpu_ptr(counter);
	mine->sum = 1;
	bpf_percpu_obj_drop(counter);
	return 0;
}

SEC("?kprobe/trusts_every_cpu")
int trusts_every_cpu(struct xdp_md *ctx)
{
	struct counter __percpu_kptr *counter;
	struct shelf *at = shelf();
	struct counter *theirs;

	if (!at)
		return 0;
	counter = at->counter;
	if (!counter)
		return 0;
	theirs = bpf_per_cpu_ptr(counter, ctx->rx_queue_index);
	return theirs->sum;
}

SEC("?kprobe/drops_what_is_stashed")
int drops_what_is_stashed(void *ctx __attribute__((unused)))
{
	struct counter __percpu_kptr *counter;
	struct shelf *at = shelf();

	if (!at)
		return 0;
	counter = at->counter;
	if (counter)
		bpf_percpu_obj_drop(counter);
	return 0;
}

SEC("?kprobe/stashes_another")
int stashes_another(void *ctx __attribute__((unused)))
{
	struct other __percpu_kptr *other;
	struct shelf *at = shelf();

	if (!at)
		return 0;
	other = bpf_percpu_obj_new(struct other);
	if (!other)
		return 0;
	other = bpf_kptr_xchg(&at->counter, other);
	if (other)
		bpf_percpu_obj_drop(other);
	return 0;
}

SEC("?kprobe/drops_it_twice")
int drops_it_twice(void *ctx __attribute__((unused)))
{
	struct counter __percpu_kptr *counter;

	counter = bpf_percpu_obj_new(struct counter);
	if (!counter)
		return 0;
	bpf_percpu_obj_drop(counter);
	bpf_percpu_obj_drop(counter);
	return 0;
}

SEC("?kprobe/reads_behind")
int reads_behind(void *ctx __attribute__((unused)))
{
	struct counter __percpu_kptr *counter;
	struct shelf *at = shelf();
	struct counter *mine;

	if (!at)
		return 0;
	counter = at->counter;
	if (!counter)
		return 0;
	mine = bpf_this_cpu_ptr(counter);
	return (mine + 1)->sum;
}

SEC("?kprobe/stashes_as_plain")
int stashes_as_plain(void *ctx __attribute__((unused)))
{
	struct counter __percpu_kptr *counter;
	struct shelf *at = shelf();
	struct counter *old;

	if (!at)
		return 0;
	counter = bpf_percpu_obj_new(struct counter);
	if (!counter)
		return 0;
	old = bpf_kptr_xchg(&at->plain, (void *)counter);
	if (old)
		bpf_obj_drop(old);
	return 0;
}

/* Whether there is an instance of this number: for the kernel there always is. */
SEC("?kprobe/asks_beyond")
int asks_beyond(struct xdp_md *ctx)
{
	struct counter __percpu_kptr *counter, *old;
	__u32 *ask = (void *)(long)ctx->data;
	struct shelf *at = shelf();
	struct counter *theirs;

	if (!at || (void *)(ask + 1) > (void *)(long)ctx->data_end)
		return 1001;
	counter = bpf_percpu_obj_new(struct counter);
	if (!counter)
		return 1002;
	old = bpf_kptr_xchg(&at->counter, counter);
	if (old)
		bpf_percpu_obj_drop(old);
	theirs = bpf_per_cpu_ptr(counter, *ask);
	if (!theirs)
		return 0;
	theirs->sum += 1;
	return theirs->sum;
}

/* The first CPU there is. */
SEC("?kprobe/trusts_the_first")
int trusts_the_first(void *ctx __attribute__((unused)))
{
	struct counter __percpu_kptr *counter;
	struct shelf *at = shelf();

	if (!at)
		return 0;
	counter = at->counter;
	return counter ? ((struct counter *)bpf_per_cpu_ptr(counter, 0))->sum : 0;
}

/* An object that was taken out and dropped stays to the end of the runs that have loaded it before. */
SEC("?kprobe/looks_later")
int looks_later(void *ctx __attribute__((unused)))
{
	struct counter __percpu_kptr *counter, *old;
	struct shelf *at = shelf();
	struct counter *mine;

	if (!at)
		return 0;
	counter = at->counter;
	if (!counter)
		return 0;
	old = bpf_kptr_xchg(&at->counter, 0);
	if (old)
		bpf_percpu_obj_drop(old);
	mine = bpf_this_cpu_ptr(counter);
	mine->sum++;
	return 0;
}

/* A plain object has no instances: the kernel only looks at its type. */
SEC("?kprobe/stashes_plain")
int stashes_plain(void *ctx __attribute__((unused)))
{
	struct counter *counter, *old;
	struct shelf *at = shelf();

	if (!at)
		return 0;
	counter = bpf_obj_new(struct counter);
	if (!counter)
		return 0;
	old = bpf_kptr_xchg(&at->counter, (void *)counter);
	if (old)
		bpf_percpu_obj_drop(old);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
