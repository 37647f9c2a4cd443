//! Lays out a program: places it and the functions it reaches one after the other, and patches their references.
//!
//! Order: depth first, in the order of the calls. libbpf uses this order too, so instruction numbers agree with the
//! numbers that the kernel and its tools print for the object. Calls and function addresses between functions become
//! relative to the new places; map references become indices into the object's maps, calls of host functions indices
//! into its host functions. Relative jumps move with their function unchanged. A call into the calling function itself
//! (assembly with local labels) is left unchanged, because the function is copied whole.
//!
//! The function that a program names as its exception callback (`btf_decl_tag("exception_callback:NAME")`) has no
//! callers. To include it in the program and in its call graph, the program ends in an unreachable call of it and an
//! exit.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use bpf_isa::{Callee, Imm64, Insn, InsnIdx, MAX_INSNS};

use crate::btf::{LineRecord, Type};
use crate::code::{Code, CodeFunction, CodeTable, CoreKind, CoreRelocation, Reference, ReferenceKind};
use crate::error::{CallProblem, ObjectError};
use crate::function::{Function, FunctionId, Target};
use crate::object::{Object, Program};

/// The complete code of a program.
pub(crate) fn build(object: &Object, program: &Program) -> Result<Code, ObjectError> {
    let layout = Layout::new(object, program)?;
    let mut code = Code {
        program: program.name().to_owned(),
        kind: program.kind(),
        insns: Vec::with_capacity(layout.len),
        functions: Vec::with_capacity(layout.placed.len()),
        references: Vec::new(),
        core: Vec::new(),
        lines: Vec::new(),
        btf: object.btf.clone(),
        dwarf: object.dwarf.clone(),
        exception: None,
        tables: Vec::new(),
    };
    for placed in &layout.placed {
        let function = object.functions.get(placed.id)?;
        layout.copy(function, placed, &mut code)?;
        describe(object, function, placed.start, &mut code)?;
        if let (0, Some(start)) = (placed.start, layout.exception()) {
            let at = InsnIdx(placed.start + function.len);
            code.insns.extend([with_function(Insn::Call(Callee::Subprog(0)), at, start)?, Insn::Exit]);
            code.functions.iter_mut().for_each(|main| main.len += PAD);
            code.exception = Some(InsnIdx(start));
        }
    }
    Ok(code)
}

/// A function that was placed in the program's code.
struct Placed {
    id: FunctionId,
    start: u32,
    /// Calls and address loads of functions: `(slot in the function, callee)`, in order.
    calls: Vec<(u32, FunctionId)>,
}

struct Layout<'a> {
    object: &'a Object,
    program: &'a Program,
    placed: Vec<Placed>,
    starts: HashMap<FunctionId, u32>,
    /// Number of slots laid out so far.
    len: usize,
    /// The program's exception callback.
    exception: Option<FunctionId>,
}

/// Slots after the program that call its exception callback.
const PAD: u32 = 2;

