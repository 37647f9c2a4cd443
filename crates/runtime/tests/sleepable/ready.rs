//! Futures that are ready at once: the run stays where it is.

use super::common::engines::engines;
use super::{load, poll};
use bpf_runtime::{AsyncCaller, Caller, Engine, Linker};
use std::future::poll_fn;
use std::task::Poll;

/// Whether the thread holds a slot, and an address on the stack that it is on.
type Place = (bool, usize);

type Host = (Engine, Vec<Place>);

fn note(host: &mut Host) {
    host.1.push(place(&host.0));
}

#[inline(never)]
fn place(engine: &Engine) -> Place {
    let local = 0u8;
    (engine.domain().in_guard(), std::hint::black_box(&raw const local).addr())
}

#[test]
fn a_future_that_is_ready_at_once_leaves_neither_its_stack_nor_its_slot() {
    for engine in engines(|config| config) {
        let mut linker = Linker::<Host>::new(&engine);
        linker
            .func_async(1001, "polled", async |mut c: AsyncCaller<'_, Host>, polls: u64| {
                let mut left = polls;
                poll_fn(|_| {
                    note(c.host());
                    left = left.wrapping_sub(1);
                    if left == u64::MAX { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
            })
            .unwrap()
            .func(1002, "plain", |c: &mut Caller<'_, Host>| note(c.host()))
            .unwrap();
        let program = load(&linker, "call 1002\nr1 = 0\ncall 1001\nr1 = 1\ncall 1001\ncall 1002\nr0 = 7\nexit");
        let mut host = (engine.clone(), Vec::new());
        let mut run = Box::pin(program.run_async(&mut host, &mut []));
        assert!(poll(run.as_mut()).is_pending());
        assert!(matches!(poll(run.as_mut()), Poll::Ready(Ok(7))));
        drop(run);
        let [plain, ready, first, second, last] = host.1[..] else { panic!("{:?}", host.1) };
        let poller = place(&engine);
        let near = |a: Place, b: Place| a.1.abs_diff(b.1) < 64 * 1024;
        // All but the poll of the future that was waited for: from the run's stack, in its slot.
        for on_the_run in [plain, ready, first, last] {
            assert!(on_the_run.0 && near(on_the_run, plain) && !near(on_the_run, poller), "{host:?} {poller:?}");
        }
        assert!(!second.0 && near(second, poller), "{host:?} {poller:?}");
    }
}
