//! Contained programs that sleep: bases are read anew, memory that others may free is out of reach, proofs travel.

use super::common::engines::engines;
use super::elf::{Elf, FUNC};
use super::{WAITS, after, block_on, poll, waits};
use bpf_runtime::{
    AsyncCaller, Config, Engine, Linker, LoadError, Loader, MapSet, Object, OptLevel, Program, Raw, RunError,
    RunLimits,
    isa::assemble,
    maps::{Map, MapDef, MapType},
    verify::{PROVING_FUEL, ProofSection, Proofs},
};
use std::future::Future;
use std::task::{Context, Poll, Waker};

/// The ways of compiling a contained program. Containment needs the optimiser, whatever level is asked for.
fn contained<'a, H: 'static>(linker: &'a Linker<H>) -> impl Iterator<Item = Loader<'a, Raw, H>> {
    let levels = [OptLevel::None, OptLevel::Speed, OptLevel::Tiered].into_iter();
    levels.map(|level| linker.loader::<Raw>().opt_level(level).contained(true))
}

/// Polls to the end, each time on another thread, while this thread has the slot of before.
fn migrate<F: Future + Send>(engine: &Engine, run: F) -> (F::Output, u32)
where
    F::Output: Send,
{
    let mut run = Box::pin(run);
    let mut waits = 0;
    loop {
        let guard = engine.domain().enter().unwrap();
        let run = run.as_mut();
        let poll = move || run.poll(&mut Context::from_waker(Waker::noop()));
        let polled = std::thread::scope(|scope| scope.spawn(poll).join().unwrap());
        drop(guard);
        match polled {
            Poll::Ready(result) => return (result, waits),
            Poll::Pending => waits += 1,
        }
    }
}

/// Sums up, over waits: bytes of the frame at variable offsets, which the host writes while the run waits; a value of
/// an array that is held all the time; one of a hash, and of a per-CPU array, which are looked up again; the packet.
const SUM: &str = "r8 = r1\nr9 = r2\n*(u64 *)(r10 - 8) = 0\n*(u64 *)(r10 - 16) = 0\n*(u64 *)(r10 - 24) = 0\nr7 = 0\n\
    r1 = map[fd:0]\nr2 = r10\nr2 += -8\ncall 1\nif r0 == 0 goto out\nr6 = r0\n*(u64 *)(r10 - 32) = 0\n\
    again:\n\
    r1 = r10\nr1 += -24\nr2 = 16\ncall 1002\n\
    r1 = map[fd:1]\nr2 = r10\nr2 += -8\ncall 1\nif r0 == 0 goto out\nr1 = *(u64 *)(r0 + 0)\nr7 += r1\n\
    r1 = map[fd:2]\nr2 = r10\nr2 += -8\ncall 1\nif r0 == 0 goto out\nr1 = *(u64 *)(r0 + 0)\nr1 += 1\n*(u64 *)(r0 + 0) = r1\n\
    r2 = *(u64 *)(r10 - 32)\nr2 &= 7\nr3 = r6\nr3 += r2\nr1 = *(u8 *)(r3 + 0)\nr7 += r1\n\
    r3 = r10\nr3 += -24\nr3 += r2\nr1 = *(u8 *)(r3 + 0)\nr7 += r1\n\
    if r9 < 8 goto short\nr3 = r8\nr3 += r2\nr1 = *(u8 *)(r3 + 0)\nr7 += r1\nshort:\n\
    r2 += 1\n*(u64 *)(r10 - 32) = r2\nif r2 < 5 goto again\nout:\nr0 = r7\nexit";

#[test]
fn a_contained_run_goes_on_in_another_slot() {
    for engine in engines(|config| config) {
        let map = |name, ty, key, value| Map::create(MapDef::new(name, ty, key, value, 4), engine.domain()).unwrap();
        let maps = [
            map("array", MapType::Array, 4, 8),
            map("hash", MapType::Hash, 8, 8),
            map("slots", MapType::PerCpuArray, 4, 8),
        ];
        maps[0].set(&[0; 4], &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        let mut linker = Linker::<u64>::new(&engine);
        linker
            .func_async(1002, "fill", async |mut c: AsyncCaller<'_, u64>, bytes: &mut [u8]| {
                after(1).await;
                *c.host() += 1;
                bytes.fill(*c.host() as u8);
                after(1).await;
            })
            .unwrap();
        let load = |loader: Loader<'_, Raw, u64>| {
            let loader = loader.sleepable(true).maps(&maps.each_ref());
            loader.insns("sum", assemble(SUM).unwrap()).unwrap_or_else(|e| panic!("{e}"))
        };
        let sum = |program: &Program<Raw, u64>| {
            let (mut host, mut packet) = (0, [10; 9]);
            // The element is another one after each wait.
            let mut run = Box::pin(program.run_async(&mut host, &mut packet));
            for round in 0u64.. {
                maps[1].set(&[0; 8], &(1000 * round).to_ne_bytes()).unwrap();
                let guard = engine.domain().enter().unwrap();
                let run = run.as_mut();
                let poll = move || run.poll(&mut Context::from_waker(Waker::noop()));
                let polled = std::thread::scope(|scope| scope.spawn(poll).join().unwrap());
                drop(guard);
                if let Poll::Ready(result) = polled {
                    return (result.unwrap(), round);
                }
                maps[1].delete(&[0; 8]).unwrap();
            }
            unreachable!("it ends")
        };
        // Ten waits: five elements, five bytes of the array, of the frame, and of the packet.
        let expected = ((2 + 4 + 6 + 8 + 10) * 1000 + 15 + 15 + 50, 10);
        assert_eq!(sum(&load(linker.loader())), expected);
        for loader in contained(&linker) {
            assert_eq!(sum(&load(loader)), expected);
        }
    }
}

