// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Objects looked at where they are stashed, without taking them out.
 * A packet is what to do: 8 bytes of which, 8 of a key, 8 of a value. A missing object is 0, and results above 1000
 * are errors.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include "owned.h"

struct ask {
	__u64 what;
	__u64 key;
	__u64 value;
};

struct plain {
	__u64 value;
	__u64 looks;
};

struct counted {
	__u64 value;
	struct bpf_refcount owners;
	__u64 twice;
};

struct shelf {
	__u64 puts;
	struct plain __kptr *plain;
	struct counted __kptr *counted;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct shelf);
} shelves SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct shelf);
} named SEC(".maps");

private(A) struct plain __kptr *global;

static __always_inline int put(struct shelf *shelf, __u64 value)
{
	struct counted *counted;
	struct plain *plain;

	plain = bpf_obj_new(struct plain);
	if (!plain)
		return 1001;
	plain->value = value;
	/* In the kernel what a new object holds is what the last one left there. */
	plain->looks = 0;
	plain = bpf_kptr_xchg(&shelf->plain, plain);
	if (plain)
		bpf_obj_drop(plain);
	counted = bpf_obj_new(struct counted);
	if (!counted)
		return 1002;
	counted->value = value;
	counted->twice = 2 * value;
	counted = bpf_kptr_xchg(&shelf->counted, counted);
	if (counted)
		bpf_obj_drop(counted);
	shelf->puts++;
	return 0;
}

static __always_inline int take(struct shelf *shelf)
{
	struct counted *counted = bpf_kptr_xchg(&shelf->counted, 0);
	struct plain *plain = bpf_kptr_xchg(&shelf->plain, 0);
	int sum = 0;

	if (counted) {
		sum += counted->value;
		bpf_obj_drop(counted);
	}
	if (plain) {
		sum += plain->value;
		bpf_obj_drop(plain);
	}
	return sum;
}

/* Some of the loaded objects are written as well. */
static __always_inline int look(struct shelf *shelf)
{
	struct plain *plain = shelf->plain;

	if (!plain)
		return 300;
	plain->looks++;
	return (plain->value + plain->looks) & 255;
}

/* Takes another reference to the loaded object, which keeps it when it is stashed no more. */
static __always_inline int share(struct shelf *shelf)
{
	struct counted *seen = shelf->counted, *mine, *old;
	int answer;

	if (!seen)
		return 301;
	mine = bpf_refcount_acquire(seen);
	if (!mine)
		return 302;
	old = bpf_kptr_xchg(&shelf->counted, 0);
	if (old)
		bpf_obj_drop(old);
	/* Nobody owns the one by the first name any more, but its memory is there. */
	answer = mine->twice + seen->value != 3 * mine->value;
	old = bpf_kptr_xchg(&shelf->counted, mine);
	if (old)
		bpf_obj_drop(old);
	return answer;
}

static __always_inline int does(struct ask *ask, struct shelf *shelf)
{
	switch (ask->what) {
	case 1:
		return put(shelf, ask->value & 127);
	case 2:
		return take(shelf);
	case 3:
		return look(shelf);
	case 4:
		return share(shelf);
	}
	return 1003;
}

static __always_inline struct ask *asked(struct xdp_md *ctx)
{
	struct ask *ask = (void *)(long)ctx->data;

	return (void *)(ask + 1) <= (void *)(long)ctx->data_end ? ask : 0;
}

SEC("xdp")
int indexed(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	struct shelf *shelf;
	__u32 key;

	if (!ask)
		return 1004;
	key = ask->key & 3;
	shelf = bpf_map_lookup_elem(&shelves, &key);
	return shelf ? does(ask, shelf) : 1005;
}

SEC("xdp")
int keyed(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	struct shelf none = {}, *shelf;
	__u32 key;

	if (!ask)
		return 1004;
	key = ask->key & 3;
	if (ask->what == 5)
		return bpf_map_delete_elem(&named, &key) ? 303 : 0;
	bpf_map_update_elem(&named, &key, &none, BPF_NOEXIST);
	shelf = bpf_map_lookup_elem(&named, &key);
	/* Others may have deleted it. */
	return shelf ? does(ask, shelf) : 304;
}

SEC("xdp")
int variable(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	struct plain *plain;

	if (!ask)
		return 1004;
	if (ask->what == 1) {
		plain = bpf_obj_new(struct plain);
		if (!plain)
			return 1001;
		plain->value = ask->value & 127;
		plain = bpf_kptr_xchg(&global, plain);
		if (plain)
			bpf_obj_drop(plain);
		return 0;
	}
	plain = global;
	return plain ? (int)plain->value : 300;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
