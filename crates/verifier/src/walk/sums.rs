//! Sums of two unknown numbers: `V(s) = V(a) + scale * V(b) + delta`.
//!
//! Problem: a decoder checks one sum and uses another (`if (i + n > len) return; for (j = 0; j < n; j++) p[i + j]`), or
//! checks a sum and learns more of a part of it afterwards (`n >= 1`, so `i + 1 <= len`). Approach: in loops, a sum or
//! difference of named numbers is kept as an equation, and an equal sum gets the same name again. Two sums that share a
//! part are ordered as their other parts are; a bound of one number bounds the others. A number that a mask and a shift
//! split is a sum, too (`x = low + 2^16 * high`), so folding a number is seen to shrink it.
//!
//! Invariant: each sum is an equation between integers that are not negative, as all named numbers are (see
//! [`super::lines`]). A result that may wrap gets no name.

use bpf_isa::{AluOp, Width};

use crate::by_name;
use crate::env::Env;
use crate::faults::planted;
use crate::integer::{BEYOND, sum_at_least};
use crate::state::{Frame, Line, Room, State, Sum};
use crate::value::{FIRST_FREE_ID, Value, is_offset_name};

/// Sums that a state holds; the oldest is forgotten for a new one.
const MAX_SUMS: usize = 24;
/// Greatest divisor whose quotient and remainder are named.
const MAX_DIVISOR: i64 = 1 << 20;
/// Greatest number that is split into parts: a larger one is a hash rather than an index, a length or a sum of words.
const MAX_SPLIT: u64 = 1 << 48;

impl Sum {
    /// Whether the sum relates names that are held by values, or that a fact relates to held names. `twice`: names
    /// equal to at least two sums.
    pub(super) fn says_something(&self, held: &impl Fn(u32) -> bool, room: &[Room], twice: &[u32]) -> bool {
        let parts = held(self.a) && held(self.b);
        let ordered = || {
            let named = room.iter().any(|r| r.id == self.s || r.hi == self.s);
            self.max < i64::MAX || named || twice.contains(&self.s)
        };
        (parts && (held(self.s) || ordered())) || (held(self.s) && (held(self.a) || held(self.b) || self.split))
    }

    /// Both ways to see the sum as one part and the rest, each with its multiplier.
    fn parts(&self) -> impl Iterator<Item = ((u32, i64), (u32, i64))> {
        let (a, b) = ((self.a, 1), (self.b, self.scale));
        [(a, b), (b, a)].into_iter()
    }
}

impl State {
    /// All equations: sums, and the lines of loops.
    pub(super) fn all_sums(&self) -> impl Iterator<Item = Sum> {
        self.sums.iter().copied().chain(self.line_sums())
    }

    /// The lines of loops, as equations.
    pub(super) fn line_sums(&self) -> impl Iterator<Item = Sum> {
        let lines = self.frames.iter().flat_map(|f| &f.loops).flat_map(|m| m.lines.iter().map(|l| (m.k.id, l)));
        lines.filter_map(|(k, l)| sum_of_line(k, l))
    }

    /// [`State::all_sums`] into a vector, for frequent use: an iterator over all sums costs more than its elements are
    /// worth.
    pub(super) fn all_sums_into(&self, sums: &mut Vec<Sum>) {
        sums.clear();
        sums.extend_from_slice(&self.sums);
        for mark in self.frames.iter().flat_map(|f| &f.loops) {
            mark.lines.iter().for_each(|l| sums.extend(sum_of_line(mark.k.id, l)));
        }
    }

    /// Keeps the line of a loop that is left as an equation.
    pub(super) fn keep_line(&mut self, k: u32, line: &Line) {
        if let Some(sum) = sum_of_line(k, line).filter(|sum| !self.sums.contains(sum)) {
            self.push_sum(sum);
        }
    }

    /// The sum of these parts, if it exists already.
    fn sum_of(&self, a: u32, b: u32, scale: i64) -> Option<&Sum> {
        self.sums
            .iter()
            .find(|s| (s.a, s.b, s.scale) == (a, b, scale) || (s.scale == 1 && scale == 1 && (s.b, s.a) == (a, b)))
    }

