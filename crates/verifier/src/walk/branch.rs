//! Conditional jumps: which branches are feasible, and what each of them implies.

use bpf_isa::{AluOp, Cond, InsnIdx, Reg, Src, Width};

use super::linear::Form;
use super::pointers::{bounded, checkable, lies_far_before};
use super::{Flow, Res, Walk, refuse};
use crate::env::Region;
use crate::error::{Decision, Reason};
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::state::State;
use crate::tnum::ones;
use crate::value::{FIRST_FREE_ID, Ty, Value, len_id};

/// More than the distance of a pointer from its name can be.
const FAR: u64 = 1 << 40;

/// The refinement by one outcome of a comparison.
pub(super) enum Lesson {
    /// The outcome is impossible.
    Never,
    /// The outcome implies nothing.
    Nothing,
    /// The refined operands, which are numbers.
    Numbers(Scalar, Scalar),
    /// The refined offsets of the operands, which are pointers into one object.
    Offsets(Scalar, Scalar),
    /// The pointer (and all that share its id) is null, or is not.
    Null(u32, bool),
    /// A number of bytes of a region that follow this multiple of the value with this id.
    Room(u8, u32, i16, u32),
}

/// Further facts of a comparison of numbers: the order of the operands, and a constant from which a loaded byte
/// differs.
type Learnt = (Width, Cond, Option<(Value, Value)>, Option<(u32, u64)>);

impl Lesson {
    /// The operands after the refinement. A pointer may have been before its region until the comparison showed that it
    /// lies behind the other.
    fn operands(&self, d: &Value, s: &Value) -> (Value, Value) {
        match *self {
            Lesson::Offsets(a, b) => (Value { n: a, ..*d }, Value { n: b, ..*s }),
            Lesson::Never | Lesson::Nothing | Lesson::Numbers(..) | Lesson::Null(..) | Lesson::Room(..) => (*d, *s),
        }
    }
}