impl<'a> Layout<'a> {
    fn new(object: &'a Object, program: &'a Program) -> Result<Layout<'a>, ObjectError> {
        let exception = exception_callback(object, program)?;
        let mut layout = Layout { object, program, placed: Vec::new(), starts: HashMap::new(), len: 0, exception };
        // An explicit stack: a hostile object can make the chain of calls as long as the file.
        let mut stack = vec![(layout.place(program.function)?, 0)];
        while let Some((caller, next)) = stack.pop() {
            let Some(&(_, callee)) = layout.placed[caller].calls.get(next) else { continue };
            stack.push((caller, next + 1));
            if !layout.starts.contains_key(&callee) {
                stack.push((layout.place(callee)?, 0));
            }
        }
        Ok(layout)
    }

    /// Appends a function and returns its index in `placed`.
    fn place(&mut self, id: FunctionId) -> Result<usize, ObjectError> {
        let function = self.object.functions.get(id)?;
        let too_many = || ObjectError::TooManyInsns { program: self.program.name().to_owned(), max: MAX_INSNS };
        let start = u32::try_from(self.len).map_err(|_| too_many())?;
        let mut calls = calls(self.object, function)?;
        self.len += function.len as usize;
        if let (true, Some(callback)) = (self.placed.is_empty(), self.exception) {
            calls.push((function.len, callback));
            self.len += PAD as usize;
        }
        if self.len > MAX_INSNS {
            return Err(too_many());
        }
        self.starts.insert(id, start);
        self.placed.push(Placed { id, start, calls });
        Ok(self.placed.len() - 1)
    }

    /// The slot of the exception callback.
    fn exception(&self) -> Option<u32> {
        self.starts.get(&self.exception?).copied()
    }

    fn copy(&self, function: &Function, placed: &Placed, code: &mut Code) -> Result<(), ObjectError> {
        let mut refs = function.refs.iter().peekable();
        let mut calls = placed.calls.iter().peekable();
        // By their indices in the object: no other function refers to a table of this one.
        let mut tables: HashMap<usize, usize> = HashMap::new();
        for (slot, &insn) in (0u32..).zip(body(self.object, function)?) {
            let here = InsnIdx(placed.start + slot);
            let reference = refs.next_if(|r| r.0 == slot).map(|r| r.1);
            let external = match reference {
                Some(Target::Table { table, off }) => {
                    let own = match tables.entry(table) {
                        Entry::Occupied(own) => *own.get(),
                        Entry::Vacant(new) => {
                            code.tables.push(self.table(table, placed.start)?);
                            *new.insert(code.tables.len() - 1)
                        }
                    };
                    Some(ReferenceKind::Table { table: own, off })
                }
                reference => reference.and_then(external),
            };
            let insn = match (calls.next_if(|c| c.0 == slot), external) {
                (Some(&(_, callee)), _) => {
                    let start = self.starts.get(&callee);
                    let start = start.ok_or(ObjectError::Internal("a callee without a place"))?;
                    with_function(insn, here, *start)?
                }
                (None, Some(kind)) => {
                    code.references.push(Reference { insn: here, kind });
                    with_reference(insn, kind, self.object.maps().len())?
                }
                (None, None) => insn,
            };
            code.insns.push(insn);
        }
        Ok(())
    }

    /// A jump table of the function that starts at slot `start`.
    fn table(&self, table: usize, start: u32) -> Result<CodeTable, ObjectError> {
        let table = self.object.jump_tables.get(table);
        let table = table.ok_or(ObjectError::Internal("a jump table that does not exist"))?;
        let targets = table.slots.iter().map(|slot| InsnIdx(start + slot)).collect();
        Ok(CodeTable { name: table.name.clone(), targets })
    }
}

/// The function that a tag of the program names as its exception callback.
fn exception_callback(object: &Object, program: &Program) -> Result<Option<FunctionId>, ObjectError> {
    let (Some(btf), Some(ty)) = (&object.btf, object.functions.get(program.function)?.ty) else { return Ok(None) };
    let tag = |name| btf.name(name).strip_prefix("exception_callback:");
    let mut tags = btf.types().filter_map(|(_, of)| match *of {
        Type::DeclTag { name, to, component: -1 } if to == ty => tag(name),
        _ => None,
    });
    let Some(name) = tags.next() else { return Ok(None) };
    let wrong = |problem| {
        let (program, callback) = (program.name().to_owned(), name.to_owned());
        Err(ObjectError::ExceptionCallback { program, callback, problem })
    };
    if tags.next().is_some() {
        return wrong("it is not the only one that the program names");
    }
    match object.functions.named(name) {
        Some(id) if object.functions.get(id)?.names.iter().any(|n| n.exported) => Ok(Some(id)),
        Some(_) => wrong("it is a static function, and must be global"),
        None => wrong("the object has no function of this name"),
    }
}

fn body<'a>(object: &Object, function: &'a Function) -> Result<&'a [Insn], ObjectError> {
    match &function.body {
        Ok(body) => Ok(body),
        Err(source) => Err(ObjectError::Decode {
            section: object.section_name(function.section)?.as_ref().to_owned(),
            function: function.name().to_owned(),
            start: function.start,
            source: *source,
        }),
    }
}

/// The other functions that a function calls or takes the address of.
fn calls(object: &Object, function: &Function) -> Result<Vec<(u32, FunctionId)>, ObjectError> {
    let mut calls = Vec::new();
    let mut refs = function.refs.iter().peekable();
    for (slot, insn) in (0u32..).zip(body(object, function)?) {
        match refs.next_if(|r| r.0 == slot) {
            Some(&(_, Target::Function(callee))) => calls.push((slot, callee)),
            Some(_) => {}
            None => calls.extend(unrelocated_call(object, function, slot, insn)?.map(|callee| (slot, callee))),
        }
    }
    Ok(calls)
}