    /// Adds a sum. A sum with a part that may be negative is not added: the rules require parts that are not negative.
    pub(in crate::walk) fn push_sum(&mut self, sum: Sum) {
        if self.may_be_negative(sum.a) || self.may_be_negative(sum.b) {
            return;
        }
        if self.sums.len() >= MAX_SUMS {
            self.sums.remove(self.least_sum());
        }
        self.sums.push(sum);
        // The order between two sums may follow from facts that are forgotten with the parts, so it is learnt as a fact
        // at once.
        let like: Vec<Sum> = self.all_sums().filter(|t| t.s != sum.s).collect();
        for t in like {
            for (x, y) in [(&sum, &t), (&t, &sum)] {
                if let Some(bytes) = self.apart(x, y) {
                    self.learn_below(Room { id: x.s, scale: 1, bytes, hi: y.s });
                }
            }
        }
    }

    /// The index of the sum to forget for a new one: the oldest sum that relates no held name (as most sums in a hash
    /// computation), or the oldest of all.
    fn least_sum(&self) -> usize {
        let values = self.frames.iter().flat_map(Frame::values).map(Value::line_id);
        let marks = self.frames.iter().flat_map(|f| &f.loops).flat_map(|m| m.ids.iter().copied());
        let mut held: Vec<u32> = values.chain(marks).collect();
        held.sort_unstable();
        let held = |id: u32| id < FIRST_FREE_ID || held.binary_search(&id).is_ok();
        let twice = self.wholes_twice();
        self.sums.iter().position(|t| !t.says_something(&held, &self.room, &twice)).unwrap_or(0)
    }

    /// Whether V(id) may be negative. Only that of a pointer that may have begun before its region can be. It is not if
    /// a value shows it, or if a fact states it. If no value has the name any more, its birth decides.
    pub(crate) fn may_be_negative(&self, id: u32) -> bool {
        if id < FIRST_FREE_ID {
            return false;
        }
        by_name::note();
        let (mut named, mut may_be, mut surely) = (false, false, false);
        let mut see = |v: &Value| {
            if v.is_named(id) {
                named = true;
                (may_be, surely) = (may_be || !v.is_of_no_negative(), surely || v.is_scalar());
            }
        };
        self.frames.iter().for_each(|f| f.each_value(&mut see));
        let may_be = if named { may_be && !surely } else { is_offset_name(id) && !planted!(UnheldNotNegative) };
        may_be && !self.states_sign(id)
    }

    /// Whether a fact of the state is about a V(id) that is not negative.
    fn states_sign(&self, id: u32) -> bool {
        self.room.iter().any(|f| f.id == id && f.scale > 1)
            || self.sums.iter().any(|t| t.a == id || t.b == id)
            || self.products.iter().any(|t| t.names().contains(&id))
    }

    /// The greatest gap known with `V(x.s) + gap <= V(t.s)`, if the two share a part.
    fn apart(&self, x: &Sum, t: &Sum) -> Option<i64> {
        let mut best: Option<i64> = None;
        for (shared, (b, scale)) in x.parts() {
            for (_, (c, times)) in t.parts().filter(|(other, _)| *other == shared) {
                let gap = if b == c {
                    // V(b) is not negative.
                    (times >= scale).then(|| self.least_of(b).unwrap_or(0).max(0).checked_mul(times - scale)).flatten()
                } else {
                    i16::try_from(scale).ok().and_then(|scale| self.below_by_facts(b, scale, c))
                };
                let gap = gap.and_then(|g| g.checked_add(t.delta)?.checked_sub(x.delta));
                best = best.max(gap);
            }
        }
        best
    }

    /// The greatest `bytes` for which `V(id) + bytes <= V(hi)` follows from two sums with a common part.
    pub(crate) fn below_by_sums(&self, id: u32, hi: u32) -> Option<i64> {
        if self.sums.is_empty() {
            return None;
        }
        let mut best: Option<i64> = None;
        for x in self.all_sums().filter(|x| x.s == id) {
            let shares = |t: &Sum| [t.a, t.b].iter().any(|part| [x.a, x.b].contains(part));
            for t in self.all_sums().filter(|t| t.s != id && shares(t)) {
                let beyond = if t.s == hi { Some(0) } else { self.below_by_facts(t.s, 1, hi) };
                let Some(beyond) = beyond else { continue };
                let gap = self.apart(&x, &t);
                best = best.max(gap.and_then(|gap| beyond.checked_add(gap)));
            }
        }
        best
    }

