// SPDX-License-Identifier: MIT OR Apache-2.0
/* The interface that tests/handles/interfaces.rs declares. */
struct conn {
	__u32 port;
	__u32 seen;
};

struct policy {
	__u32 (*pick)(struct conn *c);
	void (*done)(struct conn *c);
	__s64 (*weigh)(struct conn *c);
	__u32 weight;
	char name[8];
};
