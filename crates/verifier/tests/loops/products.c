// mcpu: v3 v2 v4
//
// Tables whose width is a variable: rows begin at products of two numbers.
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used, no_builtin))
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

#define N 64
u32 A[N * N], B[N * N], C[N * N];
u8 img[N * N];

/* product of two matrices */
SEC("raw/matmul") u64 matmul(u8 *m, u64 len) {
  if (len < 1) return -1;
  u32 n = m[0];
  if (n > N) return -2;
  for (u32 i = 0; i < n; i++)
    for (u32 j = 0; j < n; j++) {
      u32 s = 0;
      for (u32 k = 0; k < n; k++) s += A[i * n + k] * B[k * n + j];
      C[i * n + j] = s;
    }
  return C[0];
}

/* Floyd and Warshall's distances */
SEC("raw/floyd") u64 floyd(u8 *m, u64 len) {
  if (len < 1) return -1;
  u32 n = m[0];
  if (n > N) return -2;
  for (u32 k = 0; k < n; k++)
    for (u32 i = 0; i < n; i++)
      for (u32 j = 0; j < n; j++) {
        u32 d = A[i * n + k] + A[k * n + j];
        if (d < A[i * n + j]) A[i * n + j] = d;
      }
  return A[1];
}

/* rows x columns in an array that is as large as both may be */
SEC("raw/image") u64 image(u8 *m, u64 len) {
  if (len < 2) return -1;
  u32 rows = m[0], cols = m[1];
  if (rows > N || cols > N) return -2;
  u64 s = 0;
  for (u32 y = 0; y < rows; y++)
    for (u32 x = 0; x < cols; x++) s += img[y * cols + x];
  return s;
}

/* rows x columns of a body, which says how large it is */
SEC("raw/body") u64 body(u8 *m, u64 len) {
  if (len < 2) return -1;
  u32 rows = m[0], cols = m[1];
  if ((u64)rows * cols > len - 2) return -2;
  u8 *p = m + 2;
  u64 s = 0;
  for (u32 y = 0; y < rows; y++)
    for (u32 x = 0; x < cols; x++) s += p[y * cols + x];
  return s;
}

/* n x n words */
SEC("raw/rowsums") u64 rowsums(u8 *m, u64 len) {
  if (len < 4) return -1;
  u32 n = m[0];
  if (4 + (u64)n * n * 4 > len) return -2;
  u32 *a = (u32 *)(m + 4);
  u64 best = 0;
  for (u32 i = 0; i < n; i++) {
    u64 s = 0;
    for (u32 j = 0; j < n; j++) s += a[i * n + j];
    if (s > best) best = s;
  }
  return best;
}

/* column by column */
SEC("raw/colsums") u64 colsums(u8 *m, u64 len) {
  if (len < 2) return -1;
  u32 rows = m[0], cols = m[1];
  if (2 + rows * cols > len) return -2;
  u8 *a = m + 2;
  u64 best = 0;
  for (u32 j = 0; j < cols; j++) {
    u64 s = 0;
    for (u32 i = 0; i < rows; i++) s += a[i * cols + j];
    if (s > best) best = s;
  }
  return best;
}

/* records of a length that the body says */
SEC("raw/records") u64 records(u8 *m, u64 len) {
  if (len < 2) return -1;
  u32 n = m[0], size = m[1];
  if (size < 4) return -2;
  if (len - 2 < (u64)n * size) return -3;
  u64 s = 0;
  for (u32 i = 0; i < n; i++) {
    u8 *r = m + 2 + i * size;
    s += *(u32 *)r;
  }
  return s;
}

/* matrix times a vector of the body */
SEC("raw/matvec") u64 matvec(u8 *m, u64 len) {
  if (len < 2) return -1;
  u32 r = m[0], c = m[1];
  if (r > N || c > N) return -2;
  if (len < 2 + c) return -3;
  u8 *v = m + 2;
  u64 x = 0;
  for (u32 i = 0; i < r; i++) {
    u32 s = 0;
    for (u32 j = 0; j < c; j++) s += A[i * c + j] * v[j];
    x ^= s;
  }
  return x;
}

/* transposition, of which both sizes are variables */
SEC("raw/transpose") u64 transpose(u8 *m, u64 len) {
  if (len < 2) return -1;
  u32 r = m[0], c = m[1];
  if (r > N || c > N) return -2;
  for (u32 i = 0; i < r; i++)
    for (u32 j = 0; j < c; j++) B[j * r + i] = A[i * c + j];
  return B[1];
}

/* vectors of words, as long as the body says: the greatest */
SEC("raw/vectors") u64 vectors(u8 *m, u64 len) {
  if (len < 8) return -1;
  u32 n = *(u16 *)m, dim = *(u16 *)(m + 2);
  if ((u64)n * dim * 2 > len - 8) return -2;
  u16 *v = (u16 *)(m + 8);
  u64 best = 0;
  for (u32 i = 0; i < n; i++) {
    u64 d = 0;
    for (u32 j = 0; j < dim; j++) {
      u32 x = v[i * dim + j];
      d += x * x;
    }
    if (d > best) best = d;
  }
  return best;
}

/* the first string that fills its field, of a table of fields */
SEC("raw/fields") u64 fields(u8 *m, u64 len) {
  if (len < 2) return -1;
  u32 n = m[0], w = m[1];
  if (2 + (u64)n * w > len) return -2;
  if (!w) return -3;
  for (u32 i = 0; i < n; i++) {
    const u8 *e = m + 2 + i * w;
    u32 k = 0;
    while (k < w && e[k]) k++;
    if (k == w) return i;
  }
  return -1;
}
