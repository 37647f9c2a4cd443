// mcpu: v3 v4
//
// Plug-ins as the author of a service writes them: pointers that walk, records in arrays and in globals, while (n--), tables in .rodata, text protocols.
#include <linux/types.h>
#define SEC(name) __attribute__((section(name), used, no_builtin))
typedef __u8 u8; typedef __u16 u16; typedef __u32 u32; typedef __u64 u64; typedef __s32 s32; typedef __s64 s64;

/* best eight scores, kept sorted in an array of records */
struct score { u32 points; u16 who, when; };
SEC("raw/best") u64 best(u8 *m, u64 len) {
  struct score top[8]; int n = 0;
  const struct { u16 who; u16 points; } *in = (void *)m;
  u64 count = len / 4;
  for (u64 i = 0; i < count; i++) {
    u32 p = in[i].points; int at = n;
    if (n == 8 && p <= top[7].points) continue;
    if (n == 8) at = 7; else n++;
    while (at > 0 && top[at - 1].points < p) { top[at] = top[at - 1]; at--; }
    top[at].points = p; top[at].who = in[i].who; top[at].when = i;
  }
  u64 s = 0; for (int i = 0; i < n; i++) s = s * 31 + top[i].who + top[i].points;
  return s;
}

/* Internet checksum as everybody writes it */
SEC("raw/cksum") u64 cksum(u8 *m, u64 len) {
  const u16 *w = (const u16 *)m; u64 n = len; u32 sum = 0;
  while (n > 1) { sum += *w++; n -= 2; }
  if (n) sum += *(const u8 *)w;
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return (u16)~sum;
}

/* CRC-16 by nibbles of a table */
static const u16 crc_nibble[16] = {0x0000,0x1021,0x2042,0x3063,0x4084,0x50a5,0x60c6,0x70e7,0x8108,0x9129,0xa14a,0xb16b,0xc18c,0xd1ad,0xe1ce,0xf1ef};
SEC("raw/crc16") u64 crc16(u8 *m, u64 len) {
  u16 crc = 0xffff;
  while (len--) { u8 b = *m++; crc = crc << 4 ^ crc_nibble[crc >> 12 ^ b >> 4]; crc = crc << 4 ^ crc_nibble[crc >> 12 ^ (b & 15)]; }
  return crc;
}

/* "set key flags exptime bytes\r\n" */
SEC("raw/memcached") u64 memcached(u8 *m, u64 len) {
  u64 i = 0, start[5], end[5]; u32 n = 0;
  while (i < len && n < 5) {
    while (i < len && m[i] == ' ') i++;
    if (i >= len || m[i] == '\r') break;
    start[n] = i;
    while (i < len && m[i] != ' ' && m[i] != '\r') i++;
    end[n++] = i;
  }
  if (n != 5) return -1;
  u32 nums[3];
  for (u32 k = 0; k < 3; k++) {
    u32 v = 0;
    for (u64 j = start[2 + k]; j < end[2 + k] && j < len; j++) { u32 d = m[j] - '0'; if (d > 9) return -1; v = v * 10 + d; }
    nums[k] = v;
  }
  return nums[0] + nums[1] + nums[2];
}

/* Exp-Golomb codes of a bit reader */
struct bits { const u8 *p; u64 len; u64 pos; };
static inline u32 bit(struct bits *b) {
  u64 at = b->pos >> 3; if (at >= b->len) return 0;
  u32 v = b->p[at] >> (7 - (b->pos & 7)) & 1; b->pos++; return v;
}
SEC("raw/golomb") u64 golomb(u8 *m, u64 len) {
  struct bits b = { m, len, 0 }; u64 sum = 0;
  for (int k = 0; k < 32; k++) {
    int zeros = 0;
    while (zeros < 31 && b.pos < len * 8 && !bit(&b)) zeros++;
    u32 v = 1; for (int i = 0; i < zeros; i++) v = v << 1 | bit(&b);
    sum += v - 1;
    if (b.pos >= len * 8) break;
  }
  return sum;
}

/* least recently used, in an array of records in a map's value */
struct entry { u32 key, value, used; };
static struct entry lru[16]; static u32 lru_clock;
SEC("raw/recent") u64 recent(u8 *m, u64 len) {
  u64 hits = 0;
  for (u64 i = 0; i + 4 <= len; i += 4) {
    u32 key = *(u32 *)(m + i); int oldest = 0, found = -1;
    for (int j = 0; j < 16; j++) {
      if (lru[j].key == key && lru[j].used) { found = j; break; }
      if (lru[j].used < lru[oldest].used) oldest = j;
    }
    if (found < 0) { found = oldest; lru[found].key = key; lru[found].value = 0; } else hits++;
    lru[found].value++; lru[found].used = ++lru_clock;
  }
  return hits;
}

