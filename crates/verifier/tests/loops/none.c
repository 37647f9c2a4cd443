// mcpu: v3 v2 v4
//
// Places that say "none" by one number: an index that is -1 until something is found, a pointer that is null until
// then. In each round it is none, or an index below the length: not a number between the two.
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used, no_builtin))
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __s64 s64;
typedef __u64 u64;

/* what follows the last dot of a name */
SEC("raw/extension") u64 extension(u8 *m, u64 len) {
  int last = -1;
  for (int i = 0; i < (int)len; i++)
    if (m[i] == '.') last = i;
  return last >= 0 ? m[last] : 0;
}

/* a size with ~0 */
SEC("raw/extension_size") u64 extension_size(u8 *m, u64 len) {
  u64 last = ~0ull;
  for (u64 i = 0; i < len; i++)
    if (m[i] == '.') last = i;
  if (last == ~0ull) return 0;
  return m[last];
}

/* 32 bits */
SEC("raw/last_u32") u64 last_u32(u8 *m, u64 len) {
  u32 n = len, last = 0xffffffff;
  if (len > 1 << 20) return 0;
  for (u32 i = 0; i < n; i++)
    if (m[i] == '.') last = i;
  if (last != 0xffffffff) m[last] = 0;
  return last;
}

/* the part of a path after its last slash, by pointer */
SEC("raw/basename") u64 basename(u8 *m, u64 len) {
  const u8 *end = m + len, *last = 0;
  for (const u8 *p = m; p < end; p++)
    if (*p == '/') last = p;
  return last ? *last : 0;
}

/* hash of the bytes behind the last slash */
SEC("raw/after_slash") u64 after_slash(u8 *m, u64 len) {
  u8 *end = m + len, *slash = 0;
  u64 hash = 0;
  for (u8 *p = m; p < end; p++)
    if (*p == '/') slash = p;
  if (!slash) return 0;
  for (u8 *p = slash + 1; p < end; p++) hash = hash * 31 + *p;
  return hash;
}

/* wildcards: the pattern is the first part, goes back to the last star */
SEC("raw/wildcard") u64 wildcard(u8 *m, u64 len) {
  if (len < 2) return 0;
  int plen = m[0], n = m[1];
  if (2 + plen + n > (int)len) return 0;
  u8 *pat = m + 2, *s = m + 2 + plen;
  int p = 0, i = 0, star = -1, mark = 0;
  while (i < n) {
    if (p < plen && (pat[p] == '?' || pat[p] == s[i])) {
      p++;
      i++;
    } else if (p < plen && pat[p] == '*') {
      star = p++;
      mark = i;
    } else if (star >= 0) {
      p = star + 1;
      i = ++mark;
    } else {
      return 0;
    }
  }
  while (p < plen && pat[p] == '*') p++;
  return p == plen;
}

/* the same by long */
SEC("raw/wildcard_long") u64 wildcard_long(u8 *m, u64 len) {
  if (len < 64) return 0;
  s64 plen = 32, n = len - 32, p = 0, i = 0, star = -1, mark = 0;
  u8 *s = m + 32;
  while (i < n) {
    if (p < plen && m[p] == '*') {
      star = p++;
      mark = i;
    } else if (p < plen && (m[p] == '?' || m[p] == s[i])) {
      p++;
      i++;
    } else if (star != -1) {
      p = star + 1;
      i = ++mark;
    } else {
      return 0;
    }
  }
  return p;
}

/* by pointers */
SEC("raw/wildcard_ptr") u64 wildcard_ptr(u8 *m, u64 len) {
  if (len < 64) return 0;
  const u8 *p = m, *pend = m + 16, *s = m + 16, *end = m + len, *star = 0, *mark = 0;
  while (s < end) {
    if (p < pend && *p == '*') {
      star = ++p;
      mark = s;
    } else if (p < pend && (*p == '?' || *p == *s)) {
      p++;
      s++;
    } else if (star) {
      p = star;
      s = ++mark;
    } else {
      return 0;
    }
  }
  return 1;
}

/* the longest word: start is -1 outside of one */
SEC("raw/longest_word") u64 longest_word(u8 *m, u64 len) {
  int start = -1, best = 0, best_at = 0;
  for (int i = 0; i < (int)len; i++) {
    if (m[i] != ' ') {
      if (start < 0) start = i;
    } else {
      if (start >= 0 && i - start > best) {
        best = i - start;
        best_at = start;
      }
      start = -1;
    }
  }
  return best ? m[best_at] : 0;
}

/* the longest run of digits, with long, read at its beginning */
SEC("raw/longest_run") u64 longest_run(u8 *m, u64 len) {
  s64 start = -1, best = -1;
  u64 most = 0;
  for (u64 i = 0; i < len; i++) {
    if (m[i] >= '0' && m[i] <= '9') {
      if (start < 0) start = i;
      if (i - start >= most) {
        most = i - start;
        best = start;
      }
    } else {
      start = -1;
    }
  }
  return best >= 0 ? m[best] : 0;
}

