//! What is true of every element of an array on the stack.
//!
//! Problem: a store at an index that is not known exactly may land anywhere in an array, so no slot keeps its value,
//! and what is loaded from there could be any number: one that is an index again (a queue, a parent, a failure table)
//! is then not bounded. Approach: a frame says of places at equal distances that what was written to each is in one
//! range ([`Content`]). Such a store begins one, of what the elements hold so far and of what is stored, and each
//! further one widens it. An exact store is known better by its slot, and widens it, too.
//!
//! Invariants: each element of a content is a number of its range that was written as a whole, or nothing was written
//! to any of its bytes since the function was entered, and it reads as 0. Whatever else is written to a byte of an
//! element ends the content: a pointer, a part of an element, what a helper writes. Frames belong to one thread, so
//! nothing else writes there. A content is made where programs with loops are walked from guesses only: there, kept
//! states need all numbers exactly, and one in which a byte is fresh covers only such ones (see `walk::prune`).

use crate::faults::planted;
use crate::scalar::Scalar;
use crate::state::{Content, Frame, Grid};
use crate::tnum::ones;

/// Contents that a frame has at a time.
const MAX_CONTENTS: usize = 6;
/// Elements that one has.
const MAX_ELEMENTS: i64 = 512;

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Grid {
    /// One place.
    fn at(depth: usize, size: usize) -> Grid {
        let first = -(depth as i64);
        Grid { first, last: first, stride: size as i64, size: size as i64 }
    }

    /// How far its places are apart, at least: all of them, as multiples of that. 0: there is but one.
    fn step(&self) -> i64 {
        if self.first == self.last { 0 } else { self.stride }
    }

    /// Whether each place of the other is one of this grid, were it to go on for ever.
    pub(crate) fn aligns(&self, other: &Grid) -> bool {
        self.size == other.size
            && (other.first - self.first) % self.stride == 0
            && (other.step() % self.stride == 0 || planted!(ContentMisaligned))
    }

    /// Whether each place of the other is one of this grid.
    fn holds(&self, other: &Grid) -> bool {
        self.aligns(other) && other.first >= self.first && other.last <= self.last
    }

    /// Whether a byte of a place of this grid may be one of the other's.
    fn meets(&self, other: &Grid) -> bool {
        if other.last + other.size <= self.first || self.last + self.size <= other.first {
            return false;
        }
        let step = gcd(self.stride, other.step());
        let apart = (other.first - self.first).rem_euclid(step);
        apart < self.size || apart + other.size > step
    }

    /// Whether this bounds a number of its size.
    fn bounds(&self, n: &Scalar) -> bool {
        n.umax() < ones(8 * crate::num::small(crate::num::size(self.size.unsigned_abs())))
    }

    pub(crate) fn elements(&self) -> impl Iterator<Item = i64> + use<> {
        (self.first..=self.last).step_by(usize::try_from(self.stride).unwrap_or(1).max(1))
    }
}

impl Frame {
    /// The number in each element of the grid that was written: `Some(None)` if surely none was, `None` if nothing is
    /// known of them.
    pub(crate) fn elements(&self, grid: &Grid) -> Option<Option<Scalar>> {
        if let Some(c) = self.contents.iter().find(|c| c.grid.holds(grid)) {
            return Some(c.n);
        }
        if grid.last - grid.first >= MAX_ELEMENTS * grid.stride || grid.last + grid.size > 0 {
            return None;
        }
        let size = usize::try_from(grid.size).ok()?;
        let mut all: Option<Scalar> = None;
        for at in grid.elements() {
            let depth = usize::try_from(-at).ok()?;
            let n = match self.load(depth, size) {
                Ok(v) if v.is_scalar() => v.n,
                Ok(_) => return None,
                Err(_) if self.is_fresh(depth, size) => continue,
                Err(_) => match self.content_of(&Grid::at(depth, size))? {
                    Some(n) => n,
                    None => continue,
                },
            };
            if !grid.bounds(&n) {
                return None;
            }
            all = Some(all.map_or(n, |all| all.join(&n)));
        }
        Some(all)
    }

    /// The same, by what is said of all of an array.
    fn content_of(&self, grid: &Grid) -> Option<Option<Scalar>> {
        self.contents.iter().find(|c| c.grid.holds(grid)).map(|c| c.n)
    }

