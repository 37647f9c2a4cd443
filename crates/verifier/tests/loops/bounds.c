// mcpu: v3 v2 v4
//
// Loops whose variables are bounded by each other: the rest behind a pointer, the distance of two ends, a number
// that was tested as one sum and is used as another.
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used, no_builtin))
#define ROL(x, n) ((x) << (n) | (x) >> (32 - (n)))
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

// Adler-32 in blocks.
SEC("raw/adler") u64 adler(const u8 *p, u64 len) {
	u32 a = 1, b = 0;
	while (len > 0) {
		u64 n = len < 5552 ? len : 5552;
		len -= n;
		for (u64 i = 0; i < n; i++) {
			a += *p++;
			b += a;
		}
		a %= 65521;
		b %= 65521;
	}
	return b << 16 | a;
}

// Sum and difference of big numbers: the buffer is two of them.
SEC("raw/bigadd") u64 bigadd(u8 *p, u64 len) {
	u64 n = len / 16;
	u64 *a = (u64 *)p, *b = a + n;
	u64 carry = 0;
	for (u64 i = 0; i < n; i++) {
		u64 t = a[i] + carry;
		carry = t < carry;
		t += b[i];
		carry += t < b[i];
		a[i] = t;
	}
	return carry;
}

// Binary search in a sorted buffer of words.
SEC("raw/bsearch") u64 bsearch(const u8 *p, u64 len) {
	const u32 *a = (const u32 *)p;
	u64 lo = 0, hi = len / 4;
	while (lo < hi) {
		u64 mid = (lo + hi) / 2;
		if (a[mid] < 1000)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

// Fields of a line, separated by commas, with quotes.
SEC("raw/csv") u64 csv(const u8 *p, u64 len) {
	u64 fields = 0, i = 0;
	while (i < len) {
		if (p[i] == '"') {
			i++;
			while (i < len) {
				if (p[i] == '"') {
					if (i + 1 < len && p[i + 1] == '"')
						i += 2;
					else
						break;
				} else
					i++;
			}
			if (i >= len)
				return 0;
			i++;
		} else {
			while (i < len && p[i] != ',' && p[i] != '\n')
				i++;
		}
		fields++;
		if (i < len)
			i++;
	}
	return fields;
}

SEC("raw/heap") u64 heap(u8 *p, u64 len) {
	if (len < 2 || len > 256)
		return 0;
	for (u64 start = len / 2; start > 0; start--) {
		u64 root = start - 1;
		for (;;) {
			u64 child = 2 * root + 1;
			if (child >= len)
				break;
			if (child + 1 < len && p[child] < p[child + 1])
				child++;
			if (p[root] >= p[child])
				break;
			u8 t = p[root];
			p[root] = p[child];
			p[child] = t;
			root = child;
		}
	}
	return p[0];
}

// Run lengths: pairs of a count and a byte.
SEC("raw/rle") u64 rle(const u8 *p, u64 len) {
	u8 out[200] = {};
	u32 o = 0;
	for (u64 i = 0; i + 1 < len; i += 2) {
		u32 n = p[i];
		if (o + n > sizeof(out))
			break;
		for (u32 j = 0; j < n; j++)
			out[o + j] = p[i + 1];
		o += n;
	}
	u64 sum = 0;
	for (u32 j = 0; j < sizeof(out); j++)
		sum += out[j];
	return sum;
}

// A search for a pattern given by the buffer itself.
SEC("raw/substring") u64 substring(const u8 *p, u64 len) {
	if (len < 1)
		return 0;
	u64 n = p[0];
	if (n + 1 > len)
		return 0;
	const u8 *pattern = p + 1, *text = p + 1 + n;
	u64 rest = len - 1 - n;
	for (u64 i = 0; i + n <= rest; i++) {
		u64 j = 0;
		while (j < n && text[i + j] == pattern[j])
			j++;
		if (j == n)
			return i + 1;
	}
	return 0;
}

// Hexadecimal digits to bytes.
SEC("raw/unhex") u64 unhex(const u8 *p, u64 len) {
	u8 out[64] = {};
	if (len > 128 || len % 2)
		return 0;
	for (u64 i = 0; i < len; i++) {
		u8 c = p[i], d;
		if (c >= '0' && c <= '9')
			d = c - '0';
		else if (c >= 'a' && c <= 'f')
			d = c - 'a' + 10;
		else
			return 0;
		out[i / 2] = out[i / 2] << 4 | d;
	}
	return out[0] + out[63];
}

// Insertion sort of the buffer in place.
SEC("raw/insert") u64 insert(u8 *p, u64 len) {
	for (u64 i = 1; i < len; i++) {
		u8 v = p[i];
		u64 j = i;
		for (; j > 0 && p[j - 1] > v; j--)
			p[j] = p[j - 1];
		p[j] = v;
	}
	return len;
}

// Type, length and value, by a pointer and what is left.
SEC("raw/tlvs") u64 tlvs(const u8 *p, u64 len) {
	u64 sum = 0;
	while (len >= 2) {
		u8 type = p[0], n = p[1];
		p += 2;
		len -= 2;
		if (n > len)
			return 0;
		if (type == 1)
			for (u32 i = 0; i < n; i++)
				sum += p[i];
		p += n;
		len -= n;
	}
	return sum;
}

// Bytes that are no blanks, moved together.
SEC("raw/compact") u64 compact(u8 *p, u64 len) {
	u64 o = 0;
	for (u64 i = 0; i < len; i++)
		if (p[i] != ' ')
			p[o++] = p[i];
	return o;
}

// A ring of counters: the most of the last sixteen sums.
SEC("raw/ring") u64 ring(const u8 *p, u64 len) {
	u32 ring[16] = {}, head = 0, most = 0, sum = 0;
	for (u64 i = 0; i < len; i++) {
		sum += p[i];
		sum -= ring[head];
		ring[head] = p[i];
		if (++head == 16)
			head = 0;
		if (sum > most)
			most = sum;
	}
	return most;
}

// COBS: a byte says how many follow without a zero.
SEC("raw/cobs") u64 cobs(const u8 *p, u64 len) {
	u8 out[256];
	u64 i = 0, o = 0;
	while (i < len) {
		u8 n = p[i++];
		if (n == 0 || n - 1 > len - i || o + n > sizeof(out))
			return 0;
		for (u8 k = 1; k < n; k++)
			out[o++] = p[i++];
		if (n < 255)
			out[o++] = 0;
	}
	return o;
}

// Columns of numbers: the sum of the third of each line.
SEC("raw/columns") u64 columns(const u8 *p, u64 len) {
	u64 sum = 0, v = 0;
	u32 column = 0;
	for (u64 i = 0; i < len; i++) {
		u8 c = p[i];
		if (c == '\n' || c == ';') {
			if (column == 2)
				sum += v;
			column = c == '\n' ? 0 : column + 1;
			v = 0;
		} else if (c >= '0' && c <= '9')
			v = v * 10 + (c - '0');
	}
	return sum;
}

// Rules of prefixes and ports, the longest prefix wins.
struct route {
	u32 prefix;
	u16 low, high;
	u8 bits, action, pad[2];
};
SEC("raw/routes") u64 routes(const u8 *p, u64 len) {
	if (len < 8)
		return 0;
	u32 addr = *(const u32 *)p;
	u16 port = *(const u16 *)(p + 4), n = *(const u16 *)(p + 6);
	const struct route *r = (const struct route *)(p + 8);
	u32 best = 0, action = 0;
	if (8 + n * sizeof(*r) > len)
		return 0;
	for (u32 i = 0; i < n; i++) {
		if (r[i].bits > 32 || port < r[i].low || port > r[i].high)
			continue;
		u32 mask = r[i].bits ? ~0u << (32 - r[i].bits) : 0;
		if ((addr & mask) == (r[i].prefix & mask) && r[i].bits >= best) {
			best = r[i].bits;
			action = r[i].action;
		}
	}
	return action;
}

// MurmurHash3, 32 bits.
SEC("raw/murmur3") u64 murmur3(const u8 *p, u64 len) {
	u32 h = 0, k = 0;
	u64 blocks = len / 4;
	for (u64 i = 0; i < blocks; i++) {
		u32 w = *(const u32 *)(p + 4 * i) * 0xcc9e2d51;
		h ^= ROL(w, 15) * 0x1b873593;
		h = ROL(h, 13) * 5 + 0xe6546b64;
	}
	const u8 *tail = p + blocks * 4;
	switch (len & 3) {
	case 3: k ^= tail[2] << 16;
	case 2: k ^= tail[1] << 8;
	case 1: k ^= tail[0]; h ^= ROL(k * 0xcc9e2d51, 15) * 0x1b873593;
	}
	return h ^ len;
}

// IPv6 extension headers.
SEC("raw/ipv6") u64 ipv6(const u8 *p, u64 len) {
	if (len < 40)
		return 0;
	u8 next = p[6];
	u64 off = 40;
	for (int i = 0; i < 8; i++) {
		if (next != 0 && next != 43 && next != 44 && next != 51 && next != 60)
			return next << 16 | off;
		if (off + 8 > len)
			return 0;
		u32 n = next == 44 ? 8 : next == 51 ? (p[off + 1] + 2) * 4 : (p[off + 1] + 1) * 8;
		next = p[off];
		off += n;
	}
	return 0;
}

// The median of a window of five bytes.
SEC("raw/median") u64 median(u8 *p, u64 len) {
	for (u64 i = 2; i + 2 < len; i++) {
		u8 w[5];
		for (u32 j = 0; j < 5; j++)
			w[j] = p[i + j - 2];
		for (u32 j = 1; j < 5; j++) {
			u8 v = w[j];
			u32 k = j;
			while (k > 0 && w[k - 1] > v) {
				w[k] = w[k - 1];
				k--;
			}
			w[k] = v;
		}
		p[i] = w[2];
	}
	return 0;
}

// A block that is filled byte by byte and begins anew when it is full, between comparisons with smaller numbers.
SEC("raw/blocks") u64 blocks(const u8 *p, u64 len) {
	u8 block[48] = {};
	u32 used = 0, h = 1;
	if (len > 4096)
		return 0;
	for (u64 i = 0; i < len; i++) {
		block[used++] = p[i];
		if (used == sizeof(block)) {
			for (u32 j = 0; j < sizeof(block); j++)
				h = ROL(h, 5) ^ block[j];
			used = 0;
		}
	}
	switch (h & 63) {
	case 3: h += 1; break;
	case 9: h *= 3; break;
	case 20: h ^= 5; break;
	case 33: h -= len; break;
	}
	return h + block[used];
}