/// The other function that an instruction without a relocation refers to: inside a section, calls are relative
/// already.
fn unrelocated_call(
    object: &Object,
    function: &Function,
    slot: u32,
    insn: &Insn,
) -> Result<Option<FunctionId>, ObjectError> {
    let offset = match *insn {
        Insn::Call(Callee::Subprog(offset)) | Insn::LoadImm64 { imm: Imm64::Func(offset), .. } => offset,
        _ => return Ok(None),
    };
    let inside = i64::from(slot) + 1 + i64::from(offset);
    if (0..i64::from(function.len)).contains(&inside) {
        return Ok(None);
    }
    let target = i64::from(function.start) + inside;
    if let Some(id) = object.functions.starting_at(function.section, target) {
        return Ok(Some(id));
    }
    let problem = match (0..object.section_slots(function.section)).contains(&target) {
        true => CallProblem::NotAFunction(target),
        false => CallProblem::OutOfSection(target),
    };
    Err(ObjectError::Call {
        section: object.section_name(function.section)?.as_ref().to_owned(),
        function: function.name().to_owned(),
        insn: InsnIdx(slot),
        problem,
    })
}

/// The kind of a reference in the finished code; `None` for functions of the object.
fn external(target: Target) -> Option<ReferenceKind> {
    match target {
        Target::Function(_) => None,
        Target::Map(map) => Some(ReferenceKind::Map(map)),
        Target::MapValue { map, off } => Some(ReferenceKind::MapValue { map, off }),
        // Numbered per program.
        Target::Table { .. } => None,
        Target::HostCall(host) => Some(ReferenceKind::HostCall(host)),
        Target::HostAddress(host) => Some(ReferenceKind::HostAddress(host)),
        Target::Extern(index) => Some(ReferenceKind::Extern(index)),
    }
}

/// `insn` with the index of the object that it refers to, in an object with `maps` maps.
fn with_reference(insn: Insn, kind: ReferenceKind, maps: usize) -> Result<Insn, ObjectError> {
    let number = |index| i32::try_from(index).map_err(|_| ObjectError::Internal("an index beyond 31 bits"));
    let imm = match (insn, kind) {
        (Insn::Call(_), ReferenceKind::HostCall(host)) => return Ok(Insn::Call(Callee::Host(number(host)?))),
        (_, ReferenceKind::Map(map)) => Imm64::MapIdx(number(map)?),
        (_, ReferenceKind::MapValue { map, off }) => Imm64::MapIdxValue { map: number(map)?, off },
        (_, ReferenceKind::Table { table, off }) => Imm64::MapIdxValue { map: number(maps + table)?, off },
        (_, ReferenceKind::HostAddress(_) | ReferenceKind::Extern(_)) => Imm64::Const(0),
        (_, ReferenceKind::HostCall(_)) => return Err(ObjectError::Internal("a host call on a load")),
    };
    match insn {
        Insn::LoadImm64 { dst, .. } => Ok(Insn::LoadImm64 { dst, imm }),
        _ => Err(ObjectError::Internal("an address on an instruction that loads none")),
    }
}

/// `insn`, at `here`, calling or loading the address of the function at `target`.
fn with_function(insn: Insn, here: InsnIdx, target: u32) -> Result<Insn, ObjectError> {
    // Both are at most MAX_INSNS.
    let offset = target as i32 - here.0 as i32 - 1;
    match insn {
        Insn::Call(_) => Ok(Insn::Call(Callee::Subprog(offset))),
        Insn::LoadImm64 { dst, .. } => Ok(Insn::LoadImm64 { dst, imm: Imm64::Func(offset) }),
        _ => Err(ObjectError::Internal("a function reference on the wrong instruction")),
    }
}

/// Records a function's origin, its source lines and its CO-RE relocations.
fn describe(object: &Object, function: &Function, start: u32, code: &mut Code) -> Result<(), ObjectError> {
    let name = match start {
        0 => code.program.clone(), // If the program's function has several names, the requested one.
        _ => function.name().to_owned(),
    };
    code.functions.push(CodeFunction {
        name,
        section: object.section_name(function.section)?.clone(),
        section_slot: function.start,
        start: InsnIdx(start),
        len: function.len,
        global: function.names.iter().any(|n| n.exported),
        ty: function.ty,
    });
    code.lines.extend(function.lines.iter().map(|line| LineRecord { slot: line.slot + start, ..*line }));
    for record in &function.core {
        let Some(kind) = CoreKind::new(record.kind) else {
            return Err(ObjectError::Internal("an unchecked CO-RE relocation"));
        };
        code.core.push(CoreRelocation {
            insn: InsnIdx(start + record.slot),
            kind,
            ty: record.ty,
            access: record.access,
        });
    }
    Ok(())
}
