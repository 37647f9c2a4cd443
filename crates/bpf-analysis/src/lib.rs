//! Control flow, liveness and constants of BPF programs
