// mcpu: v3 v2 v4
//
// Parsers, sorts and big numbers: several variables that a round moves are ordered, or fall together, and arrays on the
// stack are filled before they are read.
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used, no_builtin))
#define ROL(x, n) ((x) << (n) | (x) >> (32 - (n)))
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

// A line of text, turned round in place.
SEC("raw/reverse") u64 reverse(u8 *p, u64 len) {
	u64 i = 0, j = len;
	while (i < j) {
		j--;
		u8 t = p[i];
		p[i] = p[j];
		p[j] = t;
		i++;
	}
	return len;
}

// One number less another.
SEC("raw/bigsub") u64 bigsub(u8 *p, u64 len) {
	u64 n = len / 16, borrow = 0;
	u64 *a = (u64 *)p, *b = (u64 *)(p + 8 * n);
	for (u64 i = n; i-- > 0;) {
		u64 x = a[i], y = b[i] + borrow;
		borrow = x < y;
		a[i] = x - y;
	}
	return borrow;
}

// Tokens of a JSON-like text: strings, numbers, words and punctuation, with depth.
SEC("raw/json") u64 json(const u8 *p, u64 len) {
	u64 i = 0, tokens = 0;
	u32 depth = 0;
	while (i < len) {
		u8 c = p[i++];
		if (c == ' ' || c == '\n' || c == '\t')
			continue;
		tokens++;
		if (c == '{' || c == '[') {
			if (++depth > 64)
				return 0;
		} else if (c == '}' || c == ']') {
			if (depth-- == 0)
				return 0;
		} else if (c == '"') {
			for (;;) {
				if (i >= len)
					return 0;
				c = p[i++];
				if (c == '"')
					break;
				if (c == '\\')
					i++;
			}
		} else if (c >= '0' && c <= '9') {
			while (i < len && p[i] >= '0' && p[i] <= '9')
				i++;
		} else if (c >= 'a' && c <= 'z') {
			while (i < len && p[i] >= 'a' && p[i] <= 'z')
				i++;
		}
	}
	return depth ? 0 : tokens;
}

// Words, counted by a small hash table with open addresses.
SEC("raw/words") u64 words(const u8 *p, u64 len) {
	u32 keys[32] = {};
	u8 counts[32] = {};
	u64 i = 0, used = 0;
	while (i < len) {
		u32 h = 2166136261u;
		u64 start = i;
		while (i < len && p[i] != ' ')
			h = (h ^ p[i++]) * 16777619;
		if (i > start) {
			u32 slot = h & 31;
			for (u32 probe = 0; probe < 32; probe++) {
				if (keys[slot] == 0) {
					keys[slot] = h | 1;
					used++;
				}
				if (keys[slot] == (h | 1)) {
					counts[slot]++;
					break;
				}
				slot = (slot + 1) & 31;
			}
		}
		i++;
	}
	return used << 8 | counts[0];
}

// UTF-8 to code points, into an array.
SEC("raw/utf8_decode") u64 utf8_decode(const u8 *p, u64 len) {
	u32 out[64] = {};
	u64 i = 0, n = 0;
	while (i < len && n < 64) {
		u32 c = p[i];
		u64 more = c < 0x80 ? 0 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
		if (len - i <= more)
			return 0;
		if (more)
			c &= 0x3f >> more;
		for (u64 j = 1; j <= more; j++)
			c = c << 6 | (p[i + j] & 0x3f);
		out[n++] = c;
		i += more + 1;
	}
	u64 sum = 0;
	for (u64 j = 0; j < n; j++)
		sum += out[j];
	return sum;
}

// LZ77 with a window: triples of a distance, a length and a byte.
SEC("raw/lz77") u64 lz77(const u8 *p, u64 len) {
	u8 window[256] = {};
	u32 at = 0;
	u64 sum = 0;
	for (u64 i = 0; i + 3 <= len; i += 3) {
		u32 back = p[i], n = p[i + 1];
		for (u32 j = 0; j < n; j++) {
			u8 c = window[(at - back) & 255];
			window[at++ & 255] = c;
			sum += c;
		}
		window[at++ & 255] = p[i + 2];
	}
	return sum + at;
}

