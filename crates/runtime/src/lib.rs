//! BPF programs in user space: load, run, replace.
//!
//! One dependency is enough: this crate re-exports what a user of the family needs. The root has the names that nearly
//! every service uses; each module has the rest of one subject. Every name has one path.
//!
//! ```text
//! Engine            configuration, execution slots, executable memory
//! Object            a parsed ELF file
//! Linker<H>         host functions; loads objects
//! Module<C, H>      an object that is compiled, for many instances
//! Instance<H>       a loaded object: programs, maps, prog arrays
//! Program<C, H>     run it on a context C with host state H
//! Hook<C, H>        a list of programs that are run as one, changed under traffic
//! Dispatcher<C, H>  many programs, called one at a time through a tree of direct jumps
//! ```
//!
//! ```
//! use bpf_runtime::{Config, Engine, Linker, Raw, isa::assemble};
//!
//! let engine = Engine::new(Config::new())?;
//! let linker: Linker = Linker::new(&engine);
//! // r1 = the packet, r2 = its length.
//! let insns = assemble("r0 = 0\nif r2 < 2 goto +1\nr0 = *(u8 *)(r1 + 1)\nexit")?;
//! let program = linker.loader::<Raw>().insns("second_byte", insns)?;
//! assert_eq!(program.run_on(&mut [7, 9])?, 9);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![cfg_attr(
    not(native),
    allow(dead_code, unused_imports, reason = "machine code needs it, which this build has none of")
)]

mod abi;
mod attach;
mod call;
mod context;
mod engine;
pub mod error;
mod exec;
#[doc(hidden)]
pub mod faults;
mod handle;
mod load;
mod num;
#[cfg(feature = "oracle")]
#[doc(hidden)]
pub mod oracle;
mod program;
mod record;

pub use abi::limits::{Deadline, Interrupter, RunLimits};
pub use attach::dispatcher::Dispatcher;
pub use attach::hook::Hook;
pub use attach::plan::Plan;
pub use attach::runner::Runner;
#[cfg(feature = "derive")]
pub use bpf_context_derive::{BpfContext, FromR0, interface};
pub use bpf_dispatcher::HookPolicy;
pub use bpf_jit_code::OptLevel;
pub use bpf_object::Object;
pub use call::{AsyncCaller, Caller, OwnedBytes, SharedBytes, SharedBytesMut};
#[doc(hidden)]
pub use context::derive;
pub use context::derive::{BpfContext, ContextBytes, ContextBytesMut};
pub use context::{Context, Raw};
pub use engine::Engine;
pub use engine::config::{Config, Mode};
pub use engine::usage::Account;
pub use error::call::HelperError;
pub use error::engine::EngineError;
pub use error::load::LoadError;
pub use error::run::RunError;
pub use handle::instance::Instance;
pub use handle::prog_array::ProgArray;
pub use handle::program::Program;
pub use handle::typed::{FromR0, TypedProgram};
pub use load::instance_pool::InstancePool;
#[doc(hidden)]
pub use load::interface as interfaces;
pub use load::linker::Linker;
pub use load::loader::Loader;
pub use load::map_set::MapSet;
pub use load::module::Module;
pub use load::tenants::Tenants;

/// Machine code: options of its compilation, listings, and locations for debuggers.
pub mod code {
    #[cfg(feature = "cross")]
    pub use crate::load::listing::{ListingOptions, compile_listing, optimiser_report};
    #[cfg(native)]
    pub use bpf_debug::{Error as DebugError, Location, Options as DebugOptions};
    #[cfg(feature = "jit")]
    pub use bpf_jit::{
        AllocOptions, Change, CompileError, CompileOptions, EmitError, EmitOptions, Extern, HostReg, HostRegSet,
        LowerOptions, Pass, PassSet,
    };
    pub use bpf_jit_code::layout::OutOfReach;
    pub use bpf_jit_code::{
        Arch, Code, CpuFeatures, FrameShape, Hardening, Home, Homes, Needs, PatchSlot, PatchSlotError, PcEntry, Reloc,
        RelocKind, Symbol, TailCallSite, TailTarget, Unwind, UnwindOp,
    };
    pub use bpf_prog_pack::{Error as PackError, Options as PackOptions};
}

