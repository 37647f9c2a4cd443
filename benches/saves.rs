//! `cargo bench -p bpf-benches --bench saves`: the gain of saving only those callee-saved registers that a function
//! uses.
//!
//! The benchmark follows the measurements of the authors of that technique. It prints three tables. The first has
//! tail-call chains and a flow dissector (one source, `programs/flow.h`), in which every hop saves the registers of
//! its program: ours saving used registers, ours saving every callee-saved register in every function, and the
//! kernel. The second has the time of programs of 2, 5 and 10 instructions. The third has the number of arm64
//! instructions that programs become with either way of saving, which needs no arm64 machine. (`--bench speed` has
//! both ways as columns for the speed programs.)

use bpf_benches::{
    measure::{self, Contender},
    programs,
    table::{Table, figure},
};
use bpf_runtime::{
    Config, Engine, Instance, Linker, MapSet, Object, Program, Raw,
    code::{Arch, ListingOptions, compile_listing},
    isa::{Insn, assemble, decode},
};
use bpf_testkit::kernel::{self, ProgramType};
use bpf_testkit::kernel_object::KernelObject;

const FLOW: &[u8] = include_bytes!("programs/flow.o");
const FLOW_XDP: &[u8] = include_bytes!("programs/flow_xdp.o");
const CHAIN: &[u8] = include_bytes!("programs/chain.o");
const CHAIN_BUSY: &[u8] = include_bytes!("programs/chain_busy.o");
const CHAIN_XDP: &[u8] = include_bytes!("programs/chain_xdp.o");
const CHAIN_BUSY_XDP: &[u8] = include_bytes!("programs/chain_busy_xdp.o");

/// Size of `struct flow` (flow.h), which lies before every packet of the dissector.
const FLOW_STATE: usize = 24;

/// Programs of 2, 5 and 10 instructions over (memory, length).
const SMALL: [(&str, &str); 3] = [
    ("2 instructions", "r0 = 1\nexit"),
    ("5 instructions", "r0 = *(u8 *)(r1 + 12)\nr0 <<= 8\nr3 = *(u8 *)(r1 + 13)\nr0 |= r3\nexit"),
    (
        "10 instructions",
        "r0 = 0\nif r2 < 14 goto out\nr3 = *(u16 *)(r1 + 12)\nr3 = be16 r3\nif r3 != 2048 goto out\nr0 = *(u8 *)(r1 + 23)\n\
         r0 &= 63\nr4 = *(u32 *)(r1 + 26)\nr0 ^= r4\nout:\nexit",
    ),
];

