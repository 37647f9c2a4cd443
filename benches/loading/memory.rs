//! What a loaded program costs in memory: executable memory, and heap beside it.
//!
//! The heap is what glibc's `mallinfo2` says is in use, over a thousand different programs of 32 instructions. What a
//! peer takes from the heap for its code is in its heap figure.

use bpf_benches::engine::Engine;
use bpf_benches::straight;
use bpf_benches::table::{Table, figure};

const PROGRAMS: u64 = 1000;

/// Bytes of heap in use, large blocks included; `None` where the C library does not tell.
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

/// The table: bytes a program. Engines whose code is not in this process are left out.
pub(crate) fn table(engines: &[Box<dyn Engine>]) -> Table {
    let mut table = Table::new(["bytes a program of 32 instructions", "machine code", "executable memory", "heap"]);
    let programs: Vec<_> = (0..PROGRAMS).map(|seed| straight::program(seed, 32)).collect();
    for engine in engines {
        // Once for whatever is set up at the first load.
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
