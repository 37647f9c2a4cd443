//! `cargo bench -p bpf-benches --bench pack`: the cost of the operations that replace live code, and the gain of
//! packing.
//!
//! `-- primitives`, `loads`, `calls` and `host` select among these:
//!
//! 1. Guards, pokes, grace periods and barriers: alone, and beside a thread that runs programs all the time.
//! 2. Load and unload of small programs, without compiling them: on one thread (CPU time) and on two (wall time,
//!    which other processes disturb: only figures of one line can be compared).
//! 3. ns a call of functions laid out in pages of their own, packed in 4 KiB pages, and packed in huge pages. Pages
//!    of their own have two layouts: the function at the start of its page, as JITs in user space place programs, so
//!    that all functions compete for few sets of the caches and predictors; and anywhere in its page, as the kernel
//!    placed programs before it packed them.
//! 4. A host with a large code footprint that calls 100 of 160 loaded programs at intervals.
//!
//! `-- --plot "$PWD/docs/book/images/packing.svg"` measures the curve of 3 only and draws it.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bpf_benches::layout::{Function, Layout, Loaded, Tour, function};
use bpf_benches::measure::{Contender, interleaved, median, nanoseconds};
use bpf_benches::plot::{Series, svg};
use bpf_benches::table::{Table, figure};
use bpf_jit_code::{Arch, Code, PatchSlot};
use bpf_prog_pack::{Options, Packs, Patch, Text};
use bpf_quiesce::{Barriers, Domain};

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--plot") {
        let path = arguments.get(at + 1).expect("--plot FILE");
        std::fs::write(path, curve()).expect("the file can be written");
        return;
    }
    let parts: [(&str, fn()); 4] = [
        ("primitives", || println!("{}", primitives())),
        ("loads", || println!("{}", loads())),
        ("calls", packing),
        ("host", || println!("{}", beside_a_host())),
    ];
    let named = |name: &str| arguments.iter().any(|argument| argument == name);
    let all = !parts.iter().any(|(name, _)| named(name));
    parts.iter().filter(|(name, _)| all || named(name)).for_each(|(_, part)| part());
}

fn packs() -> Packs {
    Packs::new(Domain::new(bpf_quiesce::Options::new()), Options::default()).expect("a supported host")
}

/// Makes a contender that calls `work` repeatedly.
fn times<'a>(mut work: impl FnMut() + 'a) -> Contender<'a> {
    Box::new(move |repeat| nanoseconds(repeat, |repeat| (0..repeat).for_each(|_| work())))
}

/// Does what every run does beside the program: enter a guard, load the slot, leave. Inlined, as it is into runs.
#[inline(always)]
fn run_nothing(domain: &Domain) {
    let guard = domain.enter().expect("a slot");
    black_box(guard.slot());
}

/// Calls `f` while another thread enters and leaves guards all the time.
fn beside_a_runner<R>(domain: &Domain, f: impl FnOnce() -> R) -> R {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Relaxed: the flag orders no other access.
            while !stop.load(Ordering::Relaxed) {
                run_nothing(domain);
            }
        });
        let result = f();
        stop.store(true, Ordering::Relaxed);
        result
    })
}

fn primitives() -> Table {
    let packs = packs();
    let domain = packs.domain();
    let fenced = Domain::new(bpf_quiesce::Options::new().barriers(Barriers::Fenced));
    let (text, slot) = patchable(&packs);
    let target = Patch::Jump(text.base() as usize + 64);
    let measure = || {
        interleaved(&mut [
            times(|| run_nothing(domain)),
            times(|| run_nothing(&fenced)),
            times(|| {
                text.poke(slot, Patch::Nop, target).expect("holds a nop");
                text.poke(slot, target, Patch::Nop).expect("holds the jump");
            }),
            times(|| domain.synchronize().expect("outside guards")),
            times(|| drop(domain.core_barrier())),
        ])
    };
    let (alone, beside) = (measure(), beside_a_runner(domain, measure));
    let mut table = Table::new(["ns", "alone", "beside a runner"]);
    let names = ["guard, enter + exit", "guard with fences", "poke", "grace period", "core barrier"];
    for ((name, alone), beside) in names.iter().zip(alone).zip(beside) {
        // The contender makes two pokes.
        let each = if *name == "poke" { 0.5 } else { 1.0 };
        table.row([(*name).to_owned(), figure(alone * each), figure(beside * each)]);
    }
    table
}

