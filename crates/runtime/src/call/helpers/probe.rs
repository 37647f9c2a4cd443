//! Copies from anywhere: `bpf_probe_read` and its relatives.
//!
//! Problem: the source is any number, and the kernel finds out by a fault whether it can be read. Approach: a program
//! reads its own memory only. Each call site has what the verifier has proven of its source ([`Source`]): that it is a
//! pointer on every path with so many readable bytes behind it, or that it leads into a region of the context, whose
//! bounds are looked up when the call is made. A read beyond these bounds fails as a fault does in the kernel. A number
//! is an address of nothing: it fails with the kernel's error for that half of the address space, before anything is
//! compared with an address, so that a program cannot search for its memory.
//!
//! The program's memory stands for kernel memory. There is no user memory, so the functions that read user memory fail
//! for every pointer, as they do in the kernel for a kernel pointer.
//!
//! Source: `kernel/trace/bpf_trace.c`, `mm/maccess.c` (Linux 6.18).

use crate::abi::run::Run;
use crate::call::helpers::skb::ret;
use crate::call::{HostFn, Shim};
use crate::context::ContextLayout;
use crate::num::{index, low};
use bpf_analysis::{BoundsPlace, FormatCall};
use bpf_jit_code::RunCtx;
use bpf_uapi::{Errno, Helper};
use std::sync::Arc;

/// Index of the argument that is the source.
const SOURCE: usize = 2;

/// The first address behind the user's half, of 47 bits (Linux: `TASK_SIZE_MAX`, within a page).
const USER_END: u64 = 1 << 47;
/// The first address of the kernel's half.
const KERNEL: u64 = 0xffff_8000_0000_0000;

/// Which half of the address space a function reads.
const USER: u8 = 0;
const IN_KERNEL: u8 = 1;
/// The half that the address is in.
const EITHER: u8 = 2;

/// The facts about the source address of a call.
#[derive(Debug)]
struct Source {
    /// Readable bytes behind a source that is a pointer or null on every path; `None` for a number.
    known: Option<u32>,
    /// The context region that it leads to.
    region: BoundsPlace,
}

/// The function for a call of one of these helpers by a program on this layout.
pub(crate) fn at_site(helper: Helper, call: &FormatCall, layout: &ContextLayout) -> Option<HostFn> {
    let region = call.regions[SOURCE].map_or(BoundsPlace::Nowhere, |region| layout.bounds(region).place);
    let [_, shim] = shims(helper)?;
    Some(HostFn { shim, env: Some(Arc::new(Source { known: call.known[SOURCE], region })), needs_ctx: true })
}

/// The shims of a helper: first for calls whose source is unknown, then for calls with a [`Source`].
const fn shims(helper: Helper) -> Option<[Shim; 2]> {
    Some(match helper {
        Helper::ProbeRead => [read::<EITHER, false>, read::<EITHER, true>],
        Helper::ProbeReadUser => [read::<USER, false>, read::<USER, true>],
        Helper::ProbeReadKernel => [read::<IN_KERNEL, false>, read::<IN_KERNEL, true>],
        Helper::ProbeReadStr => [read_str::<EITHER, false>, read_str::<EITHER, true>],
        Helper::ProbeReadUserStr => [read_str::<USER, false>, read_str::<USER, true>],
        Helper::ProbeReadKernelStr => [read_str::<IN_KERNEL, false>, read_str::<IN_KERNEL, true>],
        _other => return None,
    })
}

/// How many bytes may be read at `at`: none at a number, which fails as the kernel does for `size` bytes.
///
/// # Safety
/// `ctx` must be the running program's hidden argument. If `SITE`, the running function's environment must be a
/// [`Source`] that holds for `at`.
unsafe fn readable<const FROM: u8, const SITE: bool>(at: u64, size: u32, ctx: *mut RunCtx) -> Result<u64, Errno> {
    let source = SITE.then(|| {
        // SAFETY: the hidden argument of the running program.
        let env = unsafe { (*ctx).host_env } as *const Source;
        // SAFETY: the call sequence has put the function's environment there, a `Source` that the program keeps.
        unsafe { &*env }
    });
    // A pointer into a region may be 0 for its offset: an error of its own would show where the region is. Where only
    // some paths pass such a pointer, no region is named, and no byte is known.
    if let Some(Source { known: Some(known), region }) = source
        && (at != 0 || *region != BoundsPlace::Nowhere || *known == 0)
    {
        if FROM == USER {
            return Err(Errno::EFAULT);
        }
        // SAFETY: the hidden argument is the first field of a `Run`; emitted code waits for this call.
        let run = unsafe { &*ctx.cast::<Run>() };
        // SAFETY: the place is of the layout that the program was verified against and its context agrees with.
        let bounds = unsafe { run.bounds(*region) };
        let inside = bounds.and_then(|(start, len)| len.checked_sub(at.checked_sub(start)?));
        return Ok(inside.unwrap_or(0).max((*known).into()));
    }
    // `access_ok`, `copy_from_kernel_nofault_allowed`
    let nothing = if size == 0 { Ok(0) } else { Err(Errno::EFAULT) };
    match FROM {
        USER | EITHER if at < USER_END => nothing,
        USER => Err(Errno::EFAULT),
        _ if at < KERNEL => Err(Errno::ERANGE),
        _ => nothing,
    }
}

