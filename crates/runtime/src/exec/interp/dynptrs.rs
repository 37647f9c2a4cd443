//! Dynptrs of interpreted programs: what they lead to is kept where no program can write.

use super::{Host, Running};
use crate::call::helpers::dynptr::Dynptr;
use crate::exec::granted::first_word;
use crate::exec::watch::Watch;
use crate::program::bound::Bound;
use bpf_interp::{Caller, Stop};
use bpf_verifier::{ArgKind, Local, LocalUse, MemArg};
use core::cell::Cell;

/// Copies of the dynptrs that a call is given, by argument. The function reads and writes them by their addresses.
#[derive(Default)]
#[repr(align(8))]
pub(super) struct Dynptrs([Cell<[u8; 16]>; 5]);

impl Dynptrs {
    /// The first word of the dynptr that a call is given: where its memory is.
    pub(super) fn word(&self) -> u64 {
        self.0.iter().map(|content| first_word(content.get())).find(|word| *word != 0).unwrap_or(0)
    }

    /// The address of the copy for argument `i`.
    fn of(&self, i: usize) -> u64 {
        self.0[i].as_ptr().expose_provenance() as u64
    }
}

impl<'p, W: Watch> Host<'p, W> {
    /// Replaces the address of each dynptr on the stack by that of a copy, which has the content of when the dynptr was
    /// made or adjusted: the program may have overwritten it, since a contained program's proof may be wrong. Checks
    /// the buffer of a slice, which a function writes if the dynptr is of a packet.
    pub(super) fn copy_dynptrs(
        &mut self,
        bound: &Bound,
        args: &mut [u64; 5],
        copies: &Dynptrs,
        caller: &Caller<'_, '_, Running<'p>>,
    ) -> Result<(), Stop> {
        let mut buffer = false;
        let given = *args;
        for (i, (kind, at)) in bound.proto.args.iter().zip(given).enumerate() {
            match *kind {
                ArgKind::Local(Local::Dynptr(_), LocalUse::Made) => args[i] = copies.of(i),
                ArgKind::Local(Local::Dynptr(_), LocalUse::Read) if self.granted.is_dynptr(at) => {}
                ArgKind::Local(Local::Dynptr(_), LocalUse::Read | LocalUse::Used | LocalUse::Ended) => {
                    let Some(content) = self.granted.dynptr(at) else {
                        return Err(caller.fail(format!("the object at {at:#x} was not made since the run last slept")));
                    };
                    copies.0[i].set(content);
                    args[i] = copies.of(i);
                    buffer |= Dynptr::uses_buffer(content);
                }
                ArgKind::SliceBuffer if buffer && at != 0 => {
                    let len = given.get(i + 1).copied().unwrap_or(0) & u64::from(u32::MAX);
                    self.check_memory(at, len, MemArg::WRITE, caller)?;
                }
                _other => {}
            }
        }
        Ok(())
    }

    /// Keeps the dynptrs that a call has made or adjusted, and shows them to the program.
    pub(super) fn keep_dynptrs(
        &mut self,
        bound: &Bound,
        args: [u64; 5],
        copies: &Dynptrs,
        caller: &mut Caller<'_, '_, Running<'p>>,
    ) {
        for ((kind, at), content) in bound.proto.args.iter().zip(args).zip(&copies.0) {
            match *kind {
                ArgKind::Local(Local::Dynptr(_), LocalUse::Made | LocalUse::Used) => {
                    let content = content.get();
                    self.granted.set_dynptr(at, content);
                    // The memory is the run's: the call was checked.
                    caller.machine_mut().poke(at, &content);
                }
                // `copy_dynptrs` has set the copy.
                ArgKind::Local(Local::Dynptr(_), LocalUse::Ended) => {
                    self.granted.end_dynptr(at, first_word(content.get()));
                }
                _other => {}
            }
        }
    }
}