/// The host as data, for tools that verify and test plug-ins without it: [`Linker::describe`].
pub mod describe {
    pub use crate::load::host::{
        FieldInterface, FieldKind, FunctionInterface, HOST_INTERFACE_VERSION, HostContext, HostContextBuff, HostField,
        HostInterface, HostLimits, ParamKind, ResultKind, StructInterface,
    };
    pub use crate::load::host_error::HostInterfaceError;
    pub use crate::load::host_maps::{HostFeatures, MapInterface};
}

/// Options, results and errors of [`Hook`], [`Dispatcher`] and [`Plan`].
pub mod hook {
    pub use crate::attach::dispatcher::{DispatcherError, DispatcherOptions};
    pub use crate::attach::hook::{Attachment, HookError};
    pub use crate::attach::plan::{Applied, PlanError};
    pub use crate::attach::published::ListError;
    pub use bpf_dispatcher::Verdicts;
}

/// Types of a host's functions ([`Linker::func_named`]) and of its contexts ([`Context`]).
pub mod host {
    pub use crate::call::described::HostValue;
    pub use crate::call::state::{Borrowed, Host, HostState};
    pub use crate::call::types::IntTypes;
    pub use crate::call::{AsyncArg, HostArg, HostRet, IntoAsyncFn, IntoHostFn, Pinned, PinnedMap, PinnedValue};
    pub use crate::context::derive::ContextField;
    pub use crate::context::int::IntType;
    pub use crate::context::{ContextLayout, Parts};
    pub use crate::load::interface::InterfaceError;
    pub use crate::load::linker::helper_name;
    pub use bpf_analysis::HeaderPlaces;
    pub use bpf_uapi::helper_id::SPECIAL as SPECIAL_HELPERS;
    pub use bpf_verifier::{Access, Field, FieldKind, Region};
}

/// Parts of [`Module`], [`InstancePool`] and [`Tenants`], which make many instances of one object.
pub mod instances {
    pub use crate::load::instance_pool::Pooled;
    pub use crate::load::module::Instantiate;
    pub use crate::load::tenants::{Tenant, TenantError};
}

/// The version of zerocopy whose traits types of keys, values and arguments implement ([`maps::typed`],
/// [`host::HostArg`]). A package that has no dependency on zerocopy derives them from here:
///
/// ```
/// use bpf_runtime::zerocopy::{FromBytes, Immutable, IntoBytes};
///
/// #[derive(FromBytes, IntoBytes, Immutable)]
/// #[zerocopy(crate = "bpf_runtime::zerocopy")]
/// #[repr(C)]
/// struct Flow {
///     source: u32,
///     packets: u32,
/// }
/// ```
#[doc(no_inline)]
pub use zerocopy;

/// BPF instructions: assembled, decoded, printed, validated.
#[doc(inline)]
pub use bpf_isa as isa;

/// Maps: typed handles, consumers of rings, dumps.
pub mod maps {
    #[cfg(all(feature = "tokio", target_os = "linux"))]
    pub use bpf_maps::RingStream;
    pub use bpf_maps::{
        Arena, ArenaShape, Batch, CreateOptions, Cursor, DeleteFn, Dump, Iter, Kind, LookupFn, Map, MapDef, MapError,
        MapHeader, MapType, Record, RedirectEntry, RingBuf, Sample, UpdateFn, UserRingBuf, WeakMap, flags,
        implemented_type, implemented_types, open_perf_entry, page_size, query, typed, update, wakeup,
    };
    pub use bpf_uapi::{OwnedField, OwnedKind, OwnedType};
}

