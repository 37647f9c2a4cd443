//! Tests that tokens made too early, or by another clock, are refused, and that a failed poke changes no state.

use crate::model::{Fault, Handle, ModelFences, ModelSlots, Shared, World};
use bpf_tailcall::{Clock, Failure, Insn, Site, Target, View};
use std::cell::RefCell;
use std::rc::Rc;

fn world() -> Shared {
    Rc::new(RefCell::new(World { memory: vec![(Insn::Out, Insn::Nop)], over: true, ..World::default() }))
}

/// Takes the view of the state that the site must be in.
macro_rules! expect {
    ($site:expr, $state:ident) => {
        match $site.view() {
            View::$state(site) => site,
            other => panic!("not {}: {other:?}", stringify!($state)),
        }
    };
}

#[test]
fn early_and_foreign_tokens_are_refused() {
    let world = world();
    let (clock, other) = (Clock::new(ModelFences(world.clone())), Clock::new(ModelFences(world.clone())));
    let mut site: Site<_, Handle> = Site::new(ModelSlots(world.clone(), 0));

    let early = clock.barrier().unwrap();
    expect!(site, Unlinked).arm(Handle::new(&world, 7), &clock).unwrap();
    assert_eq!(expect!(site, Armed).open(&early).unwrap_err().error, Failure::Early);
    assert_eq!(expect!(site, Armed).open(&other.barrier().unwrap()).unwrap_err().error, Failure::Early);
    let barrier = clock.barrier().unwrap();
    expect!(site, Armed).open(&barrier).unwrap();

    // A grace period begun before the close, and one begun after it with a barrier from before.
    let stale = clock.grace(&barrier);
    expect!(site, Linked).close(&clock).unwrap();
    for grace in [stale, clock.grace(&barrier), other.grace(&other.barrier().unwrap())] {
        let elapsed = clock.elapsed(&grace).unwrap();
        assert_eq!(expect!(site, Draining).unlink(&elapsed).unwrap_err().error, Failure::Early);
    }
    let elapsed = clock.elapsed(&clock.grace(&clock.barrier().unwrap())).unwrap();
    expect!(site, Draining).unlink(&elapsed).unwrap();
    assert_eq!(site.instructions(), (Insn::Out, Insn::Nop));
}

#[test]
fn what_was_displaced_waits_for_its_own_grace_period() {
    let world = world();
    let clock = Clock::new(ModelFences(world.clone()));
    let mut site: Site<_, Handle> = Site::new(ModelSlots(world.clone(), 0));
    expect!(site, Unlinked).arm(Handle::new(&world, 1), &clock).unwrap();
    let barrier = clock.barrier().unwrap();
    let early = clock.elapsed(&clock.grace(&barrier)).unwrap();
    let (site, old) = expect!(site, Armed).open(&barrier).unwrap().retarget(Handle::new(&world, 2), &clock).unwrap();
    assert_eq!(site.target().address(), 2);
    let old = old.release(&early).unwrap_err();
    let late = clock.elapsed(&clock.grace(&clock.barrier().unwrap())).unwrap();
    assert_eq!(old.release(&late).unwrap().address(), 1);
}

#[test]
fn every_transition_that_fails_leaves_text_and_state_as_they_were() {
    // The steps that may fail, in order: arm, barrier, open, retarget, close, barrier, unlink; and re-arm instead of
    // unlink.
    let world = world();
    let clock = Clock::new(ModelFences(world.clone()));
    let mut site: Site<_, Handle> = Site::new(ModelSlots(world.clone(), 0));
    let failing = || {
        let mut world = world.borrow_mut();
        world.failing = vec![world.fallible];
        world.memory[0]
    };
    let handle = |n| Handle::new(&world, n);
    let unchanged = |site: &Site<ModelSlots, Handle>, before| {
        assert_eq!(world.borrow().memory[0], before);
        assert_eq!(site.instructions(), before);
    };

    let before = failing();
    assert_eq!(expect!(site, Unlinked).arm(handle(1), &clock).unwrap_err().error, Failure::Poke(Fault));
    unchanged(&site, before);
    expect!(site, Unlinked).arm(handle(1), &clock).unwrap();
    let before = failing();
    assert_eq!(expect!(site, Armed).retarget(handle(2), &clock).unwrap_err().error, Failure::Poke(Fault));
    unchanged(&site, before);
    let barrier = clock.barrier().unwrap();
    let before = failing();
    assert_eq!(expect!(site, Armed).open(&barrier).unwrap_err().error, Failure::Poke(Fault));
    unchanged(&site, before);
    expect!(site, Armed).open(&barrier).unwrap();
    let before = failing();
    assert_eq!(expect!(site, Linked).retarget(handle(2), &clock).unwrap_err().error, Failure::Poke(Fault));
    unchanged(&site, before);
    let before = failing();
    assert_eq!(expect!(site, Linked).close(&clock).unwrap_err().error, Failure::Poke(Fault));
    unchanged(&site, before);
    expect!(site, Linked).close(&clock).unwrap();
    let before = failing();
    assert_eq!(expect!(site, Draining).arm(handle(2), &clock).unwrap_err().error, Failure::Poke(Fault));
    unchanged(&site, before);
    let elapsed = clock.elapsed(&clock.grace(&clock.barrier().unwrap())).unwrap();
    let before = failing();
    assert_eq!(expect!(site, Draining).unlink(&elapsed).unwrap_err().error, Failure::Poke(Fault));
    unchanged(&site, before);
    expect!(site, Draining).unlink(&elapsed).unwrap();
    unchanged(&site, (Insn::Out, Insn::Nop));
}
