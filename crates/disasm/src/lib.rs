//! Prints machine code as text: one instruction per line, labels instead of addresses, symbols instead of relocated
//! fields.
//!
//! Both decoders are independent libraries (iced-x86, yaxpeax-arm), so that a wrong encoding does not print as the
//! intended instruction. A byte that does not decode is an error that names its offset; a test checks that every
//! emitted word decodes.
//!
//! Labels are named after the source of the code: `sub1` is the entry of subprogram 1, `L5` the code of BPF
//! instruction 5, `L5.1` a place inside that code. So text does not change when an unrelated instruction changes
//! size.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]

use bpf_jit_code::{Arch, Code, Reloc, RelocKind, Symbol};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Formatter, Instruction, IntelFormatter, OpKind, SymbolResolver, SymbolResult,
};
use std::collections::{BTreeMap, BTreeSet};
use yaxpeax_arch::{Decoder as _, U8Reader};
use yaxpeax_arm::armv8::a64::{InstDecoder, Opcode, Operand};

/// One machine instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// Its offset in the code.
    pub offset: u32,
    /// Its length in bytes.
    pub len: u32,
    /// The label before it, if a branch refers to it.
    pub label: Option<String>,
    /// The instruction.
    pub text: String,
    /// The offset it branches to (calls included), when that is a constant without a relocation.
    pub branch: Option<i64>,
}

/// An error for bytes that are not an instruction, or for a branch into the middle of one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DisasmError {
    /// No instruction starts here.
    #[error("no instruction at offset {offset}: {message}")]
    Undecodable {
        /// Offset of the bytes.
        offset: u32,
        /// The decoder's message.
        message: String,
    },
    /// The target of this branch is not the start of an instruction of the code.
    #[error("the branch at offset {offset} goes to offset {target}, where no instruction starts")]
    WildBranch {
        /// The branch.
        offset: u32,
        /// Its target.
        target: i64,
    },
}

/// The instructions of the code. `name` gives the name of a symbol.
pub fn lines(code: &Code, name: &dyn Fn(Symbol) -> String) -> Result<Vec<Line>, DisasmError> {
    let relocs: Vec<_> = code.relocs.iter().map(|reloc| (*reloc, name(reloc.symbol))).collect();
    let mut lines = match code.arch {
        Arch::X64 => x64(code, &relocs, &BTreeMap::new())?,
        Arch::Arm64 => arm64(code, &relocs, &BTreeMap::new())?,
    };
    let starts: BTreeSet<u32> = lines.iter().map(|line| line.offset).collect();
    let mut targets: BTreeSet<u32> = code.entries.iter().copied().filter(|&entry| entry != 0).collect();
    targets.extend(code.tables.iter().map(|table| table.start));
    for line in &lines {
        let Some(target) = line.branch else { continue };
        match u32::try_from(target).ok().filter(|at| starts.contains(at)) {
            Some(at) => targets.insert(at),
            None => return Err(DisasmError::WildBranch { offset: line.offset, target }),
        };
    }
    // The text depends on the labels, and the labels on the branches: the second pass prints with known names.
    let labels = label_names(code, &targets);
    if !labels.is_empty() {
        lines = match code.arch {
            Arch::X64 => x64(code, &relocs, &labels)?,
            Arch::Arm64 => arm64(code, &relocs, &labels)?,
        };
    }
    for line in &mut lines {
        line.label = labels.get(&line.offset).cloned();
    }
    Ok(lines)
}

fn label_names(code: &Code, targets: &BTreeSet<u32>) -> BTreeMap<u32, String> {
    let mut inside = BTreeMap::new();
    targets
        .iter()
        .map(|&at| {
            let entry = code.entries.iter().position(|&entry| entry == at);
            // The last of the instructions whose code starts here; earlier ones have no code.
            let exact = code.pc_map.iter().rev().find(|entry| entry.code == at).map(|entry| entry.insn);
            let name = match (entry, exact, code.insn_at(at)) {
                (Some(subprog), _, _) => format!("sub{subprog}"),
                (None, Some(insn), _) => format!("L{insn}"),
                (None, None, insn) => {
                    let count = inside.entry(insn).or_insert(0u32);
                    *count += 1;
                    insn.map_or(format!("entry.{count}"), |insn| format!("L{insn}.{count}"))
                }
            };
            (at, name)
        })
        .collect()
}

/// Converts an offset in code, which has 32 bits everywhere.
#[expect(clippy::cast_possible_truncation, reason = "no code of 4 GiB can be made; and debug builds check it")]
fn small(at: u64) -> u32 {
    debug_assert!(at <= u32::MAX.into());
    at as u32
}

/// The relocation whose field lies in `offset .. offset + len`.
fn relocated(relocs: &[(Reloc, String)], offset: u32, len: u32) -> Option<&(Reloc, String)> {
    relocs.get(relocs.partition_point(|(reloc, _)| reloc.at < offset)).filter(|(reloc, _)| reloc.at < offset + len)
}

