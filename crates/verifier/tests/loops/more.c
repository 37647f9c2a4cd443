// mcpu: v3 v2 v4
//
// More loops of the kinds that plug-ins are made of, over a buffer of a length that is known only when the program runs.
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used, no_builtin))
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

// Jenkins' one-at-a-time and lookup3's shape: twelve bytes a round, and a tail.
#define ROL(x, n) ((x) << (n) | (x) >> (32 - (n)))
SEC("raw/jhash") u64 jhash(const u8 *p, u64 length) {
	u32 len = length, a, b, c;
	a = b = c = 0xdeadbeef + len;
	while (len > 12) {
		a += *(u32 *)p;
		b += *(u32 *)(p + 4);
		c += *(u32 *)(p + 8);
		a -= c; a ^= ROL(c, 4); c += b;
		b -= a; b ^= ROL(a, 6); a += c;
		c -= b; c ^= ROL(b, 8); b += a;
		len -= 12;
		p += 12;
	}
	switch (len) {
	case 12: c += (u32)p[11] << 24;
	case 11: c += (u32)p[10] << 16;
	case 10: c += (u32)p[9] << 8;
	case 9: c += p[8];
	case 8: b += (u32)p[7] << 24;
	case 7: b += (u32)p[6] << 16;
	case 6: b += (u32)p[5] << 8;
	case 5: b += p[4];
	case 4: a += (u32)p[3] << 24;
	case 3: a += (u32)p[2] << 16;
	case 2: a += (u32)p[1] << 8;
	case 1: a += p[0];
	}
	c ^= b; c -= ROL(b, 14);
	return c ^ a;
}

// SipHash-2-4 of the whole buffer.
#define ROL64(x, n) ((x) << (n) | (x) >> (64 - (n)))
#define ROUND do { v0 += v1; v1 = ROL64(v1, 13); v1 ^= v0; v0 = ROL64(v0, 32); v2 += v3; v3 = ROL64(v3, 16); v3 ^= v2; \
	v0 += v3; v3 = ROL64(v3, 21); v3 ^= v0; v2 += v1; v1 = ROL64(v1, 17); v1 ^= v2; v2 = ROL64(v2, 32); } while (0)
SEC("raw/siphash") u64 siphash(const u8 *p, u64 len) {
	u64 v0 = 0x736f6d6570736575, v1 = 0x646f72616e646f6d, v2 = 0x6c7967656e657261, v3 = 0x7465646279746573;
	u64 n = len & ~7ull, last = len << 56;
	for (u64 i = 0; i < n; i += 8) {
		u64 m = *(const u64 *)(p + i);
		v3 ^= m;
		ROUND; ROUND;
		v0 ^= m;
	}
	for (u64 i = 0; i < (len & 7); i++)
		last |= (u64)p[n + i] << (8 * i);
	v3 ^= last;
	ROUND; ROUND;
	v0 ^= last;
	v2 ^= 0xff;
	ROUND; ROUND; ROUND; ROUND;
	return v0 ^ v1 ^ v2 ^ v3;
}

// Toeplitz hash of twelve bytes under a key, bit by bit.
static const u8 key[40] = {0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
	0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
	0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa};
SEC("raw/toeplitz") u64 toeplitz(const u8 *p, u64 len) {
	if (len > 36)
		len = 36;
	u32 hash = 0, window = (u32)key[0] << 24 | key[1] << 16 | key[2] << 8 | key[3];
	for (u64 i = 0; i < len; i++) {
		u8 byte = p[i];
		for (int bit = 7; bit >= 0; bit--) {
			if (byte >> bit & 1)
				hash ^= window;
			window = window << 1 | (key[i + 4] >> bit & 1);
		}
	}
	return hash;
}

// A CRC by a table that is made first.
SEC("raw/crc_table") u64 crc_table(const u8 *p, u64 len) {
	u32 table[64];
	for (u32 i = 0; i < 64; i++) {
		u32 c = i;
		for (int k = 0; k < 6; k++)
			c = c & 1 ? c >> 1 ^ 0xedb88320 : c >> 1;
		table[i] = c;
	}
	u32 c = ~0u;
	for (u64 i = 0; i < len; i++)
		c = table[(c ^ p[i]) & 63] ^ c >> 6;
	return ~c;
}

// Selection sort of the first bytes of the buffer.
SEC("raw/selection") u64 selection(u8 *p, u64 len) {
	u32 a[24] = {};
	u32 n = len < 24 ? len : 24;
	for (u32 i = 0; i < n; i++)
		a[i] = p[i];
	for (u32 i = 0; i + 1 < n; i++) {
		u32 min = i;
		for (u32 j = i + 1; j < n; j++)
			if (a[j] < a[min])
				min = j;
		u32 t = a[i];
		a[i] = a[min];
		a[min] = t;
	}
	return a[0];
}

// Base64 back to bytes, by a table.
static const u8 value[80] = {[0] = 62, [4] = 63, [5] = 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, [22] = 0, 1, 2, 3, 4, 5};
SEC("raw/unbase64") u64 unbase64(const u8 *p, u64 len) {
	u8 out[96] = {};
	u64 o = 0;
	u32 bits = 0, have = 0;
	for (u64 i = 0; i < len; i++) {
		u8 c = p[i];
		if (c == '=' || o >= sizeof(out))
			break;
		if (c < 43 || c > 122)
			return 0;
		bits = bits << 6 | value[c - 43];
		have += 6;
		if (have >= 8) {
			have -= 8;
			out[o++] = bits >> have;
		}
	}
	u64 sum = 0;
	for (u64 i = 0; i < sizeof(out); i++)
		sum += out[i];
	return sum;
}

// Labels of a DNS name: a length and as many bytes, until a zero.
SEC("raw/dns") u64 dns(const u8 *p, u64 len) {
	u64 i = 12, labels = 0, hash = 5381;
	while (i < len) {
		u64 n = p[i];
		if (n == 0)
			return hash;
		if (n > 63 || i + 1 + n > len)
			return 0;
		for (u64 j = 0; j < n; j++)
			hash = hash * 33 + (p[i + 1 + j] | 32);
		i += n + 1;
		if (++labels > 127)
			return 0;
	}
	return 0;
}

// Two lengths and two texts that follow them are compared.
SEC("raw/memcmp2") u64 memcmp2(const u8 *p, u64 len) {
	if (len < 2)
		return 0;
	u64 a = p[0], b = p[1];
	if (2 + a + b > len)
		return 0;
	const u8 *x = p + 2, *y = x + a;
	u64 n = a < b ? a : b;
	for (u64 i = 0; i < n; i++)
		if (x[i] != y[i])
			return x[i] < y[i] ? 1 : 2;
	return 0;
}

// Transitions by a table in the buffer: states and classes.
SEC("raw/table") u64 table(const u8 *p, u64 len) {
	if (len < 256 + 64)
		return 0;
	const u8 *next = p + 256;
	u32 state = 0;
	for (u64 i = 320; i < len; i++)
		state = next[(state & 7) * 8 + (p[p[i]] & 7)];
	return state;
}

