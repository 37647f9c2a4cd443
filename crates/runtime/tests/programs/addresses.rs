//! No result of a program tells where its memory is: the order of two pointers is that of their offsets, wherever a
//! host's slice lies.

use crate::common::engines::{engine, modes};
use bpf_runtime::{
    BpfContext, Context, ContextBytes, ContextBytesMut, Hook, HookPolicy, Linker, Program, Raw, RunLimits,
};
use bpf_runtime::{
    Engine, RunError,
    isa::assemble,
    net::{SkBuff, Skb, Xdp, XdpBuff, XdpFrag, XdpFrags, XdpFragsBuff},
};

#[derive(BpfContext)]
#[repr(C)]
struct Two<'p> {
    read: ContextBytes<'p>,
    written: ContextBytesMut<'p>,
}

/// A linker whose function 1001 returns the host's number.
fn linker(engine: &Engine) -> Linker<u64> {
    let mut linker = Linker::<u64>::new(engine);
    linker.func(1001, "number", |c: &mut bpf_runtime::Caller<'_, u64>| *c.host()).unwrap();
    linker
}

/// A program that compares the start of a region (`find` puts it into r6) and its end (r7) with a place in front of the
/// start. Each bit of the result is a comparison with the wrong outcome. The place is proven with `distance`; without
/// it, the host chooses the distance, and the comparisons are checked.
fn compares<C: Context>(linker: &Linker<u64>, find: &str, distance: Option<i64>) -> Program<C, u64> {
    let moved = match distance {
        Some(distance) => format!("r8 += {distance}"),
        None => "call 1001\nr8 += r0".to_owned(),
    };
    let text = format!(
        "{find}\nr8 = r6\n{moved}\nr9 = 0\nif r8 < r6 goto +1\nr9 |= 1\nif r6 s> r8 goto +1\nr9 |= 2\n\
         if r8 <= r7 goto +1\nr9 |= 4\nif r8 != r6 goto +1\nr9 |= 8\nr0 = r9\nexit"
    );
    let loader = linker.loader::<C>();
    let loader = if distance.is_some() { loader } else { loader.hybrid(true) };
    loader.insns("compares", assemble(&text).unwrap()).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

const XDP: &str = "r6 = *(u32 *)(r1 + 0)\nr7 = *(u32 *)(r1 + 4)";
const SKB: &str = "r6 = *(u32 *)(r1 + 76)\nr7 = *(u32 *)(r1 + 80)";
const READ: &str = "r6 = *(u64 *)(r1 + 0)\nr7 = *(u64 *)(r1 + 8)";
const WRITTEN: &str = "r6 = *(u64 *)(r1 + 16)\nr7 = *(u64 *)(r1 + 24)";

#[test]
fn comparisons_do_not_tell_where_an_empty_slice_is() {
    // Slices without bytes are anywhere: where they were cut off, and at each alignment.
    let far: &mut [u8] = &mut [0; 8];
    for mode in modes() {
        let engine = engine(mode, |config| config);
        let linker = linker(&engine);
        for distance in [-1, -8, -4096, -65_536] {
            for known in [Some(distance), None] {
                let programs = [READ, WRITTEN].map(|find| compares::<Two>(&linker, find, known));
                let xdp = compares::<Xdp>(&linker, XDP, known);
                let skb = compares::<Skb>(&linker, SKB, known);
                let mut host = distance.cast_unsigned();
                let halves: &[u16] = &[];
                let words: &[u64] = &[];
                let aligned = [<&[u8]>::default(), zerocopy::IntoBytes::as_bytes(halves), words_of(words)];
                for read in aligned.into_iter().chain([&[1u8, 2, 3][..0], &[1, 2, 3]]) {
                    let mut none = [];
                    for written in [&mut none[..], &mut far[..0], &mut [0; 3]] {
                        let context = || (ContextBytes::new(read).unwrap(), mode, distance, known);
                        let (read, ..) = context();
                        let mut two = Two { read, written: ContextBytesMut::new(written).unwrap() };
                        for program in &programs {
                            assert_eq!(program.run(&mut host, &mut two).unwrap(), 0, "{:?}", context());
                        }
                    }
                }
                let mut none = [];
                for packet in [&mut none[..], &mut far[..0], &mut [0; 64]] {
                    let context = || format!("{mode:?} {distance} {known:?}");
                    assert_eq!(xdp.run(&mut host, &mut XdpBuff::new(packet)).unwrap(), 0, "{}", context());
                    assert_eq!(skb.run(&mut host, &mut SkBuff::new(packet)).unwrap(), 0, "{}", context());
                }
            }
        }
    }
}

fn words_of(words: &[u64]) -> &[u8] {
    zerocopy::IntoBytes::as_bytes(words)
}

/// A host's mapping at a chosen address.
struct Mapping(*mut u8, usize);

impl Mapping {
    fn new(at: usize, len: usize) -> Result<Mapping, std::io::Error> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let wanted = std::ptr::without_provenance_mut(at);
        // SAFETY: new memory, where nothing is mapped.
        let got = unsafe { libc::mmap(wanted, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if got != wanted {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Mapping(got.cast(), len))
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is this value's and lives as long; anonymous memory is zeroed.
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

/// The verifier orders a pointer 64 KiB before its region as an offset: below that address it would wrap round.
#[test]
fn memory_at_and_below_64_kib_is_refused() {
    const AT: usize = 0x8000;
    let mut mapping = match Mapping::new(AT, 0x1_0000) {
        Ok(mapping) => mapping,
        Err(why) => return println!("SKIPPED memory_at_and_below_64_kib_is_refused: no memory at {AT:#x}: {why}"),
    };
    let low = |result: Result<u64, RunError>, at: usize| match result {
        Err(RunError::LowAddress { address, least: 0x1_0001 }) => assert_eq!(address, at),
        other => panic!("{at:#x}: {other:?}"),
    };
    for mode in modes() {
        let engine = engine(mode, |config| config.budget(1000));
        let linker = linker(&engine);
        let raw = compares::<Raw>(&linker, "r6 = r1\nr7 = r1\nr7 += r2", Some(-65_536));
        let xdp = compares::<Xdp>(&linker, XDP, Some(-65_536));
        let skb = compares::<Skb>(&linker, SKB, Some(-65_536));
        let two = compares::<Two>(&linker, READ, Some(-65_536));
        let frags = compares::<XdpFrags>(&linker, XDP, Some(-65_536));
        let hook: Hook<Raw, u64> = Hook::new(&engine, HookPolicy::RunAll { result: 0 }).unwrap();
        hook.attach(&raw).unwrap();
        for from in [0, 1, 0x1000, 0x8000 - 1, 0x8000, 0x8001] {
            let refused = from <= 0x8000;
            let bytes = &mut mapping.bytes()[from..from + 64];
            let check = |result: Result<u64, RunError>| match refused {
                true => low(result, AT + from),
                false => assert_eq!(result.unwrap(), 0),
            };
            check(raw.run(&mut 0, bytes));
            check(raw.run_with(&mut 0, bytes, &RunLimits::new().budget(100)));
            check(hook.run(&mut 0, bytes));
            check(xdp.run(&mut 0, &mut XdpBuff::with_room(bytes, 16, 32)));
            check(skb.run(&mut 0, &mut SkBuff::with_room(bytes, 16, 32)));
            // A piece behind the first, full or with room only; one without bytes is refused nowhere.
            for len in [64, 0] {
                let (mut first, mut high) = ([0; 64], [0; 64]);
                let pieces = &mut [XdpFrag::new(&mut high), XdpFrag::with_room(bytes, len)];
                check(frags.run(&mut 0, &mut XdpFragsBuff::new(XdpBuff::new(&mut first), pieces)));
                let pieces = &mut [XdpFrag::new(&mut bytes[..0])];
                assert_eq!(frags.run(&mut 0, &mut XdpFragsBuff::new(XdpBuff::new(&mut first), pieces)).unwrap(), 0);
            }
            let run = |read: &[u8], written: &mut [u8]| {
                let (read, written) = (ContextBytes::new(read)?, ContextBytesMut::new(written)?);
                two.run(&mut 0, &mut Two { read, written })
            };
            check(run(bytes, &mut []));
            check(run(&[], bytes));
        }
        // The structure itself.
        let place: *mut Two<'_> = mapping.bytes().as_mut_ptr().cast();
        let value = Two { read: ContextBytes::new(&[]).unwrap(), written: ContextBytesMut::new(&mut []).unwrap() };
        // SAFETY: the mapping is large enough, aligned to a page, and used by nothing else meanwhile.
        unsafe { place.write(value) };
        // SAFETY: written above.
        let place = unsafe { &mut *place };
        low(two.run(&mut 0, place), AT);
    }
}
