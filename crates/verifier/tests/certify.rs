//! Certificates before the trusted core: which ones it accepts, where it agrees with the verifier, and which ones it
//! never accepts.
//!
//! A binary of its own: it is about the core and the search for certificates (`certify`), not about the walk.

#[path = "verify/common/mod.rs"]
mod common;
#[cfg(feature = "faults")]
#[path = "certify/faults.rs"]
mod faults;
#[path = "verify/loop_programs.rs"]
mod loop_programs;
#[allow(dead_code, reason = "another binary uses the rest")]
#[path = "verify/mutants.rs"]
mod mutants;
#[cfg(feature = "faults")]
#[path = "certify/promise.rs"]
mod promise;
#[path = "certify/sleeping.rs"]
mod sleeping;
#[path = "verify/watched.rs"]
mod watched;

use bpf_analysis::Facts;
use bpf_isa::Program;
use bpf_verifier::certify::{Certificate, certify, certify_within};
use bpf_verifier::{Env, Helpers, Proof, ProofError, ProofPart, ProofSection, Verifier};
use bpf_verifier_core::{
    Advice, Answer, Combination, Form, Guide, Invariant, Kept, Name, Point, Replay, Scalar, Value, Why, check,
};

const FUEL: u64 = 1 << 16;

/// A generator of numbers: xorshift64 (Marsaglia 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
    fn number(&mut self) -> i128 {
        match self.below(8) {
            0 => i128::MAX,
            1 => i128::MIN,
            2 => 1 << self.below(126),
            _ => self.below(9) as i128 - 4,
        }
    }
    fn form(&mut self, names: usize) -> Form {
        let terms = (0..self.below(4)).map(|_| (Name(self.below(names + 1) as u32), self.number())).collect::<Vec<_>>();
        Form::sum(terms, self.number()).unwrap_or_default()
    }
    /// Changes an invariant in one place.
    fn change(&mut self, claim: &mut Invariant) {
        let names = claim.names.len();
        match self.below(9) {
            0 => claim.names.iter_mut().for_each(|known| known.word = Scalar::UNKNOWN),
            1 if names > 0 => claim.names[self.below(names)].word = Scalar::constant(self.below(99) as u64),
            2 => claim.rows.push(self.form(names)),
            3 => {
                claim.rows.pop();
            }
            4 if !claim.frames.is_empty() => {
                let form = self.form(names);
                let frame = self.below(claim.frames.len());
                let reg = self.below(11);
                claim.frames[frame].regs[reg] = Value::Number(form);
            }
            5 if !claim.frames.is_empty() => {
                let frame = self.below(claim.frames.len());
                let (from, to) = (self.below(11), self.below(11));
                claim.frames[frame].regs[to] = claim.frames[frame].regs[from].clone();
            }
            6 => claim.lengths.iter_mut().for_each(|length| *length = Form::constant(4096)),
            7 => claim.held.clear(),
            _ => {
                claim.frames.pop();
            }
        }
    }
}

/// A guide that answers nonsense, most of which is near to something sensible.
struct Hostile {
    random: Random,
    kept: usize,
    seen: Vec<(bpf_isa::InsnIdx, Invariant)>,
}

impl Guide for Hostile {
    fn advise(&mut self, point: &Point<'_>) -> Advice {
        let names = point.state.known().names().len();
        if self.random.below(8) == 0 && self.seen.len() < 64 {
            self.seen.push((point.pc, point.state.to_invariant()));
        }
        match self.random.below(40) {
            0 => {
                let same = (0..names as u32).map(|n| Form::name(Name(n)));
                Advice::Cover { kept: self.random.below(self.kept + 1), renaming: same.collect() }
            }
            1 => {
                let renaming = (0..names).map(|_| self.random.form(names)).collect();
                Advice::Cover { kept: self.random.below(self.kept + 1), renaming }
            }
            2 => Advice::Split(self.random.form(names)),
            3 => match point.state.reg(bpf_isa::Reg::ALL[self.random.below(10)]) {
                Value::Number(form) => Advice::Name { form, signed: self.random.below(2) == 0 },
                Value::Pointer(_) | Value::Unset => Advice::Step,
            },
            _ => Advice::Step,
        }
    }

    fn prove(&mut self, point: &Point<'_>, _: &Form) -> Option<Combination> {
        let rows = point.state.known().rows().len();
        let rows = (0..self.random.below(4)).map(|_| (self.random.below(rows + 1) as u32, self.random.number()));
        let rows = rows.collect();
        Some(Combination::of(self.random.number(), rows))
    }
}

/// The facts that the core returns if it accepts the program with this certificate.
fn facts(program: &Program, env: &Env<'_>, certificate: &Certificate) -> Option<Facts> {
    let mut replay = Replay::new(&certificate.answers);
    check(program, env, &certificate.kept, &mut replay, FUEL).ok()
}