impl Walk<'_> {
    pub(super) fn jump_if(&mut self, width: Width, cond: Cond, dst: Reg, src: Src, off: i16) -> Res<Flow> {
        let wide = |r: Reg| !self.state.reg(r).n.high_half_is_zero();
        if width == Width::W32 && (wide(dst) || matches!(src, Src::Reg(r) if wide(r))) {
            self.widens();
        }
        if self.loops.related {
            self.settle_ordered();
            self.settle_modulo(dst);
            if let Src::Reg(r) = src {
                self.settle_modulo(r);
            }
        }
        match self.jump_if_numbers(width, cond, dst, src, off)? {
            Some(flow) => Ok(flow),
            None => self.jump_if_any(width, cond, dst, src, off),
        }
    }

    /// Handles most comparisons: two numbers that are no lengths of regions. `None` for others.
    fn jump_if_numbers(&mut self, width: Width, cond: Cond, dst: Reg, src: Src, off: i16) -> Res<Option<Flow>> {
        self.name_compared(dst, src);
        if let (true, Src::Imm(i)) = (self.loops.rich(), src) {
            self.note_compared(dst, i);
        }
        if self.state.reg(dst).is_stale() || matches!(src, Src::Reg(r) if self.state.reg(r).is_stale()) {
            return Ok(None);
        }
        let d = self.peek(dst)?;
        let constant;
        let (s, src_reg) = match src {
            Src::Reg(r) => (self.peek(r)?, Some(r)),
            Src::Imm(i) => {
                constant = Value::constant(i as i64 as u64);
                (&constant, None)
            }
        };
        if !d.is_scalar() || !s.is_scalar() || is_len(d) || is_len(s) || src == Src::Reg(dst) || self.hybrid {
            return Ok(None);
        }
        let target = self.target(off.into())?;
        let decided = match (d.n.as_const(), s.n.as_const()) {
            (Some(a), Some(b)) => Some(cond.holds(width, a, b)),
            _ => None,
        };
        let operands = match cond {
            // Values with known low bits are multiples of a stride: the nearest different one is a stride away.
            Cond::Eq | Cond::Ne => (aligned(d.n), aligned(s.n)),
            _ => (d.n, s.n),
        };
        let (mut no, mut yes) = (operands, operands);
        let (can_no, can_yes) = match decided {
            // Nothing is refined.
            Some(taken) => (!taken, taken),
            None => (
                Scalar::refine_assign(cond, width, false, &mut no.0, &mut no.1),
                Scalar::refine_assign(cond, width, true, &mut yes.0, &mut yes.1),
            ),
        };
        for (n, apart) in [(&mut no.0, Cond::Eq), (&mut yes.0, Cond::Ne)] {
            if cond == apart && decided.is_none() {
                *n = aligned(*n);
            }
        }
        // The order of the operands, for enclosing loops.
        let operands = self.relates().then_some((*d, *s));
        // A loaded number that is remembered to differ from the constant is not equal to it.
        let unlike = match self.state.seen.is_empty() {
            true => None,
            false => super::seen::compared_for_equality(width, cond, d, s),
        };
        let (can_no, can_yes) = match unlike {
            Some(at) if can_no && can_yes && self.known_unlike(at) => (cond == Cond::Eq, cond == Cond::Ne),
            _ => (can_no, can_yes),
        };
        let (can_no, can_yes) = match operands {
            Some((d, s)) if can_no && can_yes => self.possible((width, cond), &d, &s),
            _ => (can_no, can_yes),
        };
        if can_no && can_yes {
            self.compares(dst, src_reg);
            let here = self.pc;
            let unequal = match cond {
                Cond::Eq => Some((&mut no, InsnIdx(here.0 + 1), false)),
                Cond::Ne => Some((&mut yes, target, true)),
                _ => None,
            };
            let learnt = (width, cond, operands, unlike);
            if let (true, Some((n, then, by_jump))) = (self.loops.rich(), unequal)
                && let Some((below, above)) = self.parts_beside(&n.0, width, (dst, src), then)
            {
                n.0 = below;
                let above = self.state_on_way(by_jump, dst, src_reg, &(above, n.1), &learnt);
                if !planted!(PartUnwalked) {
                    self.push(then, above, Some(Decision { insn: here, taken: by_jump }), self.epoch)?;
                }
            }
            let taken = self.state_on_way(true, dst, src_reg, &yes, &learnt);
            if let (Cond::Eq, Some((id, c))) = (cond, unlike) {
                self.state.is_unlike(id, c);
            }
            self.push(target, taken, Some(Decision { insn: here, taken: true }), self.epoch)?;
            self.path = self.extend_path(Decision { insn: here, taken: false });
            // On the branch where the operand equals a constant, its value is known whatever was known before.
            let equal = match cond {
                Cond::Eq => yes.0.as_const(),
                Cond::Ne => no.0.as_const(),
                _ => None,
            };
            let half = width == Width::W32;
            if src_reg.is_none() && equal.is_some_and(|c| !half || c <= ones(32)) {
                if cond == Cond::Ne {
                    self.trail_equal(dst, half);
                } else if let Some(taken) = self.scratch.pending.last_mut() {
                    taken.equal = Some((dst, half));
                }
            }
        } else if can_yes {
            self.decides();
            if decided.is_none() {
                learn_numbers(&mut self.state, dst, src_reg, &yes);
            }
            if let Some(operands) = &operands {
                let (d, s) = refined(operands, &yes);
                self.state.compared((width, cond, true), &d, &s, self.loops.guesses_of_order(), &mut self.next_id);
            }
            return Ok(Some(Flow::To(target)));
        } else {
            self.decides();
            if !can_no {
                return Ok(Some(Flow::End));
            }
        }
        if decided.is_none() {
            learn_numbers(&mut self.state, dst, src_reg, &no);
            if let Some((d, _)) = &operands {
                let mut state = std::mem::take(&mut self.state);
                self.see_bits(&mut state, d, &no.0);
                self.state = state;
            }
        }
        if let Some(operands) = &operands {
            let (d, s) = refined(operands, &no);
            self.state.compared((width, cond, false), &d, &s, self.loops.guesses_of_order(), &mut self.next_id);
        }
        Ok(Some(Flow::Next))
    }

    /// A copy of the state on one branch of a comparison of numbers, with these refined operands.
    fn state_on_way(
        &mut self,
        taken: bool,
        dst: Reg,
        src: Option<Reg>,
        n: &(Scalar, Scalar),
        (width, cond, operands, unlike): &Learnt,
    ) -> State {
        let mut state = self.copy_state();
        learn_numbers(&mut state, dst, src, n);
        if let Some((d, _)) = operands {
            self.see_bits(&mut state, d, &n.0);
        }
        if let (Some((id, c)), true) = (unlike, taken == (*cond == Cond::Ne)) {
            state.is_unlike(*id, *c);
        }
        if let Some(operands) = operands {
            let (d, s) = refined(operands, n);
            state.compared((*width, *cond, taken), &d, &s, self.loops.guesses_of_order(), &mut self.next_id);
        }
        state
    }

    /// Gives the other operand of a comparison with a named number a name, too, if their order is worth knowing.
    fn name_compared(&mut self, dst: Reg, src: Src) {
        let Src::Reg(r) = src else { return };
        let named = |r: Reg| self.state.reg(r).is_scalar() && self.state.reg(r).id != 0;
        match (named(dst), named(r)) {
            (true, false) if self.relates() => self.give_name(r),
            (false, true) if self.relates() => self.give_name(dst),
            // A later comparison of the two may be decided by this one.
            (false, false) if self.loops.rich() => {
                self.give_name(dst);
                self.give_name(r);
            }
            _ => {}
        }
        if self.state.has_differences() {
            // Numbers of which these are made may be bounded.
            self.decides();
            self.scratch.prune.sums = true;
        }
    }

    /// Which outcomes of a comparison of numbers are possible, by relations between the operands: not taken, and taken.
    fn possible(&mut self, (width, cond): (Width, Cond), d: &Value, s: &Value) -> (bool, bool) {
        let alike = d.id != 0 && (d.id, d.scale) == (s.id, s.scale);
        let named = d.id != 0 && s.id != 0;
        if !(alike || (named && self.loops.may_ask())) {
            return (true, true);
        }
        // The integers of the named forms equal the compared ones only if they are within the width, and for signed
        // conditions not negative.
        let top = match (width, cond) {
            (Width::W32, Cond::SLt | Cond::SLe | Cond::SGt | Cond::SGe) => i32::MAX as u64,
            (Width::W64, Cond::SLt | Cond::SLe | Cond::SGt | Cond::SGe) => i64::MAX as u64,
            (Width::W32, _) => ones(32),
            (Width::W64, _) => u64::MAX,
        };
        let (Some(x), Some(y)) = (Form::of(d), Form::of(s)) else { return (true, true) };
        if d.n.umax() > top || s.n.umax() > top {
            return (true, true);
        }
        // Whether a + by <= b always holds.
        let below = |a: &Form, by: i128, b: &Form| {
            let form = Form::constant(by).plus(a, 1).and_then(|f| f.plus(b, -1));
            form.is_some_and(|f| self.state.proves(&f))
        };
        let (never, always) = match cond {
            Cond::Lt | Cond::SLt => (below(&y, 0, &x), below(&x, 1, &y)),
            Cond::Le | Cond::SLe => (below(&y, 1, &x), below(&x, 0, &y)),
            Cond::Gt | Cond::SGt => (below(&x, 0, &y), below(&y, 1, &x)),
            Cond::Ge | Cond::SGe => (below(&x, 1, &y), below(&y, 0, &x)),
            Cond::Eq | Cond::Ne => {
                let apart = below(&x, 1, &y) || below(&y, 1, &x);
                let equal = !apart && below(&x, 0, &y) && below(&y, 0, &x);
                if cond == Cond::Eq { (apart, equal) } else { (equal, apart) }
            }
            Cond::Set => (false, false),
        };
        if never || always {
            // Later proofs may rest on these facts, so finished states must keep them.
            self.scratch.prune.sums = true;
        }
        // If neither outcome is possible, the state has no run; both branches are walked then.
        if never && always { (true, true) } else { (!always, !never) }
    }

    fn jump_if_any(&mut self, width: Width, cond: Cond, dst: Reg, src: Src, off: i16) -> Res<Flow> {
        let mut d = self.read_stale(dst)?;
        let mut s = match src {
            Src::Reg(r) => self.read_stale(r)?,
            Src::Imm(_) => self.read_src(src)?,
        };
        if d.is_scalar() && s.is_scalar() {
            // A comparison with a region's length bounds pointers at the other operand, so that operand needs a name.
            if is_len(&s) {
                d = self.name(dst);
            } else if let (true, Src::Reg(r)) = (is_len(&d), src) {
                s = self.name(r);
            }
        }
        if let (true, true) = (d.is_arena() || s.is_arena(), d.as_number().is_scalar() && s.as_number().is_scalar()) {
            // A check that pointers of another path need would compare the program's own numbers with their region.
            if self.hybrid && !self.notes.region(self.pc, None, true) {
                return mixed_comparison();
            }
            return self.jump_either_way(off);
        }
        // Lengths, pointers and null are needed exactly.
        if !d.is_scalar() || !s.is_scalar() || is_len(&d) || is_len(&s) {
            self.decides();
        }
        self.note_comparison(&d, &s)?;
        let mut lessons = self.lessons(width, cond, dst, &d, src, &s)?;
        if d.is_scalar() && s.is_scalar() && self.relates() && src != Src::Reg(dst) {
            let (no, yes) = self.possible((width, cond), &d, &s);
            for (lesson, possible) in lessons.iter_mut().zip([no, yes]) {
                if !possible {
                    *lesson = Lesson::Never;
                }
            }
        }
        let target = self.target(off.into())?;
        let [no, yes] = lessons;
        let src_reg = match src {
            Src::Reg(r) => Some(r),
            Src::Imm(_) => None,
        };
        if matches!(no, Lesson::Never) || matches!(yes, Lesson::Never) {
            self.decides();
        } else {
            self.compares(dst, src_reg);
        }
        match (&no, &yes) {
            (Lesson::Never, Lesson::Never) => return Ok(Flow::End),
            (Lesson::Never, _) => {
                apply(&mut self.state, dst, src_reg, &yes);
                self.compared_with_len(width, cond, true, yes.operands(&d, &s));
                return Ok(Flow::To(target));
            }
            (_, Lesson::Never) => {
                apply(&mut self.state, dst, src_reg, &no);
                self.compared_with_len(width, cond, false, no.operands(&d, &s));
                return Ok(Flow::Next);
            }
            _ => {}
        }
        let here = self.pc;
        let copy = self.copy_state();
        // The copy takes the jump; `learn` works on the current state, so swap it in for a moment.
        let current = std::mem::replace(&mut self.state, copy);
        apply(&mut self.state, dst, src_reg, &yes);
        self.compared_with_len(width, cond, true, yes.operands(&d, &s));
        let copy = std::mem::replace(&mut self.state, current);
        self.push(target, copy, Some(Decision { insn: here, taken: true }), self.epoch)?;
        self.path = self.extend_path(Decision { insn: here, taken: false });
        apply(&mut self.state, dst, src_reg, &no);
        self.compared_with_len(width, cond, false, no.operands(&d, &s));
        Ok(Flow::Next)
    }

    /// Walks both branches of a comparison that nothing decides and that refines nothing.
    fn jump_either_way(&mut self, off: i16) -> Res<Flow> {
        let (here, target) = (self.pc, self.target(off.into())?);
        let copy = self.copy_state();
        self.push(target, copy, Some(Decision { insn: here, taken: true }), self.epoch)?;
        self.path = self.extend_path(Decision { insn: here, taken: false });
        Ok(Flow::Next)
    }

    /// For a hybrid walk: the order of an address far outside its region would reveal where the region is. A comparison
    /// of a pointer that is not proven to be near its region is therefore checked at run time: one with an unknown
    /// offset, and one that may lie far before the region. (A comparison with null is refused: see
    /// [`lies_far_before`].)
    fn note_comparison(&mut self, d: &Value, s: &Value) -> Res<()> {
        // A privileged program may compare an address with a number.
        if !self.hybrid || self.env.privileged && !(d.is_pointer() && s.is_pointer()) {
            return Ok(());
        }
        let before = |v: &Value| lies_far_before(v) && !self.env.privileged && checkable(self.env, v).is_some();
        let far = |v: &&Value| v.is_pointer() && (!bounded(&v.n) || before(v));
        let far = [d, s].into_iter().find(far);
        let region = far.into_iter().chain([d, s]).find_map(|v| checkable(self.env, v));
        if !self.notes.region(self.pc, region, far.is_none()) {
            return mixed_comparison();
        }
        Ok(())
    }

    /// The refinements of both outcomes: not taken, taken.
    fn lessons(&mut self, width: Width, cond: Cond, dst: Reg, d: &Value, src: Src, s: &Value) -> Res<[Lesson; 2]> {
        if d.is_scalar() && s.is_scalar() {
            return Ok([false, true].map(|taken| {
                if src == Src::Reg(dst) {
                    // The operands are one value: refine it once, by the outcome being possible at all.
                    return same_operand(width, cond, taken, &d.n);
                }
                match Scalar::refine(cond, width, taken, &d.n, &s.n) {
                    Some((a, b)) => Lesson::Numbers(a, b),
                    None => Lesson::Never,
                }
            }));
        }
        if d.is_stale() || s.is_stale() {
            return self.stale_lessons(width, cond, (dst, d), (src, s));
        }
        let refuse_compare = || {
            if self.env.privileged {
                let taken = if planted!(ShownOrderKnown) { Lesson::Never } else { Lesson::Nothing };
                return Ok([Lesson::Nothing, taken]);
            }
            refuse(match (d.is_pointer(), src) {
                (true, Src::Reg(_)) if s.is_pointer() && width == Width::W32 => {
                    Reason::HalfCompare(dst, d.describe(self.env), s.describe(self.env))
                }
                (true, _) => Reason::PointerCompare(dst, d.describe(self.env), s.describe(self.env)),
                (false, Src::Reg(r)) => Reason::PointerCompare(r, s.describe(self.env), d.describe(self.env)),
                (false, Src::Imm(_)) => Reason::Internal("immediate pointer"),
            })
        };
        // Compilers make this comparison from `if (!ctx->data)` with a field of 32 bits. Half an address may be zero,
        // so nothing is implied. The start of a region is a fixed place, so the outcome reveals nothing else.
        let half_of_start = |v: &Value| match v.ty {
            Ty::Packet { .. } => width == Width::W32 && v.id == 0 && v.delta == 0,
            Ty::Half { end, .. } => end || v.id == 0 && v.delta == 0,
            Ty::PacketEnd { .. } => width == Width::W32,
            _other => false,
        };
        let number = |v: &Value| v.as_const() == Some(0);
        if matches!(cond, Cond::Eq | Cond::Ne) && (half_of_start(d) && number(s) || half_of_start(s) && number(d)) {
            return Ok([Lesson::Nothing, Lesson::Nothing]);
        }
        // A test for metadata compares the fields of 32 bits at its start and its end. Metadata exists or not whatever
        // the upper halves are, and nothing is implied by their order.
        if cond != Cond::Set && self.are_ends_of_one(d, s) {
            return Ok([Lesson::Nothing, Lesson::Nothing]);
        }
        // Half a pointer may be zero, or any number.
        if width == Width::W32 || matches!(d.ty, Ty::Half { .. }) || matches!(s.ty, Ty::Half { .. }) {
            return refuse_compare();
        }
        // Pointer and null. Pointers are never null unless they say so, and null is 0.
        let zero = |v: &Value| v.as_const() == Some(0);
        let (pointer, is_null_test) = if d.is_pointer() && zero(s) {
            (d, true)
        } else if s.is_pointer() && zero(d) {
            (s, true)
        } else {
            (d, false)
        };
        if is_null_test {
            let when_null = match cond {
                Cond::Eq => true,
                Cond::Ne => false,
                _ => return refuse_compare(),
            };
            // An address far enough before its memory may be 0, although the memory's address is not.
            if lies_far_before(pointer) {
                return refuse_compare();
            }
            // An empty region may be at any address, even 0: a host's empty buffer often is.
            let may_be_zero = match pointer.ty {
                Ty::Packet { region } | Ty::PacketEnd { region } => !self.state.min_len.has(region.into(), 1),
                _ => false,
            };
            return Ok([false, true].map(|taken| {
                let null = taken == when_null;
                match (pointer.null, null) {
                    (true, _) => Lesson::Null(pointer.id, null),
                    (false, _) if may_be_zero => Lesson::Nothing,
                    (false, true) => Lesson::Never,
                    (false, false) => Lesson::Nothing,
                }
            }));
        }
        // The bits of an address must not be revealed.
        if !(d.is_pointer() && s.is_pointer()) || d.null || s.null || cond == Cond::Set {
            return refuse_compare();
        }
        // An address far enough before its region may have wrapped although the region's has not: the outcome of a
        // comparison with the end would reveal where the region is.
        let wraps = |end: &Value, p: &Value| self.end_of(end, p).is_some() && self.may_have_wrapped(p);
        if wraps(s, d) || wraps(d, s) {
            return refuse_compare();
        }
        // Pointer into a region and the region's end, either way round; or two pointers into one region.
        if let Some(region) = self.end_of(s, d) {
            return Ok([false, true].map(|taken| self.packet_lesson(cond, taken, region, d)));
        }
        if let Some(region) = self.end_of(d, s) {
            return Ok([false, true].map(|taken| self.packet_lesson(mirror(cond), taken, region, s)));
        }
        match self.order(cond, d, s) {
            Some(lessons) => Ok(lessons),
            None => refuse_compare(),
        }
    }

    /// Whether the two are the start and the end of one region that ends where another begins: both whole or half.
    fn are_ends_of_one(&self, d: &Value, s: &Value) -> bool {
        let start = |v: &Value| match v.ty {
            Ty::Packet { region } | Ty::Half { region, end: false } if (v.id, v.delta) == (0, 0) => Some(region),
            _other => None,
        };
        let (Some(d), Some(s)) = (start(d), start(s)) else { return false };
        let meet = |a: u8, b: u8| self.env.region(a).ends_at_start_of == Some(b);
        meet(d, s) || meet(s, d)
    }

    /// The region into which `p` points and of which `end` is the end.
    fn end_of(&self, end: &Value, p: &Value) -> Option<u8> {
        let Ty::Packet { region } = p.ty else { return None };
        match end.ty {
            Ty::PacketEnd { region: r } => (r == region).then_some(region),
            // The start of one region may be the end of another (metadata ends where the packet starts).
            Ty::Packet { region: r } if end.id == 0 && end.delta == 0 => {
                (self.env.region(region).ends_at_start_of == Some(r)).then_some(region)
            }
            _ => None,
        }
    }

    /// The refinement by a comparison of a pointer into a region with the region's end.
    fn packet_lesson(&self, cond: Cond, taken: bool, region: u8, p: &Value) -> Lesson {
        // Addresses are unsigned, so a signed comparison implies nothing. A comparison of a pointer that may lie before
        // the start implies nothing either.
        if matches!(cond, Cond::SLt | Cond::SLe | Cond::SGt | Cond::SGe) || p.n.smin() < 0 || p.scale < 0 {
            return Lesson::Nothing;
        }
        // A pointer that moves with the length is at a constant distance from the end.
        if (p.id, p.scale) == (len_id(region), 1) {
            let holds = cond.holds(Width::W64, FAR.wrapping_add_signed(p.delta.into()), FAR);
            return if holds == taken { Lesson::Nothing } else { Lesson::Never };
        }
        let outcome = if taken { Some(cond) } else { cond.negate() };
        // An earlier comparison may have decided this one.
        let never = match outcome {
            Some(Cond::Gt) => self.has_after(region, p, 0),
            Some(Cond::Ge | Cond::Eq) => self.has_after(region, p, 1),
            _ => false,
        };
        if never {
            return Lesson::Never;
        }
        // At most at the end, and not equal to it: before it.
        let before = (outcome == Some(Cond::Ne) && self.has_after(region, p, 0)).then_some(1);
        match room_beyond(cond, taken).or(before).and_then(|extra| room_bytes(p.delta, extra)) {
            Some(bytes) => Lesson::Room(region, p.id, p.scale, bytes),
            None => Lesson::Nothing,
        }
    }

    /// Whether so many bytes are proven to follow a pointer that does not lie before its region.
    fn has_after(&self, region: u8, p: &Value, bytes: i64) -> bool {
        let after = |offset: i64| self.state.min_len.has(region.into(), offset.saturating_add(bytes));
        let named = || self.state.room(region, p.id, p.scale, 0).map(i64::from);
        match p.id {
            0 => after(p.delta.into()) || after(p.n.smax()),
            // The least length is asked for last, since asking marks it as needed.
            _ => named().is_some_and(|room| room - i64::from(p.delta) >= bytes) || after(p.n.smax()),
        }
    }

    /// The bytes proven to follow a pointer that does not lie before its region, if the region has at least `least`
    /// bytes; `None` if the pointer may lie behind the end.
    pub(super) fn bytes_after(&self, region: u8, p: &Value, least: u32) -> Option<i64> {
        let room = if p.id == 0 { Some(least) } else { self.state.room(region, p.id, p.scale, 0) };
        let learnt = room.map(|bytes| i64::from(bytes) - i64::from(p.delta));
        let always = i64::from(least) - p.n.smax();
        learnt.into_iter().chain([always]).max().filter(|bytes| *bytes >= 0)
    }

    /// Refines pointers at the other operand, if one operand is a region's length.
    fn compared_with_len(&mut self, width: Width, cond: Cond, taken: bool, (d, s): (Value, Value)) {
        let (d, s) = (&d, &s);
        if self.relates() {
            self.compared_in_loop(width, cond, taken, d, s);
        }
        if !d.is_scalar() || !s.is_scalar() {
            return;
        }
        let whole = |v: &Value| v.n.high_half_is_zero();
        if width == Width::W32 && !(whole(d) && whole(s)) {
            return;
        }
        for (len, other, cond) in [(s, d, cond), (d, s, mirror(cond))] {
            if !is_len(len) || other.id == 0 || other.scale < 0 {
                continue;
            }
            let region = crate::num::few(len.id as usize - 1);
            // A signed comparison orders as an unsigned one if neither operand is negative.
            if matches!(cond, Cond::SLt | Cond::SLe | Cond::SGt | Cond::SGe) {
                let negative = |v: &Value| match width {
                    Width::W64 => v.n.smin() < 0,
                    Width::W32 => v.n.umax() > i32::MAX as u64,
                };
                if negative(d) || negative(s) {
                    continue;
                }
            }
            if let Some(bytes) = room_beyond(cond, taken).and_then(|extra| room_bytes(other.delta, extra)) {
                self.state.learn_room(region, other.id, other.scale, bytes);
                self.bound_by_region(region, other.id, other.scale, bytes);
            }
        }
    }

    /// [`Walk::compared_with_len`] for loops: learns the order of numbers, and of pointers into one region.
    fn compared_in_loop(&mut self, width: Width, cond: Cond, taken: bool, d: &Value, s: &Value) {
        if d.is_scalar() && s.is_scalar() {
            self.state.compared((width, cond, taken), d, s, self.loops.guesses_of_order(), &mut self.next_id);
            return;
        }
        let (region, number) = match (d.ty, s.ty) {
            (Ty::Packet { region }, Ty::PacketEnd { .. } | Ty::Packet { .. })
            | (Ty::PacketEnd { .. }, Ty::Packet { region }) => (region, |v: &Value| match v.ty {
                Ty::PacketEnd { region } => Value { id: len_id(region), ..Value::unknown() },
                _ => Value { ty: Ty::Scalar, ..*v },
            }),
            _ => return,
        };
        if [d, s].into_iter().any(|v| !bounded(&v.n) || v.n.smin() < 0) || d.null || s.null {
            return;
        }
        // The order of a rising and a falling variable is about their sum, so neither may be negative.
        if d.scale.signum() != s.scale.signum() && !(d.is_of_no_negative() && s.is_of_no_negative()) {
            return;
        }
        // Offsets have the order of their addresses. The end of another region, or a start that ends one, is not an
        // offset of this region.
        if self.end_of(s, d).is_none() && self.end_of(d, s).is_none() && d.ty != s.ty {
            return;
        }
        let max = u64::from(self.env.region(region).max_len);
        // Only the end itself is at most the greatest length; a multiple of the length, or a place behind the end, may
        // be more.
        let end = |v: &Value| (v.id, v.scale, v.delta) == (len_id(region), 1, 0);
        let bound = |v: Value| if end(&v) { Value { n: Scalar::unsigned(0, max), ..v } } else { v };
        if matches!(cond, Cond::SLt | Cond::SLe | Cond::SGt | Cond::SGe) {
            return;
        }
        if matches!(s.ty, Ty::Packet { region: other } if other != region)
            || matches!(d.ty, Ty::Packet { region: other } if other != region)
        {
            return;
        }
        let (dn, sn) = (bound(number(d)), bound(number(s)));
        self.state.compared((width, cond, taken), &dn, &sn, self.loops.guesses_of_order(), &mut self.next_id);
        for v in [d, s].into_iter().filter(|v| matches!(v.ty, Ty::Packet { .. }) && v.scale > 0) {
            if let Some(bytes) = self.state.room(region, v.id, v.scale, 0) {
                self.bound_by_region(region, v.id, v.scale, bytes);
            }
        }
        for v in [d, s].into_iter().filter(|v| v.scale == 1 && v.id >= FIRST_FREE_ID) {
            self.state.order_other_parts(v, self.env);
        }
    }

    /// may_goto: the budget bounds its rounds, so the walk need not; see [`super::prune`].
    pub(super) fn may_goto(&mut self, off: i16) -> Res<Flow> {
        let target = self.target(off.into())?;
        let Some(base) = self.bounded_round(true)? else { return Ok(Flow::End) };
        let here = self.pc;
        let copy = self.copy_state();
        self.push(target, copy, Some(Decision { insn: here, taken: true }), base)?;
        self.path = self.extend_path(Decision { insn: here, taken: false });
        self.pass_counter();
        Ok(Flow::Next)
    }
}

