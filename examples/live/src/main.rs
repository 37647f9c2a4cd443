//! An XDP object on a live interface, in user space.
//!
//! Problem: a packet filter in user space only sees copies of packets, which the kernel processes regardless. Approach:
//! it stands in the wire. The network's side is one interface, the host's side another, neither has an address, and a
//! packet that arrives at the one leaves by the other only if the program allows it ([`edge`]). The program is
//! exchanged while packets pass: commands come by standard input, one a line (`load FILE`, `device MAP KEY INTERFACE`,
//! `stats`, `quit`), and each is answered by one line.

mod edge;

use anyhow::Context as _;
use bpf_runtime::{Config, Engine, Hook, HookPolicy, Instance, Linker, MapSet, Object, Program, net::Xdp};
use clap::Parser;
use edge::{Edge, XDP_PASS};
use std::io::BufRead as _;
use std::path::{Path, PathBuf};

/// Run an XDP program between two network interfaces.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The ELF object.
    object: PathBuf,
    /// The program in it, if there are several.
    #[arg(long)]
    program: Option<String>,
    /// The network's side: the program sees what arrives here.
    #[arg(long)]
    wire: String,
    /// The host's side: packets that pass go there; packets that it sends reach the network unfiltered.
    #[arg(long)]
    host: String,
    /// A further interface, which programs may redirect to. May be given several times.
    #[arg(long = "out")]
    outs: Vec<String>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let engine = Engine::new(Config::new())?;
    // Without a program every packet passes, which is the case only before the first one is attached.
    let hook = Hook::new(&engine, HookPolicy::LastWins { empty: XDP_PASS })?;
    let mut loaded = Loaded::load(&engine, &args.object, args.program.as_deref(), None)?;
    hook.attach(&loaded.program)?;
    let edge = Edge::open(hook, &args.wire, &args.host, &args.outs)?;
    std::thread::scope(|scope| {
        edge.start(scope);
        println!("ready {}", loaded.program.name());
        let result = commands(&args, &engine, &edge, &mut loaded);
        edge.stop();
        result
    })
}

/// Until the end of standard input.
fn commands(args: &Args, engine: &Engine, edge: &Edge, loaded: &mut Loaded) -> anyhow::Result<()> {
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("load", path) => match Loaded::load(engine, Path::new(path), args.program.as_deref(), Some(loaded)) {
                Ok(newer) => {
                    edge.hook().replace(&loaded.program, &newer.program)?;
                    *loaded = newer;
                    println!("loaded {}", loaded.program.name());
                }
                // The program that runs goes on running.
                Err(error) => println!("refused {}", format!("{error:#}").replace('\n', "; ")),
            },
            ("device", what) => match loaded.set_device(what) {
                Ok(()) => println!("set"),
                Err(error) => println!("refused {error:#}"),
            },
            ("stats", "") => println!("stats {}", edge.counts()),
            ("quit", "") => return Ok(()),
            _ => println!("unknown command; there are `load FILE`, `device MAP KEY INTERFACE`, `stats`, `quit`"),
        }
    }
    Ok(())
}

/// A program with its maps.
struct Loaded {
    instance: Instance<()>,
    program: Program<Xdp, ()>,
}

impl Loaded {
    /// Loads an object's program. It goes on with the maps of the `older` one that it has, too.
    fn load(engine: &Engine, file: &Path, name: Option<&str>, older: Option<&Loaded>) -> anyhow::Result<Loaded> {
        let path = file.display();
        let bytes = std::fs::read(file).with_context(|| path.to_string())?;
        let object = Object::parse(&bytes).with_context(|| path.to_string())?;
        let mut maps = MapSet::for_object(engine, &object)?;
        for map in older.into_iter().flat_map(|older| older.instance.maps()) {
            // Constants and variables begin as the new object has them.
            if object.maps().iter().any(|wanted| wanted.name == map.name() && wanted.data.is_none()) {
                maps = maps.reuse(map.name(), map)?;
            }
        }
        let instance = Linker::new(engine).load::<Xdp>(&object, maps).with_context(|| path.to_string())?;
        let mut names = instance.programs();
        let name = match (name, names.next(), names.next()) {
            (Some(name), ..) => name.to_owned(),
            (None, Some(only), None) => only.to_owned(),
            (None, None, _) => anyhow::bail!("{}: no programs", path),
            (None, Some(_), Some(_)) => anyhow::bail!("{}: several programs; say which: --program", path),
        };
        drop(names);
        Ok(Loaded { program: instance.program(&name)?, instance })
    }

    /// Sets an entry of a device map: `MAP KEY INTERFACE`.
    fn set_device(&self, what: &str) -> anyhow::Result<()> {
        let words: Vec<_> = what.split(' ').collect();
        let [map, key, interface] = words[..] else { anyhow::bail!("it is `device MAP KEY INTERFACE`") };
        let key: u32 = key.parse().context("KEY")?;
        let index = edge::index_of(interface).with_context(|| format!("no interface {interface}"))?;
        Ok(self.instance.map(map)?.update(&key.to_ne_bytes(), &index.to_ne_bytes(), 0)?)
    }
}
