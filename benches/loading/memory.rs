//! The memory that a loaded program takes: executable memory, and heap.
//!
//! The heap is the number of bytes in use by glibc's `mallinfo2`, over a thousand different programs of 32
//! instructions. An engine that allocates its machine code on the heap has it in its figure of the heap.

use bpf_benches::engine::Engine;
use bpf_benches::straight;
use bpf_benches::table::{Table, figure};

const PROGRAMS: u64 = 1000;

/// Returns the bytes of heap in use, large blocks included; `None` where the C library does not tell.
pub(crate) fn heap() -> Option<usize> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: it takes no argument and only reads the allocator's own counters, under its lock.
        let info = unsafe { libc::mallinfo2() };
        Some(info.uordblks + info.hblkhd)
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    None
}

/// Returns the table: bytes a program. Engines whose code is not in this process are left out.
pub(crate) fn table(engines: &[Box<dyn Engine>]) -> Table {
    let mut table = Table::new(["bytes a program of 32 instructions", "machine code", "executable memory", "heap"]);
    let programs: Vec<_> = (0..PROGRAMS).map(|seed| straight::program(seed, 32)).collect();
    for engine in engines {
        // A first load allocates what is allocated once an engine.
        let Ok(_first) = engine.load(&programs[0], 0) else { continue };
        let (heap_before, code_before) = (heap(), engine.executable_bytes());
        let mut loaded = Vec::with_capacity(programs.len());
        loaded.extend(programs.iter().filter_map(|program| engine.load(program, 0).ok()));
        let count = loaded.len() as f64;
        if count == 0.0 {
            continue;
        }
        let list = loaded.capacity() * size_of_val(&loaded[0]);
        let heap = heap().zip(heap_before).map(|(now, before)| (now - before - list) as f64 / count);
        let code = engine.executable_bytes().zip(code_before).map(|(now, before)| (now - before) as f64 / count);
        let emitted: Option<usize> = loaded.iter().map(|program| program.code_bytes()).sum();
        if emitted.is_none() && heap.is_none() {
            continue;
        }
        let cells = [emitted.map(|bytes| bytes as f64 / count), code, heap];
        let cells = cells.into_iter().map(|bytes| bytes.map_or("-".into(), figure));
        table.row(std::iter::once(engine.name().to_owned()).chain(cells));
    }
    table
}
