//! Terms: what a solver is asked about, each made once.
//!
//! Problem: code that runs on terms copies them as it copies numbers, and uses each in many places; written out as a
//! tree, a term of a few hundred operations is longer than any memory. Approach: a table of nodes, of which each is
//! there once, and a [`Term`] is an index into it; a query names every node that it needs, once. None of the crates
//! that speak to solvers is used, because they write trees; without trees only a pipe would be left of them.
//!
//! Constants are folded by [`apply`], as `u64` computes; that the solver means the same by the operations is proven
//! for sample numbers (`operations`).
//!
//! Integers without an end ([`INTEGER`]) are a sort of their own: products of unknowns are decided there that are not
//! as bits.
//!
//! Invariants: a node's operands stand before it. Bits are 1 to 128; a truth value has 1 bit of its own sort. No term
//! is of an integer and of bits, and no query has both.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write;

/// A node of this thread's table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Term(u32);

/// The number of bits of an unbounded integer. Constants of these fit 128 bits, with a sign.
pub(crate) const INTEGER: u32 = 0;

/// Operations of SMT-LIB's bit vectors, and of truth values; [`Op::of_integers`] tells which of them apply to integers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Op {
    Add,
    Sub,
    Mul,
    And,
    Or,
    Xor,
    Shl,
    Lshr,
    Ashr,
    Udiv,
    Urem,
    Sdiv,
    Srem,
    Eq,
    Ult,
    Ule,
    Slt,
    Sle,
    /// Operations of truth values, from here on.
    Both,
    Either,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Op::Add => "bvadd",
            Op::Sub => "bvsub",
            Op::Mul => "bvmul",
            Op::And => "bvand",
            Op::Or => "bvor",
            Op::Xor => "bvxor",
            Op::Shl => "bvshl",
            Op::Lshr => "bvlshr",
            Op::Ashr => "bvashr",
            Op::Udiv => "bvudiv",
            Op::Urem => "bvurem",
            Op::Sdiv => "bvsdiv",
            Op::Srem => "bvsrem",
            Op::Eq => "=",
            Op::Ult => "bvult",
            Op::Ule => "bvule",
            Op::Slt => "bvslt",
            Op::Sle => "bvsle",
            Op::Both => "and",
            Op::Either => "or",
        }
    }

    /// The operation on integers, if it is one.
    fn of_integers(self) -> &'static str {
        match self {
            Op::Add => "+",
            Op::Sub => "-",
            Op::Mul => "*",
            Op::Eq => "=",
            Op::Slt => "<",
            Op::Sle => "<=",
            Op::And
            | Op::Or
            | Op::Xor
            | Op::Shl
            | Op::Lshr
            | Op::Ashr
            | Op::Udiv
            | Op::Urem
            | Op::Sdiv
            | Op::Srem
            | Op::Ult
            | Op::Ule
            | Op::Both
            | Op::Either => unreachable!("{self:?} of integers"),
        }
    }

    fn is_truth(self) -> bool {
        matches!(self, Op::Eq | Op::Ult | Op::Ule | Op::Slt | Op::Sle | Op::Both | Op::Either)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Node {
    /// A constant: its width in bits, and its value.
    Const(u32, u128),
    /// A number of so many bits that may be any.
    Var(u32, u32),
    /// A truth value that may be either.
    Unsure(u32),
    True,
    False,
    Not(Term),
    Op(Op, Term, Term),
    If(Term, Term, Term),
    /// The low bits.
    Low(u32, Term),
    /// Extension to this width in bits, by zeros or (`Sext`) by copies of the highest bit.
    Zext(u32, Term),
    Sext(u32, Term),
}

#[derive(Default)]
struct Table {
    nodes: Vec<(Node, u32)>,
    known: HashMap<Node, Term>,
}

thread_local!(static TABLE: RefCell<Table> = RefCell::default());

/// All ones in the low `w` bits.
fn ones(w: u32) -> u128 {
    if w >= 128 { u128::MAX } else { (1 << w) - 1 }
}

fn signed(w: u32, x: u128) -> i128 {
    (x << (128 - w)) as i128 >> (128 - w)
}

/// Computes an operation on constants of `w` bits: a number, or 0 or 1 for a truth value.
fn apply(op: Op, w: u32, a: u128, b: u128) -> u128 {
    let (sa, sb) = (signed(w, a), signed(w, b));
    let far = b >= u128::from(w);
    let result = match op {
        Op::Add => a.wrapping_add(b),
        Op::Sub => a.wrapping_sub(b),
        Op::Mul => a.wrapping_mul(b),
        Op::And | Op::Both => a & b,
        Op::Or | Op::Either => a | b,
        Op::Xor => a ^ b,
        Op::Shl if far => 0,
        Op::Shl => a << b,
        Op::Lshr if far => 0,
        Op::Lshr => a >> b,
        Op::Ashr => (sa >> if far { 127 } else { b }) as u128,
        // By zero as SMT-LIB has it. The code under proof never gets there: it asks before.
        Op::Udiv => a.checked_div(b).unwrap_or(u128::MAX),
        Op::Urem => a.checked_rem(b).unwrap_or(a),
        Op::Sdiv if sb == 0 => {
            if sa < 0 {
                1
            } else {
                u128::MAX
            }
        }
        Op::Sdiv => sa.wrapping_div(sb) as u128,
        Op::Srem if sb == 0 => a,
        Op::Srem => sa.wrapping_rem(sb) as u128,
        Op::Eq => u128::from(a == b),
        Op::Ult => u128::from(a < b),
        Op::Ule => u128::from(a <= b),
        Op::Slt => u128::from(sa < sb),
        Op::Sle => u128::from(sa <= sb),
    };
    if op.is_truth() { result & 1 } else { result & ones(w) }
}

/// Computes an operation on integers; `None` if the result does not fit.
fn apply_to_integers(op: Op, a: i128, b: i128) -> Option<u128> {
    match op.of_integers() {
        "+" => a.checked_add(b).map(i128::cast_unsigned),
        "-" => a.checked_sub(b).map(i128::cast_unsigned),
        "*" => a.checked_mul(b).map(i128::cast_unsigned),
        "=" => Some((a == b).into()),
        "<" => Some((a < b).into()),
        "<=" => Some((a <= b).into()),
        _ => None,
    }
}

/// The node's term, made if it is new.
fn intern(node: Node, bits: u32) -> Term {
    TABLE.with_borrow_mut(|table| {
        if let Some(known) = table.known.get(&node) {
            return *known;
        }
        let term = Term(table.nodes.len() as u32);
        table.nodes.push((node, bits));
        table.known.insert(node, term);
        term
    })
}

fn truth(value: bool) -> Term {
    intern(if value { Node::True } else { Node::False }, 1)
}

/// Forgets all terms: none made before may be used after.
pub(crate) fn clear() {
    TABLE.with_borrow_mut(|table| *table = Table::default());
}

impl Term {
    pub(crate) fn node(self) -> Node {
        TABLE.with_borrow(|table| table.nodes[self.0 as usize].0)
    }

    pub(crate) fn bits(self) -> u32 {
        TABLE.with_borrow(|table| table.nodes[self.0 as usize].1)
    }

    pub(crate) fn constant(bits: u32, value: u128) -> Term {
        let value = if bits == INTEGER { value } else { value & ones(bits) };
        intern(Node::Const(bits, value), bits)
    }

    pub(crate) fn var(bits: u32, id: u32) -> Term {
        intern(Node::Var(bits, id), bits)
    }

    pub(crate) fn unsure(id: u32) -> Term {
        intern(Node::Unsure(id), 1)
    }

    pub(crate) fn truth(value: bool) -> Term {
        truth(value)
    }

    /// The value of a constant; of a truth value, 0 or 1.
    pub(crate) fn known(self) -> Option<u128> {
        match self.node() {
            Node::Const(_, value) => Some(value),
            Node::True => Some(1),
            Node::False => Some(0),
            Node::Var(..)
            | Node::Unsure(_)
            | Node::Not(_)
            | Node::Op(..)
            | Node::If(..)
            | Node::Low(..)
            | Node::Zext(..)
            | Node::Sext(..) => None,
        }
    }

    pub(crate) fn op(op: Op, a: Term, b: Term) -> Term {
        let bits = a.bits();
        debug_assert_eq!(bits, b.bits(), "{op:?}");
        let result = if op.is_truth() { 1 } else { bits };
        let make = |value| match op.is_truth() {
            true => truth(value != 0),
            false => Term::constant(result, value),
        };
        match (op, a.known(), b.known()) {
            (_, Some(x), Some(y)) if bits == INTEGER => {
                let known = apply_to_integers(op, x.cast_signed(), y.cast_signed());
                known.map_or_else(|| intern(Node::Op(op, a, b), result), make)
            }
            (_, Some(a), Some(b)) => make(apply(op, bits, a, b)),
            (Op::Both, Some(1), _) | (Op::Either, Some(0), _) => b,
            (Op::Both, _, Some(1)) | (Op::Either, _, Some(0)) => a,
            (Op::Both, Some(_), _) | (Op::Either, Some(_), _) => a,
            (Op::Both, _, Some(_)) | (Op::Either, _, Some(_)) => b,
            (Op::Eq | Op::Ule | Op::Sle, ..) if a == b => truth(true),
            (Op::Ult | Op::Slt, ..) if a == b => truth(false),
            _ => intern(Node::Op(op, a, b), result),
        }
    }

    pub(crate) fn and(self, other: Term) -> Term {
        Term::op(Op::Both, self, other)
    }

    pub(crate) fn or(self, other: Term) -> Term {
        Term::op(Op::Either, self, other)
    }

    pub(crate) fn implies(self, other: Term) -> Term {
        self.not().or(other)
    }

    /// Lists the conditions whose conjunction this term is.
    pub(crate) fn parts(self, all: &mut Vec<Term>) {
        match self.node() {
            Node::Op(Op::Both, a, b) => {
                a.parts(all);
                b.parts(all);
            }
            Node::Const(..)
            | Node::Var(..)
            | Node::Unsure(_)
            | Node::True
            | Node::False
            | Node::Not(_)
            | Node::Op(..)
            | Node::If(..)
            | Node::Low(..)
            | Node::Zext(..)
            | Node::Sext(..) => all.push(self),
        }
    }

    /// The negation of a truth value.
    pub(crate) fn not(self) -> Term {
        match self.node() {
            Node::True => truth(false),
            Node::False => truth(true),
            Node::Not(of) => of,
            Node::Const(..)
            | Node::Var(..)
            | Node::Unsure(_)
            | Node::Op(..)
            | Node::If(..)
            | Node::Low(..)
            | Node::Zext(..)
            | Node::Sext(..) => intern(Node::Not(self), 1),
        }
    }

    /// `a` if `self`, else `b`.
    pub(crate) fn choose(self, a: Term, b: Term) -> Term {
        match self.known() {
            Some(1) => a,
            Some(_) => b,
            None if a == b => a,
            None => intern(Node::If(self, a, b), a.bits()),
        }
    }

    pub(crate) fn low(self, bits: u32) -> Term {
        match self.known() {
            Some(value) => Term::constant(bits, value),
            None if bits == self.bits() => self,
            None => intern(Node::Low(bits, self), bits),
        }
    }

    pub(crate) fn zext(self, bits: u32) -> Term {
        match self.known() {
            Some(value) => Term::constant(bits, value),
            None => intern(Node::Zext(bits, self), bits),
        }
    }

    pub(crate) fn sext(self, bits: u32) -> Term {
        match self.known() {
            Some(value) => Term::constant(bits, signed(self.bits(), value) as u128),
            None => intern(Node::Sext(bits, self), bits),
        }
    }
}

/// The text that defines these terms and asserts that all are true, and the names of the variables in it.
pub(crate) fn query(asserted: &[Term]) -> (String, Vec<Term>) {
    TABLE.with_borrow(|table| {
        let mut wanted = vec![false; table.nodes.len()];
        for term in asserted {
            wanted[term.0 as usize] = true;
        }
        // Operands stand before their uses.
        for i in (0..table.nodes.len()).rev().filter(|i| *i < table.nodes.len()) {
            if wanted[i] {
                operands(&table.nodes[i].0).into_iter().flatten().for_each(|of| wanted[of.0 as usize] = true);
            }
        }
        let (mut text, mut variables) = (String::new(), Vec::new());
        for (i, (node, bits)) in table.nodes.iter().enumerate().filter(|(i, _)| wanted[*i]) {
            let sort = |truth: bool| match *bits {
                _ if truth => "Bool".into(),
                INTEGER => "Int".into(),
                bits => format!("(_ BitVec {bits})"),
            };
            let mut define = |truth: bool, body: std::fmt::Arguments<'_>| {
                let _ = writeln!(text, "(define-fun t{i} () {} {body})", sort(truth));
            };
            let name = |op: Op, a: Term| match table.nodes[a.0 as usize] {
                (_, INTEGER) => op.of_integers(),
                _ => op.name(),
            };
            match *node {
                Node::Const(INTEGER, value) => {
                    let sign = if value.cast_signed() < 0 { "-" } else { "+" };
                    define(false, format_args!("({sign} {})", value.cast_signed().unsigned_abs()));
                }
                Node::Const(_, value) => define(false, format_args!("(_ bv{value} {bits})")),
                Node::True => define(true, format_args!("true")),
                Node::False => define(true, format_args!("false")),
                Node::Var(..) | Node::Unsure(_) => {
                    let truth = matches!(node, Node::Unsure(_));
                    let _ = writeln!(text, "(declare-const t{i} {})", sort(truth));
                    variables.push(Term(i as u32));
                }
                Node::Not(a) => define(true, format_args!("(not t{})", a.0)),
                Node::Op(op, a, b) => define(op.is_truth(), format_args!("({} t{} t{})", name(op, a), a.0, b.0)),
                Node::If(c, a, b) => define(false, format_args!("(ite t{} t{} t{})", c.0, a.0, b.0)),
                Node::Low(n, a) => define(false, format_args!("((_ extract {} 0) t{})", n - 1, a.0)),
                Node::Zext(n, a) => {
                    let more = n - table.nodes[a.0 as usize].1;
                    define(false, format_args!("((_ zero_extend {more}) t{})", a.0));
                }
                Node::Sext(n, a) => {
                    let more = n - table.nodes[a.0 as usize].1;
                    define(false, format_args!("((_ sign_extend {more}) t{})", a.0));
                }
            }
        }
        for term in asserted {
            let _ = writeln!(text, "(assert t{})", term.0);
        }
        (text, variables)
    })
}

fn operands(node: &Node) -> [Option<Term>; 3] {
    match *node {
        Node::Const(..) | Node::Var(..) | Node::Unsure(_) | Node::True | Node::False => [None; 3],
        Node::Not(a) | Node::Low(_, a) | Node::Zext(_, a) | Node::Sext(_, a) => [Some(a), None, None],
        Node::Op(_, a, b) => [Some(a), Some(b), None],
        Node::If(c, a, b) => [Some(c), Some(a), Some(b)],
    }
}

impl std::fmt::Display for Term {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "t{}", self.0)
    }
}
