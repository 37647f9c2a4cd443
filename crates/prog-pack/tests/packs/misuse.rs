//! What must not type-check: each file in `misuse/` fails to compile with the message beside it.
#![cfg(not(target_arch = "aarch64"))] // Messages are the same on every host; once is enough, and the compiler is not emulated.

#[test]
fn misuse_does_not_type_check() {
    trybuild::TestCases::new().compile_fail("tests/misuse/*.rs");
}
