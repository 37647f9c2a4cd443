//! Certificates and environments made to deceive the trusted core, or to make it work for long.
//!
//! A binary of its own: every test here is an attack that once worked.

use bpf_isa::Program;
use bpf_verifier::{ContextLayout, Env, Helpers};
use bpf_verifier_core::{Recording, Replay, Why, check};

const FUEL: u64 = 1 << 16;

fn program(text: &str) -> Program {
    Program::new(bpf_isa::assemble(text).expect("a program")).expect("valid")
}

/// Why the core refuses the program without any certificate, if it does.
fn refused(program: &Program, env: &Env<'_>) -> Option<Why> {
    let none = Recording::default();
    check(program, env, &[], &mut Replay::new(&none), FUEL).err().map(|refusal| refusal.why)
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
    // Where the context asks for nothing, nobody reads r0.
    let context = ContextLayout::raw(false);
    assert_eq!(refused(&program("exit"), &Env { void: true, ..Env::new(&context, &helpers) }), None);
}
