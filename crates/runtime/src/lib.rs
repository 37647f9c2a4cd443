//! Engine, Object, Linker, Program: load BPF programs and run them
