struct request {
	const __u32 method;
	__u32 verdict;
	const __u16 ports[2];
	__u8 tag[4];
	const __u8 *const head;
	const __u8 *const head_end;
	__u8 *const body;
	__u8 *const body_end;
	__s64 score;
} __attribute__((preserve_access_index));
