//! Jumps that need not be.
//!
//! A compiler for BPF writes `if c goto +1; goto back` where its target is too far for a conditional jump, or where
//! that is how its blocks came to lie: two jumps a round where one does. Here a branch over a block that only jumps
//! becomes the opposite branch to where that jumps, and a jump to a block that only jumps goes where that goes. Where a
//! branch leaves a loop and the jump behind it leads round, the two change places: one jump a round; copies before that
//! jump move with it, to where the round begins. A jump back to a block that only asks whether to leave the loop asks
//! itself. Blocks that nobody falls into come where one jumps to them. Where a branch leads on in a loop, to what lies
//! elsewhere and leads round, and what it falls into leaves the loop, the two change places. Blocks that are empty are
//! no blocks.
//!
//! Invariants: ops other than jumps and branches are neither added nor moved; a jump with a check before it is no block
//! that only jumps, so every check is still passed.

use crate::faults::planted;
use crate::ssa::NONE;
use bpf_lir::{BlockId, Func, Op, Span};

/// How many jumps in a row are followed.
const MAX_HOPS: u32 = 4;
/// The most ops on a way round that is put in front of its loop, its jump among them.
const MAX_ROUND: usize = 8;
/// How many blocks lie between a branch and what leads round; and of those that lie behind either way, how many are
/// looked at.
const MAX_INSIDE: usize = 8;
/// How many blocks are moved past others, beside as many as there are 16 times.
const MAX_MOVED: usize = 4096;

/// Runs over `func`; says how many jumps went.
pub(crate) fn run(func: &mut Func, reached: &mut Vec<bool>, places: &mut Vec<u32>) -> u32 {
    places.clear();
    places.resize(func.blocks.len(), 0);
    let mut done = close(func, places) + thread(func) + stay(func, places);
    places.clear();
    places.resize(func.blocks.len(), 0);
    for (block, place) in func.order.iter().zip(0..) {
        places[block.index()] = place;
    }
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
        // Where every way here was led past it.
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
            // Where control falls into nothing but the jump, nobody else comes to it.
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
    done + turn(func, reached, places) + follow(func, places) + stay(func, places) + ask(func, places)
}

/// The blocks from this place on that fall into each other.
fn run_from(func: &Func, from: usize) -> impl Iterator<Item = &BlockId> {
    let mut falls = true;
    func.order[from..].iter().take_while(move |block| core::mem::replace(&mut falls, func.ends(**block).falls))
}

/// Brings what a branch leads to behind it, where that leads round a loop in which the branch is, and what it falls
/// into leaves it: of each round one jump less is taken. What is left comes behind that.
fn stay(func: &mut Func, places: &mut Vec<u32>) -> u32 {
    let number = |func: &Func, places: &mut Vec<u32>| {
        places.clear();
        places.resize(func.blocks.len(), 0);
        for (place, block) in func.order.iter().enumerate() {
            places[block.index()] = crate::num::small(place);
        }
    };
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
        // Behind it, and nobody else comes there.
        if to <= at + 1 || jumps[target.index()] != 1 || func.ends(func.order[to - 1]).falls {
            continue;
        }
        // Those that fall into each other up to the branch: where they begin.
        let mut first = at;
        while first > 0 && at - first < MAX_INSIDE && func.ends(func.order[first - 1]).falls {
            first -= 1;
        }
        let taken = |block: &BlockId| func.ends(*block).taken.map(|taken| places[taken.index()] as usize);
        // Where the loop begins, and the block that leads there.
        let back = run_from(func, to).take(MAX_INSIDE).zip(to..).find_map(|(block, place)| {
            let head = taken(block).filter(|head| (first..=at).contains(head))?;
            Some((head, place))
        });
        let Some((head, round)) = back else { continue };
        // A head that is only a branch is asked at the end of the loop (`ask`).
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

/// Blocks that fall into each other, one after the other, and where they end.
#[derive(Clone, Copy)]
struct Chain {
    /// Its places in the order.
    from: u32,
    to: u32,
    /// What comes behind it; [`NONE`] yet.
    next: u32,
    /// Of those that come behind each other, of the first the last one, and of the last the first.
    other: u32,
    /// Whether it comes behind another.
    placed: bool,
}

/// Puts blocks that nobody falls into behind one that jumps to them: that jump goes, and all others stay. Where several
/// jump there, the last of them has it: those before are the ways into a loop rather than round it.
fn follow(func: &mut Func, places: &mut Vec<u32>) -> u32 {
    // The entry stays, so of two blocks none moves.
    if func.order.len() < 3 {
        return 0;
    }
    // By block: the chain that it begins.
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
        // The entry stays the first, and what leads back to its own beginning stays a loop.
        if matches!(to, NONE | 0) || chains[to as usize].placed || chains[at].other == to {
            continue;
        }
        let (first, end) = (chains[at].other, chains[to as usize].other);
        (chains[at].next, chains[to as usize].placed) = (to, true);
        (chains[first as usize].other, chains[end as usize].other) = (end, first);
        // A block is not empty; a jump to what comes next is no instruction.
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

/// Lets a jump back to a block that is only a branch be that branch, and behind it a jump to where that falls: one jump
/// less a round, and no more on the way out.
fn ask(func: &mut Func, places: &mut Vec<u32>) -> u32 {
    places.clear();
    places.resize(func.blocks.len(), 0);
    for (place, block) in func.order.iter().enumerate() {
        places[block.index()] = crate::num::small(place);
    }
    // All before the first changes: by place, the branch, its own place among the ops, and where it falls.
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
        // What comes next is fallen into, whichever way it is.
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

/// Puts what is done on the way round a loop, behind a branch that leaves it, in front of the loop's head: the branch
/// goes there instead, and there is no jump in a round. Whoever fell into the head jumps over it, once for all rounds,
/// which is too much where there are few; those that wait for values to be copied are many.
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
    // By place: the block that goes in front of it, by its own place.
    let mut front: Vec<(u32, u32)> = Vec::new();
    for (at, pair) in func.order.windows(2).enumerate() {
        let &[from, round] = pair else { continue };
        let (Some(Op::Branch { cond, target: out, .. }), [.., Op::Jump { target }]) =
            (func.block_ops(from).last(), func.block_ops(round))
        else {
            continue;
        };
        // Else the way out would have to jump.
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
    // Of several ways round the first: the others jump.
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
            // The branch before it leads to it, and what it led to is what comes next.
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

/// Takes out blocks that are empty: who comes to one comes to the next.
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

/// Lets jumps to blocks that only jump go where those go.
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

/// Where a block goes that does nothing else.
fn only_jump(func: &Func, block: BlockId) -> Option<BlockId> {
    if let [Op::Jump { target }] = func.block_ops(block) { Some(*target) } else { None }
}
