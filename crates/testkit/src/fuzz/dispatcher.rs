//! Random sequences of changes and runs of a dispatcher and a hook, beside models that are a list each.

use crate::generate::Choices;
use bpf_isa::assemble;
use bpf_jit_code::{Arch, Hardening};
use bpf_runtime::{
    Config, Dispatcher, Engine, Hook, HookPolicy, Linker, Mode, Program, Raw,
    hook::{Attachment, DispatcherError, DispatcherOptions, HookError, Verdicts},
};

type Prog = Program<Raw, ()>;

/// Number of programs to attach and detach.
const PROGRAMS: u32 = 10;
/// Steps at most: a change costs microseconds.
const STEPS: u32 = 200;

/// A loaded program, and its expected effects.
#[derive(Clone)]
struct Known {
    program: Prog,
    /// The number of the program, which no other has.
    serial: u64,
    verdict: u64,
}

impl Known {
    /// Loads a program that records its run, in order, and returns its verdict.
    fn load(linker: &Linker<()>, serial: u64, verdict: u64) -> Known {
        let text = format!(
            "r0 = {verdict} ll\nif r2 < 8 goto +4\nr3 = *(u64 *)(r1 + 0)\nr3 *= 31\nr3 += {serial}\n*(u64 *)(r1 + 0) = r3\nexit"
        );
        let insns = assemble(&text).unwrap_or_else(|error| panic!("{error} in\n{text}"));
        let program = linker.loader().insns("program", insns).expect("a valid program loads");
        Known { program, serial, verdict }
    }

    /// The expected note of the host after a run, from the note before.
    fn note(&self, before: u64) -> u64 {
        before.wrapping_mul(31).wrapping_add(self.serial)
    }
}

/// See the module. A finding is a run that reached another program than it should, or a change that succeeded or failed
/// when the model did not.
pub fn dispatcher(data: &[u8]) {
    let mut choices = Choices::from_bytes(data);
    let choices = &mut choices;
    let config = Config::new()
        .mode(if Arch::HOST.is_some() && !choices.one_in(8) { Mode::Jit } else { Mode::Interpreter })
        .hardening(|_| {
            Hardening::new()
                .retpolines(choices.one_in(2))
                .landing_pads(choices.one_in(2))
                .return_signing(choices.one_in(2))
                .straight_line(choices.one_in(2))
        })
        .packs(|packs| packs.random_offset(choices.one_in(2)));
    let engine = Engine::new(config).expect("an engine");
    let linker = Linker::new(&engine);
    let mut programs: Vec<Known> = (0..PROGRAMS.into()).map(|i| Known::load(&linker, i, verdict(choices))).collect();
    let mut serial = u64::from(PROGRAMS);
    let mut called = Called::new(&engine, choices);
    let mut hooked = Hooked::new(&engine, choices);
    for _ in 0..choices.below(STEPS) {
        let at = choices.below(PROGRAMS) as usize;
        match choices.below(10) {
            0..=4 => called.step(&programs, at, choices),
            5..=8 => hooked.step(&programs, at, choices),
            _ => {
                serial += 1;
                // The old program lives on where it is attached.
                programs[at] = Known::load(&linker, serial, verdict(choices));
                engine.reclaim();
            }
        }
    }
}

fn verdict(choices: &mut Choices<'_>) -> u64 {
    if choices.one_in(4) { choices.value() } else { u64::from(choices.below(4)) }
}

/// A dispatcher and its model: the attached programs, and how often each is.
struct Called {
    dispatcher: Dispatcher<Raw, ()>,
    attached: Vec<(u64, u32)>,
}

impl Called {
    fn new(engine: &Engine, choices: &mut Choices<'_>) -> Called {
        let options = DispatcherOptions::new().limit(choices.below(8) as usize).align(choices.one_in(2));
        let dispatcher = Dispatcher::with_options(engine, options).expect("room for a tree");
        Called { dispatcher, attached: Vec::new() }
    }

    fn step(&mut self, programs: &[Known], at: usize, choices: &mut Choices<'_>) {
        let Known { program, serial, .. } = &programs[at];
        let position = self.attached.iter().position(|(known, _)| known == serial);
        match choices.below(8) {
            0..=2 => {
                self.dispatcher.attach(program).expect("room for a tree");
                match position {
                    Some(at) => self.attached[at].1 += 1,
                    None => self.attached.push((*serial, 1)),
                }
            }
            3..=5 => match (self.dispatcher.detach(program), position) {
                (Ok(()), Some(at)) if self.attached[at].1 > 1 => self.attached[at].1 -= 1,
                (Ok(()), Some(at)) => drop(self.attached.remove(at)),
                (Err(DispatcherError::NotAttached { .. }), None) => {}
                (result, _) => panic!("detaching {serial} from {:?}: {result:?}", self.attached),
            },
            6 => {
                let hits: Vec<_> = programs.iter().map(|known| (&known.program, verdict(choices))).collect();
                self.dispatcher.set_hits(&hits).expect("room for a tree");
            }
            _ => {
                self.dispatcher.set_statistics(choices.one_in(2)).expect("room for a tree");
                self.dispatcher.optimize().expect("room for a tree");
            }
        }
        assert_eq!(self.dispatcher.stats().entries, self.attached.len());
        for known in programs {
            let mut note = [7, 0, 0, 0, 0, 0, 0, 0];
            let result = self.dispatcher.call(&known.program, &mut (), &mut note).expect("a run");
            assert_eq!((result, u64::from_le_bytes(note)), (known.verdict, known.note(7)), "{:?}", self.attached);
        }
    }
}

