//! Removes jumps by changing branches and the order of blocks.
//!
//! Compilers for BPF write `if c goto +1; goto back` where a target is too far for a conditional jump, or because of
//! the order in which they emit blocks. This takes two jumps a round where one suffices. The pass makes these changes:
//!
//! * A branch over a block that only jumps becomes the opposite branch to the target of that jump, and a jump to a
//!   block that only jumps leads to that block's target (`run`, `thread`).
//! * If a branch leaves a loop and the jump behind it leads to the loop's head, the branch leads to the head and the
//!   jump leaves the loop (`run`). Copies before that jump move with it, to a block in front of the head (`turn`).
//! * A jump back to a block that only consists of the loop's exit branch becomes that branch (`ask`). If no jump to the
//!   block is left, the block goes (`drop_unreached`).
//! * A block into which control does not fall is placed behind a block that jumps to it (`follow`).
//! * If a branch leads to a distant block that continues a loop, and control falls into blocks that leave the loop, the
//!   two are exchanged (`stay`).
//! * Empty blocks are removed (`close`).
//!
//! Invariants: ops other than jumps and branches are neither added nor removed, and keep their order within a block. A
//! jump with a check before it is not a block that only jumps, so every check is still passed.

use crate::faults::planted;
use crate::ssa::NONE;
use bpf_lir::{BlockId, Func, Op, Span};

/// How many jumps to jumps are followed from one jump.
const MAX_HOPS: u32 = 4;
/// The most ops of a block that is moved in front of its loop's head, its jump counted.
const MAX_ROUND: usize = 8;
/// How many blocks may lie between a loop's head and a branch in it, and how many of the blocks behind each of the
/// branch's targets are looked at.
const MAX_INSIDE: usize = 8;
/// How many blocks may be moved past others, beside 16 times the number of blocks.
const MAX_MOVED: usize = 4096;

/// Runs the pass; returns how many jumps were removed or changed.
pub(crate) fn run(func: &mut Func, reached: &mut Vec<bool>, places: &mut Vec<u32>) -> u32 {
    places.clear();
    places.resize(func.blocks.len(), 0);
    let mut done = close(func, places) + thread(func) + stay(func, places);
    number(func, places);
    reached.clear();
    reached.resize(func.blocks.len(), false);
    for i in 0..func.order.len() {
        if let Some(taken) = func.ends(func.order[i]).taken {
            reached[taken.index()] = true;
        }
    }
    let mut kept = 0;
    for i in 0..func.order.len() {
        let block = func.order[i];
        // Unreachable: every jump to the block was redirected.
        if kept > 0 && !reached[block.index()] && !func.ends(func.order[kept - 1]).falls {
            continue;
        }
        if kept > 0
            && let Some(target) = only_jump(func, block)
            && !reached[block.index()]
            && let Some(at) = func.range(func.order[kept - 1]).last()
            && let Op::Branch { width, cond, a, b, target: over } = func.ops[at]
            && let Some(cond) = cond.negate()
        {
            if func.order.get(i + 1) == Some(&over) {
                func.ops[at] = Op::Branch { width, cond, a, b, target };
                done += 1;
                continue;
            }
            // `block` is reached only by falling out of the branch: no other jump leads to it.
            let (from, round, out) = (places[block.index()], places[target.index()], places[over.index()]);
            if round < from
                && (out > from || out < round)
                && let Some(Op::Jump { target: jump }) = func.range(block).last().map(|last| &mut func.ops[last])
            {
                *jump = over;
                func.ops[at] = Op::Branch { width, cond, a, b, target };
                done += 1;
            }
        }
        func.order[kept] = block;
        kept += 1;
    }
    func.order.truncate(kept);
    done += turn(func, reached, places) + follow(func, places) + stay(func, places);
    let asked = ask(func, places);
    if asked > 0 {
        drop_unreached(func, reached, places);
    }
    done + asked
}

/// Fills `places` with the position of each block in the order.
fn number(func: &Func, places: &mut Vec<u32>) {
    places.clear();
    places.resize(func.blocks.len(), 0);
    for (block, place) in func.order.iter().zip(0..) {
        places[block.index()] = place;
    }
}

/// Removes the blocks that no path from the entry reaches: exits of loops of which each jump has a copy of its own.
fn drop_unreached(func: &mut Func, reached: &mut Vec<bool>, places: &mut Vec<u32>) {
    number(func, places);
    reached.clear();
    reached.resize(func.blocks.len(), false);
    let mut open = Vec::from_iter(func.order.first().copied());
    while let Some(block) = open.pop() {
        if core::mem::replace(&mut reached[block.index()], true) {
            continue;
        }
        let ends = func.ends(block);
        open.extend(ends.taken);
        open.extend(ends.falls.then(|| func.order[places[block.index()] as usize + 1]));
    }
    func.order.retain(|block| reached[block.index()]);
}

