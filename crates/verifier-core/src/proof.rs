//! The steps of the number domain one by one, for `cargo xtask prove`: nothing for users.

use bpf_isa::AluOp;
use bpf_isa::word::Word;

use crate::domain::interval::Interval;
use crate::domain::scalar::{self, Num};
use crate::domain::tnum::Tnum;

/// The number whose values are those in all three components.
pub fn number<const W: u32, const H: u32, T: Word>(
    bits: Tnum<W, T>,
    full: Interval<W, T>,
    low: Interval<H, T>,
) -> Num<W, H, T> {
    Num::of(bits, full, low)
}

/// [`Interval::sync`] without the hook that lets a proof treat it as one step.
pub fn exchange_views<const W: u32, T: Word>(range: &mut Interval<W, T>) {
    range.exchange();
}

/// [`Num`]'s exchange between components, which every `Num` passes before it is handed out, likewise without the hook.
pub fn exchange<const W: u32, const H: u32, T: Word>(number: &mut Num<W, H, T>) -> bool {
    number.exchange()
}

/// The low half learns from the whole.
pub fn teach_low<const W: u32, const H: u32, T: Word>(number: &mut Num<W, H, T>) {
    number.teach_low();
}

/// The unsigned ends of the whole learn from the low half.
pub fn teach_full<const W: u32, const H: u32, T: Word>(number: &mut Num<W, H, T>) {
    number.teach_full();
}

/// The signed ends of the whole learn from the low half.
pub fn teach_full_signed<const W: u32, const H: u32, T: Word>(number: &mut Num<W, H, T>) {
    number.teach_full_signed();
}

/// Returns the least unsigned value that the ranges and the known low bits allow.
pub fn aligned_least<const W: u32, const H: u32, T: Word>(number: &Num<W, H, T>) -> T {
    number.aligned_least()
}

/// Returns the least signed value that the ranges and the known low bits allow.
pub fn aligned_signed_least<const W: u32, const H: u32, T: Word>(number: &Num<W, H, T>) -> T::Signed {
    number.aligned_signed_least()
}

/// Raises both lower bounds to the least value with the known low bits.
pub fn aligned<const W: u32, const H: u32, T: Word>(number: &Num<W, H, T>) -> Num<W, H, T> {
    number.aligned()
}

/// Whether the subtraction of `by` wrapped, decided by the range of the minuend.
pub fn wrapped_by_whole<T: Word>(range: (T, T), by: T) -> Option<bool> {
    scalar::wrapped_by_whole(range, by)
}

/// Whether the subtraction of `by` wrapped, decided by the range of the difference. Numbers are at most `top`, and the
/// minuend is at most `whole`.
pub fn wrapped_by_difference<T: Word>(range: (T, T), by: T, top: T, whole: Option<T>) -> Option<bool> {
    scalar::wrapped_by_difference(range, by, top, whole)
}

/// The tnum of an operation's result. A shift's count lies in `counts`, both ends included.
pub fn bits<const W: u32, T: Word>(op: AluOp, a: Tnum<W, T>, b: Tnum<W, T>, counts: (T, T)) -> Tnum<W, T> {
    scalar::bits(op, a, b, counts.0, counts.1)
}

/// The ranges of an operation's result. A shift's count lies in `counts`, both ends included.
pub fn range<const W: u32, T: Word>(op: AluOp, a: Interval<W, T>, b: Interval<W, T>, counts: (T, T)) -> Interval<W, T> {
    scalar::range(op, a, b, counts.0, counts.1)
}

/// The exchange for a number whose upper half is zero.
pub fn exchange_small<const W: u32, const H: u32, T: Word>(number: &mut Num<W, H, T>) -> bool {
    number.sync_small()
}

/// The exchange for any other number: at most two rounds.
pub fn exchange_wide<const W: u32, const H: u32, T: Word>(number: &mut Num<W, H, T>) -> bool {
    number.sync_wide()
}

/// One round of [`exchange_wide`].
pub fn round<const W: u32, const H: u32, T: Word>(number: &mut Num<W, H, T>) -> bool {
    number.round()
}