    /// Learns an order after a part of a region's length was bounded from below: the other part is below the length by
    /// that bound. The equation may be forgotten before the order is needed. The length may be that of another region
    /// than the part was compared in.
    ///
    /// Other pointers with the part's name may bound it, too. They are not looked for: a kept state forgets pointers
    /// that no path reads ([`super::trail`]).
    pub(super) fn order_other_parts(&mut self, compared: &Value, env: &Env<'_>) {
        let part = compared.id;
        let least = self.least_of(part).max(Some(compared.least_of_line()));
        let Some(least) = least.filter(|least| *least > 0) else { return };
        for at in 0..self.sums.len() {
            let t = self.sums[at];
            let below = |scale: i64, least: Option<i64>| {
                let bytes = least?.checked_add(t.delta)?;
                Some((i16::try_from(scale).ok()?, bytes))
            };
            let (id, fact) = match part {
                _ if !(1..FIRST_FREE_ID).contains(&t.s) || t.a == t.b => continue,
                part if part == t.a => (t.b, below(t.scale, Some(least))),
                part if part == t.b => (t.a, below(1, least.checked_mul(t.scale))),
                _other => continue,
            };
            if let Some((scale, bytes)) = fact {
                self.learn_below(Room { id, scale, bytes, hi: t.s });
                let most = i128::from(env.region(crate::num::few(t.s as usize - 1)).max_len) - i128::from(bytes);
                self.bound(id, 0, most.div_euclid(scale.into()), super::lines::MAX_HOPS);
            }
        }
    }

    /// The sum `scale * V(b) + V(a) + delta`, as a name and a distance from it. The sum must be exact and not negative;
    /// `max` is an upper bound.
    pub(super) fn name_sum(
        &mut self,
        (a, b, scale): (u32, u32, i16),
        delta: i64,
        max: i64,
        next_id: &mut u32,
    ) -> Option<(u32, i32)> {
        if a == 0 || b == 0 || scale <= 0 {
            return None;
        }
        let scale = i64::from(scale);
        if let Some(sum) = self.sum_of(a, b, scale).copied() {
            return Some((sum.s, i32::try_from(delta.checked_sub(sum.delta)?).ok()?));
        }
        *next_id += 1;
        let s = *next_id;
        self.push_sum(Sum { s, a, b, scale, delta, max, split: false });
        Some((s, 0))
    }

    /// The sum `times_a * V(a) + times_b * V(b) + delta` as a multiple of one name plus a distance. The sum must be
    /// exact, at most `most`, and neither V negative.
    pub(super) fn name_multiples(
        &mut self,
        (a, times_a): (u32, i16),
        (b, times_b): (u32, i16),
        delta: i64,
        most: i64,
        next_id: &mut u32,
    ) -> Option<(u32, i16, i32)> {
        if times_a <= 0 || times_b <= 0 {
            return None;
        }
        let ((a, times_a), (b, times_b)) =
            if times_a <= times_b { ((a, times_a), (b, times_b)) } else { ((b, times_b), (a, times_a)) };
        if times_b % times_a != 0 {
            return None;
        }
        if times_a == 1 {
            return self.name_sum((a, b, times_b), delta, most, next_id).map(|(id, delta)| (id, 1, delta));
        }
        // Beyond 63 bits no bound of the whole is known, and so none of a part.
        let most = if most == i64::MAX { most } else { most.checked_sub(delta)?.div_euclid(times_a.into()) };
        let (id, apart) = self.name_sum((a, b, times_b / times_a), 0, most, next_id)?;
        let delta = i64::from(apart).checked_mul(times_a.into())?.checked_add(delta)?;
        Some((id, times_a, i32::try_from(delta).ok()?))
    }

