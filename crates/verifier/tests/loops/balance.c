// mcpu: v3 v2 v4
//
// Loops whose variables balance each other, read a byte twice, or divide what they are bounded by.
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used, no_builtin))
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

// Two sorted runs, merged on the stack: `k = i + j - mid` in every round.
SEC("raw/merge") u64 merge(u8 *p, u64 len) {
	u8 out[128];
	u64 i = 0, j, k = 0, mid, n = len;
	if (n > 128) n = 128;
	mid = n / 2; j = mid;
	while (i < mid && j < n) {
		if (p[i] <= p[j]) out[k++] = p[i++];
		else out[k++] = p[j++];
	}
	while (i < mid) out[k++] = p[i++];
	while (j < n) out[k++] = p[j++];
	for (i = 0; i < k; i++) p[i] = out[i];
	return k;
}

// Selection sort: the place of the least is one that the inner loop was at.
SEC("raw/selection16") u64 selection16(u16 *a, u64 len) {
	u32 n = len / 2;
	for (u32 i = 0; i + 1 < n; i++) {
		u32 least = i;
		for (u32 j = i + 1; j < n; j++)
			if (a[j] < a[least]) least = j;
		u16 t = a[i]; a[i] = a[least]; a[least] = t;
	}
	return n;
}

// LZSS: the distance is checked as one sum of bits, and taken off as two.
SEC("raw/lzss") u64 lzss(const u8 *p, u64 len) {
	u8 out[256];
	u64 i = 0, o = 0;
	u32 flags = 0, bits = 0;
	u64 sum = 0;
	while (i < len) {
		if (bits == 0) { flags = p[i++]; bits = 8; if (i >= len) break; }
		if (flags & 1) {
			if (o >= 256) break;
			out[o++] = p[i++];
		} else {
			if (i + 2 > len) break;
			u32 w = p[i] | p[i + 1] << 8;
			i += 2;
			u32 dist = (w & 0xfff) + 1, n = (w >> 12) + 3;
			if (dist > o || o + n > 256) break;
			for (u32 k = 0; k < n; k++) { out[o] = out[o - dist]; o++; }
		}
		flags >>= 1; bits--;
	}
	for (u64 k = 0; k < o; k++) sum = sum * 31 + out[k];
	return sum;
}

// Numbers in a text: the inner loop's first test is the outer one's.
SEC("raw/numbers") u64 numbers(const u8 *p, u64 len) {
	u64 i = 0, sum = 0;
	while (i < len) {
		if (p[i] >= '0' && p[i] <= '9') {
			u64 v = 0;
			while (i < len && p[i] >= '0' && p[i] <= '9') { v = v * 10 + (p[i] - '0'); i++; }
			sum += v;
		} else i++;
	}
	return sum;
}

// Two big numbers compared from their upper ends: the pointers begin before the buffer if they are empty.
SEC("raw/bigcmp") u64 bigcmp(const u32 *p, u64 len) {
	u64 n = len / 8;
	const u32 *a = p, *b = p + n;
	for (u64 i = n; i-- > 0;) {
		if (a[i] != b[i]) return a[i] > b[i] ? 1 : 2;
	}
	return 0;
}

// Rotation by a third, in three reversals.
SEC("raw/rotate") u64 rotate(u8 *p, u64 len) {
	u64 by = len / 3, i, j;
	if (len == 0) return 0;
	for (i = 0, j = by; i + 1 < j; i++) { j--; u8 t = p[i]; p[i] = p[j]; p[j] = t; }
	for (i = by, j = len; i + 1 < j; i++) { j--; u8 t = p[i]; p[i] = p[j]; p[j] = t; }
	for (i = 0, j = len; i + 1 < j; i++) { j--; u8 t = p[i]; p[i] = p[j]; p[j] = t; }
	return by;
}

// Keys and names of a request: an inner loop whose own test is of a sum.
SEC("raw/http") u64 http(const u8 *p, u64 len) {
	u64 i = 0, headers = 0;
	while (i < len && p[i] != ' ') i++;
	if (i == len) return 0;
	i++;
	u64 path = i;
	while (i < len && p[i] != ' ') i++;
	u64 path_len = i - path;
	while (i + 1 < len && !(p[i] == '\r' && p[i + 1] == '\n')) i++;
	i += 2;
	while (i < len) {
		u64 name = i;
		while (i < len && p[i] != ':' && p[i] != '\r') i++;
		if (i >= len || p[i] == '\r') break;
		if (i - name > 0) headers++;
		while (i < len && p[i] != '\n') i++;
		i++;
	}
	return headers << 32 | path_len;
}

// Fletcher's checksum in blocks: the rest shrinks by as much as the pointer moves.
SEC("raw/fletcher") u64 fletcher(const u8 *p, u64 len) {
	u32 a = 0, b = 0;
	while (len) {
		u64 n = len > 20 ? 20 : len;
		len -= n;
		do { a += *p++; b += a; } while (--n);
		a %= 255; b %= 255;
	}
	return b << 8 | a;
}

// A calculator with a stack that grows and shrinks.
SEC("raw/rpn") u64 rpn(const u8 *p, u64 len) {
	u64 stack[16];
	u32 top = 0;
	for (u64 i = 0; i < len; i++) {
		u8 c = p[i];
		if (c >= '0' && c <= '9') {
			if (top >= 16) return 0;
			stack[top++] = c - '0';
		} else if (c == '+' || c == '*') {
			if (top < 2) return 0;
			u64 b = stack[--top], a = stack[--top];
			stack[top++] = c == '+' ? a + b : a * b;
		}
	}
	return top ? stack[top - 1] : 0;
}

// Counting sort.
SEC("raw/counting") u64 counting(u8 *p, u64 len) {
	u16 count[64] = {0};
	u64 at = 0;
	if (len > 1000) len = 1000;
	for (u64 i = 0; i < len; i++) count[p[i] & 63]++;
	for (u32 v = 0; v < 64; v++)
		for (u32 k = 0; k < count[v] && at < len; k++) p[at++] = v;
	return at;
}

// Records of 12 bytes in a buffer, searched by halves.
SEC("raw/lookup") u64 lookup(const u8 *p, u64 len) {
	if (len < 4) return 0;
	u32 key = *(u32 *)p; u64 lo = 0, hi = (len - 4) / 12;
	while (lo < hi) {
		u64 mid = lo + (hi - lo) / 2;
		u32 k = *(u32 *)(p + 4 + mid * 12);
		if (k == key) return *(u64 *)(p + 4 + mid * 12 + 4);
		if (k < key) lo = mid + 1; else hi = mid;
	}
	return 0;
}

// A table of rules, no more of them than there is room for.
struct rule {
	u32 addr;
	u8 bits, proto;
	u16 low, high, action;
};
SEC("raw/rules") u64 rules(const u8 *p, u64 len) {
	if (len < 16) return 0;
	u32 addr = *(u32 *)p; u16 port = *(u16 *)(p + 4); u8 proto = p[6]; u32 count = p[7];
	const struct rule *r = (const struct rule *)(p + 8);
	u64 space = (len - 8) / sizeof(*r);
	if (count > space) count = space;
	for (u32 i = 0; i < count; i++) {
		u32 bits = r[i].bits;
		if (bits > 32) continue;
		u32 mask = bits ? ~0u << (32 - bits) : 0;
		if ((addr & mask) != (r[i].addr & mask)) continue;
		if (r[i].proto && r[i].proto != proto) continue;
		if (port < r[i].low || port > r[i].high) continue;
		return r[i].action;
	}
	return 0;
}
