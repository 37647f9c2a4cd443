//! Which stack slots a kept state is still needed for.
//!
//! Problem: two paths that meet with different values on the stack cannot be merged, though no path reads these values again.
//! Registers' needs come from one pass over the program ([`crate::need`]), but a program reaches its stack through pointers, of
//! which such a pass knows little. The walk knows every address. So reads are marked as the walk makes them: in all kept states
//! on the path, from the newest back to the one after which the slot was written. When all paths from a kept state are finished,
//! its marks are complete, and the slots without one are forgotten ([`Pruner::close`]). The idea is the kernel's
//! (`REG_LIVE_READ` of its slots); forgetting keeps comparison simple.
//!
//! Invariants: the open kept states are those on the current path, oldest first. A slot marked in one of them is marked in all
//! before it, back to the write. A path that ends because an open state covers it goes on as that one does, in ways not known
//! yet: it reads everything. Only a write of a whole slot ends a slot's life; slots beyond the first 512 bytes never die.

use bpf_isa::MAX_CALL_DEPTH;

use super::Walk;
use super::prune::{Kept, Pruner};
use crate::state::{Byte, State};

/// Bytes of a slot: that of a spilled pointer.
const SLOT: usize = 8;
/// Slots of a frame with a bit.
const TRACKED: usize = u64::BITS as usize;

/// A set of slots: a word a frame; bit i is the eight bytes that end at r10 - 8i.
pub(super) type Slots = [u64; MAX_CALL_DEPTH as usize];

/// The slots with a byte among the `size` bytes from r10 - depth.
fn touched(depth: usize, size: usize) -> u64 {
    range((depth - size) / SLOT, depth.div_ceil(SLOT))
}

/// The slots that lie in them whole.
fn whole(depth: usize, size: usize) -> u64 {
    range((depth - size).div_ceil(SLOT), depth / SLOT)
}

/// Bits `from .. to`, of those that there are.
fn range(from: usize, to: usize) -> u64 {
    let below = |bit: usize| if bit >= TRACKED { u64::MAX } else { (1 << bit) - 1 };
    below(to) & !below(from)
}

impl Walk<'_> {
    /// The path reads the `size` bytes from r10 - depth of a frame.
    pub(super) fn reads_stack(&mut self, frame: usize, depth: usize, size: usize) {
        self.scratch.prune.mark(&self.written, frame, touched(depth, size));
    }

    /// The path writes them all: what was there is gone.
    pub(super) fn writes_stack(&mut self, frame: usize, depth: usize, size: usize) {
        self.written[frame] |= whole(depth, size);
    }
}

impl Pruner {
    /// The path, which has written these slots since the newest kept state, reads some of a frame.
    pub(super) fn mark(&mut self, written: &Slots, frame: usize, slots: u64) {
        let mut slots = slots & !written[frame];
        for (nth, (i, _)) in self.open.iter().enumerate().rev() {
            debug_assert!(self.marked_back(nth, frame));
            let kept = &mut self.kept[*i as usize];
            // Where it is marked, it is marked all the way back.
            slots &= !kept.read[frame];
            if slots == 0 {
                return;
            }
            kept.read[frame] |= slots;
            slots &= !kept.written[frame];
        }
    }

    /// Whether what is marked in the `nth` open state is marked in the one before it too, but for what was written between them: with
    /// this true of all, each mark reaches the write, or the root. For checks.
    fn marked_back(&self, nth: usize, frame: usize) -> bool {
        let Some(before) = nth.checked_sub(1) else { return true };
        let [before, here] = [before, nth].map(|n| &self.kept[self.open[n].0 as usize]);
        here.read[frame] & !here.written[frame] & !before.read[frame] == 0
    }

    /// The path ends here and goes on as the kept state does.
    pub(super) fn mark_as(&mut self, written: &Slots, kept: u32) {
        let Kept { read, open, .. } = self.kept[kept as usize];
        for (frame, read) in read.into_iter().enumerate() {
            self.mark(written, frame, if open { u64::MAX } else { read });
        }
    }

    /// All paths from the kept state are finished: forgets the slots that none of them read.
    pub(super) fn close(&mut self, i: u32) {
        let kept = &mut self.kept[i as usize];
        kept.open = false;
        if forget_slots(&mut kept.state, &kept.read) {
            super::prune::forget_ids(&mut kept.state, &mut self.id_scratch);
        }
    }
}

/// Forgets all slots but the live ones. Whether any value was among them.
fn forget_slots(state: &mut State, live: &Slots) -> bool {
    let mut any = false;
    for (frame, live) in state.frames.iter_mut().zip(live) {
        if *live == u64::MAX {
            continue;
        }
        let before = frame.spills.len();
        frame.spills.retain(|s| {
            let (depth, size) = (usize::from(s.depth), usize::from(s.size));
            depth > SLOT * TRACKED || touched(depth, size) & live != 0
        });
        any |= frame.spills.len() != before;
        for (slot, bytes) in frame.bytes.chunks_mut(SLOT).enumerate().take(TRACKED) {
            if live >> slot & 1 == 0 {
                bytes.fill(Byte::Uninit);
            }
        }
        // A spill over two slots lives if one of them does.
        for s in &frame.spills {
            frame.bytes[usize::from(s.depth) - usize::from(s.size)..usize::from(s.depth)].fill(Byte::Spill);
        }
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every access of the first slots, byte by byte.
    #[test]
    fn slots_of_an_access() {
        for depth in 1..=40 {
            for size in 1..=depth {
                let bytes: Vec<usize> = (depth - size..depth).collect();
                for slot in 0..6 {
                    let mine = |b: &&usize| **b / SLOT == slot;
                    let count = bytes.iter().filter(mine).count();
                    assert_eq!(touched(depth, size) >> slot & 1 == 1, count > 0, "{depth} {size} {slot}");
                    assert_eq!(whole(depth, size) >> slot & 1 == 1, count == SLOT, "{depth} {size} {slot}");
                }
            }
        }
        assert_eq!((touched(512, 8), whole(512, 8), touched(520, 8)), (1 << 63, 1 << 63, 0));
        assert_eq!((touched(1024, 1024), whole(1024, 1023)), (u64::MAX, u64::MAX - 1));
    }
}
