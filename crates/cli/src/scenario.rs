//! `bpf scenario`: runs a script that sets prog arrays and runs programs that jump through them.
//!
//! ```text
//! obj FILE [zero128|pkt_v4|pkt_v6]   load an object; the data its programs run on
//! set MAP INDEX PROGRAM              put a program into a slot
//! del MAP INDEX [fail]               empty a slot; `fail`: it must be empty already
//! run PROGRAM R0                     run it, compare the low half of its result
//! bss OFFSET VALUE                   compare a 32-bit word of the object's .bss
//! bssw OFFSET VALUE                  write one
//! # …                                nothing
//! ```
//! One result is counted for each `run`, `bss` and `del … fail`; any other line counts only if it fails. Programs are
//! verified for, and run on, a `__sk_buff`.

use crate::input::read_text;
use crate::load::{self, EngineArgs, NoHost};
use crate::out::{self, text};
use anyhow::{Context, Result, anyhow, bail};
use bpf_runtime::object::text::Shown;
use bpf_runtime::{
    Engine, Instance, Linker, MapSet,
    maps::Map,
    net::{SkBuff, Skb},
};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run a script of prog-array updates and runs: each failure is printed, and last `N passed, M failed`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The script.
    file: PathBuf,
    /// The folder of the objects; default: the script's folder.
    #[arg(long, value_name = "DIR")]
    objects: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let script = read_text(&args.file)?;
    let beside = args.file.parent().unwrap_or(Path::new("."));
    let mut scenario = Scenario {
        engine: load::engine(&args.engine)?,
        objects: args.objects.as_deref().unwrap_or(beside),
        loaded: None,
        packet: Vec::new(),
    };
    let (mut passed, mut failed) = (0u32, 0u32);
    for (number, line) in script.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match scenario.line(&words) {
            Ok(Counted::Result) => passed += 1,
            Ok(Counted::Nothing) => {}
            Err(why) => {
                failed += 1;
                let file = args.file.display();
                text!("{file}:{}: {}: {why:#}", number + 1, Shown(line.trim()))?;
            }
        }
    }
    out::totals(passed, failed)?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The contribution of a successful line to the count.
enum Counted {
    Nothing,
    Result,
}

struct Scenario<'a> {
    engine: Engine,
    objects: &'a Path,
    loaded: Option<Instance<NoHost>>,
    packet: Vec<u8>,
}

impl Scenario<'_> {
    fn line(&mut self, words: &[&str]) -> Result<Counted> {
        match *words {
            [] => return Ok(Counted::Nothing),
            [comment, ..] if comment.starts_with('#') => return Ok(Counted::Nothing),
            ["obj", file] => self.load(file, "zero128")?,
            ["obj", file, data] => self.load(file, data)?,
            ["set", map, index, program] => {
                let program = self.instance()?.program::<Skb>(program)?;
                self.instance()?.prog_array::<Skb>(map)?.set(number(index)?, &program)?;
            }
            ["del", map, index] => self.instance()?.prog_array::<Skb>(map)?.clear(number(index)?)?,
            ["del", map, index, "fail"] => match self.instance()?.prog_array::<Skb>(map)?.clear(number(index)?) {
                Ok(()) => bail!("the slot was not empty"),
                Err(_) => return Ok(Counted::Result),
            },
            ["run", program, expected] => {
                let program = self.instance()?.program::<Skb>(program)?;
                let r0 = crate::cases::low(program.run(&mut (), &mut SkBuff::new(&mut self.packet))?);
                compare(r0, number(expected)?)?;
                return Ok(Counted::Result);
            }
            ["bss", offset, expected] => {
                let (value, at) = self.bss(offset)?;
                let word = value[at..].first_chunk().context("out of range")?;
                compare(u32::from_ne_bytes(*word), number(expected)?)?;
                return Ok(Counted::Result);
            }
            ["bssw", offset, word] => {
                let (mut value, at) = self.bss(offset)?;
                *value[at..].first_chunk_mut().context("out of range")? = number(word)?.to_ne_bytes();
                self.bss_map()?.update(&0u32.to_ne_bytes(), &value, 0)?;
            }
            _ => bail!("not a line of a scenario"),
        }
        Ok(Counted::Nothing)
    }

    fn load(&mut self, file: &str, data: &str) -> Result<()> {
        // If loading fails, the following lines must not use the previous object.
        self.loaded = None;
        self.packet = packet(data)?;
        let object = load::object(&self.objects.join(file))?;
        let linker = Linker::<NoHost>::new(&self.engine);
        let maps = MapSet::for_object(&self.engine, &object)?;
        self.loaded = Some(linker.load::<Skb>(&object, maps)?);
        Ok(())
    }

    fn instance(&self) -> Result<&Instance<NoHost>> {
        self.loaded.as_ref().ok_or_else(|| anyhow!("no object is loaded"))
    }

    fn bss_map(&self) -> Result<&Map> {
        // The loader names the map after the object and the section.
        self.instance()?.maps().find(|map| map.name().ends_with(".bss")).context("the object has no .bss")
    }

    /// The contents of .bss, and the offset, which lies inside it.
    fn bss(&self, offset: &str) -> Result<(Vec<u8>, usize)> {
        let value = self.bss_map()?.get(&0u32.to_ne_bytes())?.context("the .bss map has no value")?;
        let at = number(offset)? as usize;
        if at < value.len() { Ok((value, at)) } else { bail!("out of range") }
    }
}

fn compare(got: u32, expected: u32) -> Result<()> {
    if got == expected { Ok(()) } else { bail!("got {got} ({got:#x})") }
}

fn number(text: &str) -> Result<u32> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    }
    .with_context(|| format!("`{text}` is not a number"))
}

/// The data that programs run on, by name.
fn packet(name: &str) -> Result<Vec<u8>> {
    const ETHERNET: usize = 14;
    const IPV4: usize = 20;
    const IPV6: usize = 40;
    const TCP: usize = 20;
    Ok(match name {
        "zero128" => vec![0; 128],
        "pkt_v4" => {
            let mut bytes = vec![0; ETHERNET + IPV4 + TCP];
            bytes[12..14].copy_from_slice(&0x0800u16.to_be_bytes()); // EtherType IPv4
            bytes[14] = 0x45; // version 4, five words of header
            bytes[17] = (IPV4 + TCP).to_le_bytes()[0]; // total length, below 256
            bytes[22] = 64; // time to live
            bytes[23] = 6; // TCP
            bytes[ETHERNET + IPV4 + 12] = 5 << 4; // five words of TCP header
            bytes
        }
        "pkt_v6" => {
            let mut bytes = vec![0; ETHERNET + IPV6 + TCP];
            bytes[12..14].copy_from_slice(&0x86ddu16.to_be_bytes()); // EtherType IPv6
            bytes[14] = 0x60; // version 6
            bytes[19] = TCP.to_le_bytes()[0]; // payload length, below 256
            bytes[20] = 6; // TCP
            bytes[21] = 64; // hop limit
            bytes[ETHERNET + IPV6 + 12] = 5 << 4;
            bytes
        }
        _ => bail!("no data is named `{name}`"),
    })
}
