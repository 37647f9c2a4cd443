//! What is true of every element of an array on the stack.
//!
//! Problem: a store at an index that is not known exactly may land anywhere in an array, so no slot keeps its value,
//! and what is loaded from there could be any number: one that is an index again (a queue, a parent, a failure table)
//! is then not bounded. Approach: a frame says of places at equal distances that what was written to each is in one
//! range ([`Content`]). Such a store begins one, of what the elements hold so far and of what is stored, and each
//! further one widens it. An exact store is known better by its slot, and widens it, too.
//!
//! Most such numbers are below something that no constant says: the place where they are kept (a failure table, links
//! back), or what is left of the input (ends that are stacked). So a content may say of its numbers that none is more
//! than the index of its element, or than the length of a region less some bytes ([`Order`]). Both need no names that
//! end. What is loaded is then below the index that it was loaded at, or below the length. While a loop's guess is
//! made, both are taken to stay true; its check asks each store.
//!
//! Claim: what a load yields is no more than the order says, also where nothing was written and 0 is read. Proof: an
//! index is counted from no later than the content's first element ([`Frame::order_of`]), so none is negative. Of a
//! length nothing is said of such a number, unless the least length is as much.
//!
//! Invariants: each element of a content is a number of its range that was written as a whole, or nothing was written
//! to any of its bytes since the function was entered, and it reads as 0. Whatever else is written to a byte of an
//! element ends the content: a pointer, a part of an element, what a helper writes. Frames belong to one thread, so
//! nothing else writes there. A content is made where programs with loops are walked from guesses only: there, kept
//! states need all numbers exactly, and one in which a byte is fresh covers only such ones (see `walk::prune`).

use crate::env::Region;
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::state::{Content, Frame, Grid, Order, State};
use crate::tnum::ones;
use crate::value::{Value, len_id};

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
        n.umax() < ones(self.bits())
    }

    fn bits(&self) -> u32 {
        8 * crate::num::small(crate::num::size(self.size.unsigned_abs()))
    }

    /// From where on its index bounds this number of the element at this place.
    pub(crate) fn base(&self, at: i64, n: &Scalar) -> Option<i64> {
        at.checked_sub(i64::try_from(n.umax()).ok()?.checked_mul(self.stride)?)
    }

    pub(crate) fn elements(&self) -> impl Iterator<Item = i64> + use<> {
        (self.first..=self.last).step_by(usize::try_from(self.stride).unwrap_or(1).max(1))
    }
}

/// How far a number is known to be below the length of a region, at least.
pub(crate) type Gap<'a> = &'a dyn Fn(&Value, usize) -> Option<i64>;

/// Of nobody's numbers.
pub(crate) const NO_GAP: Gap<'static> = &|_, _| None;

impl Order {
    /// What is true of the numbers of both.
    pub(crate) fn or(&self, other: &Order) -> Order {
        let mut lens = self.lens;
        lens.iter_mut().zip(&other.lens).for_each(|(a, b)| *a = a.zip(*b).map(|(a, b)| a.min(b)));
        Order { base: self.base.zip(other.base).map(|(a, b)| a.min(b)), lens }
    }

    /// Whether this says all that the other does.
    fn covers(&self, other: &Order) -> bool {
        self.base >= other.base && self.lens.iter().zip(&other.lens).all(|(a, b)| b.is_none() || a >= b)
    }
}

impl State {
    /// How far the number is below the region's length, at least.
    pub(crate) fn gap(&self, v: &Value, region: usize) -> Option<i64> {
        let named = || self.below(v.id, 1, len_id(crate::num::few(region)))?.checked_sub(v.delta.into());
        let by_name = if v.id != 0 && v.scale == 1 { named() } else { None };
        let least = i64::from(*self.min_len.get(region)?);
        // Of one that there is not, nothing is above 0.
        by_name.max(i64::try_from(v.n.umax()).ok().filter(|_| least > 0).map(|most| least - most))
    }

    /// What is true of this number as one of an array's, beside its index.
    pub(crate) fn lengths_above(&self, v: &Value) -> [Option<u32>; Region::MAX_REGIONS] {
        std::array::from_fn(|region| u32::try_from(self.gap(v, region)?).ok())
    }
}

impl Content {
    /// Whether it says more of its numbers than their size does.
    pub(crate) fn says_something(&self) -> bool {
        self.order != Order::default() || self.n.is_none_or(|n| self.grid.bounds(&n))
    }
}

impl Frame {
    /// What each number in the elements of the grid is no more than.
    pub(crate) fn order_of(&self, grid: &Grid, gap: Gap<'_>) -> Order {
        if let Some(c) = self.contents.iter().find(|c| c.grid.holds(grid)) {
            // With shorter strides, they are as many or more.
            let base = c.order.base.filter(|_| c.grid.stride >= grid.stride);
            return Order { base, ..c.order };
        }
        // What is read where nothing was written is no more than its index, either.
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
            if !grid.bounds(&n) && self.contents.iter().all(|c| c.order == Order::default()) {
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
        (guessing || grid.bounds(&n)).then_some(Content { grid: whole, n: Some(n), order: Order::default() })
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

    /// Of a number that was stored at r10 - depth, this is known, too: all of it, or what is true of it beside its
    /// index. `before`: contents before it was stored.
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

    /// A number was stored at r10 - depth, and is known by its slot.
    pub(crate) fn stored(&mut self, depth: usize, size: usize) {
        let written = Grid::at(depth, size);
        for i in (0..self.contents.len()).rev() {
            let mut c = self.contents[i];
            if !c.grid.meets(&written) {
                continue;
            }
            // What it says is of what was there before. (Of its order, who stores tells more.)
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

    /// What both say of their arrays: `join` makes one range of two. One that nothing was written to has none.
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
        // All of an array, where each knows a part of it; else these parts.
        let whole = |c: &Content| {
            let alike = all().filter(|o| o.grid.stride == c.grid.stride && o.grid.aligns(&c.grid));
            let ends = |(first, last): (i64, i64), o: &Content| (first.min(o.grid.first), last.max(o.grid.last));
            let (first, last) = alike.filter(|o| o.grid.meets(&c.grid)).fold((c.grid.first, c.grid.last), ends);
            Content { grid: Grid { first, last, ..c.grid }, ..*c }
        };
        // And what lies beside it in one, if that is ordered alike: one element of it was stored at a known place.
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
                // Where there is an order, that bounds each number, and its range costs guesses.
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