/// Supplies iced with names: of a relocated field, or of the label at an address. (It owns them because iced's
/// formatter requires a `'static` resolver.)
struct Names {
    relocs: Vec<(Reloc, String)>,
    labels: BTreeMap<u32, String>,
}

impl SymbolResolver for Names {
    fn symbol(
        &mut self,
        instruction: &Instruction,
        _operand: u32,
        instruction_operand: Option<u32>,
        address: u64,
        _address_size: u32,
    ) -> Option<SymbolResult<'_>> {
        let kind = instruction.op_kind(instruction_operand?);
        let branch = matches!(kind, OpKind::NearBranch64);
        // A relocated instruction has one field that can hold the address: its branch target or its 64-bit immediate.
        if let Some((_, name)) = relocated(&self.relocs, small(instruction.ip()), small(instruction.len() as u64)) {
            return (branch || kind == OpKind::Immediate64).then(|| SymbolResult::with_str(address, name));
        }
        let to_code = branch || (kind == OpKind::Memory && instruction.is_ip_rel_memory_operand());
        let label = self.labels.get(&u32::try_from(address).ok()?)?;
        to_code.then(|| SymbolResult::with_str(address, label))
    }
}

/// The entry of a jump table at `offset`, if there is one. The entry holds the distance of its target from itself.
fn entry(code: &Code, offset: u32, labels: &BTreeMap<u32, String>) -> Option<Line> {
    let table = code.tables.get(code.tables.partition_point(|table| table.end <= offset))?;
    let bytes = table.contains(&offset).then(|| code.bytes.get(offset as usize..)?.first_chunk::<4>())??;
    let target = i64::from(offset) + i64::from(i32::from_le_bytes(*bytes));
    let name = u32::try_from(target).ok().and_then(|at| labels.get(&at));
    let text = name.map_or_else(|| format!(".long {target:#x} - $"), |name| format!(".long {name} - $"));
    Some(Line { offset, len: 4, label: None, text, branch: Some(target) })
}

fn x64(code: &Code, relocs: &[(Reloc, String)], labels: &BTreeMap<u32, String>) -> Result<Vec<Line>, DisasmError> {
    let mut formatter =
        IntelFormatter::with_options(Some(Box::new(Names { relocs: relocs.to_vec(), labels: labels.clone() })), None);
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_space_after_operand_separator(true);
    options.set_signed_immediate_operands(true);
    let mut decoder = Decoder::new(64, &code.bytes, DecoderOptions::NONE);
    let mut lines = Vec::new();
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        if let Some(line) = entry(code, small(decoder.ip()), labels)
            && decoder.set_position(decoder.position() + 4).is_ok()
        {
            decoder.set_ip(decoder.ip() + 4);
            lines.push(line);
            continue;
        }
        decoder.decode_out(&mut instruction);
        let offset = small(instruction.ip());
        if instruction.is_invalid() {
            return Err(DisasmError::Undecodable { offset, message: format!("{:?}", decoder.last_error()) });
        }
        let len = small(instruction.len() as u64);
        let mut text = String::new();
        formatter.format(&instruction, &mut text);
        let direct = match instruction.flow_control() {
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch | FlowControl::Call => true,
            FlowControl::Next
            | FlowControl::IndirectBranch
            | FlowControl::Return
            | FlowControl::IndirectCall
            | FlowControl::Interrupt
            | FlowControl::XbeginXabortXend
            | FlowControl::Exception => false,
        };
        let branch =
            (direct && relocated(relocs, offset, len).is_none()).then(|| instruction.near_branch_target() as i64);
        lines.push(Line { offset, len, label: None, text, branch });
    }
    Ok(lines)
}

