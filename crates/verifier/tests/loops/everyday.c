// mcpu: v3 v2 v4
//
// Loops as one writes C, bounded by a comparison of a place, by a constant table, by an end that was moved, or by the distance of two pointers.
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used, no_builtin))
#define INL static __attribute__((always_inline)) inline
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

static const u8 following[4][4] = {{0,1,2,3},{1,1,2,0},{2,3,2,0},{3,0,1,3}};
static const u8 cls[16] = {0,1,2,3,0,0,1,2,1,1,3,2,0,3,3,2};
/* a state machine, its tables constant data */
SEC("raw/dfa") u64 dfa(u8 *m, u64 len) { u32 st = 0, hits = 0; for (u64 i = 0; i < len; i++) { st = following[st][cls[m[i] & 15]]; if (st == 3) hits++; } return hits << 8 | st; }

/* header lines of a request */
SEC("raw/http") u64 http(u8 *m, u64 len) {
  u8 *p = m, *end = m + len; u32 hdrs = 0; u64 h = 5381;
  while (p < end && *p != '\n') p++;
  if (p == end) return -1; p++;
  while (p < end && *p != '\r' && *p != '\n') { u8 *name = p; while (p < end && *p != ':' && *p != '\n') p++; if (p == end || *p != ':') return -2; u64 n = p - name; if (n > 64) return -3;
    for (u64 i = 0; i < n; i++) { u8 c = name[i]; if (c >= 'A' && c <= 'Z') c |= 32; h = h * 33 + c; }
    while (p < end && *p != '\n') p++; if (p < end) p++; hdrs++; }
  return h ^ hdrs;
}

/* brackets that match, with a stack of its own */
SEC("raw/json") u64 json(u8 *m, u64 len) {
  u8 stack[32]; u32 depth = 0, strings = 0, max = 0; int instr = 0, esc = 0;
  for (u64 i = 0; i < len; i++) { u8 c = m[i];
    if (instr) { if (esc) esc = 0; else if (c == '\\') esc = 1; else if (c == '"') instr = 0; continue; }
    switch (c) { case '"': instr = 1; strings++; break; case '{': case '[': if (depth >= 32) return -1; stack[depth++] = c; if (depth > max) max = depth; break;
      case '}': if (!depth || stack[--depth] != '{') return -2; break; case ']': if (!depth || stack[--depth] != '[') return -2; break; } }
  return depth ? -3 : strings << 8 | max;
}

struct rule { u32 src, smask, dst, dmask; u16 plo, phi; u8 proto, action, pad[2]; };
/* rules counted by the packet */
SEC("raw/rules") u64 rules(u8 *m, u64 len) {
  if (len < 16) return -1;
  u32 src = *(u32 *)m, dst = *(u32 *)(m + 4); u16 port = *(u16 *)(m + 8); u8 proto = m[10]; u32 n = m[11];
  struct rule *r = (struct rule *)(m + 16); u64 room = (len - 16) / sizeof *r; if (n > room) n = room;
  for (u32 i = 0; i < n; i++) { if ((src & r[i].smask) != r[i].src) continue; if ((dst & r[i].dmask) != r[i].dst) continue; if (port < r[i].plo || port > r[i].phi) continue; if (r[i].proto && r[i].proto != proto) continue; return r[i].action; }
  return 0;
}

#define P1 11400714785074694791ULL
#define P2 14029467366897019727ULL
#define P3 1609587929392839161ULL
#define P4 9650029242287828579ULL
#define P5 2870177450012600261ULL
INL u64 rotl(u64 x, int r) { return (x << r) | (x >> (64 - r)); }
INL u64 r8(const u8 *p) { return *(u64 *)p; }
INL u32 r4(const u8 *p) { return *(u32 *)p; }
INL u64 mix(u64 a, u64 in) { a += in * P2; return rotl(a, 31) * P1; }
/* xxHash64, to an end that is moved */
SEC("raw/xxh64") u64 xxh64(u8 *p, u64 len) {
  u8 *end = p + len; u64 h;
  if (len >= 32) { u8 *limit = end - 32; u64 v1 = P1 + P2, v2 = P2, v3 = 0, v4 = -P1;
    do { v1 = mix(v1, r8(p)); p += 8; v2 = mix(v2, r8(p)); p += 8; v3 = mix(v3, r8(p)); p += 8; v4 = mix(v4, r8(p)); p += 8; } while (p <= limit);
    h = rotl(v1, 1) + rotl(v2, 7) + rotl(v3, 12) + rotl(v4, 18);
  } else h = P5;
  h += len;
  while (p + 8 <= end) { h ^= mix(0, r8(p)); h = rotl(h, 27) * P1 + P4; p += 8; }
  if (p + 4 <= end) { h ^= (u64)r4(p) * P1; h = rotl(h, 23) * P2 + P3; p += 4; }
  while (p < end) { h ^= *p * P5; h = rotl(h, 11) * P1; p++; }
  h ^= h >> 33; h *= P2; h ^= h >> 29; return h;
}

INL int val(u8 c) { if (c >= 'A' && c <= 'Z') return c - 'A'; if (c >= 'a' && c <= 'z') return c - 'a' + 26; if (c >= '0' && c <= '9') return c - '0' + 52; if (c == '+') return 62; if (c == '/') return 63; return -1; }
/* base64 to bytes, counted by itself */
SEC("raw/b64dec") u64 b64dec(u8 *m, u64 len) {
  u8 out[96]; u32 n = 0, acc = 0, bits = 0;
  for (u64 i = 0; i < len && i < 128; i++) {
    if (m[i] == '=') break;
    int v = val(m[i]); if (v < 0) return -1;
    acc = acc << 6 | v; bits += 6;
    if (bits >= 8) { bits -= 8; out[n++] = acc >> bits; if (n == sizeof out) break; }
  }
  u64 s = n; for (u32 i = 0; i < n; i++) s = s * 31 + out[i]; return s;
}

/* insertion sort with a signed index */
SEC("raw/inssort") u64 inssort(u8 *m, u64 len) {
  u32 *a = (u32 *)m; u32 n = len / 4; if (n > 64) n = 64;
  for (u32 i = 1; i < n; i++) { u32 x = a[i]; int j = i - 1; while (j >= 0 && a[j] > x) { a[j + 1] = a[j]; j--; } a[j + 1] = x; }
  u64 s = 0; for (u32 i = 0; i < n; i++) s = s * 31 + a[i]; return s;
}

/* a big number divided, from its upper end */
SEC("raw/bigdiv") u64 bigdiv(u8 *m, u64 len) {
  int n = len / 4; if (len > 256) n = 64; u32 *a = (u32 *)m; u64 rem = 0;
  for (int i = n - 1; i >= 0; i--) { u64 cur = rem << 32 | a[i]; a[i] = cur / 1000000007u; rem = cur % 1000000007u; }
  return rem;
}

/* run lengths, into an array */
SEC("raw/rle") u64 rle(u8 *m, u64 len) {
  u8 out[256]; u64 o = 0;
  for (u64 i = 0; i < len;) { u8 c = m[i]; u64 j = i + 1; while (j < len && m[j] == c && j - i < 255) j++; if (o + 2 > sizeof out) return -1; out[o++] = j - i; out[o++] = c; i = j; }
  u64 s = 0; for (u64 i = 0; i < o; i++) s = s * 31 + out[i]; return s;
}
