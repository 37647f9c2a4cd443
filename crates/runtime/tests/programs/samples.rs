//! The sample objects through the front door: loaded without `unsafe`, verified, and run over a capture.
//!
//! Verdicts are those of the verifier's table, which was written by hand. Accepted programs run on both engines, and
//! results, packets and map contents must be equal.
//!
//! The objects are not in the repository: they are looked for in `$BPF_SHARED/objects` or `../shared/objects` beside
//! it.

use crate::support::ways;
use bpf_runtime::{
    BpfContext, Config, Context, ContextBytesMut, Engine, Linker, LoadError, MapSet, Mode, Object, RunError,
    code::Arch,
    isa::{Callee, Insn},
    maps::MapType,
    net::{SkBuff, Skb, Sock, SockBuff, SockOps, SockOpsBuff, Xdp, XdpBuff},
    object::ProgramType,
};
use bpf_testkit::{cases::shared, skipped};
use std::path::{Path, PathBuf};

const TABLE: &str = include_str!("../../../verifier/tests/samples.tsv");

/// The context that some of the samples were written for.
#[derive(BpfContext)]
#[bpf(name = "test_md")]
#[repr(C)]
struct TestMd<'p> {
    data: ContextBytesMut<'p>,
}

/// The packets of a capture: little-endian, microseconds (draft-ietf-opsawg-pcap).
pub(crate) fn capture() -> Vec<Vec<u8>> {
    let bytes = include_bytes!("../../../../examples/packets.pcap");
    assert_eq!(bytes[..4], [0xd4, 0xc3, 0xb2, 0xa1]);
    let mut rest = &bytes[24..];
    let mut packets = Vec::new();
    while let Some((header, tail)) = rest.split_first_chunk::<16>() {
        let len = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        packets.push(tail[..len].to_vec());
        rest = &tail[len..];
    }
    assert!(packets.len() > 10, "the capture has {} packets", packets.len());
    packets
}

fn folder(name: &str) -> Option<PathBuf> {
    shared(&format!("objects/{name}")).inspect_err(|e| skipped(&format!("sample objects in {name}"), e)).ok()
}

pub(crate) fn parse(path: &Path) -> Result<Object, String> {
    Object::parse(&std::fs::read(path).map_err(|e| e.to_string())?).map_err(|e| e.to_string())
}

/// Keys and values, ascending.
type Elements = Vec<(Vec<u8>, Vec<u8>)>;

/// The outcome of a program over the capture.
#[derive(PartialEq, Debug)]
struct Outcome {
    /// r0 of each packet, or how its run ended, and the packet afterwards.
    runs: Vec<(Result<u64, String>, Vec<u8>)>,
    /// The maps, by name.
    maps: Vec<(String, Elements)>,
}

impl Outcome {
    /// The first run or map that is not as in the other.
    fn difference(&self, other: &Outcome) -> String {
        let run = self.runs.iter().zip(&other.runs).position(|(a, b)| a != b);
        match run {
            Some(i) => format!("packet {i}: {:x?} or {:x?}", self.runs[i], other.runs[i]),
            None => format!("maps: {:?} or {:?}", self.maps, other.maps),
        }
    }
}

type Run<C> = fn(&bpf_runtime::Program<C, ()>, &mut [u8]) -> Result<u64, RunError>;

/// Whether the program's result depends on its input alone: it asks neither for the time nor for random numbers.
pub(crate) fn repeatable(object: &Object, name: &str) -> bool {
    const CLOCK_AND_CHANCE: [u32; 3] = [5, 7, 125];
    let code = object.code(object.program(name).unwrap()).unwrap();
    !code.insns().iter().any(|i| matches!(i, Insn::Call(Callee::Helper(id)) if CLOCK_AND_CHANCE.contains(id)))
}

