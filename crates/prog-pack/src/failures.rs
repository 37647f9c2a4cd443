//! Tests in which every system call of loading fails once, at each place where it is made: the error is typed, and
//! the state is consistent afterwards.

use std::sync::Arc;

use bpf_jit_code::{Arch, Code};
use bpf_os::{Call, SysError, inject, process};
use bpf_quiesce::Domain;

use crate::arena::{Arena, HUGE};
use crate::{Error, Options, Packs, Stats, Text};

fn code(len: usize) -> Code {
    let mut code = Code::new(Arch::HOST.unwrap());
    code.bytes = vec![0x11; len];
    code.entries = vec![0];
    code
}

fn load(packs: &Packs, len: usize) -> Result<Text, Error> {
    packs.stage(&code(len), |_| None)?.finalize()
}

/// An arena of its own, far from the text, so that it does not use up the room near the text.
fn arena() -> &'static Arena {
    Arena::reserve(16 << 20, 0).unwrap().for_ever()
}

fn packs_in(arena: &'static Arena, options: Options) -> Packs {
    Packs::in_arena(Domain::new(bpf_quiesce::Options::new()), options, Arch::HOST.unwrap(), arena)
}

/// Whether a pack is mapped at this address.
fn is_mapped(at: usize) -> bool {
    process::mappings()
        .iter()
        .any(|m| (m.name.contains("prog-pack") || m.name.contains("/dev/zero")) && (m.start..m.end).contains(&at))
}

/// Whether packs without a memory file are available: qemu-user cannot map their memory twice.
fn has_anonymous() -> bool {
    let packs = packs_in(arena(), Options { anonymous: true, ..Options::default() });
    let base = load(&packs, 1000).unwrap().base() as usize;
    process::mappings().iter().any(|m| m.name.contains("/dev/zero") && (m.start..m.end).contains(&base))
}

#[test]
fn a_failing_call_while_a_pack_is_made_leaves_nothing_behind() {
    let has_anonymous = has_anonymous();
    let file = [Call::Mmap, Call::Munmap, Call::Memfd, Call::Ftruncate, Call::Seal, Call::Madvise].map(|c| (c, false));
    let anonymous = [Call::Mmap, Call::Munmap, Call::Mremap, Call::Mprotect, Call::Madvise].map(|c| (c, true));
    for (call, anonymous) in file.into_iter().chain(anonymous) {
        let mut places = 0;
        for nth in 0.. {
            let arena = arena();
            let packs = packs_in(arena, Options { first_pack_size: HUGE, anonymous, ..Options::default() });
            let (result, reached) = inject::failing(call, nth, || load(&packs, 1000));
            if !reached {
                assert!(result.is_ok());
                break;
            }
            places += 1;
            // The calls that trim a new pack may fail without harm, and `mremap` has an alternative.
            let survivor = if matches!(call, Call::Munmap | Call::Mremap) {
                Some(result.unwrap())
            } else {
                let error = SysError { call, errno: inject::ERRNO };
                assert_eq!(result.unwrap_err(), Error::Sys(error), "{call:?} {nth}");
                assert_eq!((packs.stats(), arena.taken()), (Stats::default(), 0), "{call:?} {nth}");
                None
            };
            // Loading succeeds without the failure.
            let text = load(&packs, 1000).unwrap();
            let base = text.base() as usize;
            assert!(is_mapped(base));
            assert_eq!(text.to_vec(), code(1000).bytes);
            drop((text, survivor));
            packs.drain().unwrap();
            drop(packs);
            assert_eq!(arena.taken(), 0);
            assert!(!is_mapped(base), "{call:?} {nth}");
        }
        println!("{call:?}: failed at {places} places");
        // With a single mapping, `mprotect` is never called.
        let expected = call != Call::Mprotect || has_anonymous;
        assert_eq!(places > 0, expected, "{call:?} is part of making a pack");
    }
}

