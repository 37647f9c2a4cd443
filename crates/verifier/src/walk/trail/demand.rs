//! Demand: the places that a path reads behind a point, and the places that it needs exactly.
//!
//! Places are the registers, and the bytes of each frame's stack. Bytes are the unit because fields of two and four
//! bytes are written separately where the whole is read: with larger units, none of these writes would end a need.
//!
//! Rules that search values by their name read places that the trail does not mark (`by_name.rs`). After such a search
//! all live numbers are exact, and all values with names stay.
//!
//! Invariants: exact places are live. Bytes beyond the first 512 of a frame have no bit: they are always live and
//! exact.

use bpf_isa::{MAX_CALL_DEPTH, Reg};

use crate::env::Region;
use crate::faults::planted;
use crate::lens::{self, Bytes as Length};
use crate::scalar::Scalar;
use crate::state::{Byte, Frame, State, TRACKED};
use crate::value::{Value, Why};

pub(super) const FRAMES: usize = MAX_CALL_DEPTH as usize;
const WORD: usize = u64::BITS as usize;

/// A set of a frame's bytes; bit i is the byte at r10 - 1 - i.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Bytes([u64; TRACKED / WORD]);

impl Bytes {
    const ALL: Bytes = Bytes([u64::MAX; TRACKED / WORD]);

    /// The words with the bits `from .. to`, and masks of these bits. Bits beyond the tracked ones are dropped.
    fn words(from: usize, to: usize) -> impl Iterator<Item = (usize, u64)> {
        let to = to.min(TRACKED);
        (from / WORD..to.div_ceil(WORD)).map(move |word| {
            let low = from.saturating_sub(word * WORD);
            let high = (to - word * WORD).min(WORD);
            (word, (u64::MAX >> (WORD - high)) & (u64::MAX << low))
        })
    }

    /// Whether one of the bytes `from .. to` is in the set.
    pub(super) fn any(&self, from: usize, to: usize) -> bool {
        Bytes::words(from, to).any(|(word, mask)| self.0[word] & mask != 0)
    }

    pub(super) fn add(&mut self, from: usize, to: usize) {
        Bytes::words(from, to).for_each(|(word, mask)| self.0[word] |= mask);
    }

    pub(super) fn remove(&mut self, from: usize, to: usize) {
        Bytes::words(from, to).for_each(|(word, mask)| self.0[word] &= !mask);
    }

    #[cfg(test)]
    fn has(&self, byte: usize) -> bool {
        self.0[byte / WORD] >> (byte % WORD) & 1 != 0
    }

    fn last(&self) -> Option<usize> {
        let word = self.0.iter().rposition(|word| *word != 0)?;
        Some(word * WORD + self.0[word].ilog2() as usize)
    }

    fn meet(&mut self, other: &Bytes) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a &= b);
    }

    fn join(&mut self, other: &Bytes) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a |= b);
    }
}

/// The demand on one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::walk) struct Needed {
    /// Registers as bit sets.
    pub(super) live: u16,
    pub(super) exact: u16,
    /// Registers of which only one fact is needed: that they are less than 2^32.
    pub(super) half: u16,
    pub(super) live_bytes: Bytes,
    pub(super) exact_bytes: Bytes,
    /// The number of bytes of each region that are asked for. The first frame's entry holds for all frames.
    pub(super) lengths: [Length; Region::MAX_REGIONS],
}

impl Needed {
    const ALL: Needed = Needed {
        live: u16::MAX,
        exact: u16::MAX,
        half: u16::MAX,
        live_bytes: Bytes::ALL,
        exact_bytes: Bytes::ALL,
        lengths: [lens::ALL; Region::MAX_REGIONS],
    };

    fn join(&mut self, other: &Needed) {
        self.live |= other.live;
        self.exact |= other.exact;
        self.half |= other.half;
        self.live_bytes.join(&other.live_bytes);
        self.exact_bytes.join(&other.exact_bytes);
        self.lengths.iter_mut().zip(other.lengths).for_each(|(a, b)| *a = (*a).max(b));
    }

    pub(super) fn read(&mut self, regs: u16, exact: bool) {
        self.live |= regs;
        if exact {
            self.exact |= regs;
        }
    }

    pub(super) fn kill(&mut self, regs: u16) {
        self.live &= !regs;
        self.exact &= !regs;
        self.half &= !regs;
    }

    /// The demand with every live number and all lengths of regions exact.
    pub(in crate::walk) fn with_numbers(self) -> Needed {
        Needed { exact: self.live, exact_bytes: self.live_bytes, lengths: [lens::ALL; Region::MAX_REGIONS], ..self }
    }

    /// Whether the value of one of the registers is needed, or at least that it is less than 2^32.
    pub(super) fn is_exact(&self, regs: u16) -> bool {
        (self.exact | self.half) & regs != 0
    }

    /// Applies a comparison that has shown the register to be equal to a constant: its value is not needed before it.
    /// If only the low half was compared, the high half still is.
    pub(super) fn equal(&mut self, reg: u16, half: bool) {
        let needed = self.is_exact(reg);
        self.exact &= !reg;
        self.half &= !reg;
        if needed && half && !planted!(EqualHalves) {
            self.half |= reg;
        }
    }

