//! Jump tables: the section `.jumptables`, which compilers emit for the indirect jumps of functions.
//!
//! Problem: LLVM (22 and later) compiles `switch` and computed `goto` to a load from a table and a `gotox`. The
//! tables are symbols of a separate section. An entry has eight bytes, the place of an instruction as a byte offset
//! in the section of its function, with or without a relocation against it. Approach: the load of a table's address
//! is a reference to a [`JumpTable`], whose targets are slots of the function with the load. Functions are placed per
//! program, so the contents of such a map are computed there ([`crate::Code::jump_tables`]), and each program has its
//! own maps, as in libbpf.
//!
//! Invariants: each target is the start of an instruction of the one function that refers to its table; no two tables
//! share an entry, so all of them together are no longer than their sections.
//!
//! Source: libbpf 1.7 (`create_jt_map`) for the meaning of an entry, and for the place and length of a table, which
//! are its symbol's.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use bpf_isa::Insn;

use crate::elf::{Elf, JUMP_TABLES, Place, R_ABS64, Rel, Symbol};
use crate::error::{ObjectError, RelocationProblem};
use crate::function::{Function, FunctionId, Functions, SLOT, Target};

/// Bytes of an entry.
const ENTRY: u64 = 8;

/// A table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct JumpTable {
    pub(crate) name: String,
    /// Slots in the function that refers to the table.
    pub(crate) slots: Vec<u32>,
}

/// A table that has been read, with the function that owns it.
struct Known {
    end: u64,
    function: FunctionId,
    index: usize,
}

/// The tables that the object's functions refer to.
pub(crate) struct JumpTables<'a, 'e> {
    elf: &'a Elf<'e>,
    list: Vec<JumpTable>,
    /// By section and first byte.
    known: BTreeMap<(usize, u64), Known>,
    /// Relocations of the sections' words, by section and byte.
    relocations: HashMap<usize, HashMap<u64, Rel>>,
}

impl<'a, 'e> JumpTables<'a, 'e> {
    pub(crate) fn new(elf: &'a Elf<'e>) -> JumpTables<'a, 'e> {
        JumpTables { elf, list: Vec::new(), known: BTreeMap::new(), relocations: HashMap::new() }
    }

    pub(crate) fn finish(self) -> Vec<JumpTable> {
        self.list
    }

    /// The table that an instruction of `function` refers to by loading the address `symbol + addend`; `None` if that
    /// is not a jump table.
    pub(crate) fn target(
        &mut self,
        functions: &Functions,
        function: FunctionId,
        symbol: &Symbol<'e>,
        addend: u64,
    ) -> Result<Option<Target>, ObjectError> {
        let Place::Section(section) = symbol.place else { return Ok(None) };
        if self.elf.sections[section].name != JUMP_TABLES || self.elf.sections[section].code {
            return Ok(None);
        }
        let table = match self.known.get(&(section, symbol.value)) {
            Some(known) if known.function == function && known.end == symbol.value.saturating_add(symbol.size) => {
                known.index
            }
            Some(_) | None => self.read(functions, function, section, symbol)?,
        };
        match u32::try_from(addend) {
            Ok(off) if addend < symbol.size && addend.is_multiple_of(ENTRY) => Ok(Some(Target::Table { table, off })),
            Ok(_) | Err(_) => {
                let problem = RelocationProblem::InsideTable(addend as i64);
                Err(self.fail(section, symbol, symbol.value.wrapping_add(addend), problem))
            }
        }
    }

