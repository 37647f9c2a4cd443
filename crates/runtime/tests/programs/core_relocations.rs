//! CO-RE relocations of contexts. The structs of `objects/core.c` are unlike the host's, so a relocation that is not
//! applied shows.

use crate::common::engines::engines;
use bpf_runtime::{
    BpfContext, ContextBytesMut, Engine, Linker, MapSet, Object, Program, Raw,
    net::{SkBuff, Skb, Xdp, XdpBuff},
};

/// Packet headers are the same everywhere, so the compiled offsets stand; only the kernel's own types are missing.
#[test]
fn headers_of_packets_are_their_own_targets() {
    let object = Object::parse(include_bytes!("../objects/core_wire.o")).unwrap();
    for engine in engines(|config| config) {
        let maps = MapSet::for_object(&engine, &object).unwrap();
        let instance = Linker::<()>::new(&engine).load::<Xdp>(&object, maps).unwrap();
        let mut frame = [0; 34];
        (frame[12], frame[14], frame[22], frame[33]) = (8, 0x45, 64, 7);
        let run = |name: &str, frame: &mut [u8]| {
            instance.program::<Xdp>(name).unwrap().run(&mut (), &mut XdpBuff::new(frame)).unwrap()
        };
        assert_eq!(run("headers", &mut frame), 4_000_000 + 500_000 + 64_000 + 7);
        assert_eq!(run("asks", &mut frame), 0b1011);
    }
}

fn object() -> Object {
    Object::parse(include_bytes!("../objects/core.o")).unwrap()
}

fn load<C: bpf_runtime::Context>(engine: &Engine, name: &str) -> Result<Program<C, ()>, String> {
    let object = object();
    let maps = MapSet::for_object(engine, &object).unwrap();
    let linker = Linker::<()>::new(engine);
    let instance = linker.loader::<C>().only(&[name]).object(&object, maps).map_err(|e| e.to_string())?;
    Ok(instance.program(name).unwrap())
}

#[test]
fn fields_are_found_by_name() {
    for engine in engines(|config| config) {
        let program = load::<Xdp>(&engine, "shuffled").unwrap();
        let run = |packet: &mut [u8]| {
            let mut buff = XdpBuff::new(packet);
            (buff.ingress_ifindex, buff.rx_queue_index) = (7, 3);
            program.run(&mut (), &mut buff).unwrap()
        };
        assert_eq!(run(&mut [5, 6]), 6 + 3000 + 700_000);
        assert_eq!(run(&mut [5]), 1, "XDP_DROP by name");
    }
}

#[test]
fn questions_are_answered() {
    for engine in engines(|config| config) {
        let program = load::<Xdp>(&engine, "asks").unwrap();
        // data, not no_such_field; xdp_md, not task_struct; XDP_PASS, not XDP_NO_SUCH; size, size and offset as the
        // host's; not pid.
        let expected = 0b0_1_1_1_0_1_0_1_0_1;
        assert_eq!(program.run(&mut (), &mut XdpBuff::new(&mut [0; 64])).unwrap(), expected);
    }
}

#[test]
fn what_does_not_exist_is_refused_only_where_it_is_reached() {
    for engine in engines(|config| config) {
        let program = load::<Xdp>(&engine, "guarded").unwrap();
        assert_eq!(program.run(&mut (), &mut XdpBuff::new(&mut [])).unwrap(), 2, "XDP_PASS by name");
        for (name, expected) in [
            (
                "missing_field",
                "CO-RE relocation (byte_off) of `xdp_md::no_such_field`: the type has no such field here",
            ),
            ("missing_type", "CO-RE relocation (byte_off) of `task_struct::tgid`: this host has no such type"),
            (
                "missing_value",
                "CO-RE relocation (enumval_value) of `xdp_action::XDP_NO_SUCH`: the enumeration has no such value here",
            ),
        ] {
            let error = load::<Xdp>(&engine, name).unwrap_err();
            assert!(error.contains(expected) && error.contains(name), "{error}");
        }
    }
}

/// Unverified, the run ends where such an instruction is executed.
#[test]
fn what_does_not_exist_ends_an_unverified_run() {
    let object = object();
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let maps = || MapSet::for_object(&engine, &object).unwrap();
        // SAFETY: neither program touches memory: their only access is the one that does not exist.
        let jit = unsafe { linker.loader::<Raw>().unverified(true) };
        for loader in [linker.loader::<Raw>().interpreted(true), jit] {
            let instance = loader.only(&["missing_type", "missing_value"]).object(&object, maps()).unwrap();
            for name in ["missing_type", "missing_value"] {
                let error =
                    instance.program::<Raw>(name).unwrap().run(&mut (), &mut [1, 2, 3]).unwrap_err().to_string();
                assert!(error.contains("CO-RE relocation leads nowhere"), "{error}");
            }
        }
    }
}

