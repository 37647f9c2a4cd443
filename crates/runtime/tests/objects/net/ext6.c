// mcpu: v3 v2 v4
// IPv6 extension headers, walked by an unrolled loop, by bpf_loop, and by a plain loop that copies each header.
#include "headers.h"

#define MAX_HEADERS 8

struct result {
    __u32 offset;
    __u8 proto;
    __u8 headers;
    __u8 fragment;
    __u8 error;
    __u32 options;
    __u64 seen;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 4096);
    __type(key, __u32);
    __type(value, struct result);
} results SEC(".maps");

__u32 walked;

static __always_inline int step(struct cursor *c, __u8 *next, struct result *r)
{
    struct ipv6_opt_hdr *hdr = c->pos;
    if ((void *)(hdr + 1) > c->end)
        return -1;
    switch (*next) {
    case IPPROTO_HOPOPTS:
    case IPPROTO_DSTOPTS:
    case IPPROTO_ROUTING:
        c->pos = (char *)hdr + (hdr->hdrlen + 1) * 8;
        *next = hdr->nexthdr;
        break;
    case IPPROTO_AH:
        c->pos = (char *)hdr + (hdr->hdrlen + 2) * 4;
        *next = hdr->nexthdr;
        break;
    case IPPROTO_FRAGMENT: {
        struct frag_hdr *frag = c->pos;
        if ((void *)(frag + 1) > c->end)
            return -1;
        r->fragment = 1 + !!(frag->frag_off & bpf_htons(0xfff8));
        c->pos = (char *)hdr + 8;
        *next = hdr->nexthdr;
        break;
    }
    default:
        return 1;
    }
    r->headers++;
    return 0;
}

static __always_inline int finish(struct result *r)
{
    __u32 key = walked;
    walked++;
    bpf_map_update_elem(&results, &key, r, BPF_ANY);
    return r->error ? XDP_DROP : XDP_PASS;
}

SEC("xdp")
int unrolled(struct xdp_md *ctx)
{
    struct cursor c = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
    struct ethhdr *eth = parse_ethhdr(&c);
    struct ipv6hdr *ip6;
    struct result r = {};
    __u8 next;
    int how = 0;
    if (!eth || eth->h_proto != bpf_htons(ETH_P_IPV6))
        return XDP_PASS;
    ip6 = parse_ipv6hdr(&c);
    if (!ip6)
        return XDP_DROP;
    next = ip6->nexthdr;
#pragma unroll
    for (int i = 0; i < 6; i++) {
        how = step(&c, &next, &r);
        if (how)
            break;
    }
    r.proto = next;
    r.error = how != 1;
    r.offset = c.pos - (void *)(long)ctx->data;
    return finish(&r);
}

struct walk {
    struct xdp_md *ctx;
    struct result r;
    __u32 offset;
    __u8 next;
};

static long walk_one(__u32 i, void *data)
{
    struct walk *w = data;
    struct ipv6_opt_hdr hdr;
    w->r.seen |= 1ull << (w->next & 63);
    switch (w->next) {
    case IPPROTO_HOPOPTS:
    case IPPROTO_DSTOPTS:
    case IPPROTO_ROUTING:
    case IPPROTO_AH:
    case IPPROTO_FRAGMENT:
        break;
    default:
        w->r.proto = w->next;
        return 1;
    }
    if (bpf_xdp_load_bytes(w->ctx, w->offset, &hdr, sizeof(hdr))) {
        w->r.error = 1;
        return 1;
    }
    if (w->next == IPPROTO_FRAGMENT)
        w->offset += 8;
    else if (w->next == IPPROTO_AH)
        w->offset += (hdr.hdrlen + 2) * 4;
    else
        w->offset += (hdr.hdrlen + 1) * 8;
    w->next = hdr.nexthdr;
    w->r.headers = i + 1;
    return 0;
}

SEC("xdp")
int called_back(struct xdp_md *ctx)
{
    struct cursor c = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
    struct ethhdr *eth = parse_ethhdr(&c);
    struct ipv6hdr *ip6;
    struct walk w = { .ctx = ctx, .offset = sizeof(struct ethhdr) + sizeof(struct ipv6hdr) };
    long rounds;
    if (!eth || eth->h_proto != bpf_htons(ETH_P_IPV6))
        return XDP_PASS;
    ip6 = parse_ipv6hdr(&c);
    if (!ip6)
        return XDP_DROP;
    w.next = ip6->nexthdr;
    rounds = bpf_loop(MAX_HEADERS, walk_one, &w, 0);
    if (rounds == MAX_HEADERS)
        w.r.error |= 2;
    w.r.offset = w.offset;
    return finish(&w.r);
}

// Options of a hop-by-hop header, one by one.
static __noinline int options(struct xdp_md *ctx, __u32 at, __u32 len)
{
    __u32 end = at + len;
    int count = 0;
    for (int i = 0; i < 12 && at < end; i++) {
        __u8 tl[2];
        if (bpf_xdp_load_bytes(ctx, at, tl, 1))
            return -1;
        if (tl[0] == 0) {
            at++;
            continue;
        }
        if (bpf_xdp_load_bytes(ctx, at, tl, 2))
            return -1;
        count++;
        at += 2 + tl[1];
    }
    return at == end ? count : -2;
}

SEC("xdp")
int copied(struct xdp_md *ctx)
{
    struct ethhdr eth;
    struct ipv6hdr ip6;
    struct result r = {};
    __u32 offset = sizeof(eth) + sizeof(ip6);
    __u8 next;
    if (bpf_xdp_load_bytes(ctx, 0, &eth, sizeof(eth)) || eth.h_proto != bpf_htons(ETH_P_IPV6))
        return XDP_PASS;
    if (bpf_xdp_load_bytes(ctx, sizeof(eth), &ip6, sizeof(ip6)))
        return XDP_DROP;
    next = ip6.nexthdr;
    for (int i = 0; i < 4; i++) {
        struct ipv6_opt_hdr hdr;
        if (next != IPPROTO_HOPOPTS && next != IPPROTO_DSTOPTS && next != IPPROTO_ROUTING)
            break;
        if (bpf_xdp_load_bytes(ctx, offset, &hdr, sizeof(hdr))) {
            r.error = 1;
            break;
        }
        if (next == IPPROTO_HOPOPTS) {
            int n = options(ctx, offset + 2, hdr.hdrlen * 8 + 6);
            if (n < 0)
                r.error = -n;
            r.options += n;
        }
        next = hdr.nexthdr;
        offset += (hdr.hdrlen + 1) * 8;
        r.headers++;
    }
    r.proto = next;
    r.offset = offset;
    return finish(&r);
}

char _license[] SEC("license") = "GPL";
