//! A verified and compiled program that is not placed: the part that its instances share.
//!
//! Problem: a load and one more instance of a module should share one path, and a load should not pay for copies that
//! nobody else will use. Approach: a [`Unit`] holds what is known of a program. Its machine code or its instructions
//! are borrowed ([`Ready`]): a load borrows them from the compiler's memory, an instance from its module, which keeps a
//! copy ([`Kept`]). Both are placed by [`crate::program::loaded::Loaded::new`].

use crate::abi::limits::Checks;
use crate::program::interpreted::Interpreted;
use crate::program::name::Name;
use crate::program::references::{NO_REFERENCES, References};
use crate::program::source::Source;
use crate::program::table::HostType;
use bpf_verifier::ContextLayout;
use std::sync::Arc;
#[cfg(native)]
use {
    crate::engine::Engine,
    crate::error::LoadError,
    crate::program::again::{Again, numbered},
    crate::program::code::{Emitted, Shape, Subject, Told},
    bpf_analysis::Facts,
    bpf_isa::Program,
    bpf_jit_code::{Code, OptLevel},
};

/// The properties of a verified program.
#[derive(Clone)]
pub(crate) struct Unit {
    pub(crate) name: Name,
    pub(crate) layout: &'static ContextLayout,
    pub(crate) host: HostType,
    /// `None` if it refers to nothing.
    pub(crate) references: Option<Arc<References>>,
    /// Where its instructions came from, for messages.
    pub(crate) source: Option<Arc<Source>>,
    /// The budget of a run that begins with the program.
    pub(crate) budget: i64,
    /// The limits that its runs are checked for.
    pub(crate) checks: Checks,
    /// Whether it may wait.
    pub(crate) sleepable: bool,
    /// For a contained program: bytes of the memory that out-of-bounds accesses are sent to.
    pub(crate) sink: Option<usize>,
    /// The instructions of a program in machine code whose runs may be recorded.
    pub(crate) recordable: Option<Arc<Interpreted>>,
    /// Whether the result of a run may be anything, as it is that of a function that returns nothing.
    pub(crate) void: bool,
}

/// The runnable form of a program, borrowed.
#[derive(Clone, Copy)]
pub(crate) enum Ready<'a> {
    /// Its instructions.
    Interpreted(&'a Arc<Interpreted>),
    /// Machine code, and for a first tier the inputs of its second compilation.
    #[cfg(native)]
    Native(Emitted<'a>, Option<&'a Arc<Again>>),
}

/// The runnable form of a program, owned.
pub(crate) enum Kept {
    Interpreted(Arc<Interpreted>),
    #[cfg(native)]
    Native {
        code: Box<Code>,
        shape: Shape,
        /// The information for debuggers.
        told: Option<Box<(Program, Option<bpf_object::Code>)>>,
        again: Option<Arc<Again>>,
    },
}

impl Ready<'_> {
    /// Makes a copy, for many instances.
    pub(crate) fn keep(self) -> Kept {
        match self {
            Ready::Interpreted(what) => Kept::Interpreted(Arc::clone(what)),
            #[cfg(native)]
            Ready::Native(Emitted { code, shape, told }, again) => Kept::Native {
                code: Box::new(code.clone()),
                shape: shape.clone(),
                told: told.map(|(program, source)| Box::new((program.clone(), source.cloned()))),
                again: again.map(Arc::clone),
            },
        }
    }
}

impl Kept {
    /// Bytes of machine code; 0 for interpreted instructions.
    pub(crate) fn code_bytes(&self) -> usize {
        match self {
            Kept::Interpreted(_) => 0,
            #[cfg(native)]
            Kept::Native { code, .. } => code.bytes.len(),
        }
    }

    /// Borrows the form, to be placed.
    pub(crate) fn ready(&self) -> Ready<'_> {
        match self {
            Kept::Interpreted(what) => Ready::Interpreted(what),
            #[cfg(native)]
            Kept::Native { code, shape, told, again } => {
                let told = told.as_deref().map(|(program, source)| (program, source.as_ref()));
                Ready::Native(Emitted { code, shape, told }, again.as_ref())
            }
        }
    }
}

impl Unit {
    /// The maps and functions that its instructions refer to.
    pub(crate) fn references(&self) -> &References {
        self.references.as_deref().unwrap_or(&NO_REFERENCES)
    }
}

/// The inputs and options of a compilation.
#[cfg(native)]
pub(crate) struct Target<'a> {
    pub(crate) program: &'a Program,
    pub(crate) facts: &'a Facts,
    pub(crate) opt_level: OptLevel,
    /// The object's code, for debuggers.
    pub(crate) source: Option<&'a bpf_object::Code>,
    /// Whether the code is kept for many instances.
    pub(crate) shared: bool,
}

#[cfg(native)]
impl Unit {
    /// Compiles the program; `then` gets the code, to place it or to keep a copy.
    pub(crate) fn compile<R>(
        &self,
        engine: &Engine,
        Target { program, facts, opt_level, source, shared }: Target<'_>,
        then: impl FnOnce(Ready<'_>) -> Result<R, LoadError>,
    ) -> Result<R, LoadError> {
        let references = self.references();
        let Unit { name, layout, checks, .. } = self;
        let subject = Subject { engine, name, layout, checks: *checks, program, facts, references };
        let limit = engine.config().max_machine_stack;
        // The source is kept for debuggers only.
        let told: Told<'_> = engine.0.debug.is_some().then_some((program, source));
        // A timer keeps an address of the code, so code of a program with timers must not move.
        let tiered =
            opt_level == OptLevel::Tiered && engine.has_tiers() && references.functions.timer_program().is_none();
        if tiered {
            let number = numbered();
            return subject.compile(OptLevel::None, Some(number), limit, |code, shape| {
                let again = Arc::new(Again::new(&subject, self.references.clone(), source, number, shared));
                then(Ready::Native(Emitted { code, shape, told }, Some(&again)))
            });
        }
        subject.compile(opt_level, None, limit, |code, shape| {
            #[cfg(feature = "oracle")]
            crate::oracle::emitted(code, program, facts);
            then(Ready::Native(Emitted { code, shape, told }, None))
        })
    }
}
