// mcpu: v3 v2 v4
// Policy of a control group's sockets: identities of peers by address, verdicts, and a log of refusals.
#include "headers.h"

struct peer {
    __u32 identity;
    __u32 flags;
};

struct policy_key {
    __u32 identity;
    __be16 port;
    __u8 proto;
    __u8 egress;
};

struct event {
    __u32 identity;
    __u32 len;
    __be16 port;
    __u8 proto;
    __u8 family;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 256);
    __type(key, __u8[16]);
    __type(value, struct peer);
} peers SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 256);
    __type(key, struct policy_key);
    __type(value, __u64);
} policy SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 65536);
} events SEC(".maps");

__u64 lost;

static __always_inline void log_refusal(struct __sk_buff *skb, __u32 identity, __be16 port, __u8 proto)
{
    struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
    if (!e) {
        __sync_fetch_and_add(&lost, 1);
        return;
    }
    e->identity = identity;
    e->len = skb->len;
    e->port = port;
    e->proto = proto;
    e->family = skb->protocol == bpf_htons(ETH_P_IPV6) ? 6 : 4;
    bpf_ringbuf_submit(e, 0);
}

static __always_inline int decide(struct __sk_buff *skb, int egress)
{
    __u8 addr[16] = {};
    struct policy_key key = {};
    struct peer *peer;
    __u64 *count;
    __be16 ports[2] = {};
    __u32 off;

    if (skb->protocol == bpf_htons(ETH_P_IP)) {
        struct iphdr ip;
        if (bpf_skb_load_bytes(skb, 0, &ip, sizeof(ip)))
            return 0;
        if (ip.version != 4)
            return 0;
        addr[10] = addr[11] = 0xff;
        __builtin_memcpy(addr + 12, egress ? &ip.daddr : &ip.saddr, 4);
        off = ip.ihl * 4;
        key.proto = ip.protocol;
    } else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
        struct ipv6hdr ip6;
        if (bpf_skb_load_bytes_relative(skb, 0, &ip6, sizeof(ip6), BPF_HDR_START_NET))
            return 0;
        __builtin_memcpy(addr, egress ? &ip6.daddr : &ip6.saddr, 16);
        off = sizeof(ip6);
        key.proto = ip6.nexthdr;
    } else {
        return 1;
    }
    if ((key.proto == IPPROTO_TCP || key.proto == IPPROTO_UDP) && bpf_skb_load_bytes(skb, off, ports, 4))
        return 0;
    peer = bpf_map_lookup_elem(&peers, addr);
    key.identity = peer ? peer->identity : 2;
    key.port = ports[1];
    key.egress = egress;
    count = bpf_map_lookup_elem(&policy, &key);
    if (!count) {
        key.port = 0;
        count = bpf_map_lookup_elem(&policy, &key);
    }
    if (!count) {
        log_refusal(skb, key.identity, ports[1], key.proto);
        return 0;
    }
    __sync_fetch_and_add(count, skb->len);
    if (peer && peer->flags & 1)
        skb->mark = peer->identity;
    return 1;
}

SEC("cgroup_skb/ingress")
int received(struct __sk_buff *skb)
{
    return decide(skb, 0);
}

SEC("cgroup_skb/egress")
int sent(struct __sk_buff *skb)
{
    return decide(skb, 1);
}

char _license[] SEC("license") = "GPL";
