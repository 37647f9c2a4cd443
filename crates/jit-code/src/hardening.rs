//! The CPU features that emitted code uses, and its hardening against attacks that use the CPU.

/// Optional instructions the emitter may use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CpuFeatures {
    /// x86-64: BMI2 (`shlx`, `shrx`, `sarx`, `rorx`).
    pub bmi2: bool,
    /// x86-64: MOVBE.
    pub movbe: bool,
    /// arm64: LSE atomics (`ldadd`, `swp`, `cas`, ...); without them load-exclusive / store-exclusive loops.
    pub lse: bool,
}

impl CpuFeatures {
    /// The features of every host of the architecture. Snapshots use them.
    pub const BASELINE: CpuFeatures = CpuFeatures { bmi2: false, movbe: false, lse: false };
    /// All features.
    pub const ALL: CpuFeatures = CpuFeatures { bmi2: true, movbe: true, lse: true };

    /// The features of the CPU that runs this process.
    pub fn host() -> CpuFeatures {
        imp::host()
    }

    /// The names of those features in `self` that this CPU lacks: code that uses them is illegal here.
    pub fn missing(self) -> Vec<&'static str> {
        let CpuFeatures { bmi2, movbe, lse } = self;
        let host = CpuFeatures::host();
        let all = [("BMI2", bmi2, host.bmi2), ("MOVBE", movbe, host.movbe), ("LSE", lse, host.lse)];
        all.into_iter().filter(|(_, wanted, here)| *wanted && !here).map(|(name, ..)| name).collect()
    }
}

#[cfg(target_arch = "x86_64")]
mod imp {
    pub(super) fn host() -> super::CpuFeatures {
        super::CpuFeatures {
            bmi2: std::arch::is_x86_feature_detected!("bmi2"),
            movbe: std::arch::is_x86_feature_detected!("movbe"),
            lse: false,
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod imp {
    pub(super) fn host() -> super::CpuFeatures {
        super::CpuFeatures { bmi2: false, movbe: false, lse: std::arch::is_aarch64_feature_detected!("lse") }
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod imp {
    pub(super) fn host() -> super::CpuFeatures {
        super::CpuFeatures::BASELINE
    }
}

/// Hardening of emitted code: one setting for the JITs and the dispatcher. docs/book/reference/abi.md describes its
/// effects; off by default.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct Hardening {
    /// Whether every indirect branch goes through a retpoline (x86-64 only).
    pub retpolines: bool,
    /// Whether every target of an indirect branch starts with a landing pad: `endbr64`, `bti`.
    pub landing_pads: bool,
    /// Whether return addresses are signed (`paciasp` / `autiasp`; arm64 only).
    pub return_signing: bool,
    /// Whether a barrier follows every return and every indirect jump, against speculation that goes straight on
    /// behind it: `int3` (x86-64), `dsb sy` and `isb` (arm64), as compilers do for `-mharden-sls=all`. No path
    /// executes it.
    pub straight_line: bool,
    /// Whether constants that a program chooses are kept out of its machine code: a constant outside of -128 to 127
    /// is computed from two numbers, one of them random (against JIT spraying, as the kernel's `bpf_jit_harden`).
    /// Blinded code is optimised at every level.
    pub blind_constants: bool,
}

impl Hardening {
    /// Returns hardening with every switch off.
    #[must_use]
    pub const fn new() -> Self {
        Hardening {
            retpolines: false,
            landing_pads: false,
            return_signing: false,
            straight_line: false,
            blind_constants: false,
        }
    }

    /// Sets [`Hardening::retpolines`].
    #[must_use]
    pub const fn retpolines(mut self, retpolines: bool) -> Self {
        self.retpolines = retpolines;
        self
    }

    /// Sets [`Hardening::landing_pads`].
    #[must_use]
    pub const fn landing_pads(mut self, landing_pads: bool) -> Self {
        self.landing_pads = landing_pads;
        self
    }

    /// Sets [`Hardening::return_signing`].
    #[must_use]
    pub const fn return_signing(mut self, return_signing: bool) -> Self {
        self.return_signing = return_signing;
        self
    }

    /// Sets [`Hardening::straight_line`].
    #[must_use]
    pub const fn straight_line(mut self, straight_line: bool) -> Self {
        self.straight_line = straight_line;
        self
    }

    /// Sets [`Hardening::blind_constants`].
    #[must_use]
    pub const fn blind_constants(mut self, blind_constants: bool) -> Self {
        self.blind_constants = blind_constants;
        self
    }
}
