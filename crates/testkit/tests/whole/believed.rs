//! Contained programs of a verifier that is wrong: what no selection before an access can mend.

use crate::hardening::Unknown;
use bpf_jit_code::{Arch, Code};
use bpf_runtime::maps::{Map, MapDef, MapType};
use bpf_runtime::net::{Xdp, XdpBuff};
use bpf_runtime::{Caller, Config, Engine, Linker, Mode, Program, Raw, isa::assemble, oracle};
use bpf_verifier::faults::{Fault, plant};
use bpf_verifier::{ContextLayout, Env, Helpers, Verifier};
use std::cell::UnsafeCell;
use std::sync::Mutex;

fn global(engine: &Engine) -> Map {
    let map = Map::create(MapDef::new("global", MapType::Array, 4, 64, 1), engine.domain()).unwrap();
    map.update(&[0; 4], &(0..64).collect::<Vec<u8>>(), 0).unwrap();
    map
}

/// A program that replaces address and size of a dynptr by numbers of its input, which a wrong comparison lets it, and
/// then does `last`.
fn forges(engine: &Engine, recordable: bool, last: &str) -> Program<Raw, ()> {
    let text = format!(
        "r0 = 0\nif r2 < 32 goto out\nr6 = *(u64 *)(r1 + 0)\nr7 = *(u64 *)(r1 + 8)\nr8 = *(u64 *)(r1 + 16)\n\
         r9 = *(u64 *)(r1 + 24)\nr1 = map[fd:0][0]+8\nr2 = 40\nr3 = 0\nr4 = r10\nr4 += -32\ncall 197\n\
         *(u64 *)(r10 - 16) = 0\n*(u64 *)(r10 - 8) = 0\nr0 = 0\n\
         if r6 s> 8 goto out\nr4 = r10\nr4 += -16\nr4 += r6\n*(u64 *)(r4 + 0) = r7\n\
         if r8 s> 8 goto out\nr4 = r10\nr4 += -16\nr4 += r8\n*(u64 *)(r4 + 0) = r9\n\
         {last}\nout: exit"
    );
    let (map, linker) = (global(engine), Linker::<()>::new(engine));
    let load = || linker.loader().maps(&[&map]).recordable(recordable).insns("forges", assemble(&text).unwrap());
    assert!(load().is_err(), "refused by a verifier that is right");
    plant(Some(Fault::SignedIsUnsigned));
    let program = load();
    plant(None);
    program.unwrap()
}

