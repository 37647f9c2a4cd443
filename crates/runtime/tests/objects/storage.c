// mcpu: v3
// Storage for each socket: counters of its packets, and a number under a lock for each connection.
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

struct flow {
	__u64 packets;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct flow);
} flows SEC(".maps");

struct locked {
	struct bpf_spin_lock lock;
	__u32 times;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct locked);
} connections SEC(".maps");

/* Returns how many packets of the socket it has seen, 100 more than there were; 0 for one of no socket. */
SEC("tc")
int count(struct __sk_buff *skb)
{
	struct flow first = { .packets = 100 }, *flow;
	struct bpf_sock *sk = skb->sk;

	if (!sk)
		return 0;
	flow = bpf_sk_storage_get(&flows, sk, &first, BPF_SK_STORAGE_GET_F_CREATE);
	if (!flow)
		return 0;
	__sync_fetch_and_add(&flow->packets, 1);
	__sync_fetch_and_add(&flow->bytes, skb->len);
	return flow->packets;
}

/* Each step of a storage's life: 77, or which step went wrong. */
SEC("tc")
int steps(struct __sk_buff *skb)
{
	struct flow first = { .packets = 100 }, *a, *b;
	struct bpf_sock *sk = skb->sk;

	if (!sk)
		return 1;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return 2;
	if (bpf_sk_storage_get(&flows, sk, 0, 0))
		return 3;
	if (bpf_sk_storage_delete(&flows, sk) != -2)
		return 4;
	if (bpf_sk_storage_get(&flows, sk, 0, 2))
		return 5;
	a = bpf_sk_storage_get(&flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!a)
		return 6;
	if (a->packets || a->bytes)
		return 7;
	a->packets = 7;
	b = bpf_sk_storage_get(&flows, sk, &first, BPF_SK_STORAGE_GET_F_CREATE);
	if (!b || b->packets != 7)
		return 8;
	if (bpf_sk_storage_delete(&flows, sk))
		return 9;
	/* The memory is not reused before the run has ended. */
	b = bpf_sk_storage_get(&flows, sk, &first, BPF_SK_STORAGE_GET_F_CREATE);
	if (!b || b->packets != 100)
		return 10;
	a->bytes = 9;
	if (a->packets != 7 || b->bytes)
		return 11;
	/* Its storage may be the first value of a new one. */
	if (bpf_sk_storage_delete(&flows, sk))
		return 12;
	b = bpf_sk_storage_get(&flows, sk, a, BPF_SK_STORAGE_GET_F_CREATE);
	if (!b || b->packets != 7 || b->bytes != 9)
		return 13;
	if (bpf_sk_storage_delete(&flows, sk))
		return 14;
	return 77;
}

/* Begins to count before there are packets, and refuses a socket that it has met before. */
SEC("cgroup/sock_create")
int made(struct bpf_sock *ctx)
{
	struct flow first = { .packets = 200 };

	if (bpf_sk_storage_get(&flows, ctx, 0, 0))
		return 0;
	return bpf_sk_storage_get(&flows, ctx, &first, BPF_SK_STORAGE_GET_F_CREATE) != 0;
}

/* Counts what it is told of a connection. */
SEC("sockops")
int told(struct bpf_sock_ops *ops)
{
	struct locked *connection;
	struct bpf_sock *sk = ops->sk;

	if (!sk)
		return 0;
	connection = bpf_sk_storage_get(&connections, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!connection)
		return 0;
	bpf_spin_lock(&connection->lock);
	connection->times++;
	bpf_spin_unlock(&connection->lock);
	return 1;
}

char _license[] SEC("license") = "GPL";
