// mcpu: v3
// Look-ups in maps known at load: an array (compiled to a comparison and an address), and others (a direct call).
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct wide {
    __u64 words[3];
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 5);
    __type(key, __u32);
    __type(value, __u64);
} narrow SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 7);
    __type(key, __u32);
    __type(value, struct wide);
} wide SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 4);
    __type(key, __u32);
    __type(value, __u64);
} per_cpu SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 16);
    __type(key, __u64);
    __type(value, __u64);
} hash SEC(".maps");

// data: which map, key, value to add. Returns the new sum, or 0 where there is no element.
SEC("raw/add")
__u64 add(__u64 *data, __u64 len)
{
    __u64 *sum = 0, which, key, value;
    __u32 index;
    if (len < 24)
        return -1;
    which = data[0];
    key = data[1];
    value = data[2];
    index = key;
    if (which == 0) {
        sum = bpf_map_lookup_elem(&narrow, &index);
    } else if (which == 1) {
        struct wide *w = bpf_map_lookup_elem(&wide, &index);
        sum = w ? &w->words[0] : 0;
    } else if (which == 2) {
        sum = bpf_map_lookup_elem(&per_cpu, &index);
    } else if (which == 3) {
        sum = bpf_map_lookup_elem(&hash, &key);
        if (!sum) {
            __u64 zero = 0;
            bpf_map_update_elem(&hash, &key, &zero, BPF_ANY);
            sum = bpf_map_lookup_elem(&hash, &key);
        }
    } else {
        index = 4;
        sum = bpf_map_lookup_elem(&narrow, &index);
    }
    return sum ? __sync_add_and_fetch(sum, value) : 0;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
