//! Destructors of a host's closures that change the same hook, dispatcher, array or map that dropped them. None of
//! these may drop anything, or run deferred drops, while it holds its lock.

use crate::common::{Fixture, Prog, Words, fixture, fixtures};
use bpf_runtime::{
    Caller, Dispatcher, Hook, HookPolicy, Linker, ProgArray,
    maps::{Map, MapDef, MapType},
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Everything that programs can be put into, and something to put there.
struct Places {
    hook: Hook<Words, u64>,
    dispatcher: Dispatcher<Words, u64>,
    array: ProgArray<Words, u64>,
    outer: Map,
    inner: Map,
    other: OnceLock<Prog>,
    drops: AtomicU64,
}

impl Places {
    /// Changes each of them and back.
    fn change(&self) {
        // Relaxed: a count.
        self.drops.fetch_add(1, Ordering::Relaxed);
        let other = self.other.get().unwrap();
        // A drop further up this stack may have attached the program.
        if self.hook.attach(other).is_ok() {
            self.hook.detach(other).unwrap();
        }
        self.dispatcher.attach(other).unwrap();
        self.dispatcher.detach(other).unwrap();
        self.array.set(1, other).unwrap();
        // Likewise cleared.
        let _ = self.array.clear(1);
        let key = 1u32.to_ne_bytes();
        self.outer.set_inner(&key, &self.inner, 0).unwrap();
        let _ = self.outer.delete(&key);
    }
}

struct OnDrop(Weak<Places>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(places) = self.0.upgrade() {
            places.change();
        }
    }
}

/// A program with a closure that changes all places when it is dropped. Nobody but the program has it.
fn victim(f: &Fixture, places: &Arc<Places>) -> Prog {
    let on_drop = OnDrop(Arc::downgrade(places));
    let mut linker = Linker::new(&f.engine);
    let touch = move |_: &mut Caller<'_, u64>| u64::from(on_drop.0.strong_count() > 0);
    linker.func(1002, "touch", touch).unwrap();
    let insns = bpf_runtime::isa::assemble("call 1002\nexit").unwrap();
    linker.loader().insns("victim", insns).unwrap()
}

#[test]
fn a_drop_may_change_what_let_go_of_it() {
    for f in &fixtures() {
        let mut def = MapDef::new("inner", MapType::Array, 4, 8, 1);
        let inner = Map::create(def.clone(), f.engine.domain()).unwrap();
        def = MapDef::new("outer", MapType::HashOfMaps, 4, 4, 8).inner(def);
        let places = Arc::new(Places {
            hook: Hook::new(&f.engine, HookPolicy::RunAll { result: 0 }).unwrap(),
            dispatcher: Dispatcher::new(&f.engine).unwrap(),
            array: f.array(2),
            outer: Map::create(def, f.engine.domain()).unwrap(),
            inner,
            other: OnceLock::new(),
            drops: AtomicU64::new(0),
        });
        places.other.set(f.load("other", "r0 = 0\nexit", &[])).unwrap();
        // Enough that deferred callbacks run in the middle of every kind of change.
        for round in 0..400u32 {
            let program = victim(f, &places);
            places.hook.attach(&program).unwrap();
            places.dispatcher.attach(&program).unwrap();
            places.array.set(0, &program).unwrap();
            let next = victim(f, &places);
            places.hook.replace(&program, &next).unwrap();
            if round % 2 == 0 {
                places.dispatcher.detach(&program).unwrap();
                drop(program);
                places.array.set(0, &next).unwrap();
            } else {
                places.array.clear(0).unwrap();
                places.dispatcher.detach(&program).unwrap();
                drop(program);
            }
            places.outer.set_inner(&0u32.to_ne_bytes(), &places.inner, 0).unwrap();
            places.hook.detach(&next).unwrap();
        }
        f.engine.reclaim();
        assert!(places.drops.load(Ordering::Relaxed) >= 700, "{}", f.name);
        places.array.clear(0).unwrap_or(());
    }
}

/// Looks at a dispatcher when it is dropped.
struct LooksOnDrop(Weak<Dispatcher<Words, u64>>, Arc<AtomicU64>);

impl Drop for LooksOnDrop {
    fn drop(&mut self) {
        let entries = self.0.upgrade().map_or(0, |dispatcher| dispatcher.stats().entries);
        // Relaxed: a count.
        self.1.fetch_add(1 + entries as u64, Ordering::Relaxed);
    }
}