    /// The difference of `V(whole) + ahead` and `s`, which is not negative, as a name and a distance.
    pub(super) fn name_difference(
        &mut self,
        (whole, ahead): (u32, i32),
        s: &Value,
        next_id: &mut u32,
    ) -> Option<(u32, i32)> {
        let (part, scale) = (s.line_id(), i64::from(s.scale));
        if whole == 0 || part == 0 || scale <= 0 {
            return None;
        }
        // V(whole) = difference + scale * V(part) + delta
        let delta = i64::from(s.delta) - i64::from(ahead);
        let known = self.sums.iter().find_map(|t| {
            let rest = match t.s == whole {
                true if (t.b, t.scale) == (part, scale) => t.a,
                true if (t.a, t.scale, scale) == (part, 1, 1) => t.b,
                _ => return None,
            };
            Some((rest, i32::try_from(t.delta.checked_sub(delta)?).ok()?))
        });
        if known.is_some() {
            return known;
        }
        *next_id += 1;
        let a = *next_id;
        self.push_sum(Sum { s: whole, a, b: part, scale, delta, max: i64::MAX, split: false });
        Some((a, 0))
    }

    /// Whether the name is that of a loop's round, or of a number on a loop's line.
    fn counts_rounds(&self, id: u32) -> bool {
        let mut marks = self.frames.iter().flat_map(|f| &f.loops);
        marks.any(|m| m.k.id == id || m.lines.iter().any(|l| l.x == id))
    }

    /// The names of remainder and quotient of `V(x) + ahead` by `scale` (or of the parts that a mask and a shift
    /// yield).
    fn split(&mut self, (x, ahead): (u32, i32), scale: i64, next_id: &mut u32) -> (u32, u32) {
        // V(x) = rest + scale * quotient - ahead
        let delta = if planted!(SplitForgetsDistance) { 0 } else { -i64::from(ahead) };
        if let Some(sum) = self.sums.iter().find(|t| t.split && (t.s, t.scale, t.delta) == (x, scale, delta)) {
            return (sum.a, sum.b);
        }
        *next_id += 2;
        let (a, b) = (*next_id - 1, *next_id);
        self.push_sum(Sum { s: x, a, b, scale, delta, max: i64::MAX, split: true });
        (a, b)
    }

    /// Marks `high << 8 | low` as split into digits, as a division splits it, if `low` is less than the multiplier of
    /// `high`. Then a bound of one part or of the whole bounds the others. (Compilers test whether a length is below
    /// 256 by its high byte.)
    fn note_digits(&mut self, whole: u32, low: &Value, high: &Value) {
        let fits = low.n.umax() < u64::try_from(high.scale).unwrap_or(0) || planted!(DigitsOverlap);
        if (low.scale, low.delta) != (1, 0) || high.scale <= 1 || !fits {
            return;
        }
        let parts = (whole, low.id, high.id, i64::from(high.scale), 0);
        let made = |t: &&mut Sum| (t.s, t.a, t.b, t.scale, t.delta) == parts;
        self.sums.iter_mut().filter(made).for_each(|t| t.split = true);
    }

    /// Facts about the middle of two numbers, `(V(a) + V(b)) / 2`, which lies between them.
    pub(super) fn middle(&self, x: &Value, id: u32, facts: &mut Vec<Room>) {
        let Some(sum) = self.sums.iter().find(|t| t.s == x.id && t.scale == 1 && x.scale == 1).copied() else { return };
        // The sum that is halved is V(a) + V(b) + delta. A distance beyond 63 bits gives no fact: truncating it would
        // make it too small.
        let delta = i128::from(sum.delta) + i128::from(x.delta);
        let half = |twice: i128| i64::try_from(twice.div_euclid(2)).ok().filter(|half| *half != i64::MIN);
        for (lo, hi) in [(sum.a, sum.b), (sum.b, sum.a)] {
            let Some(gap) = self.below(lo, 1, hi).map(i128::from) else { continue };
            // 2 V(lo) + gap + delta <= 2 middle + 1 and 2 middle <= 2 V(hi) - gap + delta
            facts.extend(half(gap + delta).map(|bytes| Room { id: lo, scale: 1, bytes, hi: id }));
            facts.extend(half(delta - gap).map(|above| Room { id, scale: 1, bytes: -above, hi }));
        }
    }

    /// The greatest value of V(id) that follows from sums that it is, or is below; `None` if unknown, or if the bound
    /// is half of all numbers, which is useless.
    pub(super) fn most_by_sums(&self, id: u32) -> Option<i64> {
        let bounded = || self.sums.iter().filter(|t| t.max < i64::MAX);
        let own = bounded().filter(|t| t.s == id).map(|t| t.max);
        let above = bounded().filter(|t| t.s != id);
        let above = above.filter_map(|t| t.max.checked_sub(self.below(id, 1, t.s)?));
        own.chain(above).min()
    }

