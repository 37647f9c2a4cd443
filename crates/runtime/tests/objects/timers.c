// mcpu: v3
// Timers in values of maps: what each function answers, what callbacks are given, and what ends a timer.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#pragma clang diagnostic ignored "-Wunused-parameter"

#define CLOCK_MONOTONIC 1
#define NEVER (1ull << 60)

struct timed {
	__u64 calls;
	struct bpf_timer timer;
	__u64 seen;
};

struct locked {
	struct bpf_spin_lock lock;
	__u32 pad;
	struct bpf_timer timer;
	__u64 calls;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct timed);
} array SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8);
	__type(key, __u64);
	__type(value, struct timed);
} hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, struct timed);
} lru SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct locked);
} locked SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 32);
	__type(key, __u32);
	__type(value, __s64);
} answers SEC(".maps");

static void answer(__u32 at, __s64 what)
{
	__s64 *place = bpf_map_lookup_elem(&answers, &at);

	if (place)
		*place = what;
}

static int counted(void *map, __u32 *key, struct timed *value)
{
	value->calls++;
	value->seen = *key;
	return 0;
}

/* Sets itself again, up to three times; and cannot cancel itself. */
static int again(void *map, __u32 *key, struct timed *value)
{
	answer(20, bpf_timer_cancel(&value->timer));
	if (++value->calls < 3)
		answer(21, bpf_timer_start(&value->timer, 0, 0));
	return 0;
}

static int of_hash(void *map, __u64 *key, struct timed *value)
{
	value->calls++;
	value->seen = *key;
	/* The element goes, and its timer with it. */
	if (*key == 7)
		answer(22, bpf_map_delete_elem(map, key));
	return 0;
}

static int under_lock(void *map, __u32 *key, struct locked *value)
{
	bpf_spin_lock(&value->lock);
	value->calls += *key;
	bpf_spin_unlock(&value->lock);
	return 0;
}

/* All answers, in order; nothing is left to be called. */
SEC("xdp")
int ask(struct xdp_md *ctx)
{
	__u32 one = 1;
	struct timed *value = bpf_map_lookup_elem(&array, &one), copy = { .calls = 40 };

	if (!value)
		return 1;
	answer(0, bpf_timer_start(&value->timer, 0, 0));
	answer(1, bpf_timer_cancel(&value->timer));
	answer(2, bpf_timer_set_callback(&value->timer, counted));
	answer(3, bpf_timer_init(&value->timer, &array, 2));
	answer(4, bpf_timer_init(&value->timer, &array, 16 | CLOCK_MONOTONIC));
	answer(5, bpf_timer_init(&value->timer, &array, CLOCK_MONOTONIC));
	answer(6, bpf_timer_init(&value->timer, &array, CLOCK_MONOTONIC));
	answer(7, bpf_timer_start(&value->timer, NEVER, 0));
	answer(8, bpf_timer_set_callback(&value->timer, counted));
	answer(9, bpf_timer_start(&value->timer, NEVER, 4));
	answer(10, bpf_timer_start(&value->timer, NEVER, 1));
	answer(11, bpf_timer_start(&value->timer, NEVER, 0));
	answer(12, bpf_timer_cancel(&value->timer));
	answer(13, bpf_timer_cancel(&value->timer));
	answer(14, bpf_timer_start(&value->timer, NEVER, 0));
	answer(15, bpf_timer_set_callback(&value->timer, counted));
	answer(16, bpf_timer_start(&value->timer, NEVER, 0));
	/* A value that is written anew has no timer. */
	answer(17, bpf_map_update_elem(&array, &one, &copy, 0));
	answer(18, bpf_timer_start(&value->timer, 0, 0));
	answer(19, bpf_timer_init(&value->timer, &array, 7));
	return 2;
}

