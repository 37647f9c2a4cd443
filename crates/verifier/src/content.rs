//! Array smashing: a bound for all elements of an array on the stack.
//!
//! Problem: a store at an index that is not known exactly may land anywhere in an array, so no slot keeps its value,
//! and a load from the array could yield any number. If that number is used as an index (a queue, a parent, a failure
//! table), it has no bound. Approach (array smashing, Blanchet et al. 2003): a frame records for places at equal
//! distances that every number written there is in one range ([`Content`]). A store at an unknown index creates a
//! content, from the elements' values so far and the stored number; each further store widens it. A store at a known
//! place is described by its slot, and widens the content as well.
//!
//! The bound of most such numbers is not a constant, but the index of their element (a failure table, links to earlier
//! elements) or the length of the input (a stack of end positions). Therefore a content may state that each of its
//! numbers is at most the index of its element, or at most the length of a region minus some bytes ([`Order`]). Neither
//! statement uses a name that may end. A loaded number is then at most the index that it was loaded at, or at most the
//! length. While a loop's candidate invariant is formed, both statements are assumed to stay true; the check of the
//! invariant proves them for each store.
//!
//! Claim: a loaded number is within the order's bounds, even if nothing was written and 0 is read. Proof: for an index,
//! counting starts no later than the content's first element ([`Frame::order_of`]), so the index is not negative. For a
//! length, the statement is made only if the region's least length is at least the subtracted bytes.
//!
//! Invariants: each element of a content is a number in its range that was written as a whole, or none of its bytes was
//! written since the function was entered, and it reads as 0. Any other write to a byte of an element (a pointer, a
//! part of an element, a helper's output) ends the content. Frames belong to one thread, so nothing else writes there.
//! Contents exist only in walks of loops from candidate invariants: there, kept states need all numbers exactly, and a
//! state with a fresh byte covers only states with a fresh byte there (see `walk::prune`).

use crate::env::Region;
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::state::{Content, Frame, Grid, Order, State};
use crate::tnum::ones;
use crate::value::{Value, len_id};

/// The most contents of a frame.
const MAX_CONTENTS: usize = 6;
/// The most elements of a content.
const MAX_ELEMENTS: i64 = 512;

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Grid {
    /// The grid of a single place.
    fn at(depth: usize, size: usize) -> Grid {
        let first = -(depth as i64);
        Grid { first, last: first, stride: size as i64, size: size as i64 }
    }

    /// The distance between adjacent places; 0 for a single place.
    fn step(&self) -> i64 {
        if self.first == self.last { 0 } else { self.stride }
    }

    /// Whether each place of `other` is a place of this grid, extended without end in both directions.
    pub(crate) fn aligns(&self, other: &Grid) -> bool {
        self.size == other.size
            && (other.first - self.first) % self.stride == 0
            && (other.step() % self.stride == 0 || planted!(ContentMisaligned))
    }

    /// Whether each place of `other` is a place of this grid.
    fn holds(&self, other: &Grid) -> bool {
        self.aligns(other) && other.first >= self.first && other.last <= self.last
    }

    /// Whether a byte of a place of this grid may be a byte of a place of `other`.
    fn meets(&self, other: &Grid) -> bool {
        if other.last + other.size <= self.first || self.last + self.size <= other.first {
            return false;
        }
        let step = gcd(self.stride, other.step());
        let apart = (other.first - self.first).rem_euclid(step);
        apart < self.size || apart + other.size > step
    }

    /// Whether the range excludes a number of the element's size.
    fn bounds(&self, n: &Scalar) -> bool {
        n.umax() < ones(self.bits())
    }

    fn bits(&self) -> u32 {
        8 * crate::num::small(crate::num::size(self.size.unsigned_abs()))
    }

    /// The place from which on an element's index bounds this number, for the element at `at`.
    pub(crate) fn base(&self, at: i64, n: &Scalar) -> Option<i64> {
        at.checked_sub(i64::try_from(n.umax()).ok()?.checked_mul(self.stride)?)
    }

    pub(crate) fn elements(&self) -> impl Iterator<Item = i64> + use<> {
        (self.first..=self.last).step_by(usize::try_from(self.stride).unwrap_or(1).max(1))
    }
}

/// A lower bound of the distance from a number up to the length of a region; `None` if none is known.
pub(crate) type Gap<'a> = &'a dyn Fn(&Value, usize) -> Option<i64>;

/// The gap for callers that know of none.
pub(crate) const NO_GAP: Gap<'static> = &|_, _| None;

impl Order {
    /// The order that holds for the numbers of both.
    pub(crate) fn or(&self, other: &Order) -> Order {
        let mut lens = self.lens;
        lens.iter_mut().zip(&other.lens).for_each(|(a, b)| *a = a.zip(*b).map(|(a, b)| a.min(b)));
        Order { base: self.base.zip(other.base).map(|(a, b)| a.min(b)), lens }
    }

    /// Whether this order implies the other.
    fn covers(&self, other: &Order) -> bool {
        self.base >= other.base && self.lens.iter().zip(&other.lens).all(|(a, b)| b.is_none() || a >= b)
    }
}