fn accepts(program: &Program, env: &Env<'_>, certificate: &Certificate) -> bool {
    facts(program, env, certificate).is_some()
}

/// Programs that the verifier refuses and some certificate proves. Each is run and watched, once for the same facts:
/// the verifier also refuses what is safe, for which there may be a proof.
#[derive(Default)]
struct Proven(Vec<(&'static str, Facts)>);

impl Proven {
    fn watch(&mut self, name: &'static str, program: &Program, env: &Env<'_>, facts: Facts) {
        if !self.0.iter().any(|(other, same)| *other == name && *same == facts) {
            if let Some(what) = watched::violation(program, env, &facts, 500) {
                panic!("{name}: proven, and {what}\n{program}");
            }
            self.0.push((name, facts));
        }
    }

    fn names(&self) -> std::collections::BTreeSet<&'static str> {
        self.0.iter().map(|(name, _)| *name).collect()
    }
}

/// Changes a certificate in a few places.
fn garble(random: &mut Random, certificate: &Certificate) -> Certificate {
    let mut garbled = certificate.clone();
    for _ in 0..=random.below(3) {
        let (answers, kept) = (garbled.answers.answers.len(), garbled.kept.len());
        match random.below(6) {
            0 if answers > 0 => {
                garbled.answers.answers.remove(random.below(answers));
            }
            1 if answers > 0 => garbled.answers.answers[random.below(answers)].0 = random.below(50) as u64,
            2 if answers > 0 => {
                let i = random.below(answers);
                let names = random.below(5);
                match &mut garbled.answers.answers[i].1 {
                    Answer::Proof(by) => by.steps.iter_mut().for_each(|step| step.scale = random.number()),
                    Answer::Advice(Advice::Cover { renaming, .. }) if !renaming.is_empty() => {
                        let at = random.below(renaming.len());
                        renaming[at] = random.form(names);
                    }
                    Answer::Advice(advice) => *advice = Advice::Split(random.form(names)),
                }
            }
            3 if kept > 0 => {
                let i = random.below(kept);
                random.change(&mut garbled.kept[i].claim);
            }
            4 if kept > 0 => garbled.kept[random.below(kept)].rank = vec![random.form(2)],
            _ => garbled.answers.answers.truncate(random.below(answers + 1)),
        }
    }
    garbled
}

#[test]
fn no_unsafe_program_has_a_certificate_and_safe_ones_do() {
    let (mut certified, mut all, mut wrong) = (0, 0, Vec::new());
    for p in common::pairs() {
        if common::has_code(p.refused)
            && let Ok(program) = common::try_program(p.refused)
        {
            let result = common::with_env(p.refused, |env| certify_within(&program, env, FUEL));
            wrong.extend(result.is_ok().then_some(p.name));
        }
        if common::has_code(p.accepted) {
            all += 1;
            certified += u32::from(common::with_env(p.accepted, |env| {
                let program = common::program(p.accepted);
                let Ok(certificate) = certify_within(&program, env, FUEL) else { return false };
                let facts = facts(&program, env, &certificate).expect("accepted again");
                if let Some(what) = watched::violation(&program, env, &facts, 20) {
                    panic!("{}: the safe twin is certified, and {what}\n{program}", p.name);
                }
                true
            }));
        }
    }
    assert!(wrong.is_empty(), "certified, and unsafe: {wrong:#?}");
    println!("{certified} of {all} safe twins are certified");
    assert!(certified >= 60, "{certified} of {all}");
}

/// Wrong certificates of each kind and program: `HOSTILE` in the environment, for long runs.
fn hostile_tries() -> u32 {
    std::env::var("HOSTILE").ok().and_then(|tries| tries.parse().ok()).unwrap_or(20)
}

/// Safe programs that rest on a rule of the core for numbers, each with the nearest unsafe one.
const TWINS: [(&str, &str); 6] = [
    // A mask of adjacent bits: a multiple of a quotient.
    (
        "r0 = 0; if r2 < 8 goto +3; r2 &= -8; r1 += r2; r0 = *(u64 *)(r1 - 8); exit",
        "r0 = 0; if r2 < 8 goto +3; r2 &= -8; r1 += r2; r0 = *(u64 *)(r1 - 7); exit",
    ),
    // An `or` is the sum less the common bits.
    (
        "r0 = 0; if r2 < 2 goto +6; r2 += -2; r2 >>= 1; r2 <<= 1; r2 |= 1; r1 += r2; r0 = *(u8 *)(r1 + 0); exit",
        "r0 = 0; if r2 < 2 goto +6; r2 += -2; r2 >>= 1; r2 <<= 1; r2 |= 1; r1 += r2; r0 = *(u8 *)(r1 + 1); exit",
    ),
    // A proof in two steps: `4 * half + 4 <= length`.
    (
        "r0 = 0; if r2 < 4 goto +5; r2 >>= 2; r2 >>= 1; r2 <<= 2; r1 += r2; r0 = *(u32 *)(r1 + 0); exit",
        "r0 = 0; if r2 < 4 goto +5; r2 >>= 2; r2 >>= 1; r2 <<= 2; r1 += r2; r0 = *(u32 *)(r1 + 1); exit",
    ),
    // A difference that is below zero, read without a sign.
    (
        "r0 = 0; if r2 == 0 goto +7; r3 = *(u8 *)(r1 + 0); if r3 >= r2 goto +5; r4 = r3; r4 -= r2; \
         if r4 > -3 goto +2; r1 += r3; r0 = *(u16 *)(r1 + 1); exit",
        "r0 = 0; if r2 == 0 goto +7; r3 = *(u8 *)(r1 + 0); if r3 >= r2 goto +5; r4 = r3; r4 -= r2; \
         if r4 > -3 goto +2; r1 += r3; r0 = *(u16 *)(r1 + 2); exit",
    ),
    // Equal operations on equal operands.
    (
        "r0 = 0; r3 = r2; r3 >>= 3; if r3 == 0 goto +4; r2 >>= 3; r2 <<= 3; r1 += r2; r0 = *(u64 *)(r1 - 8); exit",
        "r0 = 0; r3 = r2; r3 >>= 4; if r3 == 0 goto +4; r2 >>= 3; r2 <<= 4; r1 += r2; r0 = *(u64 *)(r1 - 8); exit",
    ),
    // A row that is tightened: `2 * x + 1 <= length`.
    (
        "r0 = 0; if r2 == 0 goto +7; r3 = *(u8 *)(r1 + 0); r3 <<= 1; r4 = r3; r4 += 1; if r4 > r2 goto +2; \
         r1 += r3; r0 = *(u8 *)(r1 + 0); exit",
        "r0 = 0; if r2 == 0 goto +7; r3 = *(u8 *)(r1 + 0); r3 <<= 1; r4 = r3; r4 += 1; if r4 > r2 goto +2; \
         r1 += r3; r0 = *(u8 *)(r1 + 1); exit",
    ),
];

#[test]
fn unsafe_twins_of_the_rules_for_numbers_are_not_proven() {
    let context = bpf_verifier::ContextLayout::raw(true);
    let helpers = Helpers::none();
    let env = Env::new(&context, &helpers);
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for (safe, unsafe_twin) in TWINS {
        let program = |text: &str| common::try_program(&text.replace("; ", "\n")).expect("a program");
        let (safe, unsafe_twin) = (program(safe), program(unsafe_twin));
        let certificate = certify_within(&safe, &env, FUEL).unwrap_or_else(|why| panic!("{why}: {safe:?}"));
        assert!(accepts(&safe, &env, &certificate));
        assert!(Verifier::new().verify(unsafe_twin.clone(), &env).is_err(), "{unsafe_twin:?} is no unsafe twin");
        assert!(certify_within(&unsafe_twin, &env, FUEL).is_err(), "{unsafe_twin:?}");
        for _ in 0..10 * hostile_tries() {
            let garbled = garble(&mut random, &certificate);
            assert!(!accepts(&unsafe_twin, &env, &garbled), "{unsafe_twin:?} by {garbled:?}");
        }
    }
}

/// The watch can fail: of the refused programs that read no context, most do something unsafe when they run.
#[test]
fn the_watch_sees_what_unsafe_programs_do() {
    let (mut seen, mut all) = (0, 0);
    for p in common::pairs() {
        let Ok(program) = common::try_program(p.refused) else { continue };
        // Only facts say how an access to the context is made.
        if !common::has_code(p.refused) || !p.refused.contains(";raw") && p.refused.contains("(r1 ") {
            continue;
        }
        all += 1;
        let what = common::with_env(p.refused, |env| watched::violation(&program, env, &Facts::default(), 100));
        seen += u32::from(what.is_some());
    }
    println!("{seen} of {all} refused programs do something unsafe");
    assert!(2 * seen > all, "{seen} of {all}");
}

#[test]
fn wrong_certificates_prove_no_unsafe_program() {
    let pairs = common::pairs();
    let each = hostile_tries();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut tries, mut reasons) = (0u32, std::collections::HashSet::new());
    let mut proven = Proven::default();
    for p in &pairs {
        let Ok(program) = common::try_program(p.refused) else { continue };
        if !common::has_code(p.refused) {
            continue;
        }
        common::with_env(p.refused, |env| {
            // The certificate of the safe twin, applied to the unsafe program as it is, and garbled.
            let twin = common::try_program(p.accepted).ok().filter(|_| common::has_code(p.accepted));
            if let Some(Ok(certificate)) = twin.map(|twin| certify_within(&twin, env, FUEL)) {
                for _ in 0..each {
                    tries += 1;
                    let garbled = garble(&mut random, &certificate);
                    for facts in [&certificate, &garbled].into_iter().filter_map(|c| facts(&program, env, c)) {
                        proven.watch(p.name, &program, env, facts);
                    }
                }
            }
            // Certificates from a guide that answers nonsense, with points that it has seen.
            let mut kept: Vec<Kept> = Vec::new();
            for _ in 0..each {
                tries += 1;
                let seed = random.below(usize::MAX) as u64 | 1;
                let mut guide = Hostile { random: Random(seed), kept: kept.len(), seen: Vec::new() };
                match check(&program, env, &kept, &mut guide, FUEL) {
                    Ok(facts) => proven.watch(p.name, &program, env, facts),
                    Err(refusal) => {
                        reasons.insert(std::mem::discriminant(&refusal.why));
                        assert!(!matches!(refusal.why, Why::Internal(_)), "{}: {refusal}", p.name);
                    }
                }
                kept = std::mem::take(&mut guide.seen)
                    .into_iter()
                    .take(3)
                    .map(|(at, mut claim)| {
                        if random.below(2) == 0 {
                            random.change(&mut claim);
                        }
                        let rank = (0..random.below(3)).map(|_| random.form(claim.names.len())).collect();
                        Kept { at, claim, rank }
                    })
                    .collect();
            }
        });
    }
    println!("{tries} tries; proven, and safe: {:?}", proven.names());
    assert!(tries > 2000 && reasons.len() > 5, "{tries} tries, {} reasons", reasons.len());
}

