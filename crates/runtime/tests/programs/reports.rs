//! Programs of public bug reports, and what they should come to.
//!
//! The sources are other projects', and not in the repository: they are looked for in `$BPF_SHARED/cases` or
//! `../shared/cases`, and compiled by clang 19 where there is one.

use bpf_runtime::maps::RingBuf;
use bpf_runtime::{
    Config, Context, Engine, Instance, Linker, LoadError, MapSet, Mode, Object,
    code::Arch,
    net::{SkBuff, Skb, Xdp, XdpBuff},
};
use bpf_testkit::{cases::shared, skipped};
use std::path::Path;
use std::process::Command;

/// Compiles C for BPF; `None`, and said, where there is no compiler for it.
fn compiled(what: &str, source: &Path, include: Option<&Path>) -> Option<Object> {
    bytes_of(what, source, include, &[]).map(|bytes| Object::parse(&bytes).unwrap())
}

fn bytes_of(what: &str, source: &Path, include: Option<&Path>, more: &[&str]) -> Option<Vec<u8>> {
    let object = std::env::temp_dir().join(format!("bpf-report-{}-{what}.o", std::process::id()));
    let mut clang = Command::new("clang-19");
    clang.args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-I/usr/include/x86_64-linux-gnu", "-c"]);
    // Old headers of libbpf have none.
    clang.arg("-Dbpf_ksym_exists(symbol)=(!!(symbol))");
    clang.args(include.map(|folder| format!("-I{}", folder.display())));
    clang.args(more);
    let output = match clang.arg(source).arg("-o").arg(&object).output() {
        Ok(output) if output.status.success() => std::fs::read(&object).unwrap(),
        Ok(output) => {
            skipped(what, &String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default());
            return None;
        }
        Err(why) => {
            skipped(what, &why);
            return None;
        }
    };
    std::fs::remove_file(&object).unwrap();
    Some(output)
}

fn case(name: &str) -> Option<Object> {
    case_with(name, &[])
}

fn case_with(name: &str, more: &[&str]) -> Option<Object> {
    bytes_of_case(name, more).map(|bytes| Object::parse(&bytes).unwrap())
}

fn bytes_of_case(name: &str, more: &[&str]) -> Option<Vec<u8>> {
    let folder = shared("cases").inspect_err(|why| skipped(name, why)).ok()?;
    let (source, include) = (folder.join(name).with_extension("c"), folder.join("reports/include"));
    let what = format!("{}{}", name.replace('/', "-"), more.concat());
    bytes_of(&what, &source, Some(&include), more)
}

fn engines() -> impl Iterator<Item = Engine> {
    let modes = [Mode::Interpreter].into_iter().chain(Arch::HOST.map(|_| Mode::Jit));
    modes.map(|mode| {
        let config = Config::new().mode(mode);
        Engine::new(config).unwrap()
    })
}

fn xdp(object: &Object, program: &str, expected: u64) {
    for engine in engines() {
        let linker = Linker::<()>::new(&engine);
        let maps = MapSet::for_object(&engine, object).unwrap();
        let instance = linker.loader::<Xdp>().only(&[program]).object(object, maps).unwrap();
        let mut packet = [0x45; 60];
        let r0 = instance.program::<Xdp>(program).unwrap().run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap();
        assert_eq!(r0, expected, "{program}");
    }
}

fn skb(object: &Object, program: &str, expected: u64) {
    for engine in engines() {
        let linker = Linker::<()>::new(&engine);
        let maps = MapSet::for_object(&engine, object).unwrap();
        let instance = linker.loader::<Skb>().only(&[program]).object(object, maps).unwrap();
        let mut packet =
            *b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x08\0\x45\0\0\x14\0\0\x40\0\x40\x06\0\0\x0a\0\0\x01\x0a\0\0\x02";
        let r0 = instance.program::<Skb>(program).unwrap().run(&mut (), &mut SkBuff::new(&mut packet)).unwrap();
        assert_eq!(r0, expected, "{program}");
    }
}

#[test]
fn a_numa_node_without_its_flag_means_nothing() {
    let Some(object) = case("reports/13_numa_node") else { return };
    xdp(&object, "prog", 1);
}

#[test]
fn a_flavour_of_a_function_is_that_function() {
    let Some(object) = case("reports/15_kfunc_flavour") else { return };
    xdp(&object, "prog", 160);
}

#[test]
fn records_are_reserved_of_any_size() {
    let Some(object) = case("reports/17_ringbuf_reserve") else { return };
    skb(&object, "zero", 1);
    skb(&object, "huge", 0);
}