/// Returns the blocks from position `from` on that fall into each other, up to the first that does not fall on.
fn run_from(func: &Func, from: usize) -> impl Iterator<Item = &BlockId> {
    let mut falls = true;
    func.order[from..].iter().take_while(move |block| core::mem::replace(&mut falls, func.ends(**block).falls))
}

/// Moves the target of a branch directly behind the branch, if the target leads back to the head of a loop that
/// contains the branch, and the blocks that control falls into leave the loop. Each round then has one taken jump less.
/// The blocks that leave the loop follow behind.
fn stay(func: &mut Func, places: &mut Vec<u32>) -> u32 {
    let mut jumps: Vec<u32> = Vec::new();
    let (mut done, mut left) = (0, MAX_MOVED + 16 * func.order.len());
    for at in 1..func.order.len().saturating_sub(2) {
        let Some(last) = func.range(func.order[at]).last() else { continue };
        let Op::Branch { width, cond, a, b, target } = func.ops[last] else { continue };
        let Some(cond) = cond.negate() else { continue };
        if jumps.is_empty() {
            number(func, places);
            jumps.resize(func.blocks.len(), 0);
            let taken = func.order.iter().filter_map(|block| func.ends(*block).taken);
            taken.for_each(|block| jumps[block.index()] += 1);
        }
        let to = places[target.index()] as usize;
        // Only a target that lies behind the branch, and that is reached by no other block.
        if to <= at + 1 || jumps[target.index()] != 1 || func.ends(func.order[to - 1]).falls {
            continue;
        }
        // The first of the blocks that fall into each other up to the branch.
        let mut first = at;
        while first > 0 && at - first < MAX_INSIDE && func.ends(func.order[first - 1]).falls {
            first -= 1;
        }
        let taken = |block: &BlockId| func.ends(*block).taken.map(|taken| places[taken.index()] as usize);
        // The position of the loop's head, and of the block that jumps back to it.
        let back = run_from(func, to).take(MAX_INSIDE).zip(to..).find_map(|(block, place)| {
            let head = taken(block).filter(|head| (first..=at).contains(head))?;
            Some((head, place))
        });
        let Some((head, round)) = back else { continue };
        // A head that consists only of a branch is repeated at the end of the loop by `ask`.
        if head == at && func.block_ops(func.order[at]).len() == 1 {
            continue;
        }
        let inside = |place: usize| (head..=at).contains(&place) || (to..=round).contains(&place);
        let leaves = run_from(func, at + 1).take(MAX_INSIDE).all(|block| !taken(block).is_some_and(inside));
        let end = to + run_from(func, to).count();
        let Some(rest) = left.checked_sub(end - at).filter(|_| leaves) else { continue };
        left = rest;
        let falls = func.order[at + 1];
        func.ops[last] = Op::Branch { width, cond, a, b, target: falls };
        jumps[target.index()] -= 1;
        jumps[falls.index()] += 1;
        func.order[at + 1..end].rotate_right(end - to);
        for (place, block) in func.order.iter().enumerate().take(end).skip(at) {
            places[block.index()] = crate::num::small(place);
        }
        done += 1;
    }
    done
}

/// A sequence of blocks that fall into each other.
#[derive(Clone, Copy)]
struct Chain {
    /// Its first and last position in the order.
    from: u32,
    to: u32,
    /// The chain that is placed behind it, or [`NONE`].
    next: u32,
    /// In a sequence of chains placed behind each other: the last chain for the first one, and the first chain for the
    /// last one.
    other: u32,
    /// Whether it is placed behind another chain.
    placed: bool,
}