/// A hook and its model.
struct Hooked {
    hook: Hook<Raw, ()>,
    policy: HookPolicy,
    attached: Vec<(Known, Attachment)>,
}

impl Hooked {
    fn new(engine: &Engine, choices: &mut Choices<'_>) -> Hooked {
        let value = verdict(choices);
        let policy = match choices.below(3) {
            0 => HookPolicy::FirstVerdict { pass: value },
            1 => HookPolicy::LastWins { empty: value },
            _ => HookPolicy::RunAll { result: value },
        };
        Hooked { hook: Hook::new(engine, policy).expect("room for a chain"), policy, attached: Vec::new() }
    }

    fn step(&mut self, programs: &[Known], at: usize, choices: &mut Choices<'_>) {
        let known = &programs[at];
        let position = self.attached.iter().position(|(attached, _)| attached.serial == known.serial);
        match choices.below(6) {
            0 | 1 => {
                let mut attachment = Attachment::default().priority(choices.byte() as i8 as i32 / 32);
                if matches!(self.policy, HookPolicy::FirstVerdict { .. }) && choices.one_in(2) {
                    let set = choices.value();
                    attachment.continue_on =
                        Some(if choices.one_in(2) { Verdicts::Set(set) } else { Verdicts::One(set % 4) });
                }
                match (self.hook.attach_with(&known.program, attachment), position) {
                    (Ok(()), None) => {
                        // From the front: behind the last of no higher priority.
                        let mut place = 0;
                        for (i, (_, other)) in self.attached.iter().enumerate() {
                            if other.priority <= attachment.priority {
                                place = i + 1;
                            }
                        }
                        self.attached.insert(place, (known.clone(), attachment));
                    }
                    (Err(HookError::Attached { .. }), Some(_)) => {}
                    (result, _) => panic!("attaching {}: {result:?}", known.serial),
                }
            }
            2 => {
                let place = choices.below(6) as usize;
                match self.hook.attach_at(place, &known.program) {
                    Ok(()) => self.attached.insert(place, (known.clone(), Attachment::default())),
                    Err(HookError::Attached { .. }) => assert!(position.is_some()),
                    Err(HookError::Position { .. }) => assert!(position.is_none() && place > self.attached.len()),
                    Err(error) => panic!("attaching {}: {error}", known.serial),
                }
            }
            3 => match (self.hook.detach(&known.program), position) {
                (Ok(()), Some(at)) => drop(self.attached.remove(at)),
                (Err(HookError::NotAttached { .. }), None) => {}
                (result, _) => panic!("detaching {}: {result:?}", known.serial),
            },
            4 => {
                let old = &programs[choices.below(PROGRAMS) as usize];
                let place = self.attached.iter().position(|(attached, _)| attached.serial == old.serial);
                match (self.hook.replace(&old.program, &known.program), place, position) {
                    (Ok(()), Some(place), None) => self.attached[place].0 = known.clone(),
                    (Err(HookError::Attached { .. }), Some(_), Some(_))
                    | (Err(HookError::NotAttached { .. }), None, _) => {}
                    (result, _, _) => panic!("replacing {} by {}: {result:?}", old.serial, known.serial),
                }
            }
            _ => self.hook.set_statistics(choices.one_in(2)).expect("room for a chain"),
        }
        let mut note = [7, 0, 0, 0, 0, 0, 0, 0];
        let result = self.hook.run(&mut (), &mut note).expect("a run");
        assert_eq!((result, u64::from_le_bytes(note)), self.expected(), "{:?}", self.policy);
    }

    /// Returns the expected result and note of a run.
    fn expected(&self) -> (u64, u64) {
        let (mut note, mut last) = (7, self.policy.of_empty());
        for (known, attachment) in &self.attached {
            note = known.note(note);
            match self.policy {
                HookPolicy::FirstVerdict { pass } => {
                    let goes_on = match attachment.continue_on {
                        None => known.verdict == pass,
                        Some(Verdicts::One(one)) => known.verdict == one,
                        Some(Verdicts::Set(set)) => (0..64).any(|bit| set >> bit & 1 == 1 && known.verdict == bit),
                        Some(other) => panic!("no model of {other:?}"),
                    };
                    if !goes_on {
                        return (known.verdict, note);
                    }
                }
                HookPolicy::LastWins { .. } => last = known.verdict,
                HookPolicy::RunAll { .. } => {}
                other => panic!("no model of {other:?}"),
            }
        }
        (last, note)
    }
}
