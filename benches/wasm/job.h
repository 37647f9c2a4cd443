struct record {
	const __u32 kind;
	const __u32 length;
	const __u32 source;
	const __u32 port;
} __attribute__((preserve_access_index));
