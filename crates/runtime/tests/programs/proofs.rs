//! Objects that carry proofs of their programs: loads that check the proof, with and without a proof that holds.

use bpf_runtime::{
    Config, Engine, Linker, LoadError, Loader, MapSet, Mode, Object, Raw,
    code::Arch,
    net::{Skb, Xdp, XdpBuff},
    verify::{PROVING_FUEL, ProofError, ProofPart, ProofSection, Proofs},
};

const FILTER: &[u8] = include_bytes!("../../../../examples/xdp_filter.o");

fn engine(mode: Mode) -> Engine {
    let config = Config::new().mode(mode);
    Engine::new(config).unwrap()
}

fn modes() -> impl Iterator<Item = Mode> {
    [Mode::Interpreter].into_iter().chain(Arch::HOST.map(|_| Mode::Jit))
}

/// The object with proofs of its programs.
fn proven() -> Vec<u8> {
    let (engine, object) = (engine(Mode::Interpreter), Object::parse(FILTER).unwrap());
    let linker = Linker::<()>::new(&engine);
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let reports = linker.loader::<Xdp>().prove(&object, maps, PROVING_FUEL).unwrap();
    let proofs: Vec<_> = reports.iter().map(|report| (&*report.program, report.proof.clone().unwrap())).collect();
    Object::with_proofs(FILTER, &ProofSection::to_bytes(&proofs)).unwrap()
}

/// Loads the program, and makes an instance of its module: returns the results of both for packets, which are equal.
fn run(mode: Mode, bytes: &[u8], proofs: Proofs) -> Result<Vec<u64>, LoadError> {
    let (engine, object) = (engine(mode), Object::parse(bytes).unwrap());
    let linker = Linker::<()>::new(&engine);
    let maps = MapSet::for_object(&engine, &object)?;
    let instance = linker.loader::<Xdp>().proofs(proofs).object(&object, maps)?;
    let made = linker.loader::<Xdp>().proofs(proofs).compile(&object)?.instance().make()?;
    let [program, made] = [instance, made].map(|instance| instance.program::<Xdp>("xdp_filter").unwrap());
    let run = |seed: u8| {
        let mut packet: Vec<u8> = (0..seed % 120).map(|i| i.wrapping_mul(seed)).collect();
        if packet.len() > 24 {
            packet[12..14].copy_from_slice(&[8, 0]);
            (packet[14], packet[23]) = (0x45, [6, 17, 1][usize::from(seed % 3)]);
        }
        let result = program.run(&mut (), &mut XdpBuff::new(&mut packet.clone())).unwrap();
        assert_eq!(made.run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap(), result, "{seed}");
        result
    };
    Ok((0..=255).map(run).collect())
}

