//! The helpers on sockets: the kernel's, by the kernel's ids.
//!
//! A look-up asks the host ([`Network::socket`](crate::net::Network::socket)) and hands the program a counted
//! reference, which the run notes until the program gives it back. A program's pointer to a socket is the address of a
//! [`Socket`], whose first field is what it reads.
//!
//! Source: `net/core/filter.c` (Linux 6.18).

use crate::abi::run::Run;
use crate::call::helpers::network::ask;
use crate::call::helpers::skb::{EINVAL, ret};
use crate::context::network::Network;
use crate::context::sk_lookup::SkLookupBuff;
use crate::context::skb::SkBuff;
use crate::context::sock_addr::{SockAddrBuff, SockBuff};
use crate::context::sock_ops::SockOpsBuff;
use crate::context::socket::{Socket, SocketLookup};
use crate::num::{index, low};
use bpf_jit_code::RunCtx;
use bpf_maps::{MapHeader, program as map_ops};
use bpf_uapi::Errno;
use bpf_uapi::flags::local_storage;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The socket behind a program's pointer.
///
/// # Safety
/// `at` must be the address of a socket that the program was given and has not given back.
unsafe fn socket<'a>(at: u64) -> &'a Socket {
    // SAFETY: the verifier admits as a socket only what a look-up or the context has given, which the run's reference,
    // or the context's, keeps.
    unsafe { &*(at as *const Socket) }
}

fn pointer(socket: &Socket) -> u64 {
    core::ptr::from_ref(socket).expose_provenance() as u64
}

/// `struct bpf_sock_tuple`: both addresses and both ports; `None` for a length of neither family.
///
/// # Safety
/// `at` must be readable for `len` bytes.
unsafe fn tuple(at: u64, len: u64) -> Option<(SocketAddr, SocketAddr)> {
    const V4: usize = 12;
    const V6: usize = 36;
    let len = index(len);
    if len != V4 && len != V6 {
        return None;
    }
    let mut bytes = [0u8; V6];
    // SAFETY: the caller says that so many bytes are readable; copied at once, because the memory may be shared.
    unsafe { core::ptr::copy_nonoverlapping(at as *const u8, bytes.as_mut_ptr(), len) };
    let port = |i: usize| u16::from_be_bytes([bytes[i], bytes[i + 1]]);
    let v4 = |i: usize| Ipv4Addr::new(bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]);
    let v6 = |i: usize| {
        let mut address = [0; 16];
        address.copy_from_slice(&bytes[i..i + 16]);
        Ipv6Addr::from(address)
    };
    Some(match len {
        V4 => ((v4(0), port(8)).into(), (v4(4), port(10)).into()),
        _ => ((v6(0), port(32)).into(), (v6(16), port(34)).into()),
    })
}

/// Looks a socket up; 0 for none. A run can hold as many sockets as records; beyond that, the look-up finds none.
///
/// # Safety
/// As [`ask`]; `at` must be readable for `len` bytes.
unsafe fn lookup(protocol: u8, only_full: bool, [at, len, namespace, flags]: [u64; 4], run: *mut RunCtx) -> u64 {
    // `BPF_F_CURRENT_NETNS` is -1, as 32 or as 64 bits.
    let namespace = match namespace {
        u64::MAX => None,
        n if n == u64::from(u32::MAX) => None,
        n if n <= i32::MAX as u64 => Some(low(n)),
        _ => return 0,
    };
    // SAFETY: the caller's promise.
    let Some((source, destination)) = (unsafe { tuple(at, len) }).filter(|_| flags == 0) else { return 0 };
    let question = SocketLookup { protocol, source, destination, namespace };
    // SAFETY: `run` is the running program's hidden argument, and this frame holds nothing to drop.
    unsafe { hand_out(run, |network| network.socket(&question).filter(|socket| !only_full || socket.is_full())) }
}

/// The socket that an entry of a map of sockets stands for; 0 for none.
///
/// # Safety
/// As [`ask`].
pub(super) unsafe fn numbered(number: u64, run: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { hand_out(run, |network| network.socket_by_number(number)) }
}