/// `bpf_probe_read(dst, size, from)`, `bpf_probe_read_kernel`, `bpf_probe_read_user`: 0, or an error and zeros.
///
/// # Safety
/// `dst` must be writable for `size` bytes; the rest as [`readable`].
unsafe extern "C" fn read<const FROM: u8, const SITE: bool>(
    dst: u64,
    size: u64,
    from: u64,
    _: u64,
    _: u64,
    ctx: *mut RunCtx,
) -> u64 {
    let size = low(size);
    let (dst, len) = (dst as *mut u8, index(size.into()));
    // SAFETY: the caller's promise.
    let done = match unsafe { readable::<FROM, SITE>(from, size, ctx) } {
        Ok(most) if u64::from(size) <= most => {
            // SAFETY: `len` bytes are readable at `from` and writable at `dst`; the two may overlap, and a map's value
            // may change while it is copied, which leaves any of its bytes, each written at some time.
            unsafe { core::ptr::copy(from as *const u8, dst, len) };
            Ok(0)
        }
        Ok(_) => Err(Errno::EFAULT),
        Err(error) => Err(error),
    };
    if done.is_err() {
        // SAFETY: the caller's promise.
        unsafe { dst.write_bytes(0, len) };
    }
    ret(done)
}

/// `bpf_probe_read_str(dst, size, from)` and its relatives: copies the text as far as `dst` has room, the last byte
/// being zero, and returns its length with the zero byte; or an error and zeros. The bytes of `dst` behind the text
/// become zeros, since a program may read all of `dst`.
///
/// # Safety
/// As [`read`].
unsafe extern "C" fn read_str<const FROM: u8, const SITE: bool>(
    dst: u64,
    size: u64,
    from: u64,
    _: u64,
    _: u64,
    ctx: *mut RunCtx,
) -> u64 {
    let size = low(size);
    let (dst, len) = (dst as *mut u8, index(size.into()));
    // SAFETY: the caller's promise.
    let text = match unsafe { readable::<FROM, SITE>(from, size, ctx) } {
        _ if size == 0 => Ok(0),
        // SAFETY: so many bytes are readable, and `len` writable.
        Ok(most) => unsafe { copy_text(dst, from, len, index(most)) }.ok_or(Errno::EFAULT),
        Err(error) => Err(error),
    };
    let written = text.unwrap_or(0);
    // SAFETY: the text is no longer than `dst`.
    unsafe { dst.wrapping_add(written).write_bytes(0, len - written) };
    ret(text.map(|text| text as u64))
}

/// Copies up to the zero byte, or `len` bytes of which the last becomes zero. Returns how many, or `None` where more
/// than `most` would be read.
///
/// # Safety
/// `most` bytes at `from` must be readable and `len` at `dst` writable.
unsafe fn copy_text(dst: *mut u8, from: u64, len: usize, most: usize) -> Option<usize> {
    for i in 0..len {
        if i >= most {
            return None;
        }
        // SAFETY: below `most`; volatile, because a map value may change meanwhile.
        let byte = unsafe { core::ptr::read_volatile((from as *const u8).wrapping_add(i)) };
        let byte = if i + 1 == len { 0 } else { byte };
        // SAFETY: below `len`.
        unsafe { dst.wrapping_add(i).write(byte) };
        if byte == 0 {
            return Some(i + 1);
        }
    }
    None
}

/// A helper's function for calls whose source is unknown: it is a number, or nobody has verified the program.
pub(super) const fn function(helper: Helper) -> HostFn {
    match shims(helper) {
        Some([shim, _]) => HostFn::with_run(shim),
        None => panic!("not one of these helpers"),
    }
}
