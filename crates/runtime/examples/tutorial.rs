//! The service of docs/tutorial.md, in one file. Each block of the tutorial is a piece of this one or of
//! `examples/limit.c`, which the tests hold it to; they run it too.
//!
//! `cargo run -p bpf-runtime --example tutorial`

use bpf_runtime::maps::typed::HashMap;
use bpf_runtime::{
    BpfContext, Caller, Config, ContextBytes, Engine, HelperError, Hook, Instance, Linker, LoadError, MapSet, Object,
    Policy, ProgArray, Program, RingBuf, RunError, SharedBytes, assemble,
};
use std::error::Error;
use std::time::Duration;

/// What plug-ins see of a request.
#[derive(BpfContext)]
#[bpf(name = "request")]
#[repr(C)]
struct Request<'r> {
    client: u32,
    #[bpf(writable)]
    cost: u32,
    path: ContextBytes<'r>,
}

/// What host functions see of the service.
#[derive(Default)]
struct Service {
    said: Vec<String>,
}

const ALLOW: u64 = 0;
const REFUSE: u64 = 1;

/// A linker with the service's functions.
fn linker(engine: &Engine) -> Result<Linker<Service>, Box<dyn Error>> {
    let mut linker = Linker::new(engine);
    linker.func(1001, "say", |c: &mut Caller<'_, Service>, text: SharedBytes<'_>| -> Result<(), HelperError> {
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

/// The message that the author of a plug-in gets who forgot a check.
fn refusal(linker: &Linker<Service>) -> Result<String, Box<dyn Error>> {
    let unchecked = assemble("r2 = *(u64 *)(r1 + 8)\nr0 = *(u8 *)(r2 + 0)\nexit")?;
    let refused = linker.loader::<Request<'_>>().insns("unchecked", unchecked);
    Ok(refused.err().ok_or("reads what may not be there")?.to_string())
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = include_bytes!("../../../examples/limit.o");

    let mut config = Config::default();
    config.budget = Some(100_000);
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
    let seen: HashMap<u32, u64> = instance.map("seen")?.typed()?;
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
    let hook = Hook::<Request<'_>, Service>::new(&engine, Policy::FirstVerdict { pass: ALLOW })?;
    hook.attach(&limit)?;
    hook.run(&mut service, &mut request)?;

    // A new version, with the old one's counts, while other threads run the hook.
    let newer = load(&engine, &linker, file, Some(&instance))?;
    hook.replace(&limit, &newer.program("limit")?)?;
    assert_eq!(seen.get(&7)?, Some(1));

    // What is not harmless is not loaded, and the message says where and why.
    println!("{}", refusal(&linker)?);

    // What takes too long is stopped.
    let endless = assemble("r0 = 0\nr0 += 1\ngoto -2")?;
    let endless = linker.loader::<Request<'_>>().hybrid().insns("endless", endless)?;
    match endless.run(&mut service, &mut request) {
        Err(RunError::Budget { .. }) => Ok(()),
        other => Err(format!("not stopped: {other:?}").into()),
    }
}

#[cfg(test)]
mod tests {
    //! docs/tutorial.md: what it shows is what runs here.

    use super::*;

    /// The blocks of a language in the tutorial.
    fn blocks(language: &str) -> Vec<&'static str> {
        let mut pieces = include_str!("../../../docs/tutorial.md").split("```");
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

    #[test]
    fn the_service_runs() {
        main().unwrap();
    }

    #[test]
    fn code_is_of_the_service_and_the_plug_in() {
        let rust = include_str!("tutorial.rs");
        let header = include_str!("../../../examples/limit_request.h");
        assert_eq!(Request::c_struct(), header);
        let c = [include_str!("../../../examples/limit.c"), header];
        let (shown_rust, shown_c) = (blocks("rust"), blocks("c"));
        assert!(shown_rust.len() > 5 && shown_c.len() > 2);
        for block in shown_rust {
            assert!(rust.contains(block), "not in the example:\n{block}");
        }
        for block in shown_c {
            assert!(c.iter().any(|source| source.contains(block)), "not in the plug-in:\n{block}");
        }
    }

    #[test]
    fn messages_are_as_shown() {
        let linker = linker(&Engine::new(Config::default()).unwrap()).unwrap();
        let refusal = refusal(&linker).unwrap();
        for block in blocks("text") {
            assert!(refusal.contains(block), "{block}is not in:\n{refusal}");
        }
    }
}
