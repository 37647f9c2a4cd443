//! SYN cookies: sequence numbers with which a server answers a SYN, so that it need not store the connection.
//!
//! Only the process that made a cookie can check it: its key is random, as the kernel's is, so the kernel does not
//! accept it. Layout, age and segment sizes are the kernel's: a cookie is valid for two minutes and encodes one of four
//! sizes.
//!
//! Source: `net/ipv4/syncookies.c`, `net/ipv6/syncookies.c`, `net/core/filter.c` (Linux 6.18).

use crate::call::helpers::skb::{EINVAL, ret};
use crate::num::{index, low};
use bpf_jit_code::RunCtx;
use bpf_os::time::{Clock, now_ns};
use bpf_uapi::Errno;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

/// Segment sizes that a cookie can say, of IPv4 and of IPv6.
const SIZES: [[u16; 4]; 2] = [[536, 1300, 1440, 1460], [1280 - 60, 1480 - 60, 1500 - 60, 9000 - 60]];
/// The maximum segment sizes for a SYN without the option: IPv4, IPv6.
const DEFAULT: [u16; 2] = [536, 1280 - 60];
/// A cookie is good for so many minutes.
const MAX_AGE: u32 = 2;
const TCP_HLEN: usize = 20;

static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The addresses and ports of a connection, as they are in the packet.
#[derive(Hash)]
struct Flow {
    addresses: [u8; 32],
    ports: [u8; 4],
}

impl Flow {
    /// `source_at`: where the addresses begin in the IP header.
    fn new(ip: &[u8], source_at: usize, tcp: &[u8]) -> Flow {
        let mut addresses = [0; 32];
        let both = &ip[source_at..];
        addresses[..both.len()].copy_from_slice(both);
        Flow { addresses, ports: [tcp[0], tcp[1], tcp[2], tcp[3]] }
    }

    fn hash(&self, count: u32, which: u8) -> u32 {
        low(KEY.hash_one((self, count, which)))
    }

    fn cookie(&self, sequence: u32, minute: u32, size: u32) -> u32 {
        let secret = self.hash(minute, 1).wrapping_add(size) & 0x00ff_ffff;
        self.hash(0, 0).wrapping_add(sequence).wrapping_add(minute << 24).wrapping_add(secret)
    }

    /// The size that the cookie says, if it is one.
    fn size(&self, cookie: u32, sequence: u32, minute: u32) -> Option<u32> {
        let cookie = cookie.wrapping_sub(self.hash(0, 0).wrapping_add(sequence));
        let age = minute.wrapping_sub(cookie >> 24) & 0xff;
        let size = cookie.wrapping_sub(self.hash(minute.wrapping_sub(age), 1)) & 0x00ff_ffff;
        (age < MAX_AGE && size < 4).then_some(size)
    }
}

