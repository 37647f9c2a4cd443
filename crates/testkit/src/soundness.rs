//! Programs that try every rule of the verifier at its border, and the oracle that runs what is accepted.
//!
//! Problem: an unsound rule shows only in a program that combines just the right things (a callback that shares slots
//! with its caller, a join in it, a legacy load behind the join), and random instructions never do. Approach: programs
//! are made of *statements*, each a small idiom of one rule (a looked-up value behind its null check, a packet pointer
//! behind its comparison, a slot written on two ways), nested into each other: a statement that has established
//! something runs a *gap* of others before it relies on it. All is valid by construction, so most programs are
//! accepted; half of them contain one *lure*, a statement that is wrong in one place (a bound off by one, a check left
//! out, a pointer kept too long). A sound verifier refuses a lure that matters; an unsound one accepts it, and the
//! oracle sees it run.
//!
//! Invariants: the same choices give the same program; every program is structurally valid, ends soon (within about
//! [`STEPS`] instructions), and has a defined result if it is safe, whatever the addresses of its memory.
//! [`Generated::ordered`] is false where the result may still differ from engine to engine.

mod calls;
mod emit;
mod fills;
mod flow;
mod locals;
mod needs;
#[cfg(feature = "oracle")]
mod neighbours;
mod objects;
#[cfg(feature = "oracle")]
mod oracle;
#[cfg(feature = "planted")]
pub mod planted;
mod relations;
mod rounds;
#[cfg(feature = "oracle")]
mod sabotaged;
#[cfg(feature = "oracle")]
pub mod selected;
#[cfg(feature = "oracle")]
pub mod speculated;
mod statements;
#[cfg(feature = "oracle")]
mod world;

#[cfg(feature = "oracle")]
pub use neighbours::neighbours;
#[cfg(feature = "oracle")]
pub use oracle::{ENDLESS, Oracle, Outcome, Tally};
#[cfg(feature = "oracle")]
pub(crate) use sabotaged::check_emitted;
#[cfg(feature = "oracle")]
pub use sabotaged::{Contained, Sabotage};

use crate::generate::Choices;
use bpf_isa::{Callee, Imm64, Insn, Program, Reg};
use emit::Function;

/// Kind of hook that a program is attached to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Context {
    /// A buffer and its length.
    Raw,
    /// `struct xdp_md`.
    Xdp,
    /// `struct __sk_buff`.
    Skb,
}

/// An argument of a global function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arg {
    /// Memory of this many bytes, or null.
    Mem(u32),
    /// A number.
    Number,
    /// The context.
    Context,
}

/// A map of the world that programs live in, by its index in [`Imm64::Map`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum MapId {
    /// Array, 4 elements of 48 bytes.
    Array,
    /// Hash, keys of 8 bytes, values of 24.
    Hash,
    /// Array of two maps: arrays of 3 elements of 16 bytes; the second slot is empty.
    Outer,
    /// An array's one value of 64 bytes, at a fixed address: numbers that the verifier does not know.
    Global,
    /// Array, 2 elements of 24 bytes, a spin lock at 8.
    Locked,
    /// Queue, 3 elements of 16 bytes.
    Queue,
    /// Ring buffer.
    Ring,
    /// Per-CPU array, 2 elements of 16 bytes.
    PerCpu,
    /// A frozen array's one value of 32 bytes: constants.
    Constants,
    /// Hash of one map like those of `Outer`.
    OuterHash,
    /// An array's one value that holds objects, with a spin lock.
    Holding,
    /// A resilient lock is held.
    HoldingResilient,
}

impl MapId {
    /// All of them, in the order of their indices.
    pub const ALL: [MapId; 12] = [
        MapId::Array,
        MapId::Hash,
        MapId::Outer,
        MapId::Global,
        MapId::Locked,
        MapId::Queue,
        MapId::Ring,
        MapId::PerCpu,
        MapId::Constants,
        MapId::OuterHash,
        MapId::Holding,
        MapId::HoldingResilient,
    ];
}

