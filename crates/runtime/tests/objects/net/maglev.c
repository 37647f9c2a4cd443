// mcpu: v3 v2 v4
// A load balancer: virtual addresses, consistent rings, a connection table, and encapsulation by IPIP or GUE.
#include "headers.h"

#define RING_SIZE 251
#define MAX_VIPS 16
#define MAX_REALS 32
#define GUE_PORT 6080
#define F_NO_PORT 1
#define F_GUE 2
#define F_NO_LRU 4
#define F_HASH_DPORT 8

struct flow_key {
    union {
        __be32 src;
        __be32 srcv6[4];
    };
    union {
        __be32 dst;
        __be32 dstv6[4];
    };
    union {
        __u32 ports;
        __u16 port16[2];
    };
    __u8 proto;
};

struct vip_key {
    union {
        __be32 vip;
        __be32 vipv6[4];
    };
    __u16 port;
    __u8 proto;
};

struct vip_meta {
    __u32 flags;
    __u32 num;
};

struct real {
    union {
        __be32 dst;
        __be32 dstv6[4];
    };
    __u8 is_v6;
};

struct lb_stats {
    __u64 packets;
    __u64 bytes;
};

struct conn {
    __u32 pos;
    __u64 packets;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, MAX_VIPS);
    __type(key, struct vip_key);
    __type(value, struct vip_meta);
} vip_map SEC(".maps");

struct ring {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, RING_SIZE);
    __type(key, __u32);
    __type(value, __u32);
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, MAX_VIPS);
    __type(key, __u32);
    __array(values, struct ring);
} rings SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, MAX_REALS);
    __type(key, __u32);
    __type(value, struct real);
} reals SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, MAX_VIPS * 2);
    __type(key, __u32);
    __type(value, struct lb_stats);
} stats SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 4096);
    __type(key, struct flow_key);
    __type(value, struct conn);
} connections SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} gateway SEC(".maps");

const volatile __be32 encap_src = 0x0164100a;
const volatile __u32 hash_seed = 42;

struct packet {
    struct flow_key flow;
    __be32 real_index;
    __u16 payload;
    __u8 tos;
    __u8 syn;
    __u8 rst;
};

#define ROL(x, n) (((x) << (n)) | ((x) >> (32 - (n))))

static __always_inline __u32 jhash_3(__u32 a, __u32 b, __u32 c, __u32 seed)
{
    a += seed + 0xdeadbeef + 12;
    b += seed + 0xdeadbeef + 12;
    c += seed + 0xdeadbeef + 12;
    c ^= b;
    c -= ROL(b, 14);
    a ^= c;
    a -= ROL(c, 11);
    b ^= a;
    b -= ROL(a, 25);
    c ^= b;
    c -= ROL(b, 16);
    a ^= c;
    a -= ROL(c, 4);
    b ^= a;
    b -= ROL(a, 14);
    c ^= b;
    c -= ROL(b, 24);
    return c;
}

static __always_inline __u32 flow_hash(const struct packet *pckt, int is_v6, __u32 flags)
{
    __u32 ports = flags & F_HASH_DPORT ? pckt->flow.port16[1] : pckt->flow.ports;
    if (is_v6) {
        __u32 h = jhash_3(pckt->flow.srcv6[0], pckt->flow.srcv6[1], pckt->flow.srcv6[2], hash_seed);
        return jhash_3(h, pckt->flow.srcv6[3], ports, hash_seed);
    }
    return jhash_3(pckt->flow.src, ports, 0, hash_seed);
}

static __always_inline int parse_l4(struct packet *pckt, struct cursor *c)
{
    if (pckt->flow.proto == IPPROTO_TCP) {
        struct tcphdr *tcp = c->pos;
        if (tcp + 1 > c->end)
            return XDP_DROP;
        pckt->flow.port16[0] = tcp->source;
        pckt->flow.port16[1] = tcp->dest;
        pckt->syn = tcp->syn;
        pckt->rst = tcp->rst;
        return -1;
    }
    if (pckt->flow.proto == IPPROTO_UDP) {
        struct udphdr *udp = c->pos;
        if (udp + 1 > c->end)
            return XDP_DROP;
        pckt->flow.port16[0] = udp->source;
        pckt->flow.port16[1] = udp->dest;
        return -1;
    }
    return XDP_PASS;
}

static __always_inline void count(__u32 index, __u32 bytes)
{
    struct lb_stats *s = bpf_map_lookup_elem(&stats, &index);
    if (!s)
        return;
    s->packets += 1;
    s->bytes += bytes;
}

