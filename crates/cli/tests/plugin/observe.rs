//! `bpf debug` and `bpf replay`, with sessions whose output is fixed.

use super::{Folder, fails, prints, root};

const HOST: &str = "examples/limit_host.json";

/// A session of `bpf debug` with these commands.
fn session(folder: &Folder, commands: &str, args: &[&str]) -> String {
    let commands = folder.file("commands", commands);
    prints(0, &[&["debug", "--commands", &commands][..], args].concat())
}

/// Steps through the limiter by lines, with a breakpoint, fields, variables and maps.
#[test]
fn a_plug_in_is_stepped_through_by_lines() {
    let folder = Folder::new("debug");
    let commands = "# where it begins\nprint client\nbreak limit.c:68\ncontinue\nlist\nprint limit_per_client\n\
        bt\nnext\nmap seen\nfinish\n";
    let args = ["examples/limit.o", "--program", "limit", "--host", HOST, "--field", "client=7"];
    let shown = session(&folder, commands, &args);
    let golden = root().join("crates/cli/tests/plugin/debug.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&golden, &shown).unwrap();
    }
    assert_eq!(shown, std::fs::read_to_string(golden).unwrap());
}

/// The runs of a case, with its maps.
#[test]
fn cases_are_stepped_through() {
    let folder = Folder::new("debug-case");
    let cases = "examples/limit_test.toml";
    let shown = session(&folder, "map seen\nb limit\nc\nc\n", &["--cases", cases, "--case", "apart"]);
    assert!(shown.contains("7 = 100") && shown.contains("returned 0\n") && shown.ends_with("returned 1\n"), "{shown}");
    let shown = session(&folder, "p r1\nquit\n", &["--cases", cases, "--case", "a home page has a price"]);
    assert!(!shown.contains("returned"), "{shown}");
    for (args, part) in [
        (&["--cases", cases][..], "choose one with --case: `"),
        (&["--cases", cases, "--case", "nothing"], "there is no such case; the cases: `"),
        (&["--cases", "examples/limit.c"], "limit.c"),
    ] {
        let message = fails(&[&["debug"][..], args].concat());
        assert!(message.contains(part), "{message}");
    }
}

