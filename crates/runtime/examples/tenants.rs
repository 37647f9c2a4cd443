//! Tenants of one object, made, run, reset, reloaded and dropped by four threads at once: `cargo xtask sanitize` runs
//! it beside `stress`.
//!
//! Each thread has tenants of its own and shares everything else: the module, a hook and a prog array that all tenants
//! are in, a pool, the metrics. Results of a tenant's programs are checked where they do not depend on other threads.
//! Each round has a new engine, one mode after the other, and ends when all that it made is gone and no byte is
//! counted.
//!
//! `cargo run -p bpf-runtime --example tenants -- [seconds]`

use bpf_runtime::{
    Config, Engine, Hook, HookPolicy, Instance, Linker, Mode, Module, Object, OptLevel, ProgArray, Raw, Tenants,
    code::Arch,
    error::{PoolError, ResetError},
    instances::{Tenant, TenantError},
};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const THREADS: u32 = 4;
/// Tenants of each thread at most.
const EACH: u32 = 3;
const OBJECT: &[u8] = include_bytes!("../tests/objects/instances.o");

type Done = Result<(), Box<dyn Error + Send + Sync>>;

/// The objects that the threads of a round share.
struct Shared {
    linker: Linker<()>,
    /// Two versions of the module.
    modules: [Module<Raw, ()>; 2],
    hook: Arc<Hook<Raw, ()>>,
    array: Arc<ProgArray<Raw, ()>>,
    tenants: Tenants<Raw, ()>,
    pool: bpf_runtime::InstancePool<()>,
    stop: AtomicBool,
    steps: AtomicU64,
}

fn check(what: bool, why: &str) -> Done {
    if what { Ok(()) } else { Err(why.into()) }
}

fn run(instance: &Instance<()>, name: &str, len: usize) -> Result<u64, Box<dyn Error + Send + Sync>> {
    Ok(instance.program::<Raw>(name)?.run(&mut (), &mut vec![7; len])?)
}