/// Makes a program whose first instruction is a patch slot.
fn patchable(packs: &Packs) -> (Text, PatchSlot) {
    let mut code = function(0);
    let nop: &[u8] = match code.arch {
        Arch::X64 => &[0x0f, 0x1f, 0x44, 0, 0],
        Arch::Arm64 => &[0x1f, 0x20, 0x03, 0xd5],
    };
    code.bytes[..nop.len()].copy_from_slice(nop);
    let slot = PatchSlot::new(code.arch, 0).expect("0 is aligned");
    (place(packs, &code), slot)
}

fn loads() -> Table {
    let code = small();
    let options = |pack: Options| Packs::new(Domain::new(bpf_quiesce::Options::new()), pack).expect("a host");
    let mut random = Options::default();
    random.random_offset = true;
    let (plain, random) = (packs(), options(random));
    // The cost of a load by the number of loaded programs; programs of different lengths are replaced at random.
    const RESIDENT: [u32; 4] = [100, 1000, 10_000, 40_000];
    let codes: Vec<_> = (0..64).map(|i| padded(i, i as usize * 8)).collect();
    let mut replacing = RESIDENT.map(|count| Replacing::new(count, &codes));
    let mut contenders: Vec<Contender<'_>> =
        vec![times(|| drop(place(&plain, &code))), times(|| drop(place(&random, &code)))];
    for replacing in &mut replacing {
        contenders.push(times(|| replacing.replace()));
    }
    let measured = interleaved(&mut contenders);
    drop(contenders);
    let mut table = Table::new(["load + unload, no compiling", "ns", "million a second"]);
    let names = ["one thread", "random offsets"].map(str::to_owned).into_iter();
    let names = names.chain(RESIDENT.map(|count| format!("replacing one of {count} at random")));
    for (name, ns) in names.zip(measured) {
        table.row([name, figure(ns), figure(1e3 / ns)]);
    }
    let (alone, beside) = runs_beside_a_loader();
    let name = format!(
        "a run's guard, wall time: {} ns alone, {} ns beside a thread that loads",
        figure(alone),
        figure(beside)
    );
    for threads in [1, 2] {
        let rounds = (0..21).map(|_| wall_time_of_loads(&plain, threads)).collect();
        let ns = median(rounds);
        table.row([format!("{threads} threads, wall time"), figure(ns * threads as f64), figure(1e3 / ns)]);
    }
    table.row([name]);
    let stats = replacing[RESIDENT.len() - 1].packs.stats();
    let average = codes.iter().map(|code| code.bytes.len()).sum::<usize>() / codes.len();
    table.row([format!(
        "memory beside {average} bytes of code: {} rounding to chunks, {} handle, 4 a chunk bookkeeping; {} % of packs in use, {} holes",
        (stats.bytes_used / stats.programs).saturating_sub(average),
        size_of::<Text>(),
        100 * stats.bytes_used / stats.bytes,
        stats.holes
    )]);
    table
}

/// A set of loaded programs, of which one at a time is replaced.
struct Replacing<'c> {
    packs: Packs,
    codes: &'c [Code],
    resident: Vec<Text>,
    next: Shuffle,
}

impl<'c> Replacing<'c> {
    fn new(count: u32, codes: &'c [Code]) -> Self {
        let packs = packs();
        let resident = codes.iter().cycle().take(count as usize).map(|code| place(&packs, code)).collect();
        let mut replacing = Replacing { packs, codes, resident, next: Shuffle(1) };
        // Replacing each program several times makes the sizes and places of holes stationary.
        (0..4 * count).for_each(|_| replacing.replace());
        replacing
    }

    fn replace(&mut self) {
        let [at, code] = [self.resident.len(), self.codes.len()].map(|n| self.next.below(n));
        self.resident[at] = place(&self.packs, &self.codes[code]);
    }
}

fn place(packs: &Packs, code: &Code) -> Text {
    packs.stage(code, |_| None).and_then(|staged| staged.finalize()).expect("room")
}

/// Makes the program that is loaded and unloaded: 96 bytes on x86-64.
fn small() -> Code {
    padded(1, 55)
}

/// Makes a program that returns `value`, with `bytes` bytes of padding.
fn padded(value: u32, bytes: usize) -> Code {
    let mut code = function(value);
    code.bytes.extend(std::iter::repeat_n(0xcc, bytes));
    code
}

/// Returns wall nanoseconds of a load and an unload while `threads` threads load at once, the loads of all counted.
fn wall_time_of_loads(packs: &Packs, threads: usize) -> f64 {
    const EACH: u32 = 10_000;
    let (start, code) = (Barrier::new(threads + 1), small());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..EACH {
                        drop(place(packs, &code));
                    }
                })
            })
            .collect();
        start.wait();
        let begin = Instant::now();
        workers.into_iter().for_each(|worker| worker.join().expect("loads"));
        begin.elapsed().as_nanos() as f64 / f64::from(EACH) / threads as f64
    })
}

