//! Tests of linking, on our own objects: references in a program's complete code, and refusals.

use bpf_isa::{Callee, Imm64, Insn, InsnIdx, Program};
use bpf_object::btf::ArgKind;
use bpf_object::{
    CoreKind, GlobalProblem, InitialValue, LINUX_KERNEL_VERSION, LinkProblem, MapProblem, Object, ObjectError,
    ProgramType, ReferenceKind,
};

macro_rules! object {
    ($name:literal) => {
        Object::parse(include_bytes!(concat!("../objects/", $name, ".o"))).unwrap()
    };
}

fn link(object: &Object, program: &str, hosts: &[&str]) -> Result<Vec<Insn>, ObjectError> {
    let program = object.program(program)?;
    object.link(program, |name| hosts.contains(&name)).map(|linked| linked.into_code().insns().to_vec())
}

fn problem(object: &Object, program: &str, hosts: &[&str]) -> (u32, LinkProblem) {
    match link(object, program, hosts) {
        Err(ObjectError::Link { program: named, insn, problem, .. }) => {
            assert_eq!(named, program);
            (insn.0, problem)
        }
        other => panic!("{other:?}"),
    }
}

/// The constants that a program loads into registers with two-slot loads.
fn constants(insns: &[Insn]) -> Vec<u64> {
    let constant = |insn: &Insn| match *insn {
        Insn::LoadImm64 { imm: Imm64::Const(value), .. } => Some(value),
        _ => None,
    };
    insns.iter().filter_map(constant).collect()
}

#[test]
fn linked_code_is_structurally_valid() {
    let objects = [
        object!("calls"),
        object!("calls.v2"),
        object!("globals"),
        object!("legacy"),
        object!("maps"),
        object!("neighbour"),
    ];
    for object in objects {
        for program in object.programs() {
            let code = object.link(program, |_| true).unwrap().into_code();
            let valid = Program::new(code.insns().to_vec()).unwrap_or_else(|e| panic!("{}: {e}", program.name()));
            assert_eq!(valid.subprogs().len(), code.functions().len(), "{}", program.name());
            for (subprog, function) in valid.subprogs().iter().zip(code.functions()) {
                assert_eq!(subprog.start, function.start.0, "{}: {}", program.name(), function.name);
                assert_eq!(subprog.end, function.start.0 + function.len, "{}: {}", program.name(), function.name);
            }
        }
    }
}

#[test]
fn subprograms_follow_in_the_order_of_the_calls() {
    let object = object!("calls");
    let functions = |program: &str| -> Vec<(String, bool)> {
        let code = object.code(object.program(program).unwrap()).unwrap();
        code.functions().iter().map(|f| (f.name.clone(), f.global)).collect()
    };
    let expect = |list: &[(&str, bool)]| list.iter().map(|&(n, g)| (n.to_owned(), g)).collect::<Vec<_>>();
    assert_eq!(functions("first"), expect(&[("first", true), ("middle", true), ("leaf", false)]));
    assert_eq!(
        functions("second"),
        expect(&[("second", true), ("only_second", true), ("leaf", false), ("middle", true)])
    );
    assert_eq!(
        functions("loop"),
        expect(&[("loop", true), ("add_index", false), ("leaf", false), ("stop_at_3", false)])
    );
    let code = object.code(object.program("loop").unwrap()).unwrap();
    let callback = |at: usize| match code.insns()[at] {
        Insn::LoadImm64 { imm: Imm64::Func(offset), .. } => InsnIdx(at as u32).jump(offset),
        _ => None,
    };
    let callbacks: Vec<_> = (0..code.insns().len()).filter_map(callback).collect();
    assert_eq!(callbacks, [code.functions()[1].start, code.functions()[3].start]);
}

#[test]
fn a_call_inside_a_program_section_needs_no_relocation() {
    let object = object!("neighbour");
    for program in ["before", "after"] {
        let code = object.code(object.program(program).unwrap()).unwrap();
        let names: Vec<_> = code.functions().iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, [program, "neighbour"]);
        let calls = code.insns().iter().zip(0..).find_map(|(insn, at)| match *insn {
            Insn::Call(Callee::Subprog(offset)) => InsnIdx(at).jump(offset),
            _ => None,
        });
        assert_eq!(calls, Some(code.functions()[1].start));
    }
}

