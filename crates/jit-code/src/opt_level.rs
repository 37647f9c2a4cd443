//! The optimisation level. Defined here, and not in the compiler, because configurations name it also in builds
//! without a compiler.

/// The effort of compiling a program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[non_exhaustive]
pub enum OptLevel {
    /// One pass, with each BPF register in one place throughout: compiles several times faster, for programs that run
    /// once or a few times. In a program that was not verified, reads of r1 to r5 after a call return arbitrary
    /// values.
    None,
    /// Optimised: common values are computed once and by cheaper ops, registers are allocated by liveness.
    #[default]
    Speed,
    /// [`OptLevel::None`] at first, and [`OptLevel::Speed`] in the background for programs that run often. A compiler
    /// alone has no background, and treats it as `Speed`.
    Tiered,
}