/// Whether the number is exactly the length of a region.
fn is_len(v: &Value) -> bool {
    v.is_scalar() && v.id != 0 && v.id < FIRST_FREE_ID && (v.scale, v.delta) == (1, 0)
}

/// The condition with its operands exchanged.
fn mirror(cond: Cond) -> Cond {
    match cond {
        Cond::Eq => Cond::Eq,
        Cond::Ne => Cond::Ne,
        Cond::Set => Cond::Set,
        Cond::Gt => Cond::Lt,
        Cond::Ge => Cond::Le,
        Cond::Lt => Cond::Gt,
        Cond::Le => Cond::Ge,
        Cond::SGt => Cond::SLt,
        Cond::SGe => Cond::SLe,
        Cond::SLt => Cond::SGt,
        Cond::SLe => Cond::SGe,
    }
}

/// The fact of `p cond end` with this outcome: `Some(0)` if p <= end, `Some(1)` if p < end.
fn room_beyond(cond: Cond, taken: bool) -> Option<i64> {
    let cond = if taken && !planted!(RoomEitherWay) { cond } else { cond.negate()? };
    match cond {
        Cond::Lt | Cond::SLt => Some(1),
        Cond::Le | Cond::SLe | Cond::Eq => Some(i64::from(planted!(RoomOneMore))),
        Cond::Ne | Cond::Gt | Cond::Ge | Cond::SGt | Cond::SGe | Cond::Set => None,
    }
}