    /// Reads a table and returns its index.
    fn read(
        &mut self,
        functions: &Functions,
        function: FunctionId,
        section: usize,
        symbol: &Symbol<'e>,
    ) -> Result<usize, ObjectError> {
        let (start, size) = (symbol.value, symbol.size);
        let fail = |this: &Self, byte, problem| Err(this.fail(section, symbol, byte, problem));
        let end = start.checked_add(size).filter(|end| *end <= self.elf.sections[section].data.len() as u64);
        let bytes = end.and_then(|end| {
            let range = usize::try_from(start).ok()?..usize::try_from(end).ok()?;
            self.elf.sections[section].data.get(range)
        });
        let (Some(end), Some(bytes)) = (end, bytes.filter(|_| size != 0 && start % ENTRY == 0 && size % ENTRY == 0))
        else {
            return fail(self, start, RelocationProblem::TableExtent { size });
        };
        // The table that begins last before this one's end: tables do not overlap, so all others end before it
        // begins.
        if let Some((_, known)) = self.known.range((section, 0)..(section, end)).next_back()
            && known.end > start
        {
            let other = self.list.get(known.index).map_or("", |table| &table.name).to_owned();
            return fail(self, start, RelocationProblem::TableShared(other));
        }
        let of = functions.get(function)?;
        let mut slots = Vec::with_capacity(bytes.len() / size_of::<u64>());
        for (at, word) in (0u64..).map(|i| start + i * ENTRY).zip(bytes.as_chunks().0) {
            let word = u64::from_le_bytes(*word);
            let byte = self.relocated(section, at, word, of)?;
            match slot_of(of, byte) {
                Ok(slot) => slots.push(slot),
                Err(why) => {
                    let code = self.elf.sections[of.section].name.to_owned();
                    return fail(self, at, RelocationProblem::JumpTarget { byte, section: code, why });
                }
            }
        }
        let index = self.list.len();
        self.list.push(JumpTable { name: self.elf.display_name(symbol).to_owned(), slots });
        self.known.insert((section, start), Known { end, function, index });
        Ok(index)
    }

    /// The byte of the function's section that an entry leads to: the word, plus its relocation.
    fn relocated(&mut self, section: usize, at: u64, word: u64, of: &Function) -> Result<u64, ObjectError> {
        let elf = self.elf;
        let all = match self.relocations.entry(section) {
            Entry::Occupied(all) => all.into_mut(),
            Entry::Vacant(new) => new.insert(entries(elf, section)?),
        };
        let Some(&rel) = all.get(&at) else { return Ok(word) };
        let target = elf.relocation_symbol(section, rel)?;
        if rel.ty != R_ABS64 {
            return Err(self.fail(section, target, at, RelocationProblem::UnknownType(rel.ty)));
        }
        if target.place != Place::Section(of.section) {
            let name = elf.sections[of.section].name.to_owned();
            return Err(self.fail(section, target, at, RelocationProblem::OtherSection(name)));
        }
        Ok(word.wrapping_add(target.value))
    }

    fn fail(&self, section: usize, symbol: &Symbol<'_>, offset: u64, problem: RelocationProblem) -> ObjectError {
        let section = self.elf.sections[section].name.to_owned();
        ObjectError::Relocation { section, offset, symbol: self.elf.display_name(symbol).to_owned(), problem }
    }
}

/// The relocations of a section of tables, by the byte of their entry.
fn entries(elf: &Elf<'_>, section: usize) -> Result<HashMap<u64, Rel>, ObjectError> {
    let bytes = elf.sections[section].data.len() as u64;
    let mut all = HashMap::new();
    for rel in elf.relocations_of(section) {
        let inside = rel.offset.checked_add(ENTRY).is_some_and(|end| end <= bytes);
        let problem = match all.insert(rel.offset, rel) {
            _ if !inside || !rel.offset.is_multiple_of(ENTRY) => RelocationProblem::Offset,
            Some(_) => RelocationProblem::Duplicate,
            None => continue,
        };
        return Err(ObjectError::Relocation {
            section: elf.sections[section].name.to_owned(),
            offset: rel.offset,
            symbol: elf.display_name(elf.relocation_symbol(section, rel)?).to_owned(),
            problem,
        });
    }
    Ok(all)
}

/// The slot of the function that begins at this byte of its section.
fn slot_of(function: &Function, byte: u64) -> Result<u32, &'static str> {
    let inside = (byte / SLOT).checked_sub(function.start.into()).filter(|slot| *slot < function.len.into());
    let Some(slot) = inside.and_then(|slot| u32::try_from(slot).ok()) else {
        return Err("outside of the function that jumps by the table");
    };
    let insn = function.body.as_ref().ok().and_then(|body| body.get(slot as usize));
    match insn {
        _ if !byte.is_multiple_of(SLOT) => Err("not where an instruction begins"),
        Some(Insn::SecondSlot) | None => Err("in the second half of a two-slot load"),
        Some(_) => Ok(slot),
    }
}