/// Memory and who holds it: limits, and the domain in which memory is reclaimed.
pub mod memory {
    pub use bpf_quiesce::{
        Barriers, CoreBarrier, CoreBarrierError, Domain, GracePeriod, Guard, Held, Holder, Label, LimitBelowUse,
        Memory, MemoryFull, Options as DomainOptions, OtherDomain, Owned, Reclaimer, Reservation, RunGuard, WaitError,
        WhenFull, Whose,
    };
}

/// Counts of runs, stops, memory, code, and covered lines.
pub mod metrics {
    pub use crate::attach::dispatcher::DispatcherStats;
    pub use crate::attach::published::ProgramStats;
    pub use crate::engine::metrics::{MapMetrics, ProgramMetrics, Snapshot, Stops};
    pub use crate::engine::tiers::TierStats;
    pub use crate::engine::usage::{AccountUsage, Usage};
    pub use crate::handle::coverage::{Coverage, FunctionCoverage, LineCoverage};
    pub use bpf_prog_pack::Stats as CodeStats;
}

/// Contexts of the kernel's network programs, and the [`Network`](net::Network) that their helpers ask.
pub mod net {
    pub use crate::context::frags::{XdpFrag, XdpFrags, XdpFragsBuff};
    pub use crate::context::network::{Device, FibLookup, FibVerdict, Network, Nexthop, Sent, Tunnel, Unconfigured};
    pub use crate::context::packet::{Redirect, RxMetadata, Xdp, XdpBuff};
    pub use crate::context::sk_lookup::{SkLookup, SkLookupBuff, SkLookupFields};
    pub use crate::context::skb::{FlowKeys, SkBuff, SkFields, Skb};
    pub use crate::context::sock_addr::{Sock, SockAddr, SockAddrBuff, SockAddrFields, SockBuff};
    pub use crate::context::sock_ops::{SockOps, SockOpsBuff, SockOpsFields};
    pub use crate::context::socket::{SockFields, Socket, SocketLookup, TcpFields};
}

/// Observers of single instructions, and recorded runs that another process repeats.
pub mod observe {
    pub use crate::error::record::{RecordError, RecordingError, RecordingMismatch, ReplayError};
    pub use crate::exec::listing::{ListedField, ListedFunction, ListedLine, Listing};
    pub use crate::exec::observed::{Observed, Observer};
    pub use crate::record::recorder::{RecordMode, Recorder, RecorderOptions};
    pub use crate::record::recording::Recording;
    pub use crate::record::replay::Replayed;
}

/// Parts of an [`Object`], and errors of its reading.
pub mod object {
    pub use bpf_object::{
        BtfProblem, CallProblem, Code, CodeFunction, CodeTable, CoreField, CoreKind, CoreRelocation, CoreType,
        DataKind, Dwarf, ElfError, ExternVariable, FieldType, GlobalData, GlobalProblem, HostFunction, HostTypes,
        InitialValue, LeftOut, LeftOutReason, LinkProblem, LinkedCode, MapDecl, MapProblem, MapTypeNumber, ObjectError,
        Pinning, PointerInData, Program, ProgramType, Reference, ReferenceKind, RelocationProblem, SectionProblem,
        SourceLine, SymbolProblem, Unresolved, Variable, btf, text,
    };
}

/// Results of runs that are more than a number, and text that runs print.
pub mod run {
    pub use crate::abi::run::Printed;
    pub use crate::attach::hook_async::HookRunAsync;
    pub use crate::exec::timers::TimerRuns;
    pub use crate::handle::program::{ProgramName, TestRun};
    pub use crate::handle::run_async::RunAsync;
    pub use crate::handle::typed::TypedRun;
}

/// The verifier: its limits, hints and proofs, what it reports and refuses.
pub mod verify {
    pub use crate::load::hints::VerifyHint;
    pub use crate::load::loader::{PROVING_FUEL, ProofReport, VerifyReport};
    pub use crate::load::verify::Proofs;
    pub use bpf_uapi::MapTypes;
    pub use bpf_verifier::{
        ArgKind, Awake, CallbackKind, Debt, Decision, DuplicateHelper, Dynptr, Effort, EffortPlace, Escape, Graph,
        Limits, Local, LocalUse, LoopFailure, MemArg, MemSet, NodeUse, ObjectFrom, ObjectUse, ProofError, ProofPart,
        ProofSection, ProofStrategy, Reason, Refusal, Ret, Section, SocketPart, Tried, Uncontained, Unproven,
        UnprovenLoop, VerifyError, Why,
    };
}