/// Places chains that control does not fall into behind a chain that ends with a jump to them, and removes that jump.
/// If several chains jump there, the last in the order is chosen: earlier ones tend to enter a loop, later ones to
/// repeat it.
fn follow(func: &mut Func, places: &mut Vec<u32>) -> u32 {
    // The entry stays first, so with two blocks nothing can move.
    if func.order.len() < 3 {
        return 0;
    }
    // By block: the chain that begins with it.
    places.clear();
    places.resize(func.blocks.len(), NONE);
    let mut chains: Vec<Chain> = Vec::new();
    let mut begins = true;
    for (place, block) in func.order.iter().enumerate() {
        let (place, chain) = (crate::num::small(place), crate::num::small(chains.len()));
        if begins {
            places[block.index()] = chain;
            chains.push(Chain { from: place, to: place, next: NONE, other: chain, placed: false });
        }
        if let Some(chain) = chains.last_mut() {
            chain.to = place;
        }
        begins = !func.ends(*block).falls;
    }
    let mut done = 0;
    for at in (0..chains.len()).rev() {
        let last = func.order[chains[at].to as usize];
        let [before @ .., Op::Jump { target }] = func.block_ops(last) else { continue };
        let to = places[target.index()];
        // The entry chain stays first. A sequence of chains is not placed behind its own end.
        if matches!(to, NONE | 0) || chains[to as usize].placed || chains[at].other == to {
            continue;
        }
        let (first, end) = (chains[at].other, chains[to as usize].other);
        (chains[at].next, chains[to as usize].placed) = (to, true);
        (chains[first as usize].other, chains[end as usize].other) = (end, first);
        // A block must not be empty. A jump to the next block is emitted as no instruction.
        if !before.is_empty() {
            func.blocks[last.index()].ops.end -= 1;
        }
        done += 1;
    }
    if done == 0 {
        return 0;
    }
    let order = core::mem::take(&mut func.order);
    for first in chains.iter().filter(|chain| !chain.placed) {
        let mut chain = Some(first);
        while let Some(&Chain { from, to, next, .. }) = chain {
            func.order.extend_from_slice(&order[from as usize..=to as usize]);
            chain = chains.get(next as usize);
        }
    }
    done
}

/// Replaces a jump back to a block that is only a branch by that branch, and a jump to where that branch falls. Each
/// round then has one jump less, and the way out has no more than before.
fn ask(func: &mut Func, places: &mut Vec<u32>) -> u32 {
    number(func, places);
    // The changes are collected first: position of the jump's block, the branch, the branch's op index, and the block
    // that it falls into.
    let mut found: Vec<(usize, Op, usize, BlockId)> = Vec::new();
    for (place, block) in func.order.iter().enumerate() {
        let Some(Op::Jump { target: head }) = func.block_ops(*block).last() else { continue };
        let at = places[head.index()] as usize;
        let (true, Some(falls)) = ((1..place).contains(&at), func.order.get(at + 1)) else { continue };
        if falls == block {
            continue;
        }
        if let [branch @ Op::Branch { .. }] = func.block_ops(*head) {
            found.push((place, *branch, func.range(*head).start, *falls));
        }
    }
    if found.is_empty() {
        return 0;
    }
    let order = core::mem::take(&mut func.order);
    let mut asking = found.iter().peekable();
    for (place, block) in order.iter().enumerate() {
        func.order.push(*block);
        let Some((_, branch, at, falls)) = asking.next_if(|(asking, ..)| *asking == place) else { continue };
        let (Op::Branch { width, cond, a, b, target }, Some(last)) = (*branch, func.range(*block).last()) else {
            continue;
        };
        // If the branch's target is the next block, the condition is negated so that control falls into it.
        let next = order.get(place + 1);
        let (cond, target, falls) = match cond.negate() {
            Some(not) if next == Some(&target) => (if planted!(AskedInverted) { cond } else { not }, *falls, target),
            Some(_) | None => (cond, target, *falls),
        };
        func.ops[last] = Op::Branch { width, cond, a, b, target };
        func.spans[last] = func.spans[*at];
        if next != Some(&falls) {
            let out = func.new_block([(Op::Jump { target: falls }, func.spans[*at])]);
            func.order.push(out);
        }
    }
    crate::num::small(found.len())
}

