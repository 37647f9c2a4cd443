//! Writes a decision into an instruction.
//!
//! A value replaces the immediate of a move, of arithmetic or of a 64-bit load, or the offset of a load or store. The
//! size of a load or store changes with the field's only where the loaded number does not change: for unsigned
//! integers and pointers, which loads zero-extend. An access of a part of such a field stays an access of its low
//! bytes, which come first on a little-endian machine.

use bpf_isa::{Imm64, Insn, Size, Src, Width};

use super::Why;
use super::value::{Access, Decision};

const TOO_LARGE: Why = "the value does not fit the instruction";
const UNEXPECTED: Why = "the instruction does not hold the value that the object's own types give";
const NO_PLACE: Why = "the instruction has no place for a value";
const NO_SUCH_SIZE: Why = "the field has a size that no such access has";
const LONGER: Why = "the access is longer than the field, whose size differs here";
const EXTENDS: Why = "the load extends a sign, and the field is wider here";

/// Applies a decision to the instruction at `at`.
pub(super) fn apply(insns: &mut [Insn], at: usize, decision: &Decision) -> Result<(), Why> {
    match insns.get_mut(at) {
        Some(Insn::Mov { width, src: Src::Imm(imm), .. } | Insn::Alu { width, src: Src::Imm(imm), .. }) => {
            expect(decision, i64::from(*imm) as u64)?;
            *imm = immediate(*width, decision.value)?;
        }
        Some(Insn::LoadImm64 { imm: Imm64::Const(imm), .. }) => {
            expect(decision, *imm)?;
            *imm = decision.value;
        }
        Some(Insn::Load { size, sign, off, .. }) => {
            let (to, is) = access(decision, *off, size.bytes())?;
            if *sign && is > size.bytes() {
                return Err(EXTENDS);
            }
            // The field is unsigned, and narrower than the sign-extended type.
            *sign &= is == size.bytes();
            (*off, *size) = (to, size_of(is)?);
        }
        Some(
            Insn::Store { size, off, .. } | Insn::LoadAcquire { size, off, .. } | Insn::StoreRelease { size, off, .. },
        ) => {
            let (to, is) = access(decision, *off, size.bytes())?;
            (*off, *size) = (to, size_of(is)?);
        }
        Some(Insn::Atomic { width, off, .. }) => {
            let was = match width {
                Width::W32 => 4,
                Width::W64 => 8,
            };
            let (to, is) = access(decision, *off, was)?;
            *width = match is {
                4 => Width::W32,
                8 => Width::W64,
                _ => return Err(NO_SUCH_SIZE),
            };
            *off = to;
        }
        Some(_) | None => return Err(NO_PLACE),
    }
    Ok(())
}

/// Fails unless the instruction holds the value that the object's own types give. 32 bits are compared, because an
/// immediate of 32 bits is a number with or without a sign.
fn expect(decision: &Decision, held: u64) -> Result<(), Why> {
    let low = |value: u64| value & u64::from(u32::MAX);
    match decision.before {
        Some(before) if low(before) != low(held) => Err(UNEXPECTED),
        Some(_) | None => Ok(()),
    }
}

/// The immediate that encodes a value. 64-bit instructions sign-extend it.
fn immediate(width: Width, value: u64) -> Result<i32, Why> {
    match (i32::try_from(value as i64), width, u32::try_from(value)) {
        (Ok(imm), ..) => Ok(imm),
        (Err(_), Width::W32, Ok(bits)) => Ok(bits.cast_signed()),
        (Err(_), ..) => Err(TOO_LARGE),
    }
}

