//! Memory-checking BPF interpreter
