//! The order of compares.
//!
//! Without hit counts: the kernel's balanced tree, which halves the range by `>` and tests equality in its leaves.
//! With hit counts: the binary search tree with the fewest expected compares, which tests equality in every node
//! (Knuth, "Optimum binary search trees", 1971; quadratic, because the best root does not move left when a range
//! grows to the right). Beyond [`OPTIMAL`] entries quadratic time is too long; then each root is chosen so that the
//! weights on both sides are most alike (Mehlhorn, "Nearly optimal binary search trees", 1975).

/// A decision about a key; entries are indices that ascend like their keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Tree {
    /// No entry is left.
    Miss,
    /// `key > pivot`: continue with the upper tree, otherwise with the lower.
    Split { pivot: usize, lower: Box<Tree>, upper: Box<Tree> },
    /// `key == entry`: found; otherwise continue by side. The side is not tested if there are entries on one side
    /// only.
    Test { entry: usize, lower: Box<Tree>, upper: Box<Tree> },
}

impl Tree {
    /// The tree over as many entries as there are hit counts.
    pub(crate) fn new(hits: &[u64]) -> Tree {
        match hits.len() {
            // Two tests in a row: one compare less than a split with two leaves.
            2 if hits[0] == hits[1] => optimal(hits),
            n if hits.iter().all(|hits| *hits == 0) => balanced(0, n),
            n if n > OPTIMAL => bisected(&sums(hits), 0, n),
            _ => optimal(hits),
        }
    }
}

/// The largest number of entries for which the optimal tree is computed: some 100 µs.
const OPTIMAL: usize = 256;

/// Sums of the weights before each entry, and of all. Each weight is the hits plus one: an entry that was never
/// called may be called, and entries of equal hits are balanced among themselves.
fn sums(hits: &[u64]) -> Vec<u128> {
    let weights = hits.iter().scan(0, |sum, hits| {
        *sum += u128::from(*hits) + 1;
        Some(*sum)
    });
    std::iter::once(0).chain(weights).collect()
}

/// A tree over entries `first..end`, each range split where its weight is halved. A path is at most twice as long as
/// a weight has bits.
fn bisected(before: &[u128], first: usize, end: usize) -> Tree {
    if first == end {
        return Tree::Miss;
    }
    let middle = before[first] + (before[end] - before[first]) / 2;
    // The entry whose weight contains the middle.
    let entry = (before[..end].partition_point(|sum| *sum <= middle) - 1).max(first);
    let lower = Box::new(bisected(before, first, entry));
    Tree::Test { entry, lower, upper: Box::new(bisected(before, entry + 1, end)) }
}

/// A balanced tree over entries `first..end`.
fn balanced(first: usize, end: usize) -> Tree {
    match end - first {
        0 => Tree::Miss,
        1 => Tree::Test { entry: first, lower: Box::new(Tree::Miss), upper: Box::new(Tree::Miss) },
        n => {
            let pivot = first + (n - 1) / 2;
            Tree::Split {
                pivot,
                lower: Box::new(balanced(first, pivot + 1)),
                upper: Box::new(balanced(pivot + 1, end)),
            }
        }
    }
}

fn optimal(hits: &[u64]) -> Tree {
    let n = hits.len();
    let before = sums(hits);
    // For entries `first..end`: the least cost, and the root that has it.
    let at = |first: usize, end: usize| first * (n + 1) + end;
    let mut cost = vec![0u128; (n + 1) * (n + 1)];
    let mut root = vec![0usize; (n + 1) * (n + 1)];
    for len in 1..=n {
        for first in 0..=n - len {
            let end = first + len;
            let candidates = if len == 1 { first..=first } else { root[at(first, end - 1)]..=root[at(first + 1, end)] };
            let best = candidates.map(|r| (cost[at(first, r)] + cost[at(r + 1, end)], r)).min();
            if let Some((least, r)) = best {
                cost[at(first, end)] = least + before[end] - before[first];
                root[at(first, end)] = r;
            }
        }
    }
    build(&|first, end| root[at(first, end)], 0, n)
}

