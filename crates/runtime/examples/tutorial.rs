//! The service of docs/book/tutorials/c-plugin.md: its Rust blocks, one after the other, are this file; its C blocks
//! are `examples/limit.c` and its header. The tests compare them, and run this example.
//!
//! `cargo run -p bpf-runtime --example tutorial -- examples/limit.o`

use bpf_runtime::maps::typed::TypedHash;
use bpf_runtime::{
    BpfContext, Caller, Config, ContextBytes, Engine, HelperError, Hook, HookPolicy, Instance, Linker, LoadError,
    MapSet, Object, ProgArray, Program, RunError, SharedBytes, isa::assemble, maps::RingBuf,
};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;
use std::{env, fs};

/// The context of plug-ins: a request.
#[derive(BpfContext)]
#[bpf(name = "request")]
#[repr(C)]
struct Request<'r> {
    client: u32,
    #[bpf(writable)]
    cost: u32,
    path: ContextBytes<'r>,
}

/// The host state of runs: the part of the service that host functions use.
#[derive(Default)]
struct Service {
    said: Vec<String>,
}

const ALLOW: u64 = 0;
const REFUSE: u64 = 1;

/// A linker with the service's functions.
fn linker(engine: &Engine) -> Result<Linker<Service>, Box<dyn Error>> {
    let mut linker = Linker::new(engine);
    linker.func_named("say", |c: &mut Caller<'_, Service>, text: SharedBytes<'_>| -> Result<(), HelperError> {
        let text = String::from_utf8(text.to_vec()).map_err(HelperError::new)?;
        c.host().said.push(text);
        Ok(())
    })?;
    Ok(linker)
}

/// Loads the plug-in, with the maps of the version before it if there is one.
fn load(
    engine: &Engine,
    linker: &Linker<Service>,
    file: &[u8],
    before: Option<&Instance<Service>>,
) -> Result<Instance<Service>, LoadError> {
    let object = Object::parse(file)?;
    let mut maps = MapSet::for_object(engine, &object)?;
    if let Some(before) = before {
        maps = maps.reuse("seen", &before.map("seen")?)?.reuse("events", &before.map("events")?)?;
    }
    linker.load::<Request<'_>>(&object, maps)
}

