//! A process whose files may not be long (`RLIMIT_FSIZE`): memory that is not to be had is an error. The kernel would
//! end the process by SIGXFSZ.
//!
//! Alone in its file (its own process), and one test: the limit is the process's.
#![cfg(all(target_os = "linux", not(miri)))]

use bpf_runtime::{
    Config, Engine, EngineError, Linker, LoadError, Raw,
    isa::assemble,
    maps::{Map, MapDef, MapError, MapType},
};

/// Sets the soft limit.
fn limit(bytes: libc::rlim_t) {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes to `now`.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut now) }, 0);
    now.rlim_cur = bytes.min(now.rlim_max);
    // SAFETY: reads `now`.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const now) }, 0);
}

#[test]
fn a_file_that_may_not_grow_is_an_error() {
    if bpf_testkit::emulated() {
        // The limit would be the emulator's, too.
        bpf_testkit::skipped("files under a limit", &"qemu makes files of its own in this process");
        return;
    }
    // In a child: the test harness may be writing to a file, too.
    // SAFETY: no other thread of this process is doing anything that the child needs; it leaves through `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let checked = std::panic::catch_unwind(limited);
        // SAFETY: ends the child without running the parent's destructors twice.
        unsafe { libc::_exit(i32::from(checked.is_err())) };
    }
    let mut status = 0;
    // SAFETY: waits for our child and writes its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "SIGXFSZ is {}", libc::SIGXFSZ);
}

fn limited() {
    let mapped = |engine: &Engine| {
        let def = MapDef::new("mapped", MapType::Array, 4, 8, 1 << 16).flags(bpf_runtime::maps::flags::MMAPABLE);
        Map::create(def, engine.domain())
    };
    let load = |engine: &Engine| -> Result<u64, LoadError> {
        let program = Linker::<()>::new(engine).loader::<Raw>().insns("seven", assemble("r0 = 7\nexit").unwrap())?;
        Ok(program.run(&mut (), &mut []).unwrap())
    };
    let folder = std::env::temp_dir().join(format!("bpf-file-limit-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut told = Config::new();
    if bpf_runtime::code::Arch::HOST.is_some() {
        told = told.debug(|debug| debug.jitdump(folder.clone()));
    }
    limit(16);
    // An engine, or its first program, asks for memory for code, unless everything is interpreted.
    match Engine::new(Config::new()).map(|engine| (load(&engine), mapped(&engine))) {
        Ok((loaded, mapped)) => {
            assert!(loaded.is_err() || bpf_runtime::code::Arch::HOST.is_none(), "{loaded:?}");
            assert!(matches!(mapped, Err(MapError::System { .. })), "{mapped:?}");
        }
        Err(error) => assert!(matches!(error, EngineError::Memory(_)), "{error}"),
    }
    assert!(Engine::new(told.clone()).is_err() || bpf_runtime::code::Arch::HOST.is_none());
    limit(libc::RLIM_INFINITY);
    let engine = Engine::new(Config::new()).unwrap();
    assert_eq!(load(&engine).unwrap(), 7);
    let map = mapped(&engine).unwrap();
    let (file, listed) = (folder.join("dump"), Engine::new(told).unwrap());
    limit(1 << 10);
    assert!(matches!(map.save(&file), Err(MapError::Io(_))));
    assert!(!file.exists(), "whole or not at all");
    // The record for debuggers is lost, and the load succeeds. Its code is in memory that was mapped before.
    for _ in 0..40 {
        let _ = load(&listed);
    }
    assert_eq!(load(&engine).unwrap(), 7);
    limit(libc::RLIM_INFINITY);
    map.save(&file).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}
