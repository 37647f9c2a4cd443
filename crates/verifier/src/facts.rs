//! From notes to the facts the JIT reads.

use bpf_analysis::Facts;
use bpf_isa::Program;

use crate::env::Env;
use crate::notes::CallNote;

pub(crate) fn fill(_facts: &mut Facts, _calls: &[CallNote], _program: &Program, _env: &Env<'_>) {}
