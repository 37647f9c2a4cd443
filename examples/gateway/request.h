// SPDX-License-Identifier: MIT OR Apache-2.0
/* Included by authors of plug-ins, after linux/types.h: `struct request` as `Request::c_struct()` prints it. */
struct request {
	/* The status of the answer, where the plug-in answers in place of the service. */
	__u32 status;
	const __u32 method;
	const __u8 *const path;
	const __u8 *const path_end;
	/* The value of the header `X-Key`. */
	const __u8 *const key;
	const __u8 *const key_end;
};

/* Values of `method`; any other method is OTHER. */
enum method { GET, HEAD, POST, PUT, DELETE, OTHER };

/* Results of a plug-in: the service gets the request, or the client gets an answer with `status`. */
enum verdict { PASS, ANSWER };

/*
 * Looks a key up in the key-value server. The run waits for the reply, and its thread serves other requests. Returns 0,
 * -ENOENT (no such key), -ETIMEDOUT (no reply in time) or -EIO (no connection). Zero bytes at the key's end are not
 * sent.
 */
extern int lookup(const void *key, __u64 length, __u64 *value) __ksym;
