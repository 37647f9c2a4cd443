// mcpu: v3 v2 v4
//
// Branches in a loop that decide nothing but what is counted, added up or the least: each of them would double the paths
// of a round.
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used, no_builtin))
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;

#define ORDER(a, b)                \
	do {                       \
		if (x[a] > x[b]) { \
			u8 t = x[a]; \
			x[a] = x[b]; \
			x[b] = t;  \
		}                  \
	} while (0)

// The two in the middle of each eight bytes, by a sorting network.
SEC("raw/network") u64 network(const u8 *p, u64 len) {
	u64 sum = 0;
	for (u64 at = 0; at + 8 <= len; at += 8) {
		u8 x[8];
		for (int i = 0; i < 8; i++)
			x[i] = p[at + i];
		ORDER(0, 1); ORDER(2, 3); ORDER(4, 5); ORDER(6, 7);
		ORDER(0, 2); ORDER(1, 3); ORDER(4, 6); ORDER(5, 7);
		ORDER(1, 2); ORDER(5, 6); ORDER(0, 4); ORDER(3, 7);
		ORDER(1, 5); ORDER(2, 6); ORDER(1, 4); ORDER(3, 6);
		ORDER(2, 4); ORDER(3, 5); ORDER(3, 4);
		sum += x[3] + x[4];
	}
	return sum;
}

// A request's score: rules that add up, and the best of all.
SEC("raw/score") u64 score(const u8 *p, u64 len) {
	u32 best = 0, where = 0;
	for (u64 at = 0; at + 16 <= len; at += 16) {
		const u8 *r = p + at;
		u32 s = 0;
		if (r[0] == 6)
			s += 10;
		if (r[1] & 2)
			s += 5;
		if (r[2] > 64)
			s += 3;
		if (r[3] == 22 || r[3] == 80)
			s += 20;
		if (r[4] != r[8])
			s += 1;
		if (r[5] == r[9])
			s += 2;
		if (r[6] < r[10])
			s += 4;
		if (r[7] >= r[11])
			s += 8;
		if (r[12])
			s += 16;
		if (!r[13])
			s += 32;
		if (r[14] > 200)
			s = s > 10 ? s - 10 : 0;
		if (s > best) {
			best = s;
			where = at;
		}
	}
	return (u64)best << 32 | where;
}

// How far a text is from a word: one row of the table, in a loop of known length that the compiler unrolls.
SEC("raw/distance") u64 distance(const u8 *p, u64 len) {
	static const char word[8] = "firewall";
	u8 row[9];
	for (int j = 0; j <= 8; j++)
		row[j] = j;
	for (u64 i = 0; i < len && i < 100; i++) {
		u8 left = row[0];
		row[0] = i + 1;
		for (int j = 1; j <= 8; j++) {
			u8 up = row[j], least = left + (p[i] != (u8)word[j - 1]);
			if (row[j] + 1 < least)
				least = row[j] + 1;
			if (row[j - 1] + 1 < least)
				least = row[j - 1] + 1;
			row[j] = least;
			left = up;
		}
	}
	return row[8];
}

// How many characters are of which kinds.
SEC("raw/classes") u64 classes(const u8 *p, u64 len) {
	u32 lower = 0, upper = 0, digit = 0, space = 0, control = 0, high = 0;
	for (u64 i = 0; i < len; i++) {
		u8 c = p[i];
		if (c >= 'a' && c <= 'z')
			lower++;
		if (c >= 'A' && c <= 'Z')
			upper++;
		if (c >= '0' && c <= '9')
			digit++;
		if (c == ' ' || c == '\t' || c == '\n')
			space++;
		if (c < 32)
			control++;
		if (c >= 128)
			high++;
	}
	return (u64)lower * 3 + upper * 5 + digit * 7 + space * 11 + control * 13 + high * 17;
}

// The cheapest way through a trellis of four states.
SEC("raw/trellis") u64 trellis(const u8 *p, u64 len) {
	u32 m0 = 0, m1 = 100, m2 = 100, m3 = 100;
	for (u64 i = 0; i < len; i++) {
		u32 b = p[i];
		u32 a = m0 + (b & 3), c = m1 + (~b & 3), d = m2 + (b >> 2 & 3), e = m3 + (~b >> 2 & 3);
		u32 n0 = a < c ? a : c, n1 = a + 1 < c ? a + 1 : c, n2 = d < e ? d : e, n3 = d + 1 < e ? d + 1 : e;
		m0 = n0;
		m1 = n2;
		m2 = n1;
		m3 = n3;
		if (m0 > 1 << 20)
			m0 -= 1 << 20;
		if (m1 > 1 << 20)
			m1 -= 1 << 20;
	}
	return m0 < m1 ? m0 : m1;
}

// Samples that leave a band of the last four.
SEC("raw/band") u64 band(const u8 *p, u64 len) {
	u8 a = 0, b = 0, c = 0, d = 0;
	u64 alarms = 0;
	for (u64 i = 0; i < len; i++) {
		a = b;
		b = c;
		c = d;
		d = p[i];
		u8 low = a, high = a;
		if (b < low)
			low = b;
		if (b > high)
			high = b;
		if (c < low)
			low = c;
		if (c > high)
			high = c;
		if (d < low)
			low = d;
		if (d > high)
			high = d;
		if (high - low > 50)
			alarms++;
		if (d == low && low != high)
			alarms += 2;
	}
	return alarms;
}

// A search tree in the buffer: nodes of four bytes, as many as there is room for.
SEC("raw/tree") u64 tree(const u8 *p, u64 len) {
	if (len < 1)
		return 0;
	u8 key = p[0];
	u64 n = (len - 1) / 4, at = 0;
	const u8 *nodes = p + 1;
	for (int depth = 0; depth < 32; depth++) {
		if (at >= n)
			return 0;
		u8 k = nodes[at * 4];
		if (k == key)
			return nodes[at * 4 + 3];
		at = key < k ? nodes[at * 4 + 1] : nodes[at * 4 + 2];
	}
	return 0;
}
