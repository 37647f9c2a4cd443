// mcpu: v3 v2 v4
//
// Parsers that move a pointer or an index up to the end of their text, and compute how far that is.
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used, no_builtin))
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 i32;

// Numbers of seven bits a byte, added up. The inner loop ends in three ways.
SEC("raw/varsum") u64 varsum(const u8 *p, u64 len) {
	const u8 *end = p + len;
	u64 sum = 0;
	while (p != end) {
		u64 v = 0;
		for (int shift = 0; shift < 64 && p != end; shift += 7) {
			u8 c = *p++;
			v |= (u64)(c & 127) << shift;
			if (c < 128)
				break;
		}
		sum += v;
	}
	return sum;
}

// The longest line. The end of a line is tested twice.
SEC("raw/lines") u64 lines(const u8 *p, u64 len) {
	const u8 *end = p + len;
	u64 longest = 0;
	while (p != end) {
		const u8 *q = p;
		while (q != end && *q != '\n')
			q++;
		if ((u64)(q - p) > longest)
			longest = q - p;
		p = q;
		if (p != end)
			p++;
	}
	return longest;
}

// Type, length, value: by how much is left.
SEC("raw/tlv") u64 tlv(const u8 *p, u64 len) {
	const u8 *end = p + len;
	u64 n = 0;
	while (end - p >= 2) {
		u8 t = p[0], l = p[1];
		p += 2;
		if (l > end - p)
			return 0;
		if (t == 7)
			for (u32 i = 0; i < l; i++)
				n += p[i];
		p += l;
	}
	return n;
}

// A header by its name. (Where there is none, clang copies what was never written.)
SEC("raw/host") u64 host(const u8 *p, u64 len) {
	const u8 *end = p + len;
	static const char name[] = "host:";
	while (p < end) {
		const u8 *q = p;
		u32 i = 0;
		while (i < 5 && q < end) {
			u8 c = *q;
			if (c >= 'A' && c <= 'Z')
				c += 32;
			if (c != name[i])
				break;
			i++;
			q++;
		}
		if (i == 5) {
			while (q < end && *q == ' ')
				q++;
			const u8 *s = q;
			while (q < end && *q != '\r' && *q != '\n')
				q++;
			return q - s;
		}
		while (p < end && *p != '\n')
			p++;
		if (p < end)
			p++;
	}
	return 0;
}

// Hexadecimal digits, decoded in place. Where they end is a result, and the length is needed for nothing else.
SEC("raw/unhex") u64 unhex(u8 *p, u64 len) {
	u8 *out = p, *end = p + len;
	while (end - p >= 2) {
		u32 v = 0;
		for (int k = 0; k < 2; k++) {
			u8 c = p[k];
			u32 d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 16;
			if (d == 16)
				return out - p;
			v = v << 4 | d;
		}
		*out++ = v;
		p += 2;
	}
	return end - out;
}

// The number of "id" in the outermost object.
SEC("raw/jsonid") u64 jsonid(const u8 *p, u64 len) {
	const u8 *end = p + len;
	i32 depth = 0;
	while (p < end) {
		u8 c = *p++;
		if (c == '"') {
			const u8 *s = p;
			while (p < end && *p != '"') {
				if (*p == '\\') {
					p++;
					if (p == end)
						return 0;
				}
				p++;
			}
			if (p >= end)
				return 0;
			u64 n = p - s;
			p++;
			if (depth == 1 && n == 2 && s[0] == 'i' && s[1] == 'd') {
				u64 v = 0;
				while (p < end && (*p == ' ' || *p == ':'))
					p++;
				while (p < end && *p >= '0' && *p <= '9')
					v = v * 10 + (*p++ - '0');
				return v;
			}
		} else if (c == '{' || c == '[') {
			depth++;
		} else if (c == '}' || c == ']') {
			depth--;
		}
	}
	return 0;
}

u8 text[256];

// The server's name in a TLS hello, copied. The bound of a name's length is not known there by itself.
SEC("raw/sni") u64 sni(const u8 *p, u64 len) {
	if (len < 43 || p[0] != 22 || p[5] != 1)
		return -1;
	u64 at = 43;
	if (at >= len)
		return -1;
	at += 1 + p[at];
	if (at + 2 > len)
		return -1;
	at += 2 + (p[at] << 8 | p[at + 1]);
	if (at + 1 > len)
		return -1;
	at += 1 + p[at];
	if (at + 2 > len)
		return -1;
	u64 end = at + 2 + (p[at] << 8 | p[at + 1]);
	at += 2;
	if (end > len)
		return -1;
	while (at + 4 <= end) {
		u16 type = p[at] << 8 | p[at + 1], l = p[at + 2] << 8 | p[at + 3];
		at += 4;
		if (at + l > end)
			return -1;
		if (type == 0) {
			if (l < 5)
				return -1;
			u16 n = p[at + 3] << 8 | p[at + 4];
			if (n + 5 > l || n >= sizeof text)
				return -1;
			for (u16 i = 0; i < n; i++) {
				u8 c = p[at + 5 + i];
				if (c >= 'A' && c <= 'Z')
					c += 32;
				text[i] = c;
			}
			text[n] = 0;
			return n;
		}
		at += l;
	}
	return 0;
}

// A compressed name of DNS, with dots. (out + l + 1 < 256 is compiled as a difference that wraps.)
SEC("raw/dnsname") u64 dnsname(const u8 *m, u64 len) {
	u64 at = 12, out = 0;
	int jumps = 0;
	while (at < len) {
		u8 l = m[at];
		if (l == 0) {
			text[out] = 0;
			return out;
		}
		if ((l & 0xc0) == 0xc0) {
			if (++jumps > 8 || at + 1 >= len)
				return -1;
			at = (l & 0x3f) << 8 | m[at + 1];
			continue;
		}
		if (l > 63 || at + 1 + l > len || out + l + 1 >= sizeof text)
			return -1;
		if (out > 0)
			text[out++] = '.';
		for (int i = 1; i <= l; i++)
			text[out++] = m[at + i];
		at += l + 1;
	}
	return -1;
}
