//! Switches: trees of comparisons of one value with constants, which a backend emits with a jump table.
//!
//! Problem: BPF compilers turn a `switch` into a tree of comparisons. On data that no predictor learns, each level of
//! the tree costs a mispredicted branch half of the time. Approach: in front of the tree's first comparison the backend
//! emits an indirect jump through a table, which has one entry for each value between the tree's least and greatest
//! constant. The tree stays behind the jump, and decides all other values unless they have one target.
//!
//! Switches are found in the final blocks, and no pass sees the jump: a value keeps its location for its whole life,
//! and an inner block of the tree holds nothing but its comparison, so a jump from the first comparison to a leaf has
//! the effect of the way through the tree. Edges, liveness and allocation are those of the tree.
//!
//! A table has at least [`MIN_TARGETS`] different targets, as LLVM's (`min-jump-table-entries`), and none of them has
//! more than half of the entries: where most values go to one target, the tree's few branches to it are predicted
//! better than an indirect jump (the speed program `json`: 0.67 of native code's time, and 0.78 with a table).
//!
//! Invariant: the cost is linear in the number of blocks, whatever their shape. Steps are counted, and a function whose
//! trees need more than [`STEPS`] for each block has its remaining trees left as they are.

use bpf_isa::{Size, Width};
use bpf_lir::{BinOp, BlockId, Cond, Func, Op, VReg, Val};

/// A jump table, and the jump through it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Switch {
    /// The block whose last op is the tree's first comparison. The jump stands before that op.
    pub block: BlockId,
    /// The width of all comparisons.
    pub width: Width,
    /// The compared value.
    pub value: VReg,
    /// The value of the table's first entry, as an unsigned number of `width` bits.
    pub low: u64,
    /// The blocks to go to: for `low`, `low + 1`, and so on.
    pub targets: Vec<BlockId>,
    /// The target of all other values.
    pub others: Others,
}

/// The target of the values that are not in a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Others {
    /// All values have an entry, so the jump needs no comparison.
    None,
    /// All values without an entry go to this block.
    To(BlockId),
    /// The values without an entry go to several blocks, between which the tree decides.
    Tree,
}

/// The table of a tree.
struct Table {
    low: u64,
    targets: Vec<BlockId>,
    others: Others,
}

/// The least number of comparisons in a tree that gets a table.
const MIN_COMPARISONS: usize = 4;
/// The least number of different targets.
const MIN_TARGETS: usize = 4;
/// Twice the least number of comparisons on the way to the average entry of the table. A shorter way is as fast as the
/// indirect jump.
const MIN_DEPTH_DOUBLED: u64 = 5;
/// The most entries of a table for each comparison of its tree.
const SPARSE: u64 = 4;
/// The most comparisons of a tree. A larger tree consists of smaller ones.
const MAX_COMPARISONS: usize = 512;
/// The most empty or jumping blocks in a row that are followed to a comparison or a leaf.
const MAX_JUMPS: usize = 4;
/// The most steps for each block of a function.
const STEPS: usize = 64;

/// A comparison of the tree's value at the end of a block.
#[derive(Clone, Copy, Debug)]
struct Node {
    block: BlockId,
    /// Place in the tree of the comparison that leads here; 0 for the first one.
    parent: usize,
    cond: Cond,
    constant: u64,
    taken: BlockId,
    falls: BlockId,
}

/// Finds the switches of a function, in code order.
pub fn switches(func: &Func) -> Vec<Switch> {
    let comparisons = func.in_order().filter(|(_, ops)| ops.last().is_some_and(|op| compared(op).is_some()));
    if comparisons.count() < MIN_COMPARISONS {
        return Vec::new();
    }
    let blocks = func.blocks.len();
    let mut places = vec![usize::MAX; blocks];
    for (place, block) in func.order.iter().enumerate() {
        places[block.index()] = place;
    }
    let mut finder =
        Finder { func, places, closed: vec![false; blocks], seen: vec![None; blocks], steps: STEPS * blocks };
    func.order.iter().filter_map(|block| finder.switch(*block)).collect()
}

