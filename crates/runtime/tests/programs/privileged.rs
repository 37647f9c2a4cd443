//! Programs that expose addresses: refused by default, accepted by `Loader::privileged`, as the kernel accepts them
//! from root only. Programs that the kernel refuses to root are refused here as well.

use bpf_runtime::maps::{Map, MapDef, MapType};
use bpf_runtime::{
    Config, Engine, Linker, LoadError, Mode, Program,
    code::Arch,
    isa::Insn,
    net::{SkBuff, Skb},
};
use bpf_testkit::kernel::{self, ProgramType};
use bpf_testkit::skipped;

const FRAME: [u8; 60] = [0x45; 60];

fn insns(text: &str) -> Vec<Insn> {
    bpf_runtime::isa::assemble(&text.replace(';', "\n")).unwrap_or_else(|e| panic!("{e} in\n{text}"))
}

fn engines() -> impl Iterator<Item = Engine> {
    let modes = [Mode::Interpreter].into_iter().chain(Arch::HOST.map(|_| Mode::Jit));
    modes.map(|mode| {
        let config = Config::new().mode(mode);
        Engine::new(config).unwrap()
    })
}

fn load(engine: &Engine, text: &str, privileged: bool) -> Result<Program<Skb, ()>, LoadError> {
    let linker = Linker::<()>::new(engine);
    let loader = linker.loader::<Skb>();
    let loader = loader.privileged(privileged);
    loader.insns("test", insns(text))
}

/// Loads the start of the packet into r2 and its end into r3; the context is in r6.
const PACKET: &str = "r6 = r1; r2 = *(u32 *)(r1 + 76); r3 = *(u32 *)(r1 + 80); ";

/// Programs that only root may load, by the kernel's `allow_ptr_leaks` and `allow_uninit_stack`.
const ROOTS: &[&str] = &[
    "r0 = r1; exit",
    "r0 = r10; exit",
    "{P} r0 = r2; exit",
    // Into the context.
    "r2 = r1; *(u64 *)(r1 + 48) = r2; r0 = 0; exit",
    "{P} *(u64 *)(r6 + 48) = r2; r0 = *(u64 *)(r6 + 48); exit",
    // Into the packet.
    "{P} r4 = r2; r4 += 8; if r4 > r3 goto out; *(u64 *)(r2 + 0) = r10; r0 = *(u64 *)(r2 + 0); exit; out:; r0 = 0; exit",
    "{P} r4 = r2; r4 += 8; if r4 > r3 goto out; *(u32 *)(r2 + 0) = r10; out:; r0 = 0; exit",
    // Compared with numbers, and with pointers to elsewhere.
    "r0 = 0; if r1 == 5 goto out; r0 = 1; out:; exit",
    "r0 = 0; if r1 == r10 goto out; r0 = 1; out:; exit",
    "{P} r0 = 0; if r2 > r10 goto out; r0 = 1; out:; exit",
    "{P} r0 = 0; if w2 > w3 goto out; r0 = 1; out:; exit",
    "{P} r0 = 0; if r2 & 1 goto out; r0 = 1; out:; exit",
    // Subtracted.
    "r0 = r10; r0 -= r1; exit",
    "{P} r0 = r10; r0 -= r2; exit",
    "{P} w0 = w10; r0 = r10; w0 -= w1; exit",
    // In part, with its sign, turned round.
    "w0 = w1; exit",
    "w0 = w10; exit",
    "r0 = r1; r0 = -r0; exit",
    "r0 = r1; r0 = be64 r0; exit",
    // To helpers, as a number.
    "r2 = r10; call 48; r0 = 0; exit",
    // Stack that was never written.
    "r0 = *(u64 *)(r10 - 8); exit",
    // Stack with pointers, to a helper that reads bytes.
    "*(u64 *)(r10 - 8) = r1; r1 = r10; r1 += -8; r2 = 8; r3 = 0; r4 = 0; r5 = 0; call 28; exit",
    "r1 = r10; r1 += -8; r2 = 8; r3 = 0; r4 = 0; r5 = 0; call 28; exit",
    // Added to memory.
    "*(u64 *)(r10 - 8) = 0; lock *(u64 *)(r10 - 8) += r1; r0 = *(u64 *)(r10 - 8); exit",
];