impl State {
    /// A lower bound of the distance from the number up to the region's length.
    pub(crate) fn gap(&self, v: &Value, region: usize) -> Option<i64> {
        let named = || self.below(v.id, 1, len_id(crate::num::few(region)))?.checked_sub(v.delta.into());
        let by_name = if v.id != 0 && v.scale == 1 { named() } else { None };
        let least = i64::from(*self.min_len.get(region)?);
        // A region with least length 0 gives no bound by constants.
        by_name.max(i64::try_from(v.n.umax()).ok().filter(|_| least > 0).map(|most| least - most))
    }

    /// The part of an order that the number satisfies beside its index: for each region, its distance below the length.
    pub(crate) fn lengths_above(&self, v: &Value) -> [Option<u32>; Region::MAX_REGIONS] {
        std::array::from_fn(|region| u32::try_from(self.gap(v, region)?).ok())
    }
}

impl Content {
    /// Whether the content bounds its numbers by more than their size.
    pub(crate) fn says_something(&self) -> bool {
        self.order != Order::default() || self.n.is_none_or(|n| self.grid.bounds(&n))
    }
}

impl Frame {
    /// The order that every number in the elements of the grid satisfies.
    pub(crate) fn order_of(&self, grid: &Grid, gap: Gap<'_>) -> Order {
        if let Some(c) = self.contents.iter().find(|c| c.grid.holds(grid)) {
            // A shorter stride counts at least as many steps, so the index bound holds for it as well.
            let base = c.order.base.filter(|_| c.grid.stride >= grid.stride);
            return Order { base, ..c.order };
        }
        // An element that was not written reads as 0, which is at most its index.
        let mut all = Order { base: Some(grid.first), lens: [Some(u32::MAX); Region::MAX_REGIONS] };
        for at in grid.elements() {
            let (Ok(depth), Ok(size)) = (usize::try_from(-at), usize::try_from(grid.size)) else {
                return Order::default();
            };
            if self.is_fresh(depth, size) {
                continue;
            }
            let of = self.contents.iter().find(|c| c.grid.holds(&Grid::at(depth, size)));
            let v = self.load(depth, size).ok().filter(Value::is_scalar);
            if of.is_none() && v.is_none() {
                return Order::default();
            }
            let by_content = of.and_then(|c| c.order.base.filter(|_| c.grid.stride >= grid.stride));
            let base = v.and_then(|v| grid.base(at, &v.n)).max(by_content);
            all.base = all.base.zip(base).map(|(a, b)| a.min(b));
            for (region, len) in all.lens.iter_mut().enumerate() {
                let by = v.and_then(|v| u32::try_from(gap(&v, region)?).ok());
                *len = len.zip(by.max(of.and_then(|c| c.order.lens[region]))).map(|(a, b)| a.min(b));
            }
        }
        all
    }