#[test]
fn legacy_loads_read_the_headers() {
    let Some(object) = case("projects/01_ld_abs_link_base") else { return };
    skb(&object, "ll_half", 0x0800);
    skb(&object, "net_byte", 0x45);
    skb(&object, "ll_ind", 0x45);
}

#[test]
fn a_map_beyond_the_limit_says_how_to_make_it_smaller() {
    let Some(mut object) = case("projects/07_map_larger_than_limit") else { return };
    let engine = Engine::new(Config::new()).unwrap();
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let error = Linker::<()>::new(&engine).load::<Skb>(&object, maps).unwrap_err().to_string();
    assert!(error.contains("--max-entries"), "{error}");
    object.set_max_entries("flows", 1000).unwrap();
    skb(&object, "f", 0);
}

/// `__arg_nonnull`: without it the argument may be null, and the function would have to test it.
#[test]
fn arguments_of_global_functions_are_as_their_tags_say() {
    let source = std::env::temp_dir().join(format!("bpf-arg-tags-{}.c", std::process::id()));
    let text = r#"
        #define TAG(tag) __attribute__((btf_decl_tag(tag)))
        struct xdp_md { unsigned data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex; };
        __attribute__((noinline)) int plus(int *p, int *q TAG("arg:nonnull")) { return (p ? *p : 0) + *q; }
        __attribute__((noinline)) int queue(void *c TAG("arg:ctx")) { return ((struct xdp_md *)c)->rx_queue_index; }
        __attribute__((section("xdp"), used)) int prog(struct xdp_md *c) { int x = 5; return plus(0, &x) + queue(c); }
        char licence[] __attribute__((section("license"), used)) = "GPL";
    "#;
    std::fs::write(&source, text).unwrap();
    let object = compiled("arg-tags", &source, None);
    std::fs::remove_file(&source).unwrap();
    let Some(object) = object else { return };
    xdp(&object, "prog", 5);
}

/// Bytes of an Ethernet frame with an IPv4 packet, 60 in all.
fn frame() -> Vec<u8> {
    let mut frame =
        b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x08\0\x45\0\0\x2e\0\0\x40\0\x40\x11\0\0\x0a\0\0\x01\x0a\0\0\x02".to_vec();
    frame.resize(60, 0);
    frame
}

/// Loads a program; with `root`, as a privileged load, which accepts what the kernel accepts from root only.
fn load<C: Context>(engine: &Engine, object: &Object, program: &str, root: bool) -> Result<Instance<()>, LoadError> {
    let loader_of = Linker::<()>::new(engine);
    let loader = loader_of.loader::<C>().only(&[program]);
    let loader = loader.privileged(root);
    loader.object(object, MapSet::for_object(engine, object)?)
}

/// Each project's case has the verdict that its head states: a program that the kernel accepts is accepted, with the
/// kernel's result.
#[test]
fn projects_do_as_their_heads_say() {
    // Case, compiler's options, program, whether the kernel wants root's rights, result.
    let xdps: [(&str, &[&str], &str, bool, u32); 8] = [
        ("03_many_exits_then_moves", &["-DN=150"], "f", false, 3),
        ("05_distance_after_move", &[], "in_register", false, 1),
        ("05_distance_after_move", &[], "spilled", false, 1),
        ("15_reload_after_join", &[], "joined", false, 0),
        ("15_reload_after_join", &[], "straight", false, 0),
        ("17_consumed_record_tested", &[], "f", false, 3),
        ("19_wide_difference_of_halves", &[], "wide", false, 0),
        ("19_wide_difference_of_halves", &[], "narrow", false, 0),
    ];
    for (case, options, program, root, expected) in xdps {
        let Some(object) = case_with(&format!("projects/{case}"), options) else { continue };
        for engine in engines() {
            let instance =
                load::<Xdp>(&engine, &object, program, root).unwrap_or_else(|e| panic!("{case} {program}: {e}"));
            let mut packet = frame();
            let r0 = instance.program::<Xdp>(program).unwrap().run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap();
            assert_eq!(r0 as u32, expected, "{case} {program}");
        }
    }
    let skbs: [(&str, &[&str], u32); 5] = [
        ("02_paths_before_callback", &["-DN=14"], 100),
        ("02_paths_before_callback", &["-DN=14", "-DEACH"], 2),
        ("02_paths_before_callback", &["-DN=14", "-DPLAIN"], 0),
        ("11_feature_by_enum", &[], 0),
        ("13_context_compared", &[], 0),
    ];
    for (case, options, expected) in skbs {
        let Some(object) = case_with(&format!("projects/{case}"), options) else { continue };
        for engine in engines() {
            let instance = load::<Skb>(&engine, &object, "f", false).unwrap_or_else(|e| panic!("{case}: {e}"));
            let mut packet = frame();
            let r0 = instance.program::<Skb>("f").unwrap().run(&mut (), &mut SkBuff::new(&mut packet)).unwrap();
            assert_eq!(r0 as u32, expected, "{case} {options:?}");
        }
    }
}