/// Each program of some objects, with its proof.
fn proofs(mut with: impl FnMut(&str, &Program, &Env<'_>, Proof)) {
    for object in loop_programs::objects().iter().filter(|o| o.ends_with("raw.o") || o.ends_with("xdp.o")) {
        for p in loop_programs::load(object) {
            let (context, helpers) = (p.context(), Helpers::none());
            let env = p.env(&context, &helpers, false);
            if let Ok(proof) = Proof::search(&p.program, &env, 1 << 17) {
                with(&p.name, &p.program, &env, proof);
            }
        }
    }
}

#[test]
fn proofs_survive_their_bytes() {
    let mut sizes = Vec::new();
    proofs(|name, program, env, proof| {
        let bytes = proof.to_bytes();
        let read = Proof::from_bytes(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(read, proof, "{name}");
        read.check(program, env).unwrap_or_else(|e| panic!("{name}: {e}"));
        sizes.push(bytes.len() as f64 / (8 * program.insns().len()) as f64);
        // A proof that is cut anywhere, or has bytes behind it.
        for end in 0..bytes.len() {
            let error = Proof::from_bytes(&bytes[..end]).expect_err("a part of a proof");
            assert!(matches!(error, ProofError::Malformed { at, .. } if at <= end), "{name}: {error}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(matches!(Proof::from_bytes(&longer), Err(ProofError::Malformed { .. })), "{name}");
        // Answers and kept points take memory: a byte for each is not enough.
        let within = Proof::from_bytes_within(&bytes, bytes.len());
        assert!(proof.certificate().kept.is_empty() || within.is_err(), "{name}: in {} bytes", bytes.len());
    });
    sizes.sort_by(f64::total_cmp);
    assert!(sizes.len() >= 4 && sizes[sizes.len() / 2] <= 4.0, "{sizes:?}");
}

#[test]
fn changed_bytes_prove_nothing_unsafe_and_take_linear_time() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut all = Vec::new();
    proofs(|_, _, _, proof| all.push(proof.to_bytes()));
    let unsafe_programs: Vec<_> = common::pairs().into_iter().filter(|p| common::has_code(p.refused)).collect();
    let (mut tries, mut read) = (0, 0);
    let mut proven = Proven::default();
    for p in &unsafe_programs {
        let Ok(program) = common::try_program(p.refused) else { continue };
        common::with_env(p.refused, |env| {
            for _ in 0..20 {
                tries += 1;
                let mut bytes = all[random.below(all.len())].clone();
                for _ in 0..=random.below(4) {
                    let at = random.below(bytes.len());
                    match random.below(4) {
                        0 => bytes[at] = random.below(256) as u8,
                        1 => bytes[at] ^= 1 << random.below(8),
                        2 => drop(bytes.remove(at)),
                        _ => bytes.insert(at, random.below(256) as u8),
                    }
                }
                let Ok(proof) = Proof::from_bytes(&bytes) else { continue };
                read += 1;
                // Digests are only for errors; the check must not rely on them.
                if let Some(facts) = facts(&program, env, proof.certificate()) {
                    proven.watch(p.name, &program, env, facts);
                }
                // Each element takes a byte, except for the contents of stacks.
                let certificate = proof.certificate();
                assert!(certificate.kept.len() + certificate.answers.answers.len() <= bytes.len());
            }
        });
    }
    assert!(tries > 1000 && read > tries / 10, "{read} of {tries}");
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..random.below(200)).map(|_| random.below(256) as u8).collect();
        let _ = Proof::from_bytes(&bytes);
        let _ = ProofSection::parse(&bytes);
        let _ = ProofSection::parse(&[b"BPFPROOF\x01", &bytes[..]].concat());
    }
}

#[test]
fn a_proof_says_what_it_was_made_against() {
    let mut seen = 0;
    proofs(|name, program, env, proof| {
        let differs = |env: &Env<'_>| match proof.check(program, env) {
            Err(ProofError::Differs { part }) => Some(part),
            _other => None,
        };
        let more = bpf_verifier::ContextLayout { returns: Some((0, 1 << 40)), ..env.context.clone() };
        assert_eq!(differs(&Env { context: &more, ..*env }), Some(ProofPart::Context), "{name}");
        assert_eq!(differs(&Env { frame_bytes: 256, ..*env }), Some(ProofPart::Settings), "{name}");
        assert_eq!(differs(env), None, "{name}");
        let mut maps = env.maps.to_vec();
        let refers = |insn: &bpf_isa::Insn| match insn {
            bpf_isa::Insn::LoadImm64 { imm, .. } => !matches!(imm, bpf_isa::Imm64::Const(_)),
            _other => false,
        };
        if program.insns().iter().any(refers) {
            maps.iter_mut().for_each(|map| map.max_entries += 1);
            assert_eq!(differs(&Env { maps: &maps, ..*env }), Some(ProofPart::Maps), "{name}");
            let mut maps = env.maps.to_vec();
            maps.iter_mut().for_each(|map| map.frozen = Some(vec![1; 8]));
            assert_eq!(differs(&Env { maps: &maps, ..*env }), Some(ProofPart::Constants), "{name}");
        }
        let nop = bpf_isa::assemble("r0 = 0\nexit").expect("a program");
        let other = Program::new(nop).expect("a program");
        assert_eq!(proof.check(&other, env), Err(ProofError::Differs { part: ProofPart::Program }), "{name}");
        seen += 1;
    });
    assert!(seen >= 4);
}