/// With `V + delta + extra` bytes or fewer in the region: how many follow V. `None` if the fact is about bytes before
/// V.
fn room_bytes(delta: i32, extra: i64) -> Option<u32> {
    u32::try_from(i64::from(delta) + extra).ok()
}

/// The refinement by a register's comparison with itself.
fn same_operand(width: Width, cond: Cond, taken: bool, n: &Scalar) -> Lesson {
    let holds = match cond {
        Cond::Eq | Cond::Ge | Cond::Le | Cond::SGe | Cond::SLe => true,
        Cond::Ne | Cond::Gt | Cond::Lt | Cond::SGt | Cond::SLt => false,
        Cond::Set => {
            return match Scalar::refine(if taken { Cond::Ne } else { Cond::Eq }, width, true, n, &Scalar::constant(0)) {
                Some((a, _)) => Lesson::Numbers(a, a),
                None => Lesson::Never,
            };
        }
    };
    if holds == taken { Lesson::Nothing } else { Lesson::Never }
}

fn apply(state: &mut State, dst: Reg, src: Option<Reg>, lesson: &Lesson) {
    match *lesson {
        Lesson::Never | Lesson::Nothing => {}
        Lesson::Numbers(a, b) => learn_numbers(state, dst, src, &(a, b)),
        Lesson::Offsets(a, b) => {
            // Raises the lower bound to the next aligned offset.
            let next = |n: Scalar| match n.smin() >= 0 {
                true => n.meet(&Scalar::unsigned(n.aligned_least(), u64::MAX)).unwrap_or(n),
                false => n,
            };
            let regs = &mut state.top_mut().regs;
            regs[dst.index()].n = next(a);
            if let Some(src) = src {
                regs[src.index()].n = next(b);
            }
            if state.in_guessed_loop() {
                for r in [Some(dst), src].into_iter().flatten() {
                    let v = *state.reg(r);
                    state.bound_by(&v);
                }
            }
        }
        Lesson::Null(id, null) => settle_null(state, id, null),
        // The pointer's place is known and needed exactly: the run has shown the length, whatever was known before.
        Lesson::Room(region, 0, _, bytes) => state.min_len.learn(region.into(), bytes),
        Lesson::Room(region, id, scale, bytes) => state.learn_room(region, id, scale, bytes),
    }
}

