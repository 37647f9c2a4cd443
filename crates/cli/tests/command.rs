//! The command as its users meet it: the README's main job, the protocols, the exit status, the messages.
//!
//! The command runs as a process of its own. Under an emulator that takes the runner cargo was told to use, since the kernel cannot
//! start a foreign binary by itself.

use bpf_testkit::{cases, skipped};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn bpf(args: &[&str], input: &[u8]) -> Output {
    let binary = env!("CARGO_BIN_EXE_bpf");
    let runner = std::env::var("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace().filter(|_| cfg!(target_arch = "aarch64")).chain([binary]);
    let mut command = Command::new(words.next().expect("at least the binary"));
    command.args(words).args(args).current_dir(root()).env("RUST_BACKTRACE", "0");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that does not read its input may have closed it; that is no failure of the test.
    let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), input);
    child.wait_with_output().unwrap()
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
    // Where the file cannot be, nothing runs.
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
        // The 48 others are ARP.
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
        // The flags ask for three bytes of a context of two.
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
    for arch in ["x64", "arm64"] {
        let listing = succeeds(&["disasm", "examples/filter.o", "--arch", arch]);
        assert!(listing.contains("int filter("), "the source line: {listing}");
        assert!(listing.contains("r6 = r2"), "the BPF instruction: {listing}");
        assert!(listing.contains("ret"), "the machine instruction: {listing}");
    }
}

#[test]
fn verifies() {
    assert!(succeeds(&["verify", "examples/xdp_filter.o"]).contains("xdp_filter: accepted"));
    let log = succeeds(&["verify", "examples/filter.o", "--log"]);
    assert!(log.lines().count() > 100, "the walk: {log}");
    let refused = bpf(&["verify", "benches/programs/siphash.o"], b"");
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8(refused.stdout).unwrap();
    assert!(text.contains("refused") && text.contains("proven to exist"), "{text}");
    // The walk of a refused program ends at the instruction that is not safe.
    let refused = bpf(&["verify", "benches/programs/siphash.o", "--log"], b"");
    let text = String::from_utf8(refused.stdout).unwrap();
    let (walk, verdict) = text.split_once("bench_siphash: refused").unwrap();
    let last = walk.lines().last().unwrap().split_once(": ").unwrap().0;
    assert!(walk.lines().count() > 20 && verdict.contains(&format!("at {last}: ")), "{text}");
    let json = succeeds(&["verify", "examples/xdp_filter.o", "--json"]);
    assert!(["steps", "states", "peak_bytes"].iter().all(|key| json.contains(key)), "{json}");
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
    assert!(fails(&["plugin"], b"8d00000000000000").contains("unknown opcode 0x8d"));
}

#[test]
fn bad_input_is_named() {
    assert!(fails(&["run", "Cargo.toml"], b"").contains("Cargo.toml: not a loadable BPF object"));
    assert!(fails(&["run", "nowhere.o"], b"").contains("cannot open nowhere.o"));
    assert!(fails(&["run", "examples/filter.o", "--program", "x"], b"").contains("filter"));
    assert!(fails(&["run", "examples/filter.o", "--data", "hex:0g"], b"").contains("not hex"));
    assert!(fails(&["run", "examples/filter.o", "--data", "nowhere.pcap"], b"").contains("cannot open nowhere.pcap"));
    // File, section, program, instruction and cause; and what was guessed.
    let core = "crates/runtime/tests/objects/core.o";
    let error = fails(&["run", core, "--program", "missing_type"], b"");
    let cause = "program `missing_type`, instruction 0: CO-RE relocation (byte_off) of `task_struct::tgid`: this host has no such type";
    assert!(error.contains(&format!("{core}, section `xdp`: {cause}")), "{error}");
    let error = fails(&["run", "crates/runtime/tests/objects/request.o"], b"");
    assert!(error.contains("section `request`, for which no context is shipped"), "{error}");
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
