/* A host's batch as programs see it: `Rows::c_struct()` and `Sketch::c_struct()`, as a test compares. */
struct rows {
	const __u8 *const amount;
	const __u8 *const amount_end;
	const __u8 *const hour;
	const __u8 *const hour_end;
	__u8 *const score;
	__u8 *const score_end;
} __attribute__((preserve_access_index));

struct sketch {
	const __u8 *const values;
	const __u8 *const values_end;
	__u8 *const registers;
	__u8 *const registers_end;
} __attribute__((preserve_access_index));
