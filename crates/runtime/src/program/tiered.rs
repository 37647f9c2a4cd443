//! The code of a program that becomes faster while it runs.
//!
//! Problem: the address of the replaced code is in prog arrays, images of hooks, compare trees, patched jumps and
//! threads that are about to call it. Approach: all of them have the address of a [`Forward`] instead, a jump of the
//! program that lives as long as the program. Only the target of this jump changes:
//!
//! 1. The fast code is compiled and placed, and its tail-call sites are linked, while runs use the slow code.
//! 2. It is registered beside the slow code, so that the end of a stopped run finds its instruction in either.
//! 3. The forward is redirected: runs and tail calls that begin later use the fast code. The program changes at one
//!    moment in all hooks, plans and prog arrays, and no lock of those is taken.
//! 4. After a core barrier no core jumps to the slow code, and after a grace period no run is in it. Then it is freed,
//!    with its bytes of the account and the input of its compilation.
//!
//! A failure before the third step leaves the program with its slow code permanently. If the barrier fails, the slow
//! code is kept as long as the program.
//!
//! Invariant: the promises that hold for the first code hold for the second: it is entered with a run, takes no more
//! machine stack than was computed at load, and has the same checks and counters.

use crate::abi::begin::Entry;
use crate::engine::Engine;
use crate::engine::usage::{Account, Payer};
use crate::error::LoadError;
use crate::program::again::Again;
use crate::program::bindings::Bindings;
use crate::program::code::{Compiled, Emitted, Made, take};
use crate::program::table::ProgTable;
use bpf_debug::Registered;
use bpf_jit_code::Needs;
use bpf_prog_pack::Forward;
use bpf_quiesce::Reservation;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// Bytes of machine stack that optimised code may take beyond the code of the first tier. The stack of a run is fixed
/// at load with this slack; optimised code that needs more is not used.
const STACK_SLACK: u64 = 1024;

pub(super) struct Tiered {
    forward: Forward,
    /// The number that runs of the slow code note.
    number: u64,
    /// The parts of the hidden argument that the slow code needs; the fast code needs no more.
    needs: Needs,
    /// The slow code, until it is freed.
    slow: Mutex<Option<Slow>>,
    /// Its code, for the ends of runs.
    slow_code: Weak<Compiled>,
    fast: OnceLock<Fast>,
    /// Whether the forward leads to `fast`.
    moved: AtomicBool,
}

struct Slow {
    code: Arc<Compiled>,
    entry: usize,
    memory: Option<Reservation>,
    /// The input of the recompilation, which the first attempt takes.
    from: Option<From>,
}

struct From {
    again: Arc<Again>,
    account: Option<Account>,
    instance: Option<Arc<str>>,
    /// The reservation in the account for the slow code and the inputs of the second compilation.
    memory: Option<Reservation>,
}

impl Drop for From {
    /// Returns the bytes of the inputs to the account. There is only one attempt, so the inputs are not kept after it.
    fn drop(&mut self) {
        if let Some(memory) = &self.memory {
            memory.shrink(self.again.bytes() as u64);
        }
    }
}

struct Fast {
    code: Compiled,
    memory: Option<Reservation>,
}

/// Objects that must stay until no run can be in the code.
pub(super) type Kept = ([Option<Box<Registered>>; 2], [Option<Reservation>; 2]);

impl Tiered {
    /// Places the first tier. Returns it and the program's entry, which stays the same when fast code replaces the
    /// slow.
    pub(super) fn place(
        engine: &Engine,
        name: &str,
        emitted: Emitted<'_>,
        again: &Arc<Again>,
        bindings: &Bindings,
        payer: Payer<'_>,
    ) -> Result<(Tiered, Entry), LoadError> {
        let kept = again.bytes();
        let Made { compiled, entry, memory } =
            emitted.place(engine, name, bindings, |bytes| take(engine, name, payer, bytes + kept))?;
        let landing_pad = engine.config().hardening.landing_pads;
        let first = entry.code as usize;
        let forward = engine.0.packs.forward(first, landing_pad);
        let forward = forward.map_err(|source| LoadError::Place { program: name.to_owned(), source })?;
        let at = forward.entry();
        let Payer { account, instance } = payer;
        let (account, instance) = (account.cloned(), instance.cloned());
        let from = From { again: Arc::clone(again), account, instance, memory: memory.clone() };
        let code = Arc::new(compiled);
        let tiered = Tiered {
            forward,
            number: again.number(),
            slow_code: Arc::downgrade(&code),
            needs: entry.needs,
            slow: Mutex::new(Some(Slow { code, entry: first, memory, from: Some(from) })),
            fast: OnceLock::new(),
            moved: AtomicBool::new(false),
        };
        Ok((tiered, Entry { code: at, callee: at, needs: entry.needs }))
    }

