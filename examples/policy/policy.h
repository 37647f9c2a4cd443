struct question {
	const __u32 user;
	const __u32 role;
	const __u32 verb;
	const __u32 hour;
	__u32 reason;
} __attribute__((preserve_access_index));

/* The trait `Policy`: a function that may be missing is one that has a default there. */
struct policy {
	__u32 (*decide)(struct question *question);
	__u64 (*price)(struct question *question);
	char name[16];
};