    /// What is said of one place of an array.
    pub(crate) fn content_at(&self, depth: usize, size: usize) -> Option<Scalar> {
        if self.contents.is_empty() { None } else { self.content_of(&Grid::at(depth, size))? }
    }

    /// Whether what the content says is true in this frame.
    pub(crate) fn has_content(&self, c: &Content) -> bool {
        match self.elements(&c.grid) {
            Some(Some(n)) => c.n.is_some_and(|of| n.subset(&of)),
            Some(None) => true,
            None => false,
        }
    }

    /// Before a number is stored at one of these places: what holds of them afterwards. Else, of what is written there
    /// nothing is known. While `guessing`, that an array is written counts, too.
    pub(crate) fn widened(&self, grid: &Grid, n: &Scalar, guessing: bool) -> Option<Content> {
        if grid.stride < grid.size || (!grid.bounds(n) && !guessing) {
            return None;
        }
        // All of the array that is known so far, if this is of the same.
        let old = self.contents.iter().find(|c| c.grid.aligns(grid) && c.grid.meets(grid));
        let whole = old.map_or(*grid, |c| Grid {
            first: c.grid.first.min(grid.first),
            last: c.grid.last.max(grid.last),
            ..c.grid
        });
        let before = self.elements(&whole)?;
        let n = match before {
            Some(before) if !planted!(ContentOverwritten) => before.join(n),
            _ => *n,
        };
        (guessing || grid.bounds(&n)).then_some(Content { grid: whole, n: Some(n) })
    }

    /// Something was written there; `content` is what holds of it.
    pub(crate) fn set_content(&mut self, grid: &Grid, content: Option<Content>) {
        self.contents.retain(|c| !c.grid.meets(grid) || planted!(ContentSurvives));
        if let Some(c) = content {
            self.contents.retain(|o| !o.grid.meets(&c.grid));
            if self.contents.len() < MAX_CONTENTS {
                self.contents.push(c);
            }
        }
    }

    /// Something was written to these bytes: a part of each content that is in them is known by its slot now, or the
    /// content ends.
    pub(crate) fn end_contents(&mut self, depth: usize, size: usize) {
        if self.contents.is_empty() || planted!(ContentSurvives) {
            return;
        }
        let written = Grid::at(depth, size);
        self.contents.retain(|c| !c.grid.meets(&written));
    }

    /// A number was stored at r10 - depth, and is known by its slot.
    pub(crate) fn stored(&mut self, depth: usize, size: usize) {
        let written = Grid::at(depth, size);
        for i in (0..self.contents.len()).rev() {
            let mut c = self.contents[i];
            if !c.grid.meets(&written) {
                continue;
            }
            // What it says is of what was there before.
            self.contents.swap_remove(i);
            let inside = |at: &i64| *at < written.first + written.size && *at + c.grid.size > written.first;
            let (first, last) = (written.first, written.first + written.size);
            let mut known = Some(c.n);
            for at in c.grid.elements().filter(inside) {
                let n = match usize::try_from(-at) {
                    Ok(depth) if at >= first && at + c.grid.size <= last => {
                        self.load(depth, usize::try_from(c.grid.size).unwrap_or(8)).ok().filter(|v| v.is_scalar())
                    }
                    _ => None,
                };
                known = known.zip(n).map(|(all, v)| Some(all.map_or(v.n, |all| all.join(&v.n))));
            }
            if let Some(n) = known
                && n.is_none_or(|n| c.grid.bounds(&n))
            {
                c.n = n;
                self.contents.push(c);
            }
        }
    }

    /// What both say of their arrays: `join` makes one range of two. One that nothing was written to has none.
    pub(crate) fn joined_contents(
        &self,
        other: &Frame,
        join: impl Fn(Option<Scalar>, Option<Scalar>) -> Option<Scalar>,
    ) -> Vec<Content> {
        let mut out: Vec<Content> = Vec::new();
        for c in self.contents.iter().chain(&other.contents) {
            if out.len() < MAX_CONTENTS
                && !out.iter().any(|o| o.grid.meets(&c.grid))
                && let (Some(a), Some(b)) = (self.elements(&c.grid), other.elements(&c.grid))
                && let n = join(a, b)
                && n.is_none_or(|n| c.grid.bounds(&n))
            {
                out.push(Content { n, ..*c });
            }
        }
        out
    }
}
