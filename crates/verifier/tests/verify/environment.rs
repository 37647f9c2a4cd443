//! An environment that contradicts itself is an error of its own, never a proof.

use crate::common;

use bpf_verifier::{
    Access, ArgKind, CallbackKind, ContextLayout, Env, Field, FieldKind, GlobalArg, GlobalFunc, HelperProto, Helpers,
    KnownMap, MapType, MapTypes, MemArg, Reason, Region, Ret, Verifier,
};

fn refused(context: &ContextLayout, helpers: &Helpers, maps: &[KnownMap], text: &str) -> String {
    let mut env = Env::new(context, helpers);
    env.maps = maps;
    let error = Verifier::new().verify(common::program(text), &env).expect_err(text);
    match error.reason {
        Reason::Environment(what) => what,
        other => panic!("{text}: {other}"),
    }
}

#[test]
fn contexts_are_checked() {
    let none = Helpers::none();
    let exit = "r0 = 0\nexit";
    let field = |name: &'static str, offset, size, kind, access| Field {
        name: name.into(),
        offset,
        size,
        access,
        kind,
        host_offset: 0,
        host_size: size,
    };
    let with = |fields: Vec<Field>| ContextLayout { fields, ..common::xdp() };
    let scalar = |name, offset, size| field(name, offset, size, FieldKind::Scalar, Access::Read);
    let cases = [
        (with(vec![scalar("a", 0, 4), scalar("b", 2, 4)]), "overlaps"),
        (with(vec![scalar("a", 4, 4), scalar("b", 0, 4)]), "out of order"),
        (with(vec![field("a", 0, 8, FieldKind::Data(2), Access::Read)]), "does not exist"),
        (with(vec![field("a", 0, 8, FieldKind::Data(0), Access::ReadWrite)]), "is no number"),
        (ContextLayout { regions: vec![], ..ContextLayout::raw(true) }, "needs a region"),
        (
            ContextLayout {
                regions: vec![Region { max_len: u32::MAX, ..common::xdp().regions[0].clone() }],
                ..ContextLayout::raw(true)
            },
            "longer than",
        ),
        (
            ContextLayout {
                regions: vec![Region { min_len: 9, max_len: 8, ..common::xdp().regions[0].clone() }],
                ..ContextLayout::raw(true)
            },
            "longer at least",
        ),
        (
            ContextLayout {
                regions: vec![Region { align: 3, ..common::xdp().regions[0].clone() }],
                ..ContextLayout::raw(true)
            },
            "no power of two",
        ),
        (with(vec![Field { host_size: 8, ..scalar("a", 0, 4) }]), "another size in the host"),
        (with(vec![Field { host_size: 2, ..scalar("a", 0, 4) }]), "another size in the host"),
        (with(vec![field("a", 0, 4, FieldKind::Data(0), Access::Read)]), "no load of it has"),
        (with(vec![field("a", 0, 4, FieldKind::DataEnd(0), Access::Read)]), "no load of it has"),
        (with(vec![field("a", 0, 2, FieldKind::Len(0), Access::Read)]), "no load of it has"),
        (with(vec![Field { host_size: 1, ..field("a", 0, 4, FieldKind::Len(0), Access::Read) }]), "no load of it has"),
        (
            with(vec![
                field("a", 0, 8, FieldKind::Data(0), Access::Read),
                Field { host_offset: 6, ..field("b", 8, 4, FieldKind::Scalar, Access::ReadWrite) },
            ]),
            "field b lies where a does",
        ),
        (
            with(vec![
                Field { host_offset: 4, ..scalar("a", 0, 4) },
                field("b", 8, 8, FieldKind::Len(0), Access::Read),
            ]),
            "field a lies where b does",
        ),
        (with(vec![scalar("a", 0, 1 << 16)]), "ends beyond"),
        (with(vec![scalar("a", 1 << 15, 4)]), "ends beyond"),
        (with(vec![Field { host_offset: 0xffff_fff0, ..scalar("a", 0, 4) }]), "ends beyond"),
        (with(vec![Field { host_offset: u32::MAX, ..scalar("a", 0, 4) }]), "ends beyond"),
        (ContextLayout { raw: true, ..with(vec![scalar("a", 0, 4)]) }, "has fields"),
        (ContextLayout { returns: Some((1, 0)), ..common::xdp() }, "no return value"),
        (
            ContextLayout {
                regions: vec![Region { ends_at_start_of: Some(0), ..common::xdp().regions[0].clone() }],
                ..ContextLayout::raw(true)
            },
            "ends where it starts",
        ),
    ];
    for (context, part) in cases {
        let what = refused(&context, &none, &[], exit);
        assert!(what.contains(part), "{what} / {part}");
    }
}

