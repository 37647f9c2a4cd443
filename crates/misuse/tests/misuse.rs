//! Tests that programs do not type-check: each file of `runtime/`, `prog-pack/` and `tailcall/` fails to compile with
//! the message beside it.
//!
//! In a separate crate, with only the features that the programs need, because the compiler that tries them builds
//! all dependencies of the crate once more.
#![cfg(not(target_arch = "aarch64"))] // Messages are the same on every host; once is enough, and the compiler is not emulated.

#[test]
fn misuse_does_not_type_check() {
    let programs = trybuild::TestCases::new();
    for of in ["runtime", "prog-pack", "tailcall"] {
        programs.compile_fail(format!("tests/{of}/*.rs"));
    }
}