    /// The consequences of `V(id)` in `min..=max` for the sums that contain it: facts, and bounds of other numbers.
    pub(super) fn bound_sums(
        &mut self,
        id: u32,
        (min, max): (i128, i128),
        facts: &mut Vec<Room>,
        next: &mut Vec<(u32, i128, i128)>,
    ) {
        for i in 0..self.sums.len() {
            // Most sums do not contain the name.
            if ![self.sums[i].s, self.sums[i].a, self.sums[i].b].contains(&id) {
                continue;
            }
            let t = self.sums[i];
            let (scale, delta) = (i128::from(t.scale), i128::from(t.delta));
            if min == max {
                super::lines::constant_part(&t, id, min, facts);
            }
            if t.s == id {
                if let Ok(max) = i64::try_from(max) {
                    self.sums[i].max = t.max.min(max);
                }
                if t.a == t.b {
                    // A multiple.
                    let times = scale + 1;
                    next.push((t.a, -(delta - min).div_euclid(times), (max - delta).div_euclid(times)));
                    continue;
                }
                let [a, b] = [t.a, t.b].map(|p| i128::from(self.least_of(p).unwrap_or(0).max(0)));
                // A part is at least the whole minus the other part's upper bound.
                let least = |most: i128| if t.split { most.min(scale - 1) } else { most };
                let [most_a, most_b] = [t.a, t.b].map(|p| self.most_of(p));
                let b_min =
                    most_a.map(least).or(t.split.then_some(scale - 1)).map(|a| -((a + delta - min).div_euclid(scale)));
                let a_min = most_b.and_then(|b| min.checked_sub(delta)?.checked_sub(b.checked_mul(scale)?));
                next.push((t.a, a_min.unwrap_or(0).max(0), max - delta - scale * b));
                next.push((t.b, b_min.unwrap_or(0).max(0), (max - delta - a).div_euclid(scale)));
                continue;
            }
            if t.split && id == t.b && id != t.a && max <= i64::MAX.into() {
                // The rest is less than the scale.
                next.push((t.s, 0, max * scale + delta + scale - 1));
            }
            if min > 0 {
                let fact = match id {
                    id if id == t.a => i16::try_from(t.scale).ok().map(|scale| (t.b, scale, min + delta)),
                    id if id == t.b => sum_at_least(0, (scale, min), delta).map(|bytes| (t.a, 1, bytes)),
                    _ => None,
                };
                if [t.a, t.b].contains(&id) {
                    let [a, b] = [t.a, t.b].map(|p| i128::from(self.least_of(p).unwrap_or(0).max(0)));
                    let a = if t.a == id { a.max(min) } else { a };
                    let b = if t.b == id { b.max(min) } else { b };
                    next.extend(sum_at_least(a, (scale, b), delta).map(|least| (t.s, least, BEYOND)));
                }
                if let Some((id, scale, bytes)) = fact
                    && let Ok(bytes) = i64::try_from(bytes)
                {
                    facts.push(Room { id, scale, bytes, hi: t.s });
                }
            }
        }
    }

    /// An upper bound of V(id), from the values that have this name.
    pub(crate) fn most_of(&self, id: u32) -> Option<i128> {
        by_name::note();
        let mut most = u64::MAX;
        let mut see = |v: &Value| {
            if v.id == id && v.is_scalar() && v.scale > 0 {
                most = most.min(v.range_of_line().1);
            }
        };
        self.frames.iter().for_each(|f| f.each_value(&mut see));
        (most < u64::MAX).then(|| most.into())
    }

    /// Bounds the sum of two numbers by `most`.
    pub(super) fn bound_sum(&mut self, a: u32, b: u32, most: i64, next_id: &mut u32) {
        if let Some((s, apart)) = self.name_sum((a, b, 1), 0, most, next_id) {
            // The whole may be a negative offset, since a distance may be subtracted from its parts.
            self.bound(s, -super::lines::ANYWHERE, i128::from(most) - i128::from(apart), super::lines::MAX_HOPS);
        }
    }

