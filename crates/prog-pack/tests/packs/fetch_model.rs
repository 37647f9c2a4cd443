//! Shows why dependent pokes need a barrier: explores every interleaving of a model in which a CPU may execute an old
//! copy of either slot.
//!
//! Real CPUs rarely show this (depending on the platform, hundreds in millions), and emulators never. So the protocol
//! is explored here. A runner executes BYPASS, then perhaps TARGET, each either as it is in memory or as it was at
//! any time since the last instruction barrier on its CPU. The patcher follows a script. Falling through (BYPASS
//! open, TARGET a nop) must be unreachable. Without the barrier it must be reachable, or the model shows nothing.

use std::collections::HashSet;

/// One step of the patcher.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// BYPASS: jump over (false) or open (true).
    Bypass(bool),
    /// TARGET: nop (false) or jump (true).
    Target(bool),
    /// Every CPU discards its fetched instructions.
    Barrier,
    /// Waits until the run in progress has ended.
    GracePeriod,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    /// Next step of the patcher.
    at: usize,
    bypass: bool,
    target: bool,
    /// Values of each slot that the runner's CPU may execute: bit 0 for false, bit 1 for true.
    fetchable_bypass: u8,
    fetchable_target: u8,
    /// Whether the runner is between the two slots.
    inside: bool,
}

fn bit(value: bool) -> u8 {
    1 << u8::from(value)
}

/// Explores all interleavings; returns whether some run fell through.
fn falls_through(script: &[Step]) -> bool {
    let start = State {
        at: 0,
        bypass: false,
        target: false,
        fetchable_bypass: bit(false),
        fetchable_target: bit(false),
        inside: false,
    };
    let (mut seen, mut todo) = (HashSet::from([start.clone()]), vec![start]);
    while let Some(state) = todo.pop() {
        let mut next = Vec::new();
        // The runner: executes BYPASS as any fetchable value, or TARGET and ends the run.
        if state.inside {
            if state.fetchable_target & bit(false) != 0 {
                return true;
            }
            next.push(State { inside: false, ..state.clone() });
        } else {
            if state.fetchable_bypass & bit(true) != 0 {
                next.push(State { inside: true, ..state.clone() });
            }
        }
        // The patcher.
        match script.get(state.at) {
            None => {}
            Some(Step::Bypass(value)) => next.push(State {
                at: state.at + 1,
                bypass: *value,
                fetchable_bypass: state.fetchable_bypass | bit(*value),
                ..state.clone()
            }),
            Some(Step::Target(value)) => next.push(State {
                at: state.at + 1,
                target: *value,
                fetchable_target: state.fetchable_target | bit(*value),
                ..state.clone()
            }),
            Some(Step::Barrier) => next.push(State {
                at: state.at + 1,
                fetchable_bypass: bit(state.bypass),
                fetchable_target: bit(state.target),
                ..state.clone()
            }),
            Some(Step::GracePeriod) if state.inside => {}
            Some(Step::GracePeriod) => next.push(State { at: state.at + 1, ..state.clone() }),
        }
        for state in next {
            if seen.insert(state.clone()) {
                todo.push(state);
            }
        }
    }
    false
}

use Step::{Barrier, Bypass, GracePeriod, Target};

const INSTALL: [Step; 3] = [Target(true), Barrier, Bypass(true)];
const REMOVE: [Step; 4] = [Bypass(false), Barrier, GracePeriod, Target(false)];

/// Twice, so that stale values of a removal meet the next installation.
fn cycle(install: &[Step], remove: &[Step]) -> Vec<Step> {
    // Nothing is assumed between the steps: a CPU may execute old fetches as long as it likes.
    [install, remove, install, remove].concat()
}

#[test]
fn with_every_barrier_no_run_falls_through() {
    assert!(!falls_through(&cycle(&INSTALL, &REMOVE)));
}

#[test]
fn without_any_one_of_them_some_run_does() {
    for (i, step) in INSTALL.iter().enumerate().filter(|(_, step)| **step == Barrier) {
        let without: Vec<_> = INSTALL.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, s)| *s).collect();
        assert!(falls_through(&cycle(&without, &REMOVE)), "installing without step {i} ({})", matches!(step, Barrier));
    }
    for i in [1, 2] {
        let without: Vec<_> = REMOVE.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, s)| *s).collect();
        assert!(falls_through(&cycle(&INSTALL, &without)), "removing without step {i}");
    }
    let swapped = [Bypass(true), Barrier, Target(true)];
    assert!(falls_through(&cycle(&swapped, &REMOVE)), "installing in the wrong order");
}
