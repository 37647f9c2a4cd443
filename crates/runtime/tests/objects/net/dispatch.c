// mcpu: v3 v2 v4
// Programs in a chain: globals hold the order, the jumps are tail calls, and the packet's metadata carries their state.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define MAX_PROGRAMS 6
#define MAGIC 0x70617373

struct config {
    __u32 enabled[MAX_PROGRAMS];
    __u32 proceed_on[MAX_PROGRAMS]; // a bit a verdict
};

struct meta {
    __u32 magic;
    __u32 proto;
    __u32 path;
    __u32 pad;
};

const volatile struct config config = {
    .enabled = { 1, 1, 1, 0, 1, 0 },
    .proceed_on = { 1 << XDP_PASS, 1 << XDP_PASS | 1 << XDP_TX, 1 << XDP_PASS, 0, 1 << XDP_PASS, 0 },
};

struct {
    __u64 runs[MAX_PROGRAMS];
    __u64 verdicts[5];
} totals;

static __u32 current = 7;
int default_verdict = XDP_PASS;

int count_v4(struct xdp_md *ctx);
int count_v6(struct xdp_md *ctx);
int last(struct xdp_md *ctx);

struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, 8);
    __uint(key_size, sizeof(__u32));
    __array(values, int(struct xdp_md *));
} stages SEC(".maps") = {
    .values = { [1] = (void *)&count_v4, [2] = (void *)&count_v6, [4] = (void *)&last },
};

static __always_inline int finish(int verdict)
{
    if (verdict >= 0 && verdict < 5)
        totals.verdicts[verdict]++;
    return verdict;
}

static __always_inline struct meta *meta_of(struct xdp_md *ctx)
{
    struct meta *m = (void *)(long)ctx->data_meta;
    if ((void *)(m + 1) > (void *)(long)ctx->data || m->magic != MAGIC)
        return 0;
    return m;
}

static __noinline int inspect_v4(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct iphdr *ip = data + sizeof(struct ethhdr);
    if ((void *)(ip + 1) > end)
        return XDP_DROP;
    if (ip->ttl <= 1)
        return XDP_TX;
    return ip->protocol == IPPROTO_ICMP ? XDP_ABORTED : XDP_PASS;
}

static __noinline int inspect_v6(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ipv6hdr *ip6 = data + sizeof(struct ethhdr);
    if ((void *)(ip6 + 1) > end)
        return XDP_DROP;
    return ip6->hop_limit <= 1 ? XDP_DROP : XDP_PASS;
}

static __always_inline int proceed(struct xdp_md *ctx, __u32 stage, int verdict)
{
    struct meta *m = meta_of(ctx);
    if (!(config.proceed_on[stage] >> verdict & 1))
        return finish(verdict);
    if (m)
        m->path = m->path << 4 | stage;
#pragma unroll
    for (__u32 next = stage + 1; next < MAX_PROGRAMS; next++) {
        if (config.enabled[next])
            bpf_tail_call(ctx, &stages, next);
    }
    return finish(verdict);
}

SEC("xdp")
int entry(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct meta *m;
    __u32 proto;
    totals.runs[0]++;
    if ((void *)(eth + 1) > end)
        return finish(XDP_DROP);
    proto = bpf_ntohs(eth->h_proto);
    if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*m)))
        return finish(XDP_ABORTED);
    m = (void *)(long)ctx->data_meta;
    if ((void *)(m + 1) > (void *)(long)ctx->data)
        return finish(XDP_ABORTED);
    m->magic = MAGIC;
    m->proto = proto;
    m->path = 0;
    m->pad = current++;
    return proceed(ctx, 0, default_verdict);
}

SEC("xdp")
int count_v4(struct xdp_md *ctx)
{
    struct meta *m = meta_of(ctx);
    totals.runs[1]++;
    return proceed(ctx, 1, m && m->proto == ETH_P_IP ? inspect_v4(ctx) : XDP_PASS);
}

SEC("xdp")
int count_v6(struct xdp_md *ctx)
{
    struct meta *m = meta_of(ctx);
    totals.runs[2]++;
    return proceed(ctx, 2, m && m->proto == ETH_P_IPV6 ? inspect_v6(ctx) : XDP_PASS);
}

SEC("xdp")
int last(struct xdp_md *ctx)
{
    struct meta *m = meta_of(ctx);
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    totals.runs[4]++;
    if ((void *)(eth + 1) > end)
        return finish(XDP_DROP);
    if (m)
        eth->h_source[0] = m->path;
    return proceed(ctx, 4, XDP_PASS);
}

char _license[] SEC("license") = "GPL";
