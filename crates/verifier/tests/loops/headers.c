// mcpu: v3 v2 v4
//
// Headers one after another, each of which says how long it is: IPv6 extension headers, SCTP chunks, DNS answers. (By
// who did not know how they are proven.)
#include <linux/types.h>
#define SEC(name) __attribute__((section(name), used, no_builtin))
#define INL static inline __attribute__((always_inline))
typedef __u8 u8; typedef __u16 u16; typedef __u32 u32; typedef __u64 u64; typedef __s64 s64;
INL u16 get16(const u8 *p) { return (u16)(p[0] << 8 | p[1]); }
INL u32 get32(const u8 *p) { return (u32)p[0] << 24 | (u32)p[1] << 16 | p[2] << 8 | p[3]; }

/* the last header behind the extensions, and where it is */
SEC("raw/ip6_ext") u64 ip6_ext(u8 *m, u64 len) {
  if (len < 40 || m[0] >> 4 != 6) return 0;
  u8 next = m[6];
  u64 off = 40;
  u32 seen = 0;
  for (;;) {
    if (next == 0 || next == 43 || next == 60) {
      if (len - off < 8) return 0;
      u64 l = ((u64)m[off + 1] + 1) * 8;
      if (l > len - off) return 0;
      next = m[off];
      off += l;
    } else if (next == 44) {
      if (len - off < 8) return 0;
      if (get16(m + off + 2) & 0xfff8) return 1;
      next = m[off];
      off += 8;
    } else if (next == 51) {
      if (len - off < 12) return 0;
      u64 l = ((u64)m[off + 1] + 2) * 4;
      if (l > len - off) return 0;
      next = m[off];
      off += l;
    } else break;
    seen++;
  }
  return off << 16 | seen << 8 | next;
}

struct sctp_chunk { u8 type, flags; u16 length; };
/* SCTP chunks with padding to four */
SEC("raw/sctp") u64 sctp(u8 *m, u64 len) {
  u32 counts[16];
  for (int i = 0; i < 16; i++) counts[i] = 0;
  if (len < 12) return 0;
  u8 *p = m + 12, *end = m + len;
  u64 bytes = 0;
  while (p + sizeof(struct sctp_chunk) <= end) {
    struct sctp_chunk *c = (struct sctp_chunk *)p;
    u16 l = __builtin_bswap16(c->length);
    if (l < 4 || p + l > end) return 0;
    counts[c->type & 15]++;
    if (c->type == 0) {
      if (l < 16) return 0;
      bytes += l - 16;
    }
    p += (l + 3) & ~3;
  }
  u32 best = 0;
  for (int i = 1; i < 16; i++) if (counts[i] > counts[best]) best = i;
  return bytes << 8 | best;
}

/* behind a name, which may end in a pointer to another */
INL s64 dns_skip(const u8 *m, u64 len, u64 pos) {
  for (int i = 0; i < 128; i++) {
    if (pos >= len) return -1;
    u8 l = m[pos];
    if (l == 0) return pos + 1;
    if ((l & 0xc0) == 0xc0) return pos + 2;
    if (l & 0xc0) return -1;
    pos += l + 1;
  }
  return -1;
}

/* the addresses of a DNS answer */
SEC("raw/dns_answers") u64 dns_answers(u8 *m, u64 len) {
  if (len < 12) return 0;
  u16 qd = get16(m + 4), an = get16(m + 6);
  u64 pos = 12;
  u64 sum = 0;
  for (u16 i = 0; i < qd; i++) {
    s64 p = dns_skip(m, len, pos);
    if (p < 0) return 0;
    pos = p + 4;
    if (pos > len) return 0;
  }
  for (u16 i = 0; i < an; i++) {
    s64 p = dns_skip(m, len, pos);
    if (p < 0 || (u64)p + 10 > len) break;
    u16 type = get16(m + p), rdlen = get16(m + p + 8);
    pos = p + 10;
    if (pos + rdlen > len) break;
    if (type == 1 && rdlen == 4) sum += get32(m + pos);
    pos += rdlen;
  }
  return sum;
}