/// Returns wall nanoseconds of a guard, alone and while another thread loads and unloads without pause: the cost of
/// replacing programs for threads that run programs. Both are medians of interleaved rounds.
fn runs_beside_a_loader() -> (f64, f64) {
    const EACH: u32 = 1_000_000;
    let (packs, code) = (packs(), small());
    let round = || {
        let start = Instant::now();
        (0..EACH).for_each(|_| run_nothing(packs.domain()));
        start.elapsed().as_nanos() as f64 / f64::from(EACH)
    };
    let beside = || {
        let (stop, started) = (AtomicBool::new(false), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                started.wait();
                // Relaxed: the flag orders no other access.
                while !stop.load(Ordering::Relaxed) {
                    drop(place(&packs, &code));
                }
            });
            started.wait();
            let ns = round();
            stop.store(true, Ordering::Relaxed);
            ns
        })
    };
    let rounds: Vec<_> = (0..21).map(|_| (round(), beside())).collect();
    let middle = |side: fn(&(f64, f64)) -> f64| median(rounds.iter().map(side).collect());
    (middle(|round| round.0), middle(|round| round.1))
}

/// A generator of permutations.
struct Shuffle(u64);

impl Shuffle {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn order(&mut self, n: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..n).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}

/// Returns ns a call for each layout: the median of several passes. The addresses of code change the figure of a
/// single pass by up to a third, so each pass loads everything anew, at other addresses.
fn calls(count: u32, order: &[u32], direct: bool) -> Vec<f64> {
    const PASSES: usize = 5;
    let passes: Vec<_> = (0..PASSES).map(|_| calls_once(count, order, direct)).collect();
    (0..Layout::ALL.len()).map(|layout| median(passes.iter().map(|pass| pass[layout]).collect())).collect()
}

fn calls_once(count: u32, order: &[u32], direct: bool) -> Vec<f64> {
    let loaded: Vec<_> = Layout::ALL.iter().map(|layout| Loaded::new(*layout, count, order)).collect();
    let mut contenders: Vec<Contender<'_>> = loaded
        .iter()
        .map(|loaded| if direct { times(|| loaded.call_direct()) } else { times(|| loaded.call_indirect()) })
        .collect();
    interleaved(&mut contenders).into_iter().map(|ns| ns / order.len() as f64).collect()
}

fn packing() {
    let backing = Loaded::new(Layout::Packed2M, 1000, &[0]).stats().expect("packed");
    println!("huge pages: {} of {} bytes are\n", backing.bytes_collapsed + backing.bytes_hugetlb, backing.bytes);
    let mut table = Table::new([
        "ns a call",
        "at page starts",
        "one page each",
        "packed 4K",
        "packed 2M",
        "starts / 2M",
        "each / 4K",
        "each / 2M",
    ]);
    for count in [160, 1000, 4000] {
        for (name, order) in [("round-robin", (0..count).collect()), ("random", Shuffle(7).order(count))] {
            for (kind, direct) in [("indirect", false), ("direct", true)] {
                let ns = calls(count, &order, direct);
                let ratios = [ns[0] / ns[3], ns[1] / ns[2], ns[1] / ns[3]];
                let cells = ns.into_iter().chain(ratios).map(figure);
                table.row(std::iter::once(format!("{count} programs, {name}, {kind}")).chain(cells));
            }
        }
    }
    println!("{table}");
}

fn curve() -> String {
    let names = ["at the start of a page each", "one page each", "packed in 4 KiB pages", "packed in 2 MiB pages"];
    let mut series = names.map(|name| Series { name: name.into(), points: Vec::new() });
    for count in [40, 80, 160, 320, 640, 1000, 2000, 4000, 8000] {
        let ns = calls(count, &Shuffle(7).order(count), false);
        for (series, ns) in series.iter_mut().zip(ns) {
            series.points.push((f64::from(count), ns));
        }
    }
    svg("A call of one of N programs, random order, indirect", "programs", "ns a call", &series)
}

