//! Map contents as text and JSON, and the records that programs put into rings.

use crate::out::{self, Look, line};
use crate::values::{self, Formatted, Value};
use anyhow::{Context, Result};
use bpf_runtime::maps::{Arena, open_perf_entry};
use bpf_runtime::{
    Engine, Object,
    maps::{Map, MapType, RingBuf},
    object::MapDecl as ObjectMap,
};
use serde::Serialize;

/// The largest number of entries or records shown of one map.
const SHOWN: usize = 64;

#[derive(Serialize)]
pub(crate) struct Dump {
    name: String,
    #[serde(rename = "type")]
    map_type: &'static str,
    /// Whether the map holds the program's variables.
    #[serde(skip)]
    is_data: bool,
    entries: Vec<Entry>,
    /// Whether there are more entries than shown.
    truncated: bool,
    /// The records of ring buffers and perf event arrays.
    #[serde(skip_serializing_if = "Option::is_none")]
    records: Option<Records>,
    /// For an arena, its allocated pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pages: Option<Pages>,
}

/// The pages of an arena.
#[derive(Clone, Copy, Serialize)]
struct Pages {
    in_use: u64,
    of: u32,
}

/// The records taken from a ring.
#[derive(Clone, Default, Serialize)]
struct Records {
    /// Number of records.
    total: u64,
    /// Number of records that found no room.
    lost: u64,
    /// The first ones, in hex.
    first: Vec<String>,
}

/// Bytes of the ring of an entry in a perf event array.
const PERF_RING: u32 = 64 << 10;

/// The consumers of a program's ring buffers and perf event arrays.
pub(crate) struct Rings(Vec<Ring>);

struct Ring {
    map: String,
    /// One consumer, or for a perf event array one per execution slot.
    consumers: Vec<RingBuf>,
    records: Records,
}

impl Rings {
    /// Opens a consumer for each such map.
    pub(crate) fn open<'m>(engine: &Engine, maps: impl Iterator<Item = &'m Map>) -> Result<Rings> {
        let mut rings = Vec::new();
        for map in maps {
            let consumers = match map.map_type() {
                MapType::RingBuf => vec![RingBuf::new(map)?],
                MapType::PerfEventArray => (0..map.def().max_entries.min(engine.domain().max_slots()))
                    .map(|slot| open_perf_entry(map, slot, PERF_RING))
                    .collect::<Result<_, _>>()
                    .with_context(|| format!("map `{}`", map.name()))?,
                _ => continue,
            };
            rings.push(Ring { map: map.name().to_owned(), consumers, records: Records::default() });
        }
        Ok(Rings(rings))
    }

    /// Takes all available records.
    pub(crate) fn drain(&mut self) {
        for Ring { consumers, records, .. } in &mut self.0 {
            for consumer in consumers {
                consumer.consume(|record| {
                    records.total += 1;
                    if records.first.len() < SHOWN {
                        records.first.push(hex::encode(record));
                    }
                    true
                });
            }
        }
    }

    /// The first records of the map of this name, in hex, and how many there were; `None` if it has no consumer here.
    pub(crate) fn first(&self, map: &str) -> Option<(&[String], u64)> {
        let ring = self.0.iter().find(|ring| ring.map == map)?;
        Some((&ring.records.first, ring.records.total))
    }

    /// The records of this map, if it has a consumer here.
    fn records(&self, map: &Map) -> Option<Records> {
        let ring = self.0.iter().find(|ring| ring.map == map.name())?;
        let lost = ring.consumers.iter().map(RingBuf::lost).sum();
        Some(Records { lost, ..ring.records.clone() })
    }
}

#[derive(Serialize)]
struct Entry {
    key: String,
    value: String,
    /// The entry by the types of key and value, if the object has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    formatted: Option<Formatted>,
}

