//! Loads and stores at unknown places of a stack array, with the facts about all its elements.

use bpf_isa::{Reg, Size};

use crate::faults::planted;
use crate::scalar::Scalar;
use crate::state::{Content, Grid, Order, Room};
use crate::value::{Ty, Value, len_id};
use crate::walk::Walk;
use crate::walk::linear::Form;

/// The distance between the places to which a pointer into the stack may point, and one of these places (modulo that
/// distance): from the known low bits, or from the number that the pointer moves with.
fn step_of(b: &Value, off: i16) -> (i64, i64) {
    let off = i64::from(off);
    let bits = 1i64 << b.n.bits().mask().trailing_zeros().min(8);
    let by_name = (i64::from(b.scale), i64::from(b.delta) + off);
    if b.tie != 0 && by_name.0 > bits { by_name } else { (bits, (b.n.bits().value() as i64).wrapping_add(off)) }
}

/// The index of the pointer's element in an array that is counted from `base`, as a distance from the number that the
/// pointer moves with.
fn index_by_name(b: &Value, off: i16, (base, stride): (i64, i64)) -> Option<i64> {
    // An array of large numbers is counted from far below any frame.
    let at = (i64::from(b.delta) + i64::from(off)).checked_sub(base)?;
    (b.tie != 0 && i64::from(b.scale) == stride).then_some(at.div_euclid(stride))
}