/// [`Num::aligned`](crate::scalar::Num::aligned), where any low bit is known.
pub(super) fn aligned(n: Scalar) -> Scalar {
    if n.bits().mask() & 1 == 1 { n } else { n.aligned() }
}

/// Refines the operands of a comparison, which are numbers.
fn learn_numbers(state: &mut State, dst: Reg, src: Option<Reg>, (a, b): &(Scalar, Scalar)) {
    refine_linked(state, dst, a);
    if let Some(src) = src {
        refine_linked(state, src, b);
    }
}

/// The operands of a comparison, with their ranges on one branch. Whether they may be negative may be known there only.
fn refined((d, s): &(Value, Value), n: &(Scalar, Scalar)) -> (Value, Value) {
    (Value { n: n.0, ..*d }, Value { n: n.1, ..*s })
}

/// Refines a number with the name of `old`, which was found to be in `n`. (Most values have another name; the caller
/// skips them without a call.)
#[inline(never)]
fn refine_tied(v: &mut Value, old: &Value, n: &Scalar) {
    if (v.scale, v.delta) == (old.scale, old.delta) || planted!(TiedIsEqual) {
        v.n = v.n.meet(n).unwrap_or(*n);
    } else if (v.scale, old.scale) == (1, 1) {
        // Both are V plus their distance, without wrapping, so they differ by the distances' difference.
        let apart = i64::from(v.delta) - i64::from(old.delta);
        let moved = n.alu(AluOp::Add, Width::W64, &Scalar::constant(apart as u64));
        v.n = v.n.meet(&moved).unwrap_or(v.n);
    }
}

