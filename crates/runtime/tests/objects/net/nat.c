// mcpu: v3 v2 v4
// Source address translation with connection tracking, on the way out and back.
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <linux/icmp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

struct tuple {
    __be32 saddr;
    __be32 daddr;
    __be16 sport;
    __be16 dport;
    __u8 proto;
    __u8 pad[3];
};

enum state { NEW, ESTABLISHED, CLOSING, CLOSED };

struct mapping {
    __be32 addr;
    __be16 port;
    __u8 state;
    __u8 seen;
    __u64 packets;
    __u64 bytes;
};

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 8192);
    __type(key, struct tuple);
    __type(value, struct mapping);
} outbound SEC(".maps"), inbound SEC(".maps");

const volatile __be32 public_addr = 0x097100cb; // 203.0.113.9
const volatile __u16 first_port = 20000, ports = 4096;
__u64 exhausted, malformed;

struct l4 {
    struct tuple t;
    __u32 off;      // of the layer 4 header
    __u32 len;
    __u8 flags;
};

static __always_inline int parse(struct __sk_buff *skb, struct l4 *l4)
{
    void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
    struct ethhdr *eth = data;
    struct iphdr *ip = (void *)(eth + 1);
    if ((void *)(ip + 1) > end) {
        // The headers may lie in fragments.
        if (bpf_skb_pull_data(skb, sizeof(*eth) + sizeof(*ip)) < 0)
            return -1;
        data = (void *)(long)skb->data;
        end = (void *)(long)skb->data_end;
        eth = data;
        ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end)
            return -1;
    }
    if (eth->h_proto != bpf_htons(ETH_P_IP) || ip->version != 4 || ip->ihl < 5)
        return -1;
    if (ip->frag_off & bpf_htons(0x1fff))
        return -1;
    __builtin_memset(&l4->t, 0, sizeof(l4->t));
    l4->off = ETH_HLEN + ip->ihl * 4;
    l4->len = bpf_ntohs(ip->tot_len);
    l4->t.saddr = ip->saddr;
    l4->t.daddr = ip->daddr;
    l4->t.proto = ip->protocol;
    l4->flags = 0;
    switch (ip->protocol) {
    case IPPROTO_TCP: {
        struct tcphdr tcp;
        if (bpf_skb_load_bytes(skb, l4->off, &tcp, sizeof(tcp)) < 0)
            return -1;
        l4->t.sport = tcp.source;
        l4->t.dport = tcp.dest;
        l4->flags = ((__u8 *)&tcp)[13];
        return 0;
    }
    case IPPROTO_UDP: {
        struct udphdr udp;
        if (bpf_skb_load_bytes(skb, l4->off, &udp, sizeof(udp)) < 0)
            return -1;
        l4->t.sport = udp.source;
        l4->t.dport = udp.dest;
        return 0;
    }
    case IPPROTO_ICMP: {
        struct icmphdr icmp;
        if (bpf_skb_load_bytes(skb, l4->off, &icmp, sizeof(icmp)) < 0)
            return -1;
        if (icmp.type != ICMP_ECHO && icmp.type != ICMP_ECHOREPLY)
            return -1;
        l4->t.sport = l4->t.dport = icmp.un.echo.id;
        return 0;
    }
    default:
        return -1;
    }
}

static __always_inline int rewrite(struct __sk_buff *skb, struct l4 *l4, int source, __be32 addr, __be16 port)
{
    __be32 old_addr = source ? l4->t.saddr : l4->t.daddr;
    __be16 old_port = source ? l4->t.sport : l4->t.dport;
    __u32 addr_off = ETH_HLEN + (source ? offsetof(struct iphdr, saddr) : offsetof(struct iphdr, daddr));
    __u32 csum_off, port_off, flags = 0;

    switch (l4->t.proto) {
    case IPPROTO_TCP:
        csum_off = l4->off + offsetof(struct tcphdr, check);
        port_off = l4->off + (source ? offsetof(struct tcphdr, source) : offsetof(struct tcphdr, dest));
        break;
    case IPPROTO_UDP:
        csum_off = l4->off + offsetof(struct udphdr, check);
        port_off = l4->off + (source ? offsetof(struct udphdr, source) : offsetof(struct udphdr, dest));
        flags = BPF_F_MARK_MANGLED_0;
        break;
    default:
        csum_off = l4->off + offsetof(struct icmphdr, checksum);
        port_off = l4->off + offsetof(struct icmphdr, un.echo.id);
        break;
    }
    if (l4->t.proto != IPPROTO_ICMP &&
        bpf_l4_csum_replace(skb, csum_off, old_addr, addr, BPF_F_PSEUDO_HDR | flags | sizeof(addr)))
        return -1;
    if (bpf_l3_csum_replace(skb, ETH_HLEN + offsetof(struct iphdr, check), old_addr, addr, sizeof(addr)))
        return -1;
    if (bpf_skb_store_bytes(skb, addr_off, &addr, sizeof(addr), 0))
        return -1;
    if (old_port != port) {
        if (bpf_l4_csum_replace(skb, csum_off, old_port, port, flags | sizeof(port)))
            return -1;
        if (bpf_skb_store_bytes(skb, port_off, &port, sizeof(port), BPF_F_RECOMPUTE_CSUM))
            return -1;
    }
    return 0;
}

