//! Certificates and environments made to deceive the trusted core, or to make it work for long.
//!
//! A binary of its own: every test here is an attack that once worked.

use bpf_isa::{InsnIdx, Program};
use bpf_verifier::{ContextLayout, Env, Helpers, Limits, Proof, ProofError, ProofSection};
use bpf_verifier_core::{
    Advice, Answer, Combination, Form, Guide, Invariant, Kept, Known, Name, Point, Recording, Replay, Scalar, Value,
    Why, check, explore,
};

const FUEL: u64 = 1 << 16;
/// A guide's answers: none but the default ones.
const NOTHING: Recording = Recording { answers: Vec::new() };

fn program(text: &str) -> Program {
    Program::new(bpf_isa::assemble(text).expect("a program")).expect("valid")
}

/// Why the core refuses the program without any certificate, if it does.
fn refused(program: &Program, env: &Env<'_>) -> Option<Why> {
    check(program, env, &[], &mut Replay::new(&NOTHING), FUEL).err().map(|refusal| refusal.why)
}

#[test]
fn a_function_without_a_result_returns_what_its_context_asks_for() {
    let helpers = Helpers::none();
    let asks = ContextLayout { returns: Some((0, 1)), ..ContextLayout::raw(false) };
    let void = Env { void: true, ..Env::new(&asks, &helpers) };
    assert_eq!(refused(&program("r0 = 1\nexit"), &void), None);
    assert_eq!(refused(&program("r0 = 2\nexit"), &void), Some(Why::Return));
    assert!(matches!(refused(&program("r0 = r10\nexit"), &void), Some(Why::NotANumber(_))));
    assert!(matches!(refused(&program("exit"), &void), Some(Why::Unset(_))));
    // Where the context requires no result, r0 is not read.
    let context = ContextLayout::raw(false);
    assert_eq!(refused(&program("exit"), &Env { void: true, ..Env::new(&context, &helpers) }), None);
}

/// A kept point before the last instruction that nothing covers, with one name, which is 0.
fn kept(program: &Program, env: &Env<'_>) -> Kept {
    struct Last(Option<Invariant>);
    impl Guide for Last {
        fn advise(&mut self, point: &Point<'_>) -> Advice {
            self.0 = Some(point.state.to_invariant());
            Advice::Step
        }
        fn prove(&mut self, _: &Point<'_>, _: &Form) -> Option<Combination> {
            None
        }
    }
    let mut last = Last(None);
    check(program, env, &[], &mut last, FUEL).expect("a safe program");
    let mut claim = last.0.expect("an instruction");
    let zero = Known { word: Scalar::constant(0), signed: false };
    claim.names.push(zero);
    Kept { at: InsnIdx(program.insns().len() as u32 - 1), claim, rank: Vec::new() }
}

#[test]
fn a_claim_names_each_record_once() {
    let (context, helpers) = (ContextLayout::raw(false), Helpers::none());
    let (env, program) = (Env::new(&context, &helpers), program("r0 = 0\nexit"));
    let mut kept = kept(&program, &env);
    let zero = Name(kept.claim.names.len() as u32 - 1);
    let check = |kept: &Kept| check(&program, &env, std::slice::from_ref(kept), &mut Replay::new(&NOTHING), FUEL);
    kept.claim.held = vec![zero];
    assert!(check(&kept).is_ok());
    // Each copy of the state would copy them all, and neither fuel nor memory counts what no name stands for.
    kept.claim.held = vec![zero; 1 << 16];
    assert!(matches!(check(&kept).map_err(|refusal| refusal.why), Err(Why::Certificate(_))));
}

#[test]
fn each_component_of_a_rank_costs_fuel() {
    let (context, helpers) = (ContextLayout::raw(false), Helpers::none());
    let (env, program) = (Env::new(&context, &helpers), program("r0 = 0\nr1 = 0\nexit"));
    // From one kept point to the next, at the same place: only the last component is less.
    let first = kept(&program, &env);
    let same = (0..first.claim.names.len() as u32).map(|n| Form::name(Name(n))).collect();
    let points = [1, 0].map(|last| {
        let mut rank = vec![Form::constant(0); 1 << 10];
        rank.push(Form::constant(last));
        Kept { rank, ..first.clone() }
    });
    let cover = Answer::Advice(Advice::Cover { kept: 1, renaming: same });
    // The entry takes three steps.
    let answers = Recording { answers: vec![(3, cover)] };
    let fuel = |fuel| check(&program, &env, &points, &mut Replay::new(&answers), fuel).map_err(|refusal| refusal.why);
    assert!(fuel(1 << 12).is_ok());
    assert_eq!(fuel(1 << 10), Err(Why::Fuel));
}