#[test]
fn maps_are_checked() {
    let array = KnownMap::new("m", MapType::Array, 4, 8, 1);
    let frozen = |n| Some(vec![0; n]);
    let outer = |inner| KnownMap { inner: Some(Box::new(inner)), ..KnownMap::new("m", MapType::ArrayOfMaps, 4, 4, 1) };
    let cases = [
        (KnownMap { spin_lock: Some(8), ..array.clone() }, "not inside a value"),
        (KnownMap { spin_lock: Some(2), ..array.clone() }, "not inside a value"),
        (KnownMap { timer: Some(0), ..array.clone() }, "not inside a value"),
        (KnownMap { timer: Some(u32::MAX - 7), ..array.clone() }, "not inside a value"),
        (KnownMap { timer: Some(4), value_size: 32, ..array.clone() }, "not inside a value"),
        (KnownMap { timer: Some(8), spin_lock: Some(20), value_size: 32, ..array.clone() }, "not inside a value"),
        (KnownMap { timer: Some(0), ..KnownMap::new("q", MapType::Queue, 0, 16, 1) }, "none whose values have"),
        (KnownMap { spin_lock: Some(u32::MAX - 3), ..array.clone() }, "not inside a value"),
        (KnownMap { key_size: 8, ..array.clone() }, "keys of 4 bytes"),
        (KnownMap { max_entries: 0, ..array.clone() }, "keys of 4 bytes"),
        (KnownMap { frozen: frozen(9), ..array.clone() }, "no array of one such value"),
        (KnownMap { frozen: frozen(8), max_entries: 2, ..array.clone() }, "no array of one such value"),
        (KnownMap { frozen: frozen(8), kind: MapType::Hash, ..array.clone() }, "no array of one such value"),
        (KnownMap { inner: Some(Box::new(array.clone())), ..array.clone() }, "no map of maps"),
        (outer(outer(array.clone())), "nest only once"),
        (outer(KnownMap { kind: MapType::ProgArray, ..array.clone() }), "of the program's own"),
        (outer(KnownMap { frozen: frozen(8), ..array.clone() }), "of the program's own"),
        (outer(KnownMap { spin_lock: Some(8), ..array.clone() }), "not inside a value"),
    ];
    for (map, part) in cases {
        let what = refused(&common::xdp(), &Helpers::none(), std::slice::from_ref(&map), "r0 = 0\nexit");
        assert!(what.contains(part), "{what} / {part}");
    }
}

#[test]
fn functions_and_frames_are_checked() {
    let (context, none) = (common::xdp(), Helpers::none());
    let many = [None, Some(GlobalFunc { name: "f".into(), args: vec![GlobalArg::Scalar; 6] })];
    let env = Env::new(&context, &none);
    for (env, part) in [
        (Env { global_functions: &many, ..env }, "registers hold 5"),
        (Env { frame_bytes: 1 << 16, ..env }, "multiples of 8"),
        (Env { frame_bytes: 100, ..env }, "multiples of 8"),
    ] {
        let error = Verifier::new().verify(common::program("r0 = 0\nexit"), &env).expect_err(part);
        assert!(matches!(&error.reason, Reason::Environment(what) if what.contains(part)), "{error}");
    }
}

/// Callbacks take their arguments from fixed registers, so a prototype with other kinds in these registers is an error
/// of the environment.
#[test]
fn prototypes_of_callbacks_have_one_shape() {
    use CallbackKind::{Drain, ForEach, Loop};
    let map = ArgKind::Map(MapTypes::of(&[MapType::Array]));
    let call = "r1 = map[fd:0]\nr2 = subprog[f]\nr3 = 0\nr4 = 0\ncall 7\nr0 = 0\nexit\nf:\nr0 = 0\nexit";
    for args in [
        vec![ArgKind::Callback(Loop), ArgKind::Scalar, ArgKind::CallbackCtx],
        vec![map, ArgKind::Callback(Loop), ArgKind::CallbackCtx],
        vec![ArgKind::Scalar, ArgKind::Callback(ForEach), ArgKind::CallbackCtx],
        vec![map, ArgKind::Callback(ForEach), ArgKind::Scalar],
        vec![ArgKind::Scalar, ArgKind::Callback(Drain), ArgKind::CallbackCtx],
    ] {
        let mut helpers = Helpers::none();
        helpers.add(HelperProto::new(7, "odd", &args, Ret::Scalar)).expect("free");
        let what = refused(&common::xdp(), &helpers, &[KnownMap::new("m", MapType::Array, 4, 8, 1)], call);
        assert!(what.contains("callback"), "{what}");
    }
}