#[test]
fn an_access_takes_the_size_that_the_field_has() {
    for engine in engines(|config| config) {
        let program = load::<Skb>(&engine, "resized").unwrap();
        let mut packet = [0; 64];
        let mut skb = SkBuff::new(&mut packet);
        (skb.fields.cb, skb.fields.priority, skb.fields.mark) = ([1, 2, 3, 4, 5], 40, u32::MAX);
        skb.fields.protocol = 0x1234;
        assert_eq!(program.run(&mut (), &mut skb).unwrap(), 4);
        assert_eq!((skb.fields.mark, skb.fields.cb), (43, [1, 2, 3, 9, 5]));
        assert_eq!((skb.fields.protocol, skb.fields.priority), (0x1234, 40));
    }
}

#[derive(BpfContext)]
#[repr(C)]
struct Request<'p> {
    method: u32,
    #[bpf(writable)]
    verdict: u32,
    ports: [u16; 2],
    #[bpf(writable)]
    tag: [u8; 4],
    body: ContextBytesMut<'p>,
    score: i64,
}

#[test]
fn derived_contexts_have_their_names() {
    for engine in engines(|config| config) {
        let program = load::<Request>(&engine, "derived").unwrap();
        let mut bytes = [1, 2, 3];
        let body = ContextBytesMut::new(&mut bytes).unwrap();
        let mut request = Request { method: 5, verdict: 0, ports: [80, 44], tag: [0; 4], body, score: -9 };
        // The score is 8 bytes long, and signed.
        assert_eq!(program.run(&mut (), &mut request).unwrap(), 3);
        assert_eq!((request.method, request.verdict, request.tag, request.score), (5, 5, [0, 0, 0, 77], -9));
        assert_eq!(bytes, [44, 2, 3]);
    }
}

/// With a host's BTF, its types are there, too: here the types that the object was compiled with.
#[test]
fn types_are_taken_from_a_hosts_btf() {
    for engine in engines(|config| config) {
        let mut object = object();
        object.target_btf(include_bytes!("../objects/core.o")).unwrap();
        let maps = MapSet::for_object(&engine, &object).unwrap();
        let linker = Linker::<()>::new(&engine);
        let instance = linker.loader::<Xdp>().only(&["asks", "guarded"]).object(&object, maps).unwrap();
        let run = |name| instance.program::<Xdp>(name).unwrap().run(&mut (), &mut XdpBuff::new(&mut [0; 64])).unwrap();
        // The result differs only by task_struct and its pid; the BTF file does not describe contexts.
        assert_eq!(run("asks"), 0b1_1_1_1_0_1_1_1_0_1);
        assert_eq!(run("guarded"), 2);
    }
}

/// Bytes that are no BTF are refused, and leave the object unchanged.
#[test]
fn a_hosts_btf_may_be_anything() {
    let bytes = include_bytes!("../objects/core.o");
    let mut object = object();
    for bad in [&b""[..], b"\x9f\xeb", b"\x7fELF", &bytes[..200], &[0; 4096]] {
        object.target_btf(bad).unwrap_err();
    }
    let engine = &engines(|config| config)[0];
    let maps = MapSet::for_object(engine, &object).unwrap();
    let instance = Linker::<()>::new(engine).loader::<Xdp>().only(&["asks"]).object(&object, maps).unwrap();
    let program = instance.program::<Xdp>("asks").unwrap();
    assert_eq!(program.run(&mut (), &mut XdpBuff::new(&mut [0; 64])).unwrap(), 0b0_1_1_1_0_1_0_1_0_1);
    // The running kernel's: it has a task_struct with a pid.
    match std::fs::read("/sys/kernel/btf/vmlinux") {
        Err(error) => bpf_testkit::skipped("the running kernel's BTF", &error),
        Ok(btf) => {
            object.target_btf(&btf).unwrap();
            let maps = MapSet::for_object(engine, &object).unwrap();
            let instance = Linker::<()>::new(engine).loader::<Xdp>().only(&["asks"]).object(&object, maps).unwrap();
            let program = instance.program::<Xdp>("asks").unwrap();
            assert_eq!(program.run(&mut (), &mut XdpBuff::new(&mut [0; 64])).unwrap(), 0b1_1_1_1_0_1_1_1_0_1);
        }
    }
}
