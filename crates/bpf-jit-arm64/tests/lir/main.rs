//! The backend below the seam: hand-made Lir in, code out, that code decoded on any host and run on arm64.

mod check;
mod flow;
mod machine;
mod ops;
