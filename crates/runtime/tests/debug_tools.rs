//! Interfaces of profilers and debuggers, from the reader's side: the perf map and the jitdump record by record, and
//! perf and GDB themselves on a child process (this test binary again).

use bpf_runtime::{
    AsyncCaller, Caller, Config, Engine, EngineError, Instance, Linker, MapSet, Object, Raw,
    code::{Arch, DebugOptions},
    isa::assemble,
};
use bpf_testkit::{emulated, itself, skipped};
use std::ffi::OsStr;
use std::fs;
use std::future::{Future as _, poll_fn};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, Output};
use std::task::{Context, Poll, Waker};
use zerocopy::IntoBytes;

const SOURCE: &str = include_str!("objects/debug.c");
const OBJECT: &[u8] = include_bytes!("objects/debug.o");

/// Says to [`a_process_to_look_at`] what it is to do.
const ROLE: &str = "BPF_DEBUG_ROLE";

/// The line of the source with this mark.
fn line(mark: &str) -> u32 {
    let mark = format!("/* line: {mark} */");
    (1..).zip(SOURCE.lines()).find(|(_, l)| l.contains(&mark)).map(|(i, _)| i).expect("a marked line")
}

fn engine(set: impl FnOnce(DebugOptions) -> DebugOptions) -> Result<Engine, EngineError> {
    Engine::new(Config::new().debug(set))
}

/// `debug.o` on this engine.
fn load(engine: &Engine) -> Instance<()> {
    let mut linker = Linker::<()>::new(engine);
    linker
        .func(1001, "probe", |_: &mut Caller<'_, ()>, value: u64| -> u64 {
            bpf_debug_test_stop();
            value + 1
        })
        .unwrap();
    let object = Object::parse(OBJECT).unwrap();
    let maps = MapSet::for_object(engine, &object).unwrap();
    // SAFETY: they stay inside their memory and end; `burn` is given eight bytes.
    unsafe { linker.loader::<Raw>().unverified(true) }.object(&object, maps).unwrap()
}

/// The function at which a debugger stops.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn bpf_debug_test_stop() {
    std::hint::black_box(());
}

/// A directory that goes with this value.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("bpf-debug-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }
    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn no_jit(what: &str) -> bool {
    if Arch::HOST.is_none() {
        skipped(what, &"no JIT on this host");
    }
    Arch::HOST.is_none()
}

// ---- Files ---------------------------------------------------------------------------------------------------------

#[test]
fn the_perf_map_names_every_function_at_its_address() {
    if no_jit("perf map") {
        return;
    }
    let dir = Dir::new("map");
    let engine = engine(|d| d.perf_map(dir.0.clone())).unwrap();
    let instance = load(&engine);
    let linker = Linker::<()>::new(&engine);
    let odd = linker.loader::<Raw>().insns("a b\nc", assemble("r0 = 1\nexit").unwrap()).unwrap();

    let text = fs::read_to_string(dir.file(&format!("perf-{}.map", std::process::id()))).unwrap();
    let entries: Vec<(usize, usize, &str)> = text
        .lines()
        .map(|line| {
            let mut parts = line.splitn(3, ' ');
            let mut number = || usize::from_str_radix(parts.next().unwrap(), 16).unwrap();
            (number(), number(), parts.next().unwrap())
        })
        .collect();
    let at =
        |address: usize| entries.iter().find(|(start, len, _)| (*start..start + len).contains(&address)).unwrap().2;
    for (program, functions) in [
        ("outer", &["bpf:outer", "bpf:outer/middle", "bpf:outer/leaf"][..]),
        ("hops", &["bpf:hops", "bpf:hops/hop"]),
        ("burn", &["bpf:burn", "bpf:burn/spin"]),
    ] {
        let (code, base) = instance.program::<Raw>(program).unwrap().machine_code().unwrap();
        assert_eq!(at(base as usize), functions[0]);
        for offset in 0..code.len() {
            let place = engine.symbolize(base as usize + offset).unwrap();
            let name = if place.function == program { program } else { &format!("{program}/{}", place.function) };
            assert_eq!(at(base as usize + offset), format!("bpf:{name}"));
            assert!(place.insn.is_none() || functions.contains(&format!("bpf:{name}").as_str()), "{place}");
        }
    }
    // A name cannot break out of its line.
    assert_eq!(at(odd.machine_code().unwrap().1 as usize), "bpf:a_b_c");
    assert!(engine.debug_failure().is_none());
}

