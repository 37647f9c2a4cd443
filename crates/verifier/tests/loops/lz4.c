// mcpu: v3 v4
//
// LZ4's blocks: copies whose lengths are bounded by the rest on both sides. Only candidates that assume nothing of accesses suffice.
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used, no_builtin))
typedef __u8 u8;
typedef __u32 u32;
typedef __u64 u64;

SEC("raw")
u64 lz4(u8 *from, u64 len) {
    u8 out[256];
    u32 at = 0, made = 0;
    while (at < len) {
        u32 token = from[at++], literals = token >> 4, match = token & 15;
        if (literals == 15) {
            u8 more;
            do {
                if (at >= len)
                    return -1;
                more = from[at++];
                literals += more;
            } while (more == 255);
        }
        if (literals > len - at || literals > sizeof out - made)
            return -2;
        for (u32 i = 0; i < literals; i++)
            out[made++] = from[at++];
        if (at + 2 > len)
            break;
        u32 back = from[at] | from[at + 1] << 8;
        at += 2;
        if (back == 0 || back > made)
            return -3;
        if (match == 15) {
            u8 more;
            do {
                if (at >= len)
                    return -1;
                more = from[at++];
                match += more;
            } while (more == 255);
        }
        match += 4;
        if (match > sizeof out - made)
            return -4;
        for (u32 i = 0; i < match; i++) {
            out[made] = out[made - back];
            made++;
        }
    }
    u64 sum = made;
    for (u32 i = 0; i < made; i++)
        sum = sum * 131 + out[i];
    return sum;
}
