// Packet headers as vmlinux.h has them: types of the kernel, whose layouts a loader may relocate.
#pragma once
#pragma clang diagnostic ignored "-Wcompare-distinct-pointer-types"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86DD
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88A8
#define IPPROTO_HOPOPTS 0
#define IPPROTO_ICMP 1
#define IPPROTO_IPIP 4
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_IPV6 41
#define IPPROTO_ROUTING 43
#define IPPROTO_FRAGMENT 44
#define IPPROTO_AH 51
#define IPPROTO_ICMPV6 58
#define IPPROTO_NONE 59
#define IPPROTO_DSTOPTS 60

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ethhdr {
    unsigned char h_dest[6];
    unsigned char h_source[6];
    __be16 h_proto;
} __attribute__((packed));

struct vlan_hdr {
    __be16 h_vlan_TCI;
    __be16 h_vlan_encapsulated_proto;
};

struct iphdr {
    __u8 ihl : 4;
    __u8 version : 4;
    __u8 tos;
    __be16 tot_len;
    __be16 id;
    __be16 frag_off;
    __u8 ttl;
    __u8 protocol;
    __u16 check;
    __be32 saddr;
    __be32 daddr;
};

struct in6_addr {
    union {
        __u8 u6_addr8[16];
        __be16 u6_addr16[8];
        __be32 u6_addr32[4];
    } in6_u;
};

struct ipv6hdr {
    __u8 priority : 4;
    __u8 version : 4;
    __u8 flow_lbl[3];
    __be16 payload_len;
    __u8 nexthdr;
    __u8 hop_limit;
    struct in6_addr saddr;
    struct in6_addr daddr;
};

struct ipv6_opt_hdr {
    __u8 nexthdr;
    __u8 hdrlen;
} __attribute__((packed));

struct frag_hdr {
    __u8 nexthdr;
    __u8 reserved;
    __be16 frag_off;
    __be32 identification;
};

struct udphdr {
    __be16 source;
    __be16 dest;
    __be16 len;
    __u16 check;
};

struct tcphdr {
    __be16 source;
    __be16 dest;
    __be32 seq;
    __be32 ack_seq;
    __u16 res1 : 4;
    __u16 doff : 4;
    __u16 fin : 1;
    __u16 syn : 1;
    __u16 rst : 1;
    __u16 psh : 1;
    __u16 ack : 1;
    __u16 urg : 1;
    __u16 ece : 1;
    __u16 cwr : 1;
    __be16 window;
    __u16 check;
    __be16 urg_ptr;
};

struct icmphdr {
    __u8 type;
    __u8 code;
    __u16 checksum;
    __be32 rest;
};

#pragma clang attribute pop

// Where a parser stands in a packet.
struct cursor {
    void *pos;
    void *end;
};

static __always_inline struct ethhdr *parse_ethhdr(struct cursor *c)
{
    struct ethhdr *eth = c->pos;
    if (eth + 1 > c->end)
        return 0;
    c->pos = eth + 1;
    return eth;
}

static __always_inline struct iphdr *parse_iphdr(struct cursor *c)
{
    struct iphdr *ip = c->pos;
    int len;
    if (ip + 1 > c->end)
        return 0;
    len = ip->ihl * 4;
    if (len < (int)sizeof(*ip) || c->pos + len > c->end)
        return 0;
    c->pos += len;
    return ip;
}

static __always_inline struct ipv6hdr *parse_ipv6hdr(struct cursor *c)
{
    struct ipv6hdr *ip6 = c->pos;
    if (ip6 + 1 > c->end)
        return 0;
    c->pos = ip6 + 1;
    return ip6;
}

static __always_inline struct tcphdr *parse_tcphdr(struct cursor *c)
{
    struct tcphdr *tcp = c->pos;
    int len;
    if (tcp + 1 > c->end)
        return 0;
    len = tcp->doff * 4;
    if (len < (int)sizeof(*tcp) || c->pos + len > c->end)
        return 0;
    c->pos += len;
    return tcp;
}

static __always_inline struct udphdr *parse_udphdr(struct cursor *c)
{
    struct udphdr *udp = c->pos;
    if (udp + 1 > c->end)
        return 0;
    c->pos = udp + 1;
    return udp;
}

static __always_inline __u16 csum_fold(__u64 sum)
{
    int i;
#pragma unroll
    for (i = 0; i < 4; i++)
        if (sum >> 16)
            sum = (sum & 0xffff) + (sum >> 16);
    return ~sum;
}