/// A bit for each map.
#[cfg(feature = "oracle")]
const ALL_MAPS: u16 = u16::MAX >> (16 - MapId::ALL.len());
/// Bytes of a value of [`MapId::Array`].
pub(crate) const ARRAY_VALUE: u32 = 48;
/// Bytes of a value of [`MapId::Hash`].
pub(crate) const HASH_VALUE: u32 = 24;
/// Bytes of a value of the maps in [`MapId::Outer`].
pub(crate) const INNER_VALUE: u32 = 16;
/// Bytes of [`MapId::Global`].
pub(crate) const GLOBAL_VALUE: u32 = 64;
/// Bytes of [`MapId::Constants`], and what they are: each is its offset.
pub(crate) const CONSTANTS: u32 = 32;
/// Instructions that a run takes at most, about.
pub const STEPS: u32 = 100_000;

/// A program and what it needs.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The program.
    pub program: Program,
    /// Kind of context that the program runs on.
    pub context: Context,
    /// Signatures by subprogram; `None` for functions that are not global.
    pub globals: Vec<Option<Vec<Arg>>>,
    /// Whether its maps are used: a bit each.
    pub maps: u16,
    /// Lengths of packets that it tells apart: runs try these and their neighbours.
    pub lens: Vec<u32>,
    /// Whether the result is the same on every engine.
    pub ordered: bool,
    /// Whether something in it was made wrong on purpose.
    pub lured: bool,
}

/// Role of a generated function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// The program's entry.
    Main,
    /// Called with the address of its caller's slots, and two numbers.
    Static,
    /// A callback of bpf_loop: index, address of slots.
    Loop,
    /// A callback of for_each over this map: map, key, value, address of slots.
    ForEach(MapId),
    /// Verified on its own: memory of so many bytes or null, a number, and perhaps the context.
    Global { bytes: u32, context: bool },
    /// Orders a tree of objects.
    Less,
}

/// A program made of these choices.
///
/// # Panics
/// If the program is not valid: a bug of the generator.
pub fn generate(choices: &mut Choices<'_>) -> Generated {
    let context = choices.pick(&[Context::Raw, Context::Skb, Context::Xdp, Context::Skb]);
    // Relations of several variables are seldom exercised by mixed idioms, so some programs have nothing else.
    let related = choices.below(6) == 5;
    let mut lures = if related { 4 } else { u32::from(choices.one_in(2)) };
    let lured = lures > 0;
    let all = lures;
    // Callees first, so that the call graph has no cycle.
    let count = choices.below(if related { 2 } else { 5 });
    let mut callees: Vec<Function> = Vec::new();
    for _ in 0..count {
        let role = match choices.below(8) {
            0 => Role::Static,
            1..=3 => Role::Loop,
            4 | 5 => Role::ForEach(choices.pick(&[MapId::Array, MapId::Hash, MapId::Array, MapId::PerCpu])),
            _ => Role::Global {
                bytes: choices.pick(&[8, 16, 24, 48]),
                context: choices.one_in(2) || context == Context::Xdp,
            },
        };
        let kind = if related { Kind::Related } else { Kind::Mixed };
        let function = Function::generate(choices, context, role, &callees, (kind, &mut lures));
        callees.push(function);
    }
    let kind = if related { Kind::Related } else { Kind::Mixed };
    let main = Function::generate(choices, context, Role::Main, &callees, (kind, &mut lures));
    link(context, main, callees, lured && lures < all)
}

/// Kinds of statements that functions are made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// All statements except statements about objects.
    Mixed,
    /// Loops whose variables are related.
    Related,
    /// Half of the statements are about objects that programs own.
    Owning,
}

/// A program made of these choices, half of whose statements are about objects that it owns, exceptions, and calls by a
/// register.
///
/// # Panics
/// If the program is not valid: a bug of the generator.
pub fn generate_owning(choices: &mut Choices<'_>) -> Generated {
    let context = choices.pick(&[Context::Raw, Context::Raw, Context::Skb, Context::Xdp]);
    let mut lures = u32::from(choices.one_in(2));
    let lured = lures > 0;
    let mut callees = vec![Function::less()];
    for _ in 0..choices.below(4) {
        let role = match choices.below(6) {
            0..=2 => Role::Static,
            3 => Role::Loop,
            4 => Role::ForEach(MapId::Array),
            _ => Role::Global { bytes: 16, context: true },
        };
        let function = Function::generate(choices, context, role, &callees, (Kind::Owning, &mut lures));
        callees.push(function);
    }
    let main = Function::generate(choices, context, Role::Main, &callees, (Kind::Owning, &mut lures));
    link(context, main, callees, lured && lures == 0)
}

