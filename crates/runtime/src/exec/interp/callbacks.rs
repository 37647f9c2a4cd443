//! Helpers that call a function of the program.

use super::{Host, MapArg, Running};
use crate::abi::run::Run;
use crate::call::helpers::callbacks::{run_for_each, run_loop};
use crate::call::helpers::dynptr::run_drain;
use crate::call::helpers::owned::add_to_tree;
use crate::error::HelperError;
use crate::exec::watch::Watch;
use bpf_interp::{Caller, Stop};
use bpf_maps::owned::{self, graph};
use bpf_verifier::CallbackKind;

impl<'p, W: Watch> Host<'p, W> {
    /// `bpf_rbtree_add_impl`, which calls a function of the program with the lock held.
    pub(super) fn add_to_tree(
        &mut self,
        [root, node, less, ..]: [u64; 5],
        caller: &mut Caller<'_, '_, Running<'p>>,
    ) -> Result<u64, Stop> {
        let run = self.run;
        let mut stop = None;
        let mut call = |_: &mut Run, args: [u64; 5]| {
            for node in &args[..2] {
                // SAFETY: nodes of objects, the run's own and one in the tree whose lock it has.
                let object = unsafe { graph::of_tree_node(*node) };
                // SAFETY: an object that the run owns, or one in the tree whose lock it has, so its memory stays to the
                // run's end.
                unsafe { self.grant(object) };
            }
            self.watch.calls_back(caller.machine(), caller.at(), less, args);
            let result = caller.call(self, less, args);
            self.watch.called_back(caller.machine());
            result.map_err(|error| {
                stop = Some(error);
                HelperError::Stopped
            })
        };
        // `add_to_tree` changes the list of objects of this temporary run, which is empty, and the list of the real run
        // is changed below, since the function that is called may use the real run.
        // SAFETY: the run is this thread's.
        let mut view = unsafe { (*run).view() };
        // SAFETY: the program was verified to pass a tree whose lock it has, and the node of an object that it owns.
        let result = unsafe { add_to_tree(&mut view, root, node, &mut call) };
        match (result, stop) {
            (_, Some(stop)) => Err(stop),
            (Err(error), None) => Err(caller.fail(error)),
            (Ok(r0), None) => {
                // SAFETY: the node of an object that the run has owned until now.
                let object = unsafe { graph::of_tree_node(node) };
                // SAFETY: the run is this thread's, and the machine does not touch it.
                let held = unsafe { &mut (*run).held };
                // If the tree has taken the node, it owns the object. Otherwise the run has lost the object, which is
                // released here.
                if held.remove_object(object) && r0 != 0 {
                    // SAFETY: the run has owned it, and it is off the list.
                    unsafe { owned::release(object) };
                }
                Ok(r0)
            }
        }
    }

    /// The helpers that call a function of the program.
    pub(super) fn call_back(
        &mut self,
        kind: CallbackKind,
        [r1, r2, r3, r4, _]: [u64; 5],
        map: Option<MapArg<'p>>,
        caller: &mut Caller<'_, '_, Running<'p>>,
    ) -> Result<u64, Stop> {
        let run = self.run;
        let mut stop = None;
        let mut call = |_: &mut Run, args: [u64; 5]| {
            match (kind, map) {
                (CallbackKind::ForEach, Some(map)) => {
                    self.granted.add_key(args[1], map.def.key_size.into());
                    self.granted.add_value(args[2], map.def.value_size.into(), map.def);
                }
                (CallbackKind::Drain, _) => self.granted.push_dynptr(args[0]),
                (CallbackKind::ForEach, None) | (CallbackKind::Loop, _) => {}
            }
            self.callbacks += 1;
            self.watch.calls_back(caller.machine(), caller.at(), r2, args);
            let result = caller.call(self, r2, args);
            self.watch.called_back(caller.machine());
            self.callbacks -= 1;
            match kind {
                CallbackKind::ForEach => self.granted.take_key(args[1]),
                CallbackKind::Drain => self.granted.pop_dynptr(),
                CallbackKind::Loop => {}
            }
            result.map_err(|error| {
                stop = Some(error);
                HelperError::Stopped
            })
        };
        // A run of its own for the helper, because callbacks use the real one: the helpers only look at slot and
        // engine.
        // SAFETY: the run is this thread's.
        let mut view = unsafe { (*run).view() };
        let result = match (kind, map) {
            (CallbackKind::Loop, _) => run_loop(&mut view, r1, r3, r4, &mut call),
            // SAFETY: the map is the program's and lives.
            (CallbackKind::ForEach, Some(_)) => unsafe { run_for_each(&mut view, r1, r3, r4, &mut call) },
            // SAFETY: the map is the program's and lives.
            (CallbackKind::Drain, Some(_)) => unsafe { run_drain(&mut view, r1, r3, r4, &mut call) },
            (CallbackKind::ForEach | CallbackKind::Drain, None) => {
                return Err(caller.fail("a helper over a map that was not given one"));
            }
        };
        match (result, stop) {
            (_, Some(stop)) => Err(stop),
            (Ok(r0), None) => Ok(r0),
            (Err(error), None) => Err(caller.fail(error)),
        }
    }
}
