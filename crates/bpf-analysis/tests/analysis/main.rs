//! The analyses, each against its definition.

mod cfg;
mod constants;
mod liveness;
mod loops;