/// The value and width of a comparison with a constant, if the op is a branch that depends on one.
fn compared(op: &Op) -> Option<(VReg, Width)> {
    let Op::Branch { width, cond, a, b: Val::Imm(_), .. } = *op else { return None };
    (cond != Cond::Set).then_some((a, width))
}

/// A constant as an unsigned number of the width.
fn cut(width: Width, constant: i64) -> u64 {
    match width {
        Width::W32 => u64::from(crate::num::low_word(constant).cast_unsigned()),
        Width::W64 => constant.cast_unsigned(),
    }
}

struct Finder<'f> {
    func: &'f Func,
    /// By block: its position in the order.
    places: Vec<usize>,
    /// By block: whether it cannot begin a tree, because it belongs to one or to one that is too large.
    closed: Vec<bool>,
    /// By block: the first block of the tree that it was last counted to.
    seen: Vec<Option<BlockId>>,
    /// Steps left.
    steps: usize,
}

impl Finder<'_> {
    /// Takes a step, if there is one left.
    fn step(&mut self) -> Option<()> {
        self.steps = self.steps.checked_sub(1)?;
        Some(())
    }

    /// Returns the switch whose tree begins at the end of a block.
    fn switch(&mut self, block: BlockId) -> Option<Switch> {
        let (value, width) = compared(self.func.block_ops(block).last()?)?;
        if self.closed[block.index()] {
            return None;
        }
        let nodes = self.tree(block, self.node(block, value, width)?, value, width)?;
        let table = self.table(&nodes, value, width, self.most(block, value));
        // Without a table, a part of half the size may still get one. So no block is in more trees than the logarithm
        // of their size.
        let largest = if table.is_some() { 0 } else { nodes.len() / 2 };
        for (node, size) in nodes.iter().zip(sizes(&nodes)) {
            self.closed[node.block.index()] |= size > largest;
        }
        table.map(|Table { low, targets, others }| Switch { block, width, value, low, targets, others })
    }

    /// Returns the comparisons of the tree that begins with `root`, at the end of the block `first`; each after its
    /// parent.
    fn tree(&mut self, first: BlockId, root: Node, value: VReg, width: Width) -> Option<Vec<Node>> {
        self.seen[first.index()] = Some(first);
        let mut nodes = vec![root];
        let mut next = 0;
        while let Some(node) = nodes.get(next).copied() {
            for to in [node.taken, node.falls].map(|to| self.follow(to)) {
                self.step()?;
                if !self.closed[to.index()]
                    && self.seen[to.index()] != Some(first)
                    && nodes.len() < MAX_COMPARISONS
                    && let Some(inner) = self.inner(to, value, width)
                {
                    self.seen[to.index()] = Some(first);
                    nodes.push(Node { parent: next, ..inner });
                }
            }
            next += 1;
        }
        Some(nodes)
    }

    /// The greatest number that a value can be at the end of a block, as far as the op in the block says that defines
    /// it.
    fn most(&self, block: BlockId, value: VReg) -> Option<u64> {
        let defined = *self.func.block_ops(block).iter().rev().find(|op| op.def() == Some(value))?;
        if let Op::Bin { op: BinOp::And, b: Val::Imm(mask), .. } = defined {
            u32::try_from(mask).ok().map(u64::from)
        } else if let Op::Load { size: Size::B, signed: false, .. } = defined {
            Some(0xff)
        } else {
            None
        }
    }

    /// Returns the table of a tree, if it pays. `most` is the greatest number that the value can be, if that is known.
    fn table(&mut self, nodes: &[Node], value: VReg, width: Width, most: Option<u64>) -> Option<Table> {
        let constants = || nodes.iter().map(|node| node.constant);
        let limit = SPARSE * nodes.len() as u64;
        let most = most.unwrap_or_else(|| cut(width, -1));
        // A table of the other values up to `most` would save the comparison. The speed program `opcodes` then takes
        // 2.2 times as long as native code instead of 1.1 (AMD EPYC): the comparison's branch tells the predictor of
        // indirect jumps the way.
        let (low, high) = (constants().min()?, constants().max()?.min(most));
        let entries = high.checked_sub(low)?.saturating_add(1);
        if nodes.len() < MIN_COMPARISONS || entries > limit {
            return None;
        }
        let mut targets = vec![BlockId(u32::MAX); usize::try_from(entries).ok()?];
        // Intervals of values that come to a comparison, and how many comparisons they have passed.
        let mut work = vec![(nodes.first().copied()?, 0..=most, 1)];
        let (mut others, mut made) = (Vec::new(), 0);
        while let Some((node, values, depth)) = work.pop() {
            let mut next = Some(*values.start());
            while let Some(from) = next.filter(|from| values.contains(from)) {
                self.step()?;
                let change = node.next_change(width, from);
                let to = change.map_or(*values.end(), |change| (change - 1).min(*values.end()));
                next = to.checked_add(1);
                let holds = node.cond.holds(width, from, node.constant);
                let block = self.follow(if holds { node.taken } else { node.falls });
                if let Some(inner) = self.inner(block, value, width) {
                    work.push((inner, from..=to, depth + 1));
                    continue;
                }
                if from < low || to > high {
                    others.push(block);
                }
                let (from, to) = (from.max(low), to.min(high));
                if from <= to {
                    made += depth * (to - from + 1);
                    targets.get_mut(place(low, from)..=place(low, to))?.fill(block);
                }
            }
        }
        others.sort_unstable();
        others.dedup();
        let others = match others[..] {
            [] => Others::None,
            [only] => Others::To(only),
            [_, _, ..] => Others::Tree,
        };
        let mut sorted = targets.clone();
        sorted.sort_unstable();
        let shares = || sorted.chunk_by(|one, other| one == other).map(<[BlockId]>::len);
        let mixed = shares().count() >= MIN_TARGETS && shares().all(|share| 2 * share <= sorted.len());
        let pays = mixed && 2 * made >= MIN_DEPTH_DOUBLED * entries;
        pays.then_some(Table { low, targets, others })
    }

    /// The comparison at the end of a block, if it is one of `value` at `width` with a constant.
    fn node(&self, block: BlockId, value: VReg, width: Width) -> Option<Node> {
        let op = self.func.block_ops(block).last()?;
        let Op::Branch { cond, b: Val::Imm(constant), target, .. } = *op else { return None };
        let falls = *self.func.order.get(self.places[block.index()] + 1)?;
        let constant = cut(width, constant);
        (compared(op)? == (value, width)).then_some(Node { block, parent: 0, cond, constant, taken: target, falls })
    }

    /// The comparison that a block consists of, if it is one of `value` at `width` with a constant.
    fn inner(&self, block: BlockId, value: VReg, width: Width) -> Option<Node> {
        if self.func.block_ops(block).len() == 1 { self.node(block, value, width) } else { None }
    }

    /// The block to which a jump to `block` leads, behind blocks that are empty or only jump.
    fn follow(&self, mut block: BlockId) -> BlockId {
        for _ in 0..MAX_JUMPS {
            let next = match self.func.block_ops(block) {
                [] => self.func.order.get(self.places[block.index()] + 1),
                [Op::Jump { target }] => Some(target),
                [_, ..] => None,
            };
            let Some(next) = next else { break };
            block = *next;
        }
        block
    }
}

