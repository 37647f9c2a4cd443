//! The code under proof, run once for each way that its comparisons can go.
//!
//! Problem: an `if` on terms has no answer. The way of most provers, to turn every branch into a choice between two
//! terms, would have the code under proof written for the prover. Approach: a comparison gives `true` first, and is
//! remembered; when the code has returned, it is run again with the last answer that has another side turned round,
//! until all sides have been seen. The answers on the way are the path's condition. The solver is asked at each new
//! comparison which sides are possible at all, which prunes unreachable paths, and at the end of each path whether a
//! claim there can be false.
//!
//! * A question ([`Word::ask`]) is run through by itself, all its ways, and becomes one condition: only its answer
//!   matters.
//! * A step ([`Word::step`]) is proven by itself; where it is part of something, any set stands for its result that
//!   keeps what the step promises for the numbers that the proof is about ([`witness`]). Without that the ways of the
//!   steps would multiply.
//!
//! Invariants: code under proof does the same when it is given the same answers. Nothing is claimed of a path that was
//! not walked to its end.

pub(crate) mod integer;
pub(crate) mod word;

use self::integer::Z;
use self::word::U;
use crate::failure::Failure;
use crate::solver::{Answer, Solver};
use crate::term::{self, Term};
use bpf_isa::AluOp;
use bpf_isa::word::{Numbers, Word};
use bpf_verifier::eval;
use std::cell::RefCell;
use std::collections::HashSet;
use std::time::Duration;

/// An answer, and whether the other one is still to be tried.
#[derive(Clone, Copy)]
struct Choice {
    answer: bool,
    other: bool,
}

/// The paths through a piece of code: the choices of the current run, and the next choice.
#[derive(Default)]
struct Ways {
    choices: Vec<Choice>,
    at: usize,
    /// Conditions that hold on the way so far.
    path: Vec<Term>,
}

impl Ways {
    /// Begins another run.
    fn restart(&mut self) {
        (self.at, self.path) = (0, Vec::new());
    }

    /// The answer, if the conditions of the path so far decide it. A decided answer is no choice.
    fn known(&self, condition: Term) -> Option<bool> {
        let known = |term: Term| term.known() == Some(1) || self.path.contains(&term);
        match () {
            () if known(condition) => Some(true),
            () if known(condition.not()) => Some(false),
            () => None,
        }
    }

    /// The answer that was chosen for this run. Call only for conditions that [`Ways::known`] does not decide:
    /// otherwise the choices would belong to other conditions.
    fn chosen(&mut self, condition: Term) -> Option<bool> {
        let choice = self.choices.get(self.at)?;
        Some(self.take(condition, choice.answer))
    }

    fn take(&mut self, condition: Term, answer: bool) -> bool {
        self.at += 1;
        self.path.push(if answer { condition } else { condition.not() });
        answer
    }

    fn choose(&mut self, condition: Term, answer: bool, other: bool) -> bool {
        self.choices.push(Choice { answer, other });
        self.take(condition, answer)
    }

    /// Turns the last answer round that has another side. `false` if there is none.
    fn next(&mut self) -> bool {
        while let Some(last) = self.choices.pop() {
            if last.other {
                self.choices.push(Choice { answer: !last.answer, other: false });
                return true;
            }
        }
        false
    }

    fn condition(&self) -> Term {
        self.path.iter().fold(Term::truth(true), |all, one| all.and(*one))
    }
}

/// A proof in progress on this thread.
struct Proof {
    solver: Solver,
    ways: Ways,
    /// Questions within it, the innermost last.
    questions: Vec<Ways>,
    assumed: Vec<Term>,
    claimed: Vec<(Term, String)>,
    witnesses: Vec<U>,
    operands: Option<(U, U)>,
    variables: u32,
    /// Whether a way can be walked to its end: if none can, nothing has been shown.
    reached: bool,
}

/// Time for a query whose answer only prunes paths, so that no answer is needed.
const AT_ONCE: Duration = Duration::from_millis(500);

thread_local!(static PROOF: RefCell<Option<Proof>> = const { RefCell::new(None) });

fn with<R>(f: impl FnOnce(&mut Proof) -> R) -> R {
    PROOF.with_borrow_mut(|proof| f(proof.as_mut().expect("terms are used within a proof")))
}

/// The answer to a comparison.
pub(crate) fn decide(condition: Term) -> bool {
    if let Some(value) = condition.known() {
        return value != 0;
    }
    with(|proof| {
        if let Some(ways) = proof.questions.last_mut() {
            let given = ways.known(condition).or_else(|| ways.chosen(condition));
            return given.unwrap_or_else(|| ways.choose(condition, true, true));
        }
        if let Some(answer) = proof.ways.known(condition) {
            return answer;
        }
        if proof.assumed.contains(&condition) {
            return true;
        }
        if let Some(answer) = proof.ways.chosen(condition) {
            return answer;
        }
        let possible = [condition, condition.not()].map(|side| proof.possible(side));
        match possible {
            [true, other] => proof.ways.choose(condition, true, other),
            // If neither, the path itself is impossible: whatever is claimed at its end holds.
            [false, _] => proof.ways.choose(condition, false, false),
        }
    })
}

