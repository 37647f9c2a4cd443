//! Selects the entries of a tree, its comparisons, and their order.
//!
//! Problem: an address has 64 bits and a compare takes an immediate of 32. Two addresses that agree in the lower half
//! must not be confused. Approach: the code compares all 64 bits of `address - base` with sign-extended immediates.
//! Where every address is such an immediate, the base is 0 and nothing is subtracted (the kernel's case: its text
//! lies in the topmost 2 GiB). Otherwise the base is the entry in the middle, which costs one subtraction at the
//! root. Entries further than 2 GiB from the base are left to the indirect jump; programs of one arena are never that
//! far apart.

use crate::options::Entry;
use crate::tree::Tree;

/// A tree over `addresses`, which ascend as signed distances from `base`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    pub(crate) base: u64,
    pub(crate) addresses: Vec<usize>,
    pub(crate) tree: Tree,
}

impl Plan {
    pub(crate) fn new(entries: &[Entry], limit: usize) -> Plan {
        // Each address once, with the sum of its hits and its first position.
        let mut chosen: Vec<(Entry, usize)> = entries.iter().copied().zip(0..).collect();
        chosen.sort_by_key(|(entry, _)| entry.address);
        chosen.dedup_by(|(gone, _), (kept, _)| {
            let same = gone.address == kept.address;
            if same {
                kept.hits = kept.hits.saturating_add(gone.hits);
            }
            same
        });
        if chosen.len() > limit {
            chosen.sort_by_key(|(entry, place)| (std::cmp::Reverse(entry.hits), *place));
            chosen.truncate(limit);
            chosen.sort_by_key(|(entry, _)| entry.address);
        }
        let mut chosen: Vec<Entry> = chosen.into_iter().map(|(entry, _)| entry).collect();

        let fits = |base| move |entry: &Entry| i32::try_from(distance(entry.address, base)).is_ok();
        // The lower middle, where a balanced tree splits first, so that the root needs no compare.
        let middle = chosen.get(chosen.len().saturating_sub(1) / 2).map_or(0, |entry| entry.address as u64);
        let base = if chosen.iter().all(fits(0)) { 0 } else { middle };
        chosen.retain(fits(base));
        chosen.sort_by_key(|entry| distance(entry.address, base));
        let hits: Vec<u64> = chosen.iter().map(|entry| entry.hits).collect();
        Plan { base, tree: Tree::new(&hits), addresses: chosen.iter().map(|entry| entry.address).collect() }
    }

    /// The immediate that `address - base` is compared with.
    #[expect(clippy::cast_possible_truncation, reason = "only entries whose distance fits are planned for")]
    pub(crate) fn immediate(&self, entry: usize) -> i32 {
        distance(self.addresses[entry], self.base) as i32
    }
}

fn distance(address: usize, base: u64) -> i64 {
    (address as u64).wrapping_sub(base) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entry that the code emitted for the plan reaches, found compare by compare.
    fn route(plan: &Plan, address: usize) -> Option<usize> {
        let key = distance(address, plan.base);
        let mut tree = &plan.tree;
        loop {
            match tree {
                Tree::Miss => return None,
                Tree::Split { pivot, lower, upper } => {
                    tree = if key > i64::from(plan.immediate(*pivot)) { upper } else { lower };
                }
                Tree::Test { entry, .. } if key == i64::from(plan.immediate(*entry)) => return Some(*entry),
                // With one subtree only, the side is not tested.
                Tree::Test { lower, upper, .. } if **lower == Tree::Miss => tree = upper,
                Tree::Test { lower, upper, .. } if **upper == Tree::Miss => tree = lower,
                Tree::Test { entry, lower, upper } => {
                    tree = if key > i64::from(plan.immediate(*entry)) { upper } else { lower };
                }
            }
        }
    }

    fn random(seed: &mut u64) -> u64 {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *seed >> 16
    }

    #[test]
    fn every_set_of_1_to_64_random_addresses_and_nothing_else_is_known() {
        let seed = &mut 1;
        for size in 1..=64 {
            for round in 0..20 {
                // Low addresses are compared without a base; an arena of 1 GiB lies anywhere.
                let arena = if round % 4 == 0 { 0x1000 } else { random(seed) as usize };
                let entries: Vec<Entry> = (0..size)
                    .map(|_| Entry {
                        address: arena + (random(seed) as usize & 0x3fff_fff0),
                        hits: if round % 2 == 0 { 0 } else { random(seed) % 1000 },
                    })
                    .collect();
                let plan = Plan::new(&entries, 64);
                assert_eq!(plan.base == 0, arena == 0x1000);
                for entry in &entries {
                    let found = route(&plan, entry.address).map(|i| plan.addresses[i]);
                    assert_eq!(found, Some(entry.address), "size {size}");
                    for near in [entry.address ^ 16, entry.address ^ 1 << 32, entry.address ^ 1 << 40, !entry.address] {
                        let known = entries.iter().any(|e| e.address == near);
                        assert_eq!(route(&plan, near).is_some(), known, "size {size}: {near:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn beyond_the_limit_the_hottest_stay() {
        let entries: Vec<Entry> = (0..10).map(|i| Entry { address: i * 64, hits: (i % 5) as u64 }).collect();
        assert_eq!(Plan::new(&entries, 4).addresses, [3 * 64, 4 * 64, 8 * 64, 9 * 64]);
        let even: Vec<Entry> = entries.iter().map(|entry| Entry { hits: 0, ..*entry }).collect();
        assert_eq!(Plan::new(&even, 2).addresses, [0, 64]);
        let backwards: Vec<Entry> = even.into_iter().rev().collect();
        assert_eq!(Plan::new(&backwards, 2).addresses, [8 * 64, 9 * 64], "the first that were named");
    }

    #[test]
    fn an_address_is_one_entry() {
        let twice = [(64, 1), (128, 5), (64, 3), (64, u64::MAX)].map(|(address, hits)| Entry { address, hits });
        assert_eq!(
            Plan::new(&twice[..3], 48),
            Plan::new(&[(64, 4), (128, 5)].map(|(address, hits)| Entry { address, hits }), 48)
        );
        assert_eq!(Plan::new(&twice, 1).addresses, [64]);
    }

    #[test]
    fn what_is_too_far_away_is_left_out() {
        let far = [0x5555_0000_0000, 0x5555_0000_0040, 0x7fff_0000_0000].map(|address| Entry { address, hits: 0 });
        let plan = Plan::new(&far, 48);
        assert_eq!(plan.addresses, [0x5555_0000_0000, 0x5555_0000_0040]);
        assert_eq!(route(&plan, 0x7fff_0000_0000), None);
    }
}
