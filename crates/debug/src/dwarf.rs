//! Variables and source lines for debuggers: DWARF 4 with a compilation unit for the program, its functions,
//! their variables, and a line table.

use crate::unit::{Row, Unit};
use crate::variables;
use gimli::write::{Address, AttributeValue, Dwarf, EndianVec, LineProgram, LineString, Sections, UnitEntryId};
use gimli::{DwAt, Encoding, Format, LineEncoding, LittleEndian};

/// GDB takes a function's second line to be behind its prologue, where it breaks, only for producers whose names begin
/// so. The instructions are mostly clang's, and have a line there ([`line_program`]).
const PRODUCER: &[u8] = b"clang (bpf-debug)";

/// Name and bytes of a section.
pub(crate) type Section = (&'static str, Vec<u8>);

/// The debug sections of a unit.
///
/// GDB parses `bpf:filter` as the function `filter` of the file `bpf`. So beside the unit with the real source files,
/// whose functions have their full names, there is a unit with that file name. It is declared one byte longer,
/// because GDB assigns an address to the smaller of two units that contain it.
pub(crate) fn sections(unit: &Unit) -> Option<Vec<Section>> {
    let encoding = Encoding { format: Format::Dwarf32, version: 4, address_size: 8 };
    let mut dwarf = Dwarf::new();
    let lines = match unit.lines.is_empty() || unit.files.is_empty() {
        true => LineProgram::none(),
        false => line_program(unit, encoding),
    };
    let source = dwarf.units.add(gimli::write::Unit::new(encoding, lines));
    let first = unit.files.first().map_or("?", String::as_str);
    let functions = describe(dwarf.units.get_mut(source), unit, first, 0, str::to_owned);
    variables::describe(unit, dwarf.units.get_mut(source), &functions);
    let named = dwarf.units.add(gimli::write::Unit::new(encoding, LineProgram::none()));
    describe(dwarf.units.get_mut(named), unit, "bpf", 1, |symbol| symbol.trim_start_matches("bpf:").to_owned());

    let mut sections = Sections::new(EndianVec::new(LittleEndian));
    dwarf.write(&mut sections).ok()?;
    let mut out = Vec::new();
    let collected: Result<(), ()> = sections.for_each_mut(|id, data| {
        let bytes = data.take();
        if !bytes.is_empty() {
            out.push((id.name(), bytes));
        }
        Ok(())
    });
    collected.ok().map(|()| out)
}

/// Fills in a unit with this file name, declared `longer` bytes longer than its code, with its functions named by
/// `name`.
fn describe(
    out: &mut gimli::write::Unit,
    unit: &Unit,
    file: &str,
    longer: u64,
    name: impl Fn(&str) -> String,
) -> Vec<UnitEntryId> {
    let root = out.root();
    set(out, root, gimli::DW_AT_name, AttributeValue::String(text(file)));
    set(out, root, gimli::DW_AT_producer, AttributeValue::String(PRODUCER.to_vec()));
    set(out, root, gimli::DW_AT_language, AttributeValue::Language(gimli::DW_LANG_C99));
    place(out, root, unit.base as u64, unit.len as u64 + longer);
    let functions = 0..unit.functions.len();
    let entries = functions.map(|function| {
        let (start, end) = unit.range(function);
        let entry = out.add(root, gimli::DW_TAG_subprogram);
        set(out, entry, gimli::DW_AT_name, AttributeValue::String(text(&name(&unit.symbol(function)))));
        set(out, entry, gimli::DW_AT_external, AttributeValue::Flag(true));
        place(out, entry, unit.base as u64 + u64::from(start), u64::from(end - start));
        entry
    });
    entries.collect()
}

fn set(unit: &mut gimli::write::Unit, entry: UnitEntryId, name: DwAt, value: AttributeValue) {
    unit.get_mut(entry).set(name, value);
}

/// Sets an entry's address range.
fn place(unit: &mut gimli::write::Unit, entry: UnitEntryId, address: u64, len: u64) {
    set(unit, entry, gimli::DW_AT_low_pc, AttributeValue::Address(Address::Constant(address)));
    set(unit, entry, gimli::DW_AT_high_pc, AttributeValue::Udata(len));
}

fn line_program(unit: &Unit, encoding: Encoding) -> LineProgram {
    let directory = LineString::String(b".".to_vec());
    let name = |file: &str| LineString::String(text(file));
    let first = name(unit.files.first().map_or("", String::as_str));
    let mut program = LineProgram::new(encoding, LineEncoding::default(), directory, None, first, None);
    let directory = program.default_directory();
    let files: Vec<_> = unit.files.iter().map(|file| program.add_file(name(file), directory, None)).collect();
    for function in 0..unit.functions.len() {
        let mut rows = unit.rows(function);
        if rows.is_empty() {
            continue;
        }
        let (start, end) = unit.range(function);
        program.begin_sequence(Some(Address::Constant(unit.base as u64 + u64::from(start))));
        let body = unit.body(function);
        let behind = rows.partition_point(|row| row.code <= body);
        if let Some(before) = behind.checked_sub(1).filter(|before| rows[*before].code < body) {
            let line = rows[before].line;
            rows.insert(behind, Row { code: body, line });
        }
        for row in rows {
            let Some(file) = files.get(row.line.file as usize) else { continue };
            let out = program.row();
            out.address_offset = u64::from(row.code - start);
            out.file = *file;
            out.line = row.line.line.into();
            out.column = row.line.column.into();
            out.prologue_end = row.code == body;
            program.generate_row();
        }
        program.end_sequence(u64::from(end - start));
    }
    program
}

/// Converts text to a C string that is not empty: gimli panics on anything else.
fn text(text: &str) -> Vec<u8> {
    let bytes: Vec<u8> = text.bytes().filter(|b| *b != 0).collect();
    if bytes.is_empty() { b"?".to_vec() } else { bytes }
}