/// The new offset and size of a load or store of `size` bytes at `off`.
fn access(decision: &Decision, off: i16, size: u32) -> Result<(i16, u32), Why> {
    let fits = |off: i64| i16::try_from(off).map_err(|_| TOO_LARGE);
    if let Access::Moved(by) = decision.access {
        return Ok((fits(i64::from(off).checked_add(by).ok_or(TOO_LARGE)?)?, size));
    }
    expect(decision, i64::from(off) as u64)?;
    let to = fits(i64::try_from(decision.value).map_err(|_| TOO_LARGE)?)?;
    match decision.access {
        Access::Same | Access::Moved(_) => Ok((to, size)),
        Access::Resized { was, is } if size == was => Ok((to, is)),
        Access::Resized { was, is } if size < was.min(is) => Ok((to, size)),
        Access::Resized { .. } => Err(LONGER),
        Access::Refused(why) => Err(why),
    }
}

fn size_of(bytes: u32) -> Result<Size, Why> {
    [Size::B, Size::H, Size::W, Size::DW].into_iter().find(|size| size.bytes() == bytes).ok_or(NO_SUCH_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf_isa::{AtomicOp, Reg};

    fn applied(insn: Insn, value: u64, access: Access) -> Result<Insn, Why> {
        let mut insns = [insn];
        apply(&mut insns, 0, &Decision { value, before: Some(8), access })?;
        Ok(insns[0])
    }

    fn load(size: Size, sign: bool, off: i16) -> Insn {
        Insn::Load { size, sign, dst: Reg::R0, base: Reg::R1, off }
    }

    fn atomic(width: Width, off: i16) -> Insn {
        Insn::Atomic { width, op: AtomicOp::Add { fetch: false }, base: Reg::R1, off, src: Reg::R2 }
    }

    #[test]
    fn loads_take_the_fields_size() {
        let resized = |was, is| Access::Resized { was, is };
        assert_eq!(applied(load(Size::DW, false, 8), 4, resized(8, 2)), Ok(load(Size::H, false, 4)));
        assert_eq!(applied(load(Size::W, false, 8), 4, resized(4, 8)), Ok(load(Size::DW, false, 4)));
        // The sign bit of 32 bits is not among the 16 that remain; for 64 bits there is no sign-extending load.
        assert_eq!(applied(load(Size::W, true, 8), 4, resized(4, 2)), Ok(load(Size::H, false, 4)));
        assert_eq!(applied(load(Size::W, true, 8), 4, resized(4, 8)), Err(EXTENDS));
        assert_eq!(applied(load(Size::W, true, 8), 4, Access::Same), Ok(load(Size::W, true, 4)));
        // A part of a field is its low bytes, if the field has that many.
        assert_eq!(applied(load(Size::B, false, 8), 4, resized(4, 8)), Ok(load(Size::B, false, 4)));
        assert_eq!(applied(load(Size::H, false, 8), 4, resized(4, 1)), Err(LONGER));
        assert_eq!(applied(load(Size::DW, false, 8), 4, resized(4, 2)), Err(LONGER));
        assert_eq!(applied(load(Size::DW, false, 8), 4, resized(8, 3)), Err(NO_SUCH_SIZE));
    }

    #[test]
    fn atomics_take_the_fields_size() {
        let resized = |was, is| Access::Resized { was, is };
        assert_eq!(applied(atomic(Width::W64, 8), 4, resized(8, 4)), Ok(atomic(Width::W32, 4)));
        assert_eq!(applied(atomic(Width::W32, 8), 4, resized(4, 8)), Ok(atomic(Width::W64, 4)));
        assert_eq!(applied(atomic(Width::W64, 8), 4, resized(8, 2)), Err(NO_SUCH_SIZE));
    }

    #[test]
    fn offsets_are_what_the_types_say() {
        assert_eq!(applied(load(Size::W, false, 9), 4, Access::Same), Err(UNEXPECTED));
        assert_eq!(applied(load(Size::W, false, 8), 1 << 15, Access::Same), Err(TOO_LARGE));
        // Bit fields move by whole bytes from the place of the compiler's load.
        assert_eq!(applied(load(Size::B, false, 9), 0, Access::Moved(-3)), Ok(load(Size::B, false, 6)));
        assert_eq!(applied(load(Size::B, false, 9), 0, Access::Moved(i64::MAX)), Err(TOO_LARGE));
    }
}
