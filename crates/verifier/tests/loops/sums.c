// mcpu: v3 v2 v4
//
// Sums of two variables that a third bounds, and ranges that are compiled as differences that wrap: searches, run
// lengths, products of big numbers, rules and fields of variable length.
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used, no_builtin))
#define ROL(x, n) ((x) << (n) | (x) >> (32 - (n)))
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s64 s64;
typedef unsigned long size_t;

// Boyer, Moore and Horspool.
SEC("raw/horspool") u64 horspool(const u8 *p, u64 len) {
	u8 skip[256];
	if (len < 1)
		return 0;
	u64 n = p[0];
	if (n == 0 || n > 64 || n + 1 > len)
		return 0;
	for (u32 i = 0; i < 256; i++)
		skip[i] = n;
	for (u64 i = 0; i + 1 < n; i++)
		skip[p[1 + i]] = n - 1 - i;
	const u8 *text = p + 1 + n;
	u64 rest = len - 1 - n;
	u64 at = 0;
	while (at + n <= rest) {
		u64 j = n;
		while (j > 0 && text[at + j - 1] == p[j])
			j--;
		if (j == 0)
			return at + 1;
		u8 s = skip[text[at + n - 1]];
		at += s ? s : 1;
	}
	return 0;
}

// Runs of equal bytes, written over the buffer as pairs.
SEC("raw/runs") u64 runs(u8 *p, u64 len) {
	u8 out[256];
	u64 o = 0, i = 0;
	while (i < len) {
		u8 c = p[i];
		u64 n = 1;
		while (i + n < len && n < 255 && p[i + n] == c)
			n++;
		if (o + 2 > sizeof(out))
			break;
		out[o++] = n;
		out[o++] = c;
		i += n;
	}
	return o;
}

// xxHash32.
SEC("raw/xxh32") u64 xxh32(const u8 *p, u64 len) {
	const u8 *end = p + len;
	u32 h;
	if (len >= 16) {
		u32 v1 = 1, v2 = 2, v3 = 3, v4 = 4;
		do {
			v1 = ROL(v1 + *(const u32 *)p * 0x85ebca77, 13) * 0x9e3779b1;
			v2 = ROL(v2 + *(const u32 *)(p + 4) * 0x85ebca77, 13) * 0x9e3779b1;
			v3 = ROL(v3 + *(const u32 *)(p + 8) * 0x85ebca77, 13) * 0x9e3779b1;
			v4 = ROL(v4 + *(const u32 *)(p + 12) * 0x85ebca77, 13) * 0x9e3779b1;
			p += 16;
		} while (p + 16 <= end);
		h = ROL(v1, 1) + ROL(v2, 7) + ROL(v3, 12) + ROL(v4, 18);
	} else
		h = 0x165667b1;
	h += len;
	while (p + 4 <= end) {
		h = ROL(h + *(const u32 *)p * 0xc2b2ae3d, 17) * 0x27d4eb2f;
		p += 4;
	}
	while (p < end)
		{
		h += *p++ * 0x165667b1;
		h = ROL(h, 11) * 0x9e3779b1;
	}
	return h;
}

// Big numbers of n words: the product of two, into the rest of the buffer.
SEC("raw/bigmul") u64 bigmul(u8 *p, u64 len) {
	u64 n = len / 16;
	u32 *a = (u32 *)p, *b = a + n, *r = b + n;
	for (u64 i = 0; i < 2 * n; i++)
		r[i] = 0;
	for (u64 i = 0; i < n; i++) {
		u64 carry = 0;
		for (u64 j = 0; j < n; j++) {
			u64 t = (u64)a[i] * b[j] + r[i + j] + carry;
			r[i + j] = t;
			carry = t >> 32;
		}
		r[i + n] = carry;
	}
	return n;
}

// A table of rules whose count is in the header, each as long as it says.
SEC("raw/vrules") u64 vrules(const u8 *p, u64 len) {
	if (len < 4) return 0;
	u16 n = p[0] | p[1] << 8;
	size_t off = 4;
	u32 hits = 0;
	for (u16 i = 0; i < n; i++) {
		if (off + 2 > len) return 0;
		u8 kind = p[off], size = p[off + 1];
		off += 2;
		if (off + size > len) return 0;
		u32 sum = 0;
		for (u8 k = 0; k < size; k++) sum += p[off + k];
		if (kind == (sum & 0xff)) hits++;
		off += size;
	}
	return hits;
}

// A key at the front, over what follows it.
SEC("raw/xor") u64 xorkey(u8 *p, u64 len) {
	if (len < 1) return 0;
	u8 klen = p[0];
	if (klen == 0 || klen + 1u > len) return 0;
	u8 *key = p + 1, *data = key + klen;
	u64 n = len - 1 - klen;
	for (u64 i = 0, k = 0; i < n; i++) {
		data[i] ^= key[k];
		if (++k == klen) k = 0;
	}
	return n;
}

// A UTF-8 text's length, by pointers.
SEC("raw/utf8len") u64 utf8len(const u8 *s, u64 len) {
	const u8 *e = s + len;
	s64 n = 0;
	do {
		if (s >= e) break;
		u8 c = *s;
		int k = (c & 0x80) == 0 ? 1 : (c & 0xe0) == 0xc0 ? 2 : (c & 0xf0) == 0xe0 ? 3 : (c & 0xf8) == 0xf0 ? 4 : 0;
		if (k == 0 || s + k > e) return -1;
		for (int i = 1; i < k; i++)
			if ((s[i] & 0xc0) != 0x80) return -1;
		s += k;
		n++;
	} while (1);
	return n;
}

// A token bucket, over records of a fixed size.
struct rec { u32 when; u16 cost; u16 id; };
SEC("raw/bucket") u64 bucket(const u8 *p, u64 len) {
	const struct rec *r = (const struct rec *)p, *e = (const struct rec *)(p + (len & ~7ull));
	u32 tokens = 1000, last = 0, dropped = 0;
	for (; r < e; r++) {
		u32 gained = (r->when - last) >> 4;
		tokens = tokens + gained > 1000 ? 1000 : tokens + gained;
		last = r->when;
		if (r->cost <= tokens) tokens -= r->cost; else dropped++;
	}
	return dropped;
}

// An automaton whose table is in the buffer.
SEC("raw/dfa") u64 dfa(const u8 *p, u64 len) {
	u8 table[8][4];
	if (len < 32) return 0;
	for (int i = 0; i < 8; i++)
		for (int j = 0; j < 4; j++)
			table[i][j] = p[i * 4 + j] & 7;
	u8 state = 0;
	for (const u8 *q = p + 32; q != p + len; ++q) {
		u8 cls = *q < '0' ? 0 : *q <= '9' ? 1 : *q < 'a' ? 2 : 3;
		state = table[state & 7][cls];
	}
	return state;
}
