//! A forked child of a process whose programs are known to profilers and debuggers: it names them, and leaves the
//! parent's files and registrations alone. Alone in its process.
#![cfg(unix)]

use bpf_runtime::{Caller, Config, Engine, Linker, LoadError, Program, Raw, code::Arch, isa::assemble};
use bpf_testkit::forked::{Ended, assert_ended_well, forked};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn the_child_names_programs_and_writes_nothing() {
    if Arch::HOST.is_none() {
        bpf_testkit::skipped("debugging after fork", &"no JIT on this host");
        return;
    }
    let dir = std::env::temp_dir().join(format!("bpf-debug-fork-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let config = Config::new().debug(|debug| debug.unwind(true).gdb(true).perf_map(dir.clone()).jitdump(dir.clone()));
    let engine = Engine::new(config).unwrap();
    let mut linker = Linker::<usize>::new(&engine);
    let here = engine.clone();
    linker
        .func(1001, "frames", move |c: &mut Caller<'_, usize>| -> u64 {
            *c.host() = here.backtrace().len();
            0
        })
        .unwrap();
    let load = |name: &str| linker.loader::<Raw>().insns(name, assemble("call 1001\nr0 = 4\nexit").unwrap());
    let program = load("kept").unwrap();
    let mut gone = Some(load("gone").unwrap());
    let files = || {
        let mut files: Vec<_> = fs::read_dir(&dir).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect::<Vec<_>>()
    };
    let (_, base) = program.machine_code().unwrap();
    engines_of_children(&dir, &engine);
    let before = files();
    assert_eq!(before.len(), 2);
    let child = || {
        assert_eq!(program.machine_code(), None);
        assert_eq!(engine.symbolize(base as usize).unwrap().program, "kept");
        assert!(matches!(load("new"), Err(LoadError::Forked)));
        drop(gone.take());
        engine.reclaim();
        assert_eq!(files(), before);
    };
    // SAFETY: no other thread of this process is doing anything, and the parent keeps `gone`.
    assert_eq!(unsafe { forked(60, child) }, Ended::Well);
    assert_eq!(files(), before);
    // The parent goes on as before.
    let gone = gone.unwrap();
    let (_, base) = gone.machine_code().unwrap();
    assert_eq!(engine.symbolize(base as usize).unwrap().program, "gone");
    drop(gone);
    engine.reclaim();
    assert!(engine.symbolize(base as usize).is_none());
    let mut frames = 0;
    program.run(&mut frames, &mut []).unwrap();
    assert_eq!(frames, 1);
    fs::remove_dir_all(dir).unwrap();
}

/// Children of a process whose other thread tells debuggers and profilers about code all the time make engines of
/// their own, which tell as much.
fn engines_of_children(dir: &std::path::Path, parent: &Engine) {
    let own_dir = dir.join("children");
    fs::create_dir_all(&own_dir).unwrap();
    let told = |dir: &std::path::Path| {
        let config = Config::new().debug(|debug| debug.gdb(true).perf_map(dir.to_owned()).jitdump(dir.to_owned()));
        Engine::new(config).unwrap()
    };
    let answer = |engine: &Engine| -> Program<Raw, ()> {
        Linker::<()>::new(engine).loader::<Raw>().insns("own", assemble("r0 = 9\nexit").unwrap()).unwrap()
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop((answer(parent), answer(&told(&own_dir))));
            }
        });
        let mut children = Vec::new();
        for _ in 0..40 {
            let child = || {
                let own = told(&own_dir);
                assert_eq!(answer(&own).run(&mut (), &mut []).unwrap(), 9);
            };
            // SAFETY: the child allocates and writes files, which the C library allows, and drops nothing of its
            // parent's.
            children.push(unsafe { forked(60, child) });
            if children.ends_with(&[Ended::Waited]) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert_ended_well("engines of forked children that debuggers know", &children);
    });
    fs::remove_dir_all(own_dir).unwrap();
}