fn refused(bytes: &[u8]) -> ProofError {
    match run(Mode::Interpreter, bytes, Proofs::Require) {
        Err(LoadError::Proof { source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_program_that_carries_its_proof_is_loaded_by_checking_it() {
    let proven = proven();
    for mode in modes() {
        let searched = run(mode, FILTER, Proofs::Ignore).unwrap();
        assert!(searched.iter().any(|verdict| *verdict != searched[0]), "{searched:?}");
        for proofs in [Proofs::Check, Proofs::Require, Proofs::Ignore] {
            assert_eq!(run(mode, &proven, proofs).unwrap(), searched, "{mode:?} {proofs:?}");
        }
        // Without a proof, and where there need not be one.
        assert_eq!(run(mode, FILTER, Proofs::Check).unwrap(), searched);
    }
    assert_eq!(refused(FILTER), ProofError::Missing);
}

#[test]
fn a_report_says_whether_the_proof_holds() {
    let (engine, proven) = (engine(Mode::Interpreter), proven());
    let report = |bytes: &[u8], proofs| {
        let object = Object::parse(bytes).unwrap();
        let maps = MapSet::for_object(&engine, &object).unwrap();
        let linker = Linker::<()>::new(&engine);
        linker.loader::<Xdp>().proofs(proofs).verify(&object, maps, false).unwrap().remove(0)
    };
    let checked = report(&proven, Proofs::Check);
    assert_eq!((checked.proof, checked.steps), (Some(Ok(())), 0));
    let ignored = report(&proven, Proofs::Ignore);
    assert!(ignored.proof.is_none() && ignored.steps > 0);
    let searched = report(FILTER, Proofs::Check);
    assert!(searched.proof == Some(Err(ProofError::Missing)) && searched.steps > 0);
}

/// One way of loading an object with these maps.
type Load<'a> = &'a dyn Fn(&Linker<()>, MapSet) -> Result<(), LoadError>;

#[test]
fn an_error_says_which_part_differs() {
    let proven = proven();
    let differs = |object: &Object, load: Load<'_>| {
        let engine = engine(Mode::Interpreter);
        let maps = MapSet::for_object(&engine, object).unwrap();
        match load(&Linker::<()>::new(&engine), maps) {
            Err(LoadError::Proof { source: ProofError::Differs { part }, .. }) => part,
            other => panic!("{other:?}"),
        }
    };
    let mut object = Object::parse(&proven).unwrap();
    let by = |linker: &Linker<()>, object: &Object, maps| {
        linker.loader::<Xdp>().proofs(Proofs::Require).object(object, maps).map(drop)
    };
    let part = differs(&object, &|linker, maps| {
        linker.loader::<Skb>().proofs(Proofs::Require).object(&object, maps).map(drop)
    });
    assert_eq!(part, ProofPart::Context);
    let part = differs(&object, &|linker, maps| {
        linker.loader::<Raw>().proofs(Proofs::Require).object(&object, maps).map(drop)
    });
    assert_eq!(part, ProofPart::Context);
    object.set_max_entries("verdicts", 7).unwrap();
    assert_eq!(differs(&object, &|linker, maps| by(linker, &object, maps)), ProofPart::Maps);
    // A loader that may search loads it all the same.
    let engine = engine(Mode::Interpreter);
    let maps = MapSet::for_object(&engine, &object).unwrap();
    Linker::<()>::new(&engine).loader::<Xdp>().object(&object, maps).unwrap();
}

#[test]
fn no_bytes_of_a_proof_do_harm() {
    let proven = proven();
    let section = Object::parse(&proven).unwrap().proofs().unwrap().to_vec();
    let with = |section: &[u8]| Object::with_proofs(FILTER, section).unwrap();
    let searched = run(Mode::Interpreter, FILTER, Proofs::Ignore).unwrap();
    let mut future = section.clone();
    future[8] = 9;
    assert_eq!(refused(&with(&future)), ProofError::Version { found: 9 });
    // The checker of proofs does not depend on the machine: under an emulator, every fourth change.
    let step = if bpf_testkit::emulated() { 4 } else { 1 };
    for end in (1..section.len()).step_by(7 * step) {
        let error = refused(&with(&section[..end]));
        assert!(matches!(error, ProofError::Malformed { .. }), "{end}: {error}");
    }
    for round in (0..100usize).step_by(step) {
        let mut section = section.clone();
        let at = (round * 37 + 9) % section.len();
        section[at] = section[at].wrapping_add((round * 5 + 1) as u8);
        let bytes = with(&section);
        // The results do not depend on how the program was accepted.
        match run(Mode::Interpreter, &bytes, Proofs::Require) {
            Ok(verdicts) => assert_eq!(verdicts, searched),
            Err(error) => assert!(matches!(error, LoadError::Proof { .. }), "{error}"),
        }
        assert_eq!(run(Mode::Interpreter, &bytes, Proofs::Check).unwrap(), searched);
    }
}

const OPEN: &[u8] = include_bytes!("../objects/open.o");

/// The names of the ways to link an object that accept it: all of them treat constants alike.
fn accepted<'l>(
    object: &Object,
    loader: impl Fn() -> Loader<'l, Raw, ()>,
    set: impl Fn() -> MapSet,
) -> Vec<&'static str> {
    let proven = |report: &bpf_runtime::verify::ProofReport| report.proof.is_ok();
    let proven = loader().prove(object, set(), PROVING_FUEL).is_ok_and(|reports| reports.iter().all(proven));
    let ways = [
        ("load", loader().object(object, set()).is_ok()),
        ("compile", loader().compile(object).is_ok()),
        ("verify", loader().verify(object, set(), false).is_ok()),
        ("prove", proven),
    ];
    ways.into_iter().filter(|(_, accepted)| *accepted).map(|(way, _)| way).collect()
}

#[test]
fn constants_are_open_to_all_ways_of_linking_or_to_none() {
    const ALL: [&str; 4] = ["load", "compile", "verify", "prove"];
    for mode in modes() {
        let (engine, object) = (engine(mode), Object::parse(OPEN).unwrap());
        let linker = Linker::<()>::new(&engine);
        let set = || MapSet::for_object(&engine, &object).unwrap();
        let linker = &linker;
        let only = |program| move || linker.loader::<Raw>().only(&[program]);
        assert_eq!(accepted(&object, only("within"), set), ALL);
        // The index is within the bounds for the object's value of the constant, and not for all values.
        assert_eq!(accepted(&object, only("trusts"), set), [""; 0]);
        assert_eq!(accepted(&object, only("relies"), set), ALL);
        let opened = || only("relies")().open_constants(&[".rodata"]);
        assert_eq!(accepted(&object, opened, set), [""; 0]);
        // A module is compiled without a set of maps.
        let other = || set().global("place", &9u64.to_ne_bytes()).unwrap();
        assert_eq!(accepted(&object, only("relies"), other), ["compile"]);
    }
}

/// A proof for open constants serves instances that differ in them.
#[test]
fn a_proof_is_for_any_open_constants() {
    let object = Object::parse(OPEN).unwrap();
    let plain = engine(Mode::Interpreter);
    let loader = Linker::<()>::new(&plain);
    let maps = MapSet::for_object(&plain, &object).unwrap();
    let reports = loader.loader::<Raw>().only(&["within"]).prove(&object, maps, PROVING_FUEL).unwrap();
    let proofs: Vec<_> = reports.iter().map(|report| (&*report.program, report.proof.clone().unwrap())).collect();
    let object = Object::parse(&Object::with_proofs(OPEN, &ProofSection::to_bytes(&proofs)).unwrap()).unwrap();
    for mode in modes() {
        let engine = engine(mode);
        let linker = Linker::<()>::new(&engine);
        let loader = || linker.loader::<Raw>().only(&["within"]).proofs(Proofs::Require);
        let module = loader().compile(&object).unwrap();
        for (limit, result) in [(0u64, 10), (3, 13), (4, 1000), (u64::MAX, 1000)] {
            let with = |maps: MapSet| maps.global("limit", &limit.to_ne_bytes()).unwrap();
            let made = module.instantiate(with(module.maps())).unwrap();
            let loaded = loader().object(&object, with(MapSet::for_object(&engine, &object).unwrap())).unwrap();
            for instance in [made, loaded] {
                let program = instance.program::<Raw>("within").unwrap();
                assert_eq!(program.run(&mut (), &mut []).unwrap(), result, "{mode:?}, {limit}");
            }
        }
        let maps = MapSet::for_object(&engine, &object).unwrap();
        let report = loader().verify(&object, maps, false).unwrap().remove(0);
        assert_eq!((report.proof, report.steps), (Some(Ok(())), 0));
    }
}