    /// Names that are the sum of more than one pair.
    pub(super) fn wholes_twice(&self) -> Vec<u32> {
        let again = |(i, t): (usize, &Sum)| self.sums[..i].iter().any(|o| o.s == t.s).then_some(t.s);
        self.sums.iter().enumerate().filter_map(again).collect()
    }

    /// Forgets sums for which [`Sum::says_something`] is false.
    pub(super) fn forget_sums(&mut self, held: impl Fn(u32) -> bool) {
        let (room, twice) = (&self.room, self.wholes_twice());
        self.sums.retain(|t| t.says_something(&held, room, &twice));
    }
}

/// The line of a loop with round `k` as an equation, if its initial value has a name.
fn sum_of_line(k: u32, line: &Line) -> Option<Sum> {
    let (s, a) = if line.step > 0 { (line.x, line.n) } else { (line.n, line.x) };
    let sum = Sum { s, a, b: k, scale: i64::from(line.step).abs(), delta: 0, max: i64::MAX, split: false };
    (line.n != 0).then_some(sum)
}

/// The greatest number of this width.
fn top(width: Width) -> u64 {
    match width {
        Width::W32 => u64::from(u32::MAX),
        Width::W64 => u64::MAX,
    }
}

/// Whether the result of a division or mask gets a name. For a number at a distance from its own name, the name is
/// worth its cost only in loops, where an index is halved, and in a walk that goes `further` (`(len - 4) / 8`
/// elements).
fn splits(state: &State, d: &Value, further: bool) -> bool {
    d.id != 0 && d.scale == 1 && d.n.umax() <= MAX_SPLIT && (d.delta == 0 || state.in_guessed_loop() || further)
}

/// [`splits`], for a multiple of a named number.
fn divides(state: &State, d: &Value, further: bool) -> bool {
    d.scale > 1 && splits(state, &Value { scale: 1, ..*d }, further)
}

/// Whether a shift leaves a single bit: the carry of a sum, as in a folded checksum. A comparison of that bit with 0
/// then bounds the sum on both sides.
fn carries(op: AluOp, d: &Value, s: &Value) -> bool {
    let left = |by: u64| by < 64 && d.n.umax() >> by == 1;
    let named = d.id != 0 && d.scale == 1 && d.n.umax() <= MAX_SPLIT;
    op == AluOp::Rsh && named && s.n.as_const().is_some_and(left)
}

/// Returns the constant operand of an OR that sets the low bits of the other operand and no others: one less than a
/// power of two that is 2^14 at most.
///
/// `Walk::exact` and [`result_name`] both ask here. An OR that `exact` answers for and `result_name` does not name
/// after the high bits would be taken for a sum of two numbers that have no bit in common.
pub(super) fn sets_low_bits(s: &Value) -> Option<i16> {
    let c = s.n.as_const().filter(|c| (1..1 << 14).contains(c) && (c + 1).is_power_of_two())?;
    i16::try_from(c).ok()
}

