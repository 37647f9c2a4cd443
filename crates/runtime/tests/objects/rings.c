// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Ring buffers, user ring buffers and perf event arrays, over a raw context: r1 = bytes, r2 = their number.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_USER_RINGBUF);
	__uint(max_entries, 4096);
} orders SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u32);
} perf SEC(".maps");

struct event {
	__u64 id;
	__u32 len;
	__u8 first[4];
};

#define UNUSED __attribute__((unused))

/* A record for each run on at least four bytes; a discarded one where the first byte is 0. */
SEC("raw/emit")
__u64 emit(const __u8 *bytes, __u64 len)
{
	struct event *event;
	static __u64 id;

	if (len < 4)
		return 1;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event)
		return 2;
	event->id = __sync_fetch_and_add(&id, 1);
	event->len = len;
	__builtin_memcpy(event->first, bytes, 4);
	if (bytes[0] == 0)
		bpf_ringbuf_discard(event, 0);
	else
		bpf_ringbuf_submit(event, 0);
	return 0;
}

/* The bytes as one record; -errno, or 0. */
SEC("raw/output")
__u64 output(UNUSED const __u8 *bytes, __u64 len)
{
	char text[16] = "0123456789abcde";

	if (len > sizeof(text))
		return 1;
	return bpf_ringbuf_output(&events, text, len, 0);
}

SEC("raw/bad_flags")
__u64 bad_flags(void)
{
	__u64 value = 1;

	return bpf_ringbuf_output(&events, &value, sizeof(value), 8);
}

/* Size of the ring, bytes not consumed, and what an unknown question gives. */
SEC("raw/query")
__u64 query(void)
{
	return bpf_ringbuf_query(&events, BPF_RB_RING_SIZE) << 32 | bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) << 8 |
	       bpf_ringbuf_query(&events, 9);
}

/* An event of eight bytes, and as many of the context as r2 says in the first byte. */
SEC("raw/perf")
__u64 perf_event(__u8 *bytes, __u64 len)
{
	__u64 value = 0x1122334455667788, flags = BPF_F_CURRENT_CPU;

	if (len >= 1)
		flags |= (__u64)bytes[0] << 32;
	return bpf_perf_event_output(bytes, &perf, flags, &value, sizeof(value));
}

struct sums {
	__u64 sum;
	__u64 errors;
};

static long add(struct bpf_dynptr *record, struct sums *sums)
{
	__u32 value;

	if (bpf_dynptr_read(&value, sizeof(value), record, 0, 0) < 0) {
		sums->errors += value == 0;
		return 0;
	}
	sums->sum += value;
	return value == 99; /* the last one */
}

/* The sum in the low half, the records that are too short above it, the records on top (or -errno alone). */
SEC("raw/drain")
__u64 drain(void)
{
	struct sums sums = {};
	long done = bpf_user_ringbuf_drain(&orders, add, &sums, 0);

	return done < 0 ? (__u64)done : (__u64)done << 48 | sums.errors << 32 | (__u32)sums.sum;
}

/* Reserves, then loops without end: only a stop ends it. */
static long nothing(UNUSED __u64 i, UNUSED void *ctx)
{
	return 0;
}

static long more(UNUSED __u64 i, UNUSED void *ctx)
{
	bpf_loop(1 << 20, nothing, 0, 0);
	return 0;
}

SEC("raw/stuck")
__u64 stuck(void)
{
	__u64 *value = bpf_ringbuf_reserve(&events, sizeof(*value), 0);

	if (!value)
		return 1;
	bpf_loop(1 << 20, more, 0, 0);
	*value = 7;
	bpf_ringbuf_submit(value, 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
