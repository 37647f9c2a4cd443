// mcpu: v3
// Work for later (`struct bpf_wq`), beside a timer and without: what each function answers, and what callbacks are given.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#pragma clang diagnostic ignored "-Wunused-parameter"

struct bpf_wq {
	__u64 __opaque[2];
} __attribute__((aligned(8)));

extern int bpf_wq_init(struct bpf_wq *wq, void *map, unsigned int flags) __ksym;
extern int bpf_wq_start(struct bpf_wq *wq, unsigned int flags) __ksym;
extern int bpf_wq_set_callback_impl(struct bpf_wq *wq, int(callback)(void *map, int *key, void *value),
				    unsigned int flags, void *aux) __ksym;

#define CLOCK_MONOTONIC 1

struct work {
	__u64 calls;
	struct bpf_timer timer;
	struct bpf_wq wq;
	__u64 seen;
};

struct only {
	struct bpf_wq wq;
	__u64 calls;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct work);
} array SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, struct only);
} hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __s64);
} answers SEC(".maps");

static void answer(__u32 at, __s64 what)
{
	bpf_map_update_elem(&answers, &at, &what, 0);
}

static int works(void *map, int *key, void *value)
{
	struct work *work = value;

	work->calls += 1;
	work->seen = *key + 100;
	return 0;
}

static int ticks(void *map, int *key, struct work *work)
{
	work->calls += 1000;
	return 0;
}

static int again(void *map, int *key, void *value)
{
	struct only *only = value;
	int gone = 2;

	only->calls += 1;
	if (only->calls < 3)
		answer(10, bpf_wq_start(&only->wq, 0));
	bpf_map_delete_elem(map, &gone);
	return 0;
}

SEC("xdp")
int ask(struct xdp_md *ctx)
{
	__u32 key = 1, other = 2;
	struct only none = {};
	struct work *work = bpf_map_lookup_elem(&array, &key);
	struct only *only;

	if (!work)
		return 1;
	answer(0, bpf_wq_start(&work->wq, 0));
	answer(1, bpf_wq_init(&work->wq, &array, 1));
	answer(2, bpf_wq_init(&work->wq, &array, 0));
	answer(3, bpf_wq_init(&work->wq, &array, 0));
	answer(4, bpf_wq_start(&work->wq, 0));
	answer(5, bpf_wq_set_callback_impl(&work->wq, works, 1, 0));
	answer(6, bpf_wq_set_callback_impl(&work->wq, works, 0, 0));
	answer(7, bpf_wq_start(&work->wq, 1));
	answer(8, bpf_wq_start(&work->wq, 0));
	bpf_timer_init(&work->timer, &array, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&work->timer, ticks);
	bpf_timer_start(&work->timer, 1, 0);

	bpf_map_update_elem(&hash, &key, &none, 0);
	only = bpf_map_lookup_elem(&hash, &key);
	if (!only)
		return 1;
	answer(9, bpf_wq_init(&only->wq, &hash, 0));
	bpf_wq_set_callback_impl(&only->wq, again, 0, 0);
	bpf_wq_start(&only->wq, 0);
	bpf_map_update_elem(&hash, &other, &none, 0);
	return 2;
}

char _license[] SEC("license") = "GPL";
