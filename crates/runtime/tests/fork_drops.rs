//! A child that is forked while other threads of its parent load, change and drop lets go of all that came along, and
//! ends: no lock that one of those threads held at the fork is waited for.
//!
//! Alone in its file (its own process), and one test.
#![cfg(all(target_os = "linux", not(miri)))]

use bpf_runtime::{
    code::Arch,
    host::{Pinned, PinnedMap},
    isa::assemble,
    maps::{Map, MapDef, MapType, RingBuf},
    *,
};
use bpf_testkit::forked::{Ended, assert_ended_well, forked};
use std::sync::atomic::{AtomicBool, Ordering};

type Prog = Program<Raw, ()>;

/// One or more of each kind of object that an engine's user can hold.
struct Belongings {
    programs: Vec<Prog>,
    array: ProgArray<Raw, ()>,
    hook: Hook<Raw, ()>,
    dispatcher: Dispatcher<Raw, ()>,
    outer: Map,
    inner: Map,
    _ring: RingBuf,
    pinned: Pinned<u64>,
    quota: PinnedMap<u32, u64>,
    linker: Linker<()>,
    engine: Engine,
}

impl Belongings {
    fn new(engine: &Engine) -> Belongings {
        let linker = Linker::<()>::new(engine);
        let inner_def = || MapDef::new("inner", MapType::Hash, 4, 8, 4);
        let outer = MapDef::new("outer", MapType::ArrayOfMaps, 4, 4, 2).inner(inner_def());
        let inner = Map::create(inner_def(), engine.domain()).unwrap();
        let ring = Map::create(MapDef::new("ring", MapType::RingBuf, 0, 0, 1 << 16), engine.domain()).unwrap();
        let mut belongings = Belongings {
            programs: Vec::new(),
            array: ProgArray::create(engine, "next", 4).unwrap(),
            hook: Hook::new(engine, HookPolicy::RunAll { result: 0 }).unwrap(),
            dispatcher: Dispatcher::new(engine).unwrap(),
            outer: Map::create(outer, engine.domain()).unwrap(),
            _ring: RingBuf::new(&ring).unwrap(),
            pinned: Pinned::new(engine, &1),
            quota: PinnedMap::new(&inner).unwrap(),
            inner,
            linker,
            engine: engine.clone(),
        };
        belongings.change(0);
        belongings
    }

    /// Changes all of it.
    fn change(&mut self, n: u32) {
        let insns = assemble("r2 = map[fd:0]\nr3 = 1\ncall 12\nr0 = 1\nexit").unwrap();
        let level = if n.is_multiple_of(2) { OptLevel::Tiered } else { OptLevel::Speed };
        let loader = self.linker.loader::<Raw>().opt_level(level).prog_arrays(&[&self.array]);
        let jumps: Prog = loader.insns("jumps", insns).unwrap();
        assert_eq!(jumps.run(&mut (), &mut []).unwrap(), 1);
        self.array.set(n % 4, &jumps).unwrap();
        self.hook.attach(&jumps).unwrap();
        self.dispatcher.attach(&jumps).unwrap();
        if self.programs.len() == 3 {
            let gone = self.programs.remove(0);
            self.hook.detach(&gone).unwrap();
            self.dispatcher.detach(&gone).unwrap();
        }
        self.programs.push(jumps);
        self.inner = Map::create(self.inner.def().clone(), self.engine.domain()).unwrap();
        self.outer.set_inner(&0u32.to_ne_bytes(), &self.inner, 0).unwrap();
        self.pinned = Pinned::new(&self.engine, &n.into());
        self.quota = PinnedMap::new(&self.inner).unwrap();
    }
}

#[test]
fn a_child_lets_go_of_everything_whatever_its_parent_was_doing() {
    if Arch::HOST.is_none() {
        return bpf_testkit::skipped("drops in a forked child", &"no JIT");
    }
    let engine = Engine::new(Config::new()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut own = Belongings::new(&engine);
                for n in 0.. {
                    own.change(n);
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        let mut children = Vec::new();
        for _ in 0..60 {
            let mut held = Some(Belongings::new(&engine));
            // SAFETY: the child drops its copies, and its parent keeps what they are copies of.
            children.push(unsafe { forked(120, || drop(held.take())) });
            if children.ends_with(&[Ended::Waited]) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert_ended_well("drops in a forked child", &children);
    });
}
