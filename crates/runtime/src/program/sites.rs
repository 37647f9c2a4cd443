//! The direct tail-call sites of a program, and their registration with tables.
//!
//! Problem: a tail call with constant table and index is compiled into a patchable site, and its table must patch the
//! site as long as runs can begin in the program. Approach: a [`Tracked`] lives for that period. Making it links every
//! site to the program in its slot, under the table's lock, so an update that races with the load comes before or after
//! it as a whole. Dropping it removes the sites from the tables.
//!
//! Invariant: a site keeps the text it is in, and the table has no site of a dropped program.

use crate::error::LoadError;
use crate::program::bindings::Bindings;
use crate::program::map_ref::MapRef;
use crate::program::references::References;
use crate::program::table::ProgTable;
use bpf_analysis::{Cfg, ConstTailCall, Constants, Facts};
use bpf_isa::Program;
use bpf_jit::Extern;
use bpf_jit_code::{TailCallSite, TailTarget};
use bpf_prog_pack::Text;
use bpf_tailcall::TextSlots;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Adds to `facts` the tail calls that [`Constants`] finds, and leaves out those with an index beyond the table.
pub(crate) fn constant_tail_calls<'f>(program: &Program, references: &References, facts: &'f Facts) -> Cow<'f, Facts> {
    let entries = |map: u32| references.map(i32::try_from(map).ok()?)?.slots();
    if !references.maps.iter().any(|map| map.slots().is_some()) {
        return Cow::Borrowed(facts);
    }
    let mut found: Vec<ConstTailCall> = Constants::default().tail_calls(program, &Cfg::new(program), entries);
    let in_range = |call: &&ConstTailCall| entries(call.map).is_some_and(|entries| call.index < entries);
    found.extend(facts.tail_calls.iter().filter(in_range));
    // Both results hold on every path, so they agree where both have a call.
    found.sort_by_key(|call| call.insn);
    found.dedup_by_key(|call| call.insn);
    let mut facts = facts.clone();
    facts.tail_calls = found;
    Cow::Owned(facts)
}

/// The sites of one program, known to their tables while this lives.
#[derive(Debug, Default)]
pub(crate) struct Tracked {
    owner: u64,
    /// Slots with sites, by table.
    tables: Vec<(Arc<ProgTable>, Vec<u32>)>,
}

impl Tracked {
    /// Makes the sites of newly placed code known to their tables. No run may enter the code before this returns.
    pub(crate) fn new(text: &Arc<Text>, sites: &[TailCallSite], bindings: &Bindings) -> Result<Tracked, LoadError> {
        /// A table, and the sites that jump through it with their indices.
        type TableSites<'a> = (&'a Arc<ProgTable>, Vec<(u32, TextSlots)>);
        static NEXT: AtomicU64 = AtomicU64::new(0);

        let mut by_table: Vec<TableSites<'_>> = Vec::new();
        for site in sites {
            let TailTarget::Direct { table, index, bypass, target, out } = site.target else { continue };
            let Some(Extern::Map(map)) = Extern::from_symbol(table) else {
                return Err(LoadError::Internal("a tail-call site whose table is not a map".into()));
            };
            let Some(MapRef::Progs(table)) = bindings.map(map as i32) else {
                return Err(LoadError::Internal("a tail-call site whose table is not a prog array".into()));
            };
            let slots = TextSlots::new(Arc::clone(text), bypass, target, out)
                .map_err(|error| LoadError::Internal(format!("a tail-call site that cannot be patched: {error}")))?;
            match by_table.iter_mut().find(|(known, _)| Arc::ptr_eq(known, table)) {
                Some((_, sites)) => sites.push((index, slots)),
                None => by_table.push((table, vec![(index, slots)])),
            }
        }
        // Relaxed: only uniqueness matters.
        let mut tracked = Tracked { owner: NEXT.fetch_add(1, Ordering::Relaxed), tables: Vec::new() };
        for (table, sites) in by_table {
            let slots = sites.iter().map(|(index, _)| *index).collect();
            table
                .track(tracked.owner, sites)
                .map_err(|source| LoadError::ProgArray { array: table.name().to_owned(), source })?;
            tracked.tables.push((Arc::clone(table), slots));
        }
        Ok(tracked)
    }
}

impl Tracked {
    /// Whether sites jump through this table, which is then kept by one reference.
    pub(crate) fn has(&self, table: &Arc<ProgTable>) -> bool {
        self.tables.iter().any(|(known, _)| Arc::ptr_eq(known, table))
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        for (table, slots) in &self.tables {
            table.untrack(self.owner, slots);
        }
    }
}
