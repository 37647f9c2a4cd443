// mcpu: v3 v2 v4
// Answers a SYN with a cookie, and lets an ACK pass that carries one.
#include "headers.h"

struct tcp_option_mss {
    __u8 kind, len;
    __be16 mss;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 16);
    __type(key, __be16);
    __type(value, __u8);
} allowed_ports SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 4);
    __type(key, __u32);
    __type(value, __u64);
} values SEC(".maps");

enum { SYN, COOKIE, GOOD, BAD };

static __always_inline void note(__u32 what)
{
    __u64 *value = bpf_map_lookup_elem(&values, &what);
    if (value)
        __sync_fetch_and_add(value, 1);
}

static __always_inline void swap_mac(struct ethhdr *eth)
{
    __u8 mac[6];
    __builtin_memcpy(mac, eth->h_source, 6);
    __builtin_memcpy(eth->h_source, eth->h_dest, 6);
    __builtin_memcpy(eth->h_dest, mac, 6);
}

static __always_inline __u16 tcp_csum(__u64 sum, __u32 len)
{
    sum += bpf_htons(len);
    sum += bpf_htons(IPPROTO_TCP);
    return csum_fold((sum & 0xffffffff) + (sum >> 32));
}

struct parsed {
    struct ethhdr *eth;
    struct iphdr *ip;
    struct ipv6hdr *ip6;
    struct tcphdr *tcp;
    __u16 len;
};

static __always_inline int dissect(void *data, void *end, struct parsed *p, const int v6)
{
    p->eth = data;
    if (v6) {
        p->ip6 = data + sizeof(struct ethhdr);
        if (p->ip6 + 1 > end)
            return XDP_DROP;
        if (p->ip6->nexthdr != IPPROTO_TCP)
            return XDP_PASS;
        p->tcp = (void *)(p->ip6 + 1);
    } else {
        p->ip = data + sizeof(struct ethhdr);
        if (p->ip + 1 > end)
            return XDP_DROP;
        if (p->ip->ihl * 4 != sizeof(*p->ip) || p->ip->version != 4)
            return XDP_DROP;
        if (p->ip->protocol != IPPROTO_TCP)
            return XDP_PASS;
        p->tcp = (void *)(p->ip + 1);
    }
    if (p->tcp + 1 > end)
        return XDP_DROP;
    p->len = p->tcp->doff * 4;
    if (p->len < sizeof(*p->tcp))
        return XDP_DROP;
    return XDP_TX;
}

