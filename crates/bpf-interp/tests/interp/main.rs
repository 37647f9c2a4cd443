//! The interpreter: what instructions do, and what hosts are asked.

mod external_cases;
mod generated;
mod host;
mod semantics;
