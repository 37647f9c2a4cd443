//! Plug-ins in Rust: `bpf header --rust`, and projects of `bpf new --lang rust`.

use super::{Folder, fails, prints, root};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// `bpf new` in this folder.
fn new(folder: &Path, args: &[&str]) -> Output {
    let mut command = bpf_testkit::command(env!("CARGO_BIN_EXE_bpf"));
    command.arg("new").args(args).current_dir(folder).env("RUST_BACKTRACE", "0").output().unwrap()
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap()
}

fn source() -> String {
    root().canonicalize().unwrap().display().to_string()
}

#[test]
fn a_module_in_rust_is_made_from_the_host() {
    let folder = Folder::new("module");
    let host: serde_json::Value = serde_json::from_str(&read(folder.path("limit_host.json"))).unwrap();
    let with = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut host = host.clone();
        change(&mut host);
        folder.file("host.json", &host.to_string())
    };
    let path = with(&|host| {
        let fields = host["context"]["fields"].as_array_mut().unwrap();
        fields.push(
            serde_json::json!({ "name": "type", "writable": true, "type": { "array": { "of": "i16", "count": 4 } } }),
        );
        let body = serde_json::json!({ "name": "body", "writable": false, "type": { "bytes": { "writable": true } } });
        let peer = serde_json::json!({ "struct": { "name": "peer_info", "fields": [body] } });
        fields.push(serde_json::json!({ "name": "peer", "writable": false, "type": peer }));
        let memory = serde_json::json!({ "struct": { "bytes": 12, "align": 4, "writable": true, "null": true } });
        let params = serde_json::json!([{ "bytes": { "writable": true, "null": true, "shared": false } }, memory]);
        host["functions"] = serde_json::json!([
            { "name": "match", "id": null, "params": params, "result": { "memory": { "bytes": 16 } }, "sleeps": true },
            { "name": "stop", "id": null, "params": [], "result": "never" },
            { "name": "ready", "id": null, "params": [{ "int": "i8" }], "result": { "int": "bool" } },
        ]);
        host["maps"] = serde_json::json!([
            { "name": "quota", "type": "lru_hash", "key_size": 4, "value_size": 12, "max_entries": 64 },
            { "name": "peer_info", "type": "ringbuf", "key_size": 0, "value_size": 0, "max_entries": 4096 },
            { "name": "other", "type": "queue", "key_size": 0, "value_size": 8, "max_entries": 8 },
        ]);
    });
    let module = prints(0, &["header", "--rust", &path]);
    for part in [
        "pub struct PeerInfo<'c> {\n    pub body: bpf_guest::ContextBytesMut<'c>,\n}\n",
        "#[derive(bpf_guest::BpfContext)]\n#[bpf(name = \"request\")]\n#[repr(C)]\npub struct Request<'c> {\n    pub client: u32,\n",
        "    #[bpf(writable)]\n    pub r#type: [i16; 4],\n    pub peer: PeerInfo<'c>,\n}\n",
        "#[repr(C, align(4))]\npub struct Bytes12Align4(pub [u8; 12]);\n",
        "    /// Waits: only sleepable programs call it.\n    pub fn r#match(a: &mut [u8], b: ::core::option::Option<&mut \
         Bytes12Align4>) -> ::core::option::Option<::core::ptr::NonNull<[u8; 16]>>;\n",
        "    /// Ends the run: it does not return.\n    pub fn stop();\n",
        "    pub fn ready(a: i8) -> bool;\n",
        "pub type Quota = bpf_guest::maps::LruHashMap<u32, [u8; 12], 64>;\n",
        "pub type PeerInfo_ = bpf_guest::maps::RingBuf<4096>;\n",
        "// The host's map `other` (queue) has no type in bpf-guest.\n",
    ] {
        assert!(module.contains(part), "{part}\n{module}");
    }
    let path = with(&|host| host["context"]["fields"][1]["name"] = "self".into());
    let message = fails(&["header", "--rust", &path]);
    assert!(message.contains("host.json") && message.contains("context.fields[1].name: `self` can be"), "{message}");
    let path = with(&|host| host["functions"][0]["name"] = "crate".into());
    assert!(fails(&["header", "--rust", &path]).contains("functions[0].name: `crate` can be no name in Rust"));
}