/* Timers that are due at once, in each kind of map. */
SEC("xdp")
int due(struct xdp_md *ctx)
{
	__u32 two = 2, three = 3;
	__u64 five = 5, seven = 7;
	struct timed *value, fresh = {};
	struct locked first = {}, *other;

	value = bpf_map_lookup_elem(&array, &two);
	if (!value || bpf_timer_init(&value->timer, &array, CLOCK_MONOTONIC))
		return 1;
	bpf_timer_set_callback(&value->timer, counted);
	bpf_timer_start(&value->timer, 0, 0);
	value = bpf_map_lookup_elem(&array, &three);
	if (!value || bpf_timer_init(&value->timer, &array, 0))
		return 1;
	bpf_timer_set_callback(&value->timer, again);
	bpf_timer_start(&value->timer, 0, 0);
	bpf_map_update_elem(&hash, &five, &fresh, 0);
	value = bpf_map_lookup_elem(&hash, &five);
	if (!value || bpf_timer_init(&value->timer, &hash, 7))
		return 1;
	bpf_timer_set_callback(&value->timer, of_hash);
	bpf_timer_start(&value->timer, 1, 1);
	bpf_map_update_elem(&hash, &seven, &fresh, 0);
	value = bpf_map_lookup_elem(&hash, &seven);
	if (!value || bpf_timer_init(&value->timer, &hash, CLOCK_MONOTONIC))
		return 1;
	bpf_timer_set_callback(&value->timer, of_hash);
	bpf_timer_start(&value->timer, 0, 0);
	bpf_map_update_elem(&lru, &three, &fresh, 0);
	value = bpf_map_lookup_elem(&lru, &three);
	if (!value || bpf_timer_init(&value->timer, &lru, CLOCK_MONOTONIC))
		return 1;
	bpf_timer_set_callback(&value->timer, counted);
	bpf_timer_start(&value->timer, 0, 0);
	bpf_map_update_elem(&locked, &three, &first, 0);
	other = bpf_map_lookup_elem(&locked, &three);
	if (!other || bpf_timer_init(&other->timer, &locked, CLOCK_MONOTONIC))
		return 1;
	bpf_timer_set_callback(&other->timer, under_lock);
	bpf_timer_start(&other->timer, 0, 0);
	return 2;
}

/* A timer in the hash that is due at once, at the key that the packet begins with. */
SEC("xdp")
int one(struct xdp_md *ctx)
{
	__u64 *data = (void *)(long)ctx->data, key;
	struct timed *value, fresh = {};

	if ((void *)(data + 1) > (void *)(long)ctx->data_end)
		return 1;
	key = *data;
	bpf_map_update_elem(&hash, &key, &fresh, 0);
	value = bpf_map_lookup_elem(&hash, &key);
	if (!value || bpf_timer_init(&value->timer, &hash, CLOCK_MONOTONIC))
		return 1;
	bpf_timer_set_callback(&value->timer, of_hash);
	bpf_timer_start(&value->timer, 0, 0);
	return 2;
}

static int lengthy(void *map, __u32 *key, struct timed *value)
{
	for (int i = 0; i < 1000; i++)
		asm volatile("" ::: "memory");
	value->calls++;
	return 0;
}

/* Calls back for longer than a small budget allows. */
SEC("xdp")
int slow(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct timed *value = bpf_map_lookup_elem(&array, &zero);

	if (!value)
		return 1;
	bpf_timer_init(&value->timer, &array, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&value->timer, lengthy);
	bpf_timer_start(&value->timer, 0, 0);
	return 2;
}

static int sends(void *map, __u32 *key, struct timed *value)
{
	value->seen = bpf_redirect(7, 0);
	return 0;
}

/* Works on a context that the callback is not given. */
SEC("xdp")
int send(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct timed *value = bpf_map_lookup_elem(&array, &zero);

	if (!value)
		return 1;
	bpf_timer_init(&value->timer, &array, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&value->timer, sends);
	bpf_timer_start(&value->timer, 0, 0);
	return 2;
}

char _license[] SEC("license") = "GPL";
