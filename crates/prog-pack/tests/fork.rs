//! Tests that a forked child can neither run loaded programs nor load, patch or free, and does not have the code.
//! Alone in its process.

mod common;

use bpf_prog_pack::{Error, Options, Packs, Patch, PokeError};
use bpf_quiesce::{Domain, EnterError};
use common::{constant, flip, run};

#[test]
fn the_child_has_nothing_and_changes_nothing() {
    let packs = Packs::new(Domain::new(bpf_quiesce::Options::new()), Options::default()).unwrap();
    let (code, slot, other) = flip();
    let text = packs.stage(&code, |_| None).unwrap().finalize().unwrap();
    let dropped = packs.stage(&constant(3, 0), |_| None).unwrap().finalize().unwrap();
    let staged = packs.stage(&constant(4, 0), |_| None).unwrap();
    drop(packs.domain().enter().unwrap());
    let bytes = dropped.to_vec();

    // SAFETY: no other thread of this process is doing anything; the child leaves through `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            assert_eq!(packs.domain().enter().map(|guard| guard.slot()), Err(EnterError::Forked));
            assert!(text.to_vec().is_empty());
            assert_eq!(packs.stage(&constant(5, 0), |_| None).unwrap_err(), Error::Forked);
            assert_eq!(packs.reserve(64).unwrap_err(), Error::Forked);
            let jump = Patch::Jump(text.base() as usize + other);
            assert_eq!(text.poke(slot, Patch::Nop, jump), Err(PokeError::Forked));
            assert_eq!(staged.finalize().unwrap_err(), Error::Forked);
            drop(dropped);
            assert_eq!(packs.reclaim(), 0);
            assert_eq!(packs.drain(), Err(Error::Forked));
            // The views are not mapped in the child (but qemu-user, the usual arm64, ignores MADV_DONTFORK).
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            assert!(!maps.contains("prog-pack") || cfg!(target_arch = "aarch64"), "{maps}");

            // Packs that the child makes itself work.
            let own = Packs::new(Domain::new(bpf_quiesce::Options::new()), Options::default()).unwrap();
            let mine = own.stage(&constant(6, 0), |_| None).unwrap().finalize().unwrap();
            // SAFETY: made by `constant`, and loaded.
            assert_eq!(unsafe { run(mine.entry(0).unwrap()) }, 6);
            drop(mine);
            own.drain().unwrap();
            drop((text, packs));
        }));
        // SAFETY: ends the child without running the parent's destructors twice.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: `status` is a valid place for the result.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "child: {status:#x}");

    assert_eq!(dropped.to_vec(), bytes, "the child freed nothing of ours");
    assert_eq!(text.to_vec(), code.bytes);
    let late = staged.finalize().unwrap();
    for (text, value) in [(&text, 1), (&dropped, 3), (&late, 4)] {
        // SAFETY: hand-assembled, and loaded.
        assert_eq!(unsafe { run(text.entry(0).unwrap()) }, value);
    }
    drop((text, dropped, late));
    packs.drain().unwrap();
    assert_eq!(packs.stats().programs, 0);
}