    /// Returns the machine stack in bytes that a run may take in either code, if a run of the slow code takes `slow`
    /// bytes.
    pub(super) fn machine_stack(engine: &Engine, slow: u64) -> u64 {
        slow.saturating_add(STACK_SLACK).min(engine.config().max_machine_stack)
    }

    /// The number that runs of the slow code note.
    pub(super) fn note(&self, bindings: &Bindings) -> u64 {
        noted(bindings, self.number)
    }

    /// Whether runs begin in the slow code.
    pub(super) fn is_slow(&self) -> bool {
        // Acquire pairs with the release in `make_fast`: then the fast code is there.
        !self.moved.load(Ordering::Acquire)
    }

    /// The code that runs begin in now.
    pub(super) fn now<R>(&self, look: impl FnOnce(&Compiled) -> R) -> Option<R> {
        let slow = self.slow_code.upgrade().filter(|_| self.is_slow());
        // If the slow code was freed since, the fast code exists.
        slow.as_deref().or_else(|| self.fast.get().map(|fast| &fast.code)).map(look)
    }

    /// How many of its codes have sites that jump through this table.
    pub(super) fn jump_through(&self, table: &Arc<ProgTable>) -> usize {
        let slow = self.slow_code.upgrade();
        let codes = slow.as_deref().into_iter().chain(self.fast.get().map(|fast| &fast.code));
        codes.filter(|code| code.jumps_through(table)).count()
    }

    /// The code that this address lies in. In a guard of a run that was there, which keeps the code.
    pub(super) fn at<R>(&self, pc: u64, look: impl FnOnce(&Compiled) -> R) -> Option<R> {
        let slow = self.slow_code.upgrade();
        let codes = slow.as_deref().into_iter().chain(self.fast.get().map(|fast| &fast.code));
        codes.into_iter().find(|code| code.has(pc)).map(look)
    }

    /// Compiles the fast code within `machine_stack` bytes of machine stack, and redirects the program to it. Returns
    /// the length of the code in bytes.
    pub(super) fn make_fast(
        &self,
        engine: &Engine,
        name: &str,
        bindings: &Bindings,
        machine_stack: u64,
    ) -> Result<usize, LoadError> {
        let internal = |what: String| LoadError::Internal(what);
        let lock = || self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = lock().as_mut().and_then(|slow| Some((slow.from.take()?, slow.entry)));
        let Some((from, first)) = taken else { return Err(internal("made fast twice".into())) };
        let From { again, account, instance, memory: _ } = &from;
        let payer = Payer { account: account.as_ref(), instance: instance.as_ref() };
        let Made { compiled, entry, memory } = again.make_fast(engine, machine_stack, |emitted| {
            emitted.place(engine, name, bindings, |bytes| take(engine, name, payer, bytes))
        })?;
        if entry.needs > self.needs {
            return Err(internal("faster code needs more".into()));
        }
        let bytes = compiled.text.len();
        if self.fast.set(Fast { code: compiled, memory }).is_err() {
            return Err(internal("made fast by two".into()));
        }
        let redirected = self.forward.redirect(first, entry.code as usize);
        redirected.map_err(|error| internal(format!("faster code cannot be entered: {error}")))?;
        // Release: see `is_slow`.
        self.moved.store(true, Ordering::Release);
        let domain = engine.domain();
        if domain.core_barrier().is_ok() {
            let slow = lock().take();
            domain.enqueue(move || drop(slow));
        }
        Ok(bytes)
    }