static __always_inline int answer(struct parsed *p, void *data, void *end, struct xdp_md *ctx, const int v6)
{
    __u32 old_len = end - data, new_len;
    struct tcp_option_mss *option;
    struct tcphdr *tcp = p->tcp;
    __s64 cookie;
    __be16 port;
    __u64 sum;

    if (tcp->fin || tcp->rst)
        return XDP_DROP;
    if ((void *)tcp + 60 > end) {
        // The helper is given as much as the header may have.
        if (p->len == sizeof(*tcp)) {
            if (!v6)
                cookie = bpf_tcp_raw_gen_syncookie_ipv4((void *)p->ip, (void *)tcp, sizeof(*tcp));
            else
                cookie = bpf_tcp_raw_gen_syncookie_ipv6((void *)p->ip6, (void *)tcp, sizeof(*tcp));
        } else {
            return XDP_DROP;
        }
    } else {
        __u32 len = p->len;
        if (len > 60)
            return XDP_DROP;
        if (!v6)
            cookie = bpf_tcp_raw_gen_syncookie_ipv4((void *)p->ip, (void *)tcp, len);
        else
            cookie = bpf_tcp_raw_gen_syncookie_ipv6((void *)p->ip6, (void *)tcp, len);
    }
    if (cookie < 0)
        return XDP_DROP;
    note(COOKIE);
    swap_mac(p->eth);
    tcp->ack_seq = bpf_htonl(bpf_ntohl(tcp->seq) + 1);
    tcp->seq = bpf_htonl((__u32)cookie);
    port = tcp->source;
    tcp->source = tcp->dest;
    tcp->dest = port;
    tcp->doff = 6;
    tcp->ack = 1;
    tcp->ece = tcp->cwr = 0;
    tcp->window = 0;
    tcp->urg_ptr = 0;
    if (!v6) {
        __be32 addr = p->ip->saddr;
        p->ip->saddr = p->ip->daddr;
        p->ip->daddr = addr;
        p->ip->tot_len = bpf_htons(sizeof(*p->ip) + 24);
        p->ip->ttl = 64;
        p->ip->tos = 0;
        p->ip->id = 0;
        p->ip->frag_off = 0;
        p->ip->check = 0;
        p->ip->check = csum_fold(bpf_csum_diff(0, 0, (void *)p->ip, sizeof(*p->ip), 0));
    } else {
        struct in6_addr addr = p->ip6->saddr;
        p->ip6->saddr = p->ip6->daddr;
        p->ip6->daddr = addr;
        p->ip6->payload_len = bpf_htons(24);
        p->ip6->hop_limit = 64;
    }
    new_len = (void *)tcp - data + 24;
    if (bpf_xdp_adjust_tail(ctx, (int)(new_len - old_len)))
        return XDP_ABORTED;
    // Every pointer is another one now.
    data = (void *)(long)ctx->data;
    end = (void *)(long)ctx->data_end;
    if (!v6) {
        struct iphdr *ip = data + sizeof(struct ethhdr);
        tcp = data + sizeof(struct ethhdr) + sizeof(*ip);
        if ((void *)tcp + 24 > end)
            return XDP_DROP;
        sum = (__u64)ip->saddr + ip->daddr;
    } else {
        struct ipv6hdr *ip6 = data + sizeof(struct ethhdr);
        tcp = data + sizeof(struct ethhdr) + sizeof(*ip6);
        if ((void *)tcp + 24 > end)
            return XDP_DROP;
        sum = 0;
        for (int i = 0; i < 4; i++)
            sum += (__u64)ip6->saddr.in6_u.u6_addr32[i] + ip6->daddr.in6_u.u6_addr32[i];
    }
    option = (void *)(tcp + 1);
    option->kind = 2;
    option->len = 4;
    option->mss = bpf_htons((__u16)(cookie >> 32));
    tcp->check = 0;
    tcp->check = tcp_csum(sum + (__u32)bpf_csum_diff(0, 0, (void *)tcp, 24, 0), 24);
    return XDP_TX;
}

static __always_inline int check(struct parsed *p, const int v6)
{
    long bad;
    if (p->tcp->rst)
        return XDP_DROP;
    if (!v6)
        bad = bpf_tcp_raw_check_syncookie_ipv4((void *)p->ip, (void *)p->tcp);
    else
        bad = bpf_tcp_raw_check_syncookie_ipv6((void *)p->ip6, (void *)p->tcp);
    note(bad ? BAD : GOOD);
    return bad ? XDP_DROP : XDP_PASS;
}

static __always_inline int process(struct xdp_md *ctx, const int v6)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct parsed p = {};
    __be16 port;
    int verdict = dissect(data, end, &p, v6);
    if (verdict != XDP_TX)
        return verdict;
    port = p.tcp->dest;
    if (!bpf_map_lookup_elem(&allowed_ports, &port))
        return XDP_DROP;
    if (p.tcp->syn && !p.tcp->ack) {
        note(SYN);
        return answer(&p, data, end, ctx, v6);
    }
    if (p.tcp->ack && !p.tcp->syn)
        return check(&p, v6);
    return XDP_DROP;
}

SEC("xdp")
int respond(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    if (eth + 1 > end)
        return XDP_DROP;
    if (eth->h_proto == bpf_htons(ETH_P_IP))
        return process(ctx, 0);
    if (eth->h_proto == bpf_htons(ETH_P_IPV6))
        return process(ctx, 1);
    return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
