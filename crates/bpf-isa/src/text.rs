//! Instructions as text.
//!
//! Problem: people read and write BPF in the syntax of the kernel's logs and of LLVM, so tests, dumps and messages
//! should use it too. Approach: one printer (`print`) and one assembler (`assemble`) for that syntax; the assembler
//! reads the printer's output back to the same instructions.
//!
//! The two sources differ in details. The printer uses the common form, with decimal numbers and signed offsets: `r0
//! = *(u32 *)(r1 + 4)`, `if w1 s> 5 goto +3`. The assembler also accepts LLVM's hexadecimal numbers, the kernel's
//! missing space (`r1 +4`), and the 32-bit register names that LLVM prints for narrow loads, stores and atomics.
//! References that a constant cannot express use bpftool's syntax: `map[fd:5]`, `map[fd:5][0]+16`, `map[idx:2]`,
//! `subprog[+7]`.

mod assemble;
mod error;
mod lex;
mod print;

pub use assemble::assemble;
pub use error::{AsmError, AsmErrorKind};
pub use print::{Listing, disassemble};
