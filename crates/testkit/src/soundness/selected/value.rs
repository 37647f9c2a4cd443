//! Abstract values of the check of machine code: a class, a linear sum of named values, and bounds.
//!
//! Problem: a comparison of one register bounds another register only if both are known to differ by an exact amount.
//! Approach: each value that an instruction makes, or that a join of paths makes, has a name; sums, differences and
//! constant multiples of values are linear sums of names, which are exact modulo 2^64. The class of a sum follows from
//! the classes of its terms.
//!
//! Invariant: while a state holds a name, the name stands for one number. Before a name is bound again, it is removed
//! from all values ([`Value::forget`]), which then equal no other value, but keep class and bounds.

/// A register, eight bytes of the machine frame at this distance from the stack pointer at entry, or an operand of the
/// instruction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Place {
    Reg(u8),
    Slot(i64),
    Operand(u8),
}

/// The definition of a value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Name {
    /// The value of this place at the entry of the function.
    Entry(Place),
    /// The value that the instruction at this offset made for this place.
    Made(u64, Place),
    /// The value of this place when control came to the instruction at this offset, where paths join.
    Joined(u64, Place),
}

/// The use that may be made of a value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Class {
    /// The program may decide the value.
    Untrusted,
    /// Constants, lengths of objects, results of selections, and numbers made of these.
    Number,
    /// The start of an object, moved by trusted numbers, or null.
    Address,
    /// The hidden argument.
    Run,
    /// The context.
    Context,
    /// The address of the function that ends stopped runs.
    StopTo,
    /// A linked address that is passed to functions and never accessed.
    Handle,
    /// The start of an object that a call returned, or null.
    Found,
    /// The budget that is left, as code that yields counts it.
    Budget,
    /// The stack pointer at entry.
    Sp,
}

/// A name with its factor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Term {
    name: Name,
    times: i64,
    class: Class,
}

/// Most names of a sum.
const TERMS: usize = 8;

/// Bounds of distances from the stack pointer at entry; values further away are in no frame.
const FAR: i64 = 1 << 40;

/// The sum of named values with factors, ordered by name, and of a constant, modulo 2^64.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sum {
    terms: [Option<Term>; TERMS],
    by: i64,
}

impl Sum {
    const ZERO: Sum = Sum { terms: [None; TERMS], by: 0 };

    fn constant(by: i64) -> Sum {
        Sum { by, ..Sum::ZERO }
    }

    fn of(name: Name, class: Class) -> Sum {
        let mut sum = Sum::ZERO;
        sum.terms[0] = Some(Term { name, times: 1, class });
        sum
    }

    fn terms(&self) -> impl Iterator<Item = Term> {
        self.terms.into_iter().flatten()
    }

    /// self + other * times; `None` if the sum has too many terms.
    pub(super) fn plus(&self, other: &Sum, times: i64) -> Option<Sum> {
        let mut terms: Vec<Term> = self.terms().collect();
        for term in other.terms() {
            let times = term.times.wrapping_mul(times);
            match terms.iter_mut().find(|known| known.name == term.name) {
                Some(known) => {
                    known.times = known.times.wrapping_add(times);
                    known.class = meet(known.class, term.class);
                }
                None => terms.push(Term { times, ..term }),
            }
        }
        terms.retain(|term| term.times != 0);
        terms.sort_unstable_by_key(|term| term.name);
        let mut sum = Sum::constant(self.by.wrapping_add(other.by.wrapping_mul(times)));
        if terms.len() > TERMS {
            return None;
        }
        for (slot, term) in sum.terms.iter_mut().zip(terms) {
            *slot = Some(term);
        }
        Some(sum)
    }

    /// The class and the constant, if the sum is one name and a constant.
    pub(super) fn single(&self) -> Option<(Name, Class, i64)> {
        let mut terms = self.terms();
        match (terms.next(), terms.next()) {
            (Some(Term { name, times: 1, class }), None) => Some((name, class, self.by)),
            (_, _) => None,
        }
    }

    pub(super) fn is_zero(&self) -> bool {
        *self == Sum::ZERO
    }

    fn class(&self) -> Class {
        match self.single() {
            Some((_, class @ (Class::Run | Class::Context | Class::Budget), _)) => return class,
            Some((_, class @ (Class::StopTo | Class::Handle | Class::Found), 0)) => return class,
            Some(_) | None => {}
        }
        let (mut added, mut taken) = (0, 0);
        for term in self.terms() {
            match (term.class, term.times) {
                (Class::Number, _) => {}
                (Class::Address, 1) => added += 1,
                (Class::Address, -1) => taken += 1,
                (Class::Address, _)
                | (
                    Class::Untrusted
                    | Class::Run
                    | Class::Context
                    | Class::StopTo
                    | Class::Handle
                    | Class::Found
                    | Class::Budget
                    | Class::Sp,
                    _,
                ) => return Class::Untrusted,
            }
        }
        match (added, taken) {
            // A number, or the distance between two addresses.
            (0, 0) | (1, 1) => Class::Number,
            (1, 0) => Class::Address,
            (_, _) => Class::Untrusted,
        }
    }
}

