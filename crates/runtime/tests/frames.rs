//! A frame larger than a page does not step over the page that guards the end of a stack: its prologue touches every
//! page of it.
//!
//! The code runs on a signal stack, behind which a guard page and then memory lie that another thread could be using.
//! Each run has a process of its own, which an overflow ends. No engine: that would refuse the run (tests/stack.rs).

use bpf_jit::CompileOptions;
use bpf_jit_code::{Arch, Code};
use bpf_prog_pack::Packs;
use bpf_runtime::{
    OptLevel,
    code::{ListingOptions, compile_listing},
    isa::assemble,
};
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;
/// Host pages may be larger.
const GUARD: usize = 16 * PAGE;
const STACK: usize = 8 * PAGE;
const BEHIND: usize = 32 * PAGE;

static ENTRY: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handler(_: i32) {
    let entry = std::ptr::with_exposed_provenance::<()>(ENTRY.load(Ordering::Relaxed));
    // SAFETY: the entry of a program that reads no argument; it is kept by `outcome`.
    let function: extern "C" fn() -> u64 = unsafe { std::mem::transmute(entry) };
    let status = i32::from(function() != 7);
    // SAFETY: the process is a child of the test's and has nothing to clean up.
    unsafe { libc::_exit(status) };
}

/// A new mapping of so many bytes, accessible like this.
fn map(len: usize, protection: i32) -> *mut libc::c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at
}

/// The signal that ended a run on a small stack; `None` if it returned.
fn outcome(code: &Code) -> Option<i32> {
    let memory = map(BEHIND + GUARD + STACK, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: inside the mapping.
    let guard = unsafe { memory.byte_add(BEHIND) };
    // SAFETY: part of a mapping that is not in use yet.
    assert_eq!(unsafe { libc::mprotect(guard, GUARD, libc::PROT_NONE) }, 0);
    // SAFETY: the child allocates, which C libraries allow after a fork, calls functions that are safe there, and
    // leaves.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // Its own: it inherits no code.
        let packs = Packs::new(bpf_quiesce::Domain::new(Default::default()), Default::default()).unwrap();
        let text = packs.stage(code, |_| None).unwrap().finalize().unwrap();
        ENTRY.store(text.entry(0).expect("a function").expose_provenance(), Ordering::Relaxed);
        // SAFETY: inside the mapping.
        let stack = unsafe { guard.byte_add(GUARD) };
        let stack = libc::stack_t { ss_sp: stack, ss_flags: 0, ss_size: STACK };
        // SAFETY: the mapping is not used for anything else and stays.
        assert_eq!(unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) }, 0);
        // SAFETY: all zero is a value of this type.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_flags = libc::SA_ONSTACK;
        action.sa_sigaction = handler as extern "C" fn(i32) as usize;
        // SAFETY: the handler has the type that these flags ask for.
        assert_eq!(unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) }, 0);
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            // SAFETY: the default action, in place of the test harness's handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        // SAFETY: the handler does not return.
        unsafe { libc::raise(libc::SIGUSR1) };
        // SAFETY: not reached.
        unsafe { libc::_exit(2) };
    }
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    // SAFETY: mapped above; the child has its own.
    assert_eq!(unsafe { libc::munmap(memory, BEHIND + GUARD + STACK) }, 0);
    match libc::WIFSIGNALED(status) {
        true => Some(libc::WTERMSIG(status)),
        false => {
            assert_eq!(libc::WEXITSTATUS(status), 0, "the run's result");
            None
        }
    }
}

#[test]
fn large_frames_fault_in_the_guard_page() {
    let Some(arch) = Arch::HOST else {
        return bpf_testkit::skipped("frames larger than a guard page", &"no JIT on this host");
    };
    // By size of the frame, in a function that calls nothing, in one that does, and in one that is called.
    let shapes: [fn(i32) -> String; 3] = [
        |bytes| format!("r1 = r10\nr1 += -{bytes}\n*(u64 *)(r1 + 0) = 1\nr0 = 7\nexit"),
        |bytes| format!("r1 = r10\nr1 += -{bytes}\n*(u64 *)(r1 + 0) = 1\ncall f\nexit\nf:\nr0 = 7\nexit"),
        |bytes| format!("call f\nexit\nf:\nr1 = r10\nr1 += -{bytes}\n*(u64 *)(r1 + 0) = 1\nr0 = 7\nexit"),
    ];
    for opt_level in [OptLevel::None, OptLevel::Speed] {
        for shape in shapes {
            for (bytes, fits) in
                [(64, true), (4096, true), (12288, true), (98304, false), (98304 + 2048, false), (130_000, false)]
            {
                let mut compile = CompileOptions { opt_level, ..CompileOptions::default() };
                compile.lower.max_stack = bytes;
                let insns = assemble(&shape(bytes as i32)).unwrap();
                let (_, code) =
                    compile_listing(arch, "frames", insns, Vec::new(), &ListingOptions { compile }).unwrap();
                assert!(code.frames.iter().any(|frame| frame.bytes >= bytes.min(64)), "{bytes}");
                let expected = (!fits).then_some(libc::SIGSEGV);
                assert_eq!(outcome(&code), expected, "{bytes} bytes, {opt_level:?}, {}", shape(bytes as i32));
            }
        }
    }
}
