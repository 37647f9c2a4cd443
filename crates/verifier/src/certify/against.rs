//! Digests of the program and environment that a proof was made for, one for each part, to say which part differs.
//!
//! Digests do not decide acceptance: the core checks the program at hand in the environment at hand, whatever digests
//! say. They only give a better error: "proven for another map" instead of "not proven". FNV-1a (Fowler, Noll and Vo),
//! which is not cryptographic, is therefore enough.

use std::hash::{Hash, Hasher};

use bpf_isa::{Callee, Imm64, Insn, Program};
use bpf_verifier_core::{ContextLayout, Effect, Env, HelperProto, KnownMap};

/// A part of a proof's inputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The instructions, as they are after linking and CO-RE relocation.
    Program,
    /// The layout of the context.
    Context,
    /// The prototypes of the functions that the program calls.
    Functions,
    /// The definitions of the maps that the program refers to.
    Maps,
    /// The contents of those of these maps that are frozen.
    Constants,
    /// Settings of the engine and the loader: bytes of a frame, whether the program returns something, whether it
    /// yields, and whether it is sleepable if its proof depends on that.
    Settings,
}

impl Part {
    /// Every part, in the order of the digests.
    pub const ALL: [Part; 6] =
        [Part::Program, Part::Context, Part::Functions, Part::Maps, Part::Constants, Part::Settings];
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Part::Program => "the instructions",
            Part::Context => "the layout of the context",
            Part::Functions => "the prototypes of the functions it calls",
            Part::Maps => "the definitions of its maps",
            Part::Constants => "the contents of its constant maps",
            Part::Settings => "the settings of the engine",
        })
    }
}

/// A digest of each part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Against(pub(super) [u32; Part::ALL.len()]);

impl Against {
    /// The digests of a program and its environment.
    pub fn of(program: &Program, env: &Env<'_>) -> Against {
        Against(Part::ALL.map(|part| {
            let mut hasher = Fnv::default();
            match part {
                Part::Program => hasher.write(&program.to_bytes()),
                Part::Context => context(env.context, &mut hasher),
                Part::Functions => functions(program, env, &mut hasher),
                Part::Maps => each_map(program, env, |index, map| known_map(index, map, &mut hasher)),
                Part::Constants => each_map(program, env, |_, map| map.frozen.hash(&mut hasher)),
                Part::Settings => {
                    let sleeping = match (env.sleepable, env.yields) {
                        (false, _) => 0u8,
                        (true, true) => 1,
                        (true, false) => 2 * u8::from(depends_on_sleep(program, env)),
                    };
                    (env.frame_bytes, env.void, sleeping).hash(&mut hasher);
                }
            }
            hasher.folded()
        }))
    }

    /// The first part that differs.
    pub fn difference(&self, other: &Against) -> Option<Part> {
        Part::ALL.into_iter().zip(self.0.iter().zip(&other.0)).find(|(_, (a, b))| a != b).map(|(part, _)| part)
    }
}

fn context(layout: &ContextLayout, hasher: &mut Fnv) {
    let ContextLayout { name, raw, fields, regions, legacy_loads, returns } = layout;
    (name, raw, returns, legacy_loads.is_some()).hash(hasher);
    for field in fields {
        (field.offset, field.size, field.access, field.kind, field.host_offset, field.host_size).hash(hasher);
    }
    for region in regions {
        let lengths = (region.min_len, region.max_len, region.align);
        (region.writable, lengths, region.ends_at_start_of).hash(hasher);
    }
}

/// The prototypes of the functions that instructions call, in their order.
fn called<'a>(program: &'a Program, env: &'a Env<'_>) -> impl Iterator<Item = &'a HelperProto> {
    program.insns().iter().filter_map(|insn| match *insn {
        Insn::Call(Callee::Helper(id)) => env.helpers.get(id),
        Insn::Call(Callee::Host(index)) => usize::try_from(index).ok().and_then(|i| env.host_functions.get(i)),
        _other => None,
    })
}

/// Whether a proof of the program is another one if the program is sleepable: sections are counted then, and tail calls
/// are refused.
fn depends_on_sleep(program: &Program, env: &Env<'_>) -> bool {
    called(program, env).any(|proto| match proto.effect {
        Effect::Enter(_) | Effect::Leave(_) | Effect::TailCall | Effect::Sleeps => true,
        Effect::None | Effect::UnderLock | Effect::MovesPacket | Effect::Lock(_) | Effect::Unlock(_) => false,
    })
}

fn functions(program: &Program, env: &Env<'_>, hasher: &mut Fnv) {
    for HelperProto { id: _, name, args, ret, effect, disjoint } in called(program, env) {
        (name, args, ret, effect, disjoint).hash(hasher);
    }
}

/// The maps that instructions refer to, in their order.
fn each_map(program: &Program, env: &Env<'_>, mut each: impl FnMut(i32, &KnownMap)) {
    for insn in program.insns() {
        let Insn::LoadImm64 { imm, .. } = insn else { continue };
        let index = match *imm {
            Imm64::Map(index) | Imm64::MapIdx(index) => index,
            Imm64::MapValue { map, .. } | Imm64::MapIdxValue { map, .. } => map,
            Imm64::Const(_) | Imm64::Var(_) | Imm64::Func(_) => continue,
        };
        if let Some(map) = usize::try_from(index).ok().and_then(|i| env.maps.get(i)) {
            each(index, map);
        }
    }
}

fn known_map(index: i32, map: &KnownMap, hasher: &mut Fnv) {
    (index, map.kind, map.key_size, map.value_size, map.max_entries, map.access).hash(hasher);
    (map.spin_lock, map.resilient_lock, map.timer, map.work, &map.fields, map.targets.len()).hash(hasher);
    if let Some(inner) = &map.inner {
        known_map(index, inner, hasher);
    }
}

/// FNV-1a of 64 bits, the same on every machine.
#[derive(Debug)]
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    /// The exclusive or of both halves.
    fn folded(&self) -> u32 {
        let [a, b, c, d, ..] = (self.0 ^ self.0 >> 32).to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    // Little endian and of one width on every machine.
    fn write_u16(&mut self, n: u16) {
        self.write(&n.to_le_bytes());
    }
    fn write_u32(&mut self, n: u32) {
        self.write(&n.to_le_bytes());
    }
    fn write_u64(&mut self, n: u64) {
        self.write(&n.to_le_bytes());
    }
    fn write_usize(&mut self, n: usize) {
        self.write(&(n as u64).to_le_bytes());
    }
    fn write_isize(&mut self, n: isize) {
        self.write(&(n as i64).to_le_bytes());
    }
}
