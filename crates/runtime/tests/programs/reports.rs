//! Programs of public bug reports, and what they should come to.
//!
//! The sources are other projects', and not in the repository: they are looked for in `$BPF_SHARED/cases` or
//! `../shared/cases`, and compiled by clang 19 where there is one.

use bpf_runtime::{Arch, Config, Engine, Linker, MapSet, Mode, Object, SkBuff, Skb, Xdp, XdpBuff};
use bpf_testkit::{cases::shared, skipped};
use std::path::Path;
use std::process::Command;

/// Compiles C for BPF; `None`, and said, where there is no compiler for it.
fn compiled(what: &str, source: &Path, include: Option<&Path>) -> Option<Object> {
    let object = std::env::temp_dir().join(format!("bpf-report-{}-{what}.o", std::process::id()));
    let mut clang = Command::new("clang-19");
    clang.args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-I/usr/include/x86_64-linux-gnu", "-c"]);
    // Old headers of libbpf have none.
    clang.arg("-Dbpf_ksym_exists(symbol)=(!!(symbol))");
    clang.args(include.map(|folder| format!("-I{}", folder.display())));
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
    Some(Object::parse(&output).unwrap())
}

fn case(name: &str) -> Option<Object> {
    let folder = shared("cases").inspect_err(|why| skipped(name, why)).ok()?;
    compiled(&name.replace('/', "-"), &folder.join(name).with_extension("c"), Some(&folder.join("reports/include")))
}

fn engines() -> impl Iterator<Item = Engine> {
    let modes = [Mode::Interpreter].into_iter().chain(Arch::HOST.map(|_| Mode::Jit));
    modes.map(|mode| {
        let mut config = Config::default();
        config.mode = mode;
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
    let engine = Engine::new(Config::default()).unwrap();
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
