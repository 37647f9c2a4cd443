// mcpu: v3 v2 v4
//
// Lengths that are checked and used in a straight line, and small loops over what they leave.
#include <linux/types.h>
#define SEC(name) __attribute__((section(name), used))
typedef __u8 u8; typedef __u16 u16; typedef __u32 u32; typedef __u64 u64;

/* options of variable length in front of a checksum */
SEC("raw/behind_options") u64 behind_options(u8 *p, u64 n) {
  if (n < 14) return 0;
  u32 words = p[12] >> 4;
  if (words < 5 || words * 4 > n) return 1;
  if (n - words * 4 < 6) return 2;
  return *(u16 *)(p + words * 4 + 4);
}

/* the length of a name, then that of a value */
SEC("raw/name_and_value") u64 name_and_value(u8 *p, u64 n) {
  if (n < 2) return 0;
  u64 a = p[0], b = p[1];
  if (a > n - 2) return 1;
  if (b > n - 2 - a) return 2;
  if (a == 0 || b < 2) return 3;
  return p[2] + p[2 + a] + p[3 + a];
}

/* a part that is checked by its end */
SEC("raw/part_by_end") u64 part_by_end(u8 *p, u64 n) {
  if (n < 8) return 0;
  u64 from = *(u16 *)(p + 2), to = *(u16 *)(p + 4);
  if (to > n || from > to || to - from < 8) return 1;
  return *(u64 *)(p + from);
}

/* parity of small groups, in an array of four words of two bytes */
SEC("raw/four_sums") u64 four_sums(u8 *p, u64 n) {
  u16 sums[4] = {};
  for (u64 i = 0; i < n; i++) sums[p[i] & 3] += i;
  return sums[0] ^ sums[1] << 1 ^ sums[2] << 2 ^ sums[3] << 3;
}

/* records that are padded to eight bytes */
SEC("raw/padded_records") u64 padded_records(u8 *p, u64 n) {
  u64 at = 0, sum = 0;
  while (at + 2 <= n) {
    u64 len = p[at + 1], room = (len + 7) & ~7ull;
    if (at + 2 + room > n) break;
    for (u64 k = 0; k < len; k++) sum = sum * 3 + p[at + 2 + k];
    at += 2 + room;
  }
  return sum;
}

/* the first pair of bytes that is no less, by halves */
SEC("raw/lower_pairs") u64 lower_pairs(u8 *p, u64 n) {
  u64 low = 0, high = n / 2;
  while (low < high) {
    u64 middle = (low + high) / 2;
    if (p[middle * 2] * 256 + p[middle * 2 + 1] < 500) low = middle + 1; else high = middle;
  }
  return low;
}

/* rows of 32, the last one shorter */
SEC("raw/rows_of_32") u64 rows_of_32(u8 *p, u64 n) {
  u64 worst = 0;
  for (u32 at = 0; at < n; at += 32) {
    u32 row = n - at < 32 ? n - at : 32, sum = 0;
    for (u32 j = 0; j < row; j++) sum += p[at + j];
    if (sum > worst) worst = sum;
  }
  return worst;
}

/* how often each magnitude comes */
SEC("raw/magnitudes") u64 magnitudes(u8 *p, u64 n) {
  u16 count[33] = {};
  for (u64 i = 0; i + 4 <= n; i += 4) { u32 v = *(u32 *)(p + i); count[v ? 32 - __builtin_clz(v) : 0]++; }
  return count[1] + count[32];
}

/* how often each number of set bits comes, of 64 */
SEC("raw/weights") u64 weights(u8 *p, u64 n) {
  u8 count[65] = {};
  for (u64 i = 0; i + 8 <= n; i += 8) count[__builtin_popcountll(*(u64 *)(p + i))]++;
  return count[0] + count[64];
}

/* four bytes of a header, and two words behind it, by a length of 32 bits */
SEC("raw/twice_checked") u64 twice_checked(u8 *p, u32 n) {
  if (n < 8) return 0;
  u32 left = n - 8, first = *(u32 *)(p + 4);
  if (left < 8) return first;
  return first ^ *(u64 *)(p + 8);
}

/* what follows a mark */
SEC("raw/behind_mark") u64 behind_mark(u8 *p, u64 n) {
  u64 i = 0;
  while (i < n && p[i] != '#') i++;
  if (i == n) return 0;
  u64 left = n - i - 1;
  if (left < 2) return 1;
  return *(u16 *)(p + i + 1);
}

/* sixteen numbers at most, up to an end */
SEC("raw/few_words") u64 few_words(u8 *p, u32 n) {
  const u32 *from = (const u32 *)p;
  u32 count = n / 4;
  if (count > 16) count = 16;
  u64 sum = 0;
  for (const u32 *w = from; w < from + count; w++) sum += *w;
  return sum;
}
