// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Objects with an instance for each CPU, stashed in maps, in variables and in other objects.
 * A packet is what to do: 8 bytes of which, 4 of a key, 4 for how many CPUs there are, 8 of a value. A missing object is
 * 0, and results above 1000 are errors.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include "owned.h"

/* No more than this many are looked at. */
#define CPUS 16

struct ask {
	__u64 what;
	__u32 key;
	__u32 cpus;
	__u64 value;
};

struct part {
	__u32 low;
	__u16 high[2];
};

struct counter {
	__u64 sum;
	struct part part;
	__u64 adds;
};

struct largest {
	__u64 words[64];
};

struct shelf {
	__u64 puts;
	struct counter __percpu_kptr *counter;
	struct largest __percpu_kptr *largest;
};

struct box {
	__u64 value;
	struct counter __percpu_kptr *counter;
};

struct boxes {
	struct box __kptr *box;
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

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct boxes);
} boxes SEC(".maps");

private(A) struct counter __percpu_kptr *global;

/*
 * In the kernel what a new object holds is what the last one left there; it checks each member that is written; and it
 * takes for granted that there is an instance, whatever the number, and drops the test.
 */
static __always_inline void clear(struct counter __percpu_kptr *counter, __u32 cpus)
{
	volatile struct counter *each;
	__u32 cpu;

	for (cpu = 0; cpu < CPUS && cpu < cpus; cpu++) {
		each = bpf_per_cpu_ptr(counter, cpu);
		if (!each)
			break;
		each->sum = 0;
		each->part.low = 0;
		each->part.high[0] = 0;
		each->part.high[1] = 0;
		each->adds = 0;
	}
}

static __always_inline int put(struct shelf *shelf, __u32 cpus)
{
	struct counter __percpu_kptr *counter, *old;
	struct largest __percpu_kptr *largest;
	struct largest *mine;

	counter = bpf_percpu_obj_new(struct counter);
	if (!counter)
		return 1001;
	old = bpf_kptr_xchg(&shelf->counter, counter);
	if (old)
		bpf_percpu_obj_drop(old);
	/* The counter is read through the stash by the same variable. */
	clear(counter, cpus);
	largest = bpf_percpu_obj_new(struct largest);
	if (!largest)
		return 1002;
	largest = bpf_kptr_xchg(&shelf->largest, largest);
	if (largest)
		bpf_percpu_obj_drop(largest);
	largest = shelf->largest;
	if (!largest)
		return 305;
	mine = bpf_this_cpu_ptr(largest);
	mine->words[63] = 7;
	if (mine->words[63] != 7)
		return 1006;
	shelf->puts++;
	return 0;
}

static __always_inline int take(struct shelf *shelf)
{
	struct counter __percpu_kptr *counter = bpf_kptr_xchg(&shelf->counter, 0);
	struct largest __percpu_kptr *largest = bpf_kptr_xchg(&shelf->largest, 0);
	int taken = 0;

	if (counter) {
		taken += 1;
		bpf_percpu_obj_drop(counter);
	}
	if (largest) {
		taken += 2;
		bpf_percpu_obj_drop(largest);
	}
	return taken;
}

static __always_inline int add(struct counter __percpu_kptr *counter, __u64 value)
{
	volatile struct counter *mine;

	if (!counter)
		return 300;
	mine = bpf_this_cpu_ptr(counter);
	mine->sum += value;
	mine->part.low += 3;
	mine->part.high[1]++;
	mine->adds++;
	return 0;
}

static __always_inline int sum(struct counter __percpu_kptr *counter, __u32 cpus)
{
	__u64 sum = 0, adds = 0;
	volatile struct counter *each;
	__u32 cpu;

	if (!counter)
		return 301;
	for (cpu = 0; cpu < CPUS && cpu < cpus; cpu++) {
		each = bpf_per_cpu_ptr(counter, cpu);
		if (!each)
			break;
		sum += each->sum;
		adds += each->adds;
		if (each->part.low != (__u32)(3 * each->adds) || each->part.high[0] ||
		    each->part.high[1] != (__u16)each->adds)
			return 1007;
	}
	return (sum + 1000 * adds) % 251;
}

static __always_inline int does(struct ask *ask, struct shelf *shelf)
{
	switch (ask->what) {
	case 1:
		return put(shelf, ask->cpus);
	case 2:
		return take(shelf);
	case 3:
		return add(shelf->counter, ask->value);
	case 4:
		return sum(shelf->counter, ask->cpus);
	}
	return 1003;
}

static __always_inline struct ask *asked(struct xdp_md *ctx)
{
	struct ask *ask = (void *)(long)ctx->data;

	return (void *)(ask + 1) <= (void *)(long)ctx->data_end ? ask : 0;
}

SEC("xdp")
int each_indexed(struct xdp_md *ctx)
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
int each_keyed(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	struct shelf none = {}, *shelf;
	__u32 key;

	if (!ask)
		return 1004;
	key = ask->key & 3;
	if (ask->what == 6)
		return bpf_map_delete_elem(&named, &key) ? 303 : 0;
	bpf_map_update_elem(&named, &key, &none, BPF_NOEXIST);
	shelf = bpf_map_lookup_elem(&named, &key);
	/* Others may have deleted it. */
	return shelf ? does(ask, shelf) : 304;
}

SEC("xdp")
int each_variable(struct xdp_md *ctx)
{
	struct counter __percpu_kptr *counter, *old;
	struct ask *ask = asked(ctx);

	if (!ask)
		return 1004;
	if (ask->what == 1) {
		counter = bpf_percpu_obj_new(struct counter);
		if (!counter)
			return 1001;
		old = bpf_kptr_xchg(&global, counter);
		if (old)
			bpf_percpu_obj_drop(old);
		clear(counter, ask->cpus);
		return add(counter, 5);
	}
	return ask->what == 3 ? add(global, ask->value) : sum(global, ask->cpus);
}

/* In an object that is stashed itself. */
SEC("xdp")
int each_boxed(struct xdp_md *ctx)
{
	struct counter __percpu_kptr *counter;
	struct ask *ask = asked(ctx);
	struct boxes none = {}, *at;
	struct box *box;
	__u32 key;
	int answer;

	if (!ask)
		return 1004;
	key = ask->key & 3;
	bpf_map_update_elem(&boxes, &key, &none, BPF_NOEXIST);
	at = bpf_map_lookup_elem(&boxes, &key);
	if (!at)
		return 304;
	box = bpf_kptr_xchg(&at->box, 0);
	if (!box) {
		box = bpf_obj_new(struct box);
		if (!box)
			return 1001;
		box->value = ask->value & 63;
	}
	if (ask->what == 2) {
		answer = box->value;
		bpf_obj_drop(box);
		return answer;
	}
	counter = bpf_kptr_xchg(&box->counter, 0);
	if (!counter) {
		counter = bpf_percpu_obj_new(struct counter);
		if (!counter) {
			/* A further query finds everything as it was. */
			box = bpf_kptr_xchg(&at->box, box);
			if (box)
				bpf_obj_drop(box);
			return 1002;
		}
		answer = 306;
	} else {
		answer = 307;
	}
	if (ask->what == 3)
		bpf_percpu_obj_drop(counter);
	else {
		counter = bpf_kptr_xchg(&box->counter, counter);
		if (counter)
			bpf_percpu_obj_drop(counter);
	}
	box = bpf_kptr_xchg(&at->box, box);
	if (box)
		bpf_obj_drop(box);
	return answer + (ask->value & 3);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
