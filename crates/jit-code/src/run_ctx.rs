//! The hidden argument of every emitted function.

/// The largest number of tail calls in one run (Linux: MAX_TAIL_CALL_CNT).
pub const TAIL_CALL_LIMIT: u32 = 33;

/// The state of a run that emitted code, host functions and the entry sequence share: the hidden sixth argument
/// (x86-64 r9, arm64 x5). docs/book/reference/abi.md describes which of them read and write each field.
///
/// Emitted code addresses the fields by the `*_OFFSET` constants, so the layout is `repr(C)` and fixed. The embedding
/// runtime stores it as the first field of a larger per-run structure.
#[derive(Debug)]
#[repr(C)]
pub struct RunCtx {
    /// Tail calls taken so far in this run, by all frames together.
    pub tail_calls: u32,
    /// 0, or the [`StopCode`] that ended the run.
    pub stop_code: u32,
    /// Asks the run to stop at its next loop edge or call, by its sign bit. Other threads set that bit. The other
    /// bits belong to the embedding runtime: they identify the run, so that a thread that sets the sign by a
    /// compare-and-exchange stops only that run.
    pub interrupt: u64,
    /// The remaining budget of loop edges and calls. The run stops when it falls below zero.
    pub budget: i64,
    /// The function that emitted code jumps to when it stops the run, with the address of this structure as its first
    /// argument (rdi, x0). It removes all emitted frames, and does not return. With landing pads enabled, it begins
    /// with one.
    pub stop_to: u64,
    /// Stack pointer of the nearest entry sequence, to which the run returns when it stops; 0 if no emitted code is
    /// running. This field and the next two belong to the embedding runtime.
    pub exit_sp: u64,
    /// Address to continue at when the run stops.
    pub exit_pc: u64,
    /// Registers to restore when the run stops, besides the stack pointer: the registers that the entry sequence cannot
    /// declare as clobbered. x86-64 rbx and rbp; arm64 x19 and x29.
    pub exit_saved: [u64; 2],
    /// Address of the packet that LD_ABS and LD_IND read, and length of the raw context (its r2).
    pub packet: u64,
    /// Length of that packet in bytes.
    pub packet_len: u64,
    /// Address of the environment of the host function being called, where it has one.
    pub host_env: u64,
    /// The run's execution slot.
    pub slot: u32,
    /// The instruction at which the run was stopped by emitted code.
    pub stop_insn: u32,
    /// Address of the context that the run was given, for checks against the regions that the context's fields
    /// describe.
    pub context: u64,
    /// The largest part of the budget that each program of a chain may spend.
    pub allowance: i64,
    /// The counters of the program that the run entered last, if programs count their runs.
    pub counters: u64,
    /// The address at which emitted code stopped the run: in the function, or one past one of its instructions. 0 if
    /// a host function stopped it.
    pub stop_pc: u64,
    /// The stack pointer at `stop_pc`.
    pub stop_sp: u64,
    /// arm64: the link register at `stop_pc`, which a leaf function has not stored.
    pub stop_link: u64,
    /// Not 0 from a throw until its main function has returned or has handled it: until then each function returns
    /// the thrown value.
    pub thrown: u64,
    /// The starts of the objects that the arguments of a call point to, passed by a contained program's function to
    /// its callee.
    pub lent: [u64; 5],
}

/// An offset in the type that instructions use.
#[expect(clippy::cast_possible_truncation, reason = "asserted, when it is compiled")]
const fn displacement(offset: usize) -> i32 {
    assert!(offset <= i32::MAX as usize);
    offset as i32
}

// The sign bit is in the upper half of the word, which is at the higher address.
const _: () = assert!(cfg!(target_endian = "little"));

