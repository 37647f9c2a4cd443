//! C's functions over memory, which compilers call by themselves: beside a plain model on every engine, and refused
//! where a length or the memory is not proven.

use crate::support::ways::{self, WAYS, Way};
use bpf_runtime::{
    Caller, HelperError, Instance, Linker, LoadError, MapSet, Object, Raw, RunError,
    net::{Xdp, XdpBuff},
};

const OBJECT: &[u8] = include_bytes!("../objects/builtins.o");
const OLDER: &[u8] = include_bytes!("../objects/builtins.v2.o");
const OWN: &[u8] = include_bytes!("../objects/builtins_own.o");
const PROGRAMS: [&str; 8] =
    ["copies", "copies_back", "moves", "copies_over", "fills", "compares", "stacks", "never_written"];
const VERIFIED: [Way; 5] =
    [Way::Verified, Way::Unoptimised, Way::VerifiedInterpreted, Way::Instance, Way::InterpretedInstance];
const REFUSED: [(&str, &str); 10] = [
    ("any_length", "a length with a known maximum"),
    ("one_too_many", "1024"),
    ("packet_too_short", "64"),
    ("signed_length", "a length with a known maximum"),
    ("over_the_lock", "lock"),
    ("over_pointers", "pointer"),
    ("over_the_context", "may not be accessed as memory"),
    ("null_of_some", "is the number 0"),
    ("behind_what_is_returned", "1024"),
    ("behind_the_stack", "stack"),
];

fn load(way: Way, bytes: &[u8], only: &[&str]) -> Result<Instance<()>, LoadError> {
    let engine = ways::engine(way, |config| config);
    let object = Object::parse(bytes).unwrap();
    let maps = MapSet::for_object(&engine, &object).unwrap();
    Linker::<()>::new(&engine).loader::<Xdp>().only(only).object(&object, maps)
}

/// Loads the object without verification, on a raw context.
fn load_raw(way: Way, only: &[&str]) -> Instance<()> {
    let engine = ways::engine(way, |config| config);
    let object = Object::parse(OBJECT).unwrap();
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let linker = Linker::<()>::new(&engine);
    let loader = match way {
        Way::Interpreted => linker.loader::<Raw>().interpreted(true),
        // SAFETY: of the programs that are loaded so the verifier accepts all.
        Way::Unverified => unsafe { linker.loader::<Raw>().unverified(true) },
        Way::Instance | Way::InterpretedInstance => {
            let module = linker.loader::<Raw>().only(only).compile(&object);
            return module
                .and_then(|module| ways::read_back(&linker, module).instance().make())
                .unwrap_or_else(|e| panic!("{way:?}: {e}"));
        }
        Way::Verified | Way::Unoptimised | Way::VerifiedInterpreted => linker.loader::<Raw>(),
    };
    loader.only(only).object(&object, maps).unwrap_or_else(|e| panic!("{way:?}: {e}"))
}

/// The reference model: the effect of a program on the packet and the room, and its result.
fn model(name: &str, packet: &mut [u8], room: &mut [u8]) -> u64 {
    let word = |at: usize| u32::from_ne_bytes(packet[at..at + 4].try_into().unwrap()) as usize;
    let (to, from, bytes, byte) = (word(0) & 511, word(4) & 511, word(8), word(12) as u8);
    let (short, long) = (bytes & 63, bytes & 511);
    match name {
        "copies" => {
            room[to..to + short].copy_from_slice(&packet[16..16 + short]);
            u64::from(room[to + 1]) + 256
        }
        "copies_back" => {
            packet[16..16 + short].copy_from_slice(&room[from..from + short]);
            0
        }
        "moves" | "copies_over" => {
            room.copy_within(from..from + long, to);
            0
        }
        "fills" => {
            room[to..to + long].fill(byte);
            room[to].into()
        }
        "compares" => match room[to..to + long].cmp(&room[from..from + long]) {
            std::cmp::Ordering::Less => 1,
            std::cmp::Ordering::Equal => 0,
            std::cmp::Ordering::Greater => 2,
        },
        "never_written" => {
            let mut buffer = [0; 64];
            buffer[..short].copy_from_slice(&packet[16..16 + short]);
            room[..64].copy_from_slice(&buffer);
            0
        }
        _stacks => {
            let mut buffer = [byte; 80];
            buffer[8..8 + short].copy_from_slice(&packet[16..16 + short]);
            room[..80].copy_from_slice(&buffer);
            buffer[from & 63].into()
        }
    }
}

