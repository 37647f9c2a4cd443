//! Reads the written formats back with other libraries, and tests that malformed units do no harm.

use crate::frames::{debug_frame, eh_frame, relative_eh_frame};
use crate::gdb::image;
use crate::unit::{Function, Line, Unit};
use crate::{Options, Registry};
use bpf_jit_code::{Arch, PcEntry, Unwind, UnwindOp};
use gimli::{BaseAddresses, CfaRule, EndianSlice, LittleEndian, Register, RegisterRule, UnwindContext, UnwindSection};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

/// A function that saves rbx, one without a frame, and a stop sequence.
fn unit() -> Unit {
    let note = |at, op| Unwind { at, op };
    let function =
        |name: &str, start, insn| Function { name: name.into(), start, insn, homes: None, source: None, stack: 0 };
    Unit {
        arch: Arch::X64,
        name: "filter".into(),
        base: 0x7000_1000,
        len: 40,
        functions: vec![function("filter", 0, Some(0)), function("sub", 16, Some(4)), function("<stop>", 32, None)],
        pc_map: vec![PcEntry { code: 1, insn: 1 }, PcEntry { code: 8, insn: 3 }, PcEntry { code: 20, insn: 5 }],
        lines: vec![
            Line { insn: 0, file: 0, line: 10, column: 2 },
            Line { insn: 3, file: 0, line: 12, column: 0 },
            Line { insn: 4, file: 1, line: 3, column: 1 },
        ],
        files: vec!["filter.c".into(), "lib/sub.h".into()],
        unwind: vec![
            note(0, UnwindOp::Function),
            note(1, UnwindOp::Cfa { base: 4, offset: 16 }),
            note(1, UnwindOp::Saved { reg: 3, offset: 16 }),
            note(14, UnwindOp::Remember),
            note(15, UnwindOp::Restored { reg: 3 }),
            note(15, UnwindOp::Cfa { base: 4, offset: 8 }),
            note(16, UnwindOp::Recall),
            note(16, UnwindOp::Function),
            note(32, UnwindOp::Outside),
        ],
        calls: Vec::new(),
        exits: Vec::new(),
        dwarf: Vec::new(),
    }
}

/// The CFA offset from rsp, and the rules of rbx and the return address, at an address.
fn rules(section: &[u8], address: u64) -> (u64, RegisterRule<usize>, RegisterRule<usize>) {
    let frames = gimli::EhFrame::from(EndianSlice::new(section, LittleEndian));
    let bases = BaseAddresses::default().set_eh_frame(0);
    let mut context = UnwindContext::new();
    let row = frames
        .unwind_info_for_address(&bases, &mut context, address, gimli::EhFrame::cie_from_offset)
        .expect("a frame for the address");
    let CfaRule::RegisterAndOffset { register: Register(7), offset } = *row.cfa() else { panic!("{row:?}") };
    let rule = |register| row.register(Register(register)).unwrap_or(RegisterRule::Undefined);
    (offset as u64, rule(3), rule(16))
}

#[test]
fn frames_say_what_the_notes_say() {
    let unit = unit();
    let section = eh_frame(&unit).unwrap();
    let base = unit.base as u64;
    let outside = RegisterRule::Undefined;
    let ra = || RegisterRule::Offset(-8);
    assert_eq!(rules(&section, base), (8, outside.clone(), ra()));
    for at in 1..15 {
        assert_eq!(rules(&section, base + at), (16, RegisterRule::Offset(-16), ra()), "{at}");
    }
    assert_eq!(rules(&section, base + 15), (8, outside.clone(), ra()));
    // The recall at the end of the first function does not belong to the second one.
    assert_eq!(rules(&section, base + 16), (8, outside.clone(), ra()));
    assert_eq!(rules(&section, base + 33), (8, outside.clone(), outside.clone()));
    assert!(section.ends_with(&[0; 4]), "the terminator that __register_frame needs");
    // The relative form: the section lies 24 bytes after the function, so the function is at -24.
    let relative = relative_eh_frame(&unit, 0, 24).unwrap();
    assert_eq!(rules(&relative, 5u64.wrapping_sub(24)), (16, RegisterRule::Offset(-16), ra()));
}