fn arm64(code: &Code, relocs: &[(Reloc, String)], labels: &BTreeMap<u32, String>) -> Result<Vec<Line>, DisasmError> {
    let decoder = InstDecoder::default();
    let mut lines = Vec::new();
    for (i, word) in (0u32..).zip(code.bytes.chunks(4)) {
        let offset = i * 4;
        if let Some(line) = entry(code, offset, labels) {
            lines.push(line);
            continue;
        }
        let instruction = decoder
            .decode(&mut U8Reader::new(word))
            .map_err(|e| DisasmError::Undecodable { offset, message: format!("{word:02x?}: {e}") })?;
        // A zero word decodes, as a permanently undefined instruction.
        if instruction.opcode == Opcode::UDF {
            return Err(DisasmError::Undecodable { offset, message: "permanently undefined".into() });
        }
        let mut text = instruction.to_string();
        let mut branch = None;
        for operand in instruction.operands {
            let Operand::PCOffset(distance) = operand else { continue };
            let target = i64::from(offset) + distance;
            let shown =
                if distance < 0 { format!("$-{:#x}", distance.unsigned_abs()) } else { format!("$+{distance:#x}") };
            let name = match relocated(relocs, offset, 4) {
                Some((_, name)) => Some(name),
                None => {
                    branch = Some(target);
                    u32::try_from(target).ok().and_then(|at| labels.get(&at))
                }
            };
            if let Some(name) = name {
                text = text.replace(&shown, name);
            }
        }
        // The three words of a Mov48 share one relocation, at the first.
        let mov = relocs
            .iter()
            .find(|(reloc, _)| reloc.kind == RelocKind::Arm64Mov48 && (reloc.at..reloc.at + 12).contains(&offset));
        if let Some((reloc, name)) = mov {
            let part = (offset - reloc.at) / 4 * 16;
            text = text.replacen("#0x0", &format!("#({name} >> {part})"), 1);
        }
        lines.push(Line { offset, len: 4, label: None, text, branch });
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf_jit_code::PcEntry;

    fn text(code: &Code) -> Vec<String> {
        let lines = lines(code, &|symbol| format!("helper_{}", symbol.index)).unwrap();
        lines
            .into_iter()
            .map(|line| line.label.map_or(line.text.clone(), |label| format!("{label}: {}", line.text)))
            .collect()
    }

    fn code(arch: Arch, bytes: Vec<u8>) -> Code {
        Code { bytes, ..Code::new(arch) }
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn x64_names_labels_and_symbols() {
        // add rax, rdi; jne -5 (to the add); call helper; movabs rdx, symbol; ret
        let mut code = code(Arch::X64, b"\x48\x01\xf8\x75\xfb\xe8\0\0\0\0\x48\xba\0\0\0\0\0\0\0\0\xc3".to_vec());
        code.pc_map.push(PcEntry { code: 0, insn: 4 });
        code.relocs.push(Reloc { at: 6, kind: RelocKind::X64Rel32, symbol: Symbol::new(7) });
        code.relocs.push(Reloc { at: 12, kind: RelocKind::X64Abs64, symbol: Symbol::new(8) });
        let expected = ["L4: add rax, rdi", "jne short L4", "call helper_7", "mov rdx, helper_8", "ret"];
        assert_eq!(text(&code), expected);
    }

    #[test]
    fn arm64_names_labels_and_symbols() {
        // add x7, x7, x0; cbnz x7, -4; bl helper; movz/movk/movk x1; ret
        let mut code = code(
            Arch::Arm64,
            words(&[0x8b00_00e7, 0xb5ff_ffe7, 0x9400_0000, 0xd280_0001, 0xf2a0_0001, 0xf2c0_0001, 0xd65f_03c0]),
        );
        code.entries = vec![0];
        code.relocs.push(Reloc { at: 8, kind: RelocKind::Arm64Branch26, symbol: Symbol::new(7) });
        code.relocs.push(Reloc { at: 12, kind: RelocKind::Arm64Mov48, symbol: Symbol::new(8) });
        let expected = [
            "sub0: add x7, x7, x0",
            "cbnz x7, sub0",
            "bl helper_7",
            "mov x1, #(helper_8 >> 0)",
            "movk x1, #(helper_8 >> 16), lsl #16",
            "movk x1, #(helper_8 >> 32), lsl #32",
            "ret",
        ];
        assert_eq!(text(&code), expected);
    }

    /// Two entries that lead back to a return; as an instruction, the first byte of each is none.
    #[test]
    fn tables_are_entries() {
        let mut table = code(Arch::X64, b"\xc3\xff\xff\xff\xff\xfb\xff\xff\xff".to_vec());
        table.tables.push(1..9);
        assert_eq!(text(&table), ["entry.1: ret", "entry.2: .long entry.1 - $", ".long entry.1 - $"]);
        let mut table = code(Arch::Arm64, words(&[0xd65f_03c0, 0xffff_fffc]));
        table.tables.push(4..8);
        assert_eq!(text(&table), ["entry.1: ret", "entry.2: .long entry.1 - $"]);
        table.bytes[4] = 0xfa;
        let wild = lines(&table, &|_| String::new());
        assert_eq!(wild, Err(DisasmError::WildBranch { offset: 4, target: -2 }));
    }

    #[test]
    fn what_does_not_decode_is_named() {
        let none = |_: Symbol| String::new();
        let bad = lines(&code(Arch::X64, vec![0x90, 0x06]), &none);
        assert!(matches!(bad, Err(DisasmError::Undecodable { offset: 1, .. })), "{bad:?}");
        let bad = lines(&code(Arch::Arm64, words(&[0xd503_201f, 0])), &none);
        assert!(matches!(bad, Err(DisasmError::Undecodable { offset: 4, .. })), "{bad:?}");
        let cut = lines(&code(Arch::Arm64, vec![0x1f, 0x20, 0x03]), &none);
        assert!(matches!(cut, Err(DisasmError::Undecodable { offset: 0, .. })), "{cut:?}");
    }

    #[test]
    fn a_branch_into_an_instruction_is_found() {
        // jmp +1, into the immediate of the mov after it
        let bad = lines(&code(Arch::X64, b"\xeb\x01\xb8\0\0\0\0\xc3".to_vec()), &|_| String::new());
        assert_eq!(bad, Err(DisasmError::WildBranch { offset: 0, target: 3 }));
    }
}
