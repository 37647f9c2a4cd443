//! Tests of the command as users run it: the README's example, the protocols, the exit status, the messages.
//!
//! The command runs in a separate process.

use bpf_testkit::{cases, skipped};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

fn bpf(args: &[&str], input: &[u8]) -> Output {
    let mut command = bpf_testkit::command(env!("CARGO_BIN_EXE_bpf"));
    command.args(args).current_dir(root()).env("RUST_BACKTRACE", "0").env_remove("CLICOLOR_FORCE");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // In a separate thread, because a command that writes much before it has read all would wait for this test,
        // and the test for it. A command that does not read its input may have closed it; that is not a failure of
        // the test.
        scope.spawn(move || drop(std::io::Write::write_all(&mut stdin, input)));
        child.wait_with_output().unwrap()
    })
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn succeeds(args: &[&str]) -> String {
    let output = bpf(args, b"");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn fails(args: &[&str], input: &[u8]) -> String {
    let output = bpf(args, input);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {message}");
    assert!(message.starts_with("bpf: "), "{message}");
    message
}

#[test]
fn runs_a_filter_over_a_capture() {
    for (object, ctx) in [("examples/filter.o", "raw"), ("examples/xdp_filter.o", "xdp")] {
        for engine in ["jit", "interp"] {
            let args = ["run", object, "--data", "examples/packets.pcap", "--engine", engine, "--json"];
            let report: serde_json::Value = serde_json::from_str(&succeeds(&args)).unwrap();
            // 320 of the 408 packets pass by construction of the capture.
            assert_eq!(report["inputs"], 408);
            assert_eq!(report["returned"], serde_json::json!({"1": 88, "2": 320}), "{object} {engine}");
            assert_eq!(report["maps"][0]["name"], "verdicts");
            let explicit = succeeds(&["run", object, "--ctx", ctx, "--data", "examples/packets.pcap", "--repeat", "2"]);
            assert!(explicit.contains("816 runs"), "{explicit}");
        }
    }
}

/// A contained program behaves as without containment, and the option excludes other choices of trust.
#[test]
fn runs_a_contained_program() {
    let run = |more: &[&'static str]| {
        let args = ["run", "benches/programs/checksum.o", "--ctx", "raw", "--data", "hex:0102030405060708", "--json"];
        let report: serde_json::Value = serde_json::from_str(&succeeds(&[&args[..], more].concat())).unwrap();
        report["returned"].clone()
    };
    assert_eq!(run(&["--contained"]), run(&[]));
    for other in ["--hybrid", "--no-verify", "--privileged"] {
        let output = bpf(&["run", "benches/programs/checksum.o", "--contained", other], b"");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("cannot be used with"), "{error}");
    }
}

