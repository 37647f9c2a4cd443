//! The payload of a host function's panic or error is dropped by the runtime, and that drop may panic, too: the run
//! ends, and the process goes on.

use bpf_runtime::{Caller, Config, Engine, HelperError, Linker, Mode, Raw, RunError, isa::assemble};
use std::sync::atomic::{AtomicU32, Ordering};

/// Dropping it panics with another one, so many times.
struct Again(u32);

static DROPS: AtomicU32 = AtomicU32::new(0);

impl Drop for Again {
    fn drop(&mut self) {
        DROPS.fetch_add(1, Ordering::Relaxed);
        if self.0 > 0 && !std::thread::panicking() {
            std::panic::panic_any(Again(self.0 - 1));
        }
    }
}

#[test]
fn a_payload_whose_drop_panics_ends_the_run_and_no_more() {
    std::panic::set_hook(Box::new(|_| {}));
    for mode in [Mode::Jit, Mode::Interpreter] {
        let config = Config::new().mode(mode);
        let Ok(engine) = Engine::new(config) else { continue };
        let mut linker = Linker::<()>::new(&engine);
        linker
            .func(1001, "panic", |_: &mut Caller<'_, ()>| -> Result<u64, HelperError> {
                std::panic::panic_any(Again(3))
            })
            .unwrap();
        let program = linker.loader::<Raw>().insns("p", assemble("call 1001\nexit").unwrap()).unwrap();
        for _ in 0..3 {
            let before = DROPS.load(Ordering::Relaxed);
            let error = program.run(&mut (), &mut []).unwrap_err();
            assert!(matches!(error, RunError::Host { source: HelperError::Panicked(_), .. }), "{error}");
            assert_eq!(DROPS.load(Ordering::Relaxed), before + 1, "{mode:?}: the second one is not dropped");
        }
    }
    // Deferred drops: the first panic is the caller's, the others do not keep the rest from being run.
    let engine = Engine::new(Config::new()).unwrap();
    static RAN: AtomicU32 = AtomicU32::new(0);
    for _ in 0..3 {
        engine.domain().defer(|| std::panic::panic_any(Again(0)));
        engine.domain().defer(|| {
            let _payload =
                std::panic::catch_unwind(|| std::panic::panic_any(Again(2))).map_err(std::panic::resume_unwind);
        });
        engine.domain().defer(|| {
            RAN.fetch_add(1, Ordering::Relaxed);
        });
    }
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| engine.domain().drain()));
    // The payload of the first panic, whose drop does not panic.
    drop(result);
    assert_eq!(RAN.load(Ordering::Relaxed), 3);
}
