//! A fixed address for code that can be exchanged.
//!
//! Problem: code that replaces other code is referenced from many places (images, patched jumps, tables of addresses,
//! threads that are about to call), and each would have to be found and changed. Approach: all of them refer to a
//! [`Forward`], a single jump, which alone is changed, by a poke.
//!
//! ```text
//! x86-64: [endbr64; nop] jmp target        arm64: [bti c] b target
//! ```
//!
//! Invariants: a thread that runs a forward while another thread redirects it jumps to the old target or to the new
//! one. The old target may be freed after the poke has been followed by a core barrier and then a grace period; the
//! caller is responsible for both.

use bpf_jit_code::{Arch, Code, PatchSlot};

use crate::Error;
use crate::arch::{Patch, encode};
use crate::packs::Packs;
use crate::poke::PokeError;
use crate::stage::Text;

/// A jump with a fixed address, to code that may be exchanged.
#[derive(Debug)]
pub struct Forward {
    text: Text,
    slot: PatchSlot,
}

/// Length of the longest forward in bytes: landing pad, padding and jump.
const LEN: usize = 16;

impl Packs {
    /// Creates a forward to the code that begins at `target`. With `landing_pad`, the forward may be entered by
    /// indirect branches on hosts where these need landing pads.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::NoRoom`] if `target` is out of reach, which code of these packs never is.
    pub fn forward(&self, target: usize, landing_pad: bool) -> Result<Forward, Error> {
        let host = Arch::HOST.ok_or(Error::UnsupportedHost)?;
        // After the landing pad, the jump begins an aligned word.
        let pad: &[u8] = match (landing_pad, host) {
            (false, _) => &[],
            // endbr64 (Intel SDM 2A), and the recommended four-byte nop.
            (true, Arch::X64) => &[0xf3, 0x0f, 0x1e, 0xfa, 0x0f, 0x1f, 0x40, 0x00],
            // bti c (Arm ARM C6.2, BTI).
            (true, Arch::Arm64) => &[0x5f, 0x24, 0x03, 0xd5],
        };
        const { assert!(LEN <= Code::ALIGN) };
        let (at, len) = (pad.len(), pad.len() + PatchSlot::len_on(host) as usize);
        let mut staged = self.reserve(len)?;
        let no_reach = Error::NoRoom { len };
        let slot = PatchSlot::new(host, crate::small(at)).map_err(|_| no_reach)?;
        let jump = encode(host, Patch::Jump(target), staged.base() + at).ok_or(no_reach)?;
        let bytes = staged.bytes_mut();
        bytes[..at].copy_from_slice(pad);
        bytes[at..].copy_from_slice(&jump[..len - at]);
        Ok(Forward { text: staged.finalize()?, slot })
    }
}

impl Forward {
    /// The address to call instead of the target, under the conditions of [`Text::entry`] and of the target.
    pub fn entry(&self) -> *const u8 {
        self.text.base()
    }

    /// Bytes of executable memory of the forward.
    pub fn footprint(&self) -> usize {
        self.text.footprint()
    }

    /// Makes the forward lead to the code at `new`, also while threads run through it. One store without a barrier:
    /// other CPUs may go to `old` for a moment longer.
    ///
    /// # Errors
    /// [`PokeError`]; the forward is unchanged then.
    pub fn redirect(&self, old: usize, new: usize) -> Result<(), PokeError> {
        self.text.poke(self.slot, Patch::Jump(old), Patch::Jump(new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use bpf_quiesce::Domain;

    /// A function that returns `value`.
    fn returns(host: Arch, value: u8) -> Code {
        let mut code = Code::new(host);
        code.bytes = match host {
            // mov eax, value; ret
            Arch::X64 => vec![0xb8, value, 0, 0, 0, 0xc3],
            // movz w0, value; ret
            Arch::Arm64 => {
                let movz = 0x5280_0000 | u32::from(value) << 5;
                [movz.to_le_bytes(), 0xd65f_03c0_u32.to_le_bytes()].concat()
            }
        };
        code.entries = vec![0];
        code
    }

    #[test]
    fn calls_come_to_the_old_code_or_the_new() {
        let Some(host) = Arch::HOST else { return println!("SKIPPED: no code on this architecture") };
        for landing_pad in [false, true] {
            let packs = Packs::new(Domain::new(bpf_quiesce::Options::new()), Options::default()).unwrap();
            let [one, two] = [1, 2].map(|value| {
                let code = returns(host, value);
                packs.stage(&code, |_| None).unwrap().finalize().unwrap()
            });
            let [to_one, to_two] = [&one, &two].map(|text| text.base() as usize);
            let forward = packs.forward(to_one, landing_pad).unwrap();
            // SAFETY: both targets are C functions of this type, and `one` and `two` live to the end.
            let call: extern "C" fn() -> u32 = unsafe { std::mem::transmute(forward.entry()) };
            let seen = std::thread::scope(|scope| {
                let caller = scope.spawn(|| {
                    let mut seen = [0u32; 3];
                    while seen[1] < 1000 || seen[2] < 1000 {
                        let _guard = packs.domain().enter().unwrap();
                        seen[call() as usize] += 1;
                    }
                    seen
                });
                while !caller.is_finished() {
                    forward.redirect(to_one, to_two).unwrap();
                    assert!(matches!(forward.redirect(to_one, to_two), Err(PokeError::Mismatch { .. })));
                    std::thread::yield_now();
                    forward.redirect(to_two, to_one).unwrap();
                    std::thread::yield_now();
                }
                caller.join().unwrap()
            });
            assert_eq!(seen[0], 0);
        }
    }
}
