// A plug-in that the host gives bytes: the verdict is their sum. mcpu: v3
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

struct request {
	const __u32 client;
} __attribute__((preserve_access_index));

extern __u32 fill(void *, __u64) __ksym;

SEC("request/fills")
int fills(struct request *request)
{
	__u8 bytes[4] = {};

	(void)request;
	return fill(bytes, sizeof(bytes)) + bytes[0] + bytes[1] + bytes[2] + bytes[3];
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
