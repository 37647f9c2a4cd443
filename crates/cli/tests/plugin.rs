//! Plug-ins outside their service: `bpf header`, `bpf verify --host` and `bpf test`, with the tutorial's plug-in, whose
//! service wrote `examples/limit_host.json`.

use std::path::{Path, PathBuf};
use std::process::Output;

#[path = "plugin/mutated.rs"]
mod mutated;
#[path = "plugin/observe.rs"]
mod observe;
#[path = "plugin/rust.rs"]
mod rust;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn bpf(args: &[&str]) -> Output {
    let mut command = bpf_testkit::command(env!("CARGO_BIN_EXE_bpf"));
    command.args(args).current_dir(root()).env("RUST_BACKTRACE", "0").env_remove("CLICOLOR_FORCE");
    command.output().unwrap()
}

/// Standard output of a command with this exit status.
fn prints(status: i32, args: &[&str]) -> String {
    let output = bpf(args);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The message of a command that fails.
fn fails(args: &[&str]) -> String {
    let output = bpf(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

/// A folder for one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("bpf-plugin-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for file in ["limit.o", "limit_host.json"] {
            std::fs::copy(root().join("examples").join(file), folder.join(file)).unwrap();
        }
        Folder(folder)
    }

    /// The path of a file in it.
    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Writes a file, and returns its path.
    fn file(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.join(name), text).unwrap();
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_header_is_made_from_the_host() {
    let header = prints(0, &["header", "examples/limit_host.json"]);
    let context = std::fs::read_to_string(root().join("examples/limit_request.h")).unwrap();
    assert!(header.contains(&context), "{header}");
    assert!(header.contains("extern void say(const void *, __u64) __ksym;"), "{header}");
}

#[test]
fn a_plug_in_is_verified_as_in_its_service() {
    let verified = prints(0, &["verify", "--host", "examples/limit_host.json", "examples/limit.o"]);
    assert!(verified.contains("limit: accepted") && verified.contains("home: accepted"), "{verified}");
    // A host without the function, and one whose context has another field there.
    let folder = Folder::new("verify");
    let host = std::fs::read_to_string(root().join("examples/limit_host.json")).unwrap();
    let silent = folder.file("silent.json", &host.replace("\"say\"", "\"tell\""));
    let refused = prints(1, &["verify", "--host", &silent, "examples/limit.o"]);
    assert!(refused.contains("host function `say` is not registered"), "{refused}");
    let signed = host.replacen("\"int\": \"u32\"", "\"int\": \"i32\"", 1);
    let signed = folder.file("signed.json", &signed);
    let other = prints(0, &["verify", "--host", &signed, "examples/limit.o"]);
    assert!(other.contains("accepted"), "a field that CO-RE finds is adapted: {other}");
    let number = host.replace("\"bytes\": {\n            \"writable\": false,\n            \"null\": false,\n            \"shared\": true\n          }", "\"int\": \"u64\"");
    assert_ne!(number, host);
    let number = folder.file("number.json", &number);
    let refused = prints(1, &["verify", "--host", &number, "examples/limit.o"]);
    assert!(refused.contains("the host's function is `void say(__u64)`") && refused.contains("limit.c:"), "{refused}");
}

/// A plug-in whose maps the service has no room for is refused.
#[test]
fn the_limits_of_maps_are_the_services() {
    let folder = Folder::new("maps");
    let host = std::fs::read_to_string(root().join("examples/limit_host.json")).unwrap();
    let small = folder.file("small.json", &host.replace("\"object_memory\": 4294967296", "\"object_memory\": 65536"));
    let refused = prints(1, &["verify", "--host", &small, "examples/limit.o"]);
    assert!(refused.contains("limit: refused") && refused.contains("the limit is 65536"), "{refused}");
}

/// The host file of the limiter's service with these maps, of which the object has `seen`.
fn offering(maps: &str) -> String {
    let host = std::fs::read_to_string(root().join("examples/limit_host.json")).unwrap();
    assert!(host.contains("\"maps\": []"));
    host.replace("\"maps\": []", &format!("\"maps\": [{maps}]"))
}

/// The service hands over a map: an object that defines it otherwise is refused by every command as by the service.
#[test]
fn maps_that_the_host_offers_are_compared() {
    let folder = Folder::new("offered");
    let seen = |value_size: u32| {
        format!(
            r#"{{"name": "seen", "type": "lru_hash", "key_size": 4, "value_size": {value_size}, "max_entries": 4096}}"#
        )
    };
    let other = r#"{"name": "other", "type": "array", "key_size": 4, "value_size": 8, "max_entries": 1}"#;
    let fits = folder.file("fits.json", &offering(&format!("{}, {other}", seen(8))));
    let differs = folder.file("differs.json", &offering(&seen(4)));
    assert!(prints(0, &["verify", "--host", &fits, "examples/limit.o"]).contains("limit: accepted"));
    prints(0, &["test", "--host", &fits, "examples/limit_test.toml"]);
    let message = "map \"seen\"";
    let refused = prints(1, &["verify", "--host", &differs, "examples/limit.o"]);
    assert!(refused.contains("limit: refused"), "{refused}");
    assert!(refused.contains(message) && refused.contains("value_size"), "{refused}");
    let failed = prints(1, &["test", "--host", &differs, "examples/limit_test.toml"]);
    assert!(failed.contains(message), "{failed}");
    let proven = folder.path("proven.o");
    for args in [
        &["run", "examples/limit.o", "--program", "limit", "--host", &differs][..],
        &["prove", "examples/limit.o", "--host", &differs, "--output", &proven],
    ] {
        let error = fails(args);
        assert!(error.contains(message) && error.contains("value_size"), "{error}");
    }
    for (maps, part) in [
        (format!("{}, {}", seen(8), seen(8)), "maps[1].name: there are two maps `seen`"),
        (seen(8).replace("lru_hash", "hsah"), "maps[0].type: `hsah` is no type of maps here"),
        (seen(8).replace("seen", "se en"), "maps[0].name: "),
        (seen(0), "maps[0]: "),
        (seen(8).replace("\"key_size\"", "\"key\""), "unknown field `key`"),
    ] {
        let path = folder.file("wrong.json", &offering(&maps));
        let error = fails(&["verify", "--host", &path, "examples/limit.o"]);
        assert!(error.contains(part), "{error}");
    }
}

/// Proofs for a described host hold in a host that is equal, and in no other.
#[test]
fn proofs_are_made_for_a_host() {
    let folder = Folder::new("proven");
    let proven = folder.path("proven.o");
    let host = "examples/limit_host.json";
    prints(0, &["prove", "examples/limit.o", "--host", host, "--output", &proven]);
    let verified = prints(0, &["verify", "--host", host, "--proof", &proven]);
    assert!(verified.contains("limit: accepted"), "{verified}");
    let text = std::fs::read_to_string(root().join(host)).unwrap();
    let other = folder.file("other.json", &text.replace("\"name\": \"client\"", "\"name\": \"customer\""));
    assert!(prints(1, &["verify", "--host", &other, "--proof", &proven]).contains("refused"));
}

/// The settings under which the service loads are those of the commands.
#[test]
fn settings_of_the_hosts_loads_are_the_commands() {
    let folder = Folder::new("features");
    let host = std::fs::read_to_string(root().join("examples/limit_host.json")).unwrap();
    let sleepable = folder.file("sleepable.json", &host.replace("\"sleepable\": false", "\"sleepable\": true"));
    // The limiter makes a tail call, which no sleepable program does.
    let refused = prints(1, &["verify", "--host", &sleepable, "examples/limit.o"]);
    assert!(refused.contains("limit: refused"), "{refused}");
    let wrong = folder.file("wrong.json", &host.replace("\"hybrid\": false", "\"hybrd\": false"));
    assert!(fails(&["verify", "--host", &wrong, "examples/limit.o"]).contains("unknown field `hybrd`"));
}

/// Functions that a linker cannot have: the message has their place.
#[test]
fn impossible_functions_are_told_where() {
    let folder = Folder::new("functions");
    let host = std::fs::read_to_string(root().join("examples/limit_host.json")).unwrap();
    assert!(host.contains("\"id\": null"));
    let path = folder.file("wrong.json", &host.replace("\"id\": null", "\"id\": 5"));
    for args in
        [&["verify", "--host", &path, "examples/limit.o"][..], &["test", "--host", &path, "examples/limit_test.toml"]]
    {
        let message = fails(args);
        assert!(message.contains("the host's functions[0]: helper id 5 is already"), "{message}");
    }
}

/// Host files of any content: the message has the file, and the line or the place.
#[test]
fn wrong_hosts_are_told_where() {
    let folder = Folder::new("hosts");
    let host = std::fs::read_to_string(root().join("examples/limit_host.json")).unwrap();
    for (text, part) in [
        (String::new(), "line 1 column 0"),
        ("{".to_owned(), "line 1 column 1"),
        ("[".repeat(10_000), "line 1"),
        (host.replace("\"version\": 2", "\"version\": 9"), "version: 9 is not a version"),
        (host.replace("\"version\": 2", "\"version\": 1, \"news\": []"), "version: 1 is not a version"),
        (host.replace("\"client\"", "\"cli ent\""), "context.fields[0].name: "),
        (host.replace("\"client\"", "\"cost\""), "context.fields[1].name: there are two fields `cost`"),
        (host.replace("\"client\"", "7"), "line 7 column"),
        (host.replace("\"steps\"", "\"stpes\""), "unknown field `stpes`"),
    ] {
        let path = folder.file("wrong.json", &text);
        for args in [&["header", &path][..], &["verify", "--host", &path, "examples/limit.o"]] {
            let message = fails(args);
            assert!(message.contains("wrong.json") && message.contains(part), "{part}: {message}");
        }
    }
}

#[test]
fn cases_pass() {
    for engine in ["jit", "interp"] {
        let text = prints(0, &["test", "examples/limit_test.toml", "--engine", engine]);
        assert!(text.ends_with("4 passed, 0 failed\n"), "{text}");
        assert!(
            text.starts_with(
                "pass  the request after the third is refused, and told  examples/limit_test.toml:6, 4 runs\n"
            ),
            "{text}"
        );
    }
}

/// One case executes a part of the lines, all cases more; JSON and lcov's file say the same as the text.
#[test]
fn coverage_is_told_by_source_line() {
    let folder = Folder::new("coverage");
    let trace = folder.0.join("cases.info").display().to_string();
    let args = ["test", "examples/limit_test.toml", "--coverage", "--lcov", &trace];
    let executed = |shown: &str| -> Vec<String> {
        let (_, lines) = shown.split_once("lines executed").expect("a file's head");
        lines
            .lines()
            .skip(1)
            .filter(|line| !line.contains("#####") && line.starts_with("    "))
            .map(str::to_owned)
            .collect()
    };
    let all = prints(0, &args);
    let one = prints(0, &[&args[..], &["--only", "apart"]].concat());
    assert!(all.contains("limit.c") && one.contains("#####"), "{one}");
    assert!(executed(&one).len() < executed(&all).len() && !executed(&one).is_empty(), "{one}\n{all}");
    let one: serde_json::Value =
        serde_json::from_str(&prints(0, &[&args[..], &["--only", "apart", "--json"]].concat())).unwrap();
    let file =
        one["coverage"].as_array().unwrap().iter().find(|file| file["file"].as_str().unwrap().ends_with("limit.c"));
    let (file, lcov) = (file.unwrap(), std::fs::read_to_string(&trace).unwrap());
    for line in file["lines"].as_array().unwrap() {
        assert!(lcov.contains(&format!("\nDA:{},{}\n", line["line"], line["runs"])), "{line}");
    }
    assert!(lcov.contains(&format!("\nLH:{}\n", file["executed"])) && lcov.contains(",limit\n"), "{lcov}");
    // Results are the same as without; a file that cannot be written is an error.
    let message = fails(&["test", "examples/limit_test.toml", "--lcov", "/nowhere/cases.info"]);
    assert!(message.contains("cannot write /nowhere/cases.info"), "{message}");
}

/// The search finds a verdict that needs four requests of one client, and makes the input as small as that.
#[test]
fn fuzzing_finds_what_no_case_allows() {
    let folder = Folder::new("fuzz");
    let cases = |allowed: &str| {
        format!(
            "object = \"limit.o\"\nhost = \"limit_host.json\"\nprogram = \"limit\"\n\
             [fuzz]\nverdicts = {allowed}\n[[case]]\nname = \"one\"\n\
             run = [{{ context = {{ client = 7, path = \"/index.html\" }}, verdict = 0 }}]\n"
        )
    };
    let path = folder.file("all.toml", &cases("[0, 1]"));
    let search = |path: &str, status| prints(status, &["test", path, "--fuzz", "1", "--fuzz-inputs", "1200"]);
    let found = search(&path, 0);
    assert!(found.contains("pass  --fuzz of `limit`") && found.contains("1200 runs"), "{found}");
    let path = folder.file("some.toml", &cases("[0]"));
    let found = search(&path, 1);
    assert_eq!(found, search(&path, 1), "equal seeds");
    let (_, case) = found.split_once("[[case]]").expect("a case to add");
    assert!(case.contains("name = \"the verdict 1 is none of [0]\"") && !case.contains("path"), "{case}");
    assert_eq!(case.matches("context").count(), 4, "{case}");
    // The case is one that the test file may have.
    let (case, _) = case.rsplit_once('\n').unwrap().0.rsplit_once('\n').unwrap_or((case, ""));
    let added = folder.file("added.toml", &format!("{}\n[[case]]{case}", cases("[0]")));
    assert!(prints(0, &["test", &added]).contains("2 passed"));
    let message = fails(&["test", &folder.file("wrong.toml", &cases("[\"many\"]")), "--fuzz", "1"]);
    assert!(message.contains("verdicts") && message.contains("line 5"), "{message}");
}

#[test]
fn cases_fail_where_the_plug_in_does_otherwise() {
    let folder = Folder::new("fail");
    let path = folder.file(
        "limit_test.toml",
        r#"object = "limit.o"
host = "limit_host.json"
program = "limit"

[[case]]
name = "verdict & fields"
run = [
    { context = { client = 7 }, verdict = 1 },
    { context = { client = 7 }, verdict = 0, after = { client = 8 } },
]

[[case]]
name = "calls"
program = "home"
run = [{ verdict = 0, calls = [["say", "a house page"]] }]

[[case]]
name = "maps"
expect.maps.seen = { 7 = 2, 8 = false, 9 = 1 }
expect.records.events = ["00"]
run = [{ context = { client = 7 } }, { context = { client = 8 } }]

[[case]]
name = "errors"
program = "home"
functions.say = ["the log is full"]
run = [{ verdict = 0 }, { error = "the disk is full" }]

[[case]]
name = "no error"
run = [{ error = "anything" }]
"#,
    );
    let text = prints(1, &["test", &path]);
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("      ")).map(str::trim).collect();
    let host = "host function failed at instruction";
    assert_eq!(
        lines[..6],
        [
            "line 8: run 1: the verdict is 0, not 1",
            "line 9: run 2: `client` is 7, not 8",
            r#"line 15: run 1: the calls are say("a home page"), not say("a house page")"#,
            "`seen`, entry 7 is 1, not 2",
            "`seen` has an entry 8: 1",
            "`seen`, entry 9 is missing, not 1",
        ]
    );
    assert_eq!(lines[6], r#"the records of `events` are [] (0), not ["00"]"#);
    assert!(
        lines[7].starts_with(&format!("line 27: run 1: {host}")) && lines[7].ends_with("the log is full"),
        "{text}"
    );
    assert!(lines[8].starts_with(&format!("line 27: run 2: the error is `{host}")), "{text}");
    assert_eq!(lines[9], "line 31: run 1: the verdict is 0, where an error was expected: anything");
    assert!(text.ends_with("0 passed, 5 failed\n"), "{text}");

    let report: serde_json::Value = serde_json::from_str(&prints(1, &["test", &path, "--json"])).unwrap();
    assert_eq!((&report["passed"], &report["failed"]), (&0.into(), &5.into()));
    assert_eq!(report["cases"][0]["failures"][0], "line 8: run 1: the verdict is 0, not 1");
    let xml = folder.0.join("results.xml");
    prints(1, &["test", &path, "--junit", xml.to_str().unwrap(), "--only", "verdict"]);
    let xml = std::fs::read_to_string(xml).unwrap();
    assert!(xml.contains(r#"tests="1" failures="1""#) && xml.contains(r#"name="verdict &amp; fields""#), "{xml}");
}

/// Mocks with a script: expected arguments and a result for each call, and bytes that a call writes.
#[test]
fn calls_follow_their_script() {
    let folder = Folder::new("script");
    let path = folder.file(
        "limit_test.jsonl",
        r#"{ "object": "limit.o", "host": "limit_host.json", "program": "home" }

{ "name": "as written", "functions": { "say": [{ "args": ["a home page"] }] }, "run": [{ "verdict": 0 }] }
{ "name": "other words", "functions": { "say": [{ "args": ["a \n house\u007f\u0001"], "error": "full" }] }, "run": [{}] }
{ "name": "too many", "functions": { "say": [{ "args": ["a home page"] }] }, "run": [{}, {}] }
{ "name": "too few", "functions": { "say": [{}, { "args": ["a home page"] }] }, "run": [{}] }
{ "name": "a failure", "functions": { "say": [{ "error": "full" }] }, "run": [{ "error": "full" }] }
"#,
    );
    let text = prints(1, &["test", &path]);
    for part in [
        "pass  as written  ",
        "limit_test.jsonl:3, 1 runs",
        "line 4: run 1: host function failed",
        "call 1 is say(\"a home page\"), not say(",
        "line 5: run 2: host function failed",
        "call 2, say(\"a home page\"), where the script has 1 calls",
        "call 2 of the script of `say` is missing: say(\"a home page\")",
        "2 passed, 3 failed",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Bytes that a call writes.
    std::fs::copy(root().join("crates/cli/tests/objects/fills.o"), folder.0.join("fills.o")).unwrap();
    let mut host: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.path("limit_host.json")).unwrap()).unwrap();
    host["functions"] = serde_json::json!([{
        "name": "fill", "id": null, "result": { "int": "u32" },
        "params": [{ "bytes": { "writable": true, "null": false, "shared": false } }],
    }]);
    folder.file("fills_host.json", &host.to_string());
    let path = folder.file(
        "fills_test.toml",
        r#"object = "fills.o"
host = "fills_host.json"
[[case]]
name = "bytes are written"
functions.fill = [{ args = [[0, 0, 0, 0]], result = 100, writes = [[1, 2]] }, { writes = ["12345"] }]
run = [{ verdict = 103 }, { error = "`fill` writes 5 bytes to 4" }]
"#,
    );
    assert!(prints(0, &["test", &path]).ends_with("1 passed, 0 failed\n"));
    let head = "{\"object\": \"limit.o\", \"host\": \"limit_host.json\", \"program\": \"home\"}\n";
    let case =
        |say: &str| format!("{head}\n{{\"name\": \"a\", \"functions\": {{\"say\": [{say}]}}, \"run\": [{{}}]}}\n");
    for (text, parts) in [
        (String::new(), &["the first line has `object`"][..]),
        ("{\"objet\": 1}".to_owned(), &["line 1", "unknown field `objet`"]),
        (format!("{head}{{\"name\": 7}}"), &["line 2", "invalid type: integer"]),
        (format!("{head}\n{{\"name\": null}}"), &["line 3"]),
        (format!("{head}{{"), &["line 2"]),
        (case("{\"args\": [7]}"), &["line 3", "an argument of `say`"]),
        (case("{\"args\": []}"), &["line 3", "`say` has 1 parameters"]),
        (case("{\"args\": 7}"), &["line 3", "`args` is an array"]),
        (case("{\"result\": 7}"), &["line 3", "returns no number"]),
        (case("{\"error\": 7}"), &["line 3", "one `error`, a text"]),
        (case("{\"arg\": []}"), &["line 3", "`arg` is nothing that a call has"]),
        (case("{\"writes\": [\"x\"]}"), &["line 3", "does not write this parameter"]),
        (case("{\"writes\": []}"), &["line 3", "`writes` has 0 elements, for 1 parameters"]),
    ] {
        let message = fails(&["test", &folder.file("wrong.jsonl", &text)]);
        assert!(parts.iter().all(|part| message.contains(part)), "{text}{parts:?}: {message}");
    }
}

/// Clocks and random numbers are the case's, and each case begins anew.
#[test]
fn time_and_random_numbers_are_the_cases() {
    let folder = Folder::new("time");
    let object = root().join("crates/cli/tests/objects/clock.o");
    std::fs::copy(object, folder.0.join("clock.o")).unwrap();
    let path = folder.file(
        "clock_test.toml",
        r#"object = "clock.o"
host = "limit_host.json"
program = "clock"

[[case]]
name = "in turn"
time = 5_000
random = [7, 9]
run = [
    { verdict = 5_007 },
    { verdict = 5_009 },
    { time = 60_000_000_000, verdict = -129542137 },
    { verdict = -129542135 },
]

[[case]]
name = "of another case"
run = [{ verdict = 0 }]

[[case]]
name = "coarse"
program = "ticks"
time = 7_500_000
run = [{ verdict = 7 }]
"#,
    );
    let text = prints(0, &["test", &path]);
    assert!(text.ends_with("3 passed, 0 failed\n"), "{text}");
}

/// Test files of any content: unknown names, and values of the wrong type, are errors with their line.
#[test]
fn wrong_test_files_are_told_where() {
    let folder = Folder::new("wrong");
    let head = "object = \"limit.o\"\nhost = \"limit_host.json\"\nprogram = \"limit\"\n";
    for (body, parts) in [
        ("[[case]]\nname = 7", &["line 5", "invalid type: integer"][..]),
        ("[[case]]\nname = \"a\"\nverdict = 1", &["line 6", "unknown field `verdict`"]),
        ("[[case]\n", &["line 4"]),
        ("", &["there is no case"]),
        ("[[case]]\nname = \"a\"", &["line 4: case `a`", "the case has no runs: add `run = [{ … }]`"]),
        ("[[case]]\nname = \"a\"\nprogram = \"b\"\nrun = [{}]", &["line 4: case `a`", "`b`", "limit, home"]),
        (
            "[[case]]\nname = \"a\"\nrun = [{ context = { clint = 1 } }]",
            &["line 6", "no field `clint`", "client, cost, path"],
        ),
        ("[[case]]\nname = \"a\"\nrun = [{ context = { client = -1 } }]", &["line 6", "`client`", "-1 is no __u32"]),
        ("[[case]]\nname = \"a\"\nrun = [{ context = { client = \"x\" } }]", &["line 6", "\"x\" is no number"]),
        ("[[case]]\nname = \"a\"\nrun = [{ context = { path = 7 } }]", &["line 6", "`path`", "7 is neither text"]),
        ("[[case]]\nname = \"a\"\nrun = [{ context = { path = { hex = \"0g\" } } }]", &["line 6", "not hex"]),
        ("[[case]]\nname = \"a\"\nrun = [{ after = { coast = 1 } }]", &["line 6", "no field `coast`"]),
        ("[[case]]\nname = \"a\"\nrun = [{ calls = [[\"tell\"]] }]", &["line 6", "no function `tell`"]),
        ("[[case]]\nname = \"a\"\nrun = [{ calls = [[\"say\"]] }]", &["line 6", "`say` has 1 parameters"]),
        ("[[case]]\nname = \"a\"\nrun = [{ calls = [[7]] }]", &["line 6", "an expected call is"]),
        ("[[case]]\nname = \"a\"\nfunctions.tell = []\nrun = [{}]", &["line 4", "no function `tell`", "it has: say"]),
        ("[[case]]\nname = \"a\"\nfunctions.say = [7]\nrun = [{}]", &["line 4", "`say`", "returns no number"]),
        ("[[case]]\nname = \"a\"\nmaps.sene.1 = 1\nrun = [{}]", &["line 4", "no map `sene`"]),
        ("[[case]]\nname = \"a\"\nmaps.seen.x = 1\nrun = [{}]", &["line 4", "map `seen`, key x", "not a number"]),
        ("[[case]]\nname = \"a\"\nexpect.maps.sene.1 = 1\nrun = [{}]", &["line 4", "`sene`"]),
        ("[[case]]\nname = \"a\"\nexpect.records.seen = []\nrun = [{}]", &["line 4", "no ring `seen`"]),
    ] {
        let path = folder.file("wrong.toml", &format!("{head}{body}"));
        let message = fails(&["test", &path]);
        for part in parts {
            assert!(message.contains(part), "{body}\n{part}: {message}");
        }
        assert!(parts[0] == "there is no case" || message.contains("wrong.toml"), "{message}");
    }
    let path = folder.file("no_host.toml", "object = \"limit.o\"\n");
    assert!(fails(&["test", &path]).contains("it names no host"));
    let path = folder.file("binary.toml", "\u{0}\u{1}");
    assert!(fails(&["test", &path]).contains("binary.toml"));
}

/// A plug-in that calls the host for ever ends with a message, and not with the memory of the machine.
#[test]
fn calls_are_kept_up_to_a_limit() {
    let folder = Folder::new("flood");
    std::fs::copy(root().join("crates/cli/tests/objects/flood.o"), folder.0.join("flood.o")).unwrap();
    let host = std::fs::read_to_string(root().join("examples/limit_host.json")).unwrap();
    assert!(host.contains("\"budget\": 100000"));
    folder.file("limit_host.json", &host.replace("\"budget\": 100000", "\"budget\": null"));
    let head = "object = \"flood.o\"\nhost = \"limit_host.json\"\nprogram = \"flood\"\n";
    let path = folder
        .file("t.toml", &format!("{head}[[case]]\nname = \"a\"\nrun = [{{ error = \"more than 65536 calls\" }}]\n"));
    assert!(prints(0, &["test", &path]).ends_with("1 passed, 0 failed\n"));
    let run = "{ error = \"more than 65536 calls\", calls = [] }";
    let path = folder.file("none.toml", &format!("{head}[[case]]\nname = \"a\"\nrun = [{run}]\n"));
    let shown = prints(1, &["test", &path]);
    assert!(shown.contains("65520 more, not none") && shown.len() < 20_000, "{}", shown.len());
}

/// A program that waits is run, with functions that are ready at once.
#[test]
fn sleepable_programs_are_tested() {
    let folder = Folder::new("waits");
    std::fs::copy(root().join("crates/cli/tests/objects/flood.o"), folder.0.join("flood.o")).unwrap();
    let host = std::fs::read_to_string(root().join("examples/limit_host.json")).unwrap();
    assert!(host.contains("\"sleeps\": false"));
    folder.file("limit_host.json", &host.replace("\"sleeps\": false", "\"sleeps\": true"));
    let head = "object = \"flood.o\"\nhost = \"limit_host.json\"\nprogram = \"waits\"\n";
    let path = folder.file(
        "t.toml",
        &format!("{head}[[case]]\nname = \"a\"\nrun = [{{ verdict = 3, calls = [[\"say\", \"x\"]] }}]\n"),
    );
    for engine in ["jit", "interp"] {
        let text = prints(0, &["test", &path, "--engine", engine]);
        assert!(text.ends_with("1 passed, 0 failed\n"), "{text}");
    }
}

/// A plug-in that the host refuses fails its cases, with the verifier's message.
#[test]
fn a_plug_in_runs_on_a_context_of_its_host() {
    fn run<'a>(args: &[&'a str]) -> Vec<&'a str> {
        [&["run", "examples/limit.o", "--host", "examples/limit_host.json"], args].concat()
    }
    let limit = run(&["--program", "limit", "--field", "client=7", "--map", "seen=7:3", "--repeat", "2", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&prints(0, &limit)).unwrap();
    assert_eq!((&report["runs"], &report["returned"]["1"]), (&2.into(), &2.into()), "{report}");
    assert_eq!(report["context"], serde_json::json!({ "client": 7, "cost": 0, "path": "" }));
    let home = run(&["--program", "home", "--field", "path=/~ada"]);
    let text = prints(0, &home);
    let context = "context:\n  client = 0\n  cost = 10\n  path = \"/~ada\"\ncalls:\n  say(\"a home page\")\n";
    assert!(text.contains(context), "{text}");
    for (arg, value, part) in [
        ("--field", "clint=7", "the context has no field `clint`; its fields: client, cost, path"),
        ("--field", "client=x", "the context's field `client`: \"x\" is no number"),
        ("--result", "says=1", "the host has no function `says`"),
        ("--result", "say=full", "host function failed at instruction"),
        ("--result", "say", "expected NAME=VALUE"),
        ("--data", "hex:00", "cannot be used with"),
        ("--jitdump", ".", "cannot be used with"),
    ] {
        let args = [&home[..], &[arg, value]].concat();
        let output = bpf(&args);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && message.contains(part), "{args:?}: {message}");
    }
    for (fields, part) in [
        (&["--field", "client=1", "--field", "client=2"][..], "--field client is given twice"),
        (&["--field", "path=7"], "the context's field `path`: 7 is neither text"),
    ] {
        let args = run(&[&["--program", "home"], fields].concat());
        assert!(fails(&args).contains(part), "{args:?}");
    }
}

