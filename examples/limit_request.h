struct request {
	const __u32 client;
	__u32 cost;
	const __u8 *const path;
	const __u8 *const path_end;
} __attribute__((preserve_access_index));