static __always_inline void track(struct mapping *m, struct l4 *l4, int dir)
{
    m->packets++;
    m->bytes += l4->len;
    m->seen |= 1 << dir;
    if (l4->t.proto == IPPROTO_TCP) {
        if (l4->flags & 4)
            m->state = CLOSED;
        else if (l4->flags & 1)
            m->state = m->state == CLOSING ? CLOSED : CLOSING;
        else if (m->seen == 3 && m->state == NEW)
            m->state = ESTABLISHED;
    } else if (m->seen == 3) {
        m->state = ESTABLISHED;
    }
}

static __noinline __u32 hash_tuple(const struct tuple *t)
{
    __u32 h = 2166136261u;
    const __u8 *p = (const __u8 *)t;
    if (!t)
        return 0;
    for (__u32 i = 0; i < sizeof(*t); i++)
        h = (h ^ p[i]) * 16777619u;
    return h;
}

static __always_inline int allocate(struct l4 *l4, __be16 *port)
{
    struct tuple back = { .saddr = l4->t.daddr, .daddr = public_addr, .sport = l4->t.dport, .proto = l4->t.proto };
    struct mapping m = {};
    __u32 at = hash_tuple(&l4->t);
    m.addr = l4->t.saddr;
    m.port = l4->t.sport;
    for (int i = 0; i < 16; i++) {
        back.dport = bpf_htons(first_port + (at + i) % ports);
        if (l4->t.proto == IPPROTO_ICMP)
            back.sport = back.dport;
        if (!bpf_map_update_elem(&inbound, &back, &m, BPF_NOEXIST)) {
            *port = back.dport;
            return 0;
        }
    }
    __sync_fetch_and_add(&exhausted, 1);
    return -1;
}

SEC("tc")
int egress(struct __sk_buff *skb)
{
    struct l4 l4;
    struct mapping *m, fresh = {};
    __be16 port;
    if (parse(skb, &l4)) {
        __sync_fetch_and_add(&malformed, 1);
        return TC_ACT_OK;
    }
    if ((l4.t.saddr & bpf_htonl(0xff000000)) != bpf_htonl(0x0a000000))
        return TC_ACT_OK;
    m = bpf_map_lookup_elem(&outbound, &l4.t);
    if (!m) {
        if (allocate(&l4, &port))
            return TC_ACT_SHOT;
        fresh.addr = public_addr;
        fresh.port = port;
        bpf_map_update_elem(&outbound, &l4.t, &fresh, BPF_ANY);
        m = bpf_map_lookup_elem(&outbound, &l4.t);
        if (!m)
            return TC_ACT_SHOT;
    }
    track(m, &l4, 0);
    if (rewrite(skb, &l4, 1, m->addr, m->port))
        return TC_ACT_SHOT;
    skb->mark = 0x100 | m->state;
    return TC_ACT_OK;
}

SEC("tc")
int ingress(struct __sk_buff *skb)
{
    struct l4 l4;
    struct mapping *m, *out;
    struct tuple forward = {};
    if (parse(skb, &l4))
        return TC_ACT_OK;
    m = bpf_map_lookup_elem(&inbound, &l4.t);
    if (!m)
        return l4.t.daddr == public_addr ? TC_ACT_SHOT : TC_ACT_OK;
    forward.saddr = m->addr;
    forward.daddr = l4.t.saddr;
    forward.sport = m->port;
    forward.dport = l4.t.proto == IPPROTO_ICMP ? m->port : l4.t.sport;
    forward.proto = l4.t.proto;
    out = bpf_map_lookup_elem(&outbound, &forward);
    if (!out) {
        bpf_map_delete_elem(&inbound, &l4.t);
        return TC_ACT_SHOT;
    }
    track(out, &l4, 1);
    track(m, &l4, 1);
    if (rewrite(skb, &l4, 0, m->addr, m->port))
        return TC_ACT_SHOT;
    if (out->state == CLOSED) {
        bpf_map_delete_elem(&outbound, &forward);
        bpf_map_delete_elem(&inbound, &l4.t);
    }
    return TC_ACT_OK;
}

char _license[] SEC("license") = "GPL";