#[test]
fn source_lines() {
    let object = object!("calls");
    let code = object.code(object.program("first").unwrap()).unwrap();
    // As printed by `llvm-objdump -S`.
    let text = |insn: u32| code.line(InsnIdx(insn)).map(|l| l.text.trim().to_owned()).unwrap();
    let start = |name: &str| code.functions().iter().find(|f| f.name == name).unwrap().start.0;
    assert_eq!(text(start("middle")), "__attribute__((noinline)) __u64 middle(__u64 x, __u32 y)");
    assert_eq!(text(start("middle") + 2), "return leaf(x) + leaf(y);");
    assert_eq!(text(start("leaf") + 2), "return x * 3 + 1;");
    let line = code.line(InsnIdx(start("leaf") + 1)).unwrap();
    assert!(line.file.ends_with("calls.c"), "{}", line.file);
    let source = include_str!("../objects/calls.c").lines().nth(line.line as usize - 1).unwrap();
    assert_eq!(line.text, source);
    assert_eq!(source[line.column as usize - 1..], *"* 3 + 1;");
    assert!(code.line(InsnIdx(code.insns().len() as u32)).is_none());
}

#[test]
fn prototypes() {
    let object = object!("calls");
    let code = object.code(object.program("second").unwrap()).unwrap();
    let btf = code.btf().unwrap();
    let prototype = |name: &str| {
        let function = code.functions().iter().find(|f| f.name == name).unwrap();
        btf.prototype(function.ty.unwrap()).unwrap()
    };
    let (u64_, u32_) = (ArgKind::Scalar { size: 8 }, ArgKind::Scalar { size: 4 });
    assert_eq!(prototype("middle"), (u64_, vec![u64_, u32_]));
    let (ret, args) = prototype("only_second");
    assert_eq!(ret, u64_);
    assert!(matches!(args[..], [ArgKind::Pointer { size: Some(8), .. }]), "{args:?}");
    let (_, args) = prototype("second");
    assert!(matches!(args[..], [ArgKind::Pointer { size: None, .. }]), "{args:?}");
}

#[test]
fn host_functions() {
    let object = object!("externs");
    let names: Vec<_> = object.host_functions().iter().map(|f| (f.name.as_str(), f.weak)).collect();
    assert_eq!(names, [("host_now", false), ("host_log", false), ("host_optional", true)]);
    let log = object.host_functions()[1].ty.and_then(|ty| object.btf()?.prototype(ty)).unwrap();
    assert_eq!(log.1, [ArgKind::Scalar { size: 8 }, ArgKind::Scalar { size: 4 }]);

    let insns = link(&object, "calls_host", &["host_now", "host_log"]).unwrap();
    let called = |insn: &Insn| match *insn {
        Insn::Call(Callee::Host(host)) => Some(names[host as usize].0),
        _ => None,
    };
    assert_eq!(insns.iter().filter_map(called).collect::<Vec<_>>(), ["host_now", "host_log", "host_log"]);
    let missing = LinkProblem::NoHostFunction("host_log".to_owned());
    assert_eq!(problem(&object, "calls_host", &["host_now"]).1, missing);
}

#[test]
fn a_weak_host_function_can_be_tested_for() {
    let object = object!("externs");
    let present = link(&object, "calls_optional", &["host_optional"]).unwrap();
    let absent = link(&object, "calls_optional", &[]).unwrap();
    assert_eq!((constants(&present), constants(&absent)), (vec![1], vec![0]));
    let call = Insn::Call(Callee::Host(2));
    assert!(present.contains(&call) && absent.contains(&call));
}

#[test]
fn external_variables() {
    let mut object = object!("externs");
    let version = |object: &Object| {
        let code = object.code(object.program("kernel_version").unwrap()).unwrap();
        let kinds: Vec<_> = code.references().iter().map(|r| r.kind).collect();
        let [ReferenceKind::MapValue { map, off }, ReferenceKind::MapValue { map: second, off: missing }] = kinds[..]
        else {
            panic!("{kinds:?}");
        };
        assert_eq!((map, &*object.maps()[map].name), (second, ".kconfig"));
        let data = &object.maps()[map].data.as_ref().unwrap().bytes;
        let word = |off: u32| u32::from_le_bytes(data[off as usize..][..4].try_into().unwrap());
        (word(off), word(missing))
    };
    assert_eq!(version(&object), (LINUX_KERNEL_VERSION, 0));
    object.set_global("LINUX_KERNEL_VERSION", &0x050f00u32.to_le_bytes()).unwrap();
    assert_eq!(version(&object), (0x050f00, 0));
    assert!(link(&object, "kernel_version", &[]).is_ok());

    assert_eq!(constants(&link(&object, "weak_variable", &[]).unwrap()), [0]);
    let refused = |name: &str, section: &str| LinkProblem::Extern { name: name.into(), section: section.into() };
    assert_eq!(problem(&object, "required_config", &[]), (0, refused("CONFIG_REQUIRED", ".kconfig")));
    assert_eq!(problem(&object, "required_variable", &[]), (0, refused("required_symbol", ".ksyms")));
}

