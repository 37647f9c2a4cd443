struct message {
	const __u32 tenant;
	const __u32 kind;
	const __u32 size;
	__u32 queue;
} __attribute__((preserve_access_index));
