// A plug-in: counts the requests of each client, and refuses a client's fourth.
// `make` compiles, verifies and tests it. host.h is made from host.json, the service's description.
#include "host.h"

enum verdict { ALLOW, REFUSE };

/* Requests of each client. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

SEC("request/guard")
int guard(struct request *request)
{
	static const char text[] = "one too many";
	const __u8 *path = request->path;
	__u32 client = request->client;
	__u64 one = 1, *count;

	/* A byte may be read only where the verifier sees that it is before the end. */
	if (path + 1 <= request->path_end && path[0] == '/')
		request->cost = price(client);

	count = bpf_map_lookup_elem(&seen, &client);
	if (!count) {
		bpf_map_update_elem(&seen, &client, &one, BPF_ANY);
		return ALLOW;
	}
	if (__sync_fetch_and_add(count, 1) < 3)
		return ALLOW;
	say(text, sizeof(text) - 1);
	return REFUSE;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
