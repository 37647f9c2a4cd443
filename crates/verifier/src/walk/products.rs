//! Products of two unknown numbers: `V(p) = V(a) * V(b)`.
//!
//! Problem: rows of a table whose width is a variable (`a[i * n + j]`) begin at a product of two numbers, whose bounds
//! follow from its factors: with `i + 1 <= rows`, row `i` and one more of its length lie within `rows * n`. Approach:
//! where all else has failed ([`super::loops`]), the product of two named numbers is kept as an equation. Its linear
//! consequences are added to the rows of the solver ([`super::linear`]):
//!
//! * a factor between constants: `least * V(b) <= V(p) <= most * V(b)`, as V(b) is not negative;
//! * of two products with one factor in common, `V(q) = V(c) * V(b)`: from `V(a) + gap <= V(c)` follows `V(p) + gap *
//!   V(b) <= V(q)`, which is that inequality times V(b).
//!
//! A gap may be negative. A number at a distance from its name is multiplied with the distance: `(V(a) + c) * V(b)` is
//! `V(p) + c * V(b)`.
//!
//! Invariants: each product is an equation between integers that are not negative and fit a number. A product that may
//! wrap is not named. A product of numbers that lie below their names by a distance is named only if the product of the
//! names fits 63 bits. (The start of a row is at most the object that holds it, see `guess/rows.rs`.) A name denotes
//! the same integer as long as a state has it, so an equation stays true until one of its names is given to another
//! number, which drops it ([`State::forget_products`]).

use bpf_isa::{AluOp, Reg, Src, Width};

use super::Walk;
use crate::integer::{product_at_least, product_at_most, product_beside, product_fits, product_of_line, product_range};
use crate::state::{Product, Room, State, Sum};
use crate::value::{FIRST_FREE_ID, Value};

/// The most products of a state; a new one replaces the oldest.
const MAX_PRODUCTS: usize = 12;

impl Product {
    pub(super) fn names(&self) -> [u32; 3] {
        [self.p, self.a, self.b]
    }

    /// Its factors, in both orders.
    fn factors(&self) -> [(u32, u32); 2] {
        [(self.a, self.b), (self.b, self.a)]
    }

    /// Whether the product relates names that are held by values.
    pub(super) fn says_something(&self, held: impl Fn(u32) -> bool) -> bool {
        held(self.p) || (held(self.a) && held(self.b))
    }
}

/// Whether the product of the named numbers is a number, too. If an operand is less than its name by a distance, no
/// value holds that product, and a bound derived from it would bound other numbers.
fn fits(d: &Value, s: &Value) -> bool {
    let most = |v: &Value| i128::from(v.range_of_line().1);
    product_fits(most(d), most(s))
}

impl State {
    /// Adds a product. One with a factor that may be negative, or that is a length which may change, is not added.
    pub(super) fn push_product(&mut self, product: Product) {
        let unfit = |id: u32| id < FIRST_FREE_ID || self.may_be_negative(id);
        if product.names().into_iter().any(unfit) {
            return;
        }
        if self.products.len() >= MAX_PRODUCTS {
            self.products.remove(0);
        }
        self.products.push(product);
    }

    /// Forgets products of which a name denotes another number from now on.
    pub(super) fn forget_products(&mut self, passed: impl Fn(u32) -> bool) {
        self.products.retain(|t| !t.names().into_iter().any(&passed));
    }

    /// The name of `V(a) * V(b)`: its name if it has one, or a new name.
    fn name_product(&mut self, a: u32, b: u32, next_id: &mut u32) -> u32 {
        let of = |t: &&Product| (t.a, t.b) == (a, b) || (t.b, t.a) == (a, b);
        if let Some(t) = self.products.iter().find(of) {
            return t.p;
        }
        *next_id += 1;
        self.push_product(Product { p: *next_id, a, b });
        *next_id
    }

