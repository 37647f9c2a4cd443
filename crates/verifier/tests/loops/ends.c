// mcpu: v3 v2 v4
//
// Loops over signed indices, and loops that end because one of several variables moves in each round.
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used, no_builtin))
typedef __u8 u8;
typedef __u32 u32;
typedef __u64 u64;

// Dutch national flag: one end rises or the other falls.
SEC("raw/flag") u64 flag(u8 *p, u64 len) {
	u64 low = 0, at = 0, high = len;
	while (at < high) {
		u8 v = p[at];
		if (v < 85) {
			p[at] = p[low];
			p[low] = v;
			low++;
			at++;
		} else if (v < 170) {
			at++;
		} else {
			high--;
			p[at] = p[high];
			p[high] = v;
		}
	}
	return low;
}

// A pattern of 16 bytes with `?` and `*`, which goes back to its last star: three variables, in order.
SEC("raw/wildcards") u64 wildcards(const u8 *p, u64 len) {
	u64 pattern = 0, text = 16, star = ~0ull, mark = 0;
	if (len < 16)
		return 0;
	while (text < len) {
		if (pattern < 16 && (p[pattern] == '?' || p[pattern] == p[text])) {
			pattern++;
			text++;
		} else if (pattern < 16 && p[pattern] == '*') {
			star = pattern++;
			mark = text;
		} else if (star != ~0ull) {
			pattern = star + 1;
			text = ++mark;
		} else {
			return 0;
		}
	}
	while (pattern < 16 && p[pattern] == '*')
		pattern++;
	return pattern == 16;
}

// The upper end may be -1. Where all comparisons have 64 bits (`-mcpu=v2`), the compared numbers differ from the added ones.
#if __BPF_CPU_VERSION__ >= 3
SEC("raw/bsearch_int") u64 bsearch_int(const u8 *p, u64 len) {
	const u32 *a = (const u32 *)p;
	int low = 0, high = (int)(len / 4) - 1;
	u32 key = len * 77;
	while (low <= high) {
		int middle = (u32)(low + high) >> 1;
		if (a[middle] == key)
			return middle;
		if (a[middle] < key)
			low = middle + 1;
		else
			high = middle - 1;
	}
	return -1;
}
#endif

SEC("raw/insertion_int") u64 insertion_int(u8 *p, u64 len) {
	u32 *a = (u32 *)p;
	int n = len > 4000 ? 1000 : len / 4;
	for (int i = 1; i < n; i++) {
		u32 v = a[i];
		int j = i - 1;
		while (j >= 0 && a[j] > v) {
			a[j + 1] = a[j];
			j--;
		}
		a[j + 1] = v;
	}
	return n;
}

// The index below is taken before it is known to be one.
SEC("raw/shell") u64 shell(u8 *a, u64 n) {
	for (u64 gap = n / 2; gap > 0; gap /= 2)
		for (u64 i = gap; i < n; i++) {
			u8 v = a[i];
			u64 j = i;
			for (; j >= gap && a[j - gap] > v; j -= gap)
				a[j] = a[j - gap];
			a[j] = v;
		}
	return n ? a[0] : 0;
}

// More rounds than a number of 32 bits counts.
SEC("raw/fibonacci") u64 fibonacci(const u8 *p, u64 len) {
	u64 a = 0, b = 1;
	(void)p;
	for (u64 i = 0; i < len * 8; i++) {
		u64 c = a + b;
		a = b;
		b = c;
	}
	return a;
}