/// The files of a new project, with the object that `bpf build` makes of them: no nightly toolchain is needed here.
/// The project's own tests run in those of bpf-guest (`crates/guest/tests/native.rs`).
#[test]
fn a_new_project_in_rust_is_verified_tested_and_covered() {
    let folder = Folder::new("made-rust");
    assert!(new(&folder.0, &["guard", "--lang", "rust", "--source", &source()]).status.success());
    let project = folder.0.join("guard");
    let kept = root().join("crates/cli/tests/objects/guard_rust");
    for (file, copy) in [("src/lib.rs", "lib.rs"), ("src/host.rs", "host.rs"), ("tests/native.rs", "native.rs")] {
        let stale = "copy it, and write the object that `bpf build` makes of the project to guard_rust.o";
        assert_eq!(read(project.join(file)), read(kept.join(copy)), "{file}: {stale}");
    }
    let path = |name: &str| project.join(name).to_str().unwrap().to_owned();
    assert_eq!(prints(0, &["header", "--rust", &path("host.json")]), read(project.join("src/host.rs")));
    std::fs::create_dir(project.join("target")).unwrap();
    std::fs::copy(kept.with_extension("o"), project.join("target/guard.o")).unwrap();
    let verified = prints(0, &["verify", "--host", &path("host.json"), &path("target/guard.o")]);
    assert!(verified.contains("guard: accepted"), "{verified}");
    let tested = prints(0, &["test", &path("guard_test.toml"), "--coverage"]);
    assert!(tested.contains("2 passed, 0 failed") && tested.contains("src/lib.rs"), "{tested}");
    let fuzzed = prints(0, &["test", &path("guard_test.toml"), "--fuzz", "60", "--fuzz-inputs", "300"]);
    assert!(fuzzed.contains("3 passed, 0 failed"), "{fuzzed}");
    super::observe::a_project_is_seen(&folder, &project, "target/guard.o", "src/lib.rs:");

    for (args, part) in [
        (&["self", "--lang", "rust"][..], "it is a word of Rust"),
        (&["memcpy", "--lang", "rust"], "choose another"),
        (&["price", "--lang", "rust"], "choose another"),
        (&["a-b", "--lang", "rust"], "is no name in Rust"),
        (&["fresh", "--source", "/nowhere"], "--source /nowhere: No such file or directory"),
        (&["fresh", "--lang", "rust", "--source", "/"], "--source /: there is no crates/cli"),
        (&["fresh", "--source", "https://example.org/$(id)"], "'$' cannot be written to a CI file"),
    ] {
        let output = new(&folder.0, args);
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && message.contains(part), "{args:?}: {message}");
    }
    assert!(!folder.0.join("fresh").exists());
    let pinned = project.join("rust-toolchain.toml");
    for (text, part) in [("[toolchain]\n", "it names no `toolchain.channel`"), ("channel", "TOML parse error")] {
        std::fs::write(&pinned, text).unwrap();
        let message = fails(&["build", project.to_str().unwrap()]);
        assert!(message.contains("rust-toolchain.toml") && message.contains(part), "{message}");
    }
}