/* a ring in a map's value; what it holds is not to be trusted */
static struct { u32 head, tail; u8 data[256]; } ring;
SEC("raw/ring_put") u64 ring_put(u8 *m, u64 len) {
  u32 head = ring.head, tail = ring.tail; u64 put = 0;
  while (put < len) {
    u32 next = (head + 1) % sizeof(ring.data);
    if (next == tail) break;
    ring.data[head & 255] = m[put++]; head = next;
  }
  ring.head = head; return put;
}

/* a machine with a stack */
SEC("raw/machine") u64 machine(u8 *m, u64 len) {
  u32 stack[16], sp = 0, fuel = 1000; u64 pc = 0;
  while (pc < len && fuel--) {
    u8 op = m[pc++];
    switch (op & 7) {
    case 0: if (sp >= 16 || pc >= len) return -1; stack[sp++] = m[pc++]; break;
    case 1: if (sp < 2) return -1; sp--; stack[sp - 1] += stack[sp]; break;
    case 2: if (sp < 2) return -1; sp--; stack[sp - 1] *= stack[sp]; break;
    case 3: if (sp < 1 || sp >= 16) return -1; stack[sp] = stack[sp - 1]; sp++; break;
    case 4: if (sp < 2) return -1; { u32 t = stack[sp - 1]; stack[sp - 1] = stack[sp - 2]; stack[sp - 2] = t; } break;
    case 5: if (sp < 1) return -1; if (stack[--sp]) { pc += (signed char)(op & 0xf8) >> 3; } break;
    case 6: if (sp < 1) return -1; sp--; break;
    case 7: return sp ? stack[sp - 1] : 0;
    }
  }
  return -2;
}

/* a DNS name, with compression */
SEC("raw/dns") u64 dns(u8 *m, u64 len) {
  u64 at = 12; u32 hash = 0, hops = 0, total = 0;
  for (;;) {
    if (at >= len) return -1;
    u8 n = m[at];
    if ((n & 0xc0) == 0xc0) {
      if (at + 1 >= len || ++hops > 8) return -1;
      at = (n & 0x3f) << 8 | m[at + 1];
      continue;
    }
    if (n > 63) return -1;
    if (!n) break;
    total += n + 1; if (total > 255) return -1;
    if (at + 1 + n > len) return -1;
    for (u8 i = 0; i < n; i++) { u8 c = m[at + 1 + i]; if (c >= 'A' && c <= 'Z') c += 32; hash = hash * 33 ^ c; }
    at += n + 1;
  }
  return hash;
}

/* %xx and + in a URL, into a buffer */
static inline int hexval(u8 c) { if (c >= '0' && c <= '9') return c - '0'; c |= 32; if (c >= 'a' && c <= 'f') return c - 'a' + 10; return -1; }
SEC("raw/unescape") u64 unescape(u8 *m, u64 len) {
  u8 out[128]; u32 n = 0; u64 i = 0;
  while (i < len && n < sizeof out) {
    u8 c = m[i++];
    if (c == '+') c = ' ';
    else if (c == '%') {
      if (len - i < 2) return -1;
      int h = hexval(m[i]), l = hexval(m[i + 1]);
      if (h < 0 || l < 0) return -1;
      c = h << 4 | l; i += 2;
    }
    out[n++] = c;
  }
  u64 s = 0; for (u32 k = 0; k < n; k++) s = s * 131 + out[k];
  return s;
}

/* run lengths, by a pointer that reads and one that writes */
SEC("raw/runs") u64 runs(u8 *m, u64 len) {
  u8 out[64]; u8 *o = out, *const oend = out + sizeof out; const u8 *p = m, *const end = m + len;
  while (p < end) {
    u8 c = *p++; u8 n = 1;
    while (p < end && *p == c && n < 255) { p++; n++; }
    if (oend - o < 2) break;
    *o++ = n; *o++ = c;
  }
  u64 s = 0; for (const u8 *q = out; q < o; q++) s = s * 33 + *q;
  return s;
}

/* Shell sort in the buffer */
SEC("raw/shell") u64 shell(u8 *m, u64 len) {
  for (u64 gap = len / 2; gap > 0; gap /= 2)
    for (u64 i = gap; i < len; i++) {
      u8 v = m[i]; u64 j = i;
      while (j >= gap && m[j - gap] > v) { m[j] = m[j - gap]; j -= gap; }
      m[j] = v;
    }
  return len ? m[0] : 0;
}