    /// Replaces the need that a register is less than 2^32: if the kept state implies it, nothing else is needed;
    /// otherwise later comparisons show it, and the register is needed exactly.
    pub(in crate::walk) fn whole_or_exact(&mut self, regs: &[Value; 11]) {
        for (r, v) in regs.iter().enumerate() {
            if self.half >> r & 1 != 0 && !v.n.high_half_is_zero() && !planted!(HalvesUnknown) {
                self.exact |= 1 << r;
            }
        }
    }

    /// Applies a write to the register whose result is always less than 2^32.
    pub(super) fn is_half(&mut self, reg: u16) {
        self.half &= !reg;
    }

    /// Applies a move: the need of `dst` becomes the need of `src`.
    pub(super) fn moved(&mut self, dst: u16, src: u16) {
        let (exact, half) = (self.exact & dst != 0, self.half & dst != 0);
        self.kill(dst);
        self.read(src, exact);
        if half {
            self.half |= src;
        }
    }

    /// Forgets registers that are not live, and numbers that are not exact. Returns whether there were any.
    fn loosen_regs(&self, regs: &mut [Value; 11], searched: bool) -> bool {
        let mut any = false;
        for (r, v) in regs.iter_mut().enumerate().take(Reg::R10.index()) {
            if v.is_uninit() || searched && is_named(v) {
                continue;
            }
            if self.live >> r & 1 == 0 {
                *v = Value::uninit(Why::Dead);
                any = true;
            } else if v.is_scalar() && self.exact >> r & 1 == 0 {
                let half = self.half >> r & 1 != 0 && v.n.high_half_is_zero();
                *v = if half { Value::scalar(Scalar::low_bits(32)) } else { Value::unknown() };
                any = true;
            }
        }
        any
    }

    /// Forgets stack values that are not live or exact. Returns whether there were any.
    fn loosen_stack(&self, frame: &mut Frame, searched: bool) -> bool {
        // Bytes that are needed and implicitly fresh become explicitly fresh; other bytes may be anything.
        if let Some(last) = self.live_bytes.last() {
            frame.grow(last + 1);
        }
        frame.rest = Byte::Uninit;
        let (bytes, before) = (&mut frame.bytes, frame.spills.len());
        frame.spills.retain(|s| {
            let (end, top) = (usize::from(s.depth) - usize::from(s.size), usize::from(s.depth));
            if top > TRACKED || self.exact_bytes.any(end, top) || searched && is_named(&s.value) {
                return true;
            }
            let loose = s.value.is_scalar();
            if loose {
                bytes[end..top].fill(Byte::Misc);
            }
            !loose && self.live_bytes.any(end, top)
        });
        // Contents of arrays of which nothing is read are forgotten.
        frame.contents.retain(|c| {
            let (end, top) = (-(c.grid.last + c.grid.size), -c.grid.first);
            let (end, top) = (crate::num::size(end.unsigned_abs()), crate::num::size(top.unsigned_abs()));
            top > TRACKED || self.live_bytes.any(end, top)
        });
        for ((word, live), exact) in bytes.chunks_mut(WORD).zip(self.live_bytes.0).zip(self.exact_bytes.0) {
            if live == 0 {
                word.fill(Byte::Uninit);
                continue;
            }
            if live & exact == u64::MAX {
                continue;
            }
            for (i, byte) in word.iter_mut().enumerate() {
                if live >> i & 1 == 0 {
                    *byte = Byte::Uninit;
                } else if *byte == Byte::Zero && exact >> i & 1 == 0 {
                    *byte = Byte::Misc;
                }
            }
        }
        // A spill is needed whole if one of its bytes is.
        for s in &frame.spills {
            bytes[usize::from(s.depth) - usize::from(s.size)..usize::from(s.depth)].fill(Byte::Spill);
        }
        frame.spills.len() != before
    }
}

/// The reads while a round of a bounded construct is open, in the frames with which it was kept: by its own paths, by
/// those of later rounds, and by the code after the construct.
///
/// A path that ends in an open round continues as that round does, so the round's demand is a fixpoint: the least
/// demand that includes those of its paths, where paths that end in the round demand what the round does. Each demanded
/// byte is read by some step, so the set of all bytes read, in any order, is an upper bound.
#[derive(Debug)]
pub(in crate::walk) struct RoundReads {
    /// The kept round, by its number.
    number: u32,
    bytes: Vec<Bytes>,
    lengths: [Length; Region::MAX_REGIONS],
    /// Whether a path ended whose continuation is unknown.
    all: bool,
}

impl RoundReads {
    /// Begins the reads of a round with so many frames.
    pub(in crate::walk) fn new(number: u32, frames: usize) -> RoundReads {
        let lengths = Needed::default().lengths;
        RoundReads { number, bytes: vec![Bytes::default(); frames], lengths, all: false }
    }

    /// The bytes that the reads of so many frames take.
    pub(in crate::walk) fn of_frames(frames: usize) -> usize {
        frames * size_of::<Bytes>()
    }