    /// The product of two numbers, as a multiple of a name at a distance. It does not wrap, and is at most `max`.
    fn name_of_product(&mut self, d: &Value, s: &Value, max: u64, next_id: &mut u32) -> Option<(u32, i16, i32)> {
        let factor = |v: &Value| v.id >= FIRST_FREE_ID && v.scale > 0;
        if !factor(d) || !factor(s) {
            return None;
        }
        // A loop's counter may be at a distance; it becomes the first factor.
        let same = (d.id, d.scale, d.delta) == (s.id, s.scale, s.delta);
        let d = self.name_at_distance(d, next_id);
        let s = if same { d } else { self.name_at_distance(s, next_id) };
        let (d, s) = if d.delta == 0 { (s, d) } else { (d, s) };
        if s.delta != 0 {
            return None;
        }
        let wide = |n: i16| i128::from(n);
        let (times, apart) = product_of_line((wide(d.scale), d.delta.into()), wide(s.scale))?;
        let (times, apart) = (i16::try_from(times).ok()?, i16::try_from(apart).ok()?);
        if apart == 0 {
            return Some((self.name_product(d.id, s.id, next_id), times, 0));
        }
        if apart < 0 && !fits(&d, &s) {
            return None;
        }
        let p = self.name_product(d.id, s.id, next_id);
        if apart > 0 {
            return self.name_multiples((p, times), (s.id, apart), 0, i64::try_from(max).ok()?, next_id);
        }
        let less = Value { scale: apart.checked_neg()?, ..s };
        self.name_difference((p, 0), &less, next_id).map(|(id, delta)| (id, 1, delta))
    }

    /// Gives a number at a distance from its name a name of its own, in all values that are equal. A loop's counter
    /// keeps its name, by which it is a counter.
    pub(super) fn name_at_distance(&mut self, v: &Value, next_id: &mut u32) -> Value {
        let mut marks = self.frames.iter().flat_map(|f| &f.loops);
        let counts = marks.any(|m| m.k.id == v.id || m.lines.iter().any(|l| l.x == v.id));
        if v.delta == 0 || v.id < FIRST_FREE_ID || !v.is_scalar() || v.scale <= 0 || counts {
            return *v;
        }
        let (of, times, apart) = (v.id, v.scale, i64::from(v.delta));
        *next_id += 1;
        let id = *next_id;
        let same = |o: &&mut Value| o.is_scalar() && (o.id, o.scale, o.delta) == (v.id, v.scale, v.delta);
        self.values_mut().filter(same).for_each(|o| *o = o.renamed(id, 1, 0));
        if times == 1 {
            self.learn_below(Room { id: of, scale: 1, bytes: apart, hi: id });
            self.learn_below(Room { id, scale: 1, bytes: -apart, hi: of });
        } else {
            let scale = i64::from(times) - 1;
            self.push_sum(Sum { s: id, a: of, b: of, scale, delta: apart, max: i64::MAX, split: false });
        }
        v.renamed(id, 1, 0)
    }

    /// Applies a bound of V(id) to products with this factor.
    pub(super) fn bound_products(&self, id: u32, (min, max): (i128, i128), next: &mut Vec<(u32, i128, i128)>) {
        for t in &self.products {
            for (_, other) in t.factors().into_iter().filter(|(factor, _)| *factor == id) {
                let least = self.least_of(other).map(i128::from);
                let (least, most) = product_range((min, max), least, self.most_of(other));
                next.push((t.p, least, most));
            }
        }
    }

    /// The linear consequences of the products of these names: rows `sum of coefficient * V + constant <= 0`.
    ///
    /// `range`: the known bounds of a name.
    pub(super) fn product_rows(
        &self,
        about: &[u32],
        range: impl Fn(u32) -> (Option<i128>, Option<i128>),
    ) -> Vec<[(u32, i128); 3]> {
        let mut rows = Vec::new();
        let here = |t: &&Product| t.names().iter().all(|id| about.contains(id));
        for t in self.products.iter().filter(here) {
            for (a, b) in t.factors() {
                let (least, most) = range(a);
                if let Some(least) = least.filter(|least| *least > 0) {
                    let [of_p, of_b] = product_at_least(least);
                    rows.push([(b, of_b), (t.p, of_p), (b, 0)]);
                }
                if let Some(most) = most {
                    let [of_p, of_b] = product_at_most(most);
                    rows.push([(t.p, of_p), (b, of_b), (b, 0)]);
                }
            }
            for q in self.products.iter().filter(here).filter(|q| q.p != t.p) {
                rows.extend(self.row_beside(t, q));
            }
        }
        rows
    }