/// Covers the state before an instruction by the only kept point, and records the states that reach it.
struct CoverAt {
    at: u32,
    renaming: Vec<Form>,
    seen: Option<Invariant>,
}

impl Guide for CoverAt {
    fn advise(&mut self, point: &Point<'_>) -> Advice {
        if point.pc.0 != self.at || point.starts {
            return Advice::Step;
        }
        self.seen = Some(point.state.to_invariant());
        Advice::Cover { kept: 0, renaming: self.renaming.clone() }
    }
    fn prove(&mut self, _: &Point<'_>, _: &Form) -> Option<Combination> {
        None
    }
}

#[test]
fn a_record_with_two_names_is_not_used_after_it_is_given_back() {
    let text = "r1 = map[fd:0]\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto out\nr6 = r0\nr7 = r0\nr1 = r6\nr2 = 0\n\
                call 132\n*(u64 *)(r7 + 0) = 1\nout:\nr0 = 0\nexit";
    let program = Program::new(bpf_isa::assemble(text).expect("a program")).expect("valid");
    let (context, helpers) = (bpf_verifier::ContextLayout::raw(false), Helpers::shipped());
    let maps = [bpf_verifier::KnownMap::new("ring", bpf_verifier::MapType::RingBuf, 0, 0, 4096)];
    let env = Env { maps: &maps, ..Env::new(&context, &helpers) };
    // Where the record is given back, r6 and r7 hold it.
    let at = 8;
    let mut guide = CoverAt { at, renaming: Vec::new(), seen: None };
    let kept = |claim| [Kept { at: bpf_isa::InsnIdx(at), claim, rank: Vec::new() }];
    let _ = check(&program, &env, &[], &mut guide, FUEL);
    let mut claim = guide.seen.expect("the state there");
    for value in &mut claim.frames[0].regs {
        if let Value::Pointer(pointer) = value {
            pointer.present = None;
        }
    }
    let same: Vec<Form> = (0..claim.names.len() as u32).map(|n| Form::name(Name(n))).collect();
    let [owner] = claim.held[..] else { panic!("{claim:?}") };
    // With that invariant the store is seen; with one in which r7 has a name of its own for the record, as well.
    let mut two = claim.clone();
    two.names.push(two.names[owner.index()]);
    let Value::Pointer(pointer) = &mut two.frames[0].regs[7] else { panic!("{two:?}") };
    let bpf_verifier_core::Base::Record { owner: other, .. } = &mut pointer.base else { panic!("{two:?}") };
    *other = Name(claim.names.len() as u32);
    let renaming = [&same[..], &[Form::name(owner)]].concat();
    let check = |claim, renaming| {
        let mut guide = CoverAt { at, renaming, seen: None };
        check(&program, &env, &kept(claim), &mut guide, FUEL).expect_err("a store to a record that was given back").why
    };
    assert_eq!(check(claim.clone(), same), Why::Unset(bpf_isa::Reg::R7));
    assert_eq!(check(two.clone(), renaming.clone()), Why::NotHeld(bpf_isa::Reg::R7));
    // An invariant that holds the record twice does not cover the state.
    two.held.push(Name(claim.names.len() as u32));
    assert!(matches!(check(two, renaming), Why::NotCovered(_)));
}

