//! Helpers that call back into the program, independent of the engine that runs it: emitted code or the interpreter.

use crate::abi::run::Run;
use crate::error::HelperError;
use crate::num::low;
use bpf_maps::{Errno, MapHeader, program as map_ops};

/// `bpf_loop` runs at most this many iterations (Linux: BPF_MAX_LOOPS).
const MAX_LOOPS: u64 = 8 * 1024 * 1024;

/// How a helper calls a function of the program.
pub(crate) type CallBack<'a> = &'a mut dyn FnMut(&mut Run, [u64; 5]) -> Result<u64, HelperError>;

/// `bpf_loop(nr, callback, ctx, flags)`: calls `callback(i, ctx)` for i = 0 .. nr until it returns non-zero; the number
/// of calls.
pub(crate) fn run_loop(run: &mut Run, nr: u64, arg: u64, flags: u64, call: CallBack<'_>) -> Result<u64, HelperError> {
    let nr = u64::from(low(nr));
    if flags != 0 {
        return Ok(Errno::EINVAL.as_ret() as u64);
    }
    if nr > MAX_LOOPS {
        return Ok(Errno::E2BIG.as_ret() as u64);
    }
    for i in 0..nr {
        if call(run, [i, arg, 0, 0, 0])? != 0 {
            return Ok(i + 1);
        }
    }
    Ok(nr)
}

/// `bpf_for_each_map_elem(map, callback, ctx, flags)`: calls `callback(map, key, value, ctx)` for each element until it
/// returns non-zero; the number of calls.
///
/// # Safety
/// `map` must be a live map.
pub(crate) unsafe fn run_for_each(
    run: &mut Run,
    map: u64,
    arg: u64,
    flags: u64,
    call: CallBack<'_>,
) -> Result<u64, HelperError> {
    let mut failed = None;
    let slot = run.ctx.slot;
    let mut visit = |key: *const u8, value: *mut u8| match call(run, [map, key as u64, value as u64, arg, 0]) {
        Ok(r0) => r0 == 0,
        Err(error) => {
            failed = Some(error);
            false
        }
    };
    // SAFETY: both callers pass the map that their program was proven to pass, which the run's guard keeps; the slot is
    // that guard's.
    let visited = unsafe { map_ops::for_each(map as *const MapHeader, flags, slot, &mut visit) };
    match failed {
        Some(error) => Err(error),
        None => Ok(visited as u64),
    }
}