/// Takes 999 back-edges, with a value of an array, and returns its byte 1,000 times.
const BYTES: &str = "r6 = map[fd:0][0]+0\nr7 = 0\nr0 = 0\nagain:\nr1 = r7\nr1 &= 7\nr2 = r6\nr2 += r1\n\
                     r1 = *(u8 *)(r2 + 0)\nr0 += r1\nr7 += 1\nif r7 != 1000 goto again\nexit";

#[test]
fn a_contained_run_yields_within_its_budget() {
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let array = Map::create(MapDef::new("array", MapType::Array, 4, 8, 1), engine.domain()).unwrap();
        array.set(&[0; 4], &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        for loader in contained(&linker) {
            let loader = loader.yields(true).maps(&[&array]).budget(2000);
            let program: Program<Raw, ()> = loader.insns("bytes", assemble(BYTES).unwrap()).unwrap();
            let limits = RunLimits::new().yield_every(100);
            let (result, waits) = migrate(&engine, program.run_async_with(&mut (), &mut [], &limits));
            assert_eq!((result.unwrap(), waits), (125 * 36, 9));
            // A budget is that of all parts.
            let limits = RunLimits::new().yield_every(100).budget(500);
            let (result, _) = migrate(&engine, program.run_async_with(&mut (), &mut [], &limits));
            assert!(matches!(result, Err(RunError::Budget { .. })), "{result:?}");
        }
    }
    // Without a limit of its own, a contained run has the engine's, although the verifier has proven that it ends.
    for engine in engines(|config| config.hybrid_budget(500)) {
        let linker = Linker::<()>::new(&engine);
        let text = "r0 = 0\nagain:\nr0 += 1\nif r0 != 1000 goto again\nexit";
        let load = |loader: Loader<'_, Raw, ()>| loader.yields(true).insns("test", assemble(text).unwrap()).unwrap();
        let run = |program: &Program<Raw, ()>| block_on(program.run_async(&mut (), &mut []));
        assert_eq!(run(&load(linker.loader())).unwrap(), 1000);
        let result = run(&load(linker.loader().contained(true)));
        assert!(matches!(result, Err(RunError::Budget { .. })), "{result:?}");
    }
}

/// Looks up a value of a hash at instruction 5, waits, and uses it at 10.
const STALE: &str = "*(u64 *)(r10 - 8) = 0\nr1 = map[fd:0]\nr2 = r10\nr2 += -8\ncall 1\nif r0 == 0 goto out\nr6 = r0\n\
                     r1 = 1\ncall 1001\nr0 = *(u64 *)(r6 + 0)\nexit\nout:\nr0 = 0\nexit";

#[test]
fn the_untrusted_preset_loads_programs_that_wait() {
    let engine = Engine::new(Config::untrusted()).unwrap();
    let linker = waits(&engine);
    let hash = Map::create(MapDef::new("hash", MapType::Hash, 8, 8, 4), engine.domain()).unwrap();
    let load =
        |text: &str| linker.loader::<Raw>().sleepable(true).maps(&[&hash]).insns("test", assemble(text).unwrap());
    let program = load("r1 = 2\ncall 1001\nr0 += 40\nexit").unwrap();
    let mut host = 1;
    let mut run = Box::pin(program.run_async(&mut host, &mut []));
    assert!(poll(run.as_mut()).is_pending());
    assert_eq!(block_on(run).unwrap(), 42);
    assert!(matches!(load(STALE), Err(LoadError::Verifier { .. })));
}

#[test]
fn a_program_that_waits_is_loaded_by_its_proof() {
    let mut elf = Elf::new();
    let section = elf.code("uprobe.s/function", &WAITS);
    elf.symbol("main", section, FUNC, 0, WAITS.len() as u64);
    let bytes = elf.build();
    for engine in engines(|config| config) {
        let linker = waits(&engine);
        let object = Object::parse(&bytes).unwrap();
        let maps = || MapSet::for_object(&engine, &object).unwrap();
        for yields in [false, true] {
            let reports = linker.loader::<Raw>().yields(yields).prove(&object, maps(), PROVING_FUEL).unwrap();
            let proof = reports[0].proof.clone().unwrap_or_else(|e| panic!("{e}"));
            let proofs = ProofSection::to_bytes(&[("main", proof)]);
            let proven = Object::parse(&Object::with_proofs(&bytes, &proofs).unwrap()).unwrap();
            for contained in [false, true] {
                let maps = MapSet::for_object(&engine, &proven).unwrap();
                let loader = linker.loader::<Raw>().yields(yields).proofs(Proofs::Require);
                let loader = loader.contained(contained);
                let program = loader.object(&proven, maps).unwrap_or_else(|e| panic!("{e}")).program::<Raw>("main");
                assert_eq!(block_on(program.unwrap().run_async(&mut 0, &mut [])).unwrap(), 1);
            }
            // A proof says whether the program was to yield.
            let maps = MapSet::for_object(&engine, &proven).unwrap();
            let other = linker.loader::<Raw>().yields(!yields).proofs(Proofs::Require).object(&proven, maps);
            assert!(matches!(other, Err(LoadError::Proof { .. })), "{other:?}");
        }
    }
}
