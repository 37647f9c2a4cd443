//! Runs emitted code on an arm64 host, natively or under qemu-user; the only place in the tests that knows the host.
//!
//! [`Text`] places codes behind each other in a mapping of their own, resolves their relocations (calls through a
//! veneer each), makes it executable and calls it through an entry sequence that does what docs/abi.md asks of one.
//! That sequence also checks the code: callee-saved registers hold a pattern that must still be there afterwards, and
//! all others start out poisoned.

use bpf_jit_code::{Code, RunCtx, Symbol};

/// What the tests share with the code under test.
pub(crate) const HOST: bool = cfg!(target_arch = "aarch64");

/// Says that a test did not run, past the capture of the test harness.
pub(crate) fn skipped(test: &str, why: &str) {
    use std::io::Write;
    std::io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes()).unwrap();
}

/// Executable code.
pub(crate) struct Text {
    memory: imp::Memory,
    entries: Vec<u64>,
}

impl Text {
    /// Places the codes. `guarded`: with branch target identification switched on.
    pub(crate) fn load(codes: &[Code], symbol: &dyn Fn(Symbol) -> u64, guarded: bool) -> Text {
        let mut symbols: Vec<Symbol> = codes.iter().flat_map(|c| c.relocs.iter().map(|r| r.symbol)).collect();
        symbols.sort();
        symbols.dedup();
        let mut bytes = Vec::new();
        for s in &symbols {
            // ldr x16, #8; br x16; .quad address
            bytes.extend_from_slice(&0x5800_0050u32.to_le_bytes());
            bytes.extend_from_slice(&0xd61f_0200u32.to_le_bytes());
            bytes.extend_from_slice(&symbol(*s).to_le_bytes());
        }
        let mut entries = Vec::new();
        for code in codes {
            let start = bytes.len();
            entries.push(start as u64);
            bytes.extend_from_slice(&code.bytes);
            for reloc in &code.relocs {
                let at = start + reloc.at as usize;
                match reloc.kind {
                    bpf_jit_code::RelocKind::Arm64Branch26 => {
                        let veneer = 16 * symbols.binary_search(&reloc.symbol).unwrap();
                        let words = (veneer as i64 - at as i64) / 4;
                        patch(&mut bytes, at, words as u32 & 0x03ff_ffff);
                    }
                    bpf_jit_code::RelocKind::Arm64Mov48 => {
                        for part in 0..3 {
                            let half = (symbol(reloc.symbol) >> (16 * part)) as u32 & 0xffff;
                            patch(&mut bytes, at + 4 * part, half << 5);
                        }
                    }
                    other => panic!("{other:?} in arm64 code"),
                }
            }
            bytes.resize(bytes.len().next_multiple_of(Code::ALIGN), 0);
        }
        let memory = imp::Memory::new(&bytes, guarded);
        for entry in &mut entries {
            *entry += memory.base();
        }
        Text { memory, entries }
    }

    /// Address of the first byte of a code.
    pub(crate) fn entry(&self, code: usize) -> u64 {
        self.entries[code]
    }

    /// Calls a code; returns its result. Panics if it broke a register it must preserve.
    pub(crate) fn run(&self, code: usize, args: [u64; 5], ctx: &mut RunCtx) -> u64 {
        self.memory.call(self.entries[code], args, ctx)
    }
}

/// Sets the bits of a field that is zero.
fn patch(bytes: &mut [u8], at: usize, bits: u32) {
    let word = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    bytes[at..at + 4].copy_from_slice(&(word | bits).to_le_bytes());
}

/// Whether code placed with `guarded` is checked for landing pads.
pub(crate) fn checks_landing_pads() -> bool {
    imp::checks_landing_pads()
}

/// The signal that ends a child process which runs `body`, if one does.
pub(crate) fn fatal_signal(body: impl FnOnce()) -> Option<i32> {
    imp::fatal_signal(body)
}

/// Address of a host function that returns `a + 2 b + 3 c + 4 d + 5 e` and overwrites every register it may.
pub(crate) fn poisoning_helper() -> u64 {
    imp::poisoning_helper()
}

/// Address of a host function that calls its first argument with its second to fifth and the hidden argument.
pub(crate) fn calling_helper() -> u64 {
    imp::calling_helper()
}

