// mcpu: v3 v2 v4
//
// Numbers that are divided: digits, bits, gaps, words behind a header, and automata whose tables lie beside others.
#include <linux/types.h>
#define SEC(name) __attribute__((section(name), used, no_builtin))
typedef __u8 u8; typedef __u16 u16; typedef __u32 u32; typedef __u64 u64;
typedef unsigned long size_t;

u8 text[256];

/* (len - 32) / 4 words, from the front and from the back */
SEC("raw/words") u64 words(u8 *m, u64 len) {
  if (len < 36) return -1;
  u32 n = (len - 32) / 4, h = 0;
  const u32 *num = (const u32 *)(m + 32);
  for (u32 w = 0; w < n; w++) h += num[w];
  return h;
}
SEC("raw/words_back") u64 words_back(u8 *m, u64 len) {
  if (len < 36) return -1;
  int n = (len - 32) / 4; u32 h = 0;
  const u32 *num = (const u32 *)(m + 32);
  for (int w = n - 1; w >= 0; w--) h = h * 31 + num[w];
  return h;
}

/* sum of the bytes, in decimal */
SEC("raw/decimal") u64 decimal(u8 *m, u64 len) {
  u64 sum = 0;
  for (size_t i = 0; i < len; i++) sum += m[i];
  char tmp[20]; int n = 0;
  do { tmp[n++] = '0' + sum % 10; sum /= 10; } while (sum);
  for (int k = 0; k < n; k++) text[k] = tmp[n - 1 - k];
  text[n] = 0;
  return n;
}

/* numbers in hexadecimal, a line each */
SEC("raw/hexlines") u64 hexlines(u8 *m, u64 len) {
  u32 o = 0;
  for (size_t i = 0; i + 4 <= len; i += 4) {
    u32 v = *(u32 *)(m + i);
    char tmp[8]; int n = 0;
    while (v > 0) { tmp[n++] = "0123456789abcdef"[v & 15]; v >>= 4; }
    if (n == 0) tmp[n++] = '0';
    if (o + n + 1 > sizeof(text)) break;
    while (n > 0) text[o++] = tmp[--n];
    text[o++] = '\n';
  }
  return o;
}

/* numbers in decimal, written backwards into a buffer */
SEC("raw/itoa") u64 itoa(u8 *m, u64 len) {
  char tmp[12]; u32 o = 0;
  for (size_t i = 0; i + 4 <= len; i += 4) {
    u32 v = *(u32 *)(m + i);
    char *p = tmp + sizeof(tmp);
    do { *--p = '0' + v % 10; v /= 10; } while (v);
    while (p < tmp + sizeof(tmp) && o < sizeof(text)) text[o++] = *p++;
  }
  return o;
}

/* what is left of numbers without their factors of two, as Miller and Rabin take them */
SEC("raw/odd") u64 odd(u8 *m, u64 len) {
  u64 sum = 0; u32 twos = 0;
  for (size_t off = 0; off + 4 <= len; off += 4) {
    u32 n = *(u32 *)(m + off);
    if (n < 3 || !(n & 1)) continue;
    u32 d = n - 1;
    while (!(d & 1)) { d >>= 1; twos++; }
    sum += d;
  }
  return sum * 64 + twos;
}

/* comb sort, in the buffer */
SEC("raw/comb") u64 comb(u8 *m, u64 len) {
  u16 *a = (u16 *)m;
  size_t n = len / 2, gap = n;
  u32 swaps = 0;
  while (gap > 1) {
    gap = gap * 10 / 13;
    for (size_t i = 0; i + gap < n; i++)
      if (a[i] > a[i + gap]) { u16 t = a[i]; a[i] = a[i + gap]; a[i + gap] = t; swaps++; }
  }
  return swaps;
}

/* Aho and Corasick's automaton for "abc", "bc" and "aa", with an output for each state and the messages in the same map */
static const u8 ac_next[6][4] = {{1,0,3,0},{1,2,3,0},{4,0,3,0},{1,5,3,0},{1,2,3,5},{4,5,3,0}};
static const u8 ac_out[6] = {0,0,1,0,2,3};
static const char reasons[4][8] = {"none", "first", "second", "both"};
SEC("raw/aho") u64 aho(u8 *m, u64 len) {
  u32 hits[4] = {0}; u8 state = 0;
  for (u32 i = 0; i < len; i++) {
    u8 c = m[i]; int cls = 3;
    if (c == 'a') cls = 0; else if (c == 'b') cls = 1; else if (c == 'c') cls = 2;
    state = ac_next[state][cls];
    hits[ac_out[state]]++;
  }
  for (u32 k = 0; k < 8; k++) text[k] = reasons[hits[1] & 3][k];
  return hits[1] + hits[2] * 1000 + hits[3] * 1000000;
}

/* numbers of a text: classes of characters in one table, states in another */
static const u8 cls_of[16] = {0,0,0,0,0,0,0,0,0,0,1,2,3,1,2,3};
static const u8 num_next[5][4] = {{1,0,4,0},{1,2,0,0},{3,4,4,4},{3,0,0,0},{0,4,4,4}};
SEC("raw/nums") u64 nums(u8 *m, u64 len) {
  u32 state = 0, found = 0;
  for (size_t i = 0; i < len; i++) {
    u32 next = num_next[state][cls_of[m[i] & 15]];
    if (next == 0 && (state == 1 || state == 3)) found++;
    state = next;
  }
  return found;
}

/* fields of a text with their lengths before them, the first of up to 255 bytes kept */
SEC("raw/fields") u64 fields(u8 *m, u64 len) {
  size_t pos = 0; u64 h = 0;
  for (int f = 0; f < 5; f++) {
    if (pos + 2 > len) return -1;
    size_t l = m[pos] << 8 | m[pos + 1];
    pos += 2;
    if (pos + l > len) return -1;
    if (f == 0) {
      if (l >= sizeof(text)) return -1;
      for (size_t i = 0; i < l; i++) text[i] = m[pos + i];
      text[l] = 0;
    }
    for (size_t i = 0; i < l; i++) h = h * 131 + m[pos + i];
    pos += l;
  }
  return h;
}

/* words of small letters */
SEC("raw/letters") u64 letters(u8 *m, u64 len) {
  size_t i = 0; u32 words = 0;
  while (i < len) {
    while (i < len && !(m[i] >= 'a' && m[i] <= 'z')) i++;
    if (i == len) break;
    while (i < len && m[i] >= 'a' && m[i] <= 'z') i++;
    words++;
  }
  return words;
}

/* QUIC: a long header, an identifier, and variable-length integers, the first two bits of which say how long */
SEC("raw/quic") u64 quic(u8 *m, u64 len) {
  if (len < 7 || !(m[0] & 0x80)) return -1;
  size_t pos = 5;
  u8 n = m[pos++];
  if (n > 20 || len - pos < n) return -1;
  u8 cid[20] = {0};
  for (int i = 0; i < n; i++) cid[i] = m[pos + i];
  pos += n;
  u64 total = 0;
  while (pos < len) {
    int width = 1 << (m[pos] >> 6);
    if (len - pos < (size_t)width) return -1;
    u64 v = m[pos] & 0x3f;
    for (int i = 1; i < width; i++) v = v << 8 | m[pos + i];
    pos += width;
    total += v;
  }
  for (int i = 0; i < 20; i++) total = total * 257 + cid[i];
  return total;
}
