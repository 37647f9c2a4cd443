//! Our own cases: the files in the folder `cases` of this crate, one case a line, for every engine.
//!
//! A line is `program => r0`, instructions separated by `;`, or `program => reject`. An `exit` is appended unless the
//! program ends in `noexit`. An instruction without a text form is written `hex` and its bytes. r1 points to 16 bytes,
//! 0x00 to 0x0f, and r2 is 16. The programs stay within their memory and use no register or stack byte that they have
//! not set, so that they mean the same as machine code that checks nothing. `#` begins a remark.

use super::{Case, CaseError, Expected};
use std::fs;
use std::path::Path;

/// The memory at r1.
const MEMORY: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Every case, in order of file and line; named `file:line`.
pub fn suite() -> Result<Vec<Case>, CaseError> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
    let fail = |error| CaseError::Read { path: folder.clone(), error };
    let mut paths = fs::read_dir(&folder)
        .and_then(|entries| entries.map(|entry| entry.map(|e| e.path())).collect::<Result<Vec<_>, _>>())
        .map_err(fail)?;
    paths.sort();
    let mut cases = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).map_err(|error| CaseError::Read { path: path.clone(), error })?;
        let file = path.file_stem().unwrap_or_default().to_string_lossy();
        for (i, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let case = case(format!("{file}:{}", i + 1), line);
            cases.push(case.map_err(|message| CaseError::Line { path: path.clone(), line: i + 1, message })?);
        }
    }
    Ok(cases)
}

fn case(name: String, line: &str) -> Result<Case, String> {
    let (program, expected) = line.split_once("=>").ok_or("no `=>`")?;
    Ok(Case { name, program: program_bytes(program)?, memory: Some(MEMORY.to_vec()), expected: r0(expected.trim())? })
}

fn r0(text: &str) -> Result<Expected, String> {
    Ok(match text.strip_prefix("0x") {
        Some(digits) => Expected::R0(u64::from_str_radix(digits, 16).map_err(|e| e.to_string())?),
        None if text == "reject" => Expected::Reject,
        None => Expected::R0(text.parse().map_err(|_| format!("`{text}` is not a number"))?),
    })
}

fn program_bytes(text: &str) -> Result<Vec<u8>, String> {
    let text = text.trim();
    if let Some(digits) = text.strip_prefix("hex") {
        return hex::decode(digits.replace(' ', "")).map_err(|e| e.to_string());
    }
    let lines = match text.strip_suffix("noexit") {
        Some(start) => start.replace(';', "\n"),
        None => format!("{text}; exit").replace(';', "\n"),
    };
    let insns = bpf_isa::assemble(&lines).map_err(|e| e.to_string())?;
    bpf_isa::encode(&insns).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_case() {
        let sum = case("a".into(), "r0 = 1; r0 += 2 => 3").unwrap();
        assert_eq!((sum.program.len(), sum.expected), (24, Expected::R0(3)));
        let bytes = case("a".into(), "hex 95000000 00000000 => reject").unwrap();
        assert_eq!((bytes.program, bytes.expected), (vec![0x95, 0, 0, 0, 0, 0, 0, 0], Expected::Reject));
        let cut = case("a".into(), "r0 = 1; noexit => reject").unwrap();
        assert_eq!(cut.program.len(), 8);
        assert!(case("a".into(), "r0 = 1").is_err());
        assert!(case("a".into(), "r0 = 1 => one").is_err());
        assert!(case("a".into(), "r0 => 1").is_err());
    }

    #[test]
    fn the_suite_is_read_whole() {
        assert!(suite().unwrap().len() > 900);
    }
}