#[test]
fn memory_is_what_c_says() {
    for (way, object) in VERIFIED.into_iter().flat_map(|way| [(way, OBJECT), (way, OLDER)]) {
        let only: Vec<&str> = PROGRAMS.into_iter().chain(["locks"]).collect();
        let instance = load(way, object, &only).unwrap_or_else(|e| panic!("{way:?}: {e}"));
        let rooms = instance.map("rooms").unwrap();
        let mut room: Vec<u8> = (0..1024u32).map(|i| (i % 7) as u8).collect();
        rooms.set(&0u32.to_ne_bytes(), &room).unwrap();
        let mut state = 5u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        let mut returned = Vec::new();
        for i in 0..1600 {
            let name = PROGRAMS[i % PROGRAMS.len()];
            // Lengths of 0 and of all that fits among them, and bits that no program looks at.
            let bytes = [0, 1, 63, 64, 511, 512, 1 << 31, 0xffff_ffff, below(512)][below(9) as usize];
            let from = [below(512), 0, 511][below(3) as usize];
            let to = [below(512), from, from ^ 1][below(3) as usize];
            let words = [to, from, bytes, below(4)].map(|word| (word as u32).to_ne_bytes());
            let rest: Vec<u8> = (0..64).map(|_| below(3) as u8).collect();
            let mut packet = [words.concat(), rest].concat();
            let mut expected = packet.clone();
            let result = model(name, &mut expected, &mut room);
            let program = instance.program::<Xdp>(name).unwrap();
            let got = program.run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap();
            assert_eq!((got, &packet), (result, &expected), "{name} {words:?}, {way:?}");
            assert_eq!(rooms.get(&0u32.to_ne_bytes()).unwrap().unwrap(), room, "{name} {words:?}, {way:?}");
            returned.push(got);
        }
        returned.sort_unstable();
        returned.dedup();
        assert!(returned.len() > 8, "{returned:?}");
        let mut packet = [vec![0; 12], vec![77, 0, 0, 0], vec![0; 64]].concat();
        let locks = instance.program::<Xdp>("locks").unwrap();
        assert_eq!(locks.run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap(), 77, "{way:?}");
    }
}

#[test]
fn what_is_not_proven_is_refused() {
    let mut wrong = Vec::new();
    for (way, (name, message)) in VERIFIED.into_iter().flat_map(|way| REFUSED.map(|refused| (way, refused))) {
        match load(way, OBJECT, &[name]) {
            Err(error @ LoadError::Verifier { .. }) if error.to_string().contains(message) => {}
            Err(error) => wrong.push(format!("{name}, {way:?}: {error}")),
            Ok(_) => wrong.push(format!("{name}, {way:?}: accepted")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Only the interpreter checks arguments then.
#[test]
fn unverified_programs_call_them_too() {
    let mut a = [3u8; 40];
    a[7..16].fill(5);
    a.copy_within(..30, 1);
    let sum: u64 = (1..).zip(a).map(|(i, byte)| i * u64::from(byte)).sum();
    for way in WAYS {
        assert_eq!(ways::run(&load_raw(way, &["on_the_stack"]), "on_the_stack", &[]), 4 * sum, "{way:?}");
    }
    let instance = load_raw(Way::Interpreted, &["behind_the_stack"]);
    let program = instance.program::<Raw>("behind_the_stack").unwrap();
    let error = program.run(&mut (), &mut Vec::new()).unwrap_err();
    assert!(matches!(error, RunError::Access { .. }), "{error}");
}

/// An object's own function of such a name is that, and so is one of the host's.
#[test]
fn own_functions_come_first() {
    for way in VERIFIED {
        let instance = load(way, OWN, &["calls"]).unwrap_or_else(|e| panic!("{way:?}: {e}"));
        let mut packet = [0; 64];
        let mut buff = XdpBuff::new(&mut packet);
        buff.ingress_ifindex = 7;
        assert_eq!(instance.program::<Xdp>("calls").unwrap().run(&mut (), &mut buff).unwrap(), 26, "{way:?}");
    }
    let engine = ways::engine(Way::Verified, |config| config);
    let object = Object::parse(OBJECT).unwrap();
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let mut linker = Linker::<u64>::new(&engine);
    linker
        .func(1001, "memset", |c: &mut Caller<'_, u64>, _: u64| -> Result<u64, HelperError> {
            *c.host() += 1;
            Ok(0)
        })
        .unwrap();
    let error = linker.loader::<Xdp>().only(&["fills"]).object(&object, maps).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("memset"), "an address is no number for the host's: {error}");
}

const NO_BYTES: &[u8] = include_bytes!("../objects/no_bytes.o");

/// Where no byte is used, it does not matter where the pointer leads: on no engine.
#[test]
fn no_bytes_are_nowhere() {
    let mut wrong = Vec::new();
    for name in ["at_null", "behind_a_value", "behind_the_packet", "over_constants", "of_a_helper"] {
        for way in VERIFIED {
            let instance = load(way, NO_BYTES, &[name]).unwrap_or_else(|e| panic!("{name}, {way:?}: {e}"));
            let mut packet = [0; 64];
            match instance.program::<Xdp>(name).unwrap().run(&mut (), &mut XdpBuff::new(&mut packet)) {
                Ok(7) => {}
                other => wrong.push(format!("{name}, {way:?}: {other:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// GCC's object, whose record is `bytes: [u8; 64]` and more that stays 0.
#[test]
fn what_gcc_leaves_to_functions_is_done() {
    let objects: [&[u8]; 2] =
        [include_bytes!("../objects/builtins_gcc.o"), include_bytes!("../objects/builtins_gcc.v2.o")];
    for (way, bytes) in VERIFIED.into_iter().flat_map(|way| objects.map(|bytes| (way, bytes))) {
        let instance = load(way, bytes, &["copies"]).unwrap_or_else(|e| panic!("{way:?}: {e}"));
        let program = instance.program::<Xdp>("copies").unwrap();
        let run = |mut packet: Vec<u8>| program.run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap();
        assert_eq!(run(vec![7; 63]), 1, "{way:?}: too short");
        assert_eq!(run(vec![7; 64]), 2, "{way:?}: moved by one, it is the same");
        // One byte differs from its predecessor, inside the moved bytes and outside of them.
        for at in 0..64 {
            let mut packet = vec![7; 80];
            packet[at] = 8;
            let same = at > 60;
            assert_eq!(run(packet), if same { 2 } else { 3 }, "{way:?}: byte {at}");
        }
    }
}