/// Instructions that the verifier walks in a program.
fn steps<C: Context>(object: &Object, program: &str) -> u64 {
    let engine = Engine::new(Config::new()).unwrap();
    let maps = MapSet::for_object(&engine, object).unwrap();
    let reports = Linker::<()>::new(&engine).loader::<C>().only(&[program]).verify(object, maps, false);
    reports.unwrap_or_else(|e| panic!("{program}: {e}"))[0].steps
}

/// The verifier merges paths whose differences no later instruction needs, before a callback and after the exits of a
/// loop that moves a packet pointer. It walks no more instructions than the kernel.
#[test]
fn projects_take_no_more_steps_than_in_the_kernel() {
    let callback = |branches: u32, more: &[&str]| {
        let size = format!("-DN={branches}");
        let object = case_with("projects/02_paths_before_callback", &[&[size.as_str()], more].concat())?;
        Some(steps::<Skb>(&object, "f"))
    };
    for more in [&[][..], &["-DEACH"]] {
        // The kernel walks 410 instructions of 10 branches and about 610 of 16.
        let Some((ten, sixteen)) = callback(10, more).zip(callback(16, more)) else { return };
        assert!(ten <= 410 && sixteen <= 610, "{more:?}: {ten} steps of 10 branches, {sixteen} of 16");
    }
    let exits = |exits: u32| {
        let object = case_with("projects/03_many_exits_then_moves", &[&format!("-DN={exits}")])?;
        Some(steps::<Xdp>(&object, "f"))
    };
    // The kernel walks 173,117 instructions of 40 exits and about 650,000 of 150.
    let Some((few, many)) = exits(40).zip(exits(150)) else { return };
    assert!(many <= 20_000 && many < 6 * few, "{few} steps of 40 exits, {many} of 150");
}

/// As projects/02, with the loop of an iterator (`bpf_for`) behind the branches.
#[test]
fn branches_before_an_iterator_do_not_multiply() {
    let source = std::env::temp_dir().join(format!("bpf-branches-{}.c", std::process::id()));
    let text = r#"
        #include <linux/bpf.h>
        #include <bpf/bpf_helpers.h>
        struct numbers { __u64 state; } __attribute__((aligned(8)));
        extern int bpf_iter_num_new(struct numbers *it, int start, int end) __attribute__((section(".ksyms")));
        extern int *bpf_iter_num_next(struct numbers *it) __attribute__((section(".ksyms")));
        extern void bpf_iter_num_destroy(struct numbers *it) __attribute__((section(".ksyms")));
        struct work { __u32 flag[16]; __s64 result; };
        struct {
            __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, struct work);
        } scratch SEC(".maps");
        SEC("tc") int f(struct __sk_buff *skb) {
            __u32 flag[16] = {}, zero = 0;
        #pragma unroll
            for (int i = 0; i < N; i++) flag[i] = bpf_get_prandom_u32() & 1 ? 1 : 2;
            struct work *w = bpf_map_lookup_elem(&scratch, &zero);
            if (!w) return 0;
            __builtin_memcpy(w->flag, flag, sizeof w->flag);
            struct numbers it;
            bpf_iter_num_new(&it, 0, skb->len + 40);
            for (int *i; (i = bpf_iter_num_next(&it));)
                if (w->flag[*i & 15] != 3) w->result++;
            bpf_iter_num_destroy(&it);
            return w->result;
        }
        char licence[] SEC("license") = "GPL";
    "#;
    std::fs::write(&source, text).unwrap();
    let object = |branches: u32| {
        let bytes = bytes_of("branches", &source, None, &[&format!("-DN={branches}")])?;
        Some(Object::parse(&bytes).unwrap())
    };
    let objects = object(8).zip(object(16));
    std::fs::remove_file(&source).unwrap();
    let Some((eight, sixteen)) = objects else { return };
    let (few, many) = (steps::<Skb>(&eight, "f"), steps::<Skb>(&sixteen, "f"));
    assert!(many < 3 * few && many <= 610, "{few} steps of 8 branches, {many} of 16");
    skb(&sixteen, "f", 74);
}