/// The number of comparisons in the part of a tree that begins with each of its comparisons.
fn sizes(nodes: &[Node]) -> Vec<usize> {
    let mut sizes = vec![1; nodes.len()];
    for (place, node) in nodes.iter().enumerate().skip(1).rev() {
        sizes[node.parent] += sizes[place];
    }
    sizes
}

impl Node {
    /// The least number above `from` at which the comparison's outcome may change.
    fn next_change(self, width: Width, from: u64) -> Option<u64> {
        let sign = match width {
            Width::W32 => 1 << 31,
            Width::W64 => 1 << 63,
        };
        let changes = [Some(self.constant), self.constant.checked_add(1), Some(sign)];
        changes.into_iter().flatten().filter(|change| *change > from).min()
    }
}

/// The place of a number in the table that begins with `low`, which has fewer than `u32::MAX` entries.
#[expect(clippy::cast_possible_truncation, reason = "tables have at most SPARSE * MAX_COMPARISONS entries")]
fn place(low: u64, number: u64) -> usize {
    (number - low) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf_lir::Lir;

    /// A function that compares v0 with the constants one by one, and returns the place of the one that is equal.
    fn chain(constants: &[i64]) -> Func {
        let mut text = String::from("func 0 (v0, -, -, -, -) {\n");
        for (i, constant) in constants.iter().enumerate() {
            text += &format!("b{i}:\n    branch.32 v0 eq {constant}, b{}\n", constants.len() + 1 + i);
        }
        for i in constants.len()..=2 * constants.len() {
            text += &format!("b{i}:\n    v1 = mov.64 {i}\n    exit v1\n");
        }
        text += "}\n";
        text.parse::<Lir>().unwrap_or_else(|e| panic!("{e}\n{text}")).funcs.remove(0)
    }

    #[test]
    fn a_table_covers_the_constants() {
        let [switch] = &switches(&chain(&[7, 3, 4, 6, 9]))[..] else { panic!("one table") };
        let (block, low) = (switch.block, switch.low);
        assert_eq!((block, low, switch.width, switch.value), (BlockId(0), 3, Width::W32, VReg(0)));
        // 3, 4, 5 (the default), 6, 7, 8 (the default), 9.
        assert_eq!(switch.targets, [7, 8, 5, 9, 6, 5, 10].map(BlockId));
        assert_eq!(switch.others, Others::To(BlockId(5)));
    }

    /// A number that is masked needs no comparison with the ends of a table of all its values.
    #[test]
    fn a_table_may_cover_all_values() {
        let with = |define: &str| {
            let mut func = chain(&[0, 1, 2, 3]);
            let op = format!("func 0 (v0, -, -, -, -) {{\nb0:\n    v0 = {define}\n    exit v0\n}}\n");
            let op = op.parse::<Lir>().unwrap().funcs[0].ops[0];
            let compared = func.block_ops(BlockId(0))[0];
            func.set_ops(BlockId(0), [op, compared].map(|op| (op, bpf_lir::Span::default())));
            switches(&func).remove(0).others
        };
        assert_eq!(with("and.32 v0, 3"), Others::None);
        assert_eq!(with("and.64 v0, 7"), Others::To(BlockId(4)));
        assert_eq!(with("and.64 v0, -4"), Others::To(BlockId(4)));
    }

    #[test]
    fn small_sparse_and_shallow_trees_have_none() {
        assert_eq!(switches(&chain(&[1, 2, 3])), []);
        assert_eq!(switches(&chain(&[1, 100, 200, 300])), []);
        // One constant four times.
        assert_eq!(switches(&chain(&[1, 1, 1, 1])), []);
        // The constants are dense as signed numbers, but not as unsigned ones.
        assert_eq!(switches(&chain(&[-2, -1, 0, 1])), []);
    }

    /// The first half of a sparse tree may have a dense second half.
    #[test]
    fn a_part_of_a_sparse_tree_has_a_table() {
        let sparse = (0..8).map(|i| 5000 + 1000 * i);
        let constants: Vec<i64> = sparse.chain(0..8).collect();
        let [switch] = &switches(&chain(&constants))[..] else { panic!("one table") };
        assert_eq!((switch.block, switch.targets.len()), (BlockId(8), 8));
    }

    #[test]
    fn a_large_switch_has_several_tables() {
        let constants: Vec<i64> = (0..2000).collect();
        let found = switches(&chain(&constants));
        assert!(found.len() >= 3, "{}", found.len());
        let covered: usize = found.iter().map(|switch| switch.targets.len()).sum();
        assert!(covered >= 1000 && found.iter().all(|switch| switch.targets.len() <= MAX_COMPARISONS), "{covered}");
    }

    /// A tree that comes back to its own comparisons has leaves that no value reaches.
    #[test]
    fn a_tree_that_comes_back_ends() {
        let text = "func 0 (v0, -, -, -, -) {\n\
            b0:\n    branch.64 v0 eq 1, b4\n\
            b1:\n    branch.64 v0 eq 2, b0\n\
            b2:\n    branch.64 v0 eq 3, b1\n\
            b3:\n    branch.64 v0 eq 4, b0\n\
            b4:\n    exit v0\n}\n";
        let func = text.parse::<Lir>().unwrap().funcs.remove(0);
        assert_eq!(switches(&func), []);
    }
}