fn main() {
    if let Err(why) = run() {
        eprintln!("{why}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), String> {
    if Arch::HOST.is_some() {
        let (by_need, save_all) = (engine(false)?, engine(true)?);
        tail_calls(&by_need, &save_all)?;
        small(&by_need, &save_all)?;
    } else {
        bpf_testkit::skipped("times", &"no JIT for this host");
    }
    arm64_instructions()
}

fn engine(save_all: bool) -> Result<Engine, String> {
    let config = Config::new().save_all(save_all);
    Engine::new(config).map_err(|e| e.to_string())
}

fn instance(engine: &Engine, object: &[u8]) -> Result<Instance<()>, String> {
    let object = Object::parse(object).map_err(|e| e.to_string())?;
    let maps = MapSet::for_object(engine, &object).map_err(|e| e.to_string())?;
    let linker = Linker::new(engine);
    // SAFETY: the kernel's verifier accepts the same source (the XDP objects), which stays within flow state and
    // packet.
    unsafe { linker.loader::<Raw>().unverified(true) }.object(&object, maps).map_err(|e| e.to_string())
}

/// A row of the first table: an entry program, its memory, and its form for the kernel.
struct Entry {
    name: &'static str,
    program: &'static str,
    object: &'static [u8],
    xdp: &'static [u8],
    memory: Vec<u8>,
    metadata: u32,
}

fn tail_calls(by_need: &Engine, save_all: &Engine) -> Result<(), String> {
    let with_kernel = match kernel::available() {
        Ok(()) => true,
        Err(why) => {
            bpf_testkit::skipped("the kernel's column", &why);
            false
        }
    };
    let chain = |name, object, xdp| Entry { name, program: "hop_0", object, xdp, memory: vec![0; 64], metadata: 0 };
    let mut entries = vec![
        chain("chain of 33 jumps", CHAIN, CHAIN_XDP),
        chain("the same, four values kept", CHAIN_BUSY, CHAIN_BUSY_XDP),
    ];
    for (name, packet) in packets() {
        let mut memory = vec![0; FLOW_STATE];
        memory[..4].copy_from_slice(&(packet.len() as u32).to_le_bytes());
        memory.extend(packet);
        let metadata = FLOW_STATE as u32;
        entries.push(Entry { name, program: "flow_dissect", object: FLOW, xdp: FLOW_XDP, memory, metadata });
    }
    let mut table = Table::new(["ns a run", "by need", "save all", "saved", "kernel"]);
    for entry in entries {
        let load = |engine| {
            let program = instance(engine, entry.object)?.program::<Raw>(entry.program).map_err(|e| e.to_string())?;
            let result = program.run(&mut (), &mut entry.memory.clone()).map_err(|e| e.to_string())?;
            Ok::<_, String>((program, result as u32))
        };
        let ((first, result), (second, other)) = (load(by_need)?, load(save_all)?);
        if result != other || result == 0 {
            return Err(format!("{}: {result:#x} and {other:#x}", entry.name));
        }
        let object = with_kernel.then(|| KernelObject::load(entry.xdp, ProgramType::Xdp)).transpose()?;
        let peer = object.as_ref().map(|object| object.program(entry.program)).transpose()?;
        if let Some(peer) = peer {
            let run = peer.test_run(&entry.memory, entry.metadata, 1).map_err(|e| e.to_string())?;
            if run.result != result {
                return Err(format!("{}: {result:#x}, the kernel {:#x}", entry.name, run.result));
            }
        }
        let mut contenders = vec![ours(&first, entry.memory.clone()), ours(&second, entry.memory.clone())];
        if let Some(peer) = peer {
            contenders.push(Box::new(|repeat| {
                let run = peer.test_run(&entry.memory, entry.metadata, repeat).expect("it ran before");
                run.nanoseconds.into()
            }));
        }
        let ns = measure::interleaved(&mut contenders);
        let saved = format!("{:.0} %", 100.0 * (1.0 - ns[0] / ns[1]));
        let kernel = ns.get(2).map_or("-".into(), |&ns| figure(ns));
        table.row([entry.name.into(), figure(ns[0]), figure(ns[1]), saved, kernel]);
    }
    println!("{table}");
    Ok(())
}

fn ours(program: &Program<Raw, ()>, mut memory: Vec<u8>) -> Contender<'_> {
    Box::new(move |repeat| {
        measure::nanoseconds(repeat, |repeat| {
            for _ in 0..repeat {
                std::hint::black_box(program.run(&mut (), &mut memory).expect("it ran before"));
            }
        })
    })
}

fn small(by_need: &Engine, save_all: &Engine) -> Result<(), String> {
    let mut table = Table::new(["ns a run", "by need", "save all", "bytes by need", "save all"]);
    for (name, text) in SMALL {
        let insns = assemble(text).map_err(|e| e.to_string())?;
        let load = |engine: &Engine| {
            let linker = Linker::new(engine);
            // SAFETY: these read at most 30 bytes of the 64 they are given.
            unsafe { linker.loader::<Raw>().unverified(true) }.insns(name, insns.clone()).map_err(|e| e.to_string())
        };
        let (first, second) = (load(by_need)?, load(save_all)?);
        let ns = measure::interleaved(&mut [ours(&first, vec![8; 64]), ours(&second, vec![8; 64])]);
        let bytes = |program: &Program<Raw, ()>| program.machine_code().map_or(0, |(code, _)| code.len()).to_string();
        table.row([name.into(), figure(ns[0]), figure(ns[1]), bytes(&first), bytes(&second)]);
    }
    println!("{table}");
    Ok(())
}

fn arm64_instructions() -> Result<(), String> {
    let mut table = Table::new(["arm64 instructions", "by need", "save all"]);
    let count = |name: &str, insns: &[Insn], save_all| {
        let mut options = ListingOptions::default();
        options.compile.emit.save_all = save_all;
        let (_, code) =
            compile_listing(Arch::Arm64, name, insns.to_vec(), Vec::new(), &options).map_err(|e| e.to_string())?;
        Ok::<_, String>((code.bytes.len() / 4).to_string())
    };
    for (name, text) in SMALL {
        let insns = assemble(text).map_err(|e| e.to_string())?;
        table.row([name.to_owned(), count(name, &insns, false)?, count(name, &insns, true)?]);
    }
    for program in programs::ALL {
        let insns = decode(&program.code()).map_err(|e| e.to_string())?;
        table.row([program.name.to_owned(), count(program.name, &insns, false)?, count(program.name, &insns, true)?]);
    }
    for (object, bytes) in [("flow", FLOW), ("chain_busy", CHAIN_BUSY)] {
        let parsed = Object::parse(bytes).map_err(|e| e.to_string())?;
        let mut totals = [0usize; 2];
        for program in parsed.programs() {
            let code = parsed.code(program).map_err(|e| e.to_string())?;
            for (total, save_all) in totals.iter_mut().zip([false, true]) {
                *total += count(program.name(), code.insns(), save_all)?.parse::<usize>().unwrap_or(0);
            }
        }
        table.row([format!("{object} (all programs)"), totals[0].to_string(), totals[1].to_string()]);
    }
    println!("{table}");
    Ok(())
}

/// Returns packets for the dissector, each with the name of the path that it takes.
fn packets() -> Vec<(&'static str, Vec<u8>)> {
    let frame = |types: &[u8], rest: &[&[u8]]| [&[2; 12][..], types, &rest.concat()].concat();
    let ipv4 = |protocol| {
        let mut header = vec![0x45, 0, 0, 60, 0, 1, 0, 0, 64, protocol, 0, 0];
        header.extend([192, 0, 2, 1, 198, 51, 100, 2]);
        header
    };
    let ipv6 = |next| [&[0x60, 0, 0, 0, 0, 20, next, 64][..], &[0x20; 16], &[0x30; 16]].concat();
    let tcp = [&[0x9c, 0x40, 0x01, 0xbb][..], &[0; 16]].concat();
    let udp = [0x9c, 0x40, 0, 53, 0, 8, 0, 0];
    let (ip4, ip6) = ([0x08, 0], [0x86, 0xdd]);
    vec![
        ("flow: IPv4, TCP", frame(&ip4, &[&ipv4(6), &tcp])),
        ("flow: VLAN, VLAN, IPv6, UDP", frame(&[0x88, 0xa8], &[&[0, 1, 0x81, 0], &[0, 2], &ip6, &ipv6(17), &udp])),
        ("flow: MPLS, MPLS, IPv4, TCP", frame(&[0x88, 0x47], &[&[0, 1, 0, 64], &[0, 2, 1, 64], &ipv4(6), &tcp])),
        ("flow: IPv4, GRE, IPv4, UDP", frame(&ip4, &[&ipv4(47), &[0, 0], &ip4, &ipv4(17), &udp])),
        ("flow: IPv4, IPv6, IPv4, TCP", frame(&ip4, &[&ipv4(41), &ipv6(4), &ipv4(6), &tcp])),
    ]
}