/// A word of the host, and the input that leads a forged dynptr there.
fn input(word: &UnsafeCell<u64>) -> Vec<u8> {
    let words = [-16i64 as u64, word.get().expose_provenance() as u64, -8i64 as u64, 8];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The interpreter restores dynptrs as machine code does: in its own mode, and in observed runs of machine code.
#[test]
fn a_dynptr_leads_nowhere_else_in_the_interpreter() {
    let reads = "r1 = r10\nr1 += -8\nr2 = 8\nr3 = r10\nr3 += -32\nr4 = 0\nr5 = 0\ncall 201\nr0 = *(u64 *)(r10 - 8)";
    let writes = "*(u64 *)(r10 - 8) = 77\nr1 = r10\nr1 += -32\nr2 = 0\nr3 = r10\nr3 += -8\nr4 = 8\nr5 = 0\ncall 202";
    for mode in [Mode::Jit, Mode::Interpreter] {
        if mode == Mode::Jit && Arch::HOST.is_none() {
            eprintln!("SKIPPED: no machine code on this host");
            continue;
        }
        for (last, result) in [(reads, 0x0f0e_0d0c_0b0a_0908), (writes, 0)] {
            let word = UnsafeCell::new(5);
            let engine = Engine::new(Config::untrusted().mode(mode)).unwrap();
            let program = forges(&engine, true, last);
            assert_eq!(program.run(&mut (), &mut input(&word)).unwrap(), result, "{mode:?}");
            let program = forges(&engine, true, last);
            assert_eq!(program.run_observed(&mut (), &mut input(&word), &mut ()).unwrap(), result, "{mode:?}");
            // SAFETY: the word is there; if a test has failed to keep the program from it, this shows that.
            assert_eq!(unsafe { word.get().read_volatile() }, 5, "{mode:?}");
        }
    }
}

/// A helper gets the context in the interpreter too, or the run ends: the program has replaced its spilled pointer.
#[test]
fn a_context_is_nothing_else_in_the_interpreter() {
    let text = "r0 = 0\nr2 = *(u32 *)(r1 + 0)\nr3 = *(u32 *)(r1 + 4)\nr4 = r2\nr4 += 16\nif r4 > r3 goto out\n\
        r6 = *(u64 *)(r2 + 0)\nr7 = *(u64 *)(r2 + 8)\n*(u64 *)(r10 - 40) = r1\n*(u64 *)(r10 - 16) = 0\n\
        *(u64 *)(r10 - 8) = 0\nif r6 s> 8 goto out\nr4 = r10\nr4 += -16\nr4 += r6\n*(u64 *)(r4 + 0) = r7\n\
        r1 = *(u64 *)(r10 - 40)\nr2 = 0\nr3 = r10\nr3 += -8\nr4 = 8\ncall 189\nout: exit";
    let engine = Engine::new(Config::untrusted().mode(Mode::Interpreter)).unwrap();
    let linker = Linker::<()>::new(&engine);
    let load = || linker.loader::<Xdp>().insns("context", assemble(text).unwrap());
    assert!(load().is_err(), "refused by a verifier that is right");
    plant(Some(Fault::SignedIsUnsigned));
    let program = load();
    plant(None);
    let words: [u64; 2] = [-24i64 as u64, 0x1234_5678];
    let mut packet: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let error = program.unwrap().run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap_err();
    assert!(error.to_string().contains("0x12345678 is not the context"), "{error}");
}

/// A slice begins at any byte, so nothing that must be aligned is accessed in one.
#[test]
fn a_slice_has_no_alignment() {
    let slice = "r1 = map[fd:0][0]+0\nr2 = 64\nr3 = 0\nr4 = r10\nr4 += -32\ncall 197\n\
        r1 = r10\nr1 += -32\nr2 = 1\nr3 = 8\ncall 203\n";
    let atomic = format!("{slice}if r0 == 0 goto out\nr1 = 1\nlock *(u64 *)(r0 + 0) += r1\nout: r0 = 0\nexit");
    // `bpf_strtol`, which writes an aligned number.
    let number = format!("{slice}r4 = r0\n*(u64 *)(r10 - 8) = 49\nr1 = r10\nr1 += -8\nr2 = 1\nr3 = 0\ncall 105\nexit");
    for text in [atomic, number] {
        let engine = Engine::new(Config::untrusted()).unwrap();
        let (map, linker) = (global(&engine), Linker::<()>::new(&engine));
        // SAFETY: the program is not run.
        unsafe { oracle::believe(true) };
        let program = linker.loader::<Raw>().maps(&[&map]).insns("slice", assemble(&text).unwrap());
        // SAFETY: only `true` needs a promise.
        unsafe { oracle::believe(false) };
        assert!(program.is_err(), "{text}");
    }
}

/// Two references to memory outside of its regions are to different memory.
#[test]
fn exclusive_references_of_a_call_share_no_byte() {
    static SEEN: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
    if Arch::HOST.is_none() {
        eprintln!("SKIPPED: no machine code on this host");
        return;
    }
    let engine = Engine::new(Config::untrusted()).unwrap();
    let mut linker = Linker::<()>::new(&engine);
    linker
        .func(1001, "both", |_: &mut Caller<'_, ()>, a: &mut [u8; 8], b: &mut [u8; 8]| -> u64 {
            SEEN.lock().unwrap().push((a.as_ptr().addr(), b.as_ptr().addr()));
            a[0] = 1;
            b[0] = 2;
            a[0].into()
        })
        .unwrap();
    // 1000 bytes into the packet, and 1000 bytes into the metadata: outside of both.
    let text =
        "r6 = *(u32 *)(r1 + 0)\nr7 = *(u32 *)(r1 + 8)\nr1 = r6\nr1 += 1000\nr2 = r7\nr2 += 1000\ncall 1001\nexit";
    // SAFETY: the program is contained.
    unsafe { oracle::believe(true) };
    let program = linker.loader::<Xdp>().insns("both", assemble(text).unwrap());
    // SAFETY: only `true` needs a promise.
    unsafe { oracle::believe(false) };
    let program = program.unwrap();
    let mut packet = [0u8; 64];
    assert_eq!(program.run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap(), 1);
    let (a, b) = SEEN.lock().unwrap()[0];
    assert!(a.abs_diff(b) >= 8, "{a:x} {b:x}");
    assert_eq!(packet, [0; 64]);
}

/// The walk says that the stack is not used, and a call uses 64 bytes of it.
#[test]
fn a_frame_has_room_for_the_arguments_of_calls() {
    let text = "r0 = 0\nif r2 < 1 goto out\nr6 = *(u8 *)(r1 + 0)\nr6 &= 0\nr1 = r10\nr1 += -64\nr1 += r6\nr2 = 64\n\
        call 16\nout: exit";
    let (context, helpers) = (ContextLayout::raw(true), Helpers::shipped());
    let env = Env::new(&context, &helpers);
    let program = bpf_isa::Program::new(assemble(text).unwrap()).unwrap();
    let (program, mut facts) = Verifier::new().verify(program, &env).unwrap().into_parts();
    facts.stack_bytes = vec![0];
    bpf_verifier::contain(&program, &env, &mut facts).unwrap();
    assert!(facts.contained.as_ref().unwrap().frames[0] >= 64);
    let mut compiler = bpf_jit::Compiler::<bpf_jit_x64::X64>::default();
    let lower = bpf_jit::LowerOptions { budget: true, ..Default::default() };
    let options = bpf_jit::CompileOptions { lower, ..Default::default() };
    let mut code = Code::new(Arch::X64);
    compiler.compile(&program, &facts, &Unknown, &options, &mut code).unwrap();
}