/// The condition under which a question is answered with yes.
pub(crate) fn truth_of(question: impl Fn() -> bool) -> Term {
    with(|proof| proof.questions.push(Ways::default()));
    let mut yes = Term::truth(false);
    loop {
        with(|proof| proof.questions.last_mut().expect("just pushed").restart());
        let answer = question();
        let more = with(|proof| {
            let ways = proof.questions.last_mut().expect("just pushed");
            if answer {
                yes = yes.or(ways.condition());
            }
            ways.next()
        });
        if !more {
            break;
        }
    }
    with(|proof| proof.questions.pop());
    yes
}

/// Must be true here, or the code would panic.
pub(crate) fn require(condition: Term, or: &str) {
    with(|proof| {
        // Within a question, on its way only.
        let way = proof.questions.iter().fold(Term::truth(true), |all, ways| all.and(ways.condition()));
        let condition = way.implies(condition);
        if condition.known() != Some(1) {
            proof.claimed.push((condition, or.to_owned()));
        }
    });
}

/// Any number.
pub(crate) fn any() -> U {
    with(|proof| {
        proof.variables += 1;
        U::Of(Term::var(64, proof.variables))
    })
}

/// Any integer.
pub(crate) fn any_integer() -> Z {
    with(|proof| {
        proof.variables += 1;
        Z::of_term(Term::var(term::INTEGER, proof.variables))
    })
}

/// Any of these numbers, one way for each: a claim that is hard for an unknown number is often easy for each.
pub(crate) fn one_of(numbers: impl Iterator<Item = u64>) -> u64 {
    let which = any();
    let mut last = None;
    for number in numbers {
        // The last one is for all others of `which`.
        if let Some(known) = last.replace(number)
            && which == U::Const(known)
        {
            return known;
        }
    }
    last.expect("a number")
}

/// A number that the proof is about: steps keep it.
pub(crate) fn witness(x: U) {
    with(|proof| proof.witnesses.push(x));
}

/// The numbers that the instruction under proof works on: operations keep their result.
pub(crate) fn operands(x: U, y: U) {
    with(|proof| proof.operands = Some((x, y)));
}

/// Only numbers that fulfil the condition are considered.
pub(crate) fn assume(condition: impl Fn() -> bool) {
    let condition = truth_of(condition);
    with(|proof| proof.assumed.push(condition));
}

/// Must be true at the end of this way.
pub(crate) fn claim(what: &str, condition: impl Fn() -> bool) {
    let condition = truth_of(condition);
    with(|proof| proof.claimed.push((condition, what.to_owned())));
}

/// Returns an arbitrary well-formed set.
pub(crate) fn any_set<A: Numbers<U>>() -> A {
    let set = A::of_words(&mut any);
    assume(|| set.well_formed());
    set
}

/// Any set that holds this number.
pub(crate) fn any_with<A: Numbers<U>>(x: U) -> A {
    let set: A = any_set();
    assume(|| set.holds(x));
    set
}

/// Anything that keeps the promise of a step on `set`, and what it says.
pub(crate) fn stand_in<A: Numbers<U>>(set: &mut A) -> bool {
    let before = *set;
    *set = A::of_words(&mut any);
    let (kept, witnesses) = with(|proof| {
        assert!(proof.questions.is_empty(), "a step is no part of a question");
        proof.variables += 1;
        (Term::unsure(proof.variables), proof.witnesses.clone())
    });
    let after = *set;
    let formed = truth_of(|| before.well_formed());
    with(|proof| proof.shown(formed)).then(|| assume(|| after.well_formed()));
    for x in witnesses {
        let x = x & U::ONES[A::BITS as usize];
        let was = truth_of(|| before.holds(x));
        if with(|proof| proof.shown(was)) {
            let is = truth_of(|| after.holds(x));
            with(|proof| proof.assumed.extend([kept, is]));
        }
    }
    decide(kept)
}

/// Anything that keeps the promise of an operation.
pub(crate) fn stand_in_for<A: Numbers<U>>(op: AluOp, a: A, b: A, (least, most): (U, U)) -> A {
    let result = A::of_words(&mut any);
    let (x, y) = with(|proof| proof.operands).expect("an operation has operands");
    let (x, y) = (x & U::ONES[A::BITS as usize], y & U::ONES[A::BITS as usize]);
    let formed = truth_of(|| a.well_formed() && b.well_formed());
    with(|proof| proof.shown(formed)).then(|| assume(|| result.well_formed()));
    let count = y & U::of(u64::from(A::BITS - 1));
    let mut given = truth_of(|| a.holds(x)).and(truth_of(|| b.holds(y)));
    if matches!(op, AluOp::Lsh | AluOp::Rsh | AluOp::Arsh) {
        given = given.and(truth_of(|| least <= count && count <= most && most < U::of(A::BITS.into())));
    }
    if with(|proof| proof.shown(given)) {
        assume(|| result.holds(eval(op, A::BITS, x, y)));
    }
    result
}

