//! Branch relaxation for both architectures: chooses between short and long branches.
//!
//! Problem: a branch's size depends on its distance, the distance on the sizes of the branches between. Approach: the
//! emitter writes every branch in its *long* form (as reserved bytes) and registers it here; [`Layout::finish`] starts
//! with all branches short, lengthens branches that do not reach until nothing changes, and then moves the code
//! together once. Sizes only grow, so the relaxation ends; the result is the least fixpoint, so it is as small as any.
//!
//! Alignment is exact in every round: padding may shrink as branches grow, but branches never shrink, so the rounds
//! still end.
//!
//! A loop may need padding so that its blocks lie in as few cache lines as possible (`loops.rs`). The padding depends
//! on the lengths of the branches, which it may change again. So both are computed in turn, a few times, and
//! lengthening branches comes last. A loop that is moved by that last step lies no worse than without padding.
//!
//! A patch slot may need padding so that it does not cross an aligned eight-byte word. Distances are judged with
//! every padding at its maximum, because the actual padding is known only while moving: actual distances are never
//! longer.
//!
//! Invariants: registration happens in code order; marks (labels, relocations, line entries) are offsets in the long
//! form and ascend, so that moving them is one merge.

mod loops;

use crate::code::{Arch, PATCH_WORD, PatchSlot};
use loops::Block;

/// A place in the code, bound once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Label(pub u32);

/// The encoding of one kind of branch.
pub trait Branch: Copy {
    /// Architecture, for patch slots.
    const ARCH: Arch;
    /// Length of the short and of the long form in bytes; equal if there is only one form.
    fn lengths(self) -> (u8, u8);
    /// Whether the short form reaches a target `distance` bytes after the branch's first byte.
    fn short_reaches(self, distance: i64) -> bool;
    /// Whether the long form reaches it.
    fn long_reaches(self, distance: i64) -> bool;
    /// Appends the branch in the short or long form.
    fn write(self, long: bool, distance: i64, out: &mut Vec<u8>);
    /// Appends `len` bytes that do nothing.
    fn pad(len: usize, out: &mut Vec<u8>);
}

/// A function too long even for the long form of a branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfReach {
    /// Offset of the branch.
    pub at: u32,
    /// Its distance in bytes.
    pub distance: i64,
}

impl core::fmt::Display for OutOfReach {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the branch at code offset {} cannot reach a target {} bytes away", self.at, self.distance)
    }
}

impl core::error::Error for OutOfReach {}

#[derive(Clone, Copy, Debug)]
enum Site<B> {
    /// A branch in the body, `len` bytes in its current form.
    Branch { at: u32, branch: B, target: Label, len: u8 },
    /// Up to `max` bytes of padding so that the patch slot that follows does not cross a word.
    Pad { at: u32, max: u8 },
    /// Before the loop with this number: `len` bytes of padding in the current layout, at most `max`.
    Loop { at: u32, number: u32, max: u8, len: u8 },
    /// Up to `to - 1` bytes, so that the following code lies at a multiple of `to`; `len` in the current layout.
    Align { at: u32, to: u8, fill: [u8; 4], len: u8 },
}

impl<B: Branch> Site<B> {
    fn at(&self) -> u32 {
        match *self {
            Site::Branch { at, .. } | Site::Pad { at, .. } | Site::Loop { at, .. } | Site::Align { at, .. } => at,
        }
    }
    fn reserved(&self) -> u32 {
        match *self {
            Site::Branch { branch, .. } => branch.lengths().1.into(),
            Site::Pad { max, .. } | Site::Loop { max, .. } => max.into(),
            Site::Align { to, .. } => u32::from(to) - 1,
        }
    }
    /// Bytes saved against the reserved form, with paddings counted at their maximum.
    fn saved(&self) -> u32 {
        match *self {
            Site::Branch { len, .. } | Site::Loop { len, .. } | Site::Align { len, .. } => {
                self.reserved() - u32::from(len)
            }
            Site::Pad { .. } => 0,
        }
    }
}

/// A bound label: its offset in the long form, and the number of sites before it.
#[derive(Clone, Copy, Debug)]
struct Bound {
    at: u32,
    sites: u32,
}

const UNBOUND: Bound = Bound { at: u32::MAX, sites: 0 };

/// The largest padding before a loop, in bytes.
pub const LOOP_PADDING: u8 = 63;
/// Most rounds of padding loops: padding may lengthen branches, which moves the loops.
const PLACINGS: u32 = 3;