/// Loads the program and runs it over the capture, on each engine; all come to the same.
fn go<C: Context>(object: &Object, name: &str, run: Run<C>) -> Result<Outcome, LoadError> {
    let mut first: Option<Outcome> = None;
    for mode in [Mode::Interpreter].into_iter().chain(Arch::HOST.map(|_| Mode::Jit)) {
        let config = Config::new().mode(mode);
        let engine = Engine::new(config).unwrap();
        let linker = Linker::<()>::new(&engine);
        // The samples' `struct test_md` names its two pointers otherwise than our byte slice.
        let loader = || linker.loader::<C>().assume_layout(true).only(&[name]);
        let loaded = loader().object(object, MapSet::for_object(&engine, object)?);
        let made = loader().compile(object).and_then(|module| ways::read_back(&linker, module).instance().make());
        let (instance, made) = match (loaded, made) {
            (Ok(loaded), Ok(made)) => (loaded, made),
            (Err(loaded), Err(made)) => {
                assert_eq!(loaded.to_string(), made.to_string(), "{name}: the errors of load and module");
                return Err(loaded);
            }
            (Err(error), Ok(_)) => panic!("{name}: not loaded, but made an instance of: {error}"),
            (Ok(_), Err(error)) => panic!("{name}: loaded, but not made an instance of: {error}"),
        };
        let runs_of = |instance: &bpf_runtime::Instance<()>| -> Result<Outcome, LoadError> {
            let program = instance.program::<C>(name)?;
            let one = |mut packet: Vec<u8>| {
                let result = run(&program, &mut packet).map_err(|e| e.to_string());
                (result, packet)
            };
            let runs = capture().into_iter().map(one).collect();
            let contents = |map: &bpf_runtime::maps::Map| {
                let mut elements: Elements = map.iter().filter_map(Result::ok).collect();
                elements.sort();
                (map.name().to_owned(), elements)
            };
            // The values of maps of maps are numbers of maps, each of which exists once.
            let of_maps =
                |map: &&bpf_runtime::maps::Map| matches!(map.map_type(), MapType::ArrayOfMaps | MapType::HashOfMaps);
            Ok(Outcome { runs, maps: instance.maps().filter(|map| !of_maps(map)).map(contents).collect() })
        };
        let outcome = runs_of(&instance)?;
        if repeatable(object, name) {
            let made = runs_of(&made)?;
            assert!(outcome == made, "{name}: load and instance differ: {}", outcome.difference(&made));
        }
        match &first {
            Some(first) if repeatable(object, name) => {
                assert!(*first == outcome, "{name}: the engines differ: {:?}", first.difference(&outcome))
            }
            Some(_) => {}
            None => first = Some(outcome),
        }
    }
    Ok(first.expect("an engine"))
}

/// On the context that the program's section stands for; `None` if that is not shipped.
fn outcome(object: &Object, program: &bpf_runtime::object::Program) -> Option<Result<Outcome, LoadError>> {
    let name = program.name();
    let xdp: Run<Xdp> = |program, packet| program.run(&mut (), &mut XdpBuff::new(packet));
    let skb: Run<Skb> = |program, packet| program.run(&mut (), &mut SkBuff::new(packet));
    let test: Run<TestMd<'static>> =
        |program, packet| program.run(&mut (), &mut TestMd { data: ContextBytesMut::new(packet)? });
    Some(match program.kind() {
        ProgramType::Xdp => go(object, name, xdp),
        ProgramType::SocketFilter
        | ProgramType::TcClassifier
        | ProgramType::TcAction
        | ProgramType::CgroupSkb
        | ProgramType::SkSkb => go(object, name, skb),
        ProgramType::Unknown if program.section() == "test_md" => go(object, name, test),
        ProgramType::CgroupSock => {
            go::<Sock>(object, name, |program, _| program.run(&mut (), &mut SockBuff::default()))
        }
        ProgramType::SockOps => {
            go::<SockOps>(object, name, |program, _| program.run(&mut (), &mut SockOpsBuff::default()))
        }
        // Sections that stand for nothing: the samples' programs there use no context, or a packet.
        ProgramType::Unknown if !program.section().contains('/') => go(object, name, xdp),
        _ => return None,
    })
}