/// Divides the first state by a form, and proves nothing.
struct SplitOnce(Option<Form>);

impl Guide for SplitOnce {
    fn advise(&mut self, _: &Point<'_>) -> Advice {
        self.0.take().map_or(Advice::Step, Advice::Split)
    }
    fn prove(&mut self, _: &Point<'_>, _: &Form) -> Option<Combination> {
        None
    }
}

#[test]
fn both_cases_of_a_division_are_walked() {
    let (context, helpers) = (bpf_verifier::ContextLayout::raw(false), Helpers::none());
    let env = Env::new(&context, &helpers);
    let program = |text| Program::new(bpf_isa::assemble(text).expect("a program")).expect("valid");
    let unchecked = program("r0 = *(u8 *)(r1 + 0)\nexit");
    let checked = program("r0 = 0\nif r2 == 0 goto out\nr0 = *(u8 *)(r1 + 0)\nout:\nexit");
    // The length is the first name: an empty buffer on the one side, on the other, or on both.
    let length = |a, c| Form::sum([(Name(0), a)], c).expect("a form");
    for form in [length(1, -1), length(-1, 0), length(1, -100), length(-1, 100)] {
        let refused =
            check(&unchecked, &env, &[], &mut SplitOnce(Some(form.clone())), FUEL).expect_err("an empty buffer");
        assert!(matches!(refused.why, Why::OutOfBounds { .. }), "{form:?}: {refused}");
        assert!(check(&checked, &env, &[], &mut SplitOnce(Some(form)), FUEL).is_ok());
    }
    // One of the two cases is impossible.
    for form in [length(1, 0), length(1, -(1 << 40)), length(-1, -1), length(-1, 1 << 40), Form::constant(-1)] {
        let refused = check(&unchecked, &env, &[], &mut SplitOnce(Some(form.clone())), FUEL).expect_err("empty");
        assert!(matches!(refused.why, Why::OutOfBounds { .. }), "{form:?}: {refused}");
        assert!(check(&checked, &env, &[], &mut SplitOnce(Some(form)), FUEL).is_ok());
    }
    // A form over names that do not exist.
    let refused = check(&checked, &env, &[], &mut SplitOnce(Some(Form::name(Name(9)))), FUEL).expect_err("no name");
    assert!(matches!(refused.why, Why::Certificate(_)), "{refused}");
}

