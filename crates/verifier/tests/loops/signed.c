// mcpu: v3 v2 v4
//
// Decoders: a header with a sign, whose copies both sides bound, and fields whose lengths are read.
#include <linux/types.h>
#define SEC(name) __attribute__((section(name), used, no_builtin))
typedef __u8 u8; typedef __s8 s8; typedef __u32 u32; typedef __u64 u64;

/* PackBits: a header of 0 and more copies one byte more than it says, one below 0 repeats a byte */
SEC("raw/packbits") u64 packbits(u8 *m, u64 len) {
  u8 out[128] = {}; u64 i = 0, o = 0, s = 0;
  while (i < len && o < 128) {
    s8 h = m[i++];
    if (h >= 0) { for (int k = 0; k <= h && i < len && o < 128; k++) out[o++] = m[i++]; }
    else if (h != -128) { if (i >= len) break; u8 b = m[i++]; for (int k = 0; k <= -h && o < 128; k++) out[o++] = b; }
  }
  for (int k = 0; k < 128; k++) s = s * 31 + out[k];
  return s;
}

/* protobuf: numbers are added up, texts by their bytes */
SEC("raw/protobuf") u64 protobuf(u8 *m, u64 len) {
  const u8 *p = m, *end = m + len; u64 s = 0;
  while (p < end) {
    u8 key = *p++;
    u64 v = 0; u32 shift = 0;
    while (p < end && shift < 64) { u8 b = *p++; v |= (u64)(b & 127) << shift; shift += 7; if (!(b & 128)) break; }
    if ((key & 7) == 0) s += v;
    else if ((key & 7) == 2) { if (v > (u64)(end - p)) return 0; for (u64 k = 0; k < v; k++) s += p[k]; p += v; }
    else return 0;
  }
  return s;
}
