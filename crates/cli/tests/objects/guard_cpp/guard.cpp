// The plug-in of `bpf new` in C++: a template, a lambda, a class with a destructor. `clang++-19 -O2 -g -target bpf
// -mcpu=v3 -fno-exceptions -fno-rtti`, then `llvm-strip-19 -g`; host.h is guard/host.h.
#define __BPF_HELPERS__ // skips libbpf's header, which only C accepts
#define SEC(name) __attribute__((section(name), used))
#define __ksym __attribute__((section(".ksyms")))
#define __uint(name, value) int (*name)[value]
#define __type(name, value) typeof(value) *name

extern "C" {
#include "host.h"
}

static void *(*const bpf_map_lookup_elem)(void *, const void *) = reinterpret_cast<void *(*)(void *, const void *)>(1);
static long (*const bpf_map_update_elem)(void *, const void *, const void *, __u64) =
	reinterpret_cast<long (*)(void *, const void *, const void *, __u64)>(2);

enum class Verdict : int { Allow, Refuse };

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

template <typename K, typename V, typename M>
static inline V *get_or_insert(M &map, const K &key, V value)
{
	if (auto *found = static_cast<V *>(bpf_map_lookup_elem(&map, &key)))
		return found;
	bpf_map_update_elem(&map, &key, &value, BPF_NOEXIST);
	return static_cast<V *>(bpf_map_lookup_elem(&map, &key));
}

class Told {
	bool refused = false;
public:
	void refuse() { refused = true; }
	~Told()
	{
		static const char text[] = "one too many";
		if (refused)
			say(text, sizeof(text) - 1);
	}
};

extern "C" SEC("request/guard") int guard(request *context)
{
	auto begins_with = [context](char c) { return context->path + 1 <= context->path_end && context->path[0] == c; };
	Told told;
	__u32 client = context->client;

	if (begins_with('/'))
		context->cost = price(client);
	auto *count = get_or_insert<__u32, __u64>(seen, client, 0);
	if (!count)
		return int(Verdict::Refuse);
	if (__sync_fetch_and_add(count, 1) < 3)
		return int(Verdict::Allow);
	told.refuse();
	return int(Verdict::Refuse);
}

extern "C" char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