/// `bpf_probe_read_kernel` of a packet: as many bytes as the packet has, whatever was compared before.
#[test]
fn packets_are_copied_by_probes() {
    let Some(object) = case("projects/09_probe_read_of_packet") else { return };
    for engine in engines() {
        let instance = load::<Xdp>(&engine, &object, "f", false).unwrap();
        let mut ring = RingBuf::new(&instance.map("ring").unwrap()).unwrap();
        for len in [1, 20, 60, 63, 64, 100] {
            let mut packet: Vec<u8> = (1..=len).collect();
            let r0 = instance.program::<Xdp>("f").unwrap().run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap();
            let mut copied: Vec<u8> = packet[..usize::from(len & 63)].to_vec();
            copied.resize(64, 0);
            let mut record = None;
            ring.consume(|bytes| {
                record = Some(bytes.to_vec());
                true
            });
            assert_eq!((r0, record), (2, Some(copied)), "{len} bytes");
        }
    }
}

/// The verdict on a program does not depend on how large its maps are.
#[test]
fn a_program_with_a_large_map_is_verified() {
    let Some(object) = case("projects/07_map_larger_than_limit") else { return };
    let engine = Engine::new(Config::new()).unwrap();
    let maps = MapSet::for_object(&engine, &object).unwrap();
    Linker::<()>::new(&engine).loader::<Skb>().verify(&object, maps, false).unwrap();
}