/* words are hashed where they end */
SEC("raw/words") u64 words(u8 *m, u64 len) {
  u64 sum = 0;
  int start = -1;
  for (int i = 0; i < (int)len; i++) {
    if (m[i] != ' ') {
      if (start == -1) start = i;
    } else if (start != -1) {
      sum += m[start] * 256 + (i - start);
      start = -1;
    }
  }
  if (start != -1) sum += m[start];
  return sum;
}

/* the first match is kept */
SEC("raw/first") u64 first(u8 *m, u64 len) {
  int found = -1;
  u64 colons = 0;
  for (int i = 0; i < (int)len; i++) {
    if (m[i] != ':') continue;
    colons++;
    if (found < 0) found = i;
  }
  return found < 0 ? 0 : colons * 256 + m[found];
}

/* the first, by long, and what is before it */
SEC("raw/first_long") u64 first_long(u8 *m, u64 len) {
  s64 found = -1;
  u64 sum = 0;
  for (u64 i = 0; i < len; i++) {
    if (m[i] == ':' && found == -1) found = i;
    sum += m[i];
  }
  if (found != -1)
    for (s64 i = 0; i < found; i++) sum ^= m[i];
  return sum;
}

/* where the least and the greatest byte is */
SEC("raw/extremes") u64 extremes(u8 *m, u64 len) {
  int lo = -1, hi = -1;
  for (int i = 0; i < (int)len; i++) {
    if (lo < 0 || m[i] < m[lo]) lo = i;
    if (hi < 0 || m[i] > m[hi]) hi = i;
  }
  if (lo < 0 || hi < 0) return 0;
  u8 t = m[lo];
  m[lo] = m[hi];
  m[hi] = t;
  return 1;
}

/* index of the least, by long */
SEC("raw/least") u64 least(u8 *m, u64 len) {
  s64 min = -1;
  for (u64 i = 0; i < len; i++)
    if (m[i] > 32 && (min == -1 || m[i] < m[min])) min = i;
  return min >= 0 ? m[min] : 256;
}

/* a parser: where the name and the value begin, -1 until seen */
SEC("raw/pairs") u64 pairs(u8 *m, u64 len) {
  int key = -1, value = -1;
  u64 sum = 0;
  for (int i = 0; i < (int)len; i++) {
    if (m[i] == '=' && key >= 0) {
      value = i + 1;
    } else if (m[i] == '&') {
      if (key >= 0 && value >= 0) sum += m[key] ^ m[value];
      key = value = -1;
    } else if (key < 0) {
      key = i;
    }
  }
  return sum;
}

/* a null pointer outside of quotes */
SEC("raw/quotes") u64 quotes(u8 *m, u64 len) {
  u8 *end = m + len, *quote = 0;
  u64 sum = 0;
  for (u8 *p = m; p < end; p++) {
    if (*p != '"') continue;
    if (quote) {
      sum += *quote;
      quote = 0;
    } else {
      quote = p;
    }
  }
  return sum;
}

/* where an extension begins that is behind the last slash */
SEC("raw/suffix") u64 suffix(u8 *m, u64 len) {
  int dot = -1;
  u64 hash = 0;
  for (int i = 0; i < (int)len; i++) {
    if (m[i] == '/')
      dot = -1;
    else if (m[i] == '.')
      dot = i;
  }
  if (dot == -1) return 0;
  for (int i = dot + 1; i < (int)len; i++) hash = hash * 33 + m[i];
  return hash;
}

/* without blanks at both ends */
SEC("raw/trimmed") u64 trimmed(u8 *m, u64 len) {
  s64 first = -1, last = -1;
  u64 hash = 0;
  for (u64 i = 0; i < len; i++) {
    if (m[i] == ' ') continue;
    if (first < 0) first = i;
    last = i;
  }
  if (first < 0) return 0;
  for (s64 i = first; i <= last; i++) hash = hash * 31 + m[i];
  return hash;
}

/* names and values of a query, by pointers that are null until they are seen */
SEC("raw/query") u64 query(u8 *m, u64 len) {
  const u8 *end = m + len, *key = 0, *value = 0;
  u64 sum = 0;
  for (const u8 *p = m; p < end; p++) {
    if (*p == '&') {
      if (key && value) sum += *key + *value;
      key = value = 0;
    } else if (*p == '=') {
      value = p;
    } else if (!key) {
      key = p;
    }
  }
  return sum;
}

/* how far marks are apart, written where the one before was */
SEC("raw/gaps") u64 gaps(u8 *m, u64 len) {
  int before = -1;
  u64 most = 0;
  for (int i = 0; i < (int)len; i++) {
    if (m[i] != 1) continue;
    if (before >= 0) {
      u64 gap = i - before;
      if (gap > most) most = gap;
      m[before] = gap;
    }
    before = i;
  }
  return most;
}

/* the last comma, in 16 bits */
SEC("raw/comma") u64 comma(u8 *m, u64 len) {
  u16 at = 0xffff;
  if (len > 60000) return 0;
  for (u32 i = 0; i < len; i++)
    if (m[i] == ',') at = i;
  if (at == 0xffff) return 0;
  return m[at];
}