#[cfg(target_arch = "aarch64")]
mod imp {
    use bpf_jit_code::RunCtx;
    use core::arch::{asm, naked_asm};

    const PROT_BTI: i32 = 0x10;

    pub(crate) struct Memory {
        base: *mut u8,
        len: usize,
    }

    impl Memory {
        pub(crate) fn new(bytes: &[u8], guarded: bool) -> Memory {
            let len = bytes.len().max(1).next_multiple_of(65536);
            let (rw, anon) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: an anonymous mapping at an address of the kernel's choice replaces nothing.
            let base = unsafe { libc::mmap(core::ptr::null_mut(), len, rw, anon, -1, 0) };
            assert_ne!(base, libc::MAP_FAILED);
            let base = base.cast::<u8>();
            // SAFETY: the mapping is writable, new, and at least as long as `bytes`.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), base, bytes.len()) };
            let rx = libc::PROT_READ | libc::PROT_EXEC | if guarded { PROT_BTI } else { 0 };
            // SAFETY: it is our own mapping, and no reference into it exists.
            assert_eq!(unsafe { libc::mprotect(base.cast(), len, rx) }, 0);
            for line in (base as usize..base as usize + len).step_by(16) {
                // SAFETY: cache maintenance of a readable address changes no memory.
                unsafe { asm!("dc cvau, {0}", "dsb ish", "ic ivau, {0}", in(reg) line) };
            }
            // SAFETY: barriers.
            unsafe { asm!("dsb ish", "isb") };
            Memory { base, len }
        }

        pub(crate) fn base(&self) -> u64 {
            self.base as u64
        }

        pub(crate) fn call(&self, entry: u64, args: [u64; 5], ctx: &mut RunCtx) -> u64 {
            let mut saved = [0u64; 10];
            // SAFETY: `entry` is that of code emitted for these arguments, which the mapping keeps executable; `enter`
            // restores what the calling convention asks for.
            let result = unsafe { enter(entry, &args, ctx, &mut saved) };
            let pattern: Vec<u64> = (19..29).map(|n| n * 0x0101).collect();
            assert_eq!(saved[..], pattern[..], "a callee-saved register is broken");
            result
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: it is our own mapping, and nothing runs in it.
            assert_eq!(unsafe { libc::munmap(self.base.cast(), self.len) }, 0);
        }
    }

    /// Calls `entry`, and copies x19 to x28, which it had set to a pattern, to `saved`.
    #[unsafe(naked)]
    unsafe extern "C" fn enter(entry: u64, args: &[u64; 5], ctx: &mut RunCtx, saved: &mut [u64; 10]) -> u64 {
        naked_asm!(
            "stp x29, x30, [sp, #-112]!",
            "stp x19, x20, [sp, #16]",
            "stp x21, x22, [sp, #32]",
            "stp x23, x24, [sp, #48]",
            "stp x25, x26, [sp, #64]",
            "stp x27, x28, [sp, #80]",
            "str x3, [sp, #96]",
            "mov x16, x0",
            "mov x5, x2",
            "mov x7, sp",
            "adr x8, 2f",
            "stp x7, x8, [x5, {exit}]",
            "mov x7, x1",
            "ldp x0, x1, [x7]",
            "ldp x2, x3, [x7, #16]",
            "ldr x4, [x7, #32]",
            "mov x6, #0x6bad",
            "mov x7, #0x7bad",
            "mov x8, #0x8bad",
            "mov x9, #0x9bad",
            "mov x10, #0xabad",
            "mov x11, #0xbbad",
            "mov x12, #0xcbad",
            "mov x13, #0xdbad",
            "mov x14, #0xebad",
            "mov x15, #0xfbad",
            "mov x17, #0x1bad",
            "mov x19, #0x1313",
            "mov x20, #0x1414",
            "mov x21, #0x1515",
            "mov x22, #0x1616",
            "mov x23, #0x1717",
            "mov x24, #0x1818",
            "mov x25, #0x1919",
            "mov x26, #0x1a1a",
            "mov x27, #0x1b1b",
            "mov x28, #0x1c1c",
            "blr x16",
            "ldr x9, [sp, #96]",
            "stp x19, x20, [x9]",
            "stp x21, x22, [x9, #16]",
            "stp x23, x24, [x9, #32]",
            "stp x25, x26, [x9, #48]",
            "stp x27, x28, [x9, #64]",
            "b 3f",
            // A stopped run need not restore anything: the pattern is written for it.
            "2:",
            "mov x0, #0",
            "ldr x9, [sp, #96]",
            "mov x10, #0x1313",
            "mov x11, #0x0101",
            "mov x12, #10",
            "4:",
            "str x10, [x9], #8",
            "add x10, x10, x11",
            "subs x12, x12, #1",
            "b.ne 4b",
            "3:",
            "ldp x27, x28, [sp, #80]",
            "ldp x25, x26, [sp, #64]",
            "ldp x23, x24, [sp, #48]",
            "ldp x21, x22, [sp, #32]",
            "ldp x19, x20, [sp, #16]",
            "ldp x29, x30, [sp], #112",
            "ret",
            exit = const RunCtx::EXIT_SP_OFFSET,
        )
    }