/// Sets the number in `r`, and refines all values with its name.
pub(super) fn refine_linked(state: &mut State, r: Reg, n: &Scalar) {
    let reg = &mut state.top_mut().regs[r.index()];
    reg.n = *n;
    if reg.id == 0 {
        return;
    }
    let (old, n) = (*reg, *n);
    // Numbers above it are bounded, too.
    let above = || state.room.iter().any(|f| f.id == old.id && f.hi >= FIRST_FREE_ID);
    if old.scale != 1
        || !state.sums.is_empty()
        || !state.products.is_empty()
        || !state.wraps.is_empty()
        || state.in_guessed_loop()
        || above()
    {
        state.bound_by(&old);
    }
    state.each_value_mut(|v| {
        if v.id == old.id && v.is_scalar() {
            refine_tied(v, &old, &n);
        }
    });
    // The region's length has a new lower bound.
    if old.id < FIRST_FREE_ID && old.scale == 1 {
        let region = (old.id - 1) as usize;
        let least = i128::from(n.umin()) - i128::from(old.delta);
        let least = u32::try_from(least.clamp(0, Region::MAX_LEN.into())).unwrap_or(0);
        if region < state.min_len.len() {
            debug_assert_eq!(len_id(crate::num::few(region)), old.id);
            // The number is needed exactly: the run has shown the length, whatever was known before.
            state.min_len.learn(region, least);
        }
        return;
    }
    // A length that is above this number has a new lower bound, too.
    let mut lengths = Vec::new();
    for f in state.room.iter().filter(|f| f.id == old.id && f.hi < FIRST_FREE_ID && old.scale == 1) {
        let least = i128::from(n.aligned_least()) - i128::from(old.delta);
        let least = i128::from(f.scale) * least.max(0) + i128::from(f.bytes);
        let region = (f.hi - 1) as usize;
        let least = u32::try_from(least.clamp(0, Region::MAX_LEN.into())).unwrap_or(0);
        if let Some(len) = state.min_len.get_mut(region).filter(|len| **len < least) {
            *len = least;
            lengths.push((f.hi, least));
        }
    }
    for (id, least) in lengths {
        state.bound(id, least.into(), Region::MAX_LEN.into(), 1);
    }
}

/// Applies the result of a null test to all pointers with this id.
fn settle_null(state: &mut State, id: u32, null: bool) {
    let mut owner = 0;
    for v in state.values_mut() {
        if v.null && (v.id == id || planted!(NullOfAll)) {
            if null {
                // An acquired object is named by its debt; a part that only belongs to it is not.
                if v.owner == v.id || planted!(NullOfAll) {
                    owner = owner.max(v.owner);
                }
                *v = Value::constant(0);
            } else {
                v.null = false;
            }
        }
    }
    if owner != 0 {
        state.owed.retain(|o| o.id != owner);
    }
}

/// The refusal of a comparison that needs a check at run time for the values of one path, and not for those of another.
fn mixed_comparison<T>() -> Res<T> {
    let (first, second) = ("pointers that need a check".into(), "other values".into());
    refuse(Reason::MixedContext { first, second })
}