/// A loop: the labels bound in it as a range of [`Layout::inside`]; the last one is its end.
#[derive(Clone, Copy, Debug)]
struct Loop {
    first: u32,
    after: u32,
}

/// Branches and labels of the code being emitted. Reused for the next program.
#[derive(Debug)]
pub struct Layout<B> {
    sites: Vec<Site<B>>,
    labels: Vec<Bound>,
    /// `saved_before[i]`: bytes saved by the sites before site `i`.
    saved_before: Vec<u32>,
    loops: Vec<Loop>,
    /// The labels that were bound in loops, in code order.
    inside: Vec<Label>,
    /// The end of the loop being emitted.
    open: Option<Label>,
}

impl<B: Branch> Default for Layout<B> {
    fn default() -> Self {
        Layout {
            sites: Vec::new(),
            labels: Vec::new(),
            saved_before: Vec::new(),
            loops: Vec::new(),
            inside: Vec::new(),
            open: None,
        }
    }
}

/// Converts a position in code, or a number of labels or branches, of which there are fewer than bytes.
#[expect(clippy::cast_possible_truncation, reason = "emitters bound the length of code, and debug builds check it")]
fn small(len: usize) -> u32 {
    debug_assert!(len <= u32::MAX as usize);
    len as u32
}

impl<B: Branch> Layout<B> {
    /// Empties the layout and keeps the memory.
    pub fn clear(&mut self) {
        self.sites.clear();
        self.labels.clear();
        self.loops.clear();
        self.inside.clear();
        self.open = None;
    }

    /// Creates a label that is not bound yet.
    pub fn label(&mut self) -> Label {
        self.labels.push(UNBOUND);
        Label(small(self.labels.len()) - 1)
    }

    /// Creates `n` labels with consecutive numbers, and returns the first.
    pub fn labels(&mut self, n: u32) -> Label {
        let first = Label(small(self.labels.len()));
        self.labels.resize(self.labels.len() + n as usize, UNBOUND);
        first
    }

    /// Binds `label` to the end of `buf`.
    pub fn bind(&mut self, buf: &[u8], label: Label) {
        debug_assert_eq!(self.labels[label.0 as usize].at, u32::MAX, "a label is bound once");
        self.labels[label.0 as usize] = Bound { at: small(buf.len()), sites: small(self.sites.len()) };
        if let Some(end) = self.open {
            self.bind_inside(label, end);
        }
    }

    /// Records a label that was bound inside a loop.
    fn bind_inside(&mut self, label: Label, end: Label) {
        self.inside.push(label);
        if label == end {
            self.open = None;
            let after = small(self.inside.len());
            if let Some(of) = self.loops.last_mut() {
                of.after = after;
            }
        }
    }

    /// Reserves a branch to `target` at the end of `buf`.
    pub fn branch(&mut self, buf: &mut Vec<u8>, branch: B, target: Label) {
        let (short, long) = branch.lengths();
        self.sites.push(Site::Branch { at: small(buf.len()), branch, target, len: short });
        buf.resize(buf.len() + usize::from(long), 0);
    }

    /// Reserves padding so that a patch slot emitted next does not cross an aligned word.
    pub fn align_patch_slot(&mut self, buf: &mut Vec<u8>) {
        let max = match B::ARCH {
            // A five-byte slot at offset 4 to 7 of a word crosses its end: up to 4 bytes of padding.
            Arch::X64 => 4u8,
            Arch::Arm64 => return,
        };
        self.sites.push(Site::Pad { at: small(buf.len()), max });
        buf.resize(buf.len() + usize::from(max), 0);
    }

    /// Begins a loop at the end of `buf`, which contains no other loop and ends where `end` is bound. Up to `max`
    /// bytes of padding, at most [`LOOP_PADDING`], are put before it if its blocks then lie in fewer cache lines.
    /// Each label bound before its end begins a block.
    pub fn align_loop(&mut self, buf: &mut Vec<u8>, end: Label, max: u8) {
        debug_assert!(self.open.is_none(), "it has no other one in it");
        let first = small(self.inside.len());
        self.sites.push(Site::Loop { at: small(buf.len()), number: small(self.loops.len()), max, len: 0 });
        self.loops.push(Loop { first, after: first });
        self.open = Some(end);
        buf.resize(buf.len() + usize::from(max), 0);
    }

