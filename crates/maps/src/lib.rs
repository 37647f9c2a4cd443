//! BPF map types
