//! The placement of a loop in cache lines.
//!
//! Problem: processors fetch instructions, and cache decoded ones, by lines. A part of a loop that lies in more lines
//! than necessary is fetched in more steps in each iteration. Depending on its place alone, a classifier by a tree of
//! comparisons took 1.2 times as long where the first or the last block of each iteration lay in two lines, and a table
//! of rules 1.6 times (docs/book/explanation/speed.md). Approach: a block that is the target of more jumps runs
//! more often, and the first block runs in every iteration. So the cost of a place is the sum over blocks of the line
//! ends inside them, weighted by the number of jumps. Padding before the loop moves the whole loop, so only places are
//! tried at which some block begins with a line: between two of them no block lies in fewer lines.
//!
//! Invariants: a loop of one block lies in as few lines as possible, if the padding is allowed. Padding is used only
//! if it saves a line end inside a block.

/// Bytes of a cache line, the unit of instruction fetch and of the cache of decoded instructions, on every x86-64
/// processor.
pub(super) const LINE: u32 = 64;
/// Longest loop of one block that is padded, in bytes.
const LONGEST_BLOCK: u32 = 4 * LINE;
/// Longest loop that is padded, in bytes.
const LONGEST_LOOP: u32 = 16 * LINE;
/// Largest number of blocks of a padded loop: the work grows with their square.
const MOST_BLOCKS: usize = 64;

/// A block of a loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Block {
    /// Bytes from the start of the loop.
    pub(super) start: u32,
    /// Number of jumps to this block.
    pub(super) jumps: u32,
}

/// The padding, at most `max` bytes, before a loop of `len` bytes that would lie at `at`. The first block begins at
/// offset 0, the others ascend; there is at least one.
pub(super) fn padding(at: u32, len: u32, blocks: &[Block], max: u32) -> u32 {
    let longest = if blocks.len() == 1 { LONGEST_BLOCK } else { LONGEST_LOOP };
    if len > longest || blocks.len() > MOST_BLOCKS {
        return 0;
    }
    let now = cost(at, len, blocks);
    let mut best = (now, 0);
    for block in blocks {
        let padding = (at + block.start).wrapping_neg() % LINE;
        if padding != 0 && padding <= max && now >= WITHIN {
            best = best.min((cost(at + padding, len, blocks), padding));
        }
    }
    // A line end between two blocks only decides between equal places.
    if best.0 + WITHIN <= now { best.1 } else { 0 }
}

/// The cost of a line end inside a block that is no jump target; between two blocks it costs one.
const WITHIN: u32 = 2;

/// The cost of placing the loop at `at`.
fn cost(at: u32, len: u32, blocks: &[Block]) -> u32 {
    let most = blocks.iter().map(|block| block.jumps).max().unwrap_or(0);
    let ends = blocks.iter().skip(1).map(|block| block.start).chain([len]);
    let of_block = |(i, (block, end)): (usize, (&Block, u32))| {
        let jumps = if i == 0 { most } else { block.jumps };
        let (first, end) = (at + block.start, at + end);
        // Number of line ends after the first byte and before the last one.
        let within = (end.max(1) - 1) / LINE - (first / LINE).min((end.max(1) - 1) / LINE);
        within * WITHIN * (1 + jumps) + u32::from(i > 0 && first % LINE == 0)
    };
    blocks.iter().zip(ends).enumerate().map(of_block).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_block_lies_in_as_few_lines_as_it_can() {
        let block = [Block { start: 0, jumps: 1 }];
        let lines = |at: u32, len: u32| (at + len - 1) / LINE - at / LINE + 1;
        for at in 0..2 * LINE {
            for len in 1..=LONGEST_BLOCK {
                let padding = padding(at, len, &block, LINE - 1);
                assert_eq!(lines(at + padding, len), len.div_ceil(LINE), "{len} at {at}");
                assert!(padding == 0 || lines(at, len) > len.div_ceil(LINE), "{len} at {at}: {padding} for nothing");
            }
            assert_eq!(padding(at, LONGEST_BLOCK + 1, &block, LINE - 1), 0);
        }
    }

    /// No place within the reach of padding is better than the chosen one by more than the threshold for padding.
    #[test]
    fn no_place_is_better() {
        let mut seed = 5u64;
        let mut next = |n: u32| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as u32 % n
        };
        let mut padded = 0;
        for _ in 0..5000 {
            let mut blocks = vec![Block { start: 0, jumps: next(3) }];
            let mut len = 1 + next(60);
            for _ in 0..next(12) {
                blocks.push(Block { start: len, jumps: next(4) });
                len += next(60);
            }
            let (at, max) = (next(1000), [31, 63][next(2) as usize]);
            let chosen = padding(at, len, &blocks, max);
            assert!(chosen <= max);
            padded += u32::from(chosen != 0);
            let costs: Vec<u32> = (0..=max).map(|padding| cost(at + padding, len, &blocks)).collect();
            let least = *costs.iter().min().unwrap();
            match chosen {
                0 => assert!(costs[0] < least + WITHIN, "{blocks:?} at {at}: {costs:?}"),
                _ => assert!(costs[chosen as usize] == least && least + WITHIN <= costs[0], "{blocks:?} at {at}"),
            }
        }
        assert!(padded > 1000, "{padded}");
    }

    /// The last and the first block of an iteration have more weight than the blocks between.
    #[test]
    fn blocks_that_are_run_more_often_lie_in_one_line() {
        let block = |start, jumps| Block { start, jumps };
        let blocks = [block(0, 1), block(20, 0), block(60, 0), block(100, 5)];
        // At 17 the third block lies in one line, and the last one in two.
        let placed = 17 + padding(17, 130, &blocks, LINE - 1);
        assert_eq!((placed + 100) / LINE, (placed + 129) / LINE);
        assert_eq!(placed / LINE, (placed + 19) / LINE);
    }

    #[test]
    fn long_loops_stay() {
        let blocks: Vec<Block> = (0..66).map(|i| Block { start: 10 * i, jumps: 1 }).collect();
        assert_ne!(padding(33, 640, &blocks[..MOST_BLOCKS], LINE - 1), 0);
        assert_eq!(padding(33, 650, &blocks[..=MOST_BLOCKS], LINE - 1), 0);
        assert_eq!(padding(33, LONGEST_LOOP + 1, &blocks[..5], LINE - 1), 0);
    }
}