impl Shared {
    fn new(mode: Mode, level: OptLevel) -> Result<Shared, Box<dyn Error + Send + Sync>> {
        let config = Config::new().mode(mode).opt_level(level).metrics(true).budget(1 << 20);
        let engine = Engine::new(config)?;
        let linker = Linker::<()>::new(&engine);
        let mut object = Object::parse(OBJECT)?;
        let first = linker.compile::<Raw>(&object)?;
        object.set_global("step", &3u64.to_ne_bytes())?;
        let modules = [first.clone(), linker.compile::<Raw>(&object)?];
        let hook = Arc::new(Hook::new(&engine, HookPolicy::RunAll { result: 0 })?);
        let array = Arc::new(ProgArray::create(&engine, "tenants", THREADS * EACH)?);
        let tenants = Tenants::new(&first).in_hook(&hook, "entry").in_array(&array, "at");
        let pool = first.pool(2)?;
        let (stop, steps) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Shared { linker, modules, hook, array, tenants, pool, stop, steps })
    }

    /// Takes steps until the round ends, then removes the thread's tenants.
    fn work(&self, thread: u32) -> Done {
        // Numerical Recipes' generator: any mixture of steps will do.
        let mut random = thread;
        let mut next = |below: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 16) % below
        };
        let mut admitted = [false; EACH as usize];
        while !self.stop.load(Ordering::Relaxed) {
            let at = next(EACH);
            let (name, slot) = (format!("{thread}.{at}"), thread * EACH + at);
            let there = &mut admitted[at as usize];
            match next(12) {
                0 | 1 => {
                    let limit = u64::from(slot) + 2;
                    let tenant = Tenant::new(&name).memory(1 << 20).slot(slot).global("limit", &limit.to_ne_bytes());
                    let instance = self.tenants.admit(tenant)?;
                    *there = true;
                    // The tenant's limit is the place of the byte; others run only its program in the hook.
                    check(run(&instance, "at", 100)? == 7 && run(&instance, "at", 2)? == 1000, "another limit")?;
                }
                2 => match self.tenants.remove(&name) {
                    Ok(()) => check(std::mem::take(there), "a tenant that was removed")?,
                    Err(TenantError::Unknown { .. }) => check(!*there, "a tenant that is gone")?,
                    Err(error) => return Err(error.into()),
                },
                3 => self.tenants.upgrade(&self.modules[next(2) as usize])?,
                4 => {
                    let Some(instance) = self.tenants.get(&name) else { continue };
                    match instance.reset() {
                        Ok(()) | Err(ResetError::Running { .. } | ResetError::Busy { .. } | ResetError::Resetting) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                5 => {
                    let Some(program) = self.array.get(slot) else { continue };
                    check(program.run(&mut (), &mut [7; 100])? == 7, "another tenant's slot")?;
                }
                6 | 7 => match self.pool.take() {
                    Ok(instance) => {
                        check(run(&instance, "entry", 5)? == 12, "an instance that is not fresh")?;
                        let kept = (next(4) == 0).then(|| instance.clone());
                        drop(instance);
                        check(kept.map_or(Ok(18), |kept| run(&kept, "entry", 6))? == 18, "an instance that was lent")?;
                    }
                    Err(PoolError::Empty { .. }) => {}
                    Err(error) => return Err(error.into()),
                },
                8 => {
                    let module = &self.modules[next(2) as usize];
                    let Ok(bytes) = module.serialize() else { continue };
                    // SAFETY: `serialize` of this process returned the bytes.
                    let again = unsafe { Module::<Raw, ()>::deserialize(&self.linker, &bytes) }?;
                    check(run(&again.instance().name(&name).make()?, "entry", 5)? == 12, "a serialised module")?;
                }
                9 => {
                    let snapshot = self.modules[0].engine().snapshot();
                    check(snapshot.programs.iter().all(|program| program.versions < 1 << 20), "a count below zero")?;
                    check(self.tenants.names().len() <= (THREADS * EACH) as usize, "too many tenants")?;
                }
                _ => drop(self.hook.run(&mut (), &mut [7; 3])?),
            }
            self.steps.fetch_add(1, Ordering::Relaxed);
        }
        for at in (0..EACH).filter(|at| admitted[*at as usize]) {
            self.tenants.remove(&format!("{thread}.{at}"))?;
        }
        Ok(())
    }
}

fn round(mode: Mode, level: OptLevel, end: Instant) -> Result<u64, Box<dyn Error + Send + Sync>> {
    let shared = Shared::new(mode, level)?;
    let engine = shared.modules[0].engine().clone();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn({
                    let shared = &shared;
                    move || {
                        let done = shared.work(thread);
                        // An error ends the round.
                        shared.stop.fetch_or(done.is_err(), Ordering::Relaxed);
                        done
                    }
                })
            })
            .collect();
        while Instant::now() < end && !shared.stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        shared.stop.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread has panicked")?)
    })?;
    check(shared.tenants.names().is_empty() && shared.hook.programs().is_empty(), "tenants that were removed")?;
    let steps = shared.steps.load(Ordering::Relaxed);
    drop(shared);
    engine.domain().drain()?;
    engine.reclaim();
    let usage = engine.usage();
    check(usage.held.is_empty() && usage.accounts.iter().all(|account| account.used == 0), "memory that is left")?;
    Ok(steps)
}

fn main() -> Done {
    let seconds = std::env::args().nth(1).map_or(Ok(10), |seconds| seconds.parse())?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut ways = vec![(Mode::Interpreter, OptLevel::Speed)];
    if Arch::HOST.is_some() {
        ways.extend([OptLevel::Speed, OptLevel::Tiered, OptLevel::None].map(|level| (Mode::Jit, level)));
    }
    let (mut rounds, mut steps) = (0u64, 0);
    for (mode, level) in ways.into_iter().cycle() {
        if Instant::now() >= end && rounds > 0 {
            break;
        }
        steps += round(mode, level, Instant::now() + Duration::from_millis(500))?;
        rounds += 1;
    }
    println!("{rounds} rounds, {steps} steps");
    Ok(())
}
