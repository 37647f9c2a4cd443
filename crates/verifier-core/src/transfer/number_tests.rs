//! Tests of the rules for numbers against concrete execution: random operations on random numbers, with a concrete
//! value for each name.

use bpf_isa::{AluOp, Insn, Program, Width};

use crate::check::Checker;
use crate::contract::{ContextLayout, Env, Helpers};
use crate::domain::knowledge::low_word;
use crate::domain::{Combination, Definition, Form, Name, Scalar, eval};
use crate::guide::{Advice, Guide, Point};
use crate::refusal::Why;
use crate::state::State;
use crate::transfer::number::bits;

/// A generator of numbers: xorshift64 (Marsaglia 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    /// A word that is mostly near the ends of ranges.
    fn word(&mut self) -> u64 {
        let word = self.below(u64::MAX);
        match self.below(6) {
            0 => word,
            1 => word >> self.below(64),
            2 => u64::MAX << self.below(64),
            3 => (1 << self.below(64)) - 1,
            4 => self.below(9).wrapping_sub(4),
            _ => self.below(1 << 12),
        }
    }
}

/// A guide that tries each row alone.
struct Rows;

impl Guide for Rows {
    fn advise(&mut self, _: &Point<'_>) -> Advice {
        Advice::Step
    }

    fn prove(&mut self, point: &Point<'_>, claim: &Form) -> Option<Combination> {
        let known = point.state.known();
        let single = |row| Combination::of(1, vec![(row, 1)]);
        (0u32..).take(known.rows().len()).map(single).find(|by| known.proves(claim, by))
    }
}

fn value(form: &Form, names: &[i128]) -> i128 {
    form.terms().iter().map(|(n, a)| a * names[n.index()]).sum::<i128>() + form.offset()
}

/// The integer that the definition describes.
fn defined(definition: &Definition, names: &[i128]) -> i128 {
    match definition {
        Definition::Residue { form, bits, signed } => {
            let low = value(form, names).rem_euclid(1 << bits);
            if *signed && low >> (bits - 1) == 1 { low - (1 << bits) } else { low }
        }
        Definition::Quotient { form, by } => value(form, names).div_euclid(*by),
        Definition::Word { op, width, of: (a, b) } => {
            let [a, b] = [a, b].map(|form| low_word(value(form, names)));
            eval(*op, bits(*width), a, b).into()
        }
    }
}

/// Checks that the concrete values of all names satisfy the state, after computing the values of new names.
fn agrees(state: &State, names: &mut Vec<i128>) {
    let known = &state.known;
    for (definition, form) in known.all_defined() {
        if let Some(n) = form.as_name().filter(|n| n.index() >= names.len()) {
            assert_eq!(n.index(), names.len(), "a name without a definition");
            let is = defined(definition, names);
            // The name stands for the unsigned or the signed value of its word.
            let signed = known.names()[n.index()].signed;
            names.push(if signed { i128::from(low_word(is).cast_signed()) } else { is });
        }
        let (is, said) = (defined(definition, names), value(form, names));
        assert_eq!(low_word(is), low_word(said), "{definition:?} is not {form:?} with {names:?}");
    }
    assert_eq!(known.names().len(), names.len());
    for (known, is) in known.names().iter().zip(&*names) {
        let (min, max) = known.bounds();
        assert!((min..=max).contains(is) && known.word.contains(low_word(*is)), "{is} is not in {known:?}");
    }
    for row in known.rows() {
        assert!(value(row, names) >= 0, "{row:?} with {names:?}");
    }
}

#[test]
fn every_operation_has_the_value_that_its_definition_says() {
    let program = Program::new(vec![Insn::Exit]).expect("valid");
    let (context, helpers) = (ContextLayout::raw(true), Helpers::none());
    let env = Env::new(&context, &helpers);
    let mut random = Random(88_172_645_463_325_252);
    let mut done = 0;
    for _ in 0..6_000 {
        let mut guide = Rows;
        let mut checker = Checker::new(&program, &env, &[], &mut guide, 1 << 20);
        let mut state = State::entry(&env).expect("a state");
        let mut names = vec![i128::from(random.below(1 << 30))];
        let mut numbers = vec![Form::name(Name(0))];
        for _ in 0..2 {
            let (a, b) = (random.word(), random.word());
            let signed = random.below(3) == 0;
            let (a, is) = (a.min(b), if random.below(2) == 0 { a } else { b });
            let word = if signed { Scalar::UNKNOWN } else { Scalar::unsigned(a, a.max(b).max(is)) };
            let name = checker.fresh(&mut state, word, signed).expect("fuel");
            names.push(if signed { i128::from(is.cast_signed()) } else { i128::from(is) });
            numbers.push(Form::name(name));
        }
        for _ in 0..6 {
            let op = AluOp::ALL[random.below(13) as usize];
            let width = if random.below(3) == 0 { Width::W32 } else { Width::W64 };
            let a = numbers[random.below(numbers.len() as u64) as usize].clone();
            let b = match random.below(3) {
                0 => numbers[random.below(numbers.len() as u64) as usize].clone(),
                _ => Form::constant(i128::from(random.word())).residue(64),
            };
            let wanted = eval(op, bits(width), low_word(value(&a, &names)), low_word(value(&b, &names)));
            match checker.number_op(&mut state, op, width, &a, &b) {
                Ok(result) => {
                    agrees(&state, &mut names);
                    assert_eq!(low_word(value(&result, &names)), wanted, "{op:?} {width:?} of {a:?} and {b:?}");
                    numbers.push(result);
                    done += 1;
                }
                Err(Why::Fuel) => break,
                Err(why) => panic!("{op:?} {width:?} of {a:?} and {b:?}: {why}"),
            }
        }
    }
    assert!(done > 20_000, "{done} operations");
}
