//! `.BTF.ext`: the functions' start addresses, the source line of each instruction, and the CO-RE relocations.
//!
//! Each of the three parts is a record size followed by blocks, one per code section, of records that begin with the
//! byte offset of an instruction in that section. The relocations of `.BTF.ext` are not needed: they refer to the
//! section symbols of a relocatable object, whose value is 0, so the stored offsets are final.

use super::{BtfProblem, ObjectError, Reader, StrOffset, TypeId};

/// The function that starts at an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FuncRecord {
    /// Slot in the section.
    pub(crate) slot: u32,
    /// Its [`super::Type::Func`].
    pub(crate) ty: TypeId,
}

/// Source line of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LineRecord {
    /// Slot in the section.
    pub(crate) slot: u32,
    /// File name.
    pub(crate) file: StrOffset,
    /// Text of the line.
    pub(crate) text: StrOffset,
    /// Line number, from 1.
    pub(crate) line: u32,
    /// Column, from 1; 0 if unknown.
    pub(crate) column: u32,
}

/// A CO-RE relocation of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CoreRecord {
    /// Slot in the section.
    pub(crate) slot: u32,
    /// Root type.
    pub(crate) ty: TypeId,
    /// Access string.
    pub(crate) access: StrOffset,
    /// Kind (btf.rst: enum bpf_core_relo_kind).
    pub(crate) kind: u32,
}

/// The records of one code section.
#[derive(Clone, Debug)]
pub(crate) struct Block<T> {
    /// The section's name.
    pub(crate) section: StrOffset,
    /// Byte offset of the block in `.BTF.ext`, for messages.
    pub(crate) offset: usize,
    /// The records, in file order.
    pub(crate) records: Vec<T>,
    record_size: usize,
}

impl<T> Block<T> {
    /// The records with their byte offsets in `.BTF.ext`.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        // A block begins with the section's name and the number of records.
        self.records.iter().enumerate().map(|(i, record)| (self.offset + 8 + i * self.record_size, record))
    }
}

/// The three parts, each with one block per code section.
#[derive(Clone, Debug, Default)]
pub(crate) struct BtfExt {
    pub(crate) funcs: Vec<Block<FuncRecord>>,
    pub(crate) lines: Vec<Block<LineRecord>>,
    pub(crate) core: Vec<Block<CoreRecord>>,
}

impl BtfExt {
    /// Parses the contents of `.BTF.ext`.
    pub(crate) fn parse(bytes: &[u8]) -> Result<BtfExt, ObjectError> {
        let mut r = Reader { section: ".BTF.ext", bytes, base: 0, pos: 0 };
        // 24 bytes without CO-RE, 32 with it; later versions may be longer.
        let header = r.header(24)?;
        let [func_off, func_len] = [r.u32()?, r.u32()?];
        let [line_off, line_len] = [r.u32()?, r.u32()?];
        let [core_off, core_len] = if header >= 32 { [r.u32()?, r.u32()?] } else { [0, 0] };
        Ok(BtfExt {
            funcs: blocks(r.part(header, func_off, func_len)?, 8, |slot, r| {
                Ok(FuncRecord { slot, ty: TypeId(r.u32()?) })
            })?,
            lines: blocks(r.part(header, line_off, line_len)?, 16, |slot, r| {
                let (file, text, position) = (StrOffset(r.u32()?), StrOffset(r.u32()?), r.u32()?);
                Ok(LineRecord { slot, file, text, line: position >> 10, column: position & 0x3ff })
            })?,
            core: blocks(r.part(header, core_off, core_len)?, 16, |slot, r| {
                let (ty, access, kind) = (TypeId(r.u32()?), StrOffset(r.u32()?), r.u32()?);
                Ok(CoreRecord { slot, ty, access, kind })
            })?,
        })
    }
}

fn blocks<T>(
    mut r: Reader<'_>,
    least: u32,
    mut record: impl FnMut(u32, &mut Reader<'_>) -> Result<T, ObjectError>,
) -> Result<Vec<Block<T>>, ObjectError> {
    let mut blocks = Vec::new();
    if r.at_end() {
        return Ok(blocks);
    }
    let size = r.u32()?;
    if size < least || size % 4 != 0 {
        return Err(r.fail(BtfProblem::RecordSize(size)));
    }
    while !r.at_end() {
        let offset = r.base + r.pos;
        let section = StrOffset(r.u32()?);
        let count = r.u32()?;
        let mut records = Vec::new();
        for _ in 0..count {
            let (base, at) = (r.base, r.pos);
            let mut fields = Reader { section: r.section, bytes: r.take(size as usize)?, base: base + at, pos: 0 };
            let offset = fields.u32()?;
            if offset % 8 != 0 {
                return Err(fields.fail(BtfProblem::InsnOffset(offset)));
            }
            records.push(record(offset / 8, &mut fields)?);
        }
        blocks.push(Block { section, offset, records, record_size: size as usize });
    }
    Ok(blocks)
}