static __always_inline struct real *pick(struct packet *pckt, struct vip_meta *vip, int is_v6)
{
    struct conn *conn;
    struct conn fresh = {};
    void *ring;
    __u32 slot, *pos, index = vip->num;

    if (!(vip->flags & F_NO_LRU) && !pckt->syn) {
        conn = bpf_map_lookup_elem(&connections, &pckt->flow);
        if (conn) {
            __sync_fetch_and_add(&conn->packets, 1);
            slot = conn->pos;
            pckt->real_index = slot;
            return bpf_map_lookup_elem(&reals, &slot);
        }
    }
    ring = bpf_map_lookup_elem(&rings, &index);
    if (!ring)
        return 0;
    slot = flow_hash(pckt, is_v6, vip->flags) % RING_SIZE;
    pos = bpf_map_lookup_elem(ring, &slot);
    if (!pos || !*pos)
        return 0;
    slot = *pos;
    pckt->real_index = slot;
    if (!(vip->flags & F_NO_LRU)) {
        fresh.pos = slot;
        bpf_map_update_elem(&connections, &pckt->flow, &fresh, BPF_ANY);
    }
    count(MAX_VIPS + (vip->num & (MAX_VIPS - 1)), 1);
    return bpf_map_lookup_elem(&reals, &slot);
}

static __always_inline void fill_v4(struct iphdr *ip, __u8 tos, __be32 src, __be32 dst, __u16 len, __u8 proto)
{
    __u16 *words = (__u16 *)ip;
    __u32 sum = 0;
    int i;
    ip->version = 4;
    ip->ihl = 5;
    ip->frag_off = 0;
    ip->protocol = proto;
    ip->check = 0;
    ip->tos = tos;
    ip->tot_len = bpf_htons(len);
    ip->id = 0;
    ip->daddr = dst;
    ip->saddr = src;
    ip->ttl = 64;
#pragma clang loop unroll(full)
    for (i = 0; i < (int)sizeof(*ip) / 2; i++)
        sum += words[i];
    ip->check = csum_fold(sum);
}

static __always_inline int link_header(struct ethhdr *fresh, const struct ethhdr *old, __be16 proto)
{
    __u32 zero = 0;
    __u64 *mac = bpf_map_lookup_elem(&gateway, &zero);
    if (!mac || !*mac)
        return 0;
    __builtin_memcpy(fresh->h_source, old->h_dest, 6);
    __builtin_memcpy(fresh->h_dest, mac, 6);
    fresh->h_proto = proto;
    return 1;
}

static __always_inline int encap_v4(struct xdp_md *xdp, struct packet *pckt, struct real *dst, __u32 bytes, int gue)
{
    struct ethhdr *fresh, *old;
    struct iphdr *ip;
    struct udphdr *udp;
    int room = sizeof(struct iphdr) + (gue ? sizeof(struct udphdr) : 0);
    __be32 src;
    void *data, *end;

    if (bpf_xdp_adjust_head(xdp, -room))
        return 0;
    data = (void *)(long)xdp->data;
    end = (void *)(long)xdp->data_end;
    fresh = data;
    ip = data + sizeof(*fresh);
    old = data + room;
    if (fresh + 1 > end || old + 1 > end || ip + 1 > end)
        return 0;
    if (!link_header(fresh, old, bpf_htons(ETH_P_IP)))
        return 0;
    if (gue) {
        udp = (void *)(ip + 1);
        if (udp + 1 > end)
            return 0;
        udp->source = bpf_htons(31 << 8 | (pckt->flow.port16[0] & 0xff));
        udp->dest = bpf_htons(GUE_PORT);
        udp->len = bpf_htons(bytes + sizeof(*udp));
        udp->check = 0;
        fill_v4(ip, pckt->tos, encap_src, dst->dst, bytes + room, IPPROTO_UDP);
    } else {
        src = bpf_htonl(0xac100000) | ((pckt->flow.port16[0] ^ pckt->flow.src) & 0xffff0000);
        fill_v4(ip, pckt->tos, src, dst->dst, bytes + room, IPPROTO_IPIP);
    }
    return 1;
}

static __always_inline int encap_v6(struct xdp_md *xdp, struct packet *pckt, struct real *dst, __u32 bytes, int is_v6, int gue)
{
    struct ethhdr *fresh, *old;
    struct ipv6hdr *ip6;
    struct udphdr *udp;
    int room = sizeof(struct ipv6hdr) + (gue ? sizeof(struct udphdr) : 0);
    void *data, *end;

    if (bpf_xdp_adjust_head(xdp, -room))
        return 0;
    data = (void *)(long)xdp->data;
    end = (void *)(long)xdp->data_end;
    fresh = data;
    ip6 = data + sizeof(*fresh);
    old = data + room;
    if (fresh + 1 > end || old + 1 > end || ip6 + 1 > end)
        return 0;
    if (!link_header(fresh, old, bpf_htons(ETH_P_IPV6)))
        return 0;
    __builtin_memset(ip6, 0, sizeof(*ip6));
    ip6->version = 6;
    ip6->priority = pckt->tos >> 4;
    ip6->flow_lbl[0] = pckt->tos << 4;
    ip6->hop_limit = 64;
    ip6->saddr.in6_u.u6_addr32[0] = bpf_htonl(0x01000000);
    ip6->saddr.in6_u.u6_addr32[3] = is_v6 ? pckt->flow.srcv6[3] ^ pckt->flow.port16[0] : pckt->flow.src;
    __builtin_memcpy(ip6->daddr.in6_u.u6_addr32, dst->dstv6, 16);
    if (gue) {
        udp = (void *)(ip6 + 1);
        if (udp + 1 > end)
            return 0;
        ip6->nexthdr = IPPROTO_UDP;
        udp->source = bpf_htons(31 << 8 | (pckt->flow.port16[0] & 0xff));
        udp->dest = bpf_htons(GUE_PORT);
        udp->len = bpf_htons(bytes + sizeof(*udp));
        udp->check = 0;
        ip6->payload_len = bpf_htons(bytes + sizeof(*udp));
    } else {
        ip6->nexthdr = is_v6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
        ip6->payload_len = bpf_htons(bytes);
    }
    return 1;
}

