// mcpu: v3 v2 v4
// A token bucket for each source and CPU, and one for all behind a lock.
#include "headers.h"

struct bucket {
    __u64 last;
    __u64 tokens;
    __u64 passed;
    __u64 dropped;
};

struct {
    __uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
    __uint(max_entries, 4096);
    __type(key, __be32);
    __type(value, struct bucket);
} sources SEC(".maps");

struct shared {
    struct bpf_spin_lock lock;
    __u32 pad;
    struct bucket bucket;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct shared);
} all SEC(".maps");

const volatile __u64 burst = 3000, total_burst = 60000;
const volatile __u64 per_second = 0;

static __always_inline int take(struct bucket *b, __u64 now, __u64 bytes, __u64 limit)
{
    __u64 passed = now - b->last;
    __u64 fresh = passed / 1000 * per_second / 1000000;
    b->tokens += fresh;
    if (b->tokens > limit)
        b->tokens = limit;
    if (fresh)
        b->last = now;
    if (b->tokens < bytes) {
        b->dropped++;
        return 0;
    }
    b->tokens -= bytes;
    b->passed++;
    return 1;
}

SEC("xdp")
int limit(struct xdp_md *ctx)
{
    struct cursor c = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
    __u64 bytes = c.end - c.pos, now = bpf_ktime_get_ns();
    struct ethhdr *eth = parse_ethhdr(&c);
    struct shared *shared;
    struct bucket *b;
    struct iphdr *ip;
    __be32 source;
    __u32 zero = 0;
    int pass;
    if (!eth || eth->h_proto != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    ip = parse_iphdr(&c);
    if (!ip)
        return XDP_DROP;
    source = ip->saddr;
    b = bpf_map_lookup_elem(&sources, &source);
    if (!b) {
        struct bucket fresh = { .tokens = burst };
        if (bpf_map_update_elem(&sources, &source, &fresh, BPF_NOEXIST))
            return XDP_ABORTED;
        b = bpf_map_lookup_elem(&sources, &source);
        if (!b)
            return XDP_ABORTED;
    }
    if (!take(b, now, bytes, burst))
        return XDP_DROP;
    shared = bpf_map_lookup_elem(&all, &zero);
    if (!shared)
        return XDP_ABORTED;
    bpf_spin_lock(&shared->lock);
    pass = take(&shared->bucket, now, bytes, total_burst);
    bpf_spin_unlock(&shared->lock);
    return pass ? XDP_PASS : XDP_DROP;
}

char _license[] SEC("license") = "GPL";