#[test]
fn core_relocations() {
    let object = object!("core");
    let core = |program: &str| -> Vec<(u32, CoreKind, String, String)> {
        let code = object.code(object.program(program).unwrap()).unwrap();
        let list = code.core_relocations().iter();
        let named = |c| {
            let (type_name, access) = code.core_names(c);
            (c.insn.0, c.kind, type_name.to_owned(), access.to_owned())
        };
        list.map(named).collect()
    };
    let expect = |list: &[(u32, CoreKind, &str, &str)]| {
        list.iter().map(|&(i, k, t, a)| (i, k, t.to_owned(), a.to_owned())).collect::<Vec<_>>()
    };
    // As printed by `llvm-objdump -dr`; the second one of `reads` is its subprogram's first instruction.
    assert_eq!(
        core("reads"),
        expect(&[(0, CoreKind::FieldByteOffset, "task", "0:0"), (4, CoreKind::FieldByteOffset, "task", "0:1:2:1")])
    );
    assert_eq!(
        core("asks"),
        expect(&[
            (1, CoreKind::FieldExists, "task", "0:1"),
            (3, CoreKind::TypeExists, "nested", "0"),
            (5, CoreKind::TypeSize, "task", "0"),
            (6, CoreKind::EnumvalValue, "mode", "1"),
        ])
    );
    assert!(core("plain").is_empty() && link(&object, "plain", &[]).is_ok());
    let why = "this host has no such type";
    let refused = LinkProblem::Core { kind: "byte_off", type_name: "task".into(), field: "state".into(), why };
    assert_eq!(problem(&object, "reads", &[]), (0, refused));
}

#[test]
fn addresses_in_global_data_are_refused_where_they_are_used() {
    let object = object!("pointers");
    let (slot, refused) = problem(&object, "follows", &[]);
    let message = refused.to_string();
    assert_eq!(slot, 0);
    assert!(
        message.starts_with("variable `pointer` in section `.data.pointers` contains the address of `target`"),
        "{message}"
    );
    assert!(message.contains("pointers.c:"), "{message}");
    assert!(link(&object, "direct", &[]).is_ok());
}

#[test]
fn setters() {
    let mut object = object!("globals");
    let fail = |result: Result<(), ObjectError>| match result {
        Err(ObjectError::Global { problem, .. }) => problem,
        other => panic!("{other:?}"),
    };
    object.set_global("threshold", &77u32.to_le_bytes()).unwrap();
    object.set_global("zeroes", &[1, 2, 3]).unwrap();
    let bytes = |object: &Object, map: &str| object.map(map).unwrap().data.clone().unwrap().bytes;
    assert_eq!(bytes(&object, ".rodata")[..4], 77u32.to_le_bytes());
    assert_eq!(bytes(&object, ".bss.custom"), [1, 2, 3]);
    assert_eq!(fail(object.set_global("threshold", &[0; 8])), GlobalProblem::Size { got: 8, want: 4 });
    assert_eq!(fail(object.set_global("nothing", &[])), GlobalProblem::Unknown);

    let fixed = ObjectError::Map { map: ".bss".into(), problem: MapProblem::FixedSize };
    assert_eq!(object.set_max_entries(".bss", 2), Err(fixed));
    assert!(matches!(object.set_max_entries("flows", 2), Err(ObjectError::NoSuchMap { .. })));
    let mut object = object!("maps");
    object.set_max_entries("flows", 5).unwrap();
    assert_eq!(object.map("flows").unwrap().max_entries, 5);
}

#[test]
fn licence_and_version() {
    let object = object!("globals");
    assert_eq!((object.license(), object.version()), (Some("Dual MIT/GPL"), Some(0x061200)));
    let object = object!("calls");
    assert_eq!((object.license(), object.version()), (Some("GPL"), None));
}

#[test]
fn linked_code_names_its_maps() {
    let object = object!("maps");
    let names = |program: &str| -> Vec<&str> {
        let linked = object.link(object.program(program).unwrap(), |_| true).unwrap();
        linked.maps().into_iter().map(|i| object.maps()[i].name.as_str()).collect()
    };
    assert_eq!(names("stage_a"), ["stages", "totals"]);
    assert_eq!(names("lookup_direct"), ["second"]);
}

