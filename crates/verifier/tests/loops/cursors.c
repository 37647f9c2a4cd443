// mcpu: v3 v2 v4
//
// Parsers that move a pointer up to the end of their text, and compute how far that is.
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

// The longest line. What ended it is tested twice.
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