    /// Aligns the next instruction to `to` bytes from the start of the code, a power of two up to 128. The bytes
    /// before it repeat `fill` and must not be executed. Only for code without patch slots, whose padding is not
    /// known before the code is written.
    pub fn align(&mut self, buf: &mut Vec<u8>, to: u8, fill: [u8; 4]) {
        debug_assert!(to.is_power_of_two() && !self.sites.iter().any(|site| matches!(site, Site::Pad { .. })));
        self.sites.push(Site::Align { at: small(buf.len()), to, fill, len: 0 });
        buf.resize(buf.len() + usize::from(to) - 1, 0);
    }

    /// Binds `label` to the end of `buf`, and removes a branch to it that was reserved last and ends there: control
    /// falls through.
    pub fn bind_behind(&mut self, buf: &mut Vec<u8>, label: Label) {
        if let Some(Site::Branch { at, branch, target, .. }) = self.sites.last()
            && *target == label
            && *at as usize + usize::from(branch.lengths().1) == buf.len()
            && !self.labels.iter().any(|bound| bound.at != u32::MAX && bound.at > *at)
        {
            buf.truncate(*at as usize);
            self.sites.pop();
        }
        self.bind(buf, label);
    }

    /// Chooses the forms and appends the final code to `out`, which must be empty or end at an aligned word.
    /// Afterwards [`Layout::offset`] returns the final offsets of labels, and [`Layout::relocate`] those of other
    /// marks.
    pub fn finish(&mut self, buf: &[u8], out: &mut Vec<u8>) -> Result<(), OutOfReach> {
        self.relax()?;
        if !self.loops.is_empty() {
            self.pad_loops(small(out.len()))?;
        }
        self.write(buf, out);
        Ok(())
    }

    /// Pads loops, and lengthens branches that then do not reach. The code will begin at `base`.
    fn pad_loops(&mut self, base: u32) -> Result<(), OutOfReach> {
        // Number of jumps to each label.
        let mut jumps = vec![0u32; self.labels.len()];
        for site in &self.sites {
            if let Site::Branch { target, .. } = site {
                jumps[target.0 as usize] += 1;
            }
        }
        for _ in 0..PLACINGS {
            if !self.place_loops(base, &jumps) {
                break;
            }
            self.relax()?;
        }
        Ok(())
    }

    /// Pads loops by their current places; returns whether any padding has changed.
    fn place_loops(&mut self, base: u32, jumps: &[u32]) -> bool {
        // Growth of earlier paddings, less their shrinkage.
        let mut moved = 0u32;
        let mut changed = false;
        let mut blocks: Vec<Block> = Vec::new();
        for i in 0..self.sites.len() {
            let Site::Loop { at, number, max, len } = self.sites[i] else { continue };
            let start = (base + at - self.saved_before[i]).wrapping_add(moved);
            let after = at + u32::from(max) - self.saved_before[i + 1];
            let Loop { first, after: end } = self.loops[number as usize];
            blocks.clear();
            blocks.push(Block { start: 0, jumps: 0 });
            for label in &self.inside[first as usize..end as usize] {
                let bound = self.labels[label.0 as usize];
                let start = bound.at - self.saved_before[bound.sites as usize] - after;
                let jumps = jumps[label.0 as usize];
                match blocks.last_mut() {
                    Some(same) if same.start == start => same.jumps += jumps,
                    _ => blocks.push(Block { start, jumps }),
                }
            }
            // The last label is the end of the loop, where another block begins.
            let end = if blocks.len() > 1 { blocks.pop() } else { None };
            let padding = end.map_or(0, |end| loops::padding(start, end.start, &blocks, max.into()));
            let padding = padding.to_le_bytes()[0];
            moved = moved.wrapping_add(padding.into()).wrapping_sub(len.into());
            changed |= padding != len;
            self.sites[i] = Site::Loop { at, number, max, len: padding };
        }
        changed
    }

