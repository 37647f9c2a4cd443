//! Loading, running, relocating and freeing, one thread at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{HOST, address_of, calls, constant, run, run64, several};
use bpf_jit_code::{Arch, RelocKind, Symbol};
use bpf_os::process::{self, Mapping};
use bpf_prog_pack::{Backing, Error, Options, Packs};
use bpf_quiesce::{Barriers, Domain};

fn packs(options: Options) -> Packs {
    Packs::new(Domain::new(bpf_quiesce::Options::new()), options).unwrap()
}

fn no_symbols(_: Symbol) -> Option<usize> {
    None
}

fn load(packs: &Packs, value: u32, len: usize) -> bpf_prog_pack::Text {
    packs.stage(&constant(value, len), no_symbols).unwrap().finalize().unwrap()
}

#[test]
fn programs_run_and_each_keeps_its_own_bytes() {
    let packs = packs(Options::default());
    let texts: Vec<_> = (0..2000).map(|i| load(&packs, i, 1 + (i as usize * 37) % 900)).collect();
    let guard = packs.domain().enter().unwrap();
    for (i, text) in texts.iter().enumerate() {
        // SAFETY: made by `constant`, and loaded.
        assert_eq!(unsafe { run(text.entry(0).unwrap()) }, i as u32);
        assert_eq!(text.to_vec(), constant(i as u32, 1 + (i * 37) % 900).bytes);
    }
    drop(guard);
    let stats = packs.stats();
    assert_eq!((stats.programs, stats.published), (2000, 2000));
    assert_eq!(stats.bytes_used, texts.iter().map(|t| t.footprint()).sum::<usize>());
    assert_eq!(stats.bytes_used + stats.bytes_free + stats.bytes_retired, stats.bytes);
}

#[test]
fn every_entry_is_where_the_code_says() {
    let packs = packs(Options::default());
    let text = packs.stage(&several(&[7, 8, 9]), no_symbols).unwrap().finalize().unwrap();
    for i in 0..3 {
        // SAFETY: made by `several`, and loaded.
        assert_eq!(unsafe { run(text.entry(i).unwrap()) }, 7 + i as u32);
    }
    assert_eq!(text.entry(3), None);
}

extern "C" fn forty_two() -> u32 {
    42
}

#[test]
fn calls_reach_the_host_directly_and_distant_code_through_a_veneer() {
    let packs = packs(Options::default());
    let near = forty_two as *const () as usize;
    // Far: another reservation that contains this code. The kernel puts it near the shared libraries.
    let far = far_constant(4242);
    let code = calls(Symbol::new(5));
    let (direct, through) = (code.bytes.len(), code.bytes.len().next_multiple_of(24) + 24);
    let neighbour = load(&packs, 7, 0);
    // Under an emulator the text may lie amid the emulator's own mappings, without room near it.
    let to_near = if cfg!(target_arch = "aarch64") { direct..=through } else { direct..=direct };
    for (target, value, expected) in
        [(neighbour.entry(0).unwrap().addr(), 7, direct..=direct), (near, 42, to_near), (far, 4242, through..=through)]
    {
        let text =
            packs.stage(&code, |symbol| (symbol == Symbol::new(5)).then_some(target)).unwrap().finalize().unwrap();
        // SAFETY: made by `calls`, and loaded.
        assert_eq!(unsafe { run(text.entry(0).unwrap()) }, value);
        assert!(expected.contains(&text.len()), "{} bytes to {target:#x}", text.len());
    }
}

#[test]
fn two_symbols_with_one_far_address_share_a_veneer() {
    let packs = packs(Options::default());
    let far = far_constant(3);
    let mut code = calls(Symbol::new(0));
    let second = calls(Symbol::new(1));
    let offset = code.bytes.len() as u32;
    code.bytes.extend_from_slice(&second.bytes);
    code.relocs.push(bpf_jit_code::Reloc { at: second.relocs[0].at + offset, ..second.relocs[0] });
    code.entries = vec![0, offset];
    let text = packs.stage(&code, |_| Some(far)).unwrap().finalize().unwrap();
    assert_eq!(text.len(), code.bytes.len().next_multiple_of(24) + 24);
    for entry in 0..2 {
        // SAFETY: made by `calls`, and loaded.
        assert_eq!(unsafe { run(text.entry(entry).unwrap()) }, 3);
    }
}

