//! The compile seam: Lir, lowering, register allocation