/// A failing call may fail again while its caller cleans up. Then address space is lost, and nothing else.
#[test]
fn a_call_that_goes_on_failing_loses_address_space_at_most() {
    use Call::{Ftruncate, Madvise, Memfd, Mmap, Mprotect, Mremap, Munmap, Seal};
    for call in [Mmap, Munmap, Memfd, Ftruncate, Seal, Madvise, Mremap, Mprotect] {
        for (anonymous, keep_empty) in [(false, HUGE), (true, HUGE), (false, 0), (true, 0)] {
            for nth in 0.. {
                let arena = arena();
                let packs = packs_in(arena, Options { anonymous, keep_empty, ..Options::default() });
                // Loaded and dropped, so that unmapping fails too.
                let (result, reached) = inject::failing_from(call, nth, || {
                    let text = load(&packs, 1000)?;
                    assert_eq!(text.to_vec(), code(1000).bytes);
                    drop(text);
                    packs.drain()
                });
                match result {
                    Ok(()) | Err(Error::Sys(SysError { errno: inject::ERRNO, .. })) => {}
                    Err(other) => panic!("{call:?} {nth}: {other:?}"),
                }
                assert!(reached || result.is_ok(), "{call:?} {nth}");
                let stats = packs.stats();
                assert_eq!((stats.programs, stats.bytes_used, stats.bytes_retired), (0, 0, 0), "{call:?} {nth}");
                let lost = arena.taken() - stats.bytes;
                assert!(lost == 0 || reached && lost <= crate::arena::GRANULE, "{call:?} {nth}: {lost} bytes lost");
                // Lost address space is never reused: the new programs lie elsewhere, and run.
                let texts: Vec<_> = (1..40).map(|i| load(&packs, i * 1000).unwrap()).collect();
                assert!(texts.iter().all(|text| text.to_vec() == code(text.len()).bytes));
                drop(texts);
                packs.drain().unwrap();
                drop(packs);
                assert_eq!(arena.taken(), lost, "{call:?} {nth}");
                if !reached {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_failing_collapse_leaves_small_pages_and_is_not_tried_again() {
    let packs = packs_in(arena(), Options { first_pack_size: HUGE, collapse_percent: 10, ..Options::default() });
    let first = load(&packs, 1000).unwrap();
    for nth in [0, 1] {
        let (second, reached) = inject::failing(Call::Madvise, nth, || load(&packs, 300_000).unwrap());
        assert_eq!(reached, nth == 0, "one try");
        assert_eq!(second.to_vec(), code(300_000).bytes);
        assert_eq!(packs.stats().bytes_collapsed, 0);
    }
    assert_eq!(first.to_vec(), code(1000).bytes);
}

#[test]
fn a_failing_hugetlb_pool_is_a_quiet_fallback() {
    let options = Options { first_pack_size: HUGE, hugetlb: true, ..Options::default() };
    let packs = packs_in(arena(), options);
    let (text, reached) = inject::failing(Call::Memfd, 0, || load(&packs, 1000).unwrap());
    assert!(reached);
    assert_eq!(packs.stats().bytes_base_pages, HUGE);
    assert_eq!(text.len(), 1000);
}

#[test]
fn what_cannot_be_unmapped_is_lost_as_address_space_only() {
    let arena = arena();
    let packs = packs_in(arena, Options { keep_empty: 0, ..Options::default() });
    let text = load(&packs, 1000).unwrap();
    drop(text);
    let (result, reached) = inject::failing(Call::Mmap, 0, || packs.drain());
    assert!(reached && result.is_ok());
    assert_eq!(packs.stats(), Stats { published: 1, ..Stats::default() });
    assert_eq!(arena.taken(), crate::arena::GRANULE, "the executable view is still there, so its range is not reused");
    // Other ranges can be used.
    let text = load(&packs, 1000).unwrap();
    drop(text);
    packs.drain().unwrap();
    assert_eq!(arena.taken(), crate::arena::GRANULE);
}

#[test]
fn a_reservation_that_fails_is_smaller_or_elsewhere_or_a_typed_error() {
    let reach = crate::arch::reach(Arch::HOST.unwrap());
    let (again, reached) = inject::failing(Call::Mmap, 0, || Arena::reserve(16 << 20, reach));
    assert!(reached && again.is_ok());
    // No place is within a reach of 0 bytes, so the reservation is made anywhere.
    let (elsewhere, _) = inject::failing(Call::Mmap, 99, || Arena::reserve(64 << 20, 0));
    assert!(elsewhere.is_ok());
    let (nowhere, reached) = inject::failing(Call::Mmap, 0, || Arena::reserve(64 << 20, 0));
    assert!(reached);
    assert_eq!(nowhere.unwrap_err(), SysError { call: Call::Mmap, errno: inject::ERRNO });
}

#[test]
fn a_full_arena_is_a_typed_error_and_room_comes_back() {
    let arena = arena();
    let packs = packs_in(arena, Options { keep_empty: 0, ..Options::default() });
    let mut texts = Vec::new();
    let error = loop {
        match load(&packs, 1 << 20) {
            Ok(text) => texts.push(text),
            Err(error) => break error,
        }
    };
    assert_eq!(error, Error::NoRoom { len: 1 << 20 });
    assert_eq!(texts.len(), 16, "16 MiB");
    texts.clear();
    packs.drain().unwrap();
    assert!(load(&packs, 1 << 20).is_ok());
    let shared = Arc::clone(packs.domain());
    drop(packs);
    shared.drain().unwrap();
    assert_eq!(arena.taken(), 0);
}