    /// Turns ascending offsets in the buffer into offsets in the final code, after [`Layout::finish`].
    pub fn relocate<'m>(&self, marks: impl Iterator<Item = &'m mut u32>) {
        let mut next = 0;
        // The offset of the next site, after which more bytes are saved.
        let mut until = self.sites.first().map_or(u32::MAX, Site::at);
        let mut saved = 0;
        for mark in marks {
            while until < *mark {
                next += 1;
                until = self.sites.get(next).map_or(u32::MAX, Site::at);
                saved = self.saved_before[next];
            }
            *mark -= saved;
        }
    }

    /// Final offset of a bound label, after [`Layout::finish`]; `None` if it was never bound.
    pub fn offset(&self, label: Label) -> Option<u32> {
        let bound = self.labels.get(label.0 as usize)?;
        (bound.at != u32::MAX).then(|| bound.at - self.saved_before[bound.sites as usize])
    }

    fn sum_saved(&mut self) {
        self.saved_before.clear();
        let mut saved = 0;
        for site in &mut self.sites {
            self.saved_before.push(saved);
            if let Site::Align { at, to, len, .. } = site {
                *len = (*at - saved).wrapping_neg().to_le_bytes()[0] & (*to - 1);
            }
            saved += site.saved();
        }
        self.saved_before.push(saved);
    }

    /// Lengthens branches until all reach their targets.
    fn relax(&mut self) -> Result<(), OutOfReach> {
        loop {
            self.sum_saved();
            let mut grown = false;
            for i in 0..self.sites.len() {
                let Site::Branch { at, branch, target, len } = self.sites[i] else { continue };
                let here = i64::from(at - self.saved_before[i]);
                let there = &self.labels[target.0 as usize];
                let distance = i64::from(there.at - self.saved_before[there.sites as usize]) - here;
                let (short, long) = branch.lengths();
                if len == short && short != long && !branch.short_reaches(distance) {
                    self.sites[i] = Site::Branch { at, branch, target, len: long };
                    grown = true;
                } else if (len == long || short == long) && !branch.long_reaches(distance) {
                    return Err(OutOfReach { at, distance });
                }
            }
            if !grown {
                return Ok(());
            }
        }
    }

    /// Moves the code together. Paddings get their actual size, so `saved_before` becomes exact in the process. A
    /// second pass writes the branches, when every offset is final.
    fn write(&mut self, buf: &[u8], out: &mut Vec<u8>) {
        let base = small(out.len());
        let slot = PatchSlot::len_on(B::ARCH);
        let mut saved = 0u32;
        for (i, site) in self.sites.iter().enumerate() {
            self.saved_before[i] = saved;
            saved += match *site {
                Site::Branch { .. } | Site::Loop { .. } | Site::Align { .. } => site.saved(),
                Site::Pad { at, max } => {
                    let start = base + at - saved;
                    let crosses = start / PATCH_WORD != (start + slot - 1) / PATCH_WORD;
                    let pad = if crosses { PATCH_WORD - start % PATCH_WORD } else { 0 };
                    u32::from(max) - pad
                }
            };
        }
        self.saved_before[self.sites.len()] = saved;

        out.reserve(buf.len() - saved as usize);
        let mut copied = 0usize;
        for (i, site) in self.sites.iter().enumerate() {
            out.extend_from_slice(&buf[copied..site.at() as usize]);
            copied = (site.at() + site.reserved()) as usize;
            match *site {
                Site::Branch { at, branch, target, len } => {
                    let there = &self.labels[target.0 as usize];
                    let there = i64::from(there.at - self.saved_before[there.sites as usize]);
                    let distance = there - i64::from(at - self.saved_before[i]);
                    let (short, long) = branch.lengths();
                    branch.write(len == long && short != long, distance, out);
                }
                Site::Pad { max, .. } => {
                    let saved_here = self.saved_before[i + 1] - self.saved_before[i];
                    B::pad(usize::from(max) - saved_here as usize, out);
                }
                Site::Loop { len, .. } => B::pad(len.into(), out),
                Site::Align { fill, len, .. } => out.extend(fill.iter().cycle().take(len.into())),
            }
        }
        out.extend_from_slice(&buf[copied..]);
    }
}

#[cfg(test)]
mod tests {
    use super::loops::LINE;
    use super::*;

    /// x86-64 `jmp`: sufficient to test the algorithm.
    #[derive(Clone, Copy)]
    struct Jmp;

    impl Branch for Jmp {
        const ARCH: Arch = Arch::X64;
        fn lengths(self) -> (u8, u8) {
            (2, 5)
        }
        fn short_reaches(self, distance: i64) -> bool {
            i8::try_from(distance - 2).is_ok()
        }
        fn long_reaches(self, distance: i64) -> bool {
            i32::try_from(distance - 5).is_ok()
        }
        fn write(self, long: bool, distance: i64, out: &mut Vec<u8>) {
            if long {
                out.push(0xe9);
                out.extend_from_slice(&((distance - 5) as i32).to_le_bytes());
            } else {
                out.push(0xeb);
                out.push((distance - 2) as u8);
            }
        }
        fn pad(len: usize, out: &mut Vec<u8>) {
            out.resize(out.len() + len, 0x90);
        }
    }

