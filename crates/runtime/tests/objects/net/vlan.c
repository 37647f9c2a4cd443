// mcpu: v3 v2 v4
// Tags of VLANs, single and double: rewritten in the packet, and by the kernel's helpers.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

struct vlan_hdr {
    __be16 tci;
    __be16 proto;
};

struct rewrite {
    __u16 vid;
    __u8 action;
    __u8 pcp;
};

enum { KEEP, POP, SET, PUSH, SWAP, DROP };

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 64);
    __type(key, __u32);
    __type(value, struct rewrite);
} rewrites SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 8);
    __type(key, __u32);
    __type(value, __u64);
} actions SEC(".maps");

static __always_inline int is_tag(__be16 proto)
{
    return !!(proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD));
}

static __always_inline void count(__u32 action)
{
    __u64 *n = bpf_map_lookup_elem(&actions, &action);
    if (n)
        *n += 1;
}

static __always_inline int xdp_pop(struct xdp_md *ctx, struct ethhdr *eth)
{
    void *end = (void *)(long)ctx->data_end;
    struct ethhdr copy;
    struct vlan_hdr *vlan = (void *)(eth + 1);
    __be16 proto;
    if ((void *)(vlan + 1) > end)
        return -1;
    proto = vlan->proto;
    __builtin_memcpy(&copy, eth, sizeof(copy));
    if (bpf_xdp_adjust_head(ctx, (int)sizeof(*vlan)))
        return -1;
    eth = (void *)(long)ctx->data;
    end = (void *)(long)ctx->data_end;
    if ((void *)(eth + 1) > end)
        return -1;
    __builtin_memcpy(eth, &copy, sizeof(copy));
    eth->h_proto = proto;
    return 0;
}

static __always_inline int xdp_push(struct xdp_md *ctx, struct ethhdr *eth, __u16 tci, __be16 tpid)
{
    void *end;
    struct ethhdr copy;
    struct vlan_hdr *vlan;
    __builtin_memcpy(&copy, eth, sizeof(copy));
    if (bpf_xdp_adjust_head(ctx, 0 - (int)sizeof(*vlan)))
        return -1;
    eth = (void *)(long)ctx->data;
    end = (void *)(long)ctx->data_end;
    if ((void *)(eth + 1) > end)
        return -1;
    __builtin_memcpy(eth, &copy, sizeof(copy));
    vlan = (void *)(eth + 1);
    if ((void *)(vlan + 1) > end)
        return -1;
    vlan->tci = bpf_htons(tci);
    vlan->proto = eth->h_proto;
    eth->h_proto = tpid;
    return 0;
}

SEC("xdp")
int xdp_vlan(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct vlan_hdr *outer, *inner;
    struct rewrite *rw;
    __u32 key;
    __u16 tci;
    if (data + sizeof(*eth) > end)
        return XDP_ABORTED;
    if (!is_tag(eth->h_proto)) {
        key = 0xffff;
        rw = bpf_map_lookup_elem(&rewrites, &key);
        if (rw && rw->action == PUSH) {
            count(PUSH);
            return xdp_push(ctx, eth, rw->pcp << 13 | rw->vid, bpf_htons(ETH_P_8021Q)) ? XDP_ABORTED : XDP_TX;
        }
        return XDP_PASS;
    }
    outer = data + sizeof(*eth);
    if ((void *)(outer + 1) > end)
        return XDP_DROP;
    tci = bpf_ntohs(outer->tci);
    key = tci & 0xfff;
    if (is_tag(outer->proto)) {
        inner = outer + 1;
        if ((void *)(inner + 1) > end)
            return XDP_DROP;
        key |= (bpf_ntohs(inner->tci) & 0xfff) << 16;
    }
    rw = bpf_map_lookup_elem(&rewrites, &key);
    if (!rw)
        return XDP_PASS;
    count(rw->action & 7);
    switch (rw->action) {
    case POP:
        return xdp_pop(ctx, eth) ? XDP_ABORTED : XDP_TX;
    case SET:
        outer->tci = bpf_htons((tci & 0xf000) | rw->vid);
        return XDP_TX;
    case PUSH:
        return xdp_push(ctx, eth, rw->pcp << 13 | rw->vid, bpf_htons(ETH_P_8021AD)) ? XDP_ABORTED : XDP_TX;
    case SWAP:
        if (is_tag(outer->proto)) {
            struct vlan_hdr *second = outer + 1;
            __be16 swap;
            if ((void *)(second + 1) > end)
                return XDP_DROP;
            swap = second->tci;
            second->tci = outer->tci;
            outer->tci = swap;
        }
        return XDP_TX;
    case DROP:
        return XDP_DROP;
    }
    return XDP_PASS;
}

SEC("tc")
int tc_vlan(struct __sk_buff *skb)
{
    struct rewrite *rw;
    __u32 key = skb->vlan_present ? skb->vlan_tci & 0xfff : 0xffff;
    __u16 tci;
    rw = bpf_map_lookup_elem(&rewrites, &key);
    if (!rw)
        return TC_ACT_UNSPEC;
    count(rw->action & 7);
    tci = rw->pcp << 13 | rw->vid;
    skb->priority = rw->pcp;
    switch (rw->action) {
    case POP:
        if (bpf_skb_vlan_pop(skb))
            return TC_ACT_SHOT;
        break;
    case SET:
        if (bpf_skb_vlan_pop(skb) || bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), tci))
            return TC_ACT_SHOT;
        break;
    case PUSH:
        if (bpf_skb_vlan_push(skb, bpf_htons(key == 0xffff ? ETH_P_8021Q : ETH_P_8021AD), tci))
            return TC_ACT_SHOT;
        break;
    case SWAP: {
        __u16 inner;
        if (bpf_skb_vlan_pop(skb))
            return TC_ACT_SHOT;
        inner = skb->vlan_tci;
        if (!skb->vlan_present || bpf_skb_vlan_pop(skb))
            return TC_ACT_SHOT;
        if (bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), key) || bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021AD), inner))
            return TC_ACT_SHOT;
        break;
    }
    case DROP:
        return TC_ACT_SHOT;
    }
    skb->cb[0] = skb->vlan_present << 16 | skb->vlan_tci;
    skb->mark = skb->cb[0] ^ skb->protocol;
    return TC_ACT_OK;
}

char _license[] SEC("license") = "GPL";
