// mcpu: v3 v2 v4
// Rules by prefix, both versions of IP, with ranges of ports; the last word is a default from .rodata.
#include "headers.h"

struct lpm_v4 {
    __u32 prefixlen;
    __be32 addr;
};

struct lpm_v6 {
    __u32 prefixlen;
    __u8 addr[16];
};

#define MAX_RANGES 8
struct range {
    __u16 low, high;
    __u8 proto;
    __u8 action;
    __u16 hits;
};

struct rule {
    __u32 id;
    __u32 count;
    struct range ranges[MAX_RANGES];
};

struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(max_entries, 256);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct lpm_v4);
    __type(value, struct rule);
} rules_v4 SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(max_entries, 256);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct lpm_v6);
    __type(value, struct rule);
} rules_v6 SEC(".maps");

struct counter {
    __u64 allowed;
    __u64 denied;
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_HASH);
    __uint(max_entries, 512);
    __type(key, __u32);
    __type(value, struct counter);
} counters SEC(".maps");

const volatile __u8 default_action = XDP_DROP;
const volatile _Bool count_hits = 1;
volatile __u64 no_ip, short_packets;

static __always_inline int verdict(struct rule *rule, __u8 proto, __u16 port)
{
    struct counter fresh = {}, *c;
    int action = default_action;
    __u32 id;
    if (!rule)
        return action;
    for (__u32 i = 0; i < MAX_RANGES; i++) {
        struct range *r = &rule->ranges[i];
        if (i >= rule->count)
            break;
        if (r->proto && r->proto != proto)
            continue;
        if (port < r->low || port > r->high)
            continue;
        if (count_hits)
            r->hits++;
        action = r->action;
        break;
    }
    id = rule->id;
    c = bpf_map_lookup_elem(&counters, &id);
    if (!c) {
        bpf_map_update_elem(&counters, &id, &fresh, BPF_NOEXIST);
        c = bpf_map_lookup_elem(&counters, &id);
        if (!c)
            return XDP_ABORTED;
    }
    if (action == XDP_PASS)
        c->allowed++;
    else
        c->denied++;
    return action;
}

static __always_inline int port_of(struct cursor *c, __u8 proto)
{
    if (proto == IPPROTO_TCP) {
        struct tcphdr *tcp = parse_tcphdr(c);
        return tcp ? bpf_ntohs(tcp->dest) : -1;
    }
    if (proto == IPPROTO_UDP) {
        struct udphdr *udp = parse_udphdr(c);
        return udp ? bpf_ntohs(udp->dest) : -1;
    }
    return 0;
}

SEC("xdp")
int filter(struct xdp_md *ctx)
{
    struct cursor c = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
    struct ethhdr *eth = parse_ethhdr(&c);
    __be16 proto;
    int port;
    if (!eth)
        return XDP_DROP;
    proto = eth->h_proto;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD)) {
            struct vlan_hdr *vlan = c.pos;
            if (vlan + 1 > c.end)
                return XDP_DROP;
            proto = vlan->h_vlan_encapsulated_proto;
            c.pos = vlan + 1;
        }
    }
    if (proto == bpf_htons(ETH_P_IP)) {
        struct iphdr *ip = parse_iphdr(&c);
        struct lpm_v4 key = { .prefixlen = 32 };
        if (!ip)
            goto too_short;
        key.addr = ip->saddr;
        port = ip->frag_off & bpf_htons(0x1fff) ? 0 : port_of(&c, ip->protocol);
        if (port < 0)
            goto too_short;
        return verdict(bpf_map_lookup_elem(&rules_v4, &key), ip->protocol, port);
    }
    if (proto == bpf_htons(ETH_P_IPV6)) {
        struct ipv6hdr *ip6 = parse_ipv6hdr(&c);
        struct lpm_v6 key = { .prefixlen = 128 };
        if (!ip6)
            goto too_short;
        __builtin_memcpy(key.addr, &ip6->saddr, sizeof(key.addr));
        port = port_of(&c, ip6->nexthdr);
        if (port < 0)
            goto too_short;
        return verdict(bpf_map_lookup_elem(&rules_v6, &key), ip6->nexthdr, port);
    }
    no_ip++;
    return XDP_PASS;
too_short:
    short_packets++;
    return XDP_DROP;
}

char _license[] SEC("license") = "GPL";