/// The CI file installs the command, and the manifest has `bpf-guest`, from where `--source` says.
#[test]
fn a_new_project_says_where_its_tools_are_from() {
    let folder = Folder::new("made-from");
    let here = source();
    for (i, (source, command, guest)) in [
        (None, "--locked bpf-cli".to_owned(), "\"0.1.0\"".to_owned()),
        (Some(&*here), format!("--locked --path {here}/crates/cli"), format!("{{ path = \"{here}/crates/guest\" }}")),
        (
            Some("https://example.org/bpf.git"),
            "--locked --git https://example.org/bpf.git bpf-cli".to_owned(),
            "{ git = \"https://example.org/bpf.git\" }".to_owned(),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        for lang in ["c", "rust"] {
            let name = format!("{lang}{i}");
            let from = source.map_or_else(Vec::new, |source| vec!["--source", source]);
            let made = new(&folder.0, &[&[name.as_str(), "--lang", lang], &from[..]].concat());
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            let project = folder.0.join(&name);
            for file in [".github/workflows/test.yml", "Makefile"] {
                let text = read(project.join(file));
                assert!(text.contains(&format!("install {command}")), "{text}");
            }
            if lang == "rust" {
                let manifest = read(project.join("Cargo.toml"));
                assert!(manifest.contains(&format!("bpf-guest = {guest}\n")), "{manifest}");
                manifest.parse::<toml::Table>().unwrap();
            }
        }
    }
}

/// A project in Rust, whose compiled dependencies are kept from one run of the tests to the next.
struct Project(PathBuf);

impl Project {
    fn new(name: &str, more: &[&str]) -> Project {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugin-rust");
        let (project, target) = (folder.join(name), folder.join("target"));
        std::fs::create_dir_all(&target).unwrap();
        let _ = std::fs::remove_dir_all(&project);
        let source = source();
        let made = new(&folder, &[&[name, "--lang", "rust", "--source", &source], more].concat());
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        std::os::unix::fs::symlink(&target, project.join("target")).unwrap();
        Project(project)
    }

    /// A program in the project's folder, which the toolchain of these tests does not concern.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.0).env("CARGO_NET_OFFLINE", "true").env("RUST_BACKTRACE", "0").env("LC_ALL", "C");
        for ours in ["CARGO", "RUSTC", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTUP_TOOLCHAIN", "CARGO_TARGET_DIR"] {
            command.env_remove(ours);
        }
        command
    }

    fn make(&self) -> (bool, String) {
        let output = self.command("make").arg(format!("BPF={}", env!("CARGO_BIN_EXE_bpf"))).output().unwrap();
        (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    }

    /// Compiles with the pinned nightly, or else with any; returns why it cannot be.
    fn builds(&self) -> Result<(), String> {
        let mut message = String::new();
        for channel in [None, Some("nightly")] {
            let pinned = self.0.join("rust-toolchain.toml");
            if let Some(channel) = channel {
                std::fs::write(&pinned, format!("[toolchain]\nchannel = \"{channel}\"\n")).unwrap();
            }
            let output = self.command(env!("CARGO_BIN_EXE_bpf")).arg("build").output().unwrap();
            message = String::from_utf8(output.stderr).unwrap();
            if output.status.success() {
                return Ok(());
            }
            // No toolchain, or not the sources of `core`'s dependencies.
            let absent = ["rustup toolchain install", "cannot be run", "without `--offline`"];
            assert!(absent.iter().any(|part| message.contains(part)), "{message}");
        }
        Err(message.trim().to_owned())
    }
}

/// A project as a stranger develops it: made, tested; refused, with the messages that its README has; mended; covered;
/// compiled for the service's next version.
#[test]
fn a_project_in_rust_is_made_refused_and_mended() {
    let has_make = Command::new("make").arg("--version").output().is_ok();
    if !has_make || !cfg!(target_arch = "x86_64") {
        return bpf_testkit::skipped("a project of `bpf new --lang rust`", &"no make, or emulated");
    }
    let project = Project::new("guard", &[]);
    if let Err(missing) = project.builds() {
        return bpf_testkit::skipped("a project of `bpf new --lang rust`", &missing);
    }
    let (passed, text) = project.make();
    assert!(passed && text.contains("guard: accepted") && text.contains("2 passed; 0 failed"), "{text}");
    // Otherwise the committed object is another: the one that this test has just made is right.
    let bytes = |path: PathBuf| std::fs::read(path).unwrap();
    let kept = root().join("crates/cli/tests/objects/guard_rust.o");
    assert_eq!(bytes(project.0.join("target/guard.o")).len(), bytes(kept).len());

    let readme = read(project.0.join("README.md"));
    let mut messages = readme.split("```text\n").skip(1).map(|block| block.split_once("\n```").unwrap().0);
    let mut next = || messages.next().unwrap();
    let mistake = |file: &str, from: &str, to: &str, message: &str, place: &str| {
        let path = project.0.join(file);
        let good = read(&path);
        assert_ne!(good.replace(from, to), good, "{from}");
        std::fs::write(&path, good.replace(from, to)).unwrap();
        let (passed, text) = project.make();
        assert!(!passed && text.contains(message) && text.contains(place), "{message}, {place}: {text}");
        std::fs::write(&path, good).unwrap();
    };
    let entry = "let Some(count) = SEEN.get_or_insert(&request.client, &0) else { return REFUSE };";
    mistake(
        "src/lib.rs",
        entry,
        &entry.replace("Some(count)", "count").replace(" else { return REFUSE }", ""),
        next(),
        "src/lib.rs:25",
    );
    mistake("src/lib.rs", "request.cost = price", "request.client = price", next(), "src/lib.rs:22: request.client");
    let first = "request.path.array(0).unwrap() == *b\"/\"";
    mistake("src/lib.rs", "request.path.starts_with(b\"/\")", first, next(), "line 10: run 1");
    let (passed, text) = project.make();
    assert!(passed, "mended: {text}");
    let tests = project.0.join("guard_test.toml").display().to_string();
    let covered = prints(0, &["test", &tests, "--coverage", "--fuzz", "60", "--fuzz-inputs", "300"]);
    assert!(covered.contains("3 passed, 0 failed") && covered.contains("src/lib.rs"), "{covered}");
    let seen = Folder::new("rust-seen");
    super::observe::a_project_is_seen(&seen, &project.0, "target/guard.o", "src/lib.rs:");
    prints_a_line(&project);

    // In the service's next version a field has moved; the plug-in is not compiled anew.
    let mut host: serde_json::Value = serde_json::from_str(&read(project.0.join("host.json"))).unwrap();
    let fields = host["context"]["fields"].as_array_mut().unwrap();
    fields.swap(0, 1);
    fields[1]["writable"] = true.into();
    let moved = project.0.join("moved.json");
    std::fs::write(&moved, host.to_string()).unwrap();
    let object = project.0.join("target/guard.o");
    let refused = prints(1, &["verify", "--host", moved.to_str().unwrap(), object.to_str().unwrap()]);
    assert!(refused.contains(next()), "{refused}");
    // Compiled anew it is accepted.
    std::fs::rename(&moved, project.0.join("host.json")).unwrap();
    let (passed, text) = project.make();
    assert!(passed && text.contains("header --rust"), "upgraded: {text}");
    mistake("guard_test.toml", "verdict = 0, calls", "verdict = 1, calls", next(), "line 10: run 1");
    let told = "    say::mock(move |text| tell.send(text.to_vec()).unwrap());\n";
    mistake("tests/native.rs", told, "    drop::<mpsc::Sender<Vec<u8>>>(tell);\n", next(), "src/lib.rs:28");
    assert_eq!(messages.next(), None, "a message that no mistake here shows");

    let host = root().join("examples/limit_host.json");
    let other = Project::new("other", &["--host", host.to_str().unwrap()]);
    other.builds().unwrap();
    let (passed, text) = other.make();
    assert!(passed && text.contains("1 passed, 0 failed"), "{text}");
}

/// `printk!` in the project: the line that the host prints.
fn prints_a_line(project: &Project) {
    let path = project.0.join("src/lib.rs");
    let good = read(&path);
    let first = "if request.path";
    let line = "bpf_guest::printk!(\"<6>client %u, %d of %s\", request.client, -3i32, c\"all\");\n    ";
    let printing = good.replacen(first, &format!("{line}{first}"), 1);
    assert_ne!(printing, good);
    std::fs::write(&path, printing).unwrap();
    let built = project.command(env!("CARGO_BIN_EXE_bpf")).arg("build").output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let (object, host) = (project.0.join("target/guard.o"), project.0.join("host.json"));
    let args = ["run", object.to_str().unwrap(), "--host", host.to_str().unwrap(), "--field", "client=7"];
    let ran = super::bpf(&args);
    let shown = String::from_utf8([ran.stdout, ran.stderr].concat()).unwrap();
    assert!(ran.status.success() && shown.contains("client 7, -3 of all"), "{shown}");
    std::fs::write(&path, good).unwrap();
    let built = project.command(env!("CARGO_BIN_EXE_bpf")).arg("build").output().unwrap();
    assert!(built.status.success());
}
