// mcpu: v3 v2 v4
// Loops by open-coded iterators, by bpf_loop and by hand, on a classifier.
#include "headers.h"

struct bpf_iter_num;
extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __weak __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __weak __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __weak __ksym;

struct bpf_iter_num {
    __u64 opaque[1];
} __attribute__((aligned(8)));

static inline void destroy_num(struct bpf_iter_num *it)
{
    bpf_iter_num_destroy(it);
}

#define for_num(i, start, end)                                                                                         \
    for (struct bpf_iter_num it_##i __attribute__((aligned(8), cleanup(destroy_num))),                                 \
         *p_##i __attribute__((unused)) = (bpf_iter_num_new(&it_##i, (start), (end)),                                  \
                                           (void)bpf_iter_num_destroy, (void *)0);                                     \
         ({                                                                                                            \
             int *n = bpf_iter_num_next(&it_##i);                                                                      \
             (n && ((i) = *n, (i) >= (start) && (i) < (end)));                                                         \
         });)

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 256);
    __type(key, __u32);
    __type(value, __u64);
} histogram SEC(".maps");

__u64 bytes[64];
__u32 sums[8];

SEC("tc")
int byte_histogram(struct __sk_buff *skb)
{
    int i = 0;
    __u32 seen = 0;
    for_num(i, 0, 128) {
        __u8 byte;
        __u32 key;
        __u64 *count;
        if (bpf_skb_load_bytes(skb, i, &byte, 1))
            break;
        key = byte;
        count = bpf_map_lookup_elem(&histogram, &key);
        if (!count)
            continue;
        *count += 1;
        seen++;
    }
    skb->mark = seen;
    return 0;
}

SEC("tc")
int in_place(struct __sk_buff *skb)
{
    void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
    __u64 sum = 0;
    int i = 0;
    for_num(i, 0, 60) {
        __u8 *p = data + i;
        if ((void *)(p + 1) > end)
            break;
        sum = sum * 31 + *p;
        if (i < 64)
            bytes[i & 63] += *p;
    }
    skb->cb[0] = sum;
    skb->cb[1] = sum >> 32;
    skb->mark = sum ^ sum >> 32;
    return sum & 1 ? 0 : 2;
}

SEC("tc")
int nested(struct __sk_buff *skb)
{
    __u32 total = 0;
    int i = 0, j = 0;
    for_num(i, 0, 8) {
        for_num(j, 0, 8) {
            if (((i ^ j) & 3) == 3)
                continue;
            total += (i + 1) * (j + 1) * (skb->len & 15);
            if (total > 4000)
                break;
        }
        sums[i & 7] += total;
    }
    skb->mark = total;
    return 0;
}

struct checksum {
    struct __sk_buff *skb;
    __u32 sum;
};

static long add_word(__u32 i, void *data)
{
    struct checksum *c = data;
    __u16 word;
    if (bpf_skb_load_bytes(c->skb, i * 2, &word, 2))
        return 1;
    c->sum += word;
    return 0;
}

SEC("tc")
int checksum(struct __sk_buff *skb)
{
    struct checksum c = { .skb = skb };
    long rounds = bpf_loop(64, add_word, &c, 0);
    skb->mark = csum_fold(c.sum) | rounds << 16;
    return 0;
}

SEC("tc")
int search(struct __sk_buff *skb)
{
    void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
    __u8 *p = data;
    int at = -1;
    for (int i = 0; i < 100; i++, p++) {
        if ((void *)(p + 2) > end)
            break;
        if (p[0] == 0x45 && p[1] == 0) {
            at = i;
            break;
        }
    }
    skb->mark = at;
    return at < 0 ? 2 : 0;
}

char _license[] SEC("license") = "GPL";
