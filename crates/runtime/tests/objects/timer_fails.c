// mcpu: v3
// A timer whose callback ends with an error of the host's, and what cancelling it answers afterwards.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#pragma clang diagnostic ignored "-Wunused-parameter"

struct timed {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct timed);
} array SEC(".maps");

extern void fails(void) __ksym;

static int called(void *map, __u32 *key, struct timed *value)
{
	fails();
	return 0;
}

SEC("xdp")
int start(struct xdp_md *ctx)
{
	__u32 key = 0;
	struct timed *value = bpf_map_lookup_elem(&array, &key);

	if (!value)
		return 1;
	bpf_timer_init(&value->timer, &array, 1);
	bpf_timer_set_callback(&value->timer, called);
	return -bpf_timer_start(&value->timer, 0, 0);
}

SEC("xdp")
int cancel(struct xdp_md *ctx)
{
	__u32 key = 0;
	struct timed *value = bpf_map_lookup_elem(&array, &key);

	return value ? -bpf_timer_cancel(&value->timer) : 1;
}

char _license[] SEC("license") = "GPL";