    /// The range of the written numbers in the grid's elements: `Some(None)` if none was written on any path, `None` if
    /// nothing is known.
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
            if !grid.bounds(&n) && self.contents.iter().all(|c| c.order == Order::default()) {
                return None;
            }
            all = Some(all.map_or(n, |all| all.join(&n)));
        }
        Some(all)
    }

    /// The range as for [`Frame::elements`], from contents alone.
    fn content_of(&self, grid: &Grid) -> Option<Option<Scalar>> {
        self.contents.iter().find(|c| c.grid.holds(grid)).map(|c| c.n)
    }

    /// The range that a content gives for one place.
    pub(crate) fn content_at(&self, depth: usize, size: usize) -> Option<Scalar> {
        if self.contents.is_empty() { None } else { self.content_of(&Grid::at(depth, size))? }
    }

    /// Whether the content's claim holds in this frame.
    pub(crate) fn has_content(&self, c: &Content, gap: Gap<'_>) -> bool {
        if c.order != Order::default() && !self.order_of(&c.grid, gap).covers(&c.order) && !planted!(OrderForgotten) {
            return false;
        }
        match self.elements(&c.grid) {
            Some(Some(n)) => c.n.is_some_and(|of| n.subset(&of)),
            Some(None) => true,
            None => false,
        }
    }

    /// The content that holds after a store of a number at one of these places; `None` if nothing is known of them
    /// afterwards. While `guessing`, a content is made even if it does not bound its numbers, since it also says that
    /// the array is written.
    pub(crate) fn widened(&self, grid: &Grid, n: &Scalar, guessing: bool) -> Option<Content> {
        if grid.stride < grid.size || (!grid.bounds(n) && !guessing) {
            return None;
        }
        // Extends the content of the same array, if there is one.
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
        (guessing || grid.bounds(&n)).then_some(Content { grid: whole, n: Some(n), order: Order::default() })
    }

    /// Notes a write to the grid, after which `content` holds there.
    pub(crate) fn set_content(&mut self, grid: &Grid, content: Option<Content>) {
        self.contents.retain(|c| !c.grid.meets(grid) || planted!(ContentSurvives));
        if let Some(c) = content {
            self.contents.retain(|o| !o.grid.meets(&c.grid));
            if self.contents.len() < MAX_CONTENTS {
                self.contents.push(c);
            }
        }
    }

    /// Ends the contents that these bytes overlap.
    pub(crate) fn end_contents(&mut self, depth: usize, size: usize) {
        if self.contents.is_empty() || planted!(ContentSurvives) {
            return;
        }
        let written = Grid::at(depth, size);
        self.contents.retain(|c| !c.grid.meets(&written));
    }

    /// Restores the order of contents after a number was stored at r10 - depth. `number`: the range and the order of
    /// the stored number, if known. `before`: the contents before the store.
    pub(crate) fn ordered(
        &mut self,
        before: &[Content],
        (depth, size): (usize, usize),
        number: Option<(Scalar, Order)>,
    ) {
        let written = Grid::at(depth, size);
        for c in before.iter().filter(|c| c.grid.holds(&written) && c.order != Order::default()) {
            let order = match number {
                Some((n, order)) => Order { base: c.grid.base(written.first, &n), ..order },
                None => c.order,
            };
            if let Some(now) = self.contents.iter_mut().find(|now| now.grid == c.grid) {
                now.order = c.order.or(&order);
            }
        }
        self.contents.retain(Content::says_something);
    }

    /// Widens contents after a number was stored at r10 - depth. The slot describes the number itself.
    pub(crate) fn stored(&mut self, depth: usize, size: usize) {
        let written = Grid::at(depth, size);
        for i in (0..self.contents.len()).rev() {
            let mut c = self.contents[i];
            if !c.grid.meets(&written) {
                continue;
            }
            // The content describes the array before the store. The caller updates its order.
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
                && (Content { n, ..c }).says_something()
            {
                c.n = n;
                c.order = Order::default();
                self.contents.push(c);
            }
        }
    }

    /// The contents that hold in both frames. `join` makes one range of two; an array to which nothing was written has
    /// no range.
    pub(crate) fn joined_contents(
        &self,
        other: &Frame,
        gaps: (Gap<'_>, Gap<'_>),
        join: impl Fn(Option<Scalar>, Option<Scalar>) -> Option<Scalar>,
        order: impl Fn(&Order, &Order) -> Order,
    ) -> Vec<Content> {
        let within = |n: Option<Scalar>, of: Option<Scalar>| n.is_none_or(|n| of.is_some_and(|of| n.subset(&of)));
        let mut out: Vec<Content> = Vec::new();
        let all = || self.contents.iter().chain(&other.contents);
        // The whole array, if each frame has a content for a part of it; otherwise these parts.
        let whole = |c: &Content| {
            let alike = all().filter(|o| o.grid.stride == c.grid.stride && o.grid.aligns(&c.grid));
            let ends = |(first, last): (i64, i64), o: &Content| (first.min(o.grid.first), last.max(o.grid.last));
            let (first, last) = alike.filter(|o| o.grid.meets(&c.grid)).fold((c.grid.first, c.grid.last), ends);
            Content { grid: Grid { first, last, ..c.grid }, ..*c }
        };
        // One adjacent element may have been stored at a known place: it is included if its order agrees.
        let reaches = |grid: &Grid, one: i64| {
            let one = Grid { first: one, last: one, ..*grid };
            let whole = Grid { first: grid.first.min(one.first), last: grid.last.max(one.last), ..*grid };
            let alike = |f: &Frame, gap: Gap<'_>| {
                let (part, whole) = (f.order_of(grid, gap), f.order_of(&whole, gap));
                let lens = part.lens.iter().zip(&whole.lens).all(|(part, whole)| part.is_none() || whole >= part);
                lens && (part.base.is_none() || whole.base >= part.base.min(Some(one.first - one.stride)))
            };
            let (a, b) = (self.elements(&one), other.elements(&one));
            a.zip(b).is_some_and(|(a, b)| a.is_some() || b.is_some()) && alike(self, gaps.0) && alike(other, gaps.1)
        };
        let reached = |mut c: Content| {
            while c.order != Order::default() && reaches(&c.grid, c.grid.first - c.grid.stride) {
                c.grid.first -= c.grid.stride;
            }
            while c.order != Order::default() && reaches(&c.grid, c.grid.last + c.grid.stride) {
                c.grid.last += c.grid.stride;
            }
            c
        };
        for c in all().map(whole).map(reached).chain(all().copied()) {
            if out.len() < MAX_CONTENTS
                && !out.iter().any(|o| o.grid.meets(&c.grid))
                && let (Some(a), Some(b)) = (self.elements(&c.grid), other.elements(&c.grid))
                && let order = match c.order == Order::default() {
                    true => c.order,
                    false => order(&self.order_of(&c.grid, gaps.0), &other.order_of(&c.grid, gaps.1)),
                }
                // If there is an order, it bounds each number, and refining its range as well would cost further
                // candidates.
                && let n = match order != Order::default() && !within(b, a) {
                    true => Some(Scalar::low_bits(c.grid.bits())),
                    false => join(a, b),
                }
                && let content = (Content { n, order, ..c })
                && content.says_something()
            {
                out.push(content);
            }
        }
        out
    }
}