    #[unsafe(naked)]
    unsafe extern "C" fn poison() {
        naked_asm!(
            // The stack pointer must be aligned here.
            "mov x6, sp",
            "tst x6, #15",
            "b.eq 1f",
            "brk #1",
            "1:",
            "add x0, x0, x1, lsl #1",
            "add x2, x2, x2, lsl #1",
            "add x0, x0, x2",
            "add x0, x0, x3, lsl #2",
            "add x4, x4, x4, lsl #2",
            "add x0, x0, x4",
            "mov x1, #0x1dad",
            "mov x2, #0x2dad",
            "mov x3, #0x3dad",
            "mov x4, #0x4dad",
            "mov x5, #0x5dad",
            "mov x6, #0x6dad",
            "mov x7, #0x7dad",
            "mov x8, #0x8dad",
            "mov x9, #0x9dad",
            "mov x10, #0xadad",
            "mov x11, #0xbdad",
            "mov x12, #0xcdad",
            "mov x13, #0xddad",
            "mov x14, #0xedad",
            "mov x15, #0xfdad",
            "mov x16, #0x0dad",
            "mov x17, #0x7ead",
            "cmp x0, x0",
            "ret",
        )
    }

    #[unsafe(naked)]
    unsafe extern "C" fn call_back() {
        naked_asm!(
            "stp x29, x30, [sp, #-16]!",
            "mov x16, x0",
            "mov x0, x1",
            "mov x1, x2",
            "mov x2, x3",
            "mov x3, x4",
            "mov x4, #0",
            "blr x16",
            "ldp x29, x30, [sp], #16",
            "ret",
        )
    }

    pub(crate) fn checks_landing_pads() -> bool {
        const HWCAP2_BTI: u64 = 1 << 17;
        // SAFETY: reads a value the kernel passed to the process.
        unsafe { libc::getauxval(libc::AT_HWCAP2) & HWCAP2_BTI != 0 }
    }

    pub(crate) fn fatal_signal(body: impl FnOnce()) -> Option<i32> {
        // SAFETY: the child calls `body` and leaves; `body` runs emitted code and takes no lock.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            body();
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child; `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
    }

    pub(crate) fn poisoning_helper() -> u64 {
        poison as *const () as u64
    }

    pub(crate) fn calling_helper() -> u64 {
        call_back as *const () as u64
    }
}

#[cfg(not(target_arch = "aarch64"))]
mod imp {
    use bpf_jit_code::RunCtx;

    pub(crate) struct Memory;

    impl Memory {
        pub(crate) fn new(_: &[u8], _: bool) -> Memory {
            Memory
        }
        pub(crate) fn base(&self) -> u64 {
            0
        }
        pub(crate) fn call(&self, _: u64, _: [u64; 5], _: &mut RunCtx) -> u64 {
            panic!("no test calls code on this host")
        }
    }

    pub(crate) fn checks_landing_pads() -> bool {
        false
    }

    pub(crate) fn fatal_signal(_: impl FnOnce()) -> Option<i32> {
        None
    }

    pub(crate) fn poisoning_helper() -> u64 {
        0
    }

    pub(crate) fn calling_helper() -> u64 {
        0
    }
}