/// Code that returns `value` outside the reach of direct branches from the arena.
fn far_constant(value: u32) -> usize {
    let code = constant(value, 0);
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let next = NEXT.fetch_add(1 << 32, Ordering::Relaxed);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // Far from executables and shared libraries alike, wherever the kernel puts them. Two candidates, because a
    // sanitizer's shadow memory covers the other.
    let made = [1usize << 36, 1 << 45].into_iter().find_map(|base| {
        let at = std::ptr::without_provenance_mut(base + next);
        // SAFETY: a new mapping, which replaces none.
        let page = unsafe { libc::mmap(at, 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        (page == at).then_some(page)
    });
    let page = made.expect("a page far away");
    // SAFETY: a page of our own, longer than the code.
    unsafe { std::ptr::copy_nonoverlapping(code.bytes.as_ptr(), page.cast(), code.bytes.len()) };
    // SAFETY: a page of our own.
    assert_eq!(unsafe { libc::mprotect(page, 4096, libc::PROT_READ | libc::PROT_EXEC) }, 0);
    page as usize
}

#[test]
fn absolute_addresses_are_written_in_full() {
    let packs = packs(Options::default());
    for target in [0, 1, 0x1234_5678_9abc, 0xffff_ffff_ffff] {
        let text = packs.stage(&address_of(Symbol::new(0)), |_| Some(target)).unwrap().finalize().unwrap();
        // SAFETY: made by `address_of`, and loaded.
        assert_eq!(unsafe { run64(text.entry(0).unwrap()) }, target as u64);
    }
}

#[test]
fn bad_code_is_an_error_and_leaves_nothing() {
    let packs = packs(Options::default());
    let other = match HOST {
        Arch::X64 => Arch::Arm64,
        Arch::Arm64 => Arch::X64,
    };
    let mut foreign = constant(1, 0);
    foreign.arch = other;
    assert_eq!(packs.stage(&foreign, no_symbols).unwrap_err(), Error::WrongArch(other));
    assert_eq!(packs.stage(&bpf_jit_code::Code::new(HOST), no_symbols).unwrap_err(), Error::Empty);
    let code = calls(Symbol::new(9));
    let at = code.relocs[0].at;
    assert_eq!(packs.stage(&code, no_symbols).unwrap_err(), Error::Unresolved { at, symbol: Symbol::new(9) });
    let foreign_kind = match HOST {
        Arch::X64 => RelocKind::Arm64Mov48,
        Arch::Arm64 => RelocKind::X64Abs64,
    };
    let len = code.bytes.len() as u32;
    for (at, kind) in
        [(len - 3, code.relocs[0].kind), (len, code.relocs[0].kind), (u32::MAX, code.relocs[0].kind), (0, foreign_kind)]
    {
        let mut bad = code.clone();
        bad.relocs[0].at = at;
        bad.relocs[0].kind = kind;
        assert_eq!(packs.stage(&bad, |_| Some(packs_text())).unwrap_err(), Error::BadReloc { at });
    }
    let limit = packs.reserve(usize::MAX / 4).unwrap_err();
    assert!(matches!(limit, Error::NoRoom { .. }), "{limit}");
    assert_eq!(packs.stats().programs, 0);
    assert_eq!(packs.stats().bytes_free, packs.stats().bytes);
}

/// An address within reach of direct branches.
fn packs_text() -> usize {
    forty_two as *const () as usize
}

/// Whether `[at, at + len)` holds the bytes of free memory.
fn all_traps(at: *const u8, len: usize) -> bool {
    let trap = crate::common::trap();
    // SAFETY: in a pack that the test keeps mapped, and which is not written at the time.
    (0..len).all(|i| unsafe { at.wrapping_add(i).read_volatile() } == trap[(at as usize + i) % 4])
}

#[test]
fn freed_code_is_traps_and_an_abandoned_program_leaves_no_trace() {
    for barriers in [Barriers::Auto, Barriers::Fenced] {
        let domain = Domain::new(bpf_quiesce::Options::new().barriers(barriers));
        let packs = Packs::new(Arc::clone(&domain), Options::default()).unwrap();
        let keep = load(&packs, 1, 100);
        let before = packs.stats();
        let text = load(&packs, 2, 500);
        let (at, len) = (text.base(), text.footprint());
        assert!(!all_traps(at, len));
        drop(text);
        let during = packs.stats();
        assert_eq!((during.programs, during.bytes_retired), (1, len));
        packs.drain().unwrap();
        assert!(all_traps(at, len));
        assert_eq!(packs.stats(), with_two_published(before));

        let staged = packs.stage(&constant(3, 500), no_symbols).unwrap();
        let at = std::ptr::with_exposed_provenance(staged.base());
        assert!(!all_traps(at, 500));
        drop(staged);
        assert!(all_traps(at, 512));
        assert_eq!(packs.stats(), with_two_published(before));
        drop(keep);
    }
}

#[test]
fn a_run_keeps_what_is_dropped_under_it() {
    let packs = packs(Options::default());
    let keep = load(&packs, 1, 10);
    let text = load(&packs, 77, 100);
    let (entry, footprint) = (text.entry(0).unwrap(), text.footprint());
    let guard = packs.domain().enter().unwrap();
    drop(text);
    assert_eq!(packs.reclaim(), 0);
    assert!(matches!(packs.drain(), Err(Error::Wait(bpf_quiesce::WaitError::UnderOwnGuard))));
    // SAFETY: made by `constant`; dropped under this guard, which keeps it alive.
    assert_eq!(unsafe { run(entry) }, 77);
    // Loading goes on meanwhile, and uses other memory.
    let more: Vec<_> = (0..600).map(|i| load(&packs, i, 100)).collect();
    let range = entry as usize..entry as usize + footprint;
    assert!(more.iter().all(|t| !range.contains(&(t.base() as usize))));
    drop(more);
    // SAFETY: made by `constant`; dropped under this guard, which keeps it alive.
    assert_eq!(unsafe { run(entry) }, 77);
    drop(guard);
    packs.drain().unwrap();
    assert!(all_traps(entry, footprint));
    assert_eq!(packs.stats().bytes_retired, 0);
    drop(keep);
}

#[test]
fn the_packs_outlive_the_runs_in_them() {
    let packs = packs(Options::default());
    let domain = Arc::clone(packs.domain());
    let text = load(&packs, 5, 100);
    let entry = text.entry(0).unwrap();
    let guard = domain.enter().unwrap();
    drop(text);
    drop(packs);
    // SAFETY: made by `constant`; dropped under this guard, which keeps it and its pack alive.
    assert_eq!(unsafe { run(entry) }, 5);
    drop(guard);
    assert_eq!(domain.reclaim(), 1, "the packs are unmapped by a callback");
}

#[test]
fn large_programs_have_packs_of_their_own_and_empty_packs_go_beyond_the_limit() {
    let mut options = Options::default();
    (options.keep_empty, options.pack_size) = (2 << 20, 1 << 20);
    let packs = packs(options);
    let large = load(&packs, 6, 5 << 20);
    // SAFETY: made by `constant`, and loaded.
    assert_eq!(unsafe { run(large.entry(0).unwrap()) }, 6);
    assert_eq!(packs.stats().bytes, 6 << 20, "whole huge pages");
    drop(large);
    packs.drain().unwrap();
    assert_eq!(packs.stats().bytes, 0, "larger than the packs that are kept");

    let small: Vec<_> = (0..9).map(|i| load(&packs, i, 600 << 10)).collect();
    assert_eq!(packs.stats().packs, 9);
    drop(small);
    packs.drain().unwrap();
    let stats = packs.stats();
    assert_eq!((stats.packs, stats.empty_packs, stats.bytes), (2, 2, 2 << 20), "hysteresis");
    // Kept packs are reused before a new one is mapped.
    let again = load(&packs, 1, 600 << 10);
    assert_eq!(packs.stats().packs, 2);
    drop(again);
}

#[test]
fn the_first_pack_is_small_and_a_full_pack_becomes_a_huge_page_where_the_host_can() {
    let packs = packs(Options::default());
    let mut texts = vec![load(&packs, 0, 100)];
    assert_eq!(packs.stats().bytes, 64 << 10);
    while packs.stats().bytes_used < 64 << 10 {
        texts.push(load(&packs, 1, 4000));
    }
    let before = packs.stats();
    assert_eq!((before.packs, before.bytes_base_pages), (2, (64 << 10) + (2 << 20)));
    while packs.stats().bytes_used < 1400 << 10 {
        texts.push(load(&packs, texts.len() as u32, 4000));
    }
    let after = packs.stats();
    assert_eq!(after.bytes_base_pages + after.bytes_collapsed, after.bytes);
    let backing = if after.bytes_collapsed > 0 { Backing::Collapsed } else { Backing::BasePages };
    println!("backing of a pack past its mark: {backing:?}");
    if backing == Backing::Collapsed {
        assert_eq!(after.bytes_collapsed, 2 << 20);
    }
    for (i, text) in texts.iter().enumerate().skip(70) {
        // SAFETY: made by `constant`, and loaded.
        assert_eq!(unsafe { run(text.entry(0).unwrap()) }, i as u32);
    }
    crate::common::assert_no_writable_code();
}

#[test]
fn random_offsets_differ_and_stay_inside() {
    let mut options = Options::default();
    options.random_offset = true;
    let packs = packs(options);
    let texts: Vec<_> = (0..200).map(|i| load(&packs, i, 64)).collect();
    let mut offsets: Vec<_> = texts.iter().map(|t| t.base() as usize % 64).collect();
    for (i, text) in texts.iter().enumerate() {
        // SAFETY: made by `constant`, and loaded.
        assert_eq!(unsafe { run(text.entry(0).unwrap()) }, i as u32);
    }
    offsets.sort_unstable();
    offsets.dedup();
    assert_eq!(offsets, [0, 16, 32, 48]);
    drop(texts);
    packs.drain().unwrap();
    let stats = packs.stats();
    assert_eq!((stats.bytes_free, stats.programs), (stats.bytes, 0));
}

/// Whether the byte at `at` belongs to a mapping that nothing may access.
fn is_guard(mappings: &[Mapping], at: usize) -> bool {
    mappings.iter().any(|m| (m.start..m.end).contains(&at) && m.permissions.starts_with("---"))
}

#[test]
fn packs_with_guards_lie_between_inaccessible_memory() {
    for (anonymous, debuggable) in [(false, false), (true, false), (false, true)] {
        let mut options = Options::default();
        (options.guards, options.anonymous, options.debuggable) = (true, anonymous, debuggable);
        (options.first_pack_size, options.pack_size) = (64 << 10, 64 << 10);
        let packs = packs(options);
        // Three packs of 64 KiB, one of them too large for that size.
        let texts: Vec<_> = [60 << 10, 60 << 10, 100 << 10].map(|len| load(&packs, 1, len)).into();
        assert_eq!(packs.stats().packs, 3);
        let mappings = process::mappings();
        for text in &texts {
            let own = mappings.iter().find(|m| (m.start..m.end).contains(&(text.base() as usize))).unwrap();
            assert!(is_guard(&mappings, own.start - 1) && is_guard(&mappings, own.end), "{own:?}");
        }
        // The writable views of memory files have the file's name. Packs of other tests have no guards.
        let views = mappings.iter().filter(|m| m.name.contains("prog-pack") && m.permissions.starts_with("rw-s"));
        let guarded = views.filter(|m| is_guard(&mappings, m.start - 1) && is_guard(&mappings, m.end)).count();
        assert!(guarded >= 3 || anonymous || debuggable, "{guarded}");
        drop(texts);
        packs.drain().unwrap();
    }
}

#[test]
fn code_of_any_length_is_an_error_where_there_is_no_room() {
    for random_offset in [false, true] {
        let mut options = Options::default();
        options.random_offset = random_offset;
        let packs = packs(options);
        for len in [usize::MAX, usize::MAX - 47, usize::MAX / 2, 1 << 40] {
            assert!(matches!(packs.reserve(len), Err(Error::NoRoom { .. })), "{len}");
        }
        assert_eq!(packs.stats().bytes, 0);
    }
}

#[test]
fn many_are_published_at_once_or_none() {
    let others = packs(Options::default());
    let packs = packs(Options::default());
    let stage = |packs: &Packs, value| packs.stage(&constant(value, 0), no_symbols).unwrap();
    let texts = packs.publish((0..50).map(|i| stage(&packs, i)).collect()).unwrap();
    for (i, text) in texts.iter().enumerate() {
        // SAFETY: made by `constant`, and loaded.
        assert_eq!(unsafe { run(text.entry(0).unwrap()) }, i as u32);
    }
    let mixed = vec![stage(&packs, 1), stage(&others, 2)];
    assert_eq!(packs.publish(mixed).unwrap_err(), Error::OtherPacks);
    assert_eq!((packs.stats().programs, others.stats().programs), (50, 0));
}

#[test]
fn the_hugetlb_pool_is_used_where_it_has_pages() {
    let mut options = Options::default();
    (options.hugetlb, options.first_pack_size) = (true, 2 << 20);
    let packs = packs(options);
    let text = load(&packs, 8, 5000);
    // SAFETY: made by `constant`, and loaded.
    assert_eq!(unsafe { run(text.entry(0).unwrap()) }, 8);
    let stats = packs.stats();
    println!("hugetlb: {} of {} bytes", stats.bytes_hugetlb, stats.bytes);
    assert_eq!(stats.bytes_hugetlb + stats.bytes_base_pages, 2 << 20);
    let (at, len) = (text.base(), text.footprint());
    drop(text);
    packs.drain().unwrap();
    assert!(all_traps(at, len));
}

fn with_two_published(mut stats: bpf_prog_pack::Stats) -> bpf_prog_pack::Stats {
    stats.published = 2;
    stats
}