fn main() -> ExitCode {
    let Some(path) = env::args().nth(1) else {
        // The header for authors of plug-ins.
        print!("{}", Request::c_struct());
        return ExitCode::SUCCESS;
    };
    match fs::read(&path).map_err(Into::into).and_then(|file| serve(&file)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // By `Display`: the message for the author of the plug-in.
            eprintln!("{path}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(file: &[u8]) -> Result<(), Box<dyn Error>> {
    let config = Config::new().budget(100_000);
    let engine = Engine::new(config)?;
    let linker = linker(&engine)?;
    let instance = load(&engine, &linker, file, None)?;
    let limit: Program<Request<'_>, Service> = instance.program("limit")?;

    let mut service = Service::default();
    let mut request = Request { client: 7, cost: 0, path: ContextBytes::new(b"/index.html")? };
    for _ in 0..3 {
        assert_eq!(limit.run(&mut service, &mut request)?, ALLOW);
    }
    assert_eq!(limit.run(&mut service, &mut request)?, REFUSE);

    // Maps are the host's too.
    let seen: TypedHash<u32, u64> = instance.map("seen")?.typed()?;
    assert_eq!(seen.get(&7)?, Some(4));
    seen.insert(&7, &0)?;

    // Records arrive in order. The ring's descriptor (`AsFd`) wakes an async runtime as well.
    let mut events = RingBuf::new(&instance.map("events")?)?;
    assert!(events.poll(Some(Duration::from_secs(1)))?);
    while let Some(record) = events.next_record() {
        let (client, verdict) = record.split_at(4);
        println!(
            "client {} verdict {}",
            u32::from_ne_bytes(client.try_into()?),
            u32::from_ne_bytes(verdict.try_into()?)
        );
    }

    // A slot of a prog array: from now on, `limit` jumps there.
    let routes: ProgArray<Request<'_>, Service> = instance.prog_array("routes")?;
    routes.set(0, &instance.program("home")?)?;
    let mut home = Request { client: 7, cost: 0, path: ContextBytes::new(b"/~ada")? };
    limit.run(&mut service, &mut home)?;
    assert_eq!((home.cost, service.said.as_slice()), (10, &["a home page".to_owned()][..]));

    // Several plug-ins, run as one until the first that refuses.
    let hook = Hook::<Request<'_>, Service>::new(&engine, HookPolicy::FirstVerdict { pass: ALLOW })?;
    hook.attach(&limit)?;
    hook.run(&mut service, &mut request)?;

    // A new version, with the old one's counts, while other threads run the hook.
    let newer = load(&engine, &linker, file, Some(&instance))?;
    hook.replace(&limit, &newer.program("limit")?)?;
    assert_eq!(seen.get(&7)?, Some(1));

    // An unsafe program is not loaded, and the message gives the place and the reason.
    println!("{}", refusal(&linker)?);

    // A run that takes too long is stopped.
    let endless = assemble("r0 = 0\nr0 += 1\ngoto -2")?;
    let endless = linker.loader::<Request<'_>>().hybrid(true).insns("endless", endless)?;
    match endless.run(&mut service, &mut request) {
        Err(RunError::Budget { .. }) => Ok(()),
        other => Err(format!("not stopped: {other:?}").into()),
    }
}

/// The message that the author of a plug-in gets who forgot a check.
fn refusal(linker: &Linker<Service>) -> Result<String, Box<dyn Error>> {
    let unchecked = assemble("r2 = *(u64 *)(r1 + 8)\nr0 = *(u8 *)(r2 + 0)\nexit")?;
    let refused = linker.loader::<Request<'_>>().insns("unchecked", unchecked);
    Ok(refused.err().ok_or("reads what may not be there")?.to_string())
}

#[cfg(test)]
mod tests {
    //! docs/book/tutorials/c-plugin.md: its blocks are parts of this file, and run here.

    use super::*;

    const PLUGIN: &[u8] = include_bytes!("../../../examples/limit.o");

    /// The blocks of a language in the tutorial.
    fn blocks(language: &str) -> Vec<&'static str> {
        let mut pieces = include_str!("../../../docs/book/tutorials/c-plugin.md").split("```");
        let mut found = Vec::new();
        // Text and blocks in turn.
        while let (Some(_), Some(block)) = (pieces.next(), pieces.next()) {
            if let Some((kind, body)) = block.split_once('\n')
                && kind == language
            {
                found.push(body);
            }
        }
        found
    }

    /// Its lines that are not empty, from the first of these words on, to the second.
    fn lines<'t>(text: &'t str, from: &str, to: &str) -> Vec<&'t str> {
        let text = &text[text.find(from).unwrap_or(0)..];
        let text = &text[..text.find(to).unwrap_or(text.len())];
        text.lines().filter(|line| !line.trim().is_empty()).collect()
    }

    #[test]
    fn the_service_runs() {
        serve(PLUGIN).unwrap();
        // The plug-in as written in Rust: docs/book/tutorials/rust-plugin.md.
        serve(include_bytes!("../../../examples/limit_rust.o")).unwrap();
    }

    #[test]
    fn its_blocks_are_the_files() {
        let whole = |language: &str| blocks(language).concat();
        let (end, no_end) = ("#[cfg(test)]", "\0");
        assert_eq!(
            lines(&whole("rust"), "use ", no_end),
            lines(include_str!("tutorial.rs"), "use bpf_runtime", end),
            "docs/book/tutorials/c-plugin.md and this example"
        );
        let header = include_str!("../../../examples/limit_request.h");
        assert_eq!(Request::c_struct(), header);
        let [shown_header, plugin @ ..] = &blocks("c")[..] else { panic!("no header") };
        assert_eq!(*shown_header, header);
        let source = include_str!("../../../examples/limit.c");
        assert_eq!(lines(&plugin.concat(), "#include", no_end), lines(source, "#include", no_end));
    }

    /// `bpf header`, `bpf verify --host` and `bpf test` take the service from this file.
    #[test]
    fn the_description_is_the_file() {
        let config = Config::new().budget(100_000);
        let linker = linker(&Engine::new(config).unwrap()).unwrap();
        let host = linker.describe::<Request<'_>>().unwrap();
        let text = serde_json::to_string_pretty(&host).unwrap();
        assert_eq!(text.trim_end(), include_str!("../../../examples/limit_host.json").trim_end());
    }

    #[test]
    fn messages_are_as_shown() {
        let linker = linker(&Engine::new(Config::new()).unwrap()).unwrap();
        let refusal = refusal(&linker).unwrap();
        for block in blocks("text") {
            // The whole message is compared, so that the page must show a hint that is added.
            assert_eq!(refusal.trim_end(), block.trim_end());
        }
    }
}