#[test]
fn a_refused_plug_in_fails_its_cases() {
    let folder = Folder::new("refused");
    let host = std::fs::read_to_string(root().join("examples/limit_host.json")).unwrap();
    folder.file("limit_host.json", &host.replace("\"say\"", "\"tell\""));
    let path = folder.file(
        "t.toml",
        "object = \"limit.o\"\nhost = \"limit_host.json\"\n[[case]]\nname = \"a\"\nprogram = \"home\"\nrun = [{}]\n",
    );
    let text = prints(1, &["test", &path]);
    assert!(text.contains("host function `say` is not registered"), "{text}");
}

/// The cases of docs/book/how-to/outside.md are right.
#[test]
fn the_documented_cases_pass() {
    let text = std::fs::read_to_string(root().join("docs/book/how-to/outside.md")).unwrap();
    let (_, block) = text.split_once("```toml\n").unwrap();
    let folder = Folder::new("documented");
    let path = folder.file("limit_test.toml", block.split_once("```").unwrap().0);
    assert!(prints(0, &["test", &path]).ends_with("2 passed, 0 failed\n"));
}

/// The C compiler, if there is one that compiles for BPF with the headers of the kernel and of libbpf.
fn clang(folder: &Path) -> Option<&'static str> {
    let probe = folder.join("probe.c");
    std::fs::write(&probe, "#include <linux/bpf.h>\n#include <linux/types.h>\n#include <bpf/bpf_helpers.h>\n").unwrap();
    ["clang", "clang-22", "clang-19"].into_iter().find(|clang| {
        let mut command = std::process::Command::new(clang);
        command.args(["-target", "bpf", "-c", "probe.c", "-o", "probe.o"]).current_dir(folder);
        let multiarch = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
        command.arg(multiarch).output().is_ok_and(|output| output.status.success())
    })
}