fn build(root: &dyn Fn(usize, usize) -> usize, first: usize, end: usize) -> Tree {
    if first == end {
        return Tree::Miss;
    }
    let entry = root(first, end);
    let lower = Box::new(build(root, first, entry));
    Tree::Test { entry, lower, upper: Box::new(build(root, entry + 1, end)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected number of compares, with the weights that the tree is built for.
    fn cost(tree: &Tree, hits: &[u64], depth: u128) -> u128 {
        match tree {
            Tree::Miss => 0,
            Tree::Split { lower, upper, .. } => cost(lower, hits, depth + 1) + cost(upper, hits, depth + 1),
            Tree::Test { entry, lower, upper } => {
                (u128::from(hits[*entry]) + 1) * (depth + 1)
                    + cost(lower, hits, depth + 1)
                    + cost(upper, hits, depth + 1)
            }
        }
    }

    /// The naive twin: every root of every range.
    fn brute_force(hits: &[u64], depth: u128) -> u128 {
        (0..hits.len())
            .map(|r| {
                (u128::from(hits[r]) + 1) * (depth + 1)
                    + brute_force(&hits[..r], depth + 1)
                    + brute_force(&hits[r + 1..], depth + 1)
            })
            .min()
            .unwrap_or(0)
    }

    #[test]
    fn no_tree_is_cheaper_than_the_weighted_one() {
        let mut seed = 7u64;
        for size in 1..=8 {
            for _ in 0..40 {
                let hits: Vec<u64> = (0..size)
                    .map(|_| {
                        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        (seed >> 33) % 50 * (seed >> 60)
                    })
                    .collect();
                assert_eq!(cost(&optimal(&hits), &hits, 0), brute_force(&hits, 0), "{hits:?}");
            }
        }
    }

    fn random(seed: &mut u64) -> u64 {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *seed >> 33
    }

    fn depth(tree: &Tree) -> usize {
        match tree {
            Tree::Miss => 0,
            Tree::Split { lower, upper, .. } | Tree::Test { lower, upper, .. } => 1 + depth(lower).max(depth(upper)),
        }
    }

    /// Collects the entries in order, and checks that there are no gaps.
    fn entries(tree: &Tree, found: &mut Vec<usize>) {
        match tree {
            Tree::Miss => {}
            Tree::Split { lower, upper, .. } => {
                entries(lower, found);
                entries(upper, found);
            }
            Tree::Test { entry, lower, upper } => {
                entries(lower, found);
                found.push(*entry);
                entries(upper, found);
            }
        }
    }

    /// Mehlhorn's bound is entropy + 2 compares; a tree of all weights equal is the loosest case.
    #[test]
    fn bisection_is_near_the_best() {
        let mut seed = 11;
        for _ in 0..50 {
            let hits: Vec<u64> = (0..100).map(|_| random(&mut seed) >> (random(&mut seed) % 31)).collect();
            let total: u128 = hits.iter().map(|hits| u128::from(*hits) + 1).sum();
            let bisected = bisected(&sums(&hits), 0, hits.len());
            assert!(cost(&bisected, &hits, 0) <= cost(&optimal(&hits), &hits, 0) + 2 * total);
        }
    }

    #[test]
    fn many_entries_are_no_burden() {
        let mut seed = 13;
        let skewed: Vec<u64> = (0..64).map(|i| 1 << i).collect();
        let random: Vec<u64> = (0..20_000).map(|_| random(&mut seed)).collect();
        for hits in [&vec![u64::MAX; 1000], &random, &skewed.repeat(10)] {
            assert!(hits.len() > OPTIMAL);
            let tree = Tree::new(hits);
            let mut found = Vec::new();
            entries(&tree, &mut found);
            assert_eq!(found, (0..hits.len()).collect::<Vec<_>>());
            assert!(depth(&tree) <= 140, "{}", depth(&tree));
        }
    }

    #[test]
    fn the_hottest_entry_is_the_root() {
        let mut hits = [1; 48];
        hits[40] = 1_000_000;
        assert!(matches!(Tree::new(&hits), Tree::Test { entry: 40, .. }));
    }

    #[test]
    fn sixteen_entries_take_five_compares_each() {
        fn depths(tree: &Tree, depth: usize, found: &mut Vec<usize>) {
            match tree {
                Tree::Miss => {}
                Tree::Split { lower, upper, .. } => {
                    depths(lower, depth + 1, found);
                    depths(upper, depth + 1, found);
                }
                Tree::Test { .. } => found.push(depth + 1),
            }
        }
        let mut found = Vec::new();
        depths(&Tree::new(&[0; 16]), 0, &mut found);
        assert_eq!(found, [5; 16]);
    }
}
