// SPDX-License-Identifier: MIT OR Apache-2.0
/* Included by authors of plug-ins: the service's own structs, as `src/lib.rs` declares them. */
struct request {
	const __u32 client;
	/* The version that has answered. */
	__u32 version;
	/* Whether two versions have run programs for this request. */
	__u32 torn;
	__u32 cost;
	const __u8 *const path;
	const __u8 *const path_end;
};

struct choice {
	__u32 client;
	__u32 version;
};

struct balance {
	__u32 (*pick)(struct choice *choice);
};

enum verdict { ALLOW, REFUSE };

/* Slots of `routes`. */
enum route { HOME, API, SPIN, LEAK, FAIL, ROUTES };