#[test]
fn samples_load_and_run_as_the_table_says() {
    let Some(folder) = folder("samples/build") else { return };
    let mut failures = Vec::new();
    let (mut ran, mut global_functions) = (0, 0);
    // Under an emulator, which takes minutes to verify them all, every fourth one.
    let step = if bpf_testkit::emulated() { 4 } else { 1 };
    let rows: Vec<&str> = TABLE.lines().filter(|l| !l.starts_with('#')).step_by(step).collect();
    for row in &rows {
        let mut cells = row.split('\t');
        let mut cell = || cells.next().unwrap_or_default();
        let (file, name, want, why) = (cell(), cell(), cell(), cell());
        let object = match parse(&folder.join(file)) {
            Ok(object) => object,
            Err(_) if want == "link" => continue,
            Err(error) => panic!("{file}: {error}"),
        };
        let program = object.program(name).unwrap();
        match (want, outcome(&object, program)) {
            ("accept", Some(Ok(outcome))) => {
                ran += 1;
                if let Some((Err(error), _)) = outcome.runs.iter().find(|run| run.0.is_err()) {
                    failures.push(format!("{file} {name}: a verified program's run ended: {error}"));
                }
            }
            // Its `add1(int *)` is a global function, verified by its signature as in the kernel: its pointer may be
            // null. The table's verdict is for a static one.
            ("accept", Some(Err(LoadError::Verifier { source, .. }))) if file == "bpf2bpf.o" => {
                global_functions += usize::from(source.to_string().contains("may be null here"));
            }
            // Some get no further than their map.
            (
                "refuse",
                Some(Err(LoadError::Verifier { .. } | LoadError::UnknownHelper { .. } | LoadError::Map { .. })),
            ) => {}
            ("link", Some(Err(LoadError::Object(_) | LoadError::UnknownHelper { .. } | LoadError::Map { .. }))) => {}
            (want, outcome) => {
                let got = outcome.map(|o| o.map(|_| "it ran").map_err(|e| e.to_string()));
                failures.push(format!("{file} {name}: wanted {want} {why}: {got:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(global_functions, rows.iter().filter(|l| l.starts_with("bpf2bpf.o\t")).count());
    assert_eq!(ran, rows.iter().filter(|l| l.contains("\taccept\t")).count() - global_functions);
}

/// The other objects are the kernel's and the tail-call samples, of many kinds. Those whose context is shipped load, or
/// are refused with a reason that names what is missing; and what loads runs.
#[test]
fn other_objects_load_where_their_context_is_shipped() {
    for (name, least) in
        [("samples/cilium-examples", 5), ("samples/new_linux", 9), ("tailcalls/v3", 17), ("tailcalls/v4", 17)]
    {
        let Some(folder) = folder(name) else { continue };
        let mut ran = 0;
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let Ok(object) = parse(&path) else { continue };
            for program in object.programs() {
                let name = format!("{} {}", path.display(), program.name());
                match outcome(&object, program) {
                    Some(Ok(outcome)) => {
                        ran += 1;
                        let ended = outcome.runs.iter().find_map(|run| run.0.as_ref().err());
                        assert_eq!(ended, None, "{name}: a verified program's run ended");
                    }
                    Some(Err(LoadError::Internal(error))) => panic!("{name}: {error}"),
                    Some(Err(error)) => println!("refused {name}: {error}"),
                    None => println!("not shipped {name}: {}", program.section()),
                }
            }
        }
        println!("{name}: {ran} ran");
        assert!(ran >= least, "{name}: {ran} ran");
    }
}

/// Whether each program is accepted, of all objects of a folder, on the context that its object is for; and the first
/// reason of each that is not. Of so many programs one is verified.
fn survey(name: &str, step: usize) -> Option<Vec<(String, Result<(), String>)>> {
    let config = Config::new();
    let engine = Engine::new(config).unwrap();
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder(name)?).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let (mut verdicts, mut number) = (Vec::new(), 0);
    for path in files {
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        let Ok(object) = parse(&path) else { continue };
        for program in object.programs() {
            number += 1;
            if number % step != 0 {
                continue;
            }
            let verify = |result: Result<_, LoadError>| match result {
                Ok(_) => Ok(()),
                Err(LoadError::Verifier { source, .. }) => Err(source.to_string()),
                Err(error) => Err(error.to_string()),
            };
            let only = [program.name()];
            let verdict = MapSet::for_object(&engine, &object).map_err(|e| e.to_string()).and_then(|maps| {
                let linker = Linker::<()>::new(&engine);
                let xdp = program.kind() == ProgramType::Xdp || file.contains("xdp");
                verify(match xdp {
                    true => linker.loader::<Xdp>().only(&only).verify(&object, maps, false).map(drop),
                    false => linker.loader::<Skb>().only(&only).verify(&object, maps, false).map(drop),
                })
            });
            verdicts.push((format!("{file} {}", program.name()), verdict));
        }
    }
    Some(verdicts)
}

/// A datapath for the kernel: every program is accepted but the ones named here.
#[test]
fn a_datapath_is_accepted() {
    // The verifier does not depend on the machine: under an emulator, every fourth program.
    let step = if bpf_testkit::emulated() { 4 } else { 1 };
    let Some(verdicts) = survey("samples/cilium", step) else { return };
    let refused: Vec<_> = verdicts.iter().filter_map(|(name, verdict)| Some((name, verdict.as_ref().err()?))).collect();
    for (name, reason) in &refused {
        println!("{name}: {reason}");
    }
    println!("{} of {} accepted", verdicts.len() - refused.len(), verdicts.len());
    // The kernel walks 92 thousand instructions of it; we, more than a million.
    let known = |name: &str| name.ends_with("tail_nodeport_nat_ipv6");
    let unknown: Vec<_> = refused.iter().filter(|(name, _)| !known(name)).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert!(verdicts.len() >= 43 / step, "{} programs", verdicts.len());
}