/// Gives the program a socket that the host answers with, which the run notes until it is given back.
///
/// # Safety
/// As [`ask`].
unsafe fn hand_out(run: *mut RunCtx, question: impl FnOnce(&dyn Network) -> Option<Arc<Socket>>) -> u64 {
    // SAFETY: the hidden argument is the first field of a `Run`; nobody else uses it during the call.
    if !unsafe { &*run.cast::<Run>() }.held.has_room() {
        return 0;
    }
    let mut found = 0;
    // SAFETY: `run` is the running program's hidden argument, and this frame holds nothing to drop.
    unsafe {
        ask(run, |network| {
            let socket = question(network);
            found = socket.map_or(0, |socket| Arc::into_raw(socket).expose_provenance() as u64);
            Ok(0)
        })
    };
    if found != 0 {
        // SAFETY: the hidden argument is the first field of a `Run`; the question is over.
        unsafe { &mut *run.cast::<Run>() }.held.add_socket(found);
    }
    found
}

/// `bpf_sk_lookup_tcp(ctx, tuple, tuple_size, netns, flags)`.
///
/// # Safety
/// `at` must be readable for `len` bytes, the last argument the running program's hidden one.
pub(super) unsafe extern "C" fn sk_lookup_tcp(_: u64, at: u64, len: u64, ns: u64, flags: u64, run: *mut RunCtx) -> u64 {
    // SAFETY: the arguments are passed on as the program gave them.
    unsafe { lookup(TCP, true, [at, len, ns, flags], run) }
}

/// `bpf_sk_lookup_udp(ctx, tuple, tuple_size, netns, flags)`.
///
/// # Safety
/// As [`sk_lookup_tcp`].
pub(super) unsafe extern "C" fn sk_lookup_udp(_: u64, at: u64, len: u64, ns: u64, flags: u64, run: *mut RunCtx) -> u64 {
    // SAFETY: the arguments are passed on as the program gave them.
    unsafe { lookup(UDP, true, [at, len, ns, flags], run) }
}

/// `bpf_skc_lookup_tcp(ctx, tuple, tuple_size, netns, flags)`: also what is no full socket.
///
/// # Safety
/// As [`sk_lookup_tcp`].
pub(super) unsafe extern "C" fn skc_lookup_tcp(
    _: u64,
    at: u64,
    len: u64,
    ns: u64,
    flags: u64,
    run: *mut RunCtx,
) -> u64 {
    // SAFETY: the arguments are passed on as the program gave them.
    unsafe { lookup(TCP, false, [at, len, ns, flags], run) }
}

/// `bpf_sk_release(sk)`.
///
/// # Safety
/// `at` must be a socket that the run has looked up and still holds, the last argument its hidden one.
pub(super) unsafe extern "C" fn sk_release(at: u64, _: u64, _: u64, _: u64, _: u64, run: *mut RunCtx) -> u64 {
    // SAFETY: the hidden argument is the first field of a `Run`; nobody else uses it during the call.
    let held = unsafe { &mut *run.cast::<Run>() };
    if !held.held.remove_socket(at) {
        return ret(Err(EINVAL));
    }
    let socket = core::ptr::with_exposed_provenance::<Socket>(index(at));
    // SAFETY: a reference that `lookup` has leaked, and that is off the list: taken back once.
    let socket = unsafe { Arc::from_raw(socket) };
    let release = |_: &dyn Network| {
        // The host's destructor may run here, and panic.
        drop(socket);
        Ok(0)
    };
    // SAFETY: `run` is the hidden argument, and this frame holds nothing else to drop.
    unsafe { ask(run, release) }
}

/// `bpf_sk_fullsock(sk)`: the same, if it is a full socket.
///
/// # Safety
/// See [`socket`].
pub(super) unsafe extern "C" fn sk_fullsock(at: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the verifier has proven that the program was given the socket at `at` and has not given it back.
    if unsafe { socket(at) }.is_full() { at } else { 0 }
}

/// `bpf_tcp_sock(sk)`.
///
/// # Safety
/// See [`socket`].
pub(super) unsafe extern "C" fn tcp_sock(at: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the verifier has proven that the program was given the socket at `at` and has not given it back.
    let socket = unsafe { socket(at) };
    let fields = socket.tcp.as_ref().filter(|_| socket.is_full());
    fields.map_or(0, |fields| core::ptr::from_ref(fields).expose_provenance() as u64)
}

