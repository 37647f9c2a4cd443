//! Which bytes of its frame a subprogram may touch.
//!
//! Without a verifier, only the shape of the code can be trusted: as long as r10 is used as an address base and in no
//! other way, every stack access is an explicit constant offset. A program that copies r10 anywhere may reach the whole
//! frame.

use crate::facts::Private;
use crate::regs::{RegSet, uses};
use bpf_isa::{Insn, MemoryAccess, Reg, SubprogId};

/// How far below r10 an instruction reaches that reads r10; `None` if it is not a memory access at a constant offset,
/// after which the whole frame may be touched.
pub fn touched_below_r10(insn: &Insn) -> Option<u32> {
    let (off, others) = match insn.memory_access() {
        Some(MemoryAccess { base: Reg::R10, off, kind, .. }) => (off, kind.operand().map_or(RegSet::EMPTY, RegSet::of)),
        Some(_) | None => (0, uses(insn)),
    };
    (!others.contains(Reg::R10)).then_some((-i32::from(off)).max(0) as u32)
}

/// Bytes of a frame, as ranges of depths. The byte at depth `d` is the one at `r10 - d`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Depths {
    /// The depths above the first number, up to the second. Ascending; between two ranges there is at least one byte.
    ranges: Vec<(u32, u32)>,
}

impl Depths {
    /// Adds `bytes` bytes from `depth` upwards.
    fn insert(&mut self, depth: u32, bytes: u32) {
        let (mut least, mut greatest) = (depth.saturating_sub(bytes), depth);
        if least == greatest {
            return;
        }
        let from = self.ranges.partition_point(|range| range.1 < least);
        let to = self.ranges.partition_point(|range| range.0 <= greatest);
        if let Some(joined) = self.ranges.get(from..to)
            && let (Some(first), Some(last)) = (joined.first(), joined.last())
        {
            (least, greatest) = (least.min(first.0), greatest.max(last.1));
        }
        self.ranges.splice(from..to, [(least, greatest)]);
    }

    /// The depth and the number of bytes of each range that lacks here, of a frame of `bytes` bytes; ascending by
    /// depth.
    fn others(&self, bytes: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let ends = self.ranges.iter().map(|range| range.0).chain([bytes]);
        let starts = [0].into_iter().chain(self.ranges.iter().map(|range| range.1));
        starts.zip(ends).filter_map(move |(from, to)| {
            let to = to.min(bytes);
            (from < to).then(|| (to, to - from))
        })
    }
}

/// The bytes of each function's frame that a program accesses, noted access by access.
#[derive(Clone, Debug, Default)]
pub struct FrameUse {
    frames: Vec<Frame>,
}

#[derive(Clone, Debug, Default)]
struct Frame {
    /// The greatest accessed depth.
    depth: u32,
    /// The bytes that are accessed through another register than r10.
    pointed: Depths,
}

impl FrameUse {
    /// Begins anew, for a program with so many functions. Keeps the memory.
    pub fn start(&mut self, functions: usize) {
        self.frames.clear();
        self.frames.resize_with(functions, Frame::default);
    }

    /// Notes that an access through `reg` reaches at most `bytes` bytes of the function's frame, from `depth` upwards.
    pub fn note(&mut self, function: u32, depth: u32, bytes: u32, reg: Reg) {
        let Some(frame) = self.frames.get_mut(function as usize) else { return };
        frame.depth = frame.depth.max(depth);
        if reg != Reg::R10 {
            frame.pointed.insert(depth, bytes);
        }
    }

    /// The greatest accessed depth of each function's frame.
    pub fn depths(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.frames.iter().map(|frame| frame.depth)
    }

    /// The bytes of each function's frame, down to the greatest depth, that are not accessed through another register
    /// than r10.
    pub fn private(&self) -> Vec<Private> {
        let of = |(id, frame): (u32, &'_ Frame)| {
            let range = move |(depth, bytes)| Private { subprog: SubprogId(id), depth, bytes };
            frame.pointed.others(frame.depth).map(range).collect::<Vec<_>>()
        };
        (0..).zip(&self.frames).flat_map(of).collect()
    }

    /// The size in bytes of the memory that it holds.
    pub fn memory(&self) -> usize {
        let ranges = self.frames.iter().map(|frame| frame.pointed.ranges.capacity() * size_of::<(u32, u32)>());
        self.frames.capacity() * size_of::<Frame>() + ranges.sum::<usize>()
    }

    /// Frees memory beyond so many bytes.
    pub fn trim(&mut self, bytes: usize) {
        self.frames.clear();
        self.frames.shrink_to(bytes / size_of::<Frame>());
    }
}

#[cfg(test)]
mod tests {
    use super::Depths;

    /// Compares with a set of bytes.
    #[test]
    fn depths_are_those_added() {
        let mut seed = 1u32;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) % below
        };
        for _ in 0..2000 {
            let (mut depths, mut bytes) = (Depths::default(), [false; 65]);
            for _ in 0..random(7) {
                let depth = 1 + random(64);
                let size = 1 + random(depth.min(9));
                depths.insert(depth, size);
                (depth - size + 1..=depth).for_each(|d| bytes[d as usize] = true);
            }
            let others: Vec<(u32, u32)> = depths.others(64).collect();
            let expected = |d: u32| others.iter().any(|(depth, size)| d > depth - size && d <= *depth);
            (1..=64).for_each(|d| assert_eq!(bytes[d as usize], !expected(d), "{depths:?} at {d}"));
            assert!(others.windows(2).all(|pair| pair[0].0 < pair[1].0 - pair[1].1), "{others:?}");
        }
    }
}
