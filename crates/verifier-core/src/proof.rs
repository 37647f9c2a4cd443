//! The steps of the number domain one by one, for `cargo xtask prove`: nothing for users.

use bpf_isa::AluOp;
use bpf_isa::word::Word;

use crate::domain::interval::Interval;
use crate::domain::scalar::{self, Num};
use crate::domain::tnum::Tnum;

/// What is known about a number, its parts taken together.
pub fn number<const W: u32, const H: u32, T: Word>(
    bits: Tnum<W, T>,
    full: Interval<W, T>,
    low: Interval<H, T>,
) -> Num<W, H, T> {
    Num::of(bits, full, low)
}

/// [`Interval::sync`], not as a step of something.
pub fn exchange_views<const W: u32, T: Word>(range: &mut Interval<W, T>) {
    range.exchange();
}

/// What every `Num` goes through before it is handed out, not as a step of something.
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

/// The signed ones.
pub fn teach_full_signed<const W: u32, const H: u32, T: Word>(number: &mut Num<W, H, T>) {
    number.teach_full_signed();
}

/// The least value by ranges and low bits.
pub fn aligned_least<const W: u32, const H: u32, T: Word>(number: &Num<W, H, T>) -> T {
    number.aligned_least()
}

/// The same of signed values.
pub fn aligned_signed_least<const W: u32, const H: u32, T: Word>(number: &Num<W, H, T>) -> T::Signed {
    number.aligned_signed_least()
}

/// A number without what lies before its least values.
pub fn aligned<const W: u32, const H: u32, T: Word>(number: &Num<W, H, T>) -> Num<W, H, T> {
    number.aligned()
}

/// Whether a difference has wrapped, by the range of what it was taken off.
pub fn wrapped_by_whole<T: Word>(range: (T, T), by: T) -> Option<bool> {
    scalar::wrapped_by_whole(range, by)
}

/// The same by its own range, of numbers up to `top`, and the most that it was taken off.
pub fn wrapped_by_difference<T: Word>(range: (T, T), by: T, top: T, whole: Option<T>) -> Option<bool> {
    scalar::wrapped_by_difference(range, by, top, whole)
}

/// The bits that an operation leaves known; a shift's count is between the two.
pub fn bits<const W: u32, T: Word>(op: AluOp, a: Tnum<W, T>, b: Tnum<W, T>, counts: (T, T)) -> Tnum<W, T> {
    scalar::bits(op, a, b, counts.0, counts.1)
}

/// The ranges of an operation's result; a shift's count is between the two.
pub fn range<const W: u32, T: Word>(op: AluOp, a: Interval<W, T>, b: Interval<W, T>, counts: (T, T)) -> Interval<W, T> {
    scalar::range(op, a, b, counts.0, counts.1)
}

/// What a number whose upper half is zero goes through.
pub fn exchange_small<const W: u32, const H: u32, T: Word>(number: &mut Num<W, H, T>) -> bool {
    number.sync_small()
}

/// What any other number goes through: rounds.
pub fn exchange_wide<const W: u32, const H: u32, T: Word>(number: &mut Num<W, H, T>) -> bool {
    number.sync_wide()
}

/// One round of that.
pub fn round<const W: u32, const H: u32, T: Word>(number: &mut Num<W, H, T>) -> bool {
    number.round()
}