/// Handles may be used and dropped on any thread.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    const fn sent<T: Send>() {}
    /// A host's state, which needs to be neither: runs borrow it from their caller.
    type Host = core::cell::Cell<*mut u8>;
    shared::<Engine>();
    shared::<Config>();
    shared::<Object>();
    shared::<Linker<Host>>();
    shared::<Loader<'_, Raw, Host>>();
    shared::<Module<Raw, Host>>();
    shared::<Instance<Host>>();
    shared::<InstancePool<Host>>();
    shared::<instances::Pooled<Host>>();
    shared::<Tenants<Raw, Host>>();
    shared::<Program<Raw, Host>>();
    shared::<TypedProgram<Raw, Host, Host>>();
    shared::<ProgArray<Raw, Host>>();
    shared::<Hook<Raw, Host>>();
    shared::<Dispatcher<Raw, Host>>();
    shared::<Account>();
    shared::<Deadline>();
    shared::<Interrupter>();
    shared::<RunLimits>();
    shared::<observe::Listing>();
    shared::<observe::Recorder<Raw, Host>>();
    shared::<observe::Recording>();
    shared::<maps::Map>();
    shared::<maps::RingBuf>();
    shared::<maps::UserRingBuf>();
    shared::<LoadError>();
    shared::<RunError>();
    shared::<EngineError>();
    shared::<HelperError>();
    shared::<hook::HookError>();
    shared::<hook::PlanError>();
    shared::<hook::Attachment>();
    shared::<verify::VerifyReport>();
    shared::<verify::Proofs>();
    shared::<metrics::Snapshot>();
    shared::<net::Socket>();
    // Changes that one thread puts together.
    sent::<MapSet>();
    sent::<Plan<'_>>();
};

/// The example that crates.io shows.
#[cfg(all(doctest, native, feature = "derive"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// Examples of the repository's README and of its book, `docs/book`, which the package does not contain.
#[cfg(all(doctest, native, feature = "derive"))]
mod documents {
    #[doc = include_str!("../../../README.md")]
    struct RepositoryReadme;
    #[doc = include_str!("../../../docs/book/how-to/debug.md")]
    struct DebugPage;
    #[doc = include_str!("../../../docs/book/how-to/see.md")]
    struct SeePage;
    #[doc = include_str!("../../../docs/book/how-to/host-functions.md")]
    struct HostFunctionsPage;
    #[doc = include_str!("../../../docs/book/how-to/hooks.md")]
    struct HooksPage;
    #[doc = include_str!("../../../docs/book/how-to/interfaces.md")]
    struct InterfacesPage;
    #[doc = include_str!("../../../docs/book/how-to/limit.md")]
    struct LimitPage;
    #[doc = include_str!("../../../docs/book/how-to/live.md")]
    struct LivePage;
    #[doc = include_str!("../../../docs/book/how-to/log.md")]
    struct LogPage;
    #[doc = include_str!("../../../docs/book/reference/migration.md")]
    struct MigrationPage;
    #[cfg(feature = "serde")]
    #[doc = include_str!("../../../docs/book/how-to/outside.md")]
    struct OutsidePage;
    #[doc = include_str!("../../../docs/book/how-to/reload.md")]
    struct ReloadPage;
    #[doc = include_str!("../../../docs/book/how-to/tenants.md")]
    struct TenantsPage;
    #[doc = include_str!("../../../docs/book/how-to/test.md")]
    struct TestPage;
    #[doc = include_str!("../../../docs/book/how-to/wait.md")]
    struct WaitPage;
    #[doc = include_str!("../../../docs/book/reference/maps.md")]
    struct MapsPage;
}