/// The entries of a map; for arrays only the entries that are not zero.
pub(crate) fn dump(map: &Map, rings: &Rings, object: &Object) -> Dump {
    let types = object.btf().zip(object.map(map.name()).ok());
    let records = rings.records(map);
    let mut entries = Vec::new();
    let mut truncated = false;
    let is_array = map.map_type().name().ends_with("array");
    let mut key = vec![0; map.def().key_size as usize];
    let mut previous: Option<Vec<u8>> = None;
    while records.is_none() && !key.is_empty() && map.next_key(previous.as_deref(), &mut key).is_ok() {
        if let Ok(Some(value)) = map.get(&key)
            && !(is_array && value.iter().all(|b| *b == 0))
        {
            if entries.len() == SHOWN {
                truncated = true;
                break;
            }
            let formatted = types.and_then(|(btf, declared)| values::entry(btf, declared, map, &key, &value));
            entries.push(Entry { key: bytes(&key), value: bytes(&value), formatted });
        }
        previous = Some(key.clone());
    }
    if let Some((btf, declared)) = types
        && let Some(begins) = variables(map, declared)
    {
        let formatted = values::entry(btf, declared, map, &[], &begins);
        entries.push(Entry { key: bytes(&0u32.to_le_bytes()), value: bytes(&begins), formatted });
    }
    let is_data = types.is_some_and(|(_, declared)| declared.data.is_some());
    Dump {
        name: map.name().to_owned(),
        map_type: map.map_type().name(),
        is_data,
        entries,
        truncated,
        records,
        pages: pages(map),
    }
}

/// The value of the variable of this name in the map, if the map holds variables.
pub(crate) fn variable(map: &Map, object: &Object, name: &str) -> Option<String> {
    let (btf, declared) = (object.btf()?, object.map(map.name()).ok()?);
    declared.data.as_ref()?;
    let begins = variables(map, declared).or_else(|| map.get(&0u32.to_le_bytes()).ok()?)?;
    let formatted = values::entry(btf, declared, map, &0u32.to_le_bytes(), &begins)?;
    let Value::Fields(fields) = formatted.value else { return None };
    fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.to_string())
}

/// The contents of the variables at the start of an arena, if it has any.
fn variables(map: &Map, declared: &ObjectMap) -> Option<Vec<u8>> {
    let (arena, data) = (Arena::new(map).ok()?, declared.data.as_ref()?);
    let mut begins = vec![0; data.bytes.len()];
    arena.read(arena.start(), &mut begins).ok()?;
    Some(begins)
}

/// Number of pages of an arena in use.
fn pages(map: &Map) -> Option<Pages> {
    Arena::new(map).ok().map(|arena| Pages { in_use: arena.in_use(), of: arena.pages() })
}

/// Formats bytes whose number is the size of an integer as that integer, others as hex.
pub(crate) fn bytes(bytes: &[u8]) -> String {
    match *bytes {
        [a] => a.to_string(),
        [a, b] => u16::from_le_bytes([a, b]).to_string(),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).to_string(),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]).to_string(),
        _ => hex::encode(bytes),
    }
}

pub(crate) fn print(dump: &Dump) -> Result<()> {
    out::parts(&[
        (Look::Title, format_args!("map {}", dump.name)),
        (Look::Plain, format_args!(" ({})", dump.map_type)),
    ])?;
    if let Some(Pages { in_use, of }) = dump.pages {
        line!("  {in_use} of {of} pages in use")?;
    }
    for entry in &dump.entries {
        match &entry.formatted {
            Some(Formatted { value: Value::Fields(fields), .. }) if dump.is_data => {
                fields.iter().try_for_each(|(name, value)| line!("  {name} = {value}"))?;
            }
            Some(Formatted { key, value }) => line!("  {key} = {value}")?,
            None => line!("  {} = {}", entry.key, entry.value)?,
        }
    }
    if dump.truncated {
        line!("  ... (the first {SHOWN})")?;
    }
    if let Some(records) = &dump.records {
        line!("  {} records, {} lost", records.total, records.lost)?;
        for record in &records.first {
            line!("  {record}")?;
        }
        if records.total > SHOWN as u64 {
            line!("  ... (the first {SHOWN})")?;
        }
    }
    Ok(())
}