/// Programs that root may not load either.
const NOBODYS: &[&str] = &[
    // A number that was a pointer leads nowhere.
    "r2 = r1; *(u64 *)(r1 + 48) = r2; r2 = *(u64 *)(r1 + 48); r0 = *(u32 *)(r2 + 0); exit",
    "{P} r4 = r2; r4 += 8; if r4 > r3 goto out; *(u64 *)(r2 + 0) = r10; r4 = *(u64 *)(r2 + 0); r0 = *(u8 *)(r4 - 1); exit; out:; r0 = 0; exit",
    "w2 = w10; r0 = *(u8 *)(r2 - 1); exit",
    "r2 = *(u64 *)(r10 - 8); r0 = *(u8 *)(r2 + 0); exit",
    // Nothing is learnt by comparing it.
    "{P} if r2 > r10 goto out; r0 = *(u8 *)(r2 + 0); exit; out:; r0 = 0; exit",
    "{P} if w2 >= w3 goto out; r0 = *(u8 *)(r2 + 0); exit; out:; r0 = 0; exit",
    // Calculated with.
    "r0 = r1; r0 *= 2; exit",
    "r0 = r10; r0 &= 7; exit",
    "r0 = 5; r0 -= r1; exit",
    "r0 = r10; r0 += r1; exit",
    // Registers that were never written.
    "r0 = r7; exit",
    // Part of a pointer on the stack.
    "*(u32 *)(r10 - 8) = r1; r0 = 0; exit",
];

#[test]
fn privileged_programs_show_addresses_as_roots_do() {
    let kernel = kernel::available().inspect_err(|why| skipped("privileged programs against the kernel", why)).is_ok();
    for (texts, accepted) in [(ROOTS, true), (NOBODYS, false)] {
        for text in texts {
            let text = text.replace("{P}", PACKET);
            for engine in engines() {
                assert!(load(&engine, &text, false).is_err(), "accepted without privileges:\n{text}");
                match load(&engine, &text, true) {
                    Ok(program) => {
                        assert!(accepted, "accepted:\n{text}");
                        program.run(&mut (), &mut SkBuff::new(&mut FRAME.clone())).unwrap();
                    }
                    Err(e) => assert!(!accepted, "{e}\n{text}"),
                }
            }
            if kernel {
                let bytes = bpf_isa::encode(&insns(&text)).unwrap();
                let theirs = kernel::Program::load(ProgramType::TcClassifier, &bytes);
                assert_eq!(theirs.is_ok(), accepted, "the kernel: {:?}\n{text}", theirs.err().map(|e| e.to_string()));
            }
        }
    }
}

/// A pointer in a map is read back as a number, by both engines the same, and leads nowhere.
#[test]
fn a_scratch_map_holds_pointers_as_numbers() {
    for engine in engines() {
        let map = Map::create(MapDef::new("scratch", MapType::Array, 4, 16, 1), engine.domain()).unwrap();
        let linker = Linker::<()>::new(&engine);
        let find = "*(u32 *)(r10 - 4) = 0; r6 = r1; r2 = r10; r2 += -4; r1 = map[fd:0]; call 1; if r0 == 0 goto out; ";
        let load = |rest: &str, privileged: bool| {
            let loader = linker.loader::<Skb>().maps(&[&map]);
            let loader = loader.privileged(privileged);
            loader.insns("test", insns(&format!("{find}{rest}; out:; r0 = 0; exit")))
        };
        let keep = "r2 = *(u32 *)(r6 + 76); r3 = *(u32 *)(r6 + 80); *(u64 *)(r0 + 0) = r2; *(u64 *)(r0 + 8) = r3; \
                    r1 = *(u64 *)(r0 + 8); r2 = *(u64 *)(r0 + 0); r1 -= r2; r0 = r1; exit";
        assert!(load(keep, false).is_err());
        let kept = load(keep, true).unwrap();
        let mut packet = FRAME;
        assert_eq!(kept.run(&mut (), &mut SkBuff::new(&mut packet)).unwrap(), 60, "the distance of the two addresses");
        let mut value = [0; 16];
        map.lookup(&0u32.to_ne_bytes(), &mut value, 0).unwrap();
        assert_eq!(value[..8], (packet.as_ptr() as u64).to_ne_bytes());
        let used = "r2 = *(u32 *)(r6 + 76); *(u64 *)(r0 + 0) = r2; r2 = *(u64 *)(r0 + 0); r0 = *(u8 *)(r2 + 0); exit";
        let refused = load(used, true).unwrap_err().to_string();
        assert!(refused.contains("number"), "{refused}");
    }
}
