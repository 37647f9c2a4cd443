// mcpu: v3 v2 v4
// Reads the question of a DNS query, looks its name up with all that it ends in, and refuses what is listed.
#include "headers.h"

#define MAX_NAME 128
#define MAX_LABELS 16

struct dnshdr {
    __be16 id;
    __u8 rd : 1, tc : 1, aa : 1, opcode : 4, qr : 1;
    __u8 rcode : 4, z : 3, ra : 1;
    __be16 qdcount, ancount, nscount, arcount;
};

struct entry {
    __u32 verdict;
    __u32 hits;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 128);
    __type(key, __u64);
    __type(value, struct entry);
} listed SEC(".maps");

struct question {
    __u64 hash;
    __u16 type;
    __u16 class;
    __u16 len;
    __u8 labels;
    __u8 verdict;
};

struct {
    __uint(type, BPF_MAP_TYPE_QUEUE);
    __uint(max_entries, 4096);
    __type(value, struct question);
} asked SEC(".maps");

__u64 queries, refused, malformed;

static __always_inline char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? c + 32 : c;
}

struct reader {
    struct xdp_md *ctx;
    __u64 whole, parent;    // hashes of the name, and of what follows its first label
    __u32 at;
    __u8 left;
    __u8 labels;
    __u8 state;
};

enum { READING, DONE, BAD };

static long read_byte(__u32 i, void *data)
{
    struct reader *r = data;
    __u8 byte;
    if (bpf_xdp_load_bytes(r->ctx, r->at + i, &byte, 1)) {
        r->state = BAD;
        return 1;
    }
    if (r->left) {
        r->left--;
        byte = lower(byte);
    } else if (!byte) {
        r->state = DONE;
        r->at += i + 1;
        return 1;
    } else if (byte > 63 || r->labels == MAX_LABELS) {
        r->state = BAD;
        return 1;
    } else {
        r->left = byte;
        r->labels++;
        byte = '.';
    }
    r->whole = (r->whole ^ byte) * 1099511628211ull;
    if (r->labels > 1)
        r->parent = (r->parent ^ byte) * 1099511628211ull;
    return 0;
}

static __noinline __u32 look_up(__u64 hash)
{
    struct entry *e = bpf_map_lookup_elem(&listed, &hash);
    if (!e)
        return 0;
    __sync_fetch_and_add(&e->hits, 1);
    return e->verdict;
}

SEC("xdp")
int resolver(struct xdp_md *ctx)
{
    struct cursor c = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
    struct ethhdr *eth = parse_ethhdr(&c);
    struct iphdr *ip;
    struct udphdr *udp;
    struct dnshdr *dns;
    struct question q = {};
    struct reader r = { .ctx = ctx, .whole = 14695981039346656037ull, .parent = 14695981039346656037ull };
    struct {
        __be16 type, class;
    } rest;
    __u8 mac[6];
    __be32 addr;
    __be16 port;

    if (!eth || eth->h_proto != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    ip = parse_iphdr(&c);
    if (!ip || ip->protocol != IPPROTO_UDP)
        return XDP_PASS;
    udp = parse_udphdr(&c);
    if (!udp || udp->dest != bpf_htons(53))
        return XDP_PASS;
    dns = c.pos;
    if (dns + 1 > c.end)
        goto bad;
    if (dns->qr || dns->opcode || dns->qdcount != bpf_htons(1))
        return XDP_PASS;
    r.at = sizeof(*eth) + ip->ihl * 4 + sizeof(*udp) + sizeof(*dns);
    bpf_loop(MAX_NAME, read_byte, &r, 0);
    if (r.state != DONE || bpf_xdp_load_bytes(ctx, r.at, &rest, sizeof(rest)))
        goto bad;
    queries++;
    q.hash = r.whole;
    q.type = bpf_ntohs(rest.type);
    q.class = bpf_ntohs(rest.class);
    q.len = r.at;
    q.labels = r.labels;
    q.verdict = look_up(r.whole);
    if (!q.verdict && r.labels > 1)
        q.verdict = look_up(r.parent);
    bpf_map_push_elem(&asked, &q, BPF_EXIST);
    if (q.verdict == 0)
        return XDP_PASS;
    if (q.verdict == 1)
        return XDP_DROP;
    // Refused: the same question, with an answer's header.
    dns->qr = 1;
    dns->ra = 1;
    dns->rcode = 5;
    dns->arcount = 0;
    addr = ip->saddr;
    ip->saddr = ip->daddr;
    ip->daddr = addr;
    port = udp->source;
    udp->source = udp->dest;
    udp->dest = port;
    udp->check = 0;
    __builtin_memcpy(mac, eth->h_dest, 6);
    __builtin_memcpy(eth->h_dest, eth->h_source, 6);
    __builtin_memcpy(eth->h_source, mac, 6);
    refused++;
    return XDP_TX;
bad:
    malformed++;
    return XDP_DROP;
}

char _license[] SEC("license") = "GPL";