/* a Bloom filter in a map's value */
static u64 filter[64];
SEC("raw/bloom") u64 bloom(u8 *m, u64 len) {
  u32 h1 = 2166136261u, h2 = 5381; int all = 1;
  for (u64 i = 0; i < len; i++) { h1 = (h1 ^ m[i]) * 16777619u; h2 = h2 * 33 + m[i]; }
  for (u32 i = 0; i < 4; i++) {
    u32 b = (h1 + i * h2) % (64 * 64);
    if (!(filter[b / 64] >> (b % 64) & 1)) all = 0;
    filter[b / 64] |= 1ull << (b % 64);
  }
  return all;
}

/* hex of a digest */
static const char hexdigits[] = "0123456789abcdef";
SEC("raw/hex") u64 hex(u8 *m, u64 len) {
  char out[65]; u32 n = 0;
  if (len > 32) len = 32;
  for (u64 i = 0; i < len; i++) { out[n++] = hexdigits[m[i] >> 4]; out[n++] = hexdigits[m[i] & 15]; }
  out[n] = 0;
  u64 s = 0; for (const char *p = out; *p; p++) { if (p - out > 63) break; s = s * 31 + *p; }
  return s;
}

/* Base32 out */
static const char b32[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
SEC("raw/base32") u64 base32(u8 *m, u64 len) {
  char out[104]; u32 n = 0, acc = 0; int have = 0;
  for (u64 i = 0; i < len && i < 64; i++) {
    acc = acc << 8 | m[i]; have += 8;
    while (have >= 5) { if (n >= sizeof out) return -1; have -= 5; out[n++] = b32[acc >> have & 31]; }
  }
  u64 s = 0; for (u32 i = 0; i < n; i++) s = s * 31 + out[i];
  return s;
}

/* an IPv6 address in text */
SEC("raw/ipv6text") u64 ipv6text(u8 *m, u64 len) {
  u16 g[8]; int n = 0, gap = -1; u64 i = 0;
  if (len >= 2 && m[0] == ':' && m[1] == ':') { gap = 0; i = 2; }
  while (i < len && n < 8) {
    u32 v = 0; int d = 0;
    while (i < len && d < 4) { int h = hexval(m[i]); if (h < 0) break; v = v << 4 | h; d++; i++; }
    if (!d) return -1;
    g[n++] = v;
    if (i == len) break;
    if (m[i++] != ':') return -1;
    if (i < len && m[i] == ':') { if (gap >= 0) return -1; gap = n; i++; }
  }
  if (i != len || (n < 8 && gap < 0)) return -1;
  u64 s = 0;
  for (int k = 0; k < 8; k++) {
    int from = gap < 0 || k < gap ? k : k - (8 - n);
    u16 v = gap >= 0 && k >= gap && k < gap + 8 - n ? 0 : g[from & 7];
    s = s * 31 + v;
  }
  return s;
}

/* cookies: find one by name */
static const char wanted[] = "session";
SEC("raw/cookie") u64 cookie(u8 *m, u64 len) {
  const u8 *p = m, *end = m + len;
  while (p < end) {
    while (p < end && (*p == ' ' || *p == ';')) p++;
    u32 k = 0;
    while (p < end && k < 7 && *p == wanted[k]) { p++; k++; }
    if (k == 7 && p < end && *p == '=') {
      u64 h = 0; p++;
      while (p < end && *p != ';') h = h * 31 + *p++;
      return h;
    }
    while (p < end && *p != ';') p++;
  }
  return 0;
}

/* UTF-16 to UTF-8 */
SEC("raw/utf16") u64 utf16(u8 *m, u64 len) {
  u8 out[96]; u32 n = 0; const u16 *p = (const u16 *)m, *end = p + len / 2;
  while (p < end) {
    u32 c = *p++;
    if (c >= 0xd800 && c < 0xdc00) { if (p == end || (*p & 0xfc00) != 0xdc00) return -1; c = 0x10000 + ((c & 0x3ff) << 10) + (*p++ & 0x3ff); }
    if (n + 4 > sizeof out) break;
    if (c < 0x80) out[n++] = c;
    else if (c < 0x800) { out[n++] = 0xc0 | c >> 6; out[n++] = 0x80 | (c & 63); }
    else if (c < 0x10000) { out[n++] = 0xe0 | c >> 12; out[n++] = 0x80 | (c >> 6 & 63); out[n++] = 0x80 | (c & 63); }
    else { out[n++] = 0xf0 | c >> 18; out[n++] = 0x80 | (c >> 12 & 63); out[n++] = 0x80 | (c >> 6 & 63); out[n++] = 0x80 | (c & 63); }
  }
  u64 s = 0; for (u32 i = 0; i < n; i++) s = s * 31 + out[i];
  return s;
}