// SHA-1 of whole blocks.
SEC("raw/sha1") u64 sha1(const u8 *p, u64 len) {
	u32 h0 = 0x67452301, h1 = 0xefcdab89, h2 = 0x98badcfe, h3 = 0x10325476, h4 = 0xc3d2e1f0;
	for (; len >= 64; p += 64, len -= 64) {
		u32 w[80];
		for (u32 i = 0; i < 16; i++)
			w[i] = __builtin_bswap32(*(const u32 *)(p + 4 * i));
		for (u32 i = 16; i < 80; i++)
			w[i] = ROL(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
		u32 a = h0, b = h1, c = h2, d = h3, e = h4;
		for (u32 i = 0; i < 80; i++) {
			u32 f, k;
			if (i < 20)
				f = (b & c) | (~b & d), k = 0x5a827999;
			else if (i < 40)
				f = b ^ c ^ d, k = 0x6ed9eba1;
			else if (i < 60)
				f = (b & c) | (b & d) | (c & d), k = 0x8f1bbcdc;
			else
				f = b ^ c ^ d, k = 0xca62c1d6;
			u32 t = ROL(a, 5) + f + e + k + w[i];
			e = d, d = c, c = ROL(b, 30), b = a, a = t;
		}
		h0 += a, h1 += b, h2 += c, h3 += d, h4 += e;
	}
	return (u64)h0 << 32 | (h4 ^ h1 ^ h2 ^ h3);
}

// Primes below 512.
SEC("raw/primes") u64 primes(const u8 *p, u64 len) {
	u8 sieve[256] = {};
	u32 count = 0;
	for (u32 i = 2; i < 256; i++) {
		if (sieve[i])
			continue;
		count++;
		for (u32 j = i * i; j < 256; j += i)
			sieve[j] = 1;
	}
	return count + (len && p[0]);
}

// A list of base-128 numbers into an array, the last of which may be cut off.
SEC("raw/varints") u64 varints(const u8 *p, u64 len) {
	u64 out[16] = {};
	u32 n = 0;
	const u8 *end = p + len;
	while (p != end && n < 16) {
		u64 v = 0;
		for (int shift = 0; shift < 64 && p != end; shift += 7) {
			u8 c = *p++;
			v |= (u64)(c & 127) << shift;
			if (c < 128)
				break;
		}
		out[n++] = v;
	}
	return out[0] ^ out[15] ^ n;
}

// A set of bits: how many, and which is the first.
SEC("raw/bits") u64 bits(const u8 *p, u64 len) {
	u64 set[4] = {};
	u32 count = 0, first = 256;
	for (u64 i = 0; i < len; i++)
		set[p[i] >> 6] |= 1ull << (p[i] & 63);
	for (u32 i = 0; i < 4; i++)
		for (u64 w = set[i]; w; w &= w - 1)
			count++;
	for (u32 i = 0; i < 256; i++)
		if (set[i / 64] >> (i % 64) & 1) {
			first = i;
			break;
		}
	return count << 16 | first;
}

// The edit distance of the buffer's halves, one row on the stack.
SEC("raw/edit") u64 edit(const u8 *p, u64 len) {
	u8 row[33] = {};
	if (len > 64)
		len = 64;
	u64 n = len / 2;
	for (u64 j = 0; j <= n; j++)
		row[j] = j;
	for (u64 i = 1; i <= n; i++) {
		u8 last = row[0];
		row[0] = i;
		for (u64 j = 1; j <= n; j++) {
			u8 old = row[j];
			u8 best = last + (p[i - 1] != p[n + j - 1]);
			if (old + 1 < best)
				best = old + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			row[j] = best;
			last = old;
		}
	}
	return row[n];
}