    /// Removes the code from the tables when the program is dropped. Returns the objects that must outlive its runs.
    pub(super) fn let_go(&mut self) -> Kept {
        let slow = self.slow.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let (slow, slow_memory) = slow.map_or((None, None), |slow| (Arc::into_inner(slow.code), slow.memory));
        let (fast, fast_memory) = self.fast.take().map_or((None, None), |fast| (Some(fast.code), fast.memory));
        // The texts wait by themselves.
        let registered = [slow, fast].map(|code| code.and_then(|mut code| code.registered.take()));
        (registered, [slow_memory, fast_memory])
    }
}

fn noted(bindings: &Bindings, number: u64) -> u64 {
    bindings.counted.as_ref().map_or(number, |counted| counted.counters.address())
}

#[cfg(test)]
mod tests {
    //! Every system call that the exchange makes fails once, at each place where it is made.

    use crate::engine::tiers::Slow as _;
    use crate::{Config, Engine, Linker, OptLevel, Program, Raw, isa::assemble};
    use bpf_os::{Call, Membarrier, inject};

    /// An engine whose packs are as small as they can be, and whose own thread finds no frequent program within the
    /// test.
    fn engine() -> Engine {
        let tick = std::time::Duration::from_secs(1);
        let mut config = Config { opt_level: OptLevel::Tiered, tick, ..Config::new() };
        config = config.packs(|packs| packs.first_pack_size(1 << 16).pack_size(1 << 16));
        Engine::new(config).unwrap()
    }

    /// A program of at least so many bytes of code, which returns what its context says.
    fn load(linker: &Linker<()>, adds: usize) -> Program<Raw, ()> {
        let text = format!("r0 = *(u64 *)(r1 + 0)\n{}exit", "r2 = r0\nr2 *= r0\nr0 ^= r2\n".repeat(adds));
        // SAFETY: each run of it has a context of eight bytes.
        unsafe { linker.loader::<Raw>().unverified(true) }.insns("often", assemble(&text).unwrap()).unwrap()
    }

    fn run(program: &Program<Raw, ()>) -> u64 {
        program.run(&mut (), &mut [1, 0, 0, 0, 0, 0, 0, 0]).unwrap()
    }

    #[test]
    fn a_call_that_fails_leaves_the_code_as_it_was_or_the_new_one() {
        let probe = engine();
        if !probe.has_tiers() {
            return println!("SKIPPED: no tiers on this host");
        }
        let barriers = [Membarrier::SyncCore, Membarrier::Expedited].map(Call::Membarrier);
        let memory = [Call::Mmap, Call::Munmap, Call::Memfd, Call::Ftruncate, Call::Seal, Call::Madvise];
        let mut refused = 0;
        for (lasting, call) in barriers.into_iter().chain(memory).flat_map(|call| [(false, call), (true, call)]) {
            for nth in 0.. {
                let engine = engine();
                let linker = Linker::<()>::new(&engine);
                // The code is so long that, beside the slow code, the fast code does not fit the first pack and takes
                // another.
                let program = load(&linker, 5000);
                assert!(program.is_slow());
                let result = run(&program);
                let slow = program.machine_code().unwrap();
                let make = || program.loaded().make_fast();
                let inject = if lasting { inject::failing_from } else { inject::failing };
                let (fast, reached) = inject(call, nth, make);
                assert_eq!(fast, !program.is_slow(), "{call:?} {nth}");
                assert_eq!(fast, program.machine_code().unwrap() != slow, "{call:?} {nth}");
                assert_eq!(run(&program), result, "{call:?} {nth}");
                assert!(reached || fast, "{call:?} {nth}");
                // Neither success nor failure is followed by another attempt.
                assert!(!program.loaded().make_fast());
                assert_eq!((run(&program), !program.is_slow()), (result, fast), "{call:?} {nth}");
                refused += u32::from(!fast);
                drop(program);
                engine.domain().drain().unwrap();
                engine.reclaim();
                let stats = engine.code_stats();
                assert_eq!((stats.programs, stats.bytes_used), (0, 0), "{call:?} {nth}");
                // And the next one is.
                let program = load(&linker, 100);
                assert!(program.loaded().make_fast() && !program.is_slow(), "{call:?} {nth}");
                if !reached {
                    break;
                }
            }
        }
        assert!(refused > 0, "a pack is made for the fast code");
    }
}
