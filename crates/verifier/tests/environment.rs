//! An environment that contradicts itself is an error of its own, never a proof.

mod common;

use bpf_verifier::{
    Access, ArgKind, ContextLayout, Env, Field, FieldKind, HelperProto, Helpers, MapDef, MapType, MemArg, Reason,
    Region, Ret, Verifier,
};

fn refused(context: &ContextLayout, helpers: &Helpers, maps: &[MapDef], text: &str) -> String {
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
    ];
    for (context, part) in cases {
        let what = refused(&context, &none, &[], exit);
        assert!(what.contains(part), "{what} / {part}");
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
        (helper(&[ArgKind::Fixed { bytes: 1, mem: odd_alignment }], Ret::Scalar), "no power of two"),
    ] {
        let what = refused(&context, &helpers, &[], call);
        assert!(what.contains(part), "{what} / {part}");
    }
    let mut h = Helpers::shipped();
    let error = h.add(HelperProto::new(1, "mine", &[], Ret::Scalar)).expect_err("1 is taken");
    assert_eq!((error.first.as_str(), error.second.as_str()), ("bpf_map_lookup_elem", "mine"));
}

#[test]
fn maps_of_maps_say_what_they_hold() {
    let outer = MapDef::new("outer", MapType::ArrayOfMaps, 4, 4, 2);
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
