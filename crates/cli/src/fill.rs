//! The contents of maps before a program runs: `--map` and `--maps`.
//!
//! Keys and values are written as `bpf run` shows them: a number where the map's size is 1, 2, 4 or 8 bytes, in
//! decimal or with `0x`, possibly negative; the bytes in hex for another size. A per-CPU map takes one value for all
//! execution slots, or the values of all in hex. So the report of one run (`--json`) can fill the maps of the next.

use crate::input;
use crate::load::NoHost;
use anyhow::{Context, Result, bail};
use bpf_runtime::{Instance, maps::Map};
use serde::Deserialize;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct FillArgs {
    /// Set an entry of a map before the first run: a number for a key or value of 1, 2, 4 or 8 bytes, else hex
    /// digits.
    #[arg(long, value_name = "NAME=KEY:VALUE")]
    map: Vec<String>,
    /// Fill maps before the first run from JSON: {"maps": [{"name": …, "entries": [{"key": …, "value": …}]}]}, which
    /// is a part of the output of `run --json`.
    #[arg(long, value_name = "FILE.json")]
    maps: Option<PathBuf>,
}

/// An entry to set.
pub(crate) struct Value {
    pub(crate) map: String,
    pub(crate) key: String,
    pub(crate) value: String,
}

#[derive(Deserialize)]
struct File {
    maps: Vec<Contents>,
}

#[derive(Deserialize)]
struct Contents {
    name: String,
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    key: Text,
    value: Text,
}

/// A key or value: text, as in reports, or a number, as people write it.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a number")]
enum Text {
    Text(String),
    Number(serde_json::Number),
}

impl Text {
    fn into_string(self) -> String {
        match self {
            Text::Text(text) => text,
            Text::Number(number) => number.to_string(),
        }
    }
}

impl FillArgs {
    /// Returns the entries: those of the file, then those of the command line.
    pub(crate) fn read(&self) -> Result<Vec<Value>> {
        let mut values = Vec::new();
        if let Some(path) = &self.maps {
            let text = input::read_text(path)?;
            let file: File = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
            for Contents { name, entries } in file.maps {
                values.extend(entries.into_iter().map(|Entry { key, value }| Value {
                    map: name.clone(),
                    key: key.into_string(),
                    value: value.into_string(),
                }));
            }
        }
        for text in &self.map {
            let parts = text.split_once('=').and_then(|(map, entry)| Some((map, entry.split_once(':')?)));
            let Some((map, (key, value))) = parts else { bail!("--map {text}: not of the form NAME=KEY:VALUE") };
            values.push(Value { map: map.to_owned(), key: key.to_owned(), value: value.to_owned() });
        }
        Ok(values)
    }
}

/// Sets the entries.
pub(crate) fn put(values: &[Value], instance: &Instance<NoHost>) -> Result<()> {
    for Value { map: name, key, value } in values {
        let Some(map) = instance.maps().find(|map| map.name() == name) else {
            let names: Vec<&str> = instance.maps().map(Map::name).collect();
            bail!("there is no map `{name}` to fill; the program's maps: {}", names.join(", "));
        };
        let key_size = map.def().key_size as usize;
        let entry = || format!("map `{name}`, key {key}, value {value}");
        let key = bytes(key, key_size).context("not a key of the map").with_context(entry)?;
        let value = value_bytes(value, map).context("not a value of the map").with_context(entry)?;
        // Constants cannot be set; a report's entry that equals the constant is skipped.
        if map.get(&key).is_ok_and(|held| held.as_deref() == Some(value.as_slice())) {
            continue;
        }
        map.set(&key, &value).with_context(entry)?;
    }
    Ok(())
}

/// Converts a key to the map's form.
pub(crate) fn key_bytes(text: &str, map: &Map) -> Result<Vec<u8>> {
    bytes(text, map.def().key_size as usize)
}

/// Converts a value to the map's form. A per-CPU map has one value for each execution slot: a report has all of them,
/// and a single value is used for all slots.
pub(crate) fn value_bytes(text: &str, map: &Map) -> Result<Vec<u8>> {
    let (all, one) = (map.host_value_size(), map.def().value_size as usize);
    if !map.map_type().is_per_cpu() {
        return bytes(text, all);
    }
    let room = one.next_multiple_of(8).max(8);
    // The digits of all slots are more than those of one, unless there is one slot.
    if all > room && text.len() == 2 * all {
        return bytes(text, all);
    }
    let mut value = bytes(text, one)?;
    value.resize(room, 0);
    Ok(value.repeat(all / room))
}

/// Converts a number or hex digits to `size` bytes.
pub(crate) fn bytes(text: &str, size: usize) -> Result<Vec<u8>> {
    if !matches!(size, 1 | 2 | 4 | 8) {
        let bytes = input::parse_hex(text).with_context(|| format!("not {size} bytes in hex"))?;
        if bytes.len() != size {
            bail!("{} bytes, the map has {size}", bytes.len());
        }
        return Ok(bytes);
    }
    let number: i128 = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).map(i128::from),
        None => text.parse(),
    }
    .with_context(|| format!("not a number, as {size} bytes are written"))?;
    let bits = size * 8;
    if number < -(1 << (bits - 1)) || number >= 1 << bits {
        bail!("does not fit into {size} bytes");
    }
    Ok(number.to_le_bytes()[..size].to_vec())
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn numbers_and_bytes_are_read_by_size() {
        assert_eq!(bytes("258", 4).unwrap(), [2, 1, 0, 0]);
        assert_eq!(bytes("0xff", 1).unwrap(), [255]);
        assert_eq!(bytes("-1", 2).unwrap(), [255, 255]);
        assert_eq!(bytes(&u64::MAX.to_string(), 8).unwrap(), [255; 8]);
        assert_eq!(bytes("010203", 3).unwrap(), [1, 2, 3]);
        for (text, size) in [
            ("256", 1),
            ("-129", 1),
            ("18446744073709551616", 8),
            ("0x10000000000000000", 8),
            ("", 4),
            ("0x", 4),
            ("zz", 3),
            ("0102", 3),
            ("01020", 3),
            ("340282366920938463463374607431768211456", 8),
        ] {
            assert!(bytes(text, size).is_err(), "{text} as {size} bytes");
        }
    }
}
