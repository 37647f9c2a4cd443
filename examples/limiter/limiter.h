struct request {
	const __u32 client;
	const __u32 cost;
	const __u64 now;
} __attribute__((preserve_access_index));