#[test]
fn prototypes_are_checked() {
    let call = "r1 = r10\nr2 = r10\ncall 7\nr0 = 0\nexit";
    let helper = |args: &[ArgKind], ret| {
        let mut h = Helpers::none();
        h.add(HelperProto::new(7, "odd", args, ret)).expect("free");
        h
    };
    let context = common::xdp();
    let odd_alignment = MemArg { align: 3, ..MemArg::READ };
    for (helpers, part) in [
        (helper(&[ArgKind::Mem(MemArg::READ)], Ret::Scalar), "without a length"),
        (helper(&[ArgKind::Key], Ret::Scalar), "precedes its map"),
        (helper(&[], Ret::MapValueOrNull), "no map"),
        (helper(&[], Ret::RecordOrNull), "no size"),
        (helper(&[], Ret::Between(1, 0)), "no number"),
        (helper(&[ArgKind::None, ArgKind::Scalar], Ret::Scalar), "after its last"),
        (helper(&[ArgKind::Fixed { bytes: 1, mem: odd_alignment }], Ret::Scalar), "no power of two"),
    ] {
        let what = refused(&context, &helpers, &[], call);
        assert!(what.contains(part), "{what} / {part}");
    }
    let mut h = Helpers::shipped();
    let error = h.add(HelperProto::new(1, "mine", &[], Ret::Scalar)).expect_err("1 is taken");
    assert_eq!((error.first.as_str(), error.second.as_str()), ("bpf_map_lookup_elem", "mine"));
}

/// A function may read all its arguments' memory before it writes any. Bytes that one argument lets the function write
/// are therefore not initialised for another argument that reads them, in either order of the two.
#[test]
fn what_an_argument_writes_no_other_argument_reads() {
    let fixed = |mem| ArgKind::Fixed { bytes: 8, mem };
    let (read, write) = (MemArg::READ, MemArg::WRITE);
    let context = common::xdp();
    for args in [
        vec![fixed(write), fixed(read)],
        vec![fixed(read), fixed(write)],
        vec![
            ArgKind::Mem(write),
            ArgKind::Size { zero: false, half: false },
            ArgKind::Mem(read),
            ArgKind::Size { zero: false, half: false },
        ],
    ] {
        let mut helpers = Helpers::none();
        helpers.add(HelperProto::new(7, "both", &args, Ret::Scalar)).expect("free");
        let second = if args.len() == 2 { "r2" } else { "r3" };
        for (before, off, fine, zeroed) in [
            ("", 0, false, 0),
            ("*(u64 *)(r10 - 8) = 1", 0, true, 0),
            // Half of the bytes read are also written by the call; the program has set them to 0 before.
            ("*(u64 *)(r10 - 16) = 1", -4, true, 8),
            ("*(u64 *)(r10 - 16) = 1\n*(u32 *)(r10 - 8) = 1", -4, true, 0),
        ] {
            let writes = args[0] == ArgKind::Mem(write) || args[0] == fixed(write);
            let (first_off, second_off) = if writes { (-8, off - 8) } else { (off - 8, -8) };
            let text = format!(
                "{before}\nr2 = 8\nr4 = 8\nr1 = r10\nr1 += {first_off}\n{second} = r10\n{second} += {second_off}
                 call 7\nr0 = *(u64 *)(r10 - 8)\nexit"
            );
            let result = Verifier::new().verify(common::program(&text), &Env::new(&context, &helpers));
            match result {
                Ok(verified) => {
                    assert!(fine, "{args:?}: {text}");
                    let bytes: u32 = verified.facts().zeroed.iter().map(|z| z.bytes).sum();
                    assert_eq!(bytes, zeroed, "{args:?}: {text}");
                }
                Err(error) => {
                    assert!(!fine, "{args:?}: {text}: {error}");
                    assert!(
                        matches!(&error.reason, Reason::ArgMem { why, .. } if matches!(**why, Reason::StackUninit { .. }))
                    );
                }
            }
        }
    }
}

#[test]
fn maps_of_maps_say_what_they_hold() {
    let outer = KnownMap::new("outer", MapType::ArrayOfMaps, 4, 4, 2);
    let text = "*(u32 *)(r10 - 4) = 0\nr1 = map[fd:0]\nr2 = r10\nr2 += -4\ncall 1\nr0 = 0\nexit";
    let what = refused(&common::xdp(), &Helpers::shipped(), std::slice::from_ref(&outer), text);
    assert!(what.contains("inner maps"), "{what}");
}

/// The ids of shipped helpers are the kernel's.
#[test]
fn shipped_helpers_have_the_kernels_numbers() {
    let helpers = Helpers::shipped();
    let name = |id| helpers.get(id).map(|p| p.name.to_string()).unwrap_or_default();
    for (id, want) in [(1, "bpf_map_lookup_elem"), (12, "bpf_tail_call"), (51, "bpf_redirect_map"), (181, "bpf_loop")] {
        assert_eq!(name(id), want);
    }
    let Ok(header) = std::fs::read_to_string("/usr/include/linux/bpf.h") else {
        bpf_testkit::skipped("helper numbers against linux/bpf.h", &"the header is not installed");
        return;
    };
    // `FN(name),` from 0 (unspec), or `FN(name, number, ...)` in newer headers: either way the order is the number.
    let in_list = header.lines().filter_map(|l| l.trim().strip_prefix("FN(")).map(|l| {
        let end = l.find([',', ')']).unwrap_or(l.len());
        &l[..end]
    });
    let kernel: std::collections::HashMap<&str, u32> = in_list.zip(0..).collect();
    for proto in helpers.iter() {
        let short = proto.name.trim_start_matches("bpf_");
        assert_eq!(kernel.get(short).copied(), Some(proto.id), "{}", proto.name);
    }
}
