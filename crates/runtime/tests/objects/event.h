struct endpoint {
	const __u32 port;
	__u32 mark;
	const __u8 *const name;
	const __u8 *const name_end;
	const __u32 address[4];
} __attribute__((preserve_access_index));
struct answer {
	__u32 code;
	const __u32 seen;
	__u16 tags[4];
} __attribute__((preserve_access_index));
struct event {
	const __u64 kind;
	const struct endpoint from;
	struct endpoint to;
	__u8 *const text;
	__u8 *const text_end;
	struct answer answer;
} __attribute__((preserve_access_index));
