// mcpu: v3 v2 v4
// Connections to any of some addresses and ports go to a few sockets.
#include "headers.h"

#define AF_INET 2
#define AF_INET6 10

struct service {
    __u32 first;
    __u32 count;
};

struct prefix {
    __u32 bits;
    __u8 proto;
    __u8 pad;
    __be16 port;
    __u8 addr[16];
};

struct {
    __uint(type, BPF_MAP_TYPE_LPM_TRIE);
    __uint(max_entries, 64);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, struct prefix);
    __type(value, struct service);
} services SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_SOCKMAP);
    __uint(max_entries, 8);
    __type(key, __u32);
    __type(value, __u64);
} sockets SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 8);
    __type(key, __u32);
    __type(value, __u64);
} outcomes SEC(".maps");

enum { NO_SERVICE, NO_SOCKET, CHOSEN, REFUSED, LOCAL };

static __always_inline void count(__u32 what)
{
    __u64 *n = bpf_map_lookup_elem(&outcomes, &what);
    if (n)
        *n += 1;
}

SEC("sk_lookup")
int steer(struct bpf_sk_lookup *ctx)
{
    struct prefix key = { .bits = 32 + 128 };
    struct service *service;
    struct bpf_sock *sk;
    __u32 index, port = ctx->local_port;
    long err;

    key.proto = ctx->protocol;
    key.port = bpf_htons(port);
    if (ctx->family == AF_INET) {
        __be32 addr = ctx->local_ip4;
        key.addr[10] = key.addr[11] = 0xff;
        __builtin_memcpy(key.addr + 12, &addr, 4);
    } else if (ctx->family == AF_INET6) {
        __u32 words[4] = { ctx->local_ip6[0], ctx->local_ip6[1], ctx->local_ip6[2], ctx->local_ip6[3] };
        __builtin_memcpy(key.addr, words, 16);
    } else {
        return SK_PASS;
    }
    service = bpf_map_lookup_elem(&services, &key);
    if (!service) {
        count(NO_SERVICE);
        return SK_PASS;
    }
    if (!service->count) {
        count(REFUSED);
        return SK_DROP;
    }
    index = service->first + (bpf_ntohs(ctx->remote_port) + ctx->remote_ip4) % service->count;
    if (ctx->ingress_ifindex == 1) {
        count(LOCAL);
        return SK_PASS;
    }
    sk = bpf_map_lookup_elem(&sockets, &index);
    if (!sk) {
        count(NO_SOCKET);
        return SK_DROP;
    }
    err = bpf_sk_assign(ctx, sk, 0);
    bpf_sk_release(sk);
    if (err) {
        count(5);
        return SK_DROP;
    }
    count(CHOSEN);
    return SK_PASS;
}

char _license[] SEC("license") = "GPL";
