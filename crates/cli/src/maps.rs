//! Map contents as text and JSON.

use bpf_runtime::Map;
use serde::Serialize;

/// Entries shown of one map.
const SHOWN: usize = 64;

#[derive(Serialize)]
pub(crate) struct Dump {
    name: String,
    #[serde(rename = "type")]
    map_type: &'static str,
    entries: Vec<Entry>,
    /// Whether there are more entries than shown.
    truncated: bool,
}

#[derive(Serialize)]
struct Entry {
    key: String,
    value: String,
}

/// The entries of a map; of arrays only those that are not zero.
pub(crate) fn dump(map: &Map) -> Dump {
    let mut entries = Vec::new();
    let mut truncated = false;
    let is_array = map.map_type().name().ends_with("array");
    let mut key = vec![0; map.def().key_size as usize];
    let mut previous: Option<Vec<u8>> = None;
    while !key.is_empty() && map.next_key(previous.as_deref(), &mut key).is_ok() {
        if let Ok(Some(value)) = map.get(&key)
            && !(is_array && value.iter().all(|b| *b == 0))
        {
            if entries.len() == SHOWN {
                truncated = true;
                break;
            }
            entries.push(Entry { key: bytes(&key), value: bytes(&value) });
        }
        previous = Some(key.clone());
    }
    Dump { name: map.name().to_owned(), map_type: map.map_type().name(), entries, truncated }
}

/// Short byte strings of a size that integers have as such an integer, others as hex.
fn bytes(bytes: &[u8]) -> String {
    match *bytes {
        [a] => a.to_string(),
        [a, b] => u16::from_le_bytes([a, b]).to_string(),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).to_string(),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]).to_string(),
        _ => hex::encode(bytes),
    }
}

pub(crate) fn print(dump: &Dump) {
    println!("map {} ({})", dump.name, dump.map_type);
    for entry in &dump.entries {
        println!("  {} = {}", entry.key, entry.value);
    }
    if dump.truncated {
        println!("  ... (the first {SHOWN})");
    }
}
