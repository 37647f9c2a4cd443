//! Contexts with structs in them, and with as many byte slices as there may be.

use bpf_runtime::{
    BpfContext, Config, ContextBytes, ContextBytesMut, Engine, Linker, LoadError, MapSet, Mode, Object, Program,
    code::Arch, isa::assemble,
};

#[derive(BpfContext, Debug)]
#[repr(C)]
struct Endpoint<'p> {
    port: u32,
    #[bpf(writable)]
    mark: u32,
    name: ContextBytes<'p>,
    address: [u32; 4],
}

#[derive(BpfContext, Clone, Copy, Default, Debug, PartialEq)]
#[repr(C)]
struct Answer {
    #[bpf(writable)]
    code: u32,
    seen: u32,
    #[bpf(writable)]
    tags: [u16; 4],
}

#[derive(BpfContext, Debug)]
#[repr(C)]
struct Event<'p> {
    kind: u64,
    from: Endpoint<'p>,
    #[bpf(writable)]
    to: Endpoint<'p>,
    text: ContextBytesMut<'p>,
    #[bpf(writable)]
    answer: Answer,
}

fn endpoint(port: u32, name: &[u8]) -> Endpoint<'_> {
    Endpoint { port, mark: 0, name: ContextBytes::new(name).unwrap(), address: [7, 8, 9, port] }
}

fn event<'p>(text: &'p mut [u8]) -> Event<'p> {
    let text = ContextBytesMut::new(text).unwrap();
    let answer = Answer { seen: 5, ..Answer::default() };
    Event { kind: 3, from: endpoint(80, b"from"), to: endpoint(443, b"to"), text, answer }
}

fn engines() -> Vec<Engine> {
    let modes = [Mode::Interpreter].into_iter().chain(Arch::HOST.map(|_| Mode::Jit));
    let engine = |mode| {
        let config = Config::new().mode(mode);
        Engine::new(config).unwrap()
    };
    modes.map(engine).collect()
}

fn insns(text: &str) -> Vec<bpf_runtime::isa::Insn> {
    assemble(&text.replace(';', "\n")).unwrap_or_else(|e| panic!("{e} in {text}"))
}

/// `tests/objects/event.h`, which the object was compiled with, is what the macro says.
#[test]
fn the_c_structs_are_the_layout() {
    assert_eq!(Event::c_struct(), include_str!("../objects/event.h"));
}

#[test]
fn c_programs_use_structs_in_the_struct() {
    let object = Object::parse(include_bytes!("../objects/event.o")).unwrap();
    for engine in engines() {
        let maps = MapSet::for_object(&engine, &object).unwrap();
        let instance = Linker::<()>::new(&engine).load::<Event>(&object, maps).unwrap();
        let direct: Program<Event, ()> = instance.program("direct").unwrap();
        let mut text = *b"text";
        let mut it = event(&mut text);
        assert_eq!(direct.run(&mut (), &mut it).unwrap(), 3);
        assert_eq!(it.answer, Answer { code: 523, seen: 5, tags: [0, 9, 0, 0] });
        assert_eq!(it.text.as_slice(), b"rext");
        // Compiled against another layout.
        let moved: Program<Event, ()> = instance.program("moved").unwrap();
        assert_eq!(moved.run(&mut (), &mut it).unwrap(), 80 + 10 * 443 + 100 * 443 + 16_000_000);
    }
}

#[test]
fn what_may_be_written_is_marked_inside_and_outside() {
    let offsets = |text: &str| {
        let mark = core::mem::offset_of!(Endpoint<'static>, mark);
        let (from, to) = (core::mem::offset_of!(Event<'static>, from), core::mem::offset_of!(Event<'static>, to));
        let seen = core::mem::offset_of!(Event<'static>, answer) + core::mem::offset_of!(Answer, seen);
        text.replace("from.mark", &(from + mark).to_string())
            .replace("to.mark", &(to + mark).to_string())
            .replace("answer.seen", &seen.to_string())
    };
    for engine in engines() {
        let linker = Linker::<()>::new(&engine);
        let load = |text: &str| linker.loader::<Event>().insns("test", insns(&offsets(text)));
        let mut text = [0; 4];
        let mut it = event(&mut text);
        load("*(u32 *)(r1 + to.mark) = 9; r0 = 0; exit").unwrap().run(&mut (), &mut it).unwrap();
        assert_eq!((it.from.mark, it.to.mark), (0, 9));
        for (text, field) in [
            ("*(u32 *)(r1 + from.mark) = 9; r0 = 0; exit", "from.mark"),
            ("*(u32 *)(r1 + answer.seen) = 9; r0 = 0; exit", "answer.seen"),
        ] {
            match load(text) {
                Err(LoadError::Verifier { source, .. }) => {
                    assert!(
                        source.to_string().contains(&format!("context field {field} may not be written")),
                        "{source}"
                    );
                }
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}

/// Eight fields of bytes, each with bounds of its own.
#[test]
fn every_slice_has_its_own_end() {
    #[derive(BpfContext)]
    #[repr(C)]
    struct Pair<'p> {
        first: ContextBytes<'p>,
        second: ContextBytesMut<'p>,
    }
    #[derive(BpfContext)]
    #[repr(C)]
    struct Eight<'p> {
        pairs_a: Pair<'p>,
        pairs_b: Pair<'p>,
        pairs_c: Pair<'p>,
        pairs_d: Pair<'p>,
    }
    let bytes = |i: u8| [i; 4];
    let compare = |start: usize, end: usize| {
        format!(
            "r2 = *(u64 *)(r1 + {start}); r3 = *(u64 *)(r1 + {end}); r4 = r2; r4 += 4; r0 = 99; if r4 > r3 goto out; \
             r0 = *(u8 *)(r2 + 3); out:; exit"
        )
    };
    for engine in engines() {
        let linker = Linker::<()>::new(&engine);
        for i in 0..8 {
            let program = linker.loader::<Eight>().insns("test", insns(&compare(16 * i, 16 * i + 8))).unwrap();
            let mut memory: Vec<[u8; 4]> = (0..8).map(bytes).collect();
            let mut pairs = memory.chunks_mut(2).map(|pair| {
                let (first, second) = pair.split_at_mut(1);
                Pair {
                    first: ContextBytes::new(&first[0]).unwrap(),
                    second: ContextBytesMut::new(&mut second[0]).unwrap(),
                }
            });
            let mut next = || pairs.next().unwrap();
            let mut eight = Eight { pairs_a: next(), pairs_b: next(), pairs_c: next(), pairs_d: next() };
            assert_eq!(program.run(&mut (), &mut eight).unwrap(), i as u64);
            // The end of another says nothing.
            let other = 16 * ((i + 1) % 8) + 8;
            assert!(linker.loader::<Eight>().insns("test", insns(&compare(16 * i, other))).is_err());
        }
    }
}