/// The name, scale and distance of an operation's result on two named numbers, if the result is a sum, a difference or
/// a part of one. The operation does not wrap, and `max` is an upper bound of the result.
pub(super) fn result_name(
    state: &mut State,
    (op, width): (AluOp, Width),
    d: &Value,
    s: &Value,
    (max, further, related): (u64, bool, bool),
    next_id: &mut u32,
) -> Option<(u32, i16, i32)> {
    let most = i64::try_from(max).unwrap_or(i64::MAX);
    match op {
        // An OR that sets low bits: `x | 3` is 4 times the quotient of x by 4, plus 3.
        AluOp::Or if sets_low_bits(s).is_some() => {
            let c = sets_low_bits(s)?;
            if !related || !splits(state, d, further) {
                return None;
            }
            let (_, high) = state.split((d.id, d.delta), i64::from(c) + 1, next_id);
            Some((high, c + 1, i32::from(c) - i32::from(planted!(LowBitsLess))))
        }
        AluOp::Add | AluOp::Or => {
            let delta = i64::from(d.delta) + i64::from(s.delta);
            let named = state.name_multiples((d.id, d.scale), (s.id, s.scale), delta, most, next_id)?;
            state.note_digits(named.0, d, s);
            state.note_digits(named.0, s, d);
            Some(named)
        }
        AluOp::Sub => match d.n.as_const() {
            Some(c) => {
                let delta = i32::try_from(c).ok()?.checked_sub(s.delta)?;
                (s.id != 0 && s.scale == 1).then_some((s.id, -1, delta))
            }
            None if d.scale != 1 => None,
            None => state.name_difference((d.id, d.delta), s, next_id).map(|(id, delta)| (id, 1, delta)),
        },
        AluOp::Div | AluOp::Mod if splits(state, d, further) => {
            // x = x % c + c * (x / c).
            let c = s.n.as_const().and_then(|c| i64::try_from(c).ok()).filter(|c| (2..=MAX_DIVISOR).contains(c))?;
            let (rest, quotient) = state.split((d.id, d.delta), c, next_id);
            Some((if op == AluOp::Div { quotient } else { rest }, 1, 0))
        }
        // A multiple is divided under a name of its own: `gap * 10 / 13`, `(12 * k) >> 3`.
        AluOp::Div | AluOp::Rsh if divides(state, d, further) && (related || (op == AluOp::Div && d.delta == 0)) => {
            let by = s.n.as_const()?;
            let by = if op == AluOp::Rsh {
                1u64.checked_shl(u32::try_from(by).ok()? + u32::from(planted!(MultipleShiftedMore)))?
            } else {
                by
            };
            let c = i64::try_from(by).ok().filter(|c| (2..=MAX_DIVISOR).contains(c))?;
            let (whole, apart) = state.name_sum((d.id, d.id, d.scale - 1), 0, i64::MAX, next_id)?;
            let apart = apart.checked_add(d.delta)?;
            // Other values that are the multiple get that name, too. Otherwise nothing would hold the name, and no
            // bound of the multiple would bound the quotient. Places of a loop that count its rounds keep the name by
            // which the next round is recognised; the sum bounds them.
            if !state.counts_rounds(d.id) {
                state.each_value_mut(|v| {
                    if v.is_scalar() && (v.id, v.scale, v.delta) == (d.id, d.scale, d.delta) {
                        *v = v.renamed(whole, 1, apart);
                    }
                });
            }
            let (_, quotient) = state.split((whole, apart), c, next_id);
            Some((quotient, 1, 0))
        }
        // A mask of a number that was shifted to the left: `(x << 8) & 0xf00` is `(x & 15) << 8`.
        AluOp::And if d.id != 0 && d.scale > 1 && d.delta == 0 && d.n.umax() <= MAX_SPLIT => {
            let shift = u32::from(d.scale.cast_unsigned()).trailing_zeros();
            let mask = s.n.as_const()? >> shift;
            let fits = d.scale.cast_unsigned().is_power_of_two() && mask > 0 && mask < 1 << 15;
            if !fits || !(mask + 1).is_power_of_two() {
                return None;
            }
            let (low, _) = state.split((d.id, 0), i64::try_from(mask + 1).ok()?, next_id);
            Some((low, d.scale, 0))
        }
        AluOp::And | AluOp::Rsh if splits(state, d, further) || carries(op, d, s) => {
            let c = s.n.as_const()?;
            // A mask that clears the low bits: the whole minus those bits.
            let cleared = c.trailing_zeros();
            if op == AluOp::And && (1..15).contains(&cleared) && c & top(width) | ((1 << cleared) - 1) == top(width) {
                let (low, high) = state.split((d.id, d.delta), 1 << cleared, next_id);
                if related {
                    return Some((high, 1 << cleared, 0));
                }
                let low = Value { id: low, ..Value::unknown() };
                return state.name_difference((d.id, d.delta), &low, next_id).map(|(id, delta)| (id, 1, delta));
            }
            let bits = match op {
                AluOp::And => u64::BITS - c.leading_zeros(),
                _ => u32::try_from(c).ok()?,
            };
            let whole = if width == Width::W32 { 32 } else { 64 };
            if bits == 0 || bits >= whole.min(63) || (op == AluOp::And && c.count_ones() != bits) {
                return None;
            }
            let (low, high) = state.split((d.id, d.delta), 1 << bits, next_id);
            Some((if op == AluOp::And { low } else { high }, 1, 0))
        }
        AluOp::And
        | AluOp::Rsh
        | AluOp::Div
        | AluOp::Mod
        | AluOp::Mul
        | AluOp::SDiv
        | AluOp::SMod
        | AluOp::Xor
        | AluOp::Lsh
        | AluOp::Arsh => None,
    }
}