#[test]
fn a_copy_of_a_state_costs_fuel_by_its_slots() {
    let (context, helpers) = (ContextLayout::raw(false), Helpers::none());
    let env = Env::new(&context, &helpers);
    // Comparisons with one way each, which copy the state, behind so many stores of a byte.
    let spent = |slots: u32| {
        let stores = (1..=slots).map(|depth| format!("*(u8 *)(r10 - {depth}) = 1\n"));
        let jumps = (0..1000).map(|i| format!("if r0 != 0 goto l{i}\nl{i}:\n"));
        let text: String = stores.chain(["r0 = 0\n".into()]).chain(jumps).chain(["exit".into()]).collect();
        FUEL - explore(&program(&text), &env, None, &mut Replay::new(&NOTHING), FUEL).expect("a safe program")
    };
    let (none, all) = (spent(0), spent(512));
    assert!(all > none + 1000 * 512 / 32, "{all} with slots, {none} without");
}

#[test]
fn an_operation_costs_fuel_by_the_names_in_its_numbers() {
    let (context, helpers) = (ContextLayout::raw(false), Helpers::none());
    let env = Env::new(&context, &helpers);
    // The set of a number is the sum of the sets of all its names, which takes most of the time of an operation.
    let spent = |operation: &str, names: u32| {
        let text = "r0 = 0\nr2 = 1\n".to_owned() + &format!("r3 = r2\n{operation}\n").repeat(1000) + "exit";
        let program = program(&text);
        let mut kept = kept(&program, &env);
        kept.at = InsnIdx(2);
        kept.claim.names.resize(9, Known { word: Scalar::UNKNOWN, signed: false });
        let sum = Form::sum((0..names).map(|n| (Name(n), 3)), 1).expect("a number");
        kept.claim.frames[0].regs[2] = Value::Number(sum);
        FUEL - explore(&program, &env, Some(&kept), &mut Replay::new(&NOTHING), FUEL).expect("a safe program")
    };
    for operation in ["r3 &= 0", "if r3 >= 0 goto +0"] {
        let (one, eight) = (spent(operation, 1), spent(operation, 8));
        assert!(eight >= one + 7000, "{operation}: {eight} with eight names, {one} with one");
    }
}

#[test]
fn a_check_takes_no_more_than_the_limits_of_its_environment() {
    let (context, helpers) = (ContextLayout::raw(false), Helpers::none());
    let (env, program) = (Env::new(&context, &helpers), program(&("r0 = 0\n".repeat(100) + "exit")));
    let proof = Proof::search(&program, &env, FUEL).expect("a safe program");
    assert!(proof.check(&program, &env).is_ok());
    let limited = Env { limits: with_fuel(5_000), ..env };
    let refused = proof.check(&program, &limited);
    assert!(matches!(&refused, Err(ProofError::NotProven(refusal)) if refusal.why == Why::Fuel), "{refused:?}");
}

fn with_fuel(fuel: u64) -> Limits {
    let mut limits = Limits::default();
    limits.fuel = fuel;
    limits
}

#[test]
fn a_section_finds_the_first_proof_of_a_name() {
    let bytes = ProofSection::to_bytes(&[("one", vec![1]), ("two", vec![2]), ("one", vec![3])]);
    let section = ProofSection::parse(&bytes).expect("a section");
    assert_eq!(["one", "two", "three"].map(|name| section.of(name)), [Some(&[1][..]), Some(&[2][..]), None]);
}

#[test]
fn a_short_proof_does_not_stand_for_much_memory() {
    let (context, helpers) = (ContextLayout::raw(false), Helpers::none());
    let (env, program) = (Env::new(&context, &helpers), program("r0 = 0\nexit"));
    let proof = Proof::search(&program, &env, FUEL).expect("a safe program").to_bytes();
    // No kept point, and many answers of a byte each.
    let digests = &proof[..24];
    let with_answers = |count: u32| {
        let mut bytes = digests.to_vec();
        bytes.push(0);
        let length = [0, 7, 14].map(|shift| (count >> shift) as u8 & 0x7f | 0x80);
        bytes.extend(length);
        bytes.push((count >> 21) as u8);
        bytes.resize(bytes.len() + count as usize, 0);
        bytes
    };
    assert!(Proof::from_bytes(&with_answers(1 << 10)).is_ok());
    assert!(matches!(Proof::from_bytes(&with_answers(8 << 20)), Err(ProofError::Malformed { .. })));
}
