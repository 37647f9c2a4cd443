//! Tests of the shapes of images: trees over 0, 1, 2, 16 and 48 entries and chains, on both architectures, as text in
//! tests/snapshots.
//!
//! `BLESS=1 cargo test -p bpf-dispatcher --test images shapes` rewrites them.

use bpf_dispatcher::{Entry, HookPolicy, Image, Link, MAX_LIMIT, Options, Verdicts};
use bpf_jit_code::{Arch, Hardening, Needs, Symbol};
use std::fmt::Write;

fn text(image: &Image) -> String {
    let lines = bpf_disasm::lines(image.code(), &|Symbol { index: i, .. }| format!("program{i}")).unwrap();
    let mut text = String::new();
    for line in lines {
        if let Some(label) = line.label {
            writeln!(text, "{label}:").unwrap();
        }
        writeln!(text, "    {}", line.text).unwrap();
    }
    text
}

fn check(name: &str, make: impl Fn(Arch) -> Image) {
    let (x64, arm64) = (make(Arch::X64), make(Arch::Arm64));
    let text = format!(
        "-- x64, {} bytes\n{}-- arm64, {} bytes\n{}",
        x64.code().bytes.len(),
        text(&x64),
        arm64.code().bytes.len(),
        text(&arm64)
    );
    let path = format!("{}/tests/snapshots/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{path}: BLESS=1 rewrites it");
}

const ARENA: usize = 0x5555_4000_0000;

/// Programs of 192 bytes, one after the other.
fn entries(base: usize, count: usize) -> Vec<Entry> {
    (0..count).map(|i| Entry { address: base + i * 192, hits: 0 }).collect()
}

fn links(count: usize) -> Vec<Link> {
    (1..=count).map(Link::new).collect()
}

#[test]
fn trees() {
    for count in [0, 1, 2, 16, 48] {
        check(&format!("tree_{count}"), |arch| Image::tree(arch, &entries(ARENA, count), &Options::default()));
    }
}

#[test]
fn low_addresses_need_no_subtraction() {
    check("tree_2_low", |arch| Image::tree(arch, &entries(0x40_0000, 2), &Options::default()));
}

#[test]
fn hits_put_an_entry_at_the_root() {
    let mut entries = entries(ARENA, 5);
    entries[3].hits = 1000;
    check("tree_5_hits", |arch| Image::tree(arch, &entries, &Options { align: false, ..Options::default() }));
}

#[test]
fn chains() {
    check("chain_0", |arch| Image::chain(arch, &links(0), HookPolicy::LastWins { empty: 7 }, &Options::default()));
    check("chain_1", |arch| Image::chain(arch, &links(1), HookPolicy::FirstVerdict { pass: 2 }, &Options::default()));
    check("chain_3_first", |arch| {
        Image::chain(arch, &links(3), HookPolicy::FirstVerdict { pass: 2 }, &Options::default())
    });
    check("chain_2_last", |arch| Image::chain(arch, &links(2), HookPolicy::LastWins { empty: 0 }, &Options::default()));
    let mut sets = links(2);
    sets[0].continue_on = Some(Verdicts::Set(1 << 2 | 1 << 31));
    sets[1].continue_on = Some(Verdicts::Set(1 << 2 | 1 << 40));
    check("chain_2_sets", |arch| Image::chain(arch, &sets, HookPolicy::FirstVerdict { pass: 2 }, &Options::default()));
    check("chain_2_all", |arch| Image::chain(arch, &links(2), HookPolicy::RunAll { result: 0 }, &Options::default()));
    check("chain_1_all", |arch| Image::chain(arch, &links(1), HookPolicy::RunAll { result: 0 }, &Options::default()));
    let quiet = links(2).into_iter().map(|link| Link { needs: Needs::Nothing, ..link }).collect::<Vec<_>>();
    check("chain_2_not_hidden", |arch| {
        Image::chain(arch, &quiet, HookPolicy::RunAll { result: 0 }, &Options::default())
    });
}

const HARD: Options = Options {
    limit: 48,
    align: true,
    hardening: Hardening::new()
        .retpolines(true)
        .landing_pads(true)
        .return_signing(true)
        .straight_line(true)
        .blind_constants(false),
};