/// Moves a block that a loop's round ends with, behind a branch that leaves the loop, in front of the loop's head. The
/// branch then leads to that block, so the round has no jump. If control fell into the head, it jumps over the block
/// instead, once for all rounds. Loops with few rounds would lose by that, so then only blocks of copies are moved:
/// loops that carry copied values tend to have many rounds.
fn turn(func: &mut Func, reached: &mut [bool], places: &mut [u32]) -> u32 {
    reached.fill(false);
    for (place, block) in func.order.iter().enumerate() {
        places[block.index()] = crate::num::small(place);
    }
    for i in 0..func.order.len() {
        if let Some(taken) = func.ends(func.order[i]).taken {
            reached[taken.index()] = true;
        }
    }
    // By position of a head: the position of the block that moves in front of it.
    let mut front: Vec<(u32, u32)> = Vec::new();
    for (at, pair) in func.order.windows(2).enumerate() {
        let &[from, round] = pair else { continue };
        let (Some(Op::Branch { cond, target: out, .. }), [.., Op::Jump { target }]) =
            (func.block_ops(from).last(), func.block_ops(round))
        else {
            continue;
        };
        // The exit must follow the block, or the way out would need a jump.
        if func.order.get(at + 2) != Some(out) {
            continue;
        }
        let head = places[target.index()];
        let short = (2..=MAX_ROUND).contains(&func.block_ops(round).len());
        let falls = |head: u32| func.order.get((head as usize).wrapping_sub(1)).is_some_and(|b| func.ends(*b).falls);
        let copies = |ops: &[Op]| ops.iter().all(|op| matches!(op, Op::Mov { .. } | Op::Jump { .. }));
        let worth = !falls(head) || copies(func.block_ops(round));
        if short
            && worth
            && !reached[round.index()]
            && (1..=crate::num::small(at)).contains(&head)
            && cond.negate().is_some()
        {
            front.push((head, crate::num::small(at) + 1));
        }
    }
    if front.is_empty() {
        return 0;
    }
    // If several blocks jump to one head, only the first moves.
    front.sort_unstable();
    front.dedup_by_key(|(head, _)| *head);
    let mut moved: Vec<u32> = front.iter().map(|(_, round)| *round).collect();
    moved.sort_unstable();
    let order = core::mem::take(&mut func.order);
    let (mut front, mut moved) = (front.iter().copied().peekable(), moved.iter().copied().peekable());
    let mut done = 0;
    for (place, block) in order.iter().copied().enumerate() {
        let place = crate::num::small(place);
        if let Some((_, round)) = front.next_if(|(head, _)| *head == place) {
            let before = func.order.last().copied();
            if before.is_some_and(|before| func.ends(before).falls) {
                let over = func.new_block([(Op::Jump { target: block }, Span::default())]);
                func.order.push(over);
            }
            let round = order[round as usize];
            func.blocks[round.index()].ops.end -= 1;
            func.order.push(round);
            done += 1;
        }
        if moved.next_if_eq(&place).is_some() {
            // The branch before the moved block leads to it, and control falls into the exit.
            let from = order[place as usize - 1];
            if let Some(last) = func.range(from).last()
                && let Op::Branch { width, cond, a, b, .. } = func.ops[last]
                && let Some(cond) = cond.negate()
            {
                func.ops[last] = Op::Branch { width, cond, a, b, target: block };
            }
        } else {
            func.order.push(block);
        }
    }
    done
}

/// Removes empty blocks: jumps to one lead to the next block that is not empty.
fn close(func: &mut Func, next: &mut [u32]) -> u32 {
    let empty = |func: &Func, block: BlockId| func.block_ops(block).is_empty();
    let Some((entry, rest)) = func.order.split_first() else { return 0 };
    if !rest.iter().any(|block| empty(func, *block)) {
        return 0;
    }
    let mut full = *entry;
    for block in rest.iter().rev() {
        if !empty(func, *block) {
            full = *block;
        }
        next[block.index()] = full.0;
    }
    next[entry.index()] = entry.0;
    for i in 0..func.order.len() {
        if let Some(last) = func.range(func.order[i]).last()
            && let Op::Jump { target } | Op::Branch { target, .. } = &mut func.ops[last]
        {
            *target = BlockId(next[target.index()]);
        }
    }
    let before = func.order.len();
    let Func { order, blocks, .. } = func;
    let entry = order.first().copied();
    order.retain(|block| Some(*block) == entry || !blocks[block.index()].ops.is_empty());
    crate::num::small(before - order.len())
}

/// Redirects jumps to blocks that only jump to the targets of those.
fn thread(func: &mut Func) -> u32 {
    let mut done = 0;
    for i in 0..func.order.len() {
        let block = func.order[i];
        let Some(mut taken) = func.ends(block).taken else { continue };
        let mut hops = 0;
        while let Some(next) = only_jump(func, taken).filter(|next| *next != taken && hops < MAX_HOPS) {
            taken = next;
            hops += 1;
        }
        if hops > 0
            && let Some(at) = func.range(block).last()
            && let Op::Jump { target } | Op::Branch { target, .. } = &mut func.ops[at]
        {
            *target = taken;
            done += 1;
        }
    }
    done
}

/// Returns the target of a block that does nothing but jump.
fn only_jump(func: &Func, block: BlockId) -> Option<BlockId> {
    if let [Op::Jump { target }] = func.block_ops(block) { Some(*target) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf_lir::Lir;

    #[test]
    fn unreached_blocks_go() {
        // b2 and b3 lead to each other only.
        let text = "func 0 (v0, v1, -, -, -) {\nb0:\n    branch.64 v0 eq 0, b4\nb1:\n    jump b4\nb2:\n    v1 = add.64 v1, 1\n\
                    b3:\n    branch.64 v1 lt 9, b2\nb4:\n    exit v1\n}\n";
        let mut lir: Lir = text.parse().expect("a program");
        let func = &mut lir.funcs[0];
        drop_unreached(func, &mut Vec::new(), &mut Vec::new());
        assert_eq!(func.verify(usize::MAX), Ok(()));
        let kept: Vec<_> = func.order.iter().map(|block| block.0).collect();
        assert_eq!(kept, [0, 1, 4], "{func}");
    }
}