static __always_inline int icmp_echo(struct xdp_md *xdp, struct cursor *c)
{
    void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
    struct ethhdr *eth = data;
    struct iphdr *ip = (void *)(eth + 1);
    struct icmphdr *icmp = c->pos;
    __u8 mac[6];
    __be32 addr;
    __u64 sum;
    if (ip + 1 > end || icmp + 1 > c->end)
        return XDP_DROP;
    if (icmp->type != 8)
        return XDP_PASS;
    icmp->type = 0;
    icmp->checksum += 0x0008;
    ip->ttl = 64;
    addr = ip->daddr;
    ip->daddr = ip->saddr;
    ip->saddr = addr;
    ip->check = 0;
    sum = bpf_csum_diff(0, 0, (void *)ip, sizeof(*ip), 0);
    ip->check = csum_fold(sum);
    __builtin_memcpy(mac, eth->h_source, 6);
    __builtin_memcpy(eth->h_source, eth->h_dest, 6);
    __builtin_memcpy(eth->h_dest, mac, 6);
    return XDP_TX;
}

static __always_inline int process(struct xdp_md *xdp, int is_v6)
{
    struct cursor c = { (void *)(long)xdp->data, (void *)(long)xdp->data_end };
    struct packet pckt = {};
    struct vip_key vip = {};
    struct vip_meta *meta;
    struct real *dst;
    __u32 bytes, num, flags;
    int verdict;

    c.pos += sizeof(struct ethhdr);
    if (is_v6) {
        struct ipv6hdr *ip6 = parse_ipv6hdr(&c);
        if (!ip6)
            return XDP_DROP;
        if (ip6->nexthdr == IPPROTO_FRAGMENT)
            return XDP_DROP;
        bytes = bpf_ntohs(ip6->payload_len) + sizeof(*ip6);
        pckt.flow.proto = ip6->nexthdr;
        pckt.tos = ip6->priority << 4 | ip6->flow_lbl[0] >> 4;
        __builtin_memcpy(pckt.flow.srcv6, ip6->saddr.in6_u.u6_addr32, 16);
        __builtin_memcpy(pckt.flow.dstv6, ip6->daddr.in6_u.u6_addr32, 16);
        __builtin_memcpy(vip.vipv6, ip6->daddr.in6_u.u6_addr32, 16);
    } else {
        struct iphdr *ip = c.pos;
        if (ip + 1 > c.end)
            return XDP_DROP;
        // Options are not for virtual addresses.
        if (ip->ihl != 5)
            return XDP_DROP;
        c.pos += sizeof(*ip);
        if (ip->frag_off & bpf_htons(0x3fff))
            return XDP_DROP;
        bytes = bpf_ntohs(ip->tot_len);
        pckt.flow.proto = ip->protocol;
        pckt.tos = ip->tos;
        pckt.flow.src = ip->saddr;
        pckt.flow.dst = ip->daddr;
        vip.vip = ip->daddr;
        if (ip->protocol == IPPROTO_ICMP)
            return icmp_echo(xdp, &c);
    }
    verdict = parse_l4(&pckt, &c);
    if (verdict >= 0)
        return verdict;
    vip.proto = pckt.flow.proto;
    vip.port = pckt.flow.port16[1];
    meta = bpf_map_lookup_elem(&vip_map, &vip);
    if (!meta) {
        vip.port = 0;
        meta = bpf_map_lookup_elem(&vip_map, &vip);
        if (!meta)
            return XDP_PASS;
        if (!(meta->flags & F_NO_PORT))
            pckt.flow.port16[1] = 0;
    }
    flags = meta->flags;
    num = meta->num;
    dst = pick(&pckt, meta, is_v6);
    if (!dst)
        return XDP_DROP;
    if (dst->is_v6) {
        if (!encap_v6(xdp, &pckt, dst, bytes, is_v6, !!(flags & F_GUE)))
            return XDP_ABORTED;
    } else if (is_v6) {
        return XDP_DROP;
    } else if (!encap_v4(xdp, &pckt, dst, bytes, !!(flags & F_GUE))) {
        return XDP_ABORTED;
    }
    count(num & (MAX_VIPS - 1), bytes);
    return XDP_TX;
}

SEC("xdp")
int balance(struct xdp_md *xdp)
{
    void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
    struct ethhdr *eth = data;
    if (data + sizeof(*eth) > end)
        return XDP_DROP;
    if (eth->h_proto == bpf_htons(ETH_P_IP))
        return process(xdp, 0);
    if (eth->h_proto == bpf_htons(ETH_P_IPV6))
        return process(xdp, 1);
    return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