    pub(in crate::walk) fn number(&self) -> u32 {
        self.number
    }

    /// Notes that bytes of a frame were read.
    pub(super) fn read(&mut self, frame: usize, from: usize, to: usize) {
        if let Some(bytes) = self.bytes.get_mut(frame).filter(|_| !planted!(RoundReadsForgotten)) {
            bytes.add(from, to);
        }
    }

    /// Notes that so many bytes of a region were asked for.
    pub(super) fn ask(&mut self, region: usize, asked: Length) {
        self.lengths[region] = self.lengths[region].max(asked);
    }

    /// Notes that a path ended as a finished state continued, which had this demand; `None` if that is unknown.
    pub(in crate::walk) fn goes_on(&mut self, needed: Option<&[Needed]>) {
        let Some(needed) = needed else {
            self.all = true;
            return;
        };
        for (bytes, needed) in self.bytes.iter_mut().zip(needed) {
            bytes.join(&needed.live_bytes);
        }
        if let Some(first) = needed.first() {
            self.lengths.iter_mut().zip(first.lengths).for_each(|(a, b)| *a = (*a).max(b));
        }
    }

    /// Restricts the demand of a round to the places that were read and that its state holds, after all its paths have
    /// ended and none rests on another round. In `demand`, paths that end in the round demand everything.
    pub(in crate::walk) fn restrict(&self, demand: &mut Demand, state: &State) {
        if self.all {
            return;
        }
        for (k, (bytes, frame)) in self.bytes.iter().zip(&state.frames).enumerate() {
            let needed = demand.frame(k);
            needed.live_bytes.meet(bytes);
            needed.exact_bytes.meet(bytes);
            for (r, v) in frame.regs.iter().enumerate().take(Reg::R10.index()) {
                if v.is_uninit() {
                    needed.kill(1 << r);
                } else if *v == Value::unknown() {
                    needed.exact &= !(1 << r);
                    needed.half &= !(1 << r);
                }
            }
        }
        let first = demand.frame(0);
        first.lengths.iter_mut().zip(self.lengths).for_each(|(a, b)| *a = (*a).min(b));
    }
}

/// The demand of a point of a path.
#[derive(Debug, Default)]
pub(in crate::walk) struct Demand {
    frames: [Needed; FRAMES],
    /// The number of frames of which something is needed.
    used: usize,
}

impl Demand {
    pub(super) fn frame(&mut self, f: usize) -> &mut Needed {
        self.used = self.used.max(f + 1);
        &mut self.frames[f]
    }

    pub(super) fn frames(&self) -> &[Needed] {
        &self.frames[..self.used]
    }

    /// Forgets the demands on frames from `count` on: a later frame at the same depth is another one.
    pub(super) fn truncate(&mut self, count: usize) {
        if count < self.used {
            self.frames[count..self.used].fill(Needed::default());
            self.used = count;
        }
    }

    pub(super) fn set(&mut self, frames: &[Needed]) {
        self.truncate(0);
        self.join(frames);
    }

    /// Demands everything in the first `frames` frames.
    pub(super) fn set_all(&mut self, frames: usize) {
        self.truncate(0);
        self.used = frames.min(FRAMES);
        self.frames[..self.used].fill(Needed::ALL);
    }

    pub(super) fn join(&mut self, frames: &[Needed]) {
        for (i, other) in frames.iter().enumerate() {
            self.frame(i).join(other);
        }
    }
}

/// Whether a search by name may have found this value.
fn is_named(v: &Value) -> bool {
    v.line_id() != 0 && !planted!(NamesakesForgotten)
}

/// Forgets everything in a state that is not needed, so that it covers all states that differ only there. Returns
/// whether a value was forgotten. `needed`: the demand by frame; missing frames need nothing. With `searched`, values
/// with names stay: some path may have looked for values by their names, as rules about sums and definitions do.
pub(in crate::walk) fn forget_unneeded(state: &mut State, needed: &[Needed], searched: bool) -> bool {
    let mut any = false;
    state.min_len.forget_all_but(&needed.first().copied().unwrap_or_default().lengths);
    for (k, frame) in state.frames.iter_mut().enumerate() {
        let needed = needed.get(k).copied().unwrap_or_default();
        any |= needed.loosen_regs(&mut frame.regs, searched);
        any |= needed.loosen_stack(frame, searched);
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_bytes() {
        for (from, to) in [(0, 0), (0, 1), (3, 64), (63, 65), (64, 128), (1, 512), (500, 600), (512, 600), (0, 700)] {
            let mut set = Bytes::default();
            set.add(from, to);
            let mut rest = Bytes::ALL;
            rest.remove(from, to);
            for byte in 0..TRACKED {
                let inside = (from..to).contains(&byte);
                assert_eq!((set.has(byte), rest.has(byte)), (inside, !inside), "{from} {to} {byte}");
                assert_eq!(set.any(byte, byte + 1), inside, "{from} {to} {byte}");
            }
            assert_eq!(set.any(0, TRACKED), from < to.min(TRACKED), "{from} {to}");
        }
    }
}