/// Measures how much calls of programs slow down a host whose own code spans thousands of pages.
///
/// The host is straight-line code ([`Tour`]), so that programs can disturb only the fetching of instructions and the
/// translation of their addresses. A further call itself changes how far the processor's front end runs ahead (a host
/// without any may be slower than one with an indirect call after every tenth of its own calls). The control
/// therefore makes as many calls, in the same places, to one function that stays in the caches, and the layouts are
/// compared with the control. The virtual and physical addresses of code and the order of the measurements change
/// every figure by some percent, so each pass loads everything anew, at other addresses, and measures in another
/// order.
fn beside_a_host() -> Table {
    const PASSES: usize = 15;
    const NAMES: [&str; 6] = [
        "no programs called",
        "the same one always",
        "100 of 160 hot, one at each page's start",
        "one page each",
        "packed 4K",
        "packed 2M",
    ];
    let mut random = Shuffle(5);
    let passes: Vec<Pass> = (0..PASSES).map(|_| beside_a_host_once(&mut random)).collect();
    let mut table = Table::new([
        "host with 2000 pages of code",
        "ns a host call",
        "slower by",
        "half of the passes",
        "iTLB misses a host call",
    ]);
    for (i, name) in NAMES.into_iter().enumerate() {
        let ns = median(passes.iter().map(|pass| pass[i].0).collect());
        let mut slower: Vec<f64> = passes.iter().map(|pass| 100.0 * (pass[i].0 / pass[1].0 - 1.0)).collect();
        slower.sort_by(f64::total_cmp);
        let misses = passes[0][i].1.map_or("no counter".into(), figure);
        let [low, middle, high] = [PASSES / 4, PASSES / 2, PASSES - 1 - PASSES / 4].map(|at| slower[at]);
        table.row([name.to_owned(), figure(ns), format!("{middle:.1} %"), format!("{low:.1} to {high:.1} %"), misses]);
    }
    table
}

/// ns and iTLB misses of a call by the host: without programs, with the control, and with each layout.
type Pass = [(f64, Option<f64>); 6];

fn beside_a_host_once(random: &mut Shuffle) -> Pass {
    const HOST: u32 = 2000;
    const PROGRAMS: u32 = 160;
    const HOT: usize = 100;
    const BETWEEN: usize = 10;
    let host = Loaded::new(Layout::PageScattered, HOST, &random.order(HOST));
    // The host's calls, and the program that is called after every tenth of them.
    let order: Vec<u32> = (0..HOST).map(|_| random.below(HOST as usize) as u32).collect();
    let programs: Vec<_> = (0..order.len() / BETWEEN).map(|_| random.below(HOT)).collect();
    let control = Loaded::new(Layout::Packed4K, 1, &[0]);
    let layouts = Layout::ALL.map(|layout| Loaded::new(layout, PROGRAMS, &random.order(PROGRAMS)));
    let tour = |between: &[Function]| Tour::new(&host, &order, BETWEEN, between);
    let mut tours = vec![tour(&[]), tour(&vec![control.functions()[0]; programs.len()])];
    for layout in &layouts {
        tours.push(tour(&programs.iter().map(|i| layout.functions()[*i]).collect::<Vec<_>>()));
    }
    let turns = random.order(tours.len() as u32);
    let take = |tour: &Tour| {
        black_box(tour.take());
    };
    let mut contenders: Vec<Contender<'_>> = turns
        .iter()
        .map(|turn| {
            let tour = &tours[*turn as usize];
            times(move || take(tour))
        })
        .collect();
    let measured = interleaved(&mut contenders);
    drop(contenders);
    let mut pass: Pass = Default::default();
    for (turn, ns) in turns.iter().zip(measured) {
        let misses = itlb_misses(|| take(&tours[*turn as usize]));
        pass[*turn as usize] = (ns / f64::from(HOST), misses.map(|n| n as f64 / f64::from(HOST)));
    }
    pass
}

/// Counts the iTLB misses of this thread in user code during `work`; `None` where the counter is not available (as in
/// most virtual machines).
fn itlb_misses(work: impl Fn()) -> Option<u64> {
    /// The attributes by linux/perf_event.h: PERF_TYPE_HW_CACHE; PERF_COUNT_HW_CACHE_ITLB, OP_READ, RESULT_MISS;
    /// exclude_kernel, exclude_hv.
    const ATTRIBUTES: [u64; 14] = {
        let mut attributes = [0; 14];
        attributes[0] = 3 | (14 * 8) << 32;
        attributes[1] = 4 | 1 << 16;
        attributes[5] = 1 << 5 | 1 << 6;
        attributes
    };
    // SAFETY: the attributes are of the size they state and outlive the call.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, ATTRIBUTES.as_ptr(), 0, -1, -1, 0) };
    if fd < 0 {
        return None;
    }
    let read = || {
        let mut count = 0u64;
        // SAFETY: the counter writes eight bytes.
        let got = unsafe { libc::read(fd as i32, (&raw mut count).cast(), 8) };
        (got == 8).then_some(count)
    };
    work();
    let before = read();
    work();
    let after = read();
    // SAFETY: opened above, and used by nobody else.
    unsafe { libc::close(fd as i32) };
    Some(after? - before?)
}
