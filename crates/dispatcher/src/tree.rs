//! The order of compares.
//!
//! Without hit counts: the kernel's balanced tree, which halves the range by `>` and asks for equality in its leaves. With them: the binary search
//! tree with the fewest expected compares, which asks for equality in every node (Knuth, "Optimum binary search trees", 1971; quadratic,
//! because the best root does not move left when a range grows to the right).

/// A decision about a key; entries are indices that ascend like their keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Tree {
    /// No entry is left.
    Miss,
    /// `key > pivot`: the upper one, otherwise the lower.
    Split { pivot: usize, lower: Box<Tree>, upper: Box<Tree> },
    /// `key == entry`: found, otherwise on by side, without a test for the side if there are entries on one side only.
    Test { entry: usize, lower: Box<Tree>, upper: Box<Tree> },
}

impl Tree {
    /// The tree over as many entries as there are hit counts.
    pub(crate) fn new(hits: &[u64]) -> Tree {
        match hits.len() {
            // Two tests in a row: one compare less than a split and two leaves.
            2 if hits[0] == hits[1] => optimal(hits),
            n if hits.iter().all(|hits| *hits == 0) => balanced(0, n),
            _ => optimal(hits),
        }
    }
}

/// Entries `first..end`.
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
    // Plus one: what was never called is not impossible, and equals are balanced among themselves.
    let weight = |i: usize| u128::from(hits[i]) + 1;
    // Of entries `first..end`: the least cost, and the root that has it.
    let mut cost = vec![vec![0u128; n + 1]; n + 1];
    let mut root = vec![vec![0usize; n + 1]; n + 1];
    for len in 1..=n {
        for first in 0..=n - len {
            let end = first + len;
            let candidates = if len == 1 { first..=first } else { root[first][end - 1]..=root[first + 1][end] };
            let total: u128 = (first..end).map(weight).sum();
            let best = candidates.map(|r| (cost[first][r] + cost[r + 1][end] + total, r)).min();
            if let Some((least, r)) = best {
                cost[first][end] = least;
                root[first][end] = r;
            }
        }
    }
    build(&root, 0, n)
}

fn build(root: &[Vec<usize>], first: usize, end: usize) -> Tree {
    if first == end {
        return Tree::Miss;
    }
    let entry = root[first][end];
    let lower = Box::new(build(root, first, entry));
    Tree::Test { entry, lower, upper: Box::new(build(root, entry + 1, end)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected compares, with the weights that the tree is built for.
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