/// Runs the program on buffers of several lengths, and returns an unsafe action if there is one.
fn violation(program: &Program, random: &mut Random) -> Option<String> {
    use bpf_interp::{Caller, Machine, Memory, Options, Stop, StopKind};
    struct Host;
    impl bpf_interp::Env for Host {
        type Code = std::rc::Rc<Program>;
        fn helper(&mut self, id: u32, _: [u64; 5], caller: &mut Caller<'_, '_, Self::Code>) -> Result<u64, Stop> {
            Err(caller.stop(StopKind::UnknownHelper(id)))
        }
    }
    let program = std::rc::Rc::new(program.clone());
    for length in [0, 1, 2, 3, 4, 7, 8, 15, 16, 20, 33, 64, 255] {
        let fill = random.below(3);
        let mut buffer: Vec<u8> = (0..length)
            .map(|_| match fill {
                0 => 0,
                1 => 255,
                _ => random.below(256) as u8,
            })
            .collect();
        let mut memory = Memory::new();
        let r1 = memory.add_writable(&mut buffer);
        memory.set_packet(r1, length);
        // Long loops are cut off: that they end is a matter of the rank.
        let options = Options { budget: Some(20_000), stack_fill: 0xa5, ..Options::default() };
        let end = Machine::new(memory, options).run(&mut Host, &program, [r1, length]);
        if let Err(stop) = end
            && !matches!(stop.kind, StopKind::Budget)
        {
            return Some(format!("{length} bytes: {stop:?}"));
        }
    }
    None
}