#[test]
fn debuggers_get_an_elf_file_with_symbols_frames_and_lines() {
    let unit = unit();
    let bytes = image(&unit);
    let file = object::File::parse(&*bytes).unwrap();
    let text = file.section_by_name(".text").unwrap();
    assert_eq!((text.address(), text.size(), text.data().unwrap().len()), (unit.base as u64, 40, 0));
    let symbols: Vec<(&str, u64, u64)> = file
        .symbols()
        .filter(|s| s.kind() == SymbolKind::Text)
        .map(|s| (s.name().unwrap(), s.address() - unit.base as u64, s.size()))
        .collect();
    assert_eq!(symbols, [("bpf:filter", 0, 16), ("bpf:filter/sub", 16, 16), ("bpf:filter/<stop>", 32, 8)]);
    assert_eq!(file.section_by_name(".debug_frame").unwrap().data().unwrap(), debug_frame(&unit).unwrap());

    let load = |id: gimli::SectionId| -> Result<_, gimli::Error> {
        let data = file.section_by_name(id.name()).and_then(|s| s.data().ok()).unwrap_or(&[]);
        Ok(EndianSlice::new(data, LittleEndian))
    };
    let dwarf = gimli::Dwarf::load(load).unwrap();
    let header = dwarf.units().next().unwrap().unwrap();
    let lines = dwarf.unit(header).unwrap().line_program.unwrap();
    let mut rows = lines.rows();
    let mut found = Vec::new();
    while let Some((header, row)) = rows.next_row().unwrap() {
        if !row.end_sequence() {
            let name = row.file(header).unwrap().path_name();
            let name = dwarf.attr_string(&dwarf.unit(dwarf.units().next().unwrap().unwrap()).unwrap(), name).unwrap();
            let line = row.line().unwrap().get();
            found.push((row.address() - unit.base as u64, name.to_string().unwrap().to_owned(), line));
        }
    }
    let expected =
        [(0, "filter.c", 10), (1, "filter.c", 10), (8, "filter.c", 12), (16, "lib/sub.h", 3), (20, "lib/sub.h", 3)];
    assert_eq!(found, expected.map(|(at, file, line)| (at, file.to_owned(), line)));
}

#[test]
fn odd_units_do_no_harm() {
    let mut odd = unit();
    odd.name = "a\0b\nc".into();
    odd.functions[1] =
        Function { name: String::new(), start: 1000, insn: Some(77), homes: None, source: None, stack: 0 };
    odd.functions.push(Function { name: "twice".into(), start: 1000, insn: None, homes: None, source: None, stack: 0 });
    odd.files = vec![String::new(), "nul\0inside".into()];
    odd.lines.push(Line { insn: 5, file: 99, line: 0, column: 0 });
    odd.unwind.push(Unwind { at: 5000, op: UnwindOp::Cfa { base: 200, offset: 7 } });
    object::File::parse(&*image(&odd)).unwrap();
    assert!(!odd.symbol(0).contains(['\0', '\n']));
    for function in 0..10 {
        odd.rows(function);
        odd.symbol(function);
        relative_eh_frame(&odd, function, 8);
    }

    let options = Options { symbols: true, ..Options::default() };
    let Ok(registry) = Registry::new(&options) else { return };
    let empty = Unit { functions: Vec::new(), len: 8, ..odd.clone() };
    // SAFETY: without `unwind` no tool uses the notes.
    let first = unsafe { registry.add(odd, &[]) };
    // SAFETY: without `unwind` no tool uses the notes.
    let second = unsafe { registry.add(empty, &[]) };
    for ip in 0x7000_0ff0..0x7000_1100 {
        registry.symbolize(ip);
    }
    // The second unit has replaced the first; dropping the first does not remove the second.
    drop(first);
    assert_eq!(registry.symbolize(0x7000_1000), None, "no function, no name");
    drop(second);
}

#[test]
fn a_unit_in_the_place_of_another_is_the_one_that_is_known() {
    let options = Options { symbols: true, ..Options::default() };
    let Ok(registry) = Registry::new(&options) else { return };
    let name = |ip| registry.symbolize(ip).map(|place| place.program);
    // SAFETY: without `unwind` no tool uses the notes.
    let old = unsafe { registry.add(unit(), &[]) };
    let new = Unit { name: "new".into(), base: 0x7000_1010, ..unit() };
    // SAFETY: without `unwind` no tool uses the notes.
    let new = unsafe { registry.add(new, &[]) };
    assert_eq!(name(0x7000_1000), None);
    assert_eq!(name(0x7000_1010).as_deref(), Some("new"));
    drop(old);
    assert_eq!(name(0x7000_1010).as_deref(), Some("new"));
    drop(new);
    assert_eq!(name(0x7000_1010), None);
}