/// A reader of little-endian records.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }
    fn text(&mut self) -> &'a str {
        let len = self.0.iter().position(|b| *b == 0).unwrap();
        let text = std::str::from_utf8(self.take(len)).unwrap();
        self.take(1);
        text
    }
}

#[test]
fn the_jitdump_has_the_code_lines_and_frame_of_every_function() {
    if no_jit("jitdump") {
        return;
    }
    let dir = Dir::new("dump");
    let engine = engine(|d| d.jitdump(dir.0.clone())).unwrap();
    let instance = load(&engine);
    let bytes = fs::read(dir.file(&format!("jit-{}.dump", std::process::id()))).unwrap();
    let mut file = Reader(&bytes);
    assert_eq!([file.u32(), file.u32(), file.u32()], [0x4a69_5444, 1, 40], "magic, version, header length");
    assert_eq!(file.u32(), if cfg!(target_arch = "aarch64") { 183 } else { 62 }, "ELF machine");
    assert_eq!([file.u32(), file.u32()], [0, std::process::id()]);
    let begun = file.u64();
    assert_eq!(file.u64(), 0, "flags");

    let mut loaded = Vec::new();
    let (mut lines, mut frames, mut room) = (None, 0, Vec::new());
    let mut last = begun;
    while !file.0.is_empty() {
        let (id, len, time) = (file.u32(), file.u32() as usize, file.u64());
        assert!(time >= last, "records are in order");
        last = time;
        let mut body = Reader(file.take(len - 16));
        match id {
            0 => {
                assert_eq!(body.u32(), std::process::id());
                body.u32(); // thread
                let (address, place, len, index) = (body.u64(), body.u64(), body.u64() as usize, body.u64());
                assert_eq!((address, index), (place, loaded.len() as u64));
                let name = body.text();
                assert_eq!(body.0.len(), len);
                assert_eq!(frames, loaded.len() + 1, "a frame before each load");
                loaded.push((name, address, body.0, lines.take()));
            }
            2 => {
                let (address, count) = (body.u64(), body.u64());
                let rows: Vec<(u64, u32)> = (0..count)
                    .map(|_| {
                        let (at, line) = (body.u64(), body.u32());
                        assert_eq!(body.u32(), 0);
                        assert!(body.text().ends_with("objects/debug.c"));
                        (at, line)
                    })
                    .collect();
                assert!(rows.is_sorted_by_key(|row| row.0) && rows[0].0 == address);
                lines = Some(rows);
            }
            4 => {
                let (all, header, mapped) = (body.u64(), body.u64(), body.u64());
                assert_eq!(header, 20);
                room.push(mapped == all);
                assert_eq!(body.0.len(), (all as usize).next_multiple_of(8));
                assert_eq!(body.0[all as usize - 20..][..4], [1, 0x1b, 0x03, 0x3b], "version and encodings");
                frames += 1;
            }
            _ => panic!("record {id}"),
        }
    }
    // perf reads the frame at its address, behind the function.
    for ((name, ..), room) in loaded.iter().zip(room) {
        assert_eq!(room, !name.ends_with("<stop>"), "{name}");
    }
    for (function, program, marks) in [
        ("bpf:outer", "outer", &["outer"][..]),
        ("bpf:outer/middle", "outer", &["middle"]),
        ("bpf:outer/leaf", "outer", &["leaf"]),
        ("bpf:hops/hop", "hops", &["hop"]),
        ("bpf:burn/spin", "burn", &["spin"]),
    ] {
        let (_, address, code, rows) = loaded.iter().find(|(name, ..)| *name == function).expect(function);
        let (text, base) = instance.program::<Raw>(program).unwrap().machine_code().unwrap();
        // The symbol file has the code as placed, without later patches; this code has no patches.
        let at = (address - base) as usize;
        assert!(at == 0 || function.contains('/'));
        if program != "hops" {
            assert_eq!(*code, &text[at..at + code.len()], "{function}");
        }
        let rows = rows.as_ref().expect("lines");
        for mark in marks {
            assert!(rows.iter().any(|row| row.1 == line(mark)), "{function}: {mark} in {rows:?}");
        }
        assert!(rows.iter().all(|row| (*address..address + code.len() as u64).contains(&row.0)));
    }
}