    /// Follows the code from `at` through jumps and 0x11 filler, and returns the offsets of the jumps' targets.
    fn targets(code: &[u8]) -> Vec<usize> {
        let mut at = 0;
        let mut out = Vec::new();
        while at < code.len() {
            match code[at] {
                0xeb => {
                    out.push((at as i64 + 2 + i64::from(code[at + 1] as i8)) as usize);
                    at += 2;
                }
                0xe9 => {
                    let d = i32::from_le_bytes(code[at + 1..at + 5].try_into().unwrap());
                    out.push((at as i64 + 5 + i64::from(d)) as usize);
                    at += 5;
                }
                _ => at += 1,
            }
        }
        out
    }

    /// The naive twin: try all short, lengthen the first branch that does not reach, start again.
    fn naive(gaps: &[usize], jumps: &[(usize, usize)]) -> Vec<bool> {
        // Position `i` is before gap `i`; jump `k` is at the start of gap `jumps[k].0`.
        let mut long = vec![false; jumps.len()];
        'again: loop {
            let mut start = vec![0usize; gaps.len() + 1];
            let mut at = vec![0usize; jumps.len()];
            let mut pos = 0;
            for g in 0..gaps.len() {
                start[g] = pos;
                for (k, j) in jumps.iter().enumerate() {
                    if j.0 == g {
                        at[k] = pos;
                        pos += if long[k] { 5 } else { 2 };
                    }
                }
                pos += gaps[g];
            }
            start[gaps.len()] = pos;
            for (k, j) in jumps.iter().enumerate() {
                let distance = start[j.1] as i64 - at[k] as i64;
                if !long[k] && i8::try_from(distance - 2).is_err() {
                    long[k] = true;
                    continue 'again;
                }
            }
            return long;
        }
    }

    #[test]
    fn agrees_with_the_naive_twin() {
        let mut seed = 1u64;
        let mut next = |n: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % n
        };
        for _ in 0..2000 {
            let gaps: Vec<usize> = (0..1 + next(12)).map(|_| next(90)).collect();
            let mut jumps: Vec<(usize, usize)> =
                (0..next(16)).map(|_| (next(gaps.len()), next(gaps.len() + 1))).collect();
            jumps.sort();
            let long = naive(&gaps, &jumps);

            let mut layout = Layout::default();
            let mut buf = Vec::new();
            let first = layout.labels(gaps.len() as u32 + 1);
            let mut marks = Vec::new();
            for (g, len) in gaps.iter().enumerate() {
                layout.bind(&buf, Label(first.0 + g as u32));
                marks.push(small(buf.len()));
                for j in jumps.iter().filter(|j| j.0 == g) {
                    layout.branch(&mut buf, Jmp, Label(first.0 + j.1 as u32));
                }
                buf.resize(buf.len() + len, 0x11);
            }
            layout.bind(&buf, Label(first.0 + gaps.len() as u32));
            let mut out = Vec::new();
            layout.finish(&buf, &mut out).unwrap();
            layout.relocate(marks.iter_mut());

            let size: usize = gaps.iter().sum::<usize>() + long.iter().map(|l| if *l { 5 } else { 2 }).sum::<usize>();
            assert_eq!(out.len(), size);
            let offsets: Vec<usize> =
                jumps.iter().map(|j| layout.offset(Label(first.0 + j.1 as u32)).unwrap() as usize).collect();
            assert_eq!(targets(&out), offsets);
            for (g, mark) in marks.iter().enumerate() {
                assert_eq!(*mark, layout.offset(Label(first.0 + g as u32)).unwrap());
            }
        }
    }

    #[test]
    fn reach_is_exact_at_the_border() {
        for (gap, size) in [(127, 2 + 127), (128, 5 + 128)] {
            let mut layout = Layout::default();
            let mut buf = Vec::new();
            let end = layout.label();
            layout.branch(&mut buf, Jmp, end);
            buf.resize(buf.len() + gap, 0x11);
            layout.bind(&buf, end);
            let mut out = Vec::new();
            layout.finish(&buf, &mut out).unwrap();
            assert_eq!(out.len(), size);
        }
    }

    #[test]
    fn aligned_targets_are_aligned_and_reached() {
        let mut seed = 7u64;
        let mut next = |n: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % n
        };
        for _ in 0..500 {
            let mut layout = Layout::default();
            let mut buf = Vec::new();
            let n = 1 + next(10);
            let labels: Vec<Label> = (0..n).map(|_| layout.label()).collect();
            for label in &labels {
                for _ in 0..next(3) {
                    layout.branch(&mut buf, Jmp, labels[next(n)]);
                }
                buf.resize(buf.len() + next(60), 0x11);
                layout.align(&mut buf, 16, [0xcc; 4]);
                layout.bind(&buf, *label);
            }
            let mut out = Vec::new();
            layout.finish(&buf, &mut out).unwrap();
            let offsets: Vec<usize> = labels.iter().map(|label| layout.offset(*label).unwrap() as usize).collect();
            assert!(offsets.iter().all(|at| at % 16 == 0), "{offsets:?}");
            assert!(targets(&out).iter().all(|target| offsets.contains(target)), "{offsets:?}");
        }
    }

    #[test]
    fn loops_lie_in_as_few_lines_as_they_can() {
        let mut seed = 9u64;
        let mut next = |n: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % n
        };
        let mut padded = 0;
        for _ in 0..500 {
            let mut layout = Layout::default();
            let mut buf = Vec::new();
            let mut loops = Vec::new();
            // Backward jumps, some of which reach in short form and some not, for any padding.
            for _ in 0..1 + next(8) {
                buf.resize(buf.len() + next(100), 0x11);
                let end = layout.label();
                let before = small(buf.len());
                layout.align_loop(&mut buf, end, 63);
                let head = layout.label();
                layout.bind(&buf, head);
                let mark = small(buf.len());
                buf.resize(buf.len() + 1 + next(120), 0x11);
                layout.branch(&mut buf, Jmp, head);
                layout.bind(&buf, end);
                loops.push((before, mark, head, end));
            }
            let mut out = Vec::new();
            layout.finish(&buf, &mut out).unwrap();
            let mut marks: Vec<u32> = loops.iter().flat_map(|(before, mark, ..)| [*before, *mark]).collect();
            layout.relocate(marks.iter_mut());
            let mut heads = Vec::new();
            for ((_, _, head, end), marks) in loops.iter().zip(marks.chunks(2)) {
                let (head, end) = (layout.offset(*head).unwrap(), layout.offset(*end).unwrap());
                assert_eq!((end - 1) / LINE - head / LINE + 1, (end - head).div_ceil(LINE));
                // The code before the loop is not moved by its padding, which does nothing.
                assert_eq!(marks[1], head);
                assert!(out[marks[0] as usize..head as usize].iter().all(|byte| *byte == 0x90));
                padded += usize::from(marks[0] != head);
                heads.push(head as usize);
            }
            assert_eq!(targets(&out), heads);
        }
        assert!(padded > 100, "{padded}");
    }

    #[test]
    fn a_loop_that_would_need_more_padding_stays_where_it_is() {
        for (lead, at) in [(33, 64), (32, 32)] {
            let mut layout: Layout<Jmp> = Layout::default();
            let mut buf = vec![0x11; lead];
            let end = layout.label();
            layout.align_loop(&mut buf, end, 31);
            let head = layout.label();
            layout.bind(&buf, head);
            buf.extend_from_slice(&[0x11; 60]);
            layout.bind(&buf, end);
            layout.finish(&buf, &mut Vec::new()).unwrap();
            assert_eq!(layout.offset(head), Some(at), "{lead}");
        }
    }

    #[test]
    fn a_branch_to_what_follows_is_taken_back() {
        let mut layout = Layout::default();
        let mut buf = vec![0x11];
        let (end, other) = (layout.label(), layout.label());
        layout.branch(&mut buf, Jmp, other);
        layout.branch(&mut buf, Jmp, end);
        layout.bind_behind(&mut buf, end);
        layout.bind_behind(&mut buf, other);
        let mut out = Vec::new();
        layout.finish(&buf, &mut out).unwrap();
        // The first jump stays, because a label lies after it.
        assert_eq!(out, [0x11, 0xeb, 0x00]);
    }

    #[test]
    fn patch_slots_never_cross_a_word() {
        for lead in 0..16usize {
            let mut layout: Layout<Jmp> = Layout::default();
            let mut buf = vec![0x11; lead];
            layout.align_patch_slot(&mut buf);
            let mut mark = small(buf.len());
            buf.extend_from_slice(&[0xcc; 5]);
            let mut out = Vec::new();
            layout.finish(&buf, &mut out).unwrap();
            layout.relocate(core::iter::once(&mut mark));
            assert!(PatchSlot::new(Arch::X64, mark).is_ok(), "lead {lead}");
            assert_eq!(&out[mark as usize..mark as usize + 5], &[0xcc; 5]);
        }
    }
}
