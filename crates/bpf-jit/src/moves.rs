//! Parallel moves.
//!
//! Before a call, several values must go to their argument registers at once, and a register may be the source of one
//! move and the destination of another. A move is safe once no remaining move reads its destination. If none is safe,
//! all remaining moves form cycles, and a cycle is broken by copying one value to the scratch register.

use crate::alloc::Loc;
use crate::machine::HostReg;

/// The source of a move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveSrc {
    /// The value at a location.
    Loc(Loc),
    /// A constant.
    Imm(i64),
}

/// One move of a parallel assignment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// The destination.
    pub dst: HostReg,
    /// The source.
    pub src: MoveSrc,
}

/// Calls `emit` with a sequence of moves that has the effect of the parallel assignment `moves`. Destinations must be
/// distinct, and `scratch` neither a destination nor a source. Moves of a register to itself are dropped. `moves` is
/// empty afterwards.
pub fn parallel_moves(moves: &mut Vec<Move>, scratch: HostReg, mut emit: impl FnMut(Move)) {
    let reads = |m: &Move, reg: HostReg| m.src == MoveSrc::Loc(Loc::Reg(reg));
    moves.retain(|m| !reads(m, m.dst));
    while !moves.is_empty() {
        let safe = (0..moves.len()).find(|&i| !moves.iter().any(|other| reads(other, moves[i].dst)));
        match safe {
            Some(i) => emit(moves.swap_remove(i)),
            None => {
                // Every destination is still read, so all remaining moves form cycles of registers. Frees one
                // destination.
                let aside = moves[0].dst;
                emit(Move { dst: scratch, src: MoveSrc::Loc(Loc::Reg(aside)) });
                for m in moves.iter_mut().filter(|m| reads(m, aside)) {
                    m.src = MoveSrc::Loc(Loc::Reg(scratch));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks all maps from four destinations to four registers, a slot and a constant: 6^4 sets of moves.
    #[test]
    fn every_small_set_of_moves() {
        let sources = |i: u32| match i {
            0..4 => MoveSrc::Loc(Loc::Reg(HostReg(i as u8))),
            4 => MoveSrc::Loc(Loc::Slot(0)),
            _ => MoveSrc::Imm(77),
        };
        for n in 0..6u32.pow(4) {
            let mut moves: Vec<Move> =
                (0..4).map(|d| Move { dst: HostReg(d as u8), src: sources(n / 6u32.pow(d) % 6) }).collect();
            let read = |regs: &[i64; 5], src: MoveSrc| match src {
                MoveSrc::Loc(Loc::Reg(r)) => regs[r.0 as usize],
                MoveSrc::Loc(Loc::Slot(_)) => 55,
                MoveSrc::Imm(v) => v,
            };
            let start = [10, 11, 12, 13, 99];
            let want: Vec<i64> = moves.iter().map(|m| read(&start, m.src)).collect();
            let mut regs = start;
            parallel_moves(&mut moves, HostReg(4), |m| regs[m.dst.0 as usize] = read(&regs, m.src));
            assert_eq!(&regs[..4], &want[..], "set {n}");
        }
    }
}
