// mcpu: v3 v2 v4
//
// Two indices that approach each other, each in some rounds only; and an index that an inner loop moves on by the
// bytes that it reads.
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used, no_builtin))
typedef __u8 u8;
typedef __u32 u32;
typedef __u64 u64;

u8 out[4096];

/* whether the letters are a palindrome, spaces left out */
SEC("raw/palindrome") u64 palindrome(u8 *m, u64 len) {
  if (!len) return 1;
  u64 i = 0, j = len - 1;
  while (i < j) {
    if (m[i] == ' ') {
      i++;
      continue;
    }
    if (m[j] == ' ') {
      j--;
      continue;
    }
    if (m[i] != m[j]) return 0;
    i++;
    j--;
  }
  return 1;
}

/* the lower index moves in each round, the upper one in some */
SEC("raw/trim") u64 trim(u8 *m, u64 len) {
  if (!len) return 1;
  u64 i = 0, j = len - 1, sum = 0;
  while (i < j) {
    if (m[i] == ' ') {
      i++;
      continue;
    }
    sum += m[i];
    i++;
    j--;
  }
  return sum;
}

/* eight items after a byte of flags: a byte, or two that stand for as many as the first says */
SEC("raw/flags") u64 flags(u8 *m, u64 len) {
  u64 i = 0, o = 0;
  while (i < len) {
    u8 flags = m[i++];
    for (int b = 0; b < 8 && i < len; b++) {
      if (flags >> b & 1) {
        if (o >= sizeof(out)) return o;
        out[o++] = m[i++];
      } else {
        if (i + 2 > len) return o;
        o += m[i];
        i += 2;
      }
    }
  }
  return o;
}
