//! How much work goes into code. Here, and not where the work is done, because configurations name it also in builds
//! that have no compiler.

/// How much work to put into code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[non_exhaustive]
pub enum OptLevel {
    /// One pass, each BPF register in one place throughout: several times faster to compile, for programs that run once
    /// or a few times. A program that was not verified and reads r1 to r5 after a call finds anything there.
    None,
    /// Optimised: values computed once and for less, registers by liveness.
    #[default]
    Speed,
    /// [`OptLevel::None`] at once, and [`OptLevel::Speed`] in the background for what turns out to run often. For a
    /// compiler alone, which has no background, the same as `Speed`.
    Tiered,
}
