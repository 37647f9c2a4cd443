// mcpu: v3 v2 v4
// A flow dissector: from the network header to the ports, through tags, tunnels and extension headers.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define BPF_OK_ 0
#define BPF_DROP_ 2

enum { IP, IPV6, IPV6_NEXT, VLAN, UNUSED };

struct {
    __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
    __uint(max_entries, 4);
    __uint(key_size, sizeof(__u32));
    __uint(value_size, sizeof(__u32));
} jump_table SEC(".maps");

struct vlan_hdr {
    __be16 tci;
    __be16 proto;
};

struct gre_hdr {
    __be16 flags;
    __be16 proto;
};

static __always_inline void *header(struct __sk_buff *skb, __u16 size, void *buffer)
{
    void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
    __u16 thoff = skb->flow_keys->thoff;
    __u8 *hdr;
    if (thoff > 0xffff - size)
        return 0;
    hdr = data + thoff;
    if ((void *)hdr + size <= end)
        return hdr;
    if (bpf_skb_load_bytes(skb, thoff, buffer, size))
        return 0;
    return buffer;
}

static __always_inline int parse_ports(struct __sk_buff *skb, __u8 proto)
{
    struct bpf_flow_keys *keys = skb->flow_keys;
    __be16 *ports, copy[2];
    keys->ip_proto = proto;
    if (proto != IPPROTO_TCP && proto != IPPROTO_UDP)
        return proto == IPPROTO_ICMP || proto == IPPROTO_ICMPV6 ? BPF_OK_ : BPF_DROP_;
    if (proto == IPPROTO_TCP) {
        struct tcphdr *tcp, buffer;
        tcp = header(skb, sizeof(*tcp), &buffer);
        if (!tcp || tcp->doff < 5)
            return BPF_DROP_;
        keys->sport = tcp->source;
        keys->dport = tcp->dest;
        return BPF_OK_;
    }
    ports = header(skb, sizeof(copy), copy);
    if (!ports)
        return BPF_DROP_;
    keys->sport = ports[0];
    keys->dport = ports[1];
    return BPF_OK_;
}

static __always_inline int parse_v4(struct __sk_buff *skb)
{
    struct bpf_flow_keys *keys = skb->flow_keys;
    struct iphdr *ip, buffer;
    ip = header(skb, sizeof(*ip), &buffer);
    if (!ip || ip->ihl < 5)
        return -1;
    keys->addr_proto = ETH_P_IP;
    keys->ipv4_src = ip->saddr;
    keys->ipv4_dst = ip->daddr;
    keys->ip_proto = ip->protocol;
    keys->thoff += ip->ihl << 2;
    if (ip->frag_off & bpf_htons(0x3fff)) {
        keys->is_frag = 1;
        if (ip->frag_off & bpf_htons(0x1fff))
            return 1;
        keys->is_first_frag = 1;
        if (!(keys->flags & BPF_FLOW_DISSECTOR_F_PARSE_1ST_FRAG))
            return 1;
    }
    return 0;
}

static __always_inline int parse_v6(struct __sk_buff *skb)
{
    struct bpf_flow_keys *keys = skb->flow_keys;
    struct ipv6hdr *ip6, buffer;
    __u8 next;
    ip6 = header(skb, sizeof(*ip6), &buffer);
    if (!ip6)
        return -1;
    keys->addr_proto = ETH_P_IPV6;
    __builtin_memcpy(&keys->ipv6_src, &ip6->saddr, 2 * sizeof(ip6->saddr));
    keys->flow_label = *(__be32 *)ip6 & bpf_htonl(0xfffff);
    keys->thoff += sizeof(*ip6);
    next = ip6->nexthdr;
    if (keys->flow_label && keys->flags & BPF_FLOW_DISSECTOR_F_STOP_AT_FLOW_LABEL) {
        keys->ip_proto = next;
        return 1;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        struct ipv6_opt_hdr *opt, copy;
        if (next == IPPROTO_FRAGMENT) {
            struct { __u8 next, pad; __be16 off; __be32 id; } *frag, fcopy;
            frag = header(skb, sizeof(*frag), &fcopy);
            if (!frag)
                return -1;
            keys->thoff += sizeof(*frag);
            keys->is_frag = 1;
            next = frag->next;
            if (frag->off & bpf_htons(0xfff8)) {
                keys->ip_proto = next;
                return 1;
            }
            keys->is_first_frag = 1;
        } else if (next == IPPROTO_HOPOPTS || next == IPPROTO_DSTOPTS) {
            opt = header(skb, sizeof(*opt), &copy);
            if (!opt)
                return -1;
            keys->thoff += (1 + opt->hdrlen) << 3;
            next = opt->nexthdr;
        } else {
            break;
        }
    }
    keys->ip_proto = next;
    return 0;
}

static __always_inline int parse_l4(struct __sk_buff *skb)
{
    struct bpf_flow_keys *keys = skb->flow_keys;
    int how;
    switch (keys->ip_proto) {
    case IPPROTO_GRE: {
        struct gre_hdr *gre, copy;
        gre = header(skb, sizeof(*gre), &copy);
        if (!gre || gre->flags & bpf_htons(0x0007))
            return BPF_DROP_;
        keys->is_encap = 1;
        if (keys->flags & BPF_FLOW_DISSECTOR_F_STOP_AT_ENCAP)
            return BPF_OK_;
        keys->thoff += sizeof(*gre) + (gre->flags & bpf_htons(0x2000) ? 4 : 0);
        if (gre->proto == bpf_htons(ETH_P_IP))
            how = parse_v4(skb);
        else if (gre->proto == bpf_htons(ETH_P_IPV6))
            how = parse_v6(skb);
        else
            return BPF_DROP_;
        break;
    }
    case IPPROTO_IPIP:
    case IPPROTO_IPV6:
        keys->is_encap = 1;
        if (keys->flags & BPF_FLOW_DISSECTOR_F_STOP_AT_ENCAP)
            return BPF_OK_;
        how = keys->ip_proto == IPPROTO_IPIP ? parse_v4(skb) : parse_v6(skb);
        break;
    default:
        return parse_ports(skb, keys->ip_proto);
    }
    if (how)
        return how < 0 ? BPF_DROP_ : BPF_OK_;
    return parse_ports(skb, keys->ip_proto);
}

static __always_inline int by_type(struct __sk_buff *skb, __be16 type)
{
    int how;
    skb->flow_keys->n_proto = type;
    switch (type) {
    case bpf_htons(ETH_P_IP):
        how = parse_v4(skb);
        break;
    case bpf_htons(ETH_P_IPV6):
        how = parse_v6(skb);
        break;
    default:
        return BPF_DROP_;
    }
    if (how)
        return how < 0 ? BPF_DROP_ : BPF_OK_;
    return parse_l4(skb);
}

SEC("flow_dissector")
int dissect(struct __sk_buff *skb)
{
    struct bpf_flow_keys *keys = skb->flow_keys;
    struct vlan_hdr *vlan, copy;
    __be16 type = keys->n_proto;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (type != bpf_htons(ETH_P_8021Q) && type != bpf_htons(ETH_P_8021AD))
            break;
        vlan = header(skb, sizeof(*vlan), &copy);
        if (!vlan)
            return BPF_DROP_;
        keys->nhoff += sizeof(*vlan);
        keys->thoff = keys->nhoff;
        type = vlan->proto;
    }
    return by_type(skb, type);
}

char _license[] SEC("license") = "GPL";