impl Walk<'_> {
    /// The places on the stack at which the access may be made.
    pub(super) fn elements(&self, b: &Value, off: i16, size: Size, (depth, span): (usize, usize)) -> Option<Grid> {
        if !self.knows_elements() {
            return None;
        }
        let size = i64::from(size.bytes());
        let (min, max) = (-(depth as i64), span as i64 - depth as i64 - size);
        let (stride, at) = step_of(b, off);
        let first = min + at.wrapping_sub(min).rem_euclid(stride);
        let last = first + (max - first).div_euclid(stride) * stride;
        (first <= last && last + size <= 0).then_some(Grid { first, last, stride, size })
    }

    /// In a havocked iteration: the value of a load that is not proven to be inside an array with a content, assuming
    /// that it is.
    pub(in crate::walk) fn likely_element(&mut self, b: &Value, off: i16, size: Size) -> Option<Value> {
        let Ty::Stack { frame } = b.ty else { return None };
        if !self.loops.guessing() || !self.knows_elements() {
            return None;
        }
        let frame = self.state.frames.get(usize::from(frame))?;
        let (stride, at) = step_of(b, off);
        let grid = Grid { first: at, last: at + stride, stride, size: size.bytes().into() };
        let like = |c: &&Content| c.grid.aligns(&grid);
        let n = frame.contents.iter().filter(like).filter_map(|c| c.n).reduce(|a, b| a.join(&b));
        // Unwritten elements will be written.
        let n = n.or(self.loops.orders.then_some(Scalar::low_bits(size.bits())))?;
        let mut contents = frame.contents.iter().filter(like);
        let content = contents.next().copied().filter(|_| contents.next().is_none());
        Some(self.ordered_element(n, content, (b, off), true))
    }

    /// The set of the number that a load at an unknown place in an array may yield.
    pub(super) fn element(
        &mut self,
        frame: usize,
        b: &Value,
        off: i16,
        size: Size,
        at: (usize, usize),
    ) -> Option<Value> {
        let grid = self.elements(b, off, size, at)?;
        let frame = &self.state.frames[frame];
        // An unwritten element reads as 0.
        let Some(n) = frame.elements(&grid) else {
            return self.likely_element(b, off, size);
        };
        let n = n.unwrap_or(Scalar::constant(0));
        let written = frame.check_readable(at.0, at.1).is_ok() || planted!(ContentNeverFresh);
        let n = if written { n } else { n.join(&Scalar::constant(0)) };
        let order = match self.loops.orders {
            true => frame.order_of(&grid, &|v, region| self.state.gap(v, region)),
            false => Order::default(),
        };
        let content = Some(Content { grid, n: Some(n), order });
        self.loops.loaded_elements = true;
        Some(self.ordered_element(n, content, (b, off), written))
    }

    /// Orders a number that was loaded from an array. `written`: whether it was certainly written.
    pub(super) fn ordered_element(
        &mut self,
        n: Scalar,
        content: Option<Content>,
        (b, off): (&Value, i16),
        written: bool,
    ) -> Value {
        let Some(Content { grid, order, .. }) = content.filter(|c| c.order != Order::default()) else {
            return Value::scalar(n);
        };
        self.decides();
        self.scratch.prune.sums = true;
        let id = self.new_id();
        // V(id) <= V(tie) + index
        if let Some(index) = order.base.and_then(|base| index_by_name(b, off, (base, grid.stride))) {
            self.state.learn_below(Room { id, scale: 1, bytes: -index, hi: b.tie });
        }
        for (region, below) in (0..).zip(order.lens) {
            // An unwritten element reads as 0.
            let least = || self.state.min_len.get(usize::from(region)).copied();
            if let Some(bytes) = below
                && (written || least() >= below)
            {
                self.state.learn_below(Room { id, scale: 1, bytes: bytes.into(), hi: len_id(region) });
            }
        }
        let last = |base| b.n.smax().saturating_add(off.into()).saturating_sub(base).div_euclid(grid.stride);
        let n = match order.base.and_then(|base| u64::try_from(last(base)).ok()) {
            Some(last) => n.meet(&Scalar::unsigned(0, last)).unwrap_or(n),
            None => n,
        };
        Value { id, ..Value::scalar(n) }
    }

    /// The order of the array after a number is stored at this place. `whole`: the array after the store.
    pub(super) fn order_stored(&self, frame: usize, whole: &Grid, v: &Value, (b, off): (&Value, i16)) -> Order {
        if !self.loops.orders {
            return Order::default();
        }
        let before = self.state.frames[frame].order_of(whole, &|v, region| self.state.gap(v, region));
        if planted!(OrderUnasked) {
            return before;
        }
        let above = self.state.lengths_above(v);
        if self.loops.guessing() {
            // For each region that exists.
            let likely = |region: usize| above[region].or((region < self.env.context.regions.len()).then_some(0));
            return Order { base: before.base, ..before.or(&Order { base: None, lens: std::array::from_fn(likely) }) };
        }
        let by_range = b.n.smin().checked_add(off.into()).and_then(|least| whole.base(least, &v.n));
        let by_name = || {
            let at = i64::from(b.delta) + i64::from(off);
            let named = b.tie != 0 && i64::from(b.scale) == whole.stride && v.id != 0 && v.scale == 1;
            // v + gap <= V(tie)
            let gap = || self.state.below(v.id, 1, b.tie)?.checked_sub(v.delta.into());
            let known = if named { gap() } else { None };
            known.and_then(|gap| at.checked_add(gap.checked_mul(whole.stride)?))
        };
        // The stored number satisfies the index bound of the other elements.
        let by_all = || {
            let index = before.base.and_then(|base| index_by_name(b, off, (base, whole.stride)))?;
            let form = Form::of(v)?.plus(&Form::name(b.tie), -1)?.plus(&Form::constant(index.into()), -1)?;
            self.state.proves(&form).then_some(before.base).flatten()
        };
        let base = by_range.max(by_name());
        let base = if base < before.base { base.max(by_all()) } else { base };
        before.or(&Order { base, lens: above })
    }

    /// Notes a store of a number on the stack, in an array that a loop may be filling.
    pub(super) fn fills(&mut self, base: Reg, off: i16, size: Size) {
        let b = *self.state.reg(base);
        if let Ty::Stack { frame } = b.ty
            && b.tie != 0
        {
            let at = i64::from(b.delta) + i64::from(off);
            self.state.frames[usize::from(frame)].extend_fills(b.tie, b.scale, at, size.bytes().into());
        }
    }
}