#[test]
fn files_that_cannot_be_made_are_an_error_of_the_engine() {
    if no_jit("debug files") {
        return;
    }
    let missing = Path::new("/nonexistent/directory");
    for set in [
        |d: DebugOptions, dir: &Path| d.perf_map(dir.to_owned()),
        |d: DebugOptions, dir: &Path| d.jitdump(dir.to_owned()),
    ] {
        let error = engine(|d| set(d, missing)).unwrap_err();
        assert!(matches!(error, EngineError::Debug(_)), "{error:?}");
        assert!(error.to_string().contains("/nonexistent/directory/"), "{error}");
    }
    // Another user's file is not overwritten through a link.
    let dir = Dir::new("link");
    let victim = dir.file("victim");
    fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, dir.file(&format!("perf-{}.map", std::process::id()))).unwrap();
    assert!(engine(|d| d.perf_map(dir.0.clone())).is_err());
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}

#[test]
fn a_full_disk_ends_the_writing_and_not_the_loading() {
    if no_jit("debug files") {
        return;
    }
    // The limit on file sizes stands in for a full disk. It is the process's, so it needs a process of its own.
    let dir = Dir::new("full");
    let output = role("full", &dir.0, |_| {});
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

// ---- Tools ---------------------------------------------------------------------------------------------------------

/// Runs this test binary in a role, under `tool` if that sets a program.
fn role(role: &str, dir: &Path, wrap: impl FnOnce(&mut Vec<std::ffi::OsString>)) -> Output {
    let mut words: Vec<std::ffi::OsString> = Vec::new();
    wrap(&mut words);
    let itself = itself();
    words.push(itself.get_program().into());
    words.extend(itself.get_args().map(Into::into));
    words.extend(["--exact", "a_process_to_look_at", "--nocapture", "--test-threads=1"].map(Into::into));
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env(ROLE, role).env("BPF_DEBUG_DIR", dir).env_remove("RUST_BACKTRACE");
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Does what its role says, for the tests that start this binary again. Without a role: all of it once.
#[test]
fn a_process_to_look_at() {
    if no_jit("a process to look at") {
        return;
    }
    let role = std::env::var(ROLE).unwrap_or_default();
    let dir = std::env::var_os("BPF_DEBUG_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let long = 200_000_000u64;
    match role.as_str() {
        "perf map" => burn(&engine(|d| d.perf_map(PathBuf::from("/tmp"))).unwrap(), long),
        "jitdump" => burn(&engine(|d| d.jitdump(dir)).unwrap(), long),
        "gdb" => stop(&engine(|d| d.gdb(true)).unwrap()),
        "gdb waits" => wait(&engine(|d| d.gdb(true)).unwrap()),
        "full" => {
            let engine = engine(|d| d.perf_map(dir)).unwrap();
            let first = load(&engine);
            let limit = libc::rlimit { rlim_cur: 1024, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: the action is a valid one, and nothing else in this process handles the signal.
            unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
            // SAFETY: a valid limit.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
            assert!(engine.debug_failure().is_none());
            let loaded: Vec<_> = (0..10).map(|_| load(&engine)).collect();
            assert!(engine.debug_failure().is_some());
            loaded.iter().for_each(|instance| assert_eq!(run_outer(instance), run_outer(&first)));
        }
        _ => {
            let engine = engine(|d| d.gdb(true)).unwrap();
            burn(&engine, 1000);
            stop(&engine);
            wait(&engine);
        }
    }
}

/// Runs a sleepable program that stops in a host function, before and after it has waited.
#[inline(never)]
fn wait(engine: &Engine) {
    let mut linker = Linker::<()>::new(engine);
    linker
        .func(1001, "probe", |_: &mut Caller<'_, ()>| bpf_debug_test_stop())
        .unwrap()
        .func_async(1002, "wait", async |_: AsyncCaller<'_, ()>| {
            let mut polled = false;
            poll_fn(|_| if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }).await;
        })
        .unwrap();
    let text = assemble("call 1001\ncall 1002\ncall 1001\nr0 = 7\nexit").unwrap();
    let program = linker.loader::<Raw>().sleepable(true).insns("waiting", text).unwrap();
    let mut host = ();
    let mut run = pin!(program.run_async(&mut host, &mut []));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(run.as_mut().poll(&mut cx).is_pending());
    assert!(matches!(run.as_mut().poll(&mut cx), Poll::Ready(Ok(7))));
}

fn burn(engine: &Engine, rounds: u64) {
    let instance = load(engine);
    let mut data = [rounds];
    assert_ne!(instance.program::<Raw>("burn").unwrap().run(&mut (), data.as_mut_bytes()).unwrap(), 0);
}

fn run_outer(instance: &Instance<()>) -> u64 {
    instance.program::<Raw>("outer").unwrap().run(&mut (), &mut [0; 24]).unwrap()
}

fn stop(engine: &Engine) {
    let first = load(engine);
    // Debuggers must also survive that something goes.
    drop(load(engine));
    engine.reclaim();
    run_outer(&first);
}

fn tool(program: &str, args: &[&OsStr]) -> Result<String, String> {
    let output = Command::new(program).args(args).output().map_err(|error| format!("{program}: {error}"))?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Records this binary in a role with perf; `None` and a message where that is not possible.
fn record(what: &str, dir: &Dir, options: &[&str]) -> Option<PathBuf> {
    let native = tool("perf", &["--version".as_ref()]).is_ok() && !emulated();
    if !native {
        skipped(&format!("perf on {what}"), &"there is no perf, or this is an emulator");
        return None;
    }
    let data = dir.file("perf.data");
    let output = role(what, &dir.0, |words| {
        words.extend(["perf", "record", "-q", "-e", "cpu-clock", "-F", "499"].map(Into::into));
        words.extend(options.iter().map(Into::into));
        words.extend(["-o".into(), data.clone().into(), "--".into()]);
    });
    if !output.status.success() {
        skipped(&format!("perf on {what}"), &String::from_utf8_lossy(&output.stderr).trim());
        return None;
    }
    Some(data)
}

#[test]
fn perf_report_names_the_programs_of_a_perf_map() {
    if no_jit("perf") {
        return;
    }
    let dir = Dir::new("perf-map");
    let Some(data) = record("perf map", &dir, &[]) else { return };
    let report = ["report", "--stdio", "--no-children", "-F", "overhead,pid,sym", "-i"].map(OsStr::new);
    let text = tool("perf", &[&report[..], &[data.as_os_str()]].concat()).unwrap();
    let spin = text.lines().find(|line| line.contains("bpf:burn/spin")).unwrap_or_else(|| panic!("{text}"));
    let share: f64 = spin.trim_start().split('%').next().unwrap().parse().unwrap();
    assert!(share > 50.0, "{text}");
    // The file is the child's; its number is in the report.
    let pid = spin.split_whitespace().find_map(|word| word.split(':').next()?.parse::<u32>().ok());
    if let Some(pid) = pid {
        let _ = fs::remove_file(format!("/tmp/perf-{pid}.map"));
    }
}

#[test]
fn perf_inject_takes_the_jitdump_and_call_graphs_go_through_emitted_frames() {
    if no_jit("perf") {
        return;
    }
    let dir = Dir::new("jitdump");
    let Some(data) = record("jitdump", &dir, &["-k", "mono", "--call-graph", "dwarf,4096"]) else { return };
    let injected = dir.file("injected.data");
    let inject = ["inject", "--jit", "-i"].map(OsStr::new);
    tool("perf", &[&inject[..], &[data.as_os_str(), "-o".as_ref(), injected.as_os_str()]].concat()).unwrap();
    let script = ["script", "-F", "ip,sym,srcline", "-i"].map(OsStr::new);
    let text = tool("perf", &[&script[..], &[injected.as_os_str()]].concat()).unwrap();
    let samples: Vec<&str> = text.split("\n\n").filter(|sample| sample.contains("bpf:burn/spin")).collect();
    assert!(samples.len() > 10, "{text}");
    // The call graph goes on through the caller into Rust.
    let whole = samples.iter().filter(|sample| {
        let at = |name: &str| sample.find(name).unwrap_or(usize::MAX);
        at("bpf:burn/spin") < at("bpf:burn\n") && at("bpf:burn\n") < at("debug_tools::burn")
    });
    assert!(whole.count() * 10 > samples.len() * 9, "{}", samples[0]);
    let place = format!("debug.c:{}", line("spin"));
    assert!(text.contains(&place), "no {place} in\n{text}");
}

#[test]
fn gdb_shows_the_programs_and_their_lines() {
    if no_jit("gdb") {
        return;
    }
    if tool("gdb", &["--version".as_ref()]).is_err() || emulated() {
        skipped("gdb", &"there is no gdb, or this is an emulator");
        return;
    }
    let dir = Dir::new("gdb");
    let output = role("gdb", &dir.0, |words| {
        words.extend(["gdb", "-nx", "-batch", "-ex", "set debuginfod enabled off"].map(Into::into));
        words
            .extend(["-ex", "break bpf_debug_test_stop", "-ex", "run", "-ex", "bt", "-ex", "continue"].map(Into::into));
        words.extend(["-ex", "delete", "-ex", "continue", "--args"].map(Into::into));
    });
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !text.contains("Breakpoint 1, ") {
        skipped("gdb", &format!("it cannot run a program here: {}", String::from_utf8_lossy(&output.stderr).trim()));
        return;
    }
    // Breakpoints by the documented names, of a program and of one of its functions, set before there is such a
    // program, stop in code that lies in a pack.
    let output = role("gdb", &dir.0, |words| {
        words.extend(["gdb", "-nx", "-batch", "-ex", "set debuginfod enabled off"].map(Into::into));
        words.extend(["-ex", "set breakpoint pending on", "-ex", "break bpf:outer"].map(Into::into));
        words.extend(["-ex", "break bpf:outer/leaf", "-ex", "run", "-ex", "bt", "-ex", "continue"].map(Into::into));
        words.extend(["-ex", "bt", "-ex", "delete", "-ex", "continue", "--args"].map(Into::into));
    });
    let stopped = String::from_utf8_lossy(&output.stdout).into_owned();
    let stops = |number: u32| {
        let hit = format!("hit Breakpoint {number}");
        stopped.find(&hit).unwrap_or_else(|| panic!("no stop at breakpoint {number} in\n{stopped}"))
    };
    let (program, function) = (stops(1), stops(2));
    assert!(program < function, "{stopped}");
    let (of_program, of_function) = (&stopped[program..function], &stopped[function..]);
    for frame in ["bpf:outer ()", "run_outer"] {
        assert!(of_program.contains(frame), "no {frame} in\n{of_program}");
    }
    assert!(!of_program.contains("bpf:outer/"), "{of_program}");
    for frame in ["bpf:outer/leaf ()", "bpf:outer/middle ()", "bpf:outer ()", "run_outer"] {
        assert!(of_function.contains(frame), "no {frame} in\n{of_function}");
    }
    assert!(stopped.contains("exited normally"), "{stopped}");
    let mut from = 0;
    for (function, mark) in [("bpf:outer/leaf", "leaf"), ("bpf:outer/middle", "middle"), ("bpf:outer", "outer")] {
        let place = format!("debug.c:{}", line(mark));
        let frame = text[from..].lines().find(|l| l.contains(&format!("{function} ()")) && l.contains(&place));
        let frame = frame.unwrap_or_else(|| panic!("no {function} at {place} in\n{text}"));
        from += text[from..].find(frame).unwrap() + frame.len();
    }
    assert!(text[from..].contains("run_outer"), "{text}");
    assert!(text.contains("exited normally"), "{text}");
}

/// A sleepable run is on a stack of its own: GDB shows its frames before and after a wait, and does not take the
/// change of stacks for a broken one.
#[test]
fn gdb_shows_a_sleepable_run_from_its_host_function_to_its_poller() {
    if no_jit("gdb") {
        return;
    }
    if tool("gdb", &["--version".as_ref()]).is_err() || emulated() {
        skipped("gdb", &"there is no gdb, or this is an emulator");
        return;
    }
    let dir = Dir::new("gdb-waits");
    let output = role("gdb waits", &dir.0, |words| {
        words.extend(["gdb", "-nx", "-batch", "-ex", "set debuginfod enabled off"].map(Into::into));
        words
            .extend(["-ex", "break bpf_debug_test_stop", "-ex", "run", "-ex", "bt", "-ex", "continue"].map(Into::into));
        words.extend(["-ex", "bt", "-ex", "delete", "-ex", "continue", "--args"].map(Into::into));
    });
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let stops: Vec<&str> = text.split("Breakpoint 1, ").skip(1).collect();
    if stops.is_empty() {
        skipped("gdb", &format!("it cannot run a program here: {}", errors.trim()));
        return;
    }
    assert_eq!(stops.len(), 2, "{text}");
    for stop in stops {
        let mut from = 0;
        for frame in ["bpf_debug_test_stop ()", "in bpf:waiting ()", "run_async", "debug_tools"] {
            from += stop[from..].find(frame).unwrap_or_else(|| panic!("no {frame} in\n{stop}"));
        }
    }
    for complaint in ["corrupt stack", "Backtrace stopped", "Cannot access memory"] {
        assert!(!text.contains(complaint) && !errors.contains(complaint), "{text}{errors}");
    }
    assert!(text.contains("exited normally"), "{text}");
}