/// The files of a new project, with the object that a compiler makes of them: no compiler is needed here.
#[test]
fn a_new_project_is_verified_tested_covered_and_fuzzed() {
    let folder = Folder::new("made");
    let mut command = bpf_testkit::command(env!("CARGO_BIN_EXE_bpf"));
    assert!(command.args(["new", "guard"]).current_dir(&folder.0).output().unwrap().status.success());
    let project = folder.0.join("guard");
    let path = |name: &str| project.join(name).to_str().unwrap().to_owned();
    let kept = root().join("crates/cli/tests/objects/guard");
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    assert_eq!(read(&project.join("guard.c")), read(&kept.join("guard.c")), "copy it, and run `cargo xtask objects`");
    let header = prints(0, &["header", &path("host.json")]);
    assert_eq!(header, read(&kept.join("host.h")), "copy it, and run `cargo xtask objects`");

    std::fs::copy(kept.with_extension("o"), project.join("guard.o")).unwrap();
    let verified = prints(0, &["verify", "--host", &path("host.json"), &path("guard.o")]);
    assert!(verified.contains("guard: accepted"), "{verified}");
    let run = ["run", &path("guard.o"), "--host", &path("host.json"), "--field", "client=7", "--map", "seen=7:3"];
    let text = prints(0, &run);
    assert!(text.contains("say(\"one too many\")"), "{text}");
    let tests = path("guard_test.toml");
    let tested = prints(0, &["test", &tests, "--coverage"]);
    assert!(tested.contains("2 passed, 0 failed") && tested.contains("guard.c"), "{tested}");
    let fuzzed = prints(0, &["test", &tests, "--fuzz", "60", "--fuzz-inputs", "300"]);
    assert!(fuzzed.contains("3 passed, 0 failed"), "{fuzzed}");
    observe::a_project_is_seen(&folder, &project, "guard.o", "guard.c:");
}