#[test]
fn types_of_maps_and_variables() {
    let object = object!("maps");
    let btf = object.btf().unwrap();
    let types = |map: &str| {
        let map = object.map(map).unwrap();
        (map.key_type.map(|ty| btf.display(ty)), map.value_type.map(|ty| btf.display(ty)))
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(types("flows"), (some("struct flow"), some("counters_t")));
    assert_eq!(types("seen"), (None, some("__u64[2]")));
    assert_eq!(types("totals"), (None, None));

    let object = object!("globals");
    let variable = |map: &str, name: &str| {
        let data = object.map(map).unwrap().data.as_ref().unwrap();
        let variable = data.variables.iter().find(|v| v.name == name).unwrap();
        object.btf().unwrap().display(variable.ty.unwrap())
    };
    assert_eq!(variable(".rodata", "threshold"), "const volatile __u32");
    assert_eq!(variable(".rodata", "config"), "const volatile struct {...}");
    assert_eq!(variable(".data", "table"), "__u32[16]");
    let object = object!("pointers");
    let data = object.map(".data.pointers").unwrap().data.as_ref().unwrap();
    assert_eq!(object.btf().unwrap().display(data.variables[0].ty.unwrap()), "volatile int *");
}

#[test]
fn section_names_tell_the_kind() {
    let kinds = [
        ("xdp", ProgramType::Xdp),
        ("?xdp.frags/devmap", ProgramType::Xdp),
        ("xdp_prog", ProgramType::Xdp),
        ("xdp_prog/0", ProgramType::Xdp),
        ("socket1", ProgramType::SocketFilter),
        ("socket_filter", ProgramType::SocketFilter),
        ("cgroup/sock1", ProgramType::CgroupSock),
        ("cgroup/sock_other", ProgramType::CgroupSock),
        ("sock", ProgramType::Unknown),
        ("my_xdp", ProgramType::Unknown),
        ("xd", ProgramType::Unknown),
        ("tcx/ingress", ProgramType::TcClassifier),
        ("cgroup/sock", ProgramType::CgroupSock),
        ("cgroup/sock_create", ProgramType::CgroupSock),
        ("cgroup/skb", ProgramType::CgroupSkb),
        ("cgroup/nothing", ProgramType::Unknown),
        ("raw_tp.w/x", ProgramType::RawTracepointWritable),
        ("raw/filter", ProgramType::Raw),
        (".text", ProgramType::Unknown),
        ("", ProgramType::Unknown),
    ];
    for (section, kind) in kinds {
        assert_eq!(ProgramType::from_section(section), kind, "{section}");
    }
}

#[test]
fn unknown_names_list_what_there_is() {
    let error = object!("core").program("read").unwrap_err().to_string();
    assert_eq!(error, "no program `read` (the object has: reads, asks, plain)");
}

/// GNU's assembler stores a symbol's value at the reference, where LLVM's stores an addend.
#[test]
fn objects_of_gcc_refer_to_what_their_source_names() {
    let object = object!("gcc");
    let named = |program: &str| -> Vec<String> {
        let code = object.link(object.program(program).unwrap(), |_| false).unwrap().into_code();
        let name = |kind| match kind {
            ReferenceKind::Map(map) => object.maps()[map].name.to_owned(),
            ReferenceKind::MapValue { map, off } => format!("{}+{off}", object.maps()[map].name),
            other => panic!("{other:?}"),
        };
        code.references().iter().map(|reference| name(reference.kind)).collect()
    };
    assert_eq!(named("maps"), ["first", "second", "outer", "hidden"]);
    let variables = &object.map(".data").unwrap().data.as_ref().unwrap().variables;
    let offset = |name: &str| variables.iter().find(|variable| variable.name == name).unwrap().offset;
    assert_ne!(offset("before"), offset("counters"));
    assert_eq!(named("data"), ["counters", "before"].map(|name| format!(".data+{}", offset(name))));
    let values: Vec<_> =
        object.map("outer").unwrap().initial.iter().map(|(slot, value)| (*slot, value.clone())).collect();
    let index = |name: &str| object.maps().iter().position(|map| map.name == name).unwrap();
    let expected = ["first", "second"].map(|name| InitialValue::Map(index(name)));
    assert_eq!(values, (0..).zip(expected).collect::<Vec<_>>());
    let code = object.link(object.program("calls").unwrap(), |_| false).unwrap().into_code();
    let names: Vec<_> = code.functions().iter().map(|function| function.name.as_str()).collect();
    assert!(names[1].starts_with("doubled") && names[2].starts_with("tripled"), "{names:?}");
    assert!(Program::new(code.insns().to_vec()).is_ok());
}