/// Reports 20 to 23 ask for acceptance in their heads, though the kernel refuses them too. Two loops of 23 are refused,
/// by a message that does not call them endless.
#[test]
fn reports_about_precision_are_accepted() {
    let cases: [(&str, &[&str]); 4] = [
        ("20_masked_copies", &["u8_minus_one", "u16_plus_one"]),
        ("21_rest_of_buffer", &["rest", "append", "append_sum", "append_loop"]),
        ("22_length_of_32_bits", &["fixed", "min_signed", "stack_index"]),
        ("23_loops_that_end", &["merge", "bits", "bisect", "two_ends", "countdown", "from_negative"]),
    ];
    let engine = Engine::new(Config::new()).unwrap();
    let mut wrong = Vec::new();
    // The verifier's search does not depend on the machine: under an emulator, some programs of each report.
    let step = if bpf_testkit::emulated() { 4 } else { 1 };
    for (name, programs) in cases {
        let Some(object) = case(&format!("reports/{name}")) else { continue };
        for program in programs.iter().step_by(step) {
            match load::<Skb>(&engine, &object, program, false) {
                Ok(_) => {}
                Err(error) if ["bits", "two_ends"].contains(program) && !error.to_string().contains("never ends") => {}
                Err(error) => wrong.push(format!("{name} {program}: {error}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Compares results, and the first element of the map that the programs write, with those in the heads of the reports
/// on CO-RE. Each report has the BTF of its target beside it, except for the last one, which needs none.
#[test]
fn reports_about_relocations_do_as_their_heads_say() {
    // Program, result, element 0 of the map `out`.
    type Programs = [(&'static str, u32, Option<u64>)];
    let reports: [(&str, &Programs); 7] = [
        (
            "01_core_bitfield",
            &[("exists", 101, None), ("read", 0x121, None), ("read_signed", (-1i32).cast_unsigned(), None)],
        ),
        ("02_core_flexible_array", &[("exists", 101, None), ("read", 0xf0e, None)]),
        (
            "04_core_access_widened",
            &[
                ("load4", 2, Some(0x1716_1514)),
                ("load1", 2, Some(0x38)),
                ("store4", 2, Some(0x1b1a_1918_aabb_ccdd)),
                ("half2", 2, Some(0x1f1e_1d1c)),
            ],
        ),
        ("05_core_signed_narrower", &[("negative", 1, None)]),
        ("06_core_kinds", &[("field", 100, None), ("union_", 100, None), ("match", 100, None)]),
        ("08_core_enum64_size", &[("size", 8, None)]),
        ("11_core_features", &[("probe", 111, None)]),
    ];
    let mut wrong = Vec::new();
    for (name, programs) in reports {
        let Some(mut object) = case(&format!("reports/{name}")) else { continue };
        if name != "11_core_features" {
            let Some(target) = bytes_of_case(&format!("reports/target/{name}"), &[]) else { continue };
            object.target_btf(&target).unwrap();
        }
        for (engine, &(program, returned, stored)) in
            engines().flat_map(|engine| programs.iter().map(move |program| (engine.clone(), program)))
        {
            let instance = match load::<Xdp>(&engine, &object, program, false) {
                Ok(instance) => instance,
                // A narrower signed field may be refused, as by libbpf, but not read without its sign.
                Err(error) if name == "05_core_signed_narrower" && error.to_string().contains("has another size") => {
                    continue;
                }
                Err(error) => {
                    wrong.push(format!("{name} {program}: {error}"));
                    continue;
                }
            };
            // The packet of the heads' DATA.
            let mut packet = [0xff; 8].into_iter().chain(8..64).collect::<Vec<u8>>();
            packet[10..12].fill(0xff);
            let r0 = instance.program::<Xdp>(program).unwrap().run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap();
            let first = || instance.map("out").unwrap().get(&[0; 4]).unwrap().unwrap();
            let element = stored.map(|_| u64::from_ne_bytes(first().try_into().unwrap()));
            if (r0 as u32, element) != (returned, stored) {
                wrong.push(format!("{name} {program}: {r0:#x} and {element:x?}, not {returned:#x} and {stored:x?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// All types of one name in a target's BTF are candidates; where they disagree, the load is refused.
#[test]
fn candidates_of_one_name_are_told_apart() {
    let Some(mut object) = case("reports/09_core_candidates") else { return };
    // The target as the case describes it: the one of a name has what the other has not, and a field moves.
    let source = std::env::temp_dir().join(format!("bpf-report-target-{}.c", std::process::id()));
    let text = r#"
        typedef unsigned int u32;
        #define KEEP __attribute__((used))
        void one(void) {
            enum de { DE_X = 4 };
            static KEEP struct dup { u32 pad[3]; u32 only; } dup;
            static KEEP struct amb { u32 pad; u32 v; } amb;
            static KEEP enum de de;
        }
        void other(void) {
            enum de { DE_Y = 5 };
            static KEEP struct dup { u32 b; } dup;
            static KEEP struct amb { u32 pad[2]; u32 v; } amb;
            static KEEP enum de de;
        }
    "#;
    std::fs::write(&source, text).unwrap();
    let target = bytes_of("report-target", &source, None, &[]);
    std::fs::remove_file(&source).unwrap();
    let Some(target) = target else { return };
    object.target_btf(&target).unwrap();
    for engine in engines() {
        for (program, expected) in [("only", 0x0f0e_0d0c), ("exists", 101), ("value", 5)] {
            let instance = load::<Xdp>(&engine, &object, program, false).unwrap();
            let mut packet: Vec<u8> = (0..64).collect();
            let r0 = instance.program::<Xdp>(program).unwrap().run(&mut (), &mut XdpBuff::new(&mut packet)).unwrap();
            assert_eq!(r0, expected, "{program}");
        }
        let error = load::<Xdp>(&engine, &object, "ambiguous", false).unwrap_err().to_string();
        assert!(error.contains("amb::v"), "{error}");
    }
}

/// An object of 66,000 sections, as the case's script writes it.
#[test]
fn objects_of_many_sections_are_read() {
    if let Err(why) = shared("cases/reports/16_many_sections.py") {
        return skipped("reports/16_many_sections", &why);
    }
    let source = std::env::temp_dir().join(format!("bpf-report-sections-{}.s", std::process::id()));
    let mut text = String::from(
        ".section license,\"aw\",@progbits\n.asciz \"GPL\"\n.section \"xdp\",\"ax\",@progbits\n.globl first\n\
         .type first,@function\nfirst:\n r1 = glob ll\n r0 = *(u32 *)(r1 + 0)\n r0 += 1\n exit\n.size first,.-first\n",
    );
    for i in 0..66_000 {
        text += &format!(".section .debug_x{i},\"\",@progbits\n.byte 1\n");
    }
    text += ".section \".data\",\"aw\",@progbits\n.globl glob\n.type glob,@object\nglob: .long 40\n.size glob,4\n\
             .section \"xdp/late\",\"ax\",@progbits\n.globl last\n.type last,@function\nlast:\n call sub\n exit\n\
             .size last,.-last\n.section \".text\",\"ax\",@progbits\n.globl sub\n.type sub,@function\nsub:\n r0 = 77\n\
             exit\n.size sub,.-sub\n";
    std::fs::write(&source, text).unwrap();
    let object = compiled("many-sections", &source, None);
    std::fs::remove_file(&source).unwrap();
    let Some(object) = object else { return };
    xdp(&object, "first", 41);
    xdp(&object, "last", 77);
}