/// The example in C++ and in Zig, with the cases of the example in C.
#[test]
fn plug_ins_in_other_languages_pass() {
    let folder = Folder::new("languages");
    let objects = root().join("crates/cli/tests/objects");
    let templates = root().join("crates/cli/templates");
    std::fs::copy(templates.join("host.json"), folder.0.join("host.json")).unwrap();
    let cases = std::fs::read_to_string(templates.join("plugin_test.toml")).unwrap().replace("@NAME@", "guard");
    for (language, map) in [("cpp", "seen"), ("zig", "\"guard.seen\"")] {
        let object = format!("guard_{language}.o");
        std::fs::copy(objects.join(&object), folder.0.join(&object)).unwrap();
        let cases = cases.replace("@OBJECT@", &object).replace("maps.seen", &format!("maps.{map}"));
        let path = folder.file(&format!("{language}_test.toml"), &cases);
        let text = prints(0, &["test", &path, "--coverage"]);
        assert!(text.contains("2 passed, 0 failed") && text.contains(&format!("guard.{language}")), "{text}");
    }
    let page = std::fs::read_to_string(root().join("docs/book/how-to/languages.md")).unwrap();
    let source = std::fs::read_to_string(objects.join("guard_cpp/guard.cpp")).unwrap();
    let (_, block) = page.split_once("```cpp\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    assert!(block.lines().all(|line| source.contains(line)), "{block}");
}

/// In the service's next version a field has moved: the plug-in, which is not compiled anew, goes on working. In one
/// without a field the plug-in is refused where it uses the field.
fn changed_contexts(folder: &Folder) {
    let path = folder.0.join("guard/host.json");
    let kept = std::fs::read_to_string(&path).unwrap();
    let changed = |change: &dyn Fn(&mut Vec<serde_json::Value>)| {
        let mut host: serde_json::Value = serde_json::from_str(&kept).unwrap();
        change(host["context"]["fields"].as_array_mut().unwrap());
        std::fs::write(&path, host.to_string()).unwrap();
    };
    let (host, object) = (folder.path("guard/host.json"), folder.path("guard/guard.o"));
    changed(&|fields| fields.reverse());
    let accepted = prints(0, &["verify", "--host", &host, &object]);
    assert!(accepted.contains("guard: accepted"), "{accepted}");
    let tested = prints(0, &["test", &folder.path("guard/guard_test.toml")]);
    assert!(tested.contains("2 passed, 0 failed"), "{tested}");
    changed(&|fields| fields[1]["name"] = "charge".into());
    let refused = prints(1, &["verify", "--host", &host, &object]);
    assert!(
        refused.contains("guard.c:25: `request->cost = price(client);`") && refused.contains("`request::cost`"),
        "{refused}"
    );
    std::fs::write(&path, kept).unwrap();
}

/// A project as a stranger develops it: made, tested; refused, with the messages that its README has; mended.
#[test]
fn a_project_is_made_refused_and_mended() {
    let folder = Folder::new("new");
    let has_make = std::process::Command::new("make").arg("--version").output().is_ok();
    let Some(clang) = clang(&folder.0).filter(|_| has_make && cfg!(target_arch = "x86_64")) else {
        bpf_testkit::skipped(
            "a project of `bpf new`",
            &"no clang for BPF with libbpf's headers, or no make, or emulated",
        );
        return;
    };
    let new = |args: &[&str]| {
        let mut command = bpf_testkit::command(env!("CARGO_BIN_EXE_bpf"));
        command.arg("new").args(args).current_dir(&folder.0).env("RUST_BACKTRACE", "0").output().unwrap()
    };
    let make = |project: &str| {
        let mut command = std::process::Command::new("make");
        command.arg(format!("CLANG={clang}")).arg(format!("BPF={}", env!("CARGO_BIN_EXE_bpf")));
        let output = command.current_dir(folder.0.join(project)).env("LC_ALL", "C").output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    };
    assert!(new(&["guard"]).status.success());
    let (passed, text) = make("guard");
    assert!(passed && text.contains("guard: accepted") && text.contains("2 passed, 0 failed"), "{text}");

    let readme = std::fs::read_to_string(folder.0.join("guard/README.md")).unwrap();
    let mut messages = readme.split("```text\n").skip(1).map(|block| block.split_once("\n```").unwrap().0);
    // A mistake in a file: the message of the README, and the place.
    let mistake = |file: &str, from: &str, to: &str, message: &str, place: &str| {
        let path = folder.0.join("guard").join(file);
        let good = std::fs::read_to_string(&path).unwrap();
        assert_ne!(good.replace(from, to), good, "{from}");
        std::fs::write(&path, good.replace(from, to)).unwrap();
        let (passed, text) = make("guard");
        assert!(!passed && text.contains(message) && text.contains(place), "{message}, {place}: {text}");
        std::fs::write(&path, good).unwrap();
    };
    let mut next = || messages.next().unwrap();
    mistake("guard.c", "path + 1 <= request->path_end && ", "", next(), "guard.c:24: if (path[0] == '/')");
    let entry = "\tif (!count) {\n\t\tbpf_map_update_elem(&seen, &client, &one, BPF_ANY);\n\t\treturn ALLOW;\n\t}\n";
    mistake("guard.c", entry, "", next(), "guard.c:28");
    mistake("guard.c", "request->cost = price", "request->client = price", next(), "guard.c:25");
    let (passed, text) = make("guard");
    assert!(passed, "mended: {text}");
    let tests = folder.path("guard/guard_test.toml");
    let covered = prints(0, &["test", &tests, "--coverage", "--fuzz", "60", "--fuzz-inputs", "300"]);
    assert!(covered.contains("3 passed, 0 failed") && covered.contains("guard.c"), "{covered}");
    observe::a_project_is_seen(&folder, &folder.0.join("guard"), "guard.o", "guard.c:");

    changed_contexts(&folder);

    // The service's next version takes a wider number; the plug-in is not compiled anew.
    let host = std::fs::read_to_string(folder.0.join("guard/host.json")).unwrap();
    let at = host.find("\"price\"").unwrap();
    let wider = host[..at].to_owned() + &host[at..].replacen("\"int\": \"u32\"", "\"int\": \"u64\"", 1);
    let wider = folder.file("wider.json", &wider);
    let object = folder.0.join("guard/guard.o");
    let refused = prints(1, &["verify", "--host", &wider, object.to_str().unwrap()]);
    assert!(refused.contains(next()) && refused.contains("guard.c:25"), "{refused}");
    // Compiled anew it is accepted.
    std::fs::copy(&wider, folder.0.join("guard/host.json")).unwrap();
    let (passed, text) = make("guard");
    assert!(passed, "upgraded: {text}");
    mistake("guard_test.toml", "verdict = 0, calls", "verdict = 1, calls", next(), "line 10: run 1");
    assert_eq!(messages.next(), None, "a message that no mistake here shows");

    // The project that the README of the gateway leads to.
    let readme = std::fs::read_to_string(root().join("examples/gateway/README.md")).unwrap();
    let block = |start: &str| {
        let (_, block) = readme.split_once(start).unwrap();
        block.split_once("```").unwrap().0.to_owned()
    };
    let host = root().join("examples/gateway/host.json");
    assert!(new(&["on_request", "--host", host.to_str().unwrap()]).status.success());
    let (passed, text) = make("on_request");
    assert!(passed && text.contains("1 passed, 0 failed"), "{text}");
    let put = |file: &str, from: &str, to: Option<&str>, block: &str| {
        let path = folder.0.join("on_request").join(file);
        let old = std::fs::read_to_string(&path).unwrap();
        let (head, rest) = old.split_once(from).unwrap();
        let tail = to.map_or("", |to| &rest[rest.find(to).unwrap()..]);
        std::fs::write(&path, format!("{head}{block}{tail}")).unwrap();
    };
    put(
        "on_request.c",
        "SEC(\"request",
        Some("char LICENSE"),
        &block("answers 404 to paths outside of `/api`:\n\n```c\n"),
    );
    let (passed, text) = make("on_request");
    assert!(!passed && text.contains("FAIL"), "{text}");
    put("on_request_test.toml", "[[case]]", None, &block("```toml\n"));
    let (passed, text) = make("on_request");
    assert!(passed && text.contains("1 passed, 0 failed"), "{text}");

    // For another host, and where something of that name is already.
    let host = root().join("examples/limit_host.json");
    assert!(new(&["other", "--host", host.to_str().unwrap()]).status.success());
    let (passed, text) = make("other");
    assert!(passed && text.contains("1 passed, 0 failed"), "{text}");
    for (args, part) in [
        (&["guard"][..], "cannot make the folder guard"),
        (&["a-b"], "is no name in C"),
        (&["../x"], "is no name in C"),
        (&["int"], "choose another"),
        (&["seen"], "choose another"),
        (&["price"], "choose another"),
        (&["say", "--host", host.to_str().unwrap()], "choose another"),
        (&["fresh", "--host", "none.json"], "none.json"),
    ] {
        let output = new(args);
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && message.contains(part), "{args:?}: {message}");
    }
    assert!(!folder.0.join("fresh").exists());
}
