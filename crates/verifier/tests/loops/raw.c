// mcpu: v3 v4
//
// Ordinary loops over a buffer of a length that is known only when the program runs: r1 is the buffer, r2 its length.
// Written as one writes C, without masks or helpers for the verifier's sake.
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used))
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

// FNV-1a over all bytes.
SEC("raw/hash") u64 hash(const u8 *p, u64 len) {
	u32 h = 2166136261u;
	for (u64 i = 0; i < len && i < 65536; i++) {
		h ^= p[i];
		h *= 16777619u;
	}
	return h;
}

// The Internet checksum, by 16-bit words.
SEC("raw/checksum") u64 checksum(const u8 *p, u64 len) {
	u64 sum = 0;
	u32 words = len / 2;
	const u16 *w = (const u16 *)p;
	for (u32 i = 0; i < words; i++)
		sum += w[i];
	if (len & 1)
		sum += p[len - 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (u16)~sum;
}

// CRC-32, bit by bit.
SEC("raw/crc") u64 crc(const u8 *p, u64 len) {
	u32 c = ~0u;
	for (u64 i = 0; i < len; i++) {
		c ^= p[i];
		for (int bit = 0; bit < 8; bit++)
			c = c & 1 ? (c >> 1) ^ 0xedb88320u : c >> 1;
	}
	return ~c;
}

// The two halves of the buffer are equal.
SEC("raw/memcmp") u64 compare(const u8 *p, u64 len) {
	u64 n = len / 2;
	const u8 *q = p + n;
	for (u64 i = 0; i < n; i++)
		if (p[i] != q[i])
			return i + 1;
	return 0;
}

// Where the first line ends.
SEC("raw/memchr") u64 find(const u8 *p, u64 len) {
	const u8 *end = p + len;
	for (const u8 *q = p; q < end; q++)
		if (*q == '\n')
			return q - p;
	return ~0ull;
}

// The number of code points, or 0 if the text is not UTF-8.
SEC("raw/utf8") u64 utf8(const u8 *p, u64 len) {
	u64 i = 0, count = 0;
	while (i < len) {
		u8 c = p[i];
		u32 more;
		if (c < 0x80)
			more = 0;
		else if ((c & 0xe0) == 0xc0)
			more = 1;
		else if ((c & 0xf0) == 0xe0)
			more = 2;
		else if ((c & 0xf8) == 0xf0)
			more = 3;
		else
			return 0;
		i++;
		while (more) {
			if (i >= len || (p[i] & 0xc0) != 0x80)
				return 0;
			i++;
			more--;
		}
		count++;
	}
	return count;
}

// The sum of the base-128 numbers in the buffer.
SEC("raw/varint") u64 varint(const u8 *p, u64 len) {
	u64 sum = 0;
	const u8 *end = p + len;
	while (p < end) {
		u64 v = 0;
		u32 shift = 0;
		for (;;) {
			if (p >= end || shift > 63)
				return 0;
			u8 c = *p++;
			v |= (u64)(c & 0x7f) << shift;
			shift += 7;
			if (!(c & 0x80))
				break;
		}
		sum += v;
	}
	return sum;
}

// A state machine that counts words.
SEC("raw/dfa") u64 words(const u8 *p, u64 len) {
	enum { OUT, IN, QUOTE } state = OUT;
	u32 words = 0;
	for (u64 i = 0; i < len; i++) {
		u8 c = p[i];
		switch (state) {
		case OUT:
			if (c == '"')
				state = QUOTE;
			else if (c > ' ')
				state = IN, words++;
			break;
		case IN:
			if (c <= ' ')
				state = OUT;
			break;
		case QUOTE:
			if (c == '"')
				state = OUT, words++;
			break;
		}
	}
	return words;
}

// Base64 of the first half into the second.
static const char alphabet[64] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
SEC("raw/base64") u64 base64(u8 *p, u64 len) {
	u8 out[128] = {};
	u32 o = 0;
	for (u64 i = 0; i + 3 <= len && o + 4 <= sizeof(out); i += 3) {
		u32 v = p[i] << 16 | p[i + 1] << 8 | p[i + 2];
		out[o++] = alphabet[v >> 18 & 63];
		out[o++] = alphabet[v >> 12 & 63];
		out[o++] = alphabet[v >> 6 & 63];
		out[o++] = alphabet[v & 63];
	}
	u64 sum = 0;
	for (u32 i = 0; i < sizeof(out); i++)
		sum = sum * 31 + out[i];
	return sum;
}

// Literals and matches into a window on the stack.
SEC("raw/lz") u64 lz(const u8 *p, u64 len) {
	u8 out[256] = {};
	u32 o = 0;
	u64 i = 0;
	while (i + 2 <= len) {
		u32 n = p[i] & 15, back = p[i + 1];
		i += 2;
		if (back == 0) {
			for (u32 k = 0; k < n; k++) {
				if (i >= len || o >= sizeof(out))
					return 0;
				out[o++] = p[i++];
			}
		} else {
			if (back > o)
				return 0;
			for (u32 k = 0; k < n; k++) {
				if (o >= sizeof(out))
					return 0;
				out[o] = out[(o - back) & 255];
				o++;
			}
		}
	}
	u64 sum = 0;
	for (u32 k = 0; k < 256; k++)
		sum += out[k];
	return sum + o;
}

// Insertion sort of up to 32 numbers.
SEC("raw/insertion") u64 insertion(const u8 *p, u64 len) {
	u32 a[32] = {};
	u32 n = 0;
	for (; n < 32 && n < len; n++)
		a[n] = p[n];
	for (u32 i = 1; i < n; i++) {
		u32 v = a[i];
		u32 j = i;
		while (j > 0 && a[j - 1] > v) {
			a[j] = a[j - 1];
			j--;
		}
		a[j] = v;
	}
	return a[0] + ((u64)a[31] << 32);
}

// Bubble sort in place.
SEC("raw/bubble") u64 bubble(u8 *p, u64 len) {
	if (len < 2 || len > 1000)
		return 0;
	for (u64 i = 0; i < len - 1; i++)
		for (u64 j = 0; j + 1 < len - i; j++)
			if (p[j] > p[j + 1]) {
				u8 t = p[j];
				p[j] = p[j + 1];
				p[j + 1] = t;
			}
	return p[0];
}

// Quicksort of 64 numbers, with a stack of its own and as many partitions as it can need.
SEC("raw/quicksort") u64 quicksort(u8 *p, u64 len) {
	if (len < 64)
		return 0;
	u8 low[64] = {}, high[64] = {};
	u32 top = 1;
	high[0] = 63;
	for (u32 rounds = 0; rounds < 128 && top > 0; rounds++) {
		top--;
		u32 l = low[top & 63] & 63, h = high[top & 63] & 63;
		if (l >= h)
			continue;
		u8 pivot = p[h];
		u32 m = l;
		for (u32 i = l; i < h; i++)
			if (p[i] < pivot) {
				u8 t = p[i];
				p[i] = p[m & 63];
				p[m & 63] = t;
				m++;
			}
		p[h] = p[m & 63];
		p[m & 63] = pivot;
		if (m > l && top < 63)
			low[top & 63] = l, high[top & 63] = m - 1, top++;
		if (m < h && top < 63)
			low[top & 63] = m + 1, high[top & 63] = h, top++;
	}
	return p[0];
}

// SHA-256 of one block.
static const u32 K[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
	0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
	0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
	0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
	0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
	0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
#define ROR(x, n) ((x) >> (n) | (x) << (32 - (n)))
SEC("raw/sha256") u64 sha256(const u8 *p, u64 len) {
	if (len < 64)
		return 0;
	u32 w[64];
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < 16; i++)
		w[i] = (u32)p[4 * i] << 24 | p[4 * i + 1] << 16 | p[4 * i + 2] << 8 | p[4 * i + 3];
#pragma clang loop unroll(disable)
	for (u32 i = 16; i < 64; i++) {
		u32 a = w[i - 15], b = w[i - 2];
		w[i] = w[i - 16] + w[i - 7] + (ROR(a, 7) ^ ROR(a, 18) ^ a >> 3) + (ROR(b, 17) ^ ROR(b, 19) ^ b >> 10);
	}
	u32 s[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
	u32 a = s[0], b = s[1], c = s[2], d = s[3], e = s[4], f = s[5], g = s[6], h = s[7];
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < 64; i++) {
		u32 t = h + (ROR(e, 6) ^ ROR(e, 11) ^ ROR(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i];
		u32 u = (ROR(a, 2) ^ ROR(a, 13) ^ ROR(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
		h = g, g = f, f = e, e = d + t, d = c, c = b, b = a, a = t + u;
	}
	return (u64)(a + s[0]) << 32 | (h + s[7]);
}

// The product of two numbers of 128 bits, in 32-bit digits.
SEC("raw/bignum") u64 bignum(const u8 *p, u64 len) {
	if (len < 32)
		return 0;
	const u32 *a = (const u32 *)p, *b = a + 4;
	u32 r[8] = {};
#pragma clang loop unroll(disable)
	for (int i = 0; i < 4; i++) {
		u64 carry = 0;
#pragma clang loop unroll(disable)
		for (int j = 0; j < 4; j++) {
			u64 t = (u64)a[i] * b[j] + r[i + j] + carry;
			r[i + j] = t;
			carry = t >> 32;
		}
		r[i + 4] = carry;
	}
	return r[7] ^ r[0];
}

// Two 16 x 16 matrices of bytes, multiplied.
SEC("raw/matrix") u64 matrix(u8 *p, u64 len) {
	if (len < 3 * 256)
		return 0;
	u8 *a = p, *b = p + 256, *c = p + 512;
	for (u32 i = 0; i < 16; i++)
		for (u32 j = 0; j < 16; j++) {
			u32 sum = 0;
			for (u32 k = 0; k < 16; k++)
				sum += a[i * 16 + k] * b[k * 16 + j];
			c[i * 16 + j] = sum;
		}
	return c[255];
}

// Options of a type, a length and a value.
SEC("raw/tlv") u64 tlv(const u8 *p, u64 len) {
	u64 i = 0, sum = 0;
	while (i + 2 <= len) {
		u8 type = p[i], n = p[i + 1];
		if (type == 0)
			break;
		if (i + 2 + n > len)
			return 0;
		if (type == 7 && n >= 1)
			sum += p[i + 2];
		i += 2 + n;
	}
	return sum;
}

// Rules of fields: how many there are says the buffer.
struct field {
	u8 offset, mask, value, pad;
};
struct rule {
	u32 fields;
	struct field field[7];
};
SEC("raw/rules") u64 rules(const u8 *p, u64 len) {
	if (len < 260)
		return 0;
	u32 n = *(const u32 *)p;
	if (n > 8)
		return 0;
	const struct rule *rule = (const struct rule *)(p + 4);
	for (u32 i = 0; i < n; i++) {
		u32 fields = rule[i].fields;
		if (fields > 7)
			return 0;
		u32 j;
		for (j = 0; j < fields; j++) {
			const struct field *f = &rule[i].field[j];
			if ((p[f->offset] & f->mask) != f->value)
				break;
		}
		if (j == fields)
			return i + 1;
	}
	return 0;
}

// Values that shrink.
SEC("raw/shrink") u64 shrink(const u8 *p, u64 len) {
	if (len < 16)
		return 0;
	u64 a = *(const u64 *)p, b = *(const u64 *)(p + 8);
	u32 bits = 0, digits = 0, log = 0;
	for (u64 x = a; x; x >>= 1)
		log++;
	for (u64 x = b; x; x &= x - 1)
		bits++;
	for (u64 x = a; x; x /= 10)
		digits++;
	while (b) {
		u64 t = a % b;
		a = b;
		b = t;
	}
	return a + bits + digits + log;
}

// Very many rounds.
SEC("raw/long") u64 many(const u8 *p, u64 len) {
	u32 x = len;
	for (u32 i = 0; i < 1u << 31; i++)
		x = x * 1664525 + (p ? 1013904223 : i);
	return x;
}

// As many as the buffer says, and down.
SEC("raw/down") u64 down(const u8 *p, u64 len) {
	u64 sum = 0;
	for (u64 i = len; i > 0; i--)
		sum = sum * 3 + p[i - 1];
	return sum;
}
