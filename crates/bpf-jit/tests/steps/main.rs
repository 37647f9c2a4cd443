//! Tests of the steps from BPF to registers, in one binary: lowering and passes by files, and generated programs
//! evaluated before and after each step.

mod allocation;
mod filetests;
mod liveness;
mod passes;