fn minute() -> u32 {
    low(now_ns(Clock::MonotonicCoarse) / 60_000_000_000)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The segment size in a SYN's options; 0 for none (Linux: `tcp_parse_mss_option`).
fn segment_size(options: &[u8]) -> u16 {
    let mut rest = options;
    loop {
        match rest {
            [] | [0, ..] => return 0,
            [1, tail @ ..] => rest = tail,
            [2, 4, high, low, ..] => {
                let size = u16::from_be_bytes([*high, *low]);
                if size != 0 {
                    return size;
                }
                rest = &rest[4..];
            }
            [_, len, ..] if *len >= 2 && usize::from(*len) <= rest.len() => rest = &rest[usize::from(*len)..],
            [_, ..] => return 0,
        }
    }
}

/// The cookie, and above it the segment size.
fn make(version: usize, ip: &[u8], source_at: usize, tcp: &[u8]) -> u64 {
    let size = match segment_size(&tcp[TCP_HLEN..]) {
        0 => DEFAULT[version],
        size => size,
    };
    let sizes = &SIZES[version];
    let said = sizes.iter().rposition(|of| size >= *of).unwrap_or(0);
    let cookie = Flow::new(ip, source_at, tcp).cookie(word(tcp, 4), minute(), crate::num::small(said));
    u64::from(cookie) | u64::from(sizes[said]) << 32
}

fn check(ip: &[u8], source_at: usize, tcp: &[u8]) -> bool {
    let (sequence, cookie) = (word(tcp, 4).wrapping_sub(1), word(tcp, 8).wrapping_sub(1));
    Flow::new(ip, source_at, tcp).size(cookie, sequence, minute()).is_some()
}

/// A copy of a header, whose memory may be shared.
///
/// # Safety
/// `at` must be readable for `N` bytes, or for `len` of them if they are less.
unsafe fn copy<const N: usize>(at: u64, len: usize) -> [u8; N] {
    let mut bytes = [0; N];
    // SAFETY: the caller's promise.
    unsafe { core::ptr::copy_nonoverlapping(at as *const u8, bytes.as_mut_ptr(), len.min(N)) };
    bytes
}

/// # Safety
/// `ip` must be readable for `N` bytes and `tcp` for `len`.
unsafe fn generate<const N: usize>(version: usize, ip: u64, source_at: usize, tcp: u64, len: u64) -> u64 {
    let len = index(u64::from(low(len)));
    if len < TCP_HLEN {
        return ret(Err(EINVAL));
    }
    // SAFETY: the caller's promise.
    let ip = unsafe { copy::<N>(ip, N) };
    // SAFETY: the caller promises so many readable bytes; a header has 60 at most.
    let tcp = unsafe { copy::<60>(tcp, len) };
    if len != usize::from(tcp[12] >> 4) * 4 {
        return ret(Err(EINVAL));
    }
    make(version, &ip, source_at, &tcp[..len])
}

/// # Safety
/// `ip` must be readable for `N` bytes and `tcp` for 20.
unsafe fn verify<const N: usize>(ip: u64, source_at: usize, tcp: u64) -> u64 {
    // SAFETY: the caller's promise.
    let ip = unsafe { copy::<N>(ip, N) };
    // SAFETY: the caller promises so many readable bytes.
    let tcp = unsafe { copy::<TCP_HLEN>(tcp, TCP_HLEN) };
    if check(&ip, source_at, &tcp) { 0 } else { ret(Err(Errno::EACCES)) }
}

/// `bpf_tcp_raw_gen_syncookie_ipv4(iph, th, th_len)`.
///
/// # Safety
/// `ip` must be readable for 20 bytes, `tcp` for `len`.
pub(super) unsafe extern "C" fn gen_ipv4(ip: u64, tcp: u64, len: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { generate::<20>(0, ip, 12, tcp, len) }
}

/// `bpf_tcp_raw_gen_syncookie_ipv6(iph, th, th_len)`.
///
/// # Safety
/// `ip` must be readable for 40 bytes, `tcp` for `len`.
pub(super) unsafe extern "C" fn gen_ipv6(ip: u64, tcp: u64, len: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { generate::<40>(1, ip, 8, tcp, len) }
}

/// `bpf_tcp_raw_check_syncookie_ipv4(iph, th)`.
///
/// # Safety
/// `ip` and `tcp` must be readable for 20 bytes.
pub(super) unsafe extern "C" fn check_ipv4(ip: u64, tcp: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { verify::<20>(ip, 12, tcp) }
}

/// `bpf_tcp_raw_check_syncookie_ipv6(iph, th)`.
///
/// # Safety
/// `ip` must be readable for 40 bytes, `tcp` for 20.
pub(super) unsafe extern "C" fn check_ipv6(ip: u64, tcp: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { verify::<40>(ip, 8, tcp) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_good_for_its_flow_and_its_time() {
        let flow = Flow { addresses: [7; 32], ports: [1, 2, 3, 4] };
        let other = Flow { addresses: [7; 32], ports: [1, 2, 3, 5] };
        for minute in [0, 1, 255, 256, u32::MAX] {
            let cookie = flow.cookie(1234, minute, 3);
            assert_eq!(flow.size(cookie, 1234, minute), Some(3));
            assert_eq!(flow.size(cookie, 1234, minute.wrapping_add(1)), Some(3));
            assert_eq!(flow.size(cookie, 1234, minute.wrapping_add(2)), None);
            assert_eq!(other.size(cookie, 1234, minute), None, "by a chance of 1 in 2^30");
        }
    }

    #[test]
    fn options_are_read_to_their_end() {
        assert_eq!(segment_size(&[1, 2, 4, 5, 180]), 1460);
        assert_eq!(segment_size(&[3, 3, 7, 2, 4, 2, 24]), 536);
        for none in [&[][..], &[0, 2, 4, 5, 180], &[2, 4, 5], &[3, 0, 2, 4, 5, 180], &[3, 1], &[2], &[5, 200, 1]] {
            assert_eq!(segment_size(none), 0, "{none:?}");
        }
    }
}