#[test]
fn tells_profilers_and_debuggers_about_the_program() {
    let dir = std::env::temp_dir().join(format!("bpf-command-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let object = "examples/filter.o";
    succeeds(&["run", object, "--perf-map", "--gdb", "--jitdump", dir.to_str().unwrap()]);
    let dump = std::fs::read_dir(&dir).unwrap().next().unwrap().unwrap().path();
    let name = dump.file_name().unwrap().to_str().unwrap();
    let pid = name.strip_prefix("jit-").and_then(|name| name.strip_suffix(".dump")).unwrap();
    let map = format!("/tmp/perf-{pid}.map");
    let (records, text) = (std::fs::read(&dump).unwrap(), std::fs::read_to_string(&map).unwrap());
    std::fs::remove_file(map).unwrap();
    std::fs::remove_dir_all(dir).unwrap();
    let program = "bpf:filter";
    assert!(text.lines().any(|line| line.ends_with(program)), "{text}");
    assert!(records.windows(program.len()).any(|bytes| bytes == program.as_bytes()));
    // If the file cannot be created, nothing runs.
    let message = fails(&["run", object, "--jitdump", "/nonexistent/directory"], b"");
    assert!(message.contains("cannot create /nonexistent/directory/jit-"), "{message}");
}

#[test]
fn dissects_flows_by_tail_calls() {
    for engine in ["jit", "interp"] {
        let (object, data) = ("examples/flow_dissector.o", "examples/packets.pcap");
        let args =
            ["run", object, "--program", "dissect", "--ctx", "skb", "--data", data, "--engine", engine, "--json"];
        let report: serde_json::Value = serde_json::from_str(&succeeds(&args)).unwrap();
        // The 48 others are ARP packets.
        assert_eq!(report["returned"], serde_json::json!({"0": 360, "2": 48}), "{engine}");
    }
}

/// Records of ring buffers and events of perf event arrays are part of the report.
#[test]
fn prints_what_programs_put_into_rings() {
    let object = "crates/runtime/tests/objects/rings.o";
    for engine in ["jit", "interp"] {
        let run = |program, repeat| {
            let args =
                ["run", object, "--program", program, "--data", "hex:0307", "--repeat", repeat, "--engine", engine];
            let report: serde_json::Value =
                serde_json::from_str(&succeeds(&[&args[..], &["--json"]].concat())).unwrap();
            (report["maps"][0]["records"].clone(), succeeds(&args))
        };
        let (records, text) = run("output", "3");
        assert_eq!(records, serde_json::json!({"total": 3, "lost": 0, "first": ["3031", "3031", "3031"]}), "{engine}");
        assert!(text.contains("3 records, 0 lost") && text.contains("  3031"), "{text}");
        // The flags request three bytes of a context of two.
        let (records, _) = run("perf_event", "1");
        assert_eq!(records, serde_json::json!({"total": 0, "lost": 0, "first": []}), "{engine}");
    }
}

#[test]
fn shows_what_is_in_an_object() {
    let report: serde_json::Value =
        serde_json::from_str(&succeeds(&["inspect", "examples/xdp_filter.o", "--json"])).unwrap();
    assert_eq!(report["programs"][0]["name"], "xdp_filter");
    assert_eq!(report["programs"][0]["helpers"], serde_json::json!([1, 2]));
    assert_eq!(report["maps"][0]["type"], "hash");
    let hints = "crates/runtime/tests/objects/hints.o";
    let inspected = succeeds(&["inspect", hints]);
    assert!(
        inspected.contains("left out left_out (section own/section): it is static, and its section"),
        "{inspected}"
    );
    let report: serde_json::Value = serde_json::from_str(&succeeds(&["inspect", hints, "--json"])).unwrap();
    assert_eq!(report["left_out"][0]["name"], "left_out");
    let verified = succeeds(&["verify", hints]);
    assert_eq!(verified.matches("hint: ").count(), 2, "{verified}");
    assert!(verified.contains("  hint: division by a number that may be 0, whose result is 0 then"), "{verified}");
    for arch in ["x64", "arm64"] {
        let listing = succeeds(&["disasm", "examples/filter.o", "--arch", arch]);
        assert!(listing.contains("int filter("), "the source line: {listing}");
        assert!(listing.contains("if r6 s< 14 goto"), "the BPF instruction: {listing}");
        assert!(listing.contains("ret"), "the machine instruction: {listing}");
        let report = succeeds(&["disasm", "examples/filter.o", "--arch", arch, "--opt-report"]);
        assert!(report.contains("int filter("), "the source line: {report}");
        assert!(report.contains("instructions changed: ") && report.contains("  ->  "), "what passes did: {report}");
        // Code that only an indirect jump reaches is shown, and its table is named.
        let jumps = "crates/runtime/tests/objects/jumptables.o";
        let listing = succeeds(&["disasm", jumps, "--program", "chooses", "--arch", arch, "--opt-level", "none"]);
        for line in ["18: r0 = 3\nL18:\n", "BPF.JT.1.0"] {
            assert!(listing.contains(line), "{line}: {listing}");
        }
    }
}

#[test]
fn verifies() {
    assert!(succeeds(&["verify", "examples/xdp_filter.o"]).contains("xdp_filter: accepted"));
    let log = succeeds(&["verify", "examples/filter.o", "--log"]);
    assert!(log.lines().count() > 100, "the walk: {log}");
    let refused = bpf(&["verify", "benches/programs/parse.o"], b"");
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8(refused.stdout).unwrap();
    assert!(text.contains("refused") && text.contains("proven to exist"), "{text}");
    // The walk of a refused program ends at the unsafe instruction.
    let refused = bpf(&["verify", "benches/programs/parse.o", "--log"], b"");
    let text = String::from_utf8(refused.stdout).unwrap();
    let (walk, verdict) = text.split_once("bench_parse: refused").unwrap();
    let last = walk.lines().last().unwrap().split_once(": ").unwrap().0;
    assert!(walk.lines().count() > 8 && verdict.contains(&format!("at {last}: ")), "{text}");
    let json = succeeds(&["verify", "examples/xdp_filter.o", "--json"]);
    assert!(["steps", "states", "peak_bytes"].iter().all(|key| json.contains(key)), "{json}");
}

/// Limits on the work of a verification: a program that needs more fuel is refused; one given up for time has no
/// verdict, which a different exit status shows.
#[test]
fn verifying_ends_at_the_limits_of_the_command() {
    let verify = |more: &[&str]| {
        let object = "crates/verifier/tests/loops/plugins.o";
        let output = bpf(&[&["verify", object, "--program", "memcached"], more].concat(), b"");
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (status, text) = verify(&["--fuel", "100000"]);
    assert!(status == Some(1) && text.contains("memcached: refused"), "{text}");
    assert!(text.contains("more than 100000 units of fuel") && text.contains("the loop at"), "{text}");
    let (status, text) = verify(&["--time-limit", "0"]);
    assert!(status == Some(3) && text.contains("memcached: unknown"), "{text}");
    assert!(text.contains("gave up after 0ns"), "{text}");
    for wrong in ["-1", "nan", "1e30"] {
        let (status, text) = verify(&[&format!("--time-limit={wrong}")]);
        assert_eq!(status, Some(1), "{wrong}: {text}");
    }
    let (status, text) = verify(&["--time-limit", "100000", "--fuel", "8000000000"]);
    assert!(status == Some(0) && text.contains("memcached: accepted"), "{text}");
}

/// A program that stores the address of its packet in a map is accepted only if it is privileged; one that follows a
/// number from the map is not accepted either way.
#[test]
fn verifies_privileged_programs() {
    for (program, options, accepted) in [
        ("shows", &[][..], false),
        ("shows", &["--privileged"], true),
        ("follows", &[], false),
        ("follows", &["--privileged"], false),
    ] {
        let args = ["verify", "crates/cli/tests/objects/shows.o", "--program", program];
        let output = bpf(&[&args[..], options].concat(), b"");
        let text = String::from_utf8(output.stdout).unwrap();
        let verdict = format!("{program}: {}", if accepted { "accepted" } else { "refused" });
        assert!(output.status.success() == accepted && text.contains(&verdict), "{options:?}: {text}");
    }
}

/// A verdict and its reported work do not depend on the load of the machine.
#[test]
fn processes_that_verify_at_once_come_to_the_same_verdicts_and_counts() {
    let verify = || {
        let output = bpf(&["verify", "crates/verifier/tests/loops/plugins.o", "examples/xdp_filter.o", "--json"], b"");
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let alone = verify();
    assert!(alone.1.contains("\"fuel\""), "{}", alone.1);
    let at_once = std::thread::scope(|scope| {
        let running: Vec<_> = (0..3).map(|_| scope.spawn(verify)).collect();
        running.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(at_once.iter().all(|one| *one == alone), "{alone:?}\n{at_once:?}");
}

#[test]
fn proves_and_verifies_by_proof() {
    let folder = std::env::temp_dir().join(format!("bpf-prove-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (proven, half) = (path("proven.o"), path("half.o"));
    let text = succeeds(&["prove", "examples/xdp_filter.o", "--output", &proven]);
    assert!(text.contains("xdp_filter: proven"), "{text}");
    let text = succeeds(&["verify", "--proof", &proven]);
    assert!(text.contains("xdp_filter: accepted, by the proof"), "{text}");
    assert!(succeeds(&["verify", &proven]).contains("instructions walked"));
    let report: serde_json::Value = serde_json::from_str(&succeeds(&["inspect", &proven, "--json"])).unwrap();
    assert!(report["programs"][0]["proof"].as_u64().is_some_and(|bytes| bytes > 20), "{report}");
    // An object with proofs runs like the object without them.
    let args = ["run", &proven, "--data", "examples/packets.pcap", "--json"];
    let report: serde_json::Value = serde_json::from_str(&succeeds(&args)).unwrap();
    assert_eq!(report["returned"], serde_json::json!({"1": 88, "2": 320}));
    // Without a proof, and for a program that has none.
    let missing = bpf(&["verify", "--proof", "examples/xdp_filter.o"], b"");
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stdout).contains("carries no proof"));
    let unproven = bpf(&["prove", "benches/programs/parse.o", "-o", &half], b"");
    let text = String::from_utf8_lossy(&unproven.stdout).into_owned();
    assert_eq!(unproven.status.code(), Some(3), "{text}");
    assert!(text.contains("no proof found"), "{text}");
    // The kernel and libbpf ignore the section.
    let pin = format!("/sys/fs/bpf/bpf-prove-{}", std::process::id());
    let loads = |object: &str| {
        let output =
            std::process::Command::new("bpftool").args(["prog", "load", object, &pin]).current_dir(root()).output();
        let loaded = output.map_err(|e| e.to_string()).and_then(|output| match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        });
        let _ = std::fs::remove_file(&pin);
        loaded
    };
    match loads("examples/xdp_filter.o") {
        Ok(()) => loads(&proven).unwrap(),
        Err(why) => skipped("an object with proofs in the kernel", &why),
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn speaks_the_plugin_protocol() {
    for engine in ["jit", "interp"] {
        // r0 = *(u64 *)r1; exit
        let load = b"79 10 00 00 00 00 00 00\n9500000000000000\n";
        let output = bpf(&["plugin", "01 02 03 04 05 06 07 08", "--engine", engine], load);
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "807060504030201\n");
        // r1 = 7; call 5; exit
        let call = b"b701000007000000 8500000005000000 9500000000000000";
        assert_eq!(bpf(&["plugin", "--engine", engine], call).stdout, b"7\n");
    }
    let object = std::fs::read(root().join("examples/filter.o")).unwrap();
    assert_eq!(bpf(&["plugin", "--elf", "00"], &object).stdout, b"1\n");
    assert!(fails(&["plugin"], b"not hex").contains("not hex"));
    assert!(fails(&["plugin"], b"8e00000000000000").contains("unknown opcode 0x8e"));
}

#[test]
fn bad_input_is_named() {
    assert!(fails(&["run", "Cargo.toml"], b"").contains("Cargo.toml: not a loadable BPF object"));
    assert!(fails(&["run", "nowhere.o"], b"").contains("cannot open nowhere.o"));
    assert!(fails(&["run", "examples/filter.o", "--program", "x"], b"").contains("filter"));
    assert!(fails(&["run", "examples/filter.o", "--data", "hex:0g"], b"").contains("not hex"));
    assert!(fails(&["run", "examples/filter.o", "--data", "nowhere.pcap"], b"").contains("cannot open nowhere.pcap"));
    // File, section, program, instruction, source line and cause; and the assumed context.
    let core = "crates/runtime/tests/objects/core.o";
    let error = fails(&["run", core, "--program", "missing_type"], b"");
    assert!(error.contains(&format!("{core}, section `xdp`: program `missing_type`, instruction 0, ")), "{error}");
    let cause = "`return task->tgid;`: CO-RE relocation (byte_off) of `task_struct::tgid`: this host has no such type";
    assert!(error.contains(&format!("objects/core.c:97: {cause}")), "{error}");
    let error = fails(&["run", "crates/runtime/tests/objects/request.o"], b"");
    assert!(error.contains("section `request`, for which no context is shipped"), "{error}");
}

#[test]
fn a_line_of_a_scenario_says_once_what_is_wrong() {
    let folder = Folder::new("scenario-errors");
    let script = folder.file("script");
    // The filter does not verify on a kernel's packet.
    std::fs::write(&script, "obj no-such-file.o\nobj filter.o\nrun none 0\n").unwrap();
    let output = bpf(&["scenario", &script, "--objects", root().join("examples").to_str().unwrap()], b"");
    let text = String::from_utf8(output.stdout).unwrap();
    for (what, times) in [("no-such-file.o: No such file", 1), ("refused by the verifier", 1), ("\nerror: ", 1)] {
        assert_eq!(text.matches(what).count(), times, "{what} in {text}");
    }
    assert!(!text.contains(": error: ") && text.ends_with("0 passed, 3 failed\n"), "{text}");
}

#[test]
fn external_scenarios_pass_on_every_engine() {
    let folder = match cases::shared("objects/tailcalls") {
        Ok(folder) => folder,
        Err(why) => return skipped("the tail-call scenarios", &why),
    };
    let script = folder.join("scenarios.txt");
    for version in ["v3", "v4"] {
        for engine in ["jit", "interp"] {
            let objects = folder.join(version);
            let args =
                ["scenario", script.to_str().unwrap(), "--objects", objects.to_str().unwrap(), "--engine", engine];
            let output = succeeds(&args);
            assert!(output.ends_with("25 passed, 0 failed\n"), "{version}, {engine}: {output}");
        }
    }
}

/// Every subcommand with an object, and options that make it print much.
const PRINTING: [&[&str]; 6] = [
    &["inspect", "OBJECT"],
    &["inspect", "OBJECT", "--json"],
    &["disasm", "OBJECT"],
    &["verify", "OBJECT", "--log"],
    &["verify", "OBJECT", "--log", "--json"],
    &["run", "OBJECT", "--data", "hex:00"],
];

fn on(args: &[&'static str], object: &str) -> Vec<String> {
    args.iter().map(|arg| if *arg == "OBJECT" { object.to_owned() } else { (*arg).to_owned() }).collect()
}

/// Runs the command with these arguments and this standard output.
fn bpf_to(args: &[String], stdout: impl Into<Stdio>, stderr: impl Into<Stdio>) -> Output {
    let mut command = bpf_testkit::command(env!("CARGO_BIN_EXE_bpf"));
    command.args(args).current_dir(root()).env("RUST_BACKTRACE", "0");
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).output().unwrap()
}

#[test]
fn a_full_disk_is_an_error_and_a_closed_pipe_the_end() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let help = [&["--help"][..], &["run", "--help"]];
    for args in PRINTING.into_iter().chain(help).map(|args| on(args, "examples/filter.o")) {
        let output = bpf_to(&args, full(), Stdio::piped());
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {message}");
        assert!(message.starts_with("bpf: ") && message.contains("No space left"), "{args:?}: {message}");
        assert_eq!(bpf_to(&args, full(), full()).status.code(), Some(1), "{args:?}: nobody is left to be told");

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = bpf_to(&args, writer, Stdio::piped());
        assert!(output.stderr.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert_ne!(output.status.code(), Some(101), "{args:?}: not by a panic");
    }
    // Messages to a full disk are lost, without a panic.
    let args = ["run", "nowhere.o"].map(str::to_owned);
    assert_eq!(bpf_to(&args, Stdio::null(), full()).status.code(), Some(1));
}

/// Replaces `name` by `with`, padded with dots to equal length.
fn replace(bytes: &mut [u8], name: &str, with: &str) {
    let with = format!("{with}{}", ".".repeat(name.len() - with.len()));
    let places: Vec<usize> =
        (0..bytes.len() - name.len()).filter(|&at| bytes[at..].starts_with(name.as_bytes())).collect();
    assert!(!places.is_empty(), "{name}");
    places.into_iter().for_each(|at| bytes[at..at + name.len()].copy_from_slice(with.as_bytes()));
}

/// Checks that no character would control a terminal, and that no line begins with forged text.
fn is_harmless(what: &str, output: &[u8]) {
    let text = String::from_utf8(output.to_vec()).unwrap();
    let acts = |c: char| bpf_runtime::object::text::is_control(c) && !matches!(c, '\n' | '\t');
    assert!(!text.contains(acts), "{what}: {text:?}");
    assert!(!text.lines().any(|line| line.starts_with("FORGED")), "{what}: {text:?}");
}

#[test]
fn what_files_say_does_not_reach_the_terminal_as_it_is() {
    let folder = std::env::temp_dir().join(format!("bpf-hostile-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = std::fs::read(root().join("examples/xdp_filter.o")).unwrap();
    // Program, section, map, licence, source file, source line, type.
    let names = [
        ("xdp_filter", "\nFORGED\x1b[m"),
        ("verdicts", "\nFORGED\x07"),
        ("MIT OR Apache-2.0", "\nFORGED\u{9b}31m\u{202e}"),
        ("./examples/xdp_filter.c", "\nFORGED\x1b]0;title\x07"),
        ("return verdict;", "\nFORGED\x1b[2J"),
        ("struct counters", "\nFORGED\x1b[2J"),
    ];
    let mut all = good.clone();
    // The file name first, because it contains the program's name.
    for (name, with) in names.iter().rev() {
        replace(&mut all, name, with);
    }
    // And an object that is refused, for its errors: by the verifier (a call of a helper that does not exist).
    let mut refused = all.clone();
    let call = [0x85u8, 0, 0, 0, 1, 0, 0, 0];
    let at = (0..refused.len() - 8).find(|&at| refused[at..].starts_with(&call)).unwrap();
    refused[at + 4..at + 6].copy_from_slice(&[0xff, 0x7f]);
    for object in [write("all.o", &all), write("refused.o", &refused)] {
        for args in PRINTING.map(|args| on(args, &object)) {
            let output = bpf_to(&args, Stdio::piped(), Stdio::piped());
            let what = format!("{args:?}");
            assert!(!output.stdout.is_empty() || !output.stderr.is_empty(), "{what}");
            is_harmless(&what, &output.stdout);
            is_harmless(&what, &output.stderr);
        }
    }
    let evil = "a\\nFORGED\\u001b[2J\\u009b";
    let case = format!(r#"{{"name": "{evil}", "program_hex": "95", "expected": "1"}}"#);
    let scripts = ["run \x1b[2J\u{9b}x 1\n", "obj \x1b[2J.o\n", "\x1b[2J\n"].concat();
    for (what, args) in [
        ("cases", vec!["cases".to_owned(), write("cases", case.as_bytes())]),
        ("no case", vec!["cases".to_owned(), write("none", format!("\"{evil}\"").as_bytes())]),
        ("scenario", vec!["scenario".to_owned(), write("scenario", scripts.as_bytes())]),
    ] {
        let output = bpf_to(&args, Stdio::piped(), Stdio::piped());
        assert_eq!(output.status.code(), Some(1), "{what}");
        is_harmless(what, &output.stdout);
        is_harmless(what, &output.stderr);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn errors_are_json_where_results_are() {
    for args in [
        &["run", "nowhere.o", "--json"][..],
        &["run", "Cargo.toml", "--json"],
        &["inspect", "Cargo.toml", "--json"],
        &["verify", "examples/filter.o", "--program", "\x1bx\u{9b}", "--json"],
        &["run", "examples/filter.o", "--program", "\x1bx\u{9b}\u{202e}", "--json"],
    ] {
        let output = bpf(args, b"");
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(output.stderr.is_empty(), "{args:?}");
        is_harmless(&format!("{args:?}"), &output.stdout);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(!report["error"].as_str().unwrap().is_empty(), "{args:?}");
    }
}

#[test]
fn numbers_in_files_allocate_nothing() {
    let path = std::env::temp_dir().join(format!("bpf-sizes-{}", std::process::id()));
    for size in [u64::MAX, 1 << 62, 1 << 40] {
        let case =
            format!(r#"{{"name": "huge", "program_hex": "9500000000000000", "mem_size": {size}, "expected": "0"}}"#);
        std::fs::write(&path, case).unwrap();
        let output = bpf(&["cases", path.to_str().unwrap()], b"");
        assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8(output.stdout).unwrap().contains("mem_size is"), "{size}");
    }
    std::fs::remove_file(path).unwrap();
}

/// Inputs are read and never mapped: an object, a capture and a case file that are truncated (on a pipe, which cannot
/// be mapped) are errors with a message, not signals. Truncation between two reads is tested in the command's
/// `input`.
#[test]
fn inputs_that_end_in_the_middle_are_errors() {
    // The command opens its own standard input by name. With a named pipe, the writer would wait for a reader that
    // may have ended before opening it, and the test with it.
    let path = "/dev/stdin";
    let read = |file: &str| std::fs::read(root().join(file)).unwrap();
    let (object, capture) = (read("examples/filter.o"), read("examples/packets.pcap"));
    let inputs: [(&[u8], &[&str], &str); 4] = [
        (&object, &["run", path], "not a loadable BPF object"),
        (&object, &["verify", path], "not a loadable BPF object"),
        (&capture, &["run", "examples/filter.o", "--data", path], "is not a valid capture"),
        (b"{\"name\": \"half\", \"program_hex\": \"9500000000000000\"}", &["cases", path], ""),
    ];
    for (bytes, args, message) in inputs {
        let error = fails(args, &bytes[..bytes.len() / 2 + 3]);
        assert!(error.contains(path) && error.contains(message), "{error}");
    }
}

/// A datapath whose sections are numbers: each program's context is determined by its code.
#[test]
fn programs_without_a_context_are_taken_by_what_they_do() {
    let folder = match cases::shared("objects/samples/cilium") {
        Ok(folder) => folder,
        Err(why) => return skipped("contexts of the sample datapath", &why),
    };
    for (object, context) in [("bpf_lb.o", "skb"), ("bpf_netdev.o", "skb"), ("bpf_lxc.o", "skb")] {
        let output = succeeds(&["verify", folder.join(object).to_str().unwrap()]);
        let mut verdicts = output.lines().filter(|line| !line.starts_with("  hint: "));
        assert!(verdicts.all(|line| line.contains(&format!(": accepted on {context}, "))), "{output}");
    }
    let object = folder.join("bpf_xdp_dsr_linux.o");
    let object = object.to_str().unwrap();
    let output = succeeds(&["verify", object, "--program", "bpf_xdp_entry"]);
    assert!(output.starts_with("bpf_xdp_entry: accepted on xdp, "), "{output}");
    // The program only reads fields that both contexts have at equal offsets.
    let error = fails(&["run", object, "--program", "__send_drop_notify", "--data", "hex:00"], b"");
    assert!(error.contains("it verifies on xdp and skb, --ctx chooses"), "{error}");
}

/// `bpf build` needs tools that a fresh machine lacks; if they are missing, the message says how to get them.
#[test]
fn plug_ins_in_rust_are_compiled() {
    assert!(fails(&["build", "examples"], b"").contains("name the folder of a crate"));
    let message = fails(&["build", "examples/limit-rust", "--toolchain", "no-such-toolchain"], b"");
    assert!(message.contains("rustc cannot be run") || message.contains("rustup toolchain install"), "{message}");
    if cfg!(target_arch = "aarch64") {
        return skipped("bpf build", &"the native tests compile the same");
    }
    let object = std::env::temp_dir().join(format!("bpf-build-{}.o", std::process::id()));
    let path = object.to_str().unwrap();
    let output = bpf(&["build", "examples/limit-rust", "-o", path], b"");
    let message = String::from_utf8(output.stderr).unwrap();
    if !output.status.success() && message.contains("rustup toolchain install") {
        return skipped("bpf build", &message.trim());
    }
    assert!(output.status.success(), "{message}");
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), path);
    let inspected = succeeds(&["inspect", path]);
    std::fs::remove_file(&object).unwrap();
    for line in ["program limit (section request/limit", "host function say", "map seen (lru_hash): key 4 bytes"] {
        assert!(inspected.contains(line), "{line}: {inspected}");
    }
}

/// A program that uses the kernel's own types gets them from a file.
#[test]
fn types_come_from_a_file() {
    let object = "crates/runtime/tests/objects/core.o";
    let verify = |program: &str, btf: &[&str]| {
        let args = ["verify", object, "--program", program];
        bpf(&[&args, btf].concat(), b"")
    };
    assert!(verify("asks", &["--btf", object]).status.success());
    let run = |btf: &[&str]| {
        let args = ["run", object, "--program", "asks", "--data", "hex:00", "--json"];
        let report: serde_json::Value = serde_json::from_str(&succeeds(&[&args, btf].concat())).unwrap();
        report["returned"].clone()
    };
    assert_eq!(run(&[]), serde_json::json!({"469": 1}));
    assert_eq!(run(&["--btf", object]), serde_json::json!({"989": 1}));
    let error = fails(&["run", object, "--program", "asks", "--btf", "README.md"], b"");
    assert!(error.contains("README.md"), "{error}");
}

/// A folder for a test's files, which is removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("bpf-command-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn packets_are_written_as_the_program_left_them() {
    let folder = Folder::new("out");
    let (all, passed) = (folder.file("all.pcap"), folder.file("passed.pcap"));
    let (object, data) = ("examples/xdp_filter.o", "examples/packets.pcap");
    // A filter changes nothing: packets, their times and the kind of link equal those of the input.
    succeeds(&["run", object, "--data", data, "--headroom", "256", "--repeat", "2", "--out", &all]);
    let input = std::fs::read(root().join(data)).unwrap();
    let output = std::fs::read(&all).unwrap();
    assert_eq!(output.len(), input.len());
    assert!(output[24..] == input[24..], "everything behind the header of the file");
    // 320 of the 408 packets pass by construction of the capture, and all of these pass again.
    succeeds(&["run", object, "--data", data, "--out", &passed, "--out-only", "2,3"]);
    let report: serde_json::Value =
        serde_json::from_str(&succeeds(&["run", object, "--data", &passed, "--json"])).unwrap();
    assert_eq!(report["returned"], serde_json::json!({"2": 320}));
    let message = fails(&["run", object, "--out", "/nonexistent/out.pcap"], b"");
    assert!(message.contains("cannot create /nonexistent/out.pcap"), "{message}");
    assert_eq!(bpf(&["run", object, "--headroom", "65537"], b"").status.code(), Some(2));
}

#[test]
fn maps_are_filled_before_the_first_run() {
    let folder = Folder::new("fill");
    let object = "examples/xdp_filter.o";
    let run = |extra: &[&str]| {
        let args: Vec<&str> = ["run", object, "--data", "hex:00", "--json"].iter().chain(extra).copied().collect();
        succeeds(&args)
    };
    let entries = |report: &str| {
        let report: serde_json::Value = serde_json::from_str(report).unwrap();
        report["maps"][0]["entries"].as_array().unwrap().clone()
    };
    let value = "010000000000000002000000000000000300000000000000";
    let is_held = |report: &str| entries(report).iter().any(|entry| entry["key"] == "0" && entry["value"] == value);
    let filled = run(&["--map", &format!("verdicts=0:{value}")]);
    assert!(!is_held(&run(&[])) && is_held(&filled), "{filled}");
    // The report of one run fills the maps of the next, including constants, and the next run continues counting.
    let path = folder.file("report.json");
    std::fs::write(&path, &filled).unwrap();
    let next = run(&["--maps", &path]);
    assert!(is_held(&next) && entries(&next) != entries(&filled), "{next}");
    let refused = [
        ("verdicts", "not of the form NAME=KEY:VALUE"),
        ("verdicts=0", "not of the form NAME=KEY:VALUE"),
        ("other=0:1", "there is no map `other` to fill; the program's maps: verdicts, .rodata"),
        ("verdicts=x:1", "map `verdicts`, key x, value 1: not a key of the map: not a number"),
        ("verdicts=0:1e3", "not a value of the map: not 24 bytes in hex: not hex"),
        (".rodata=0:1e3", "not a value of the map: not a number, as 8 bytes are written"),
        (".rodata=0:1", "map `.rodata`, key 0, value 1"),
        ("verdicts=4294967296:00", "not a key of the map: does not fit into 4 bytes"),
        ("verdicts=0:00", "not a value of the map: 1 bytes, the map has 24"),
    ];
    for (map, expected) in refused {
        let message = fails(&["run", object, "--map", map], b"");
        assert!(message.contains(expected), "{map}: {message}");
    }
    // People write numbers as numbers.
    let value = "01".repeat(24);
    let by_hand = |key: &str| {
        format!("{{\"maps\": [{{\"name\": \"verdicts\", \"entries\": [{{\"key\": {key}, \"value\": \"{value}\"}}]}}]}}")
    };
    std::fs::write(&path, by_hand("9")).unwrap();
    let report = succeeds(&["run", object, "--maps", &path, "--json"]);
    assert!(report.contains(&value), "{report}");
    let no_key = "{\"maps\": [{\"name\": \"verdicts\", \"entries\": [{\"key\": 1}]}]}";
    for text in ["", "[]", "{\"maps\": [{}]}", no_key, &by_hand("[9]"), &by_hand("9.5")] {
        std::fs::write(&path, text).unwrap();
        let message = fails(&["run", object, "--maps", &path], b"");
        assert!(message.contains("report.json") || message.contains("not a key of the map"), "{text}: {message}");
    }
}

#[test]
fn listings_are_there_for_programs() {
    for arch in ["x64", "arm64"] {
        let text = succeeds(&["disasm", "examples/filter.o", "--arch", arch, "--json"]);
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        let (insns, machine) = (report["insns"].as_array().unwrap(), report["machine"].as_array().unwrap());
        assert_eq!(report["program"], "filter");
        assert!(
            insns.iter().any(|insn| insn["source"]["file"].as_str().is_some_and(|file| file.ends_with("filter.c")))
        );
        assert!(insns.iter().any(|insn| insn["text"] == "exit"), "{text}");
        let last = machine.last().unwrap()["offset"].as_u64().unwrap();
        assert!(last < report["bytes"].as_u64().unwrap());
        let refers = |row: &serde_json::Value| row["insn"].as_u64().is_none_or(|at| (at as usize) < insns.len());
        assert!(machine.iter().all(refers));
    }
    assert_eq!(bpf(&["disasm", "examples/filter.o", "--json", "--opt-report"], b"").status.code(), Some(2));
    // Errors are JSON as well.
    let output = bpf(&["disasm", "/nonexistent.o", "--json"], b"");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["error"].as_str().unwrap().contains("cannot open"), "{report}");
}

#[test]
fn shells_and_man_know_the_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = succeeds(&["completions", shell]);
        assert!(script.contains("disasm") && script.contains("headroom"), "{shell}");
    }
    assert_eq!(bpf(&["completions", "cmd.exe"], b"").status.code(), Some(2));
    let folder = Folder::new("man");
    succeeds(&["man", &folder.file("not/there/yet")]);
    for (page, word) in [("bpf.1", "verify"), ("bpf-run.1", "headroom"), ("bpf-man.1", "FOLDER")] {
        let text = std::fs::read_to_string(folder.file(&format!("not/there/yet/{page}"))).unwrap();
        assert!(text.contains(word), "{page}");
    }
    // A folder cannot be created below a file.
    let message = fails(&["man", "examples/filter.o/folder"], b"");
    assert!(message.contains("cannot write to examples/filter.o/folder"), "{message}");
}

/// A file that is named as a capture and is not one is an error, and is not treated as one packet, not even if it is
/// empty; a capture without packets has no time per run.
#[test]
fn captures_without_packets_are_told_from_none() {
    let folder = Folder::new("captures");
    let path = folder.file("empty.pcap");
    for bytes in [&b""[..], b"\xd4\xc3", b"text"] {
        std::fs::write(&path, bytes).unwrap();
        let message = fails(&["run", "examples/filter.o", "--data", &path], b"");
        assert!(message.contains("does not begin like a capture"), "{message}");
    }
    let header = &std::fs::read(root().join("examples/packets.pcap")).unwrap()[..24];
    std::fs::write(&path, header).unwrap();
    let report = succeeds(&["run", "examples/filter.o", "--data", &path]);
    assert!(report.starts_with("filter: no inputs, no runs\n"), "{report}");
}

/// For an unknown program the message lists the known ones, in every command.
#[test]
fn unknown_programs_are_answered_with_the_known() {
    for command in ["run", "verify", "disasm"] {
        let message = fails(&[command, "examples/filter.o", "--program", "nope"], b"");
        assert!(message.contains("no program `nope` (the object has: filter)"), "{command}: {message}");
    }
}

/// Structures, unions, arrays, enumerations, bit fields, text and variables by name; hex where there are no types.
#[test]
fn maps_are_shown_by_their_types() {
    let object = "crates/cli/tests/objects/values.o";
    let args = ["run", object, "--program", "look", "--data", "hex:00"];
    let text = succeeds(&args);
    let key = "{from: {v4: 16777343, bytes: [127, 0, 0, 1], port: 53}, protocol: UDP}";
    let value = r#"{name: "eth0", closed: true, urgent: 1, window: 9, drift: -2, last: [TCP, 99], next: "0x0", payload: "00000000000000000000000000000000000000ff", packets: 9223372036854775808}"#;
    for line in [&format!("{key} = {value}"), "pair = {first: -1, second: 104}", "greeting = \"hello\"", "1 = 010203"] {
        assert!(text.contains(&format!("\n  {line}\n")), "{line}: {text}");
    }
    let report: serde_json::Value = serde_json::from_str(&succeeds(&[&args[..], &["--json"]].concat())).unwrap();
    let map = |name: &str| {
        let map = report["maps"].as_array().unwrap().iter().find(|map| map["name"] == name).unwrap();
        map["entries"][0].clone()
    };
    let formatted = &map("flows")["formatted"];
    assert_eq!(formatted["key"]["from"]["bytes"], serde_json::json!([127, 0, 0, 1]));
    assert_eq!(formatted["value"]["packets"], 1u64 << 63);
    assert_eq!(formatted["value"]["last"], serde_json::json!(["TCP", 99]));
    assert_eq!(map(".bss")["formatted"]["value"], serde_json::json!({"pair": {"first": -1, "second": 104}}));
    assert_eq!(map("untyped"), serde_json::json!({"key": "1", "value": "010203"}));
}

/// A value for a per-CPU map is set in every slot; a report lists each slot's value, and fills the next run.
#[test]
fn per_cpu_maps_are_filled_and_shown_by_slot() {
    let folder = Folder::new("per-cpu");
    let run = |extra: &[&str]| -> serde_json::Value {
        let args = ["run", "crates/cli/tests/objects/values.o", "--program", "count", "--data", "hex:00", "--json"];
        serde_json::from_str(&succeeds(&[&args[..], extra].concat())).unwrap()
    };
    let first = run(&["--map", "counts=1:41"]);
    assert_eq!(first["returned"], serde_json::json!({"42": 1}));
    let slots = first["maps"][0]["entries"][0]["formatted"]["value"].as_object().unwrap();
    assert_eq!(slots.values().filter(|count| **count == 42).count(), 1, "{first}");
    assert!(slots.values().all(|count| *count == 41 || *count == 42), "{first}");
    let path = folder.file("first.json");
    std::fs::write(&path, first.to_string()).unwrap();
    assert_eq!(run(&["--maps", &path])["returned"], serde_json::json!({"43": 1}));
}

/// An XDP program moves the packet's start into the headroom, and both capture formats contain the result.
#[test]
fn packets_grow_into_their_headroom() {
    let folder = Folder::new("headroom");
    let object = "crates/cli/tests/objects/values.o";
    let push = ["run", object, "--program", "push", "--data", "hex:0102030405060708090a0b0c0d0e", "--json"];
    let returned = |extra: &[&str]| {
        let report: serde_json::Value = serde_json::from_str(&succeeds(&[&push[..], extra].concat())).unwrap();
        report["returned"].clone()
    };
    assert_eq!(returned(&[]), serde_json::json!({"0": 1}), "there is no room");
    for (name, header) in [("out.pcap", 24 + 16), ("out.pcapng", 28 + 32 + 28)] {
        let path = folder.file(name);
        // XDP_TX, in each of two rounds, which begin with the original packet.
        assert_eq!(returned(&["--headroom", "64", "--repeat", "2", "--out", &path]), serde_json::json!({"3": 2}));
        let bytes = std::fs::read(&path).unwrap();
        let packet = [&[0xaa, 0xbb, 0xcc, 0xdd][..], &(1..=14).collect::<Vec<u8>>()].concat();
        assert_eq!(bytes[header..header + packet.len()], packet, "{name}: {bytes:x?}");
    }
    // Times are preserved when converting to the other format and back.
    let (data, there, back) = ("examples/packets.pcap", folder.file("there.pcapng"), folder.file("back.pcap"));
    for (from, to) in [(data, &there), (there.as_str(), &back)] {
        succeeds(&["run", "examples/xdp_filter.o", "--data", from, "--out", to]);
    }
    let read = |path: &Path| std::fs::read(path).unwrap()[24..].to_vec();
    assert!(read(&root().join(data)) == read(Path::new(&back)));
}

/// A packet in pieces is one packet for a program that reads all of it, and is written as one.
#[test]
fn packets_are_given_in_pieces() {
    let folder = Folder::new("pieces");
    let object = "crates/cli/tests/objects/pieces.o";
    let run = ["run", object, "--program", "pieces", "--data", "hex:0102030405060708090a", "--json"];
    let out = folder.file("out.pcap");
    for (extra, returned, end) in [
        (&["--ctx", "xdp-frags"][..], "10010", &[9, 0xee][..]),
        (&["--frag-size", "4", "--repeat", "2"][..], "4010", &[9, 0xee][..]),
        (&["--frag-size", "5", "--headroom", "16"][..], "5010", &[9, 0xee, 0, 0][..]),
        (&["--frag-size", "64"][..], "10010", &[9, 0xee][..]),
    ] {
        let text = succeeds(&[&run[..], extra, &["--out", &out]].concat());
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["returned"].as_object().unwrap().keys().collect::<Vec<_>>(), [returned], "{extra:?}");
        let packet = std::fs::read(&out).unwrap().split_off(24 + 16);
        assert_eq!(packet, [&[1, 2, 3, 4, 5, 6, 7, 8][..], end].concat(), "{extra:?}");
    }
    let one = fails(&["run", object, "--program", "whole", "--frag-size", "4"], b"");
    assert!(one.contains("xdp.frags"), "{one}");
    let other = fails(&["run", "examples/filter.o", "--frag-size", "4"], b"");
    assert!(other.contains("--frag-size is for XDP programs"), "{other}");
}

#[test]
fn several_objects_have_their_turn() {
    let (good, bad) = ("examples/filter.o", "benches/programs/parse.o");
    let text = succeeds(&["inspect", good, "examples/xdp_filter.o"]);
    assert!(text.starts_with("examples/filter.o:\n") && text.contains("\nexamples/xdp_filter.o:\n"), "{text}");
    // An error of one object does not prevent the others from being verified.
    let output = bpf(&["verify", "nowhere.o", bad, good, "--json"], b"");
    assert_eq!(output.status.code(), Some(1));
    let documents = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<serde_json::Value>();
    let documents: Vec<_> = documents.map(Result::unwrap).collect();
    assert_eq!(documents.len(), 3);
    assert!(documents[0]["error"].as_str().unwrap().contains("nowhere.o"));
    for (document, object, accepted) in [(&documents[1], bad, false), (&documents[2], good, true)] {
        assert_eq!((&document[0]["object"], &document[0]["accepted"]), (&object.into(), &accepted.into()));
    }
    assert!(fails(&["verify", "nowhere.o", good], b"").contains("cannot open nowhere.o"));
}

/// Each object gets the packets of the capture unchanged, and maps of its own.
#[test]
fn several_objects_run_over_the_same_packets() {
    let (first, second, data) = ("examples/filter.o", "examples/xdp_filter.o", "examples/packets.pcap");
    let reports = |objects: &[&str]| -> Vec<serde_json::Value> {
        let args: Vec<&str> = ["run"].iter().chain(objects).chain(&["--data", data, "--json"]).copied().collect();
        let output = bpf(&args, b"");
        let documents = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<serde_json::Value>();
        documents.map(Result::unwrap).collect()
    };
    let together = reports(&[first, "nowhere.o", second, first]);
    assert_eq!(together.len(), 4);
    assert!(together[1]["error"].as_str().unwrap().contains("nowhere.o"), "{}", together[1]);
    for (report, object) in [(&together[0], first), (&together[2], second), (&together[3], first)] {
        let alone = &reports(&[object])[0];
        for of in ["object", "program", "inputs", "runs", "returned"] {
            assert_eq!(report[of], alone[of], "{object}: {of}");
        }
        // A hash map has no defined order.
        let entries = |report: &serde_json::Value| -> BTreeSet<String> {
            let maps = report["maps"].as_array().unwrap().iter();
            maps.flat_map(|map| map["entries"].as_array().unwrap()).map(ToString::to_string).collect()
        };
        assert_eq!(entries(report), entries(alone), "{object}");
    }
    let text = succeeds(&["run", first, second, "--data", data]);
    assert!(text.starts_with("examples/filter.o:\n") && text.contains("\nexamples/xdp_filter.o:\n"), "{text}");
    let refused = fails(&["run", first, second, "--data", data, "--out", "nowhere/out.pcap"], b"");
    assert!(refused.contains("--out takes the packets of one object"), "{refused}");
}

/// Colours are used on terminals only: never in a pipe, a file or JSON.
#[test]
fn colours_are_for_terminals() {
    let escapes = |variables: &[(&str, &str)], args: &[&str]| {
        let mut command = bpf_testkit::command(env!("CARGO_BIN_EXE_bpf"));
        command.args(args).current_dir(root());
        command.env_remove("CLICOLOR_FORCE").env_remove("NO_COLOR").envs(variables.iter().copied());
        let output = command.output().unwrap();
        [output.stdout, output.stderr].map(|bytes| bytes.contains(&0x1b))
    };
    // A terminal is not available everywhere; this variable requests colours without one.
    let (forced, refused) = (("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1"));
    let (verify, wrong) = (["verify", "examples/filter.o"], ["run", "nowhere.o"]);
    assert_eq!(escapes(&[], &verify), [false, false]);
    assert_eq!(escapes(&[forced], &verify), [true, false]);
    assert_eq!(escapes(&[forced], &wrong), [false, true]);
    for args in [&verify, &wrong] {
        assert_eq!(escapes(&[forced, refused], args), [false, false]);
    }
    assert_eq!(escapes(&[forced], &["verify", "examples/filter.o", "--json"]), [false, false]);
}

#[test]
fn sizes_that_an_object_leaves_to_its_loader_are_given() {
    let object = "crates/cli/tests/objects/sized.o";
    let refused = fails(&["run", object, "--data", "hex:01"], b"");
    assert!(refused.contains("max_entries 0, which is for who loads the object to set"), "{refused}");
    let verdicts = bpf(&["verify", object], b"");
    assert!(String::from_utf8_lossy(&verdicts.stdout).contains("--max-entries"), "{verdicts:?}");
    // Each map without a size; one by its name.
    for size in [&["--max-entries", "4"][..], &["--max-entries", "slots=4", "--max-entries", "seen=8"]] {
        let verified = succeeds(&[&["verify", object], size].concat());
        assert!(verified.contains("count: accepted"), "{verified}");
        let report = succeeds(&[&["run", object, "--data", "hex:01", "--json"], size].concat());
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        // The first map has a fourth slot; the map with a size has no third entry.
        assert_eq!(report["returned"], serde_json::json!({"2": 1}));
    }
    let unknown = fails(&["run", object, "--max-entries", "slot=4"], b"");
    assert!(unknown.contains("slot") && unknown.contains("slots"), "{unknown}");
    assert_eq!(bpf(&["verify", object, "--max-entries", "slots=-1"], b"").status.code(), Some(2));
    assert_eq!(bpf(&["verify", object, "--max-entries", "99999999999"], b"").status.code(), Some(2));
}

/// The blocks of JSON in docs/book/reference/formats.md are what the command writes and reads.
#[test]
fn the_documented_json_is_read() {
    let page = std::fs::read_to_string(root().join("docs/book/reference/formats.md")).unwrap();
    let blocks: Vec<&str> = page.split("```json\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let [entry, case] = blocks[..] else { panic!("{} blocks", blocks.len()) };
    let entry: serde_json::Value = serde_json::from_str(entry).unwrap();
    let value = entry["value"].as_str().unwrap();
    let words: Vec<u64> = value
        .as_bytes()
        .chunks(16)
        .map(|digits| u64::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap().swap_bytes())
        .collect();
    let formatted = &entry["formatted"]["value"];
    assert_eq!(words, [formatted["bytes"].as_u64().unwrap(), formatted["packets"].as_u64().unwrap()]);
    let folder = Folder::new("documented");
    std::fs::write(folder.file("cases.jsonl"), case).unwrap();
    assert_eq!(succeeds(&["cases", &folder.file("cases.jsonl")]), "1 passed, 0 failed\n");
}
