//! BPF programs in user space: load, run, replace.
//!
//! One dependency is enough: this crate re-exports what a user of the family needs.
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
//! use bpf_runtime::{Config, Engine, Linker, Raw, assemble};
//!
//! let engine = Engine::new(Config::default())?;
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
mod error;
mod exec;
mod handle;
mod load;
mod num;
#[cfg(feature = "oracle")]
#[doc(hidden)]
pub mod oracle;
mod program;

pub use abi::limits::{Deadline, Interrupter, RunLimits};
pub use abi::run::{PrintSink, Printed};
pub use attach::dispatcher::{Dispatcher, DispatcherError, DispatcherOptions, DispatcherStats};
pub use attach::hook::{Attachment, Hook, HookError};
pub use attach::hook_async::HookRunAsync;
pub use attach::plan::{Applied, Plan, PlanError};
pub use attach::published::{ListError, ProgramStats};
pub use attach::runner::Runner;
#[cfg(feature = "derive")]
pub use bpf_context_derive::{BpfContext, interface};
pub use call::described::HostValue;
pub use call::types::IntTypes;
pub use call::{
    AsyncArg, AsyncCaller, Caller, HostArg, HostRet, IntoAsyncFn, IntoHostFn, OwnedBytes, Pinned, PinnedMap,
    PinnedValue, SharedBytes, SharedBytesMut,
};
#[doc(hidden)]
pub use context::derive;
pub use context::derive::{BpfContext, ContextBytes, ContextBytesMut, ContextField};
pub use context::frags::{XdpFrag, XdpFrags, XdpFragsBuff};
pub use context::int::IntType;
pub use context::network;
pub use context::packet::{Redirect, RxMetadata, Xdp, XdpBuff};
pub use context::sk_lookup::{SkLookup, SkLookupBuff, SkLookupFields};
pub use context::skb::{FlowKeys, SkBuff, SkFields, Skb};
pub use context::sock_addr::{Sock, SockAddr, SockAddrBuff, SockAddrFields, SockBuff};
pub use context::sock_ops::{SockOps, SockOpsBuff, SockOpsFields};
pub use context::{Context, ContextLayout, Parts, Raw};
pub use engine::Engine;
pub use engine::config::{Config, Mode};
pub use engine::metrics::{MapMetrics, ProgramMetrics, Snapshot, Stops};
pub use engine::tiers::TierStats;
pub use engine::usage::{Account, AccountUsage, Usage};
pub use error::{
    CalledAt, DeadlineError, DeserializeError, EngineError, HelperError, LayoutMismatch, LinkError, LoadError,
    LookupError, NotFound, Origin, PoolError, ProgArrayError, PrototypeMismatch, ResetError, RunError, RunErrorKind,
    SerializeError, SourceLine,
};
pub use exec::timers::TimerRuns;
pub use handle::coverage::{Coverage, FunctionCoverage, LineCoverage};
pub use handle::instance::Instance;
pub use handle::prog_array::ProgArray;
pub use handle::program::{Program, ProgramName, TestRun};
pub use handle::run_async::RunAsync;
pub use load::hints::VerifyHint;
pub use load::host::{
    FieldInterface, FieldKind, FunctionInterface, HOST_INTERFACE_VERSION, HostContext, HostContextBuff, HostField,
    HostInterface, HostLimits, ParamKind, ResultKind, StructInterface,
};
pub use load::host_error::HostInterfaceError;
pub use load::host_maps::{HostFeatures, MapInterface};
pub use load::instance_pool::{InstancePool, Pooled};
#[doc(hidden)]
pub use load::interface as interfaces;
pub use load::interface::InterfaceError;
pub use load::linker::{Linker, helper_name};
#[cfg(feature = "cross")]
pub use load::listing::{ListingOptions, compile_listing, optimiser_report};
pub use load::loader::{Loader, PROVING_FUEL, ProofReport, VerifyReport};
pub use load::map_set::MapSet;
pub use load::module::{Instantiate, Module};
pub use load::tenants::{Tenant, TenantError, Tenants};
pub use load::verify::Proofs;

#[cfg(native)]
pub use bpf_debug::{Error as DebugError, Location, Options as DebugOptions};
pub use bpf_dispatcher::{HookPolicy, Verdicts};
pub use bpf_isa::{
    Callee, DecodeError, Insn, InsnIdx, Program as BpfProgram, ValidateError, ValidateErrorKind, assemble, decode,
    disassemble,
};
#[cfg(feature = "jit")]
pub use bpf_jit::{Change, CompileError, CompileOptions, Extern, Pass};
pub use bpf_jit_code::{Arch, Code, CpuFeatures, Hardening, Needs, OptLevel, Symbol};
/// Everything about maps: typed handles, consumers of rings, dumps.
pub use bpf_maps as maps;
pub use bpf_maps::{Map, MapDef, MapError, MapType, RingBuf, UserRingBuf};
pub use bpf_object::{
    Code as ObjectCode, CodeTable, CoreField, CoreType, FieldType, LeftOut, LeftOutReason, MapDecl as ObjectMap,
    Object, ObjectError, Program as ObjectProgram, ProgramType, ReferenceKind, btf, text,
};
pub use bpf_os::SysError;
pub use bpf_prog_pack::{Error as PackError, Options as PackOptions, Stats as CodeStats};
/// Why a run could not begin: [`RunError::Enter`].
pub use bpf_quiesce::EnterError;
pub use bpf_quiesce::{Domain, Held, Holder, LimitBelowUse, MemoryFull, OtherDomain, WaitError, WhenFull, Whose};
pub use bpf_uapi::Errno;
pub use bpf_uapi::helper_id::SPECIAL as SPECIAL_HELPERS;
pub use bpf_verifier::{
    ArgKind, DuplicateHelper, Escape, Limits, ProofError, ProofPart, ProofSection, Refusal, Ret, Uncontained,
    VerifyError, Why,
};

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
    shared::<Pooled<Host>>();
    shared::<Tenants<Raw, Host>>();
    shared::<Program<Raw, Host>>();
    shared::<ProgArray<Raw, Host>>();
    shared::<Hook<Raw, Host>>();
    shared::<Dispatcher<Raw, Host>>();
    shared::<Account>();
    shared::<Deadline>();
    shared::<Interrupter>();
    shared::<RunLimits>();
    shared::<Map>();
    shared::<RingBuf>();
    shared::<UserRingBuf>();
    shared::<LoadError>();
    shared::<RunError>();
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
