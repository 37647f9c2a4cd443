//! BPF verifier: abstract interpretation that makes Verified programs