/// Lays out the functions that are called, main first, and resolves the calls.
fn link(context: Context, main: Function, callees: Vec<Function>, lured: bool) -> Generated {
    let mut called = vec![false; callees.len()];
    let mut work: Vec<usize> = main.calls.iter().map(|c| c.1).collect();
    while let Some(callee) = work.pop() {
        if !std::mem::replace(&mut called[callee], true) {
            work.extend(callees[callee].calls.iter().map(|c| c.1));
        }
    }
    let mut starts = vec![0; callees.len()];
    let mut at = main.code.len();
    for (i, callee) in callees.iter().enumerate().filter(|(i, _)| called[*i]) {
        starts[i] = at;
        at += callee.code.len();
    }
    let (mut insns, mut globals, mut maps, mut ordered) = (Vec::with_capacity(at), Vec::new(), 0, true);
    let mut lens = Vec::new();
    let kept = callees.into_iter().zip(called).filter_map(|(callee, called)| called.then_some(callee));
    for mut function in std::iter::once(main).chain(kept) {
        for (at, callee) in function.calls {
            let off = (starts[callee] as i64 - (insns.len() + at) as i64 - 1) as i32;
            function.code[at] = match function.code[at] {
                Insn::LoadImm64 { dst, .. } => Insn::LoadImm64 { dst, imm: Imm64::Func(off) },
                _ => Insn::Call(Callee::Subprog(off)),
            };
        }
        maps |= function.maps;
        ordered &= function.ordered;
        lens.append(&mut function.lens);
        globals.push(match function.role {
            Role::Global { bytes, context } => {
                let mut args = vec![Arg::Mem(bytes), Arg::Number];
                args.extend(context.then_some(Arg::Context));
                Some(args)
            }
            Role::Main | Role::Static | Role::Loop | Role::ForEach(_) | Role::Less => None,
        });
        insns.append(&mut function.code);
    }
    let program = Program::new(insns).expect("the generator makes valid programs");
    Generated { program, context, globals, maps, lens, ordered, lured }
}

/// A smaller program for which `fails` still holds. Functions stay: the signatures go by their order.
pub fn minimise(generated: &Generated, fails: &mut dyn FnMut(&Generated) -> bool) -> Generated {
    let functions = generated.program.subprogs().len();
    let with = |program: &Program| Generated { program: program.clone(), ..generated.clone() };
    let program = crate::generate::minimise(&generated.program, &mut |candidate| {
        let same = generated.globals.iter().all(Option::is_none) || candidate.subprogs().len() == functions;
        same && fails(&with(candidate))
    });
    with(&program)
}

/// The register that holds the context where a function has it.
pub(crate) const CTX: Reg = Reg::R6;
/// The register that holds the address of the caller's slots, or of a global function's memory.
pub(crate) const AREA: Reg = Reg::R7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_bytes_give_valid_programs_and_none_a_small_one() {
        let mut seed = Choices::from_seed(1);
        for length in 0..400 {
            let bytes: Vec<u8> = (0..length).map(|_| seed.byte()).collect();
            generate(&mut Choices::from_bytes(&bytes));
        }
        let small = generate(&mut Choices::from_bytes(&[])).program;
        assert!(small.insns().len() < 60, "{small}");
    }

    /// Each of the things that the generator is for is in the programs.
    #[test]
    fn every_feature_occurs() {
        let mut text = String::new();
        let (mut nested, mut global, mut lured) = (0, 0, 0);
        for seed in 0..4000 {
            let generated = generate(&mut Choices::from_seed(seed));
            nested += usize::from(generated.program.subprogs().len() > 3);
            global += usize::from(generated.globals.iter().any(Option::is_some));
            lured += usize::from(generated.lured);
            text += &generated.program.to_string();
        }
        assert!(nested > 100 && global > 100 && lured > 800, "{nested} {global} {lured}");
        let features = [
            "skb[",
            "may_goto",
            "subprog",
            "call 44",
            "call 54",
            "call 65",
            "call 164",
            "call 181",
            "call 131",
            "call 93",
            "call 26",
            "call 1\n",
            "call 2\n",
            "call 87",
            "call 197\n",
            "call 198\n",
            "call 202\n",
            "call kfunc#1\n",
            "call kfunc#6\n",
            "call kfunc#11\n",
            "call 28",
            "atomic",
            "load_acquire",
            "(r10 - 552)",
            "s>>= 32",
        ];
        for feature in features {
            assert!(text.contains(feature), "no {feature}");
        }
    }
}
