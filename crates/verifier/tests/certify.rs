//! Certificates before the trusted core: what it accepts, agrees with the verifier about, and never accepts.
//!
//! A binary of its own: it is about the core and the search for certificates (`certify`), not about the walk.

#[path = "verify/common/mod.rs"]
mod common;
#[path = "verify/loop_programs.rs"]
mod loop_programs;

use bpf_isa::Program;
use bpf_verifier::certify::{Certificate, certify, certify_within};
use bpf_verifier::{Env, Helpers, Verifier};
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
            4 => {
                let form = self.form(names);
                let frame = self.below(claim.frames.len());
                let reg = self.below(11);
                claim.frames[frame].regs[reg] = Value::Number(form);
            }
            5 => {
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
        Some(Combination { scale: self.random.number(), rows })
    }
}

/// Whether the core accepts the program with this certificate.
fn accepts(program: &Program, env: &Env<'_>, certificate: &Certificate) -> bool {
    let mut replay = Replay::new(&certificate.answers);
    check(program, env, &certificate.kept, &mut replay, FUEL).is_ok()
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
                    Answer::Proof(by) => by.scale = random.number(),
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
                certify_within(&common::program(p.accepted), env, FUEL).is_ok()
            }));
        }
    }
    assert!(wrong.is_empty(), "certified, and unsafe: {wrong:#?}");
    println!("{certified} of {all} safe twins are certified");
    assert!(certified >= 60, "{certified} of {all}");
}

#[test]
fn wrong_certificates_prove_no_unsafe_program() {
    let pairs = common::pairs();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut tries, mut reasons) = (0u32, std::collections::HashSet::new());
    for p in &pairs {
        let Ok(program) = common::try_program(p.refused) else { continue };
        if !common::has_code(p.refused) {
            continue;
        }
        common::with_env(p.refused, |env| {
            // Of the safe twin: swapped, and changed.
            let twin = common::try_program(p.accepted).ok().filter(|_| common::has_code(p.accepted));
            if let Some(Ok(certificate)) = twin.map(|twin| certify_within(&twin, env, FUEL)) {
                for _ in 0..20 {
                    tries += 1;
                    let garbled = garble(&mut random, &certificate);
                    assert!(!accepts(&program, env, &certificate), "{}: by its twin's certificate", p.name);
                    assert!(!accepts(&program, env, &garbled), "{}: by {garbled:?}", p.name);
                }
            }
            // Of a guide that answers nonsense, with points that it has seen.
            let mut kept: Vec<Kept> = Vec::new();
            for _ in 0..20 {
                tries += 1;
                let seed = random.below(usize::MAX) as u64 | 1;
                let mut guide = Hostile { random: Random(seed), kept: kept.len(), seen: Vec::new() };
                match check(&program, env, &kept, &mut guide, FUEL) {
                    Ok(_) => panic!("{}: by seed {seed} and {kept:?}", p.name),
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
    assert!(tries > 2000 && reasons.len() > 5, "{tries} tries, {} reasons", reasons.len());
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