impl Proof {
    /// Returns the conditions that hold on this way, and `more`.
    fn known(&self, more: Term) -> Vec<Term> {
        self.assumed.iter().chain(&self.ways.path).copied().chain([more]).collect()
    }

    /// Whether `condition` can be true on this way. An undecided condition counts as possible.
    fn possible(&mut self, condition: Term) -> bool {
        let known = self.known(condition);
        !matches!(self.solver.ask(&known, AT_ONCE, false), Ok(Answer::Unsat))
    }

    /// Whether `condition` follows on this way. Only then is the promise of a step or an operation assumed: it becomes
    /// a fact of the rest of the way, and not one more case.
    fn shown(&mut self, condition: Term) -> bool {
        let mut parts = Vec::new();
        condition.parts(&mut parts);
        let facts = self.facts();
        parts.into_iter().filter(|part| part.known() != Some(1) && !facts.contains(part)).all(|part| {
            let all = self.known(part.not());
            let timeout = self.solver.limit;
            matches!(self.solver.ask(&all, timeout, false), Ok(Answer::Unsat))
        })
    }

    /// Returns the known conditions as terms, without asking the solver.
    fn facts(&self) -> HashSet<Term> {
        let mut facts = Vec::new();
        self.assumed.iter().chain(&self.ways.path).for_each(|term| term.parts(&mut facts));
        facts.into_iter().collect()
    }

    /// At the end of a way: whether any claim can be false.
    fn finish(&mut self) -> Result<(), Failure> {
        if !self.reached && !self.possible(Term::truth(true)) {
            return Ok(());
        }
        self.reached = true;
        let facts = self.facts();
        let mut claims = Vec::new();
        for (claim, name) in &self.claimed {
            let mut parts = Vec::new();
            claim.parts(&mut parts);
            parts.retain(|part| !facts.contains(part) && part.known() != Some(1));
            claims.extend(parts.into_iter().map(|part| (part, name.clone())));
        }
        let wrong = claims.iter().fold(Term::truth(false), |any, (claim, _)| any.or(claim.not()));
        let all = self.known(wrong);
        if let Ok(Answer::Unsat) = self.solver.ask(&all, AT_ONCE, false) {
            return Ok(());
        }
        // Each claim is a query of its own, with the full time limit.
        for (claim, name) in claims {
            let all = self.known(claim.not());
            let answer = self.solver.ask(&all, self.solver.limit, true);
            match answer.map_err(|e| Failure::Open(format!("{e:#}")))? {
                Answer::Unsat => {}
                Answer::Sat(numbers) => return Err(Failure::Refuted(format!("{name}: {numbers}"))),
                Answer::Unknown => return Err(Failure::Open(format!("{name}: undecided in time"))),
            }
        }
        Ok(())
    }
}

/// Result of a proof.
pub(crate) struct Proven {
    pub(crate) ways: u64,
    pub(crate) queries: u64,
}

/// Runs the code once for each way through it; all that it claims must be true at the end of each.
pub(crate) fn prove(solver: &mut Option<Solver>, code: &dyn Fn()) -> Result<Proven, Failure> {
    term::clear();
    let mut solver_now = solver.take().ok_or_else(|| Failure::Open("no solver".to_owned()))?;
    solver_now.begin();
    let asked = solver_now.queries;
    let proof = Proof {
        solver: solver_now,
        ways: Ways::default(),
        questions: Vec::new(),
        assumed: Vec::new(),
        claimed: Vec::new(),
        witnesses: Vec::new(),
        operands: None,
        variables: 0,
        reached: false,
    };
    PROOF.set(Some(proof));
    let mut ways = 0;
    let result = loop {
        ways += 1;
        with(|proof| {
            proof.ways.restart();
            proof.assumed.clear();
            proof.claimed.clear();
            proof.witnesses.clear();
            proof.operands = None;
            proof.variables = 0;
        });
        code();
        if let Err(why) = with(Proof::finish) {
            break Err(why);
        }
        if !with(|proof| proof.ways.next()) {
            break if with(|proof| proof.reached) {
                Ok(ways)
            } else {
                Err(Failure::Open("it assumes what cannot be".to_owned()))
            };
        }
    };
    let proof = PROOF.take().expect("the proof that was set");
    let queries = proof.solver.queries - asked;
    *solver = Some(proof.solver);
    result.map(|ways| Proven { ways, queries })
}