/// `bpf_get_listener_sock(sk)`.
///
/// # Safety
/// See [`socket`].
pub(super) unsafe extern "C" fn get_listener_sock(at: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the verifier has proven that the program was given the socket at `at` and has not given it back.
    let socket = unsafe { socket(at) };
    if socket.is_listening() {
        return at;
    }
    socket.listener.as_deref().filter(|listener| listener.is_listening()).map_or(0, pointer)
}

/// The context of a program on `__sk_buff`.
///
/// # Safety
/// `context` must be that of a running program on [`Skb`](crate::net::Skb).
unsafe fn skb<'a>(context: u64) -> &'a mut SkBuff<'a> {
    // SAFETY: the linker binds these helpers to programs on `Skb` only, and the verifier admits only their context as
    // the first argument; emitted code waits for the call.
    unsafe { &mut *(context as *mut SkBuff<'a>) }
}

/// `bpf_get_socket_cookie(skb)`: 0 for a packet of no socket.
///
/// # Safety
/// See [`skb`].
pub(super) unsafe extern "C" fn skb_get_socket_cookie(
    context: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: *mut RunCtx,
) -> u64 {
    // SAFETY: the verifier has proven `context` to be the context of the running program.
    unsafe { skb(context) }.socket.as_deref().map_or(0, |socket| socket.cookie)
}

/// `bpf_get_socket_uid(skb)`: `overflowuid` for a packet of no full socket.
///
/// # Safety
/// See [`skb`].
pub(super) unsafe extern "C" fn get_socket_uid(context: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    const OVERFLOW_UID: u64 = 65534;
    // SAFETY: the verifier has proven `context` to be the context of the running program.
    let socket = unsafe { skb(context) }.socket.as_deref().filter(|socket| socket.is_full());
    socket.map_or(OVERFLOW_UID, |socket| socket.uid.into())
}

/// `bpf_sk_assign(skb, sk, flags)`: the packet is for that socket, which is left to the host.
///
/// # Safety
/// See [`skb`] and [`socket`].
pub(super) unsafe extern "C" fn skb_sk_assign(
    context: u64,
    at: u64,
    flags: u64,
    _: u64,
    _: u64,
    run: *mut RunCtx,
) -> u64 {
    if at == 0 || flags != 0 {
        return ret(Err(EINVAL));
    }
    let socket = core::ptr::with_exposed_provenance::<Socket>(index(at));
    // SAFETY: the verifier has proven that the pointer came of an `Arc`, which is still held.
    unsafe { Arc::increment_strong_count(socket) };
    // SAFETY: the reference that was just counted.
    let socket = unsafe { Arc::from_raw(socket) };
    // SAFETY: the verifier has proven `context` to be the context of the running program.
    let skb = unsafe { skb(context) };
    let assign = |_: &dyn Network| {
        // This drops the socket that was assigned before: the host's destructor may panic.
        skb.assigned = Some(socket);
        Ok(0)
    };
    // SAFETY: `run` is the hidden argument, and this frame holds nothing else to drop.
    unsafe { ask(run, assign) }
}

/// `bpf_sk_assign(ctx, sk, flags)` of a program that chooses a socket: chooses `sk`, or no socket for 0.
///
/// # Safety
/// The first argument must be the context of the running program on [`SkLookup`](crate::net::SkLookup), the last its
/// hidden one; `at` must be 0 or as in [`socket`].
pub(super) unsafe extern "C" fn lookup_sk_assign(
    context: u64,
    at: u64,
    flags: u64,
    _: u64,
    _: u64,
    run: *mut RunCtx,
) -> u64 {
    let socket = (at != 0).then(|| {
        let socket = core::ptr::with_exposed_provenance::<Socket>(index(at));
        // SAFETY: the verifier has proven that the pointer came of an `Arc`, which is still held.
        unsafe { Arc::increment_strong_count(socket) };
        // SAFETY: the reference that was just counted.
        unsafe { Arc::from_raw(socket) }
    });
    // SAFETY: the linker binds this to programs on that context only, and the verifier admits only theirs.
    let lookup = unsafe { &mut *(context as *mut SkLookupBuff) };
    // SAFETY: `run` is the hidden argument, and this frame holds nothing else to drop.
    unsafe { ask(run, |_| lookup.assign(socket, flags)) }
}

/// `bpf_get_socket_cookie(ctx)` of a program on a socket.
///
/// # Safety
/// `context` must be that of a running program on [`Sock`](crate::net::Sock).
pub(super) unsafe extern "C" fn sock_get_socket_cookie(
    context: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: *mut RunCtx,
) -> u64 {
    // SAFETY: the linker binds this to programs on that context only, and the verifier admits only theirs.
    unsafe { &*(context as *const SockBuff) }.cookie
}

/// `bpf_get_socket_cookie(ctx)` of a program on an address.
///
/// # Safety
/// `context` must be that of a running program on [`SockAddr`](crate::net::SockAddr).
pub(super) unsafe extern "C" fn addr_get_socket_cookie(
    context: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: *mut RunCtx,
) -> u64 {
    // SAFETY: the linker binds this to programs on that context only, and the verifier admits only theirs.
    unsafe { &*(context as *const SockAddrBuff) }.socket.as_deref().map_or(0, |socket| socket.cookie)
}

/// The context of a program on `bpf_sock_ops`.
///
/// # Safety
/// `context` must be that of a running program on [`SockOps`](crate::net::SockOps).
unsafe fn sock_ops<'a>(context: u64) -> &'a mut SockOpsBuff {
    // SAFETY: the linker binds these helpers to programs on that context only, and the verifier admits only theirs as
    // the first argument; emitted code waits for the call.
    unsafe { &mut *(context as *mut SockOpsBuff) }
}

/// `bpf_get_socket_cookie(ctx)` of a program that is told of a connection.
///
/// # Safety
/// See [`sock_ops`].
pub(super) unsafe extern "C" fn ops_get_socket_cookie(
    context: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: *mut RunCtx,
) -> u64 {
    // SAFETY: the verifier has proven `context` to be the context of the running program.
    unsafe { sock_ops(context) }.socket.as_deref().map_or(0, |socket| socket.cookie)
}

/// `bpf_sock_ops_cb_flags_set(ctx, flags)`: those of the flags that do not exist, as an `int`.
///
/// # Safety
/// See [`sock_ops`].
pub(super) unsafe extern "C" fn sock_ops_cb_flags_set(
    context: u64,
    flags: u64,
    _: u64,
    _: u64,
    _: u64,
    _: *mut RunCtx,
) -> u64 {
    // SAFETY: the verifier has proven `context` to be the context of the running program.
    let unknown = unsafe { sock_ops(context) }.set_cb_flags(low(flags));
    ret(unknown.map(|unknown| i64::from(unknown.cast_signed()) as u64).ok_or(EINVAL))
}

/// `bpf_sock_map_update(ctx, map, key, flags)`, `bpf_sock_hash_update`: the connection's socket, by its cookie.
///
/// # Safety
/// See [`sock_ops`]; the map must be live, and the key of its size; the last argument is the run's hidden one.
pub(super) unsafe extern "C" fn sock_map_update(
    context: u64,
    map: u64,
    key: u64,
    flags: u64,
    _: u64,
    run: *mut RunCtx,
) -> u64 {
    // SAFETY: the verifier has proven `context` to be the context of the running program.
    let Some(socket) = unsafe { sock_ops(context) }.socket.as_deref() else {
        return ret(Err(Errno::EOPNOTSUPP));
    };
    // SAFETY: the hidden argument is that of the running program.
    let slot = unsafe { (*run).slot };
    // SAFETY: the verifier has proven a live map and a key of its size; the slot is that of the run's guard.
    unsafe { map_ops::set_socket(map as *const MapHeader, key as *const u8, socket.cookie, flags, slot) as u64 }
}

/// Returns the cookie by which a map stores data of a socket; `None` for a request or time-wait socket, and for a
/// socket without a cookie.
///
/// # Safety
/// See [`socket`].
unsafe fn owner(at: u64) -> Option<u64> {
    // SAFETY: the verifier has proven that the program was given the socket at `at` and has not given it back.
    let socket = unsafe { socket(at) };
    (socket.is_full() && socket.cookie != 0).then_some(socket.cookie)
}

/// `bpf_sk_storage_get(map, sk, value, flags)` for a socket's cookie.
///
/// # Safety
/// The map must be live, the value null or of its size; `run` is the running program's hidden argument.
pub(super) unsafe fn storage_get(cookie: Option<u64>, [map, value, flags]: [u64; 3], run: *mut RunCtx) -> u64 {
    let Some(cookie) = cookie.filter(|_| flags <= local_storage::GET_F_CREATE) else { return 0 };
    let create = flags == local_storage::GET_F_CREATE;
    // SAFETY: the hidden argument is that of the running program.
    let slot = unsafe { (*run).slot };
    // SAFETY: a live map, and a value of its size or null (contract); the slot is that of the run's guard.
    unsafe { map_ops::storage(map as *const MapHeader, cookie, value as *const u8, create, slot) as u64 }
}

/// `bpf_sk_storage_delete(map, sk)` for a socket's cookie.
///
/// # Safety
/// The map must be live, and one of storage; `run` is the running program's hidden argument.
pub(super) unsafe fn storage_delete(cookie: Option<u64>, map: u64, run: *mut RunCtx) -> u64 {
    let Some(cookie) = cookie else { return ret(Err(EINVAL)) };
    // SAFETY: the hidden argument is that of the running program.
    let slot = unsafe { (*run).slot };
    // SAFETY: a live map of storage (contract), whose keys are cookies; the slot is that of the run's guard.
    unsafe { map_ops::delete(map as *const MapHeader, (&raw const cookie).cast(), slot) as u64 }
}

/// `bpf_sk_storage_get(map, sk, value, flags)`.
///
/// # Safety
/// See [`socket`]; the map must be live, the value null or of its size; the last argument is the run's hidden one.
pub(super) unsafe extern "C" fn sk_storage_get(
    map: u64,
    at: u64,
    value: u64,
    flags: u64,
    _: u64,
    run: *mut RunCtx,
) -> u64 {
    // SAFETY: the verifier has proven that the program was given the socket at `at` and has not given it back.
    let cookie = unsafe { owner(at) };
    // SAFETY: the verifier has proven the map, and the value's size; the last argument is the run's hidden one.
    unsafe { storage_get(cookie, [map, value, flags], run) }
}

/// `bpf_sk_storage_delete(map, sk)`.
///
/// # Safety
/// See [`socket`]; the map must be live, and one of storage; the last argument is the run's hidden one.
pub(super) unsafe extern "C" fn sk_storage_delete(map: u64, at: u64, _: u64, _: u64, _: u64, run: *mut RunCtx) -> u64 {
    // SAFETY: the verifier has proven that the program was given the socket at `at` and has not given it back.
    let cookie = unsafe { owner(at) };
    // SAFETY: the verifier has proven the map; the last argument is the run's hidden one.
    unsafe { storage_delete(cookie, map, run) }
}

/// Returns the cookie by which a map stores data of the context's socket.
///
/// # Safety
/// `context` must be that of a running program on [`Sock`](crate::net::Sock).
unsafe fn decided(context: u64) -> Option<u64> {
    // SAFETY: the linker binds these helpers to programs on that context only, and the verifier admits only theirs.
    let cookie = unsafe { &*(context as *const SockBuff) }.cookie;
    (cookie != 0).then_some(cookie)
}

/// `bpf_sk_storage_get(map, ctx, value, flags)` of a program whose context is the socket.
///
/// # Safety
/// See [`decided`] and [`sk_storage_get`].
pub(super) unsafe extern "C" fn sock_storage_get(
    map: u64,
    context: u64,
    value: u64,
    flags: u64,
    _: u64,
    run: *mut RunCtx,
) -> u64 {
    // SAFETY: the context is that of the running program.
    let cookie = unsafe { decided(context) };
    // SAFETY: the verifier has proven the map, and the value's size; the last argument is the run's hidden one.
    unsafe { storage_get(cookie, [map, value, flags], run) }
}