#[test]
fn hardened() {
    check("hardened_tree_3", |arch| Image::tree(arch, &entries(ARENA, 3), &HARD));
    check("hardened_chain_2", |arch| Image::chain(arch, &links(2), HookPolicy::FirstVerdict { pass: 0 }, &HARD));
    let x64 = text(&Image::tree(Arch::X64, &entries(ARENA, 48), &HARD));
    assert!(x64.starts_with("    endbr64\n") && x64.contains("lfence"));
    assert!(!x64.contains("jmp rax"), "with retpolines there is no indirect jump");
    assert!(text(&Image::tree(Arch::Arm64, &entries(ARENA, 48), &HARD)).lines().next().unwrap().contains("#0x22"));
}

/// The kernel's code for one entry: cmp imm32 (7), je (6), jmp (2). Ours compares with rax, which has a shorter form.
#[test]
fn minimal_forms_are_no_larger_than_the_kernels() {
    let len = |base, count| Image::tree(Arch::X64, &entries(base, count), &Options::default()).code().bytes.len();
    assert_eq!(len(0x40_0000, 1), 14);
    // The kernel's code has three compares, three conditional jumps and two indirect ones: 7 + 2 + 2 * (7 + 6 + 2).
    assert!(len(0x40_0000, 2) < 39 && len(ARENA, 2) < 39);
}

/// The tree that the kernel publishes for 16 programs (emit_bpf_dispatcher): recursion over a range, with a compare
/// and `jg` where the range has more than one program, and compare, `je`, indirect jump where it has one. This test
/// repeats the kernel's recursion independently of our code.
#[test]
fn sixteen_entries_have_the_kernels_shape() {
    fn kernel(first: usize, last: usize, shape: &mut Vec<String>) {
        if first == last {
            shape.push(format!("je program{first}"));
            shape.push("jmp rax".into());
            return;
        }
        let pivot = (last - first) / 2;
        shape.push("jg".into());
        kernel(first, first + pivot, shape);
        kernel(first + pivot + 1, last, shape);
    }
    let mut expected = Vec::new();
    kernel(0, 15, &mut expected);
    // Low addresses are immediates, like the kernel's: nothing is subtracted and every node compares. Elsewhere a
    // subtraction is the root's compare.
    for (base, compares) in [(0x40_0000, 31), (ARENA, 30)] {
        let text = text(&Image::tree(Arch::X64, &entries(base, 16), &Options::default()));
        let code: Vec<&str> = text.lines().map(str::trim).filter(|line| *line != "int3").collect();
        let shape: Vec<String> = code
            .iter()
            .filter(|line| line.starts_with('j'))
            .map(|line| if line.starts_with("jg") { "jg".into() } else { (*line).to_owned() })
            .collect();
        assert_eq!(shape, expected);
        assert_eq!(code.iter().filter(|line| line.starts_with("cmp")).count(), compares);
    }
}

/// The largest possible images: every branch of arm64 is in reach, with all options that take room. (x86-64 reaches 2
/// GiB.)
#[test]
fn the_largest_images_branch_to_where_they_should() {
    let options = Options { limit: usize::MAX, ..HARD };
    // Far apart, so that constants are long.
    let mut entries: Vec<Entry> = (0..MAX_LIMIT + 5).map(|i| Entry { address: ARENA + i * 131_072, hits: 0 }).collect();
    for hits in [0, 1] {
        entries.iter_mut().enumerate().for_each(|(i, entry)| entry.hits = hits * (i % 97) as u64);
        let tree = Image::tree(Arch::Arm64, &entries, &options);
        assert_eq!(tree.programs(), MAX_LIMIT);
        assert!(tree.code().bytes.len() < 1 << 20, "{} bytes", tree.code().bytes.len());
        bpf_disasm::lines(tree.code(), &|_| String::new()).unwrap();
    }
    let links: Vec<Link> = (0..MAX_LIMIT + 5)
        .map(|address| Link { continue_on: Some(Verdicts::Set(u64::MAX / 3)), ..Link::new(address) })
        .collect();
    let chain = Image::chain(Arch::Arm64, &links, HookPolicy::FirstVerdict { pass: 2 }, &options);
    assert_eq!(chain.programs(), MAX_LIMIT);
    assert!(chain.code().bytes.len() < 1 << 20, "{} bytes", chain.code().bytes.len());
    let lines = bpf_disasm::lines(chain.code(), &|_| String::new()).unwrap();
    let last = lines.iter().rfind(|line| line.label.is_some()).unwrap();
    let outs = lines.iter().filter(|line| line.branch == Some(last.offset.into())).count();
    assert_eq!(outs, 2 * MAX_LIMIT, "two ways out of each program");
}
