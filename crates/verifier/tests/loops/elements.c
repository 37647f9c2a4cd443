// mcpu: v3 v4
//
// Arrays on the stack whose elements are indices: a walk of its own knows what is true of each of them. And loops that halve an index, or stand beside a hash.
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used, no_builtin))
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

/* sets of numbers, joined by pairs */
SEC("raw/sets") u64 sets(u8 *m, u64 len) {
  u8 parent[64]; int left = 64;
  for (int i = 0; i < 64; i++) parent[i] = i;
  for (u64 i = 0; i + 1 < len; i += 2) {
    u32 a = m[i] & 63, b = m[i + 1] & 63; int n = 0;
    while (parent[a] != a && n++ < 64) a = parent[a];
    n = 0;
    while (parent[b] != b && n++ < 64) b = parent[b];
    if (a != b) { parent[a] = b; left--; }
  }
  return left;
}

/* breadth first over a graph of 32 nodes, given as bits */
SEC("raw/breadth") u64 breadth(u8 *m, u64 len) {
  if (len < 32 * 4) return -1;
  const u32 *adj = (const u32 *)m;
  u8 queue[32], dist[32]; int head = 0, tail = 0; u32 seen = 1;
  queue[tail++] = 0; dist[0] = 0;
  while (head < tail) {
    int u = queue[head++];
    for (int v = 0; v < 32; v++)
      if ((adj[u] >> v & 1) && !(seen >> v & 1)) { seen |= 1u << v; dist[v] = dist[u] + 1; if (tail < 32) queue[tail++] = v; }
  }
  u32 s = 0; for (int i = 0; i < tail; i++) s += dist[queue[i]];
  return s;
}

/* a free list in an array */
struct cell { u8 next, value; };
SEC("raw/list") u64 list(u8 *m, u64 len) {
  struct cell c[32]; u32 first = 0, n = 0; u64 s = 0;
  for (u32 i = 0; i < 32; i++) { c[i].next = (i + 1) & 31; c[i].value = 0; }
  for (u64 i = 0; i < len; i++) { u32 at = c[first].next; c[first].value = m[i]; c[first].next = m[i] & 31; first = at; n++; }
  for (u32 i = 0, at = first; i < 32; i++) { s = s * 31 + c[at].value; at = c[at].next; }
  return s + n;
}

/* numbers put into a heap */
SEC("raw/rise") u64 rise(u8 *m, u64 len) {
  u32 heap[16]; if (len < 8) return 0; int i = m[0] & 15; u32 p = *(u32 *)(m + 4);
  for (int j = 0; j < 16; j++) heap[j] = j;
  while (i > 0 && heap[(i - 1) / 2] > p) { heap[i] = heap[(i - 1) / 2]; i = (i - 1) / 2; }
  heap[i] = p;
  return heap[3];
}

/* Adler-32 in blocks, and a shift register beside it */
SEC("raw/adler_lfsr") u64 adler_lfsr(const u8 *p, u64 n) {
  u32 a = 1, b = 0, x = 2463534242u; u16 l = 0xace1;
  while (n > 0) {
    u64 k = n < 3800 ? n : 3800; n -= k;
    do { a += *p++; b += a; } while (--k);
    a %= 65521; b %= 65521; x ^= x << 13; x ^= x >> 17; x ^= x << 5;
    for (int i = 0; i < 8; i++) { u32 bit = (l ^ l >> 2 ^ l >> 3 ^ l >> 5) & 1; l = l >> 1 | bit << 15; }
  }
  return ((u64)b << 16 | a) ^ x ^ l;
}
