//! Tests of the interpreter: the effects of instructions, and the requests to hosts.

mod external_cases;
mod generated;
mod host;
mod semantics;