    /// The row by which the first product is at most the second, minus a multiple of their common factor.
    fn row_beside(&self, t: &Product, q: &Product) -> Option<[(u32, i128); 3]> {
        let pairs = t.factors().into_iter().flat_map(|x| q.factors().map(|y| (x, y)));
        let gaps = pairs.filter(|((_, shared), (_, other))| shared == other);
        let gaps = gaps.filter_map(|((a, shared), (c, _))| Some((self.below(a, 1, c)?, shared)));
        let (gap, shared) = gaps.max()?;
        let [of_p, of_shared, of_q] = product_beside(i128::from(gap));
        Some([(t.p, of_p), (shared, of_shared), (q.p, of_q)])
    }
}

impl Walk<'_> {
    /// Names both factors of a multiplication where a product is worth knowing. Returns the operands, if their product
    /// does not wrap.
    pub(super) fn factors(&mut self, width: Width, op: AluOp, dst: Reg, src: Src) -> Option<(Value, Value)> {
        let (AluOp::Mul, Src::Reg(r), true) = (op, src, self.relates()) else { return None };
        let (d, s) = (self.state.reg(dst), self.state.reg(r));
        let known = |v: &Value| !v.is_scalar() || v.n.as_const().is_some();
        if known(d) || known(s) {
            return None;
        }
        if !self.loops.further {
            self.loops.missed_products = true;
            return None;
        }
        let most = d.n.umax().checked_mul(s.n.umax())?;
        if i64::try_from(most).is_err() || (width == Width::W32 && most > u32::MAX.into()) {
            return None;
        }
        Some((self.name(dst), self.name(r)))
    }

    /// Notes that the register holds the exact product of these two.
    pub(super) fn name_factors(&mut self, dst: Reg, d: &Value, s: &Value) {
        if self.state.reg(dst).n.as_const().is_some() {
            return;
        }
        // Later proofs may rest on the factors.
        self.decides();
        self.scratch.prune.sums = true;
        let max = self.state.reg(dst).n.umax();
        if let Some((id, scale, delta)) = self.state.name_of_product(d, s, max, &mut self.next_id) {
            let r = &mut self.state.top_mut().regs[dst.index()];
            (r.id, r.scale, r.delta) = (id, scale, delta);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks each row against all small numbers that satisfy its premises.
    #[test]
    fn rows_hold_of_all_small_numbers() {
        let (p, q, a, b, c) =
            (FIRST_FREE_ID, FIRST_FREE_ID + 1, FIRST_FREE_ID + 2, FIRST_FREE_ID + 3, FIRST_FREE_ID + 4);
        let mut rows = 0;
        for (least, width, gap) in (0..3).flat_map(|l| (0..3).flat_map(move |w| (-3..4).map(move |g| (l, w, g)))) {
            let mut state = State::default();
            state.push_product(Product { p, a, b });
            state.push_product(Product { p: q, a: b, b: c });
            state.learn_below(Room { id: a, scale: 1, bytes: gap, hi: c });
            let range = |id| if id == a { (Some(least), Some(least + width)) } else { (None, None) };
            let found = state.product_rows(&[p, q, a, b, c], range);
            rows += found.len();
            let numbers =
                (least..=least + width).flat_map(|x| (0..5).flat_map(move |y| (0..9).map(move |z| (x, y, z))));
            for (x, y, z) in numbers.filter(|(x, _, z)| x + i128::from(gap) <= *z) {
                let number = |id| [x * y, y * z, x, y, z][(id - FIRST_FREE_ID) as usize];
                for row in &found {
                    let sum: i128 = row.iter().map(|(id, times)| number(*id) * times).sum();
                    assert!(sum <= 0, "{row:?} of {x}, {y}, {z}");
                }
            }
        }
        assert!(rows > 150, "{rows}");
    }
}