/// Mistakes in commands end no session.
#[test]
fn mistakes_in_commands_are_told() {
    let folder = Folder::new("debug-mistakes");
    let commands = "brake\nb 99999\nb *99999\nb nowhere\nd 7\np nothing\nmap nothing\nx r10 8\nx here 1\nx r1\nhelp\n";
    let args = ["examples/limit.o", "--program", "limit", "--host", HOST];
    let shown = session(&folder, commands, &args);
    for part in [
        "`brake` is no command",
        "line 99999 has no instructions",
        "no instruction begins at 99999",
        "`nowhere` is no line",
        "there is no breakpoint 7",
        "`nothing` is no register",
        "there is no map `nothing`; the program's maps: ",
        "are not all of the run's own memory",
        "`here` is no number and no register",
        "expected: x ADDRESS LENGTH",
        "`breakpoints` lists",
        "returned 0",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

/// A run under mocks is recorded, and repeated without object and host.
#[test]
fn recorded_runs_are_repeated() {
    let folder = Folder::new("replay");
    let runs = folder.path("runs");
    let args = ["run", "examples/limit.o", "--program", "home", "--host", HOST, "--field", "path=/~ada"];
    let ran = prints(0, &[&args[..], &["--record", &runs]].concat());
    assert!(ran.contains("say"), "{ran}");
    let replayed = prints(0, &["replay", &runs]);
    assert!(
        replayed.starts_with("home, run 0 of 1: returned 0 after ") && replayed.contains("  cost = 10\n"),
        "{replayed}"
    );
    let traced = prints(0, &["replay", &runs, "--trace"]);
    assert!(
        traced.contains("request->cost = 10;") && traced.contains("exit") && traced.ends_with(&replayed),
        "{traced}"
    );
    let commands = folder.file("commands", "p path\nmap seen\nfinish\n");
    let stepped = prints(0, &["replay", &runs, "--commands", &commands]);
    assert!(stepped.contains("a recording has no maps") && stepped.ends_with(&replayed), "{stepped}");
    prints(0, &["replay", &runs, "--object", "examples/limit.o", "--host", HOST]);
    // Another plug-in, another host, another run.
    let message = fails(&["replay", &runs, "--object", "crates/cli/tests/objects/guard.o", "--host", HOST]);
    assert!(message.contains("guard.o"), "{message}");
    let message = fails(&["replay", &runs, "--object", "examples/limit.o"]);
    assert!(message.contains("--host"), "{message}");
    let host = std::fs::read_to_string(root().join(HOST)).unwrap();
    let other = folder.file("other.json", &host.replace("\"name\": \"cost\"", "\"name\": \"price\""));
    let message = fails(&["replay", &runs, "--object", "examples/limit.o", "--host", &other]);
    assert!(message.contains("limit.o") || message.contains("another host"), "{message}");
    let message = fails(&["replay", &runs, "--run", "4"]);
    assert!(message.contains("there is no run 4"), "{message}");
    let bytes = std::fs::read(&runs).unwrap();
    for (name, cut) in [("half", &bytes[..bytes.len() / 2]), ("empty", &[][..])] {
        std::fs::write(folder.path(name), cut).unwrap();
        let message = fails(&["replay", &folder.path(name)]);
        assert!(message.contains("recording, byte "), "{message}");
    }
    let message = fails(&["replay", &runs, "--steps", "3"]);
    assert!(message.contains("the run has more than 3 instructions"), "{message}");
    // A program with a tail call.
    prints(0, &["run", "examples/limit.o", "--program", "limit", "--host", HOST, "--record", &runs]);
    let replayed = prints(0, &["replay", &runs, "--trace"]);
    assert!(replayed.contains("limit, run 0 of 1: returned "), "{replayed}");
}

/// Uses the tools that look at runs on a project of `bpf new` whose object is made: a session of `bpf debug` for a case
/// and for one run, a run that is recorded and repeated, and a host that has changed since.
pub(crate) fn a_project_is_seen(folder: &Folder, project: &std::path::Path, object: &str, source: &str) {
    let path = |name: &str| project.join(name).to_str().unwrap().to_owned();
    let (object, host) = (path(object), path("host.json"));
    let commands = "print client\nbreak guard\nbt\nmap seen\nnext\nlist\ncontinue\ncontinue\n";
    let case = ["--cases", &path("guard_test.toml"), "--case", "a client's fourth request is refused"];
    let shown = session(folder, commands, &case);
    for part in ["client = 7", "guard, ", "  7 = 2", "->", "returned 0", "returned 1"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let one = ["--host", &host, "--field", "client=7", "--field", "path=/a"];
    let shown = session(folder, "finish\n", &[&[&*object, "--program", "guard"], &one[..]].concat());
    assert!(shown.contains("returned 0"), "{shown}");

    let runs = folder.path("guard.runs");
    let fields = ["--field", "client=7", "--map", "seen=7:3", "--record", &runs];
    let ran = prints(0, &[&["run", &object, "--host", &host], &fields[..]].concat());
    assert!(ran.contains("one too many"), "{ran}");
    let replayed = prints(0, &["replay", &runs, "--object", &object, "--host", &host]);
    assert!(replayed.starts_with("guard, run 0 of 1: returned 1 after "), "{replayed}");
    assert!(replayed.contains("  client = 7\n"), "{replayed}");
    let traced = prints(0, &["replay", &runs, "--trace"]);
    assert!(traced.contains(source) && traced.ends_with(&replayed), "{traced}");
    // The service's context has another field since.
    let text = std::fs::read_to_string(&host).unwrap();
    let changed = folder.file("changed.json", &text.replace("\"name\": \"cost\"", "\"name\": \"price_of_it\""));
    let message = fails(&["replay", &runs, "--object", &object, "--host", &changed]);
    assert!(message.contains("cost"), "{message}");
}
