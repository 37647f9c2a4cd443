//! The stack of a frame: byte by byte whether it may be read, and the values of slots that were written whole.
//!
//! Invariants: cells ascend by address and do not overlap; under a cell with a pointer all bytes are [`Byte::Opaque`],
//! under one with a number all are [`Byte::Number`]. So what forgets a cell leaves bytes that say what is there.

use super::value::Value;

/// What is known of a byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Byte {
    /// Nothing was written. Where no byte of a read was, it is a mistake.
    Fresh,
    /// Nothing was written, or a number: whoever reads it makes the host clear it when the function is entered.
    Maybe,
    /// A number, or part of one, was written.
    Number,
    /// It may be part of a pointer: it is not read as a number.
    Opaque,
}

/// A value in so many bytes from `r10 - depth` on. A number is what those bytes are, zero-extended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cell {
    /// The distance of its first byte from the frame's top.
    pub depth: u32,
    /// Its bytes: 1, 2, 4 or 8.
    pub size: u32,
    /// What is in them.
    pub value: Value,
}

impl Cell {
    /// The distance of the byte behind its last from the frame's top.
    fn end(&self) -> u32 {
        self.depth - self.size
    }
}

/// What a read finds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Loaded {
    /// This value.
    Value(Value),
    /// Some number; `fresh`: where the host has cleared the bytes.
    Number {
        /// See there.
        fresh: bool,
    },
    /// Part of what may be a pointer, or nothing.
    Opaque,
}

/// See the head of the module. Depths are from 1, the byte below the top, to the size of the frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stack {
    /// By depth, less 1.
    bytes: Vec<Byte>,
    cells: Vec<Cell>,
}

impl Stack {
    /// A stack of so many bytes that nothing was written to.
    pub fn new(bytes: u32) -> Stack {
        Stack { bytes: vec![Byte::Fresh; bytes as usize], cells: Vec::new() }
    }

    /// The byte at each depth, from 1 on.
    pub fn bytes(&self) -> &[Byte] {
        &self.bytes
    }

    /// The slots of which the value is known, ascending by address.
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// Without the value of this slot; its bytes stay what they are.
    pub fn without(mut self, depth: u32) -> Stack {
        self.cells.retain(|cell| cell.depth != depth);
        self
    }

    /// With another byte at a depth and without what was in a slot there: for whoever writes down an invariant.
    pub fn with_byte(mut self, depth: u32, byte: Byte) -> Stack {
        self.cells.retain(|cell| !(cell.end() < depth && depth <= cell.depth));
        if let Some(old) = self.byte_mut(depth) {
            *old = byte;
        }
        self
    }

    /// With a slot of this value: for whoever writes down an invariant.
    pub fn with_cell(mut self, cell: Cell) -> Stack {
        if cell.size <= cell.depth && cell.depth as usize <= self.bytes.len() {
            self.write(cell.depth, cell.size, cell.value);
        }
        self
    }

    fn byte_mut(&mut self, depth: u32) -> Option<&mut Byte> {
        self.bytes.get_mut((depth as usize).checked_sub(1)?)
    }

    /// Whether the invariants of the module hold, and each value is sound.
    pub(crate) fn is_sound(&self, bytes: u32, value: impl Fn(&Value) -> bool) -> bool {
        let mut below = u32::MAX;
        self.bytes.len() == bytes as usize
            && self.cells.iter().all(|cell| {
                let inside =
                    matches!(cell.size, 1 | 2 | 4 | 8) && cell.size <= cell.depth && cell.depth <= bytes.min(below);
                below = cell.depth.saturating_sub(cell.size);
                let byte = match cell.value {
                    Value::Number(_) => Byte::Number,
                    Value::Pointer(_) if cell.size == 8 => Byte::Opaque,
                    Value::Pointer(_) | Value::Unset => return false,
                };
                inside && self.range(cell.depth, cell.size).iter().all(|b| *b == byte) && value(&cell.value)
            })
    }

    /// The bytes from a depth on: as many as there are.
    fn range(&self, depth: u32, size: u32) -> &[Byte] {
        let (from, to) = (depth.saturating_sub(size) as usize, depth as usize);
        self.bytes.get(from..to).unwrap_or_default()
    }

    /// What a read of so many bytes finds, which lie within the frame.
    pub(crate) fn read(&self, depth: u32, size: u32) -> Loaded {
        if let Some(cell) = self.cell(depth, size) {
            return Loaded::Value(cell.value.clone());
        }
        let bytes = self.range(depth, size);
        if bytes.contains(&Byte::Opaque) || bytes.iter().all(|byte| *byte == Byte::Fresh) {
            return Loaded::Opaque;
        }
        Loaded::Number { fresh: bytes.iter().any(|byte| matches!(byte, Byte::Fresh | Byte::Maybe)) }
    }

    /// The slot with exactly these bytes.
    pub(crate) fn cell(&self, depth: u32, size: u32) -> Option<&Cell> {
        self.cells.iter().find(|cell| (cell.depth, cell.size) == (depth, size))
    }

    /// The slot that begins there.
    pub(crate) fn cell_at(&self, depth: u32) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.depth == depth)
    }

    fn drop_cells(&mut self, depth: u32, size: u32) {
        let end = depth.saturating_sub(size);
        self.cells.retain(|cell| cell.depth <= end || cell.end() >= depth);
    }

    /// Writes a value to bytes within the frame.
    pub(crate) fn write(&mut self, depth: u32, size: u32, value: Value) {
        self.drop_cells(depth, size);
        let byte = match value {
            Value::Number(_) => Byte::Number,
            Value::Pointer(_) | Value::Unset => Byte::Opaque,
        };
        self.fill(depth, size, byte);
        if value != Value::Unset {
            let at = self.cells.partition_point(|cell| cell.depth > depth);
            self.cells.insert(at, Cell { depth, size, value });
        }
    }

    fn fill(&mut self, depth: u32, size: u32, byte: Byte) {
        let (from, to) = (depth.saturating_sub(size) as usize, depth as usize);
        if let Some(bytes) = self.bytes.get_mut(from..to) {
            bytes.fill(byte);
        }
    }

    /// Numbers may have been written to some of these bytes: no slot keeps its value, and bytes what they may be read
    /// as.
    pub(crate) fn write_within(&mut self, depth: u32, size: u32) {
        self.drop_cells(depth, size);
        let (from, to) = (depth.saturating_sub(size) as usize, depth as usize);
        let fresh = self.bytes.get_mut(from..to).into_iter().flatten().filter(|byte| **byte == Byte::Fresh);
        fresh.for_each(|byte| *byte = Byte::Maybe);
    }

    /// Some number was written to all of these bytes.
    pub(crate) fn write_number(&mut self, depth: u32, size: u32) {
        self.drop_cells(depth, size);
        self.fill(depth, size, Byte::Number);
    }

    /// Forgets the slots whose value this says is gone.
    pub(crate) fn forget(&mut self, gone: impl Fn(&Value) -> bool) {
        self.cells.retain(|cell| !gone(&cell.value));
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.cells.iter_mut().map(|cell| &mut cell.value)
    }
}