/// A dispatcher that has no memory for one program more, and a program whose drop was put off by a run until then.
#[test]
fn a_drop_may_look_at_the_dispatcher_that_refuses_a_program() {
    for f in &fixtures() {
        let dispatcher = Arc::new(Dispatcher::<Words, u64>::new(&f.engine).unwrap());
        let drops = Arc::new(AtomicU64::new(0));
        let on_drop = LooksOnDrop(Arc::downgrade(&dispatcher), Arc::clone(&drops));
        let mut linker = Linker::new(&f.engine);
        let touch = move |_: &mut Caller<'_, u64>| on_drop.0.strong_count() as u64;
        linker.func(1002, "touch", touch).unwrap();
        let insns = bpf_runtime::isa::assemble("call 1002\nexit").unwrap();
        let victim: Prog = linker.loader().insns("victim", insns).unwrap();
        let other = f.load("other", "r0 = 0\nexit", &[]);
        let memory = f.engine.domain().memory();
        let taken = memory.reserve(f.engine.config().get_memory_limit() - memory.used()).unwrap();
        let mut host = 0;
        let runner = other.runner(&mut host).unwrap();
        drop((victim, linker));
        assert_eq!(drops.load(Ordering::Relaxed), 0, "{}: a runner keeps what is dropped", f.name);
        drop(runner);
        assert!(dispatcher.attach(&other).is_err(), "{}", f.name);
        f.engine.reclaim();
        assert_eq!(drops.load(Ordering::Relaxed), 1, "{}", f.name);
        drop(taken);
    }
}

/// Programs own their engine, and the engine owns deferred callbacks: no cycle of owners may be left.
#[test]
fn an_engine_goes_with_its_last_user() {
    let names: Vec<&str> = fixtures().iter().map(|f| f.name).collect();
    for name in names {
        for program_last in [false, true] {
            let alive = Arc::new(());
            let kept = {
                let mut f = fixture(name);
                let token = Arc::clone(&alive);
                let touch = move |_: &mut Caller<'_, u64>| Arc::strong_count(&token) as u64;
                f.linker.func(1002, "touch", touch).unwrap();
                let hook = Hook::<Words, u64>::new(&f.engine, HookPolicy::RunAll { result: 0 }).unwrap();
                let dispatcher = Dispatcher::<Words, u64>::new(&f.engine).unwrap();
                let array = f.array(2);
                let program = f.load("touches", "call 1002\nexit", &[&array]);
                hook.attach(&program).unwrap();
                hook.detach(&program).unwrap();
                hook.attach(&program).unwrap();
                dispatcher.attach(&program).unwrap();
                dispatcher.detach(&program).unwrap();
                dispatcher.attach(&program).unwrap();
                array.set(0, &program).unwrap();
                array.clear(0).unwrap();
                array.set(1, &program).unwrap();
                program_last.then_some(program)
            };
            drop(kept);
            assert_eq!(Arc::strong_count(&alive), 1, "{name}, {program_last}");
        }
    }
}

/// Programs of one engine, or of two in turn, each of which owns the one before: they go one after the other, and not
/// each inside the other's drop.
#[test]
fn a_long_chain_of_owners_takes_no_stack() {
    // One after the other inside of each other they would take more than the stack, emulated too.
    const LINKS: usize = if cfg!(target_arch = "aarch64") { 1000 } else { 3000 };
    let names: Vec<&str> = fixtures().iter().map(|f| f.name).collect();
    for name in names {
        for engines in 1..=2 {
            let chain = move || {
                let mut fixtures: Vec<Fixture> = (0..engines).map(|_| fixture(name)).collect();
                let alive = Arc::new(());
                let mut last: Option<Prog> = None;
                for i in 0..LINKS {
                    let f = &mut fixtures[i % engines];
                    let mut linker = Linker::new(&f.engine);
                    let (own, token) = (last.take(), Arc::clone(&alive));
                    let touch = move |_: &mut Caller<'_, u64>| own.is_some() && Arc::strong_count(&token) > 0;
                    linker.func(1002, "touch", touch).unwrap();
                    last = Some(
                        linker.loader().insns("link", bpf_runtime::isa::assemble("call 1002\nexit").unwrap()).unwrap(),
                    );
                }
                assert_eq!(Arc::strong_count(&alive), 1 + LINKS);
                drop(last);
                // A drop that one engine's callbacks defer in another may wait for the next operation there.
                for _ in 0..2 {
                    fixtures.iter().for_each(|f| f.engine.reclaim());
                }
                assert_eq!(Arc::strong_count(&alive), 1, "{name}, {engines}");
            };
            std::thread::Builder::new().stack_size(512 << 10).spawn(chain).unwrap().join().unwrap();
        }
    }
}