/// The class of a value that is of either class.
fn meet(a: Class, b: Class) -> Class {
    if a == b { a } else { Class::Untrusted }
}

/// An abstract value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Value {
    pub(super) class: Class,
    /// `None`: the value is not known to equal any other.
    pub(super) sum: Option<Sum>,
    /// Greatest unsigned number.
    pub(super) most: u64,
    /// Least and greatest distance from the stack pointer at entry, if the value is an address there.
    pub(super) frame: Option<(i64, i64)>,
    /// Whether a join of paths made the value or a part of it, or the caller passed it: in a loop or a recursion it may
    /// be what was computed in the round before.
    pub(super) carried: bool,
    /// Whether it was computed from such a value. Constants that each round adds sum up to any number, so at a join
    /// the value is untrusted.
    pub(super) grown: bool,
}

impl Value {
    pub(super) fn named(name: Name, class: Class) -> Value {
        Value::of(Sum::of(name, class))
    }

    pub(super) fn untrusted(name: Name) -> Value {
        Value::named(name, Class::Untrusted)
    }

    pub(super) fn constant(number: u64) -> Value {
        Value { most: number, ..Value::of(Sum::constant(number.cast_signed())) }
    }

    fn of(sum: Sum) -> Value {
        let frame = match sum.single() {
            Some((_, Class::Sp, by)) if by.abs() < FAR => Some((by, by)),
            Some(_) | None => None,
        };
        let most = if sum.terms().next().is_none() { sum.by.cast_unsigned() } else { u64::MAX };
        Value { class: sum.class(), sum: Some(sum), most, frame, carried: false, grown: false }
    }

    /// The value as a result of arithmetic on these.
    fn from(self, operands: &[Value]) -> Value {
        let carried = operands.iter().any(|value| value.carried);
        Value { carried, grown: carried || operands.iter().any(|value| value.grown), ..self }
    }

    pub(super) fn up_to(self, most: u64) -> Value {
        Value { most: self.most.min(most), ..self }
    }

    pub(super) fn exactly(&self) -> Option<i64> {
        self.sum.filter(|sum| sum.terms().next().is_none()).map(|sum| sum.by)
    }

    /// The offset, if the value is the start of a structure of this class, moved by a constant.
    pub(super) fn offset_in(&self, class: Class) -> Option<i64> {
        let (_, of, by) = self.sum?.single()?;
        (of == class && self.class == class).then_some(by)
    }

    /// Whether it is exactly this name.
    pub(super) fn is(&self, name: Name) -> bool {
        self.sum.and_then(|sum| sum.single()).is_some_and(|(of, _, by)| of == name && by == 0)
    }

    pub(super) fn mentions(&self, bound: &dyn Fn(Name) -> bool) -> bool {
        self.sum.is_some_and(|sum| sum.terms().any(|term| bound(term.name)))
    }

    /// Names for which `bound` holds are bound again: the value no longer equals values with these names.
    pub(super) fn forget(&mut self, bound: &dyn Fn(Name) -> bool) {
        if self.mentions(bound) {
            self.sum = None;
            // A field is known by its offset from the start.
            if matches!(self.class, Class::Run | Class::Context | Class::Budget) {
                self.class = Class::Untrusted;
            }
        }
    }

    /// Whether the value may stand where the start of an object stands.
    pub(super) fn is_address_or_null(&self) -> bool {
        self.class == Class::Address || self.exactly() == Some(0)
    }

    /// The class of a value that is this or the other.
    pub(super) fn either(&self, other: &Value) -> Class {
        match (self.class, other.class) {
            (a @ (Class::Number | Class::Untrusted | Class::Found), b) if a == b => a,
            _ if self.is_address_or_null() && other.is_address_or_null() => Class::Address,
            _ => Class::Untrusted,
        }
    }