impl RunCtx {
    /// The bit of [`RunCtx::interrupt`] that asks a run to stop.
    pub const INTERRUPTED: u64 = 1 << 63;
    /// Offset of [`RunCtx::tail_calls`].
    pub const TAIL_CALLS_OFFSET: i32 = displacement(core::mem::offset_of!(RunCtx, tail_calls));
    /// Offset of [`RunCtx::stop_code`].
    pub const STOP_CODE_OFFSET: i32 = displacement(core::mem::offset_of!(RunCtx, stop_code));
    /// Offset of [`RunCtx::stop_insn`].
    pub const STOP_INSN_OFFSET: i32 = displacement(core::mem::offset_of!(RunCtx, stop_insn));
    /// Offset of the upper half of [`RunCtx::interrupt`], which has its sign.
    pub const INTERRUPT_OFFSET: i32 = displacement(core::mem::offset_of!(RunCtx, interrupt) + 4);
    /// Offset of [`RunCtx::budget`].
    pub const BUDGET_OFFSET: i32 = displacement(core::mem::offset_of!(RunCtx, budget));
    /// Offset of [`RunCtx::stop_to`].
    pub const STOP_TO_OFFSET: i32 = displacement(core::mem::offset_of!(RunCtx, stop_to));
    /// Offset of [`RunCtx::stop_sp`].
    pub const STOP_SP_OFFSET: i32 = displacement(core::mem::offset_of!(RunCtx, stop_sp));
    /// Offset of [`RunCtx::stop_link`].
    pub const STOP_LINK_OFFSET: i32 = displacement(core::mem::offset_of!(RunCtx, stop_link));
    /// Offset of [`RunCtx::exit_sp`].
    pub const EXIT_SP_OFFSET: i32 = displacement(core::mem::offset_of!(RunCtx, exit_sp));
    /// Offset of [`RunCtx::exit_pc`].
    pub const EXIT_PC_OFFSET: i32 = displacement(core::mem::offset_of!(RunCtx, exit_pc));
    /// Offset of [`RunCtx::exit_saved`].
    pub const EXIT_SAVED_OFFSET: i32 = displacement(core::mem::offset_of!(RunCtx, exit_saved));
    /// Offset of [`RunCtx::packet`].
    pub const PACKET_OFFSET: i32 = displacement(core::mem::offset_of!(RunCtx, packet));
    /// Offset of [`RunCtx::packet_len`].
    pub const PACKET_LEN_OFFSET: i32 = displacement(core::mem::offset_of!(RunCtx, packet_len));
    /// Offset of [`RunCtx::host_env`].
    pub const HOST_ENV_OFFSET: i32 = displacement(core::mem::offset_of!(RunCtx, host_env));
    /// Offset of [`RunCtx::slot`].
    pub const SLOT_OFFSET: i32 = displacement(core::mem::offset_of!(RunCtx, slot));
    /// Offset of [`RunCtx::context`].
    pub const CONTEXT_OFFSET: i32 = displacement(core::mem::offset_of!(RunCtx, context));
    /// Offset of [`RunCtx::stop_pc`].
    pub const STOP_PC_OFFSET: i32 = displacement(core::mem::offset_of!(RunCtx, stop_pc));
    /// Offset of [`RunCtx::allowance`].
    pub const ALLOWANCE_OFFSET: i32 = displacement(core::mem::offset_of!(RunCtx, allowance));
    /// Offset of [`RunCtx::thrown`].
    pub const THROWN_OFFSET: i32 = displacement(core::mem::offset_of!(RunCtx, thrown));
    /// Offset of an element of [`RunCtx::lent`]; `argument` is below 5.
    pub const fn lent_offset(argument: usize) -> i32 {
        assert!(argument < 5, "a function has five arguments");
        displacement(core::mem::offset_of!(RunCtx, lent) + 8 * argument)
    }
    /// Offset of [`RunCtx::counters`].
    pub const COUNTERS_OFFSET: i32 = displacement(core::mem::offset_of!(RunCtx, counters));
}

/// Generates [`StopCode`] and all lists of its codes from one table. Numbers ascend from 1 without a gap.
macro_rules! stop_codes {
    ($($(#[$doc:meta])* $code:ident = $number:literal $name:literal,)*) => {
        /// The reason why a run was stopped before its exit.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u32)]
        pub enum StopCode {
            $($(#[$doc])* $code = $number,)*
        }

        impl StopCode {
            /// All codes, ascending.
            pub const ALL: [StopCode; [$($number),*].len()] = [$(StopCode::$code),*];

            /// The name, for listings.
            pub const fn name(self) -> &'static str {
                match self {
                    $(StopCode::$code => $name,)*
                }
            }
        }
    };
}

stop_codes! {
    /// The budget is spent.
    Budget = 1 "budget",
    /// Another thread requested the stop.
    Interrupted = 2 "interrupted",
    /// A memory access check failed.
    Access = 3 "access",
    /// A host function returned an error or panicked; the runtime holds it.
    Host = 4 "host",
    /// An indirect jump or call to a value that is not a permitted target.
    Target = 5 "target",
}

impl StopCode {
    /// The code with this number, if there is one.
    pub fn new(code: u32) -> Option<StopCode> {
        StopCode::ALL.into_iter().find(|c| *c as u32 == code)
    }

    /// Its index in [`StopCode::ALL`].
    pub const fn index(self) -> usize {
        self as usize - 1
    }
}

// `index` relies on ascending numbers without gaps.
const _: () = {
    let mut i = 0;
    while i < StopCode::ALL.len() {
        assert!(StopCode::ALL[i].index() == i);
        i += 1;
    }
};
