//! Types that are no result of a program: the derive says why.

use bpf_runtime::FromR0;

#[derive(FromR0)]
struct NotAnEnum;

#[derive(FromR0)]
enum NoSize {
    Pass,
}

#[derive(FromR0)]
#[repr(u32)]
enum WithFields {
    Pass,
    Redirect(u32),
}

fn untyped(program: bpf_runtime::Program<bpf_runtime::Raw>) {
    program.returning::<String>();
}

fn main() {}