    /// The value of a selection of this or the other, whatever decides it.
    pub(super) fn or(self, other: Value, here: Name) -> Value {
        let frame = match (self.frame, other.frame) {
            (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
            _ => None,
        };
        let grown = self.grown || other.grown;
        let value = Value::named(here, self.either(&other)).up_to(self.most.max(other.most));
        Value { frame, carried: grown || self.carried || other.carried, grown, ..value }
    }

    /// The value after a join of two paths.
    pub(super) fn join(self, other: Value, joined: Name, widen: bool) -> Value {
        if self == other {
            return match self.sum {
                Some(_) => self,
                None if self.grown => Value { most: self.most, ..Value::untrusted(joined) },
                None => Value { sum: Some(Sum::of(joined, self.class)), carried: true, ..self },
            };
        }
        let most = if widen && self.most < other.most { u64::MAX } else { self.most.max(other.most) };
        let frame = match (self.frame, other.frame) {
            (Some(mine), Some(theirs)) if mine == theirs => Some(mine),
            (Some((a, b)), Some((c, d))) if !widen => Some((a.min(c), b.max(d))),
            _ => None,
        };
        if self.sum.is_some() && self.sum == other.sum {
            let (carried, grown) = (self.carried || other.carried, self.grown || other.grown);
            return Value { most, frame, carried, grown, ..self };
        }
        let untrusted = frame.is_some() || self.grown || other.grown;
        let class = if untrusted { Class::Untrusted } else { self.either(&other) };
        Value { class, sum: Some(Sum::of(joined, class)), most, frame, carried: true, grown: false }
    }

    /// The lowest bytes.
    pub(super) fn narrow(self, bytes: usize, here: Name) -> Value {
        let most = match bytes {
            8.. => return self,
            _ => (1u64 << (8 * bytes)) - 1,
        };
        if self.frame.is_none() && self.most <= most {
            return self;
        }
        if let Some(number) = self.exactly() {
            return Value::constant(number.cast_unsigned() & most);
        }
        self.mixed(here).up_to(most)
    }

    /// self + other.
    pub(super) fn plus(self, other: Value, here: Name) -> Value {
        if other.exactly() == Some(0) {
            return self;
        }
        let most = self.most.checked_add(other.most).filter(|_| self.frame.is_none() && other.frame.is_none());
        let (a, b) = if other.frame.is_some() { (other, self) } else { (self, other) };
        let frame = match (a.frame, b.exactly()) {
            (Some((from, to)), Some(by)) => from.checked_add(by).zip(to.checked_add(by)),
            (Some((from, to)), None) if b.frame.is_none() && b.most < 1 << 32 => {
                Some((from, to.saturating_add_unsigned(b.most)))
            }
            _ => None,
        };
        let frame = frame.filter(|(from, to)| from.abs() < FAR && to.abs() < FAR);
        let value = match a.sum.zip(b.sum).and_then(|(a, b)| a.plus(&b, 1)) {
            Some(sum) => Value::of(sum),
            None => {
                let class = match (a.class, b.class) {
                    _ if a.frame.is_some() || b.frame.is_some() => Class::Untrusted,
                    (Class::Number, Class::Number) => Class::Number,
                    (Class::Address, Class::Number) | (Class::Number, Class::Address) => Class::Address,
                    _ => Class::Untrusted,
                };
                Value::named(here, class)
            }
        };
        let value = value.up_to(most.unwrap_or(u64::MAX));
        Value { frame: value.frame.or(frame), ..value }.from(&[a, b])
    }

    /// self - other.
    pub(super) fn minus(self, other: Value, here: Name) -> Value {
        if let Some(number) = other.exactly() {
            return self.plus(Value::constant(number.wrapping_neg().cast_unsigned()), here);
        }
        let value = match self.sum.zip(other.sum).and_then(|(a, b)| a.plus(&b, -1)) {
            Some(sum) => Value::of(sum),
            None => {
                let class = match (self.class, other.class) {
                    _ if self.frame.is_some() || other.frame.is_some() => Class::Untrusted,
                    (Class::Number, Class::Number) | (Class::Address, Class::Address) => Class::Number,
                    (Class::Address, Class::Number) => Class::Address,
                    _ => Class::Untrusted,
                };
                Value::named(here, class)
            }
        };
        value.from(&[self, other])
    }

    /// self * times.
    pub(super) fn times(self, times: i64, here: Name) -> Value {
        if times == 1 {
            return self;
        }
        let most = match u64::try_from(times) {
            Ok(times) if self.frame.is_none() => self.most.saturating_mul(times),
            Ok(_) | Err(_) => u64::MAX,
        };
        match self.sum.and_then(|sum| Sum::ZERO.plus(&sum, times)) {
            Some(sum) => Value::of(sum).up_to(most).from(&[self]),
            None => self.mixed(here).up_to(most),
        }
    }

    /// The result of an operation on this value that is no sum.
    pub(super) fn mixed(self, here: Name) -> Value {
        Value::named(here, if self.class == Class::Number { Class::Number } else { Class::Untrusted }).from(&[self])
    }

    /// The result of an operation on both values that is no sum.
    pub(super) fn mixed_with(self, other: Value, here: Name) -> Value {
        if other.class == Class::Number { self.mixed(here).from(&[self, other]) } else { Value::untrusted(here) }
    }

    /// self & other.
    pub(super) fn and(self, other: Value, here: Name) -> Value {
        if let (Some(a), Some(b)) = (self.exactly(), other.exactly()) {
            return Value::constant((a & b).cast_unsigned());
        }
        let (most, aligned) = (self.most.min(other.most), matches!(other.exactly(), Some(-8 | -4 | -2)));
        if aligned && self.class == Class::Address {
            return Value::named(here, Class::Address).up_to(self.most).from(&[self]);
        }
        self.mixed_with(other, here).up_to(most)
    }
}