#[test]
fn mutants_that_some_certificate_proves_run_safely() {
    let tries: u64 = std::env::var("BPF_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    let mut random = Random(0x1234_5678_9abc_def1);
    let (context, helpers) = (bpf_verifier::ContextLayout::raw(true), Helpers::none());
    let env = Env::new(&context, &helpers);
    let (mut pool, mut checks, mut accepted) = (Vec::<Certificate>::new(), 0u64, 0u64);
    for seed in 0..tries {
        let mut choices = bpf_testkit::generate::Choices::from_seed(seed);
        let Some(program) = mutants::generate(&mut choices) else { continue };
        let mut proven = false;
        if let Ok(certificate) = certify_within(&program, &env, 1 << 11) {
            proven = accepts(&program, &env, &certificate);
            assert!(proven, "seed {seed}: not accepted again");
            let at = random.below(16);
            match pool.get_mut(at) {
                Some(old) => *old = certificate,
                None => pool.push(certificate),
            }
        }
        // Proofs of this program and of others, unchanged and changed.
        for certificate in &pool {
            for garbled in [certificate.clone(), garble(&mut random, certificate), garble(&mut random, certificate)] {
                checks += 1;
                let mut replay = Replay::new(&garbled.answers);
                proven |= check(&program, &env, &garbled.kept, &mut replay, FUEL).is_ok();
            }
        }
        for _ in 0..4 {
            checks += 1;
            let seed = random.below(usize::MAX) as u64 | 1;
            let mut guide = Hostile { random: Random(seed), kept: 0, seen: Vec::new() };
            proven |= check(&program, &env, &[], &mut guide, FUEL).is_ok();
        }
        if proven {
            accepted += 1;
            if let Some(what) = violation(&program, &mut random) {
                panic!("seed {seed} is proven, and {what}\n{program}");
            }
        }
    }
    println!("{checks} checks, {accepted} programs accepted");
    assert!(accepted > tries / 50, "{accepted} of {tries}");
}

/// A loop that the walks refuse is accepted by a certificate, with the facts of the core, and within the limits.
#[test]
fn loops_that_the_walks_refuse_are_accepted_by_a_certificate() {
    // The walks do not prove that an attribute is within the buffer if only its start is compared with the end.
    let text = common::ATTRIBUTES.replace("if r4 s>= r5 goto a", "goto a");
    let program = common::program(&text);
    common::with_env(&text, |env| {
        let env = Env { record_states: true, ..*env };
        let verified = Verifier::new().verify(program.clone(), &env).unwrap_or_else(|e| panic!("{e}"));
        assert!(verified.stats().certified && verified.stats().steps > 0);
        let certificate = certify_within(&program, &env, FUEL).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(Some(verified.facts()), facts(&program, &env, &certificate).as_ref());
        assert_eq!(watched::violation(&program, &env, verified.facts(), 200), None);
        // The recorded states are those of the check.
        let admits = |r5| verified.admits(bpf_isa::InsnIdx(11), &[0, 1, 0, 9, 8, r5, 0, 0, 0, 0, 9]);
        assert!(admits(0) && admits(65_535) && !admits(65_536));
        let refused = |env: &Env<'_>| *Verifier::new().verify(program.clone(), env).expect_err("no certificate");
        // A search that finds nothing leaves the refusal of the walks.
        let mut few = env;
        few.limits.steps = 40;
        let error = refused(&few);
        assert!(matches!(error.reason, bpf_verifier::Reason::PacketBounds { .. }), "{error}");
        let mut small = env;
        small.limits.memory = 1 << 20;
        assert!(Verifier::new().verify(program.clone(), &small).is_ok(), "{}", refused(&small));
        let exhaustive = Env { exhaustive: true, ..env };
        assert!(!refused(&exhaustive).verdict_is_unknown());
    });
    // The unsafe twin reads one byte more than was compared.
    let twin = text.replace("r4 s< 4", "r4 s< 3");
    common::with_env(&twin, |env| {
        let error = Verifier::new().verify(common::program(&twin), env).expect_err("an unsafe program");
        assert!(matches!(error.reason, bpf_verifier::Reason::PacketBounds { .. }), "{error}");
    });
}

/// Loops in a loop, none of which ends, at whose heads each of some truth values is a measure that no path increases:
/// there are as many choices of measures as there are values to the power of the heads.
#[test]
fn a_search_among_very_many_ranks_ends() {
    let count = 8;
    let mut text = String::from(";raw\nr0 = 0\nif r2 < 64 goto out\n");
    for i in 0..count {
        text += &format!("r3 = *(u8 *)(r1 + {i})\nr3 &= 1\n*(u64 *)(r10 - {}) = r3\n", 8 * (i + 1));
    }
    text += "outer:\nr9 = *(u64 *)(r1 + 32)\n";
    for j in 0..count {
        text += &format!("h{j}:\nr9 = *(u64 *)(r1 + 40)\nif r9 == {} goto h{j}\n", 7 + j);
    }
    text += "if r9 != 1 goto outer\nout:\nr0 = 0\nexit";
    common::with_env(&text, |env| drop(Verifier::new().verify(common::program(&text), env).expect_err("no end")));
}

/// Bounds of products come near the ends of the numbers that the search computes with.
#[test]
fn a_search_with_bounds_of_any_size_does_not_overflow() {
    let text = ";raw\nr0 = 0\nif r2 < 24 goto out\nr6 = *(u64 *)(r1 + 0)\nr7 = *(u64 *)(r1 + 8)\n\
                r8 = 0x7fffffffffffffff ll\nr6 *= r8\nr6 += r7\nr3 = 0\nif r6 s> 5 goto next\nr3 = 1\nnext:\n\
                r9 = *(u64 *)(r1 + 16)\nloop:\nr9 += 3\nif r9 != 1 goto loop\nout:\nr0 = 0\nexit";
    common::with_env(text, |env| drop(Verifier::new().verify(common::program(text), env)));
}

/// The start and the length of the longest word lie within the buffer together: a row over both of them and the length
/// of the buffer, which is true of the first state only after its constant is relaxed.
#[test]
fn a_sum_of_two_values_that_each_round_may_replace_is_bounded() {
    let text = ";raw\nr0 = 0\nr3 = 0\nr4 = 0\nif r2 == 0 goto out\nr6 = 0\nr5 = 0\ngoto word\n\
                next:\nr5 += 1\nr6 = r4\nif r5 < r2 goto word\ngoto read\nword:\nr7 = r3\nr4 = r5\n\
                scan:\nr3 = r1\nr3 += r5\nr3 = *(u8 *)(r3 + 0)\nif r3 == 32 goto end\nr5 += 1\nif r5 < r2 goto scan\n\
                end:\nr3 = r5\nr3 -= r4\nif r3 > r7 goto longer\nr4 = r6\nlonger:\nif r3 > r7 goto next\nr3 = r7\n\
                goto next\nread:\nif r3 == 0 goto out\nr1 += r4\nr2 = 0\nr0 = 0\nsum:\nr4 = r1\nr4 += r2\n\
                r4 = *(u8 *)(r4 + 0)\nr0 += r4\nr2 += 1\nif r2 < r3 goto sum\nout:\nexit";
    let proven = |text: &str| {
        let program = common::program(text);
        common::with_env(text, |env| {
            certify_within(&program, env, FUEL).is_ok_and(|certificate| accepts(&program, env, &certificate))
        })
    };
    assert!(proven(text));
    // The unsafe twin reads the byte behind the word.
    assert!(!proven(&text.replace("r4 = *(u8 *)(r4 + 0)", "r4 = *(u8 *)(r4 + 1)")));
}

/// Loops that need what an invariant by bounds alone does not give, and how they are proven.
#[test]
fn invariants_of_loops_keep_what_their_proofs_need() {
    let wanted = [
        ("ends.o", "fibonacci"),
        ("headers.o", "sctp"),
        ("joins.o", "classes"),
        ("more.o", "unbase64"),
        ("orders.o", "utf8_decode"),
        ("plugins.o", "hex"),
        ("raw.o", "matrix"),
    ];
    let mut wrong = Vec::new();
    for (file, name) in wanted {
        let object = loop_programs::objects().into_iter().find(|path| path.ends_with(file)).expect("the object");
        let p = loop_programs::load(&object).into_iter().find(|p| p.name == name).expect("the program");
        let (context, helpers) = (p.context(), Helpers::none());
        let env = p.env(&context, &helpers, false);
        match certify_within(&p.program, &env, FUEL) {
            Ok(certificate) if accepts(&p.program, &env, &certificate) => {}
            Ok(_) => wrong.push(format!("{name}: the core refuses the certificate")),
            Err(why) => wrong.push(format!("{name}: {why}")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn facts_agree_with_those_of_the_verifier_and_replaying_gives_them_again() {
    let mut certified = 0;
    for object in loop_programs::objects().iter().filter(|o| o.ends_with("raw.o") || o.ends_with("xdp.o")) {
        for p in loop_programs::load(object) {
            let (context, helpers) = (p.context(), Helpers::none());
            let env = p.env(&context, &helpers, false);
            let Ok(certificate) = certify(&p.program, &env) else { continue };
            certified += 1;
            let verified = Verifier::new().verify(p.program.clone(), &env);
            let verified = verified.unwrap_or_else(|e| panic!("{}: certified, and refused: {e}", p.name));
            let mut replay = Replay::new(&certificate.answers);
            let facts = check(&p.program, &env, &certificate.kept, &mut replay, bpf_verifier_core::FUEL);
            let facts = facts.unwrap_or_else(|e| panic!("{}: not certified again: {e}", p.name));
            for (at, (core, walk)) in facts.insns.iter().zip(&verified.facts().insns).enumerate() {
                let apart = !core.dead && !walk.dead && core.memory != walk.memory;
                assert!(!apart || core.memory.is_none(), "{} at {at}: {core:?} and {walk:?}", p.name);
            }
            for access in &facts.context_accesses {
                let walk = &verified.facts().context_accesses;
                let known = walk.iter().find(|other| other.insn == access.insn);
                assert!(known.is_none_or(|known| known == access), "{}: {access:?} and {known:?}", p.name);
            }
        }
    }
    assert!(certified >= 4, "{certified}");
}
