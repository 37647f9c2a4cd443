//! The stack of a frame: for each byte whether it may be read, and the values of slots that were written whole.
//!
//! Invariants: cells ascend by address and do not overlap. Under a cell with a pointer all bytes are [`Byte::Opaque`],
//! and under a cell with a number all bytes are [`Byte::Number`], so forgetting a cell leaves a sound description of
//! its bytes.

use super::value::Value;
use crate::faults::planted;

/// The state of one byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Byte {
    /// Nothing was written. A read of such bytes only is refused.
    Fresh,
    /// Nothing or a number was written. A read makes the host clear the byte when the function is entered.
    Maybe,
    /// A number, or part of one, was written.
    Number,
    /// Part of a pointer may have been written, so the byte is not read as a number.
    Opaque,
}

/// A value in `size` bytes that begin at `r10 - depth`. A number is the value of those bytes, zero-extended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cell {
    /// The distance of the first byte from the frame's top.
    pub depth: u32,
    /// The number of bytes: 1, 2, 4 or 8.
    pub size: u32,
    /// The value of these bytes.
    pub value: Value,
}

impl Cell {
    /// The distance of the byte after the last one from the frame's top.
    fn end(&self) -> u32 {
        self.depth - self.size
    }
}

/// The result of a read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Loaded {
    /// A value that was written whole.
    Value(Value),
    /// Some number. `fresh`: only if the host has cleared the bytes when the function was entered.
    Number {
        /// Whether the host must have cleared some of the bytes.
        fresh: bool,
    },
    /// Bytes that may be part of a pointer, or bytes of which none was written.
    Opaque,
}

/// The stack of a frame; its invariants are at the head of the module. A depth is between 1, for the byte below the
/// top, and the size of the frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stack {
    /// The byte at depth `d` has index `d - 1`.
    bytes: Vec<Byte>,
    cells: Vec<Cell>,
}

impl Stack {
    /// A stack of `bytes` bytes, none of them written.
    pub fn new(bytes: u32) -> Stack {
        Stack { bytes: vec![Byte::Fresh; bytes as usize], cells: Vec::new() }
    }

    /// The byte at each depth, from 1 on.
    pub fn bytes(&self) -> &[Byte] {
        &self.bytes
    }

    /// The slots with a known value, ascending by address.
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// The stack without the value of this slot; the slot's bytes keep their state. For the author of an invariant.
    pub fn without(mut self, depth: u32) -> Stack {
        self.cells.retain(|cell| cell.depth != depth);
        self
    }

    /// The stack with another byte at a depth, and without the slot that held it. For the author of an invariant.
    pub fn with_byte(mut self, depth: u32, byte: Byte) -> Stack {
        self.cells.retain(|cell| !(cell.end() < depth && depth <= cell.depth));
        if let Some(old) = self.byte_mut(depth) {
            *old = byte;
        }
        self
    }

    /// The stack with a slot of this value. For the author of an invariant.
    pub fn with_cell(mut self, cell: Cell) -> Stack {
        if cell.size <= cell.depth && cell.depth as usize <= self.bytes.len() {
            self.write(cell.depth, cell.size, cell.value);
        }
        self
    }

    fn byte_mut(&mut self, depth: u32) -> Option<&mut Byte> {
        self.bytes.get_mut((depth as usize).checked_sub(1)?)
    }

    /// Whether the invariants of the module hold and `value` accepts each cell's value.
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

    /// The `size` bytes from a depth upwards; empty if they are not within the frame.
    fn range(&self, depth: u32, size: u32) -> &[Byte] {
        let (from, to) = (depth.saturating_sub(size) as usize, depth as usize);
        self.bytes.get(from..to).unwrap_or_default()
    }

    /// The result of reading `size` bytes. They lie within the frame.
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

    /// The slot that begins at this depth.
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

    /// Notes that numbers may have been written to some of these bytes: slots lose their values, and unwritten bytes
    /// become [`Byte::Maybe`].
    pub(crate) fn write_within(&mut self, depth: u32, size: u32) {
        if !planted!(StoreKeepsSlots) {
            self.drop_cells(depth, size);
        }
        let (from, to) = (depth.saturating_sub(size) as usize, depth as usize);
        let fresh = self.bytes.get_mut(from..to).into_iter().flatten().filter(|byte| **byte == Byte::Fresh);
        fresh.for_each(|byte| *byte = Byte::Maybe);
    }

    /// Notes that some number was written to all of these bytes.
    pub(crate) fn write_number(&mut self, depth: u32, size: u32) {
        self.drop_cells(depth, size);
        self.fill(depth, size, Byte::Number);
    }

    /// Drops the slots for whose value `gone` answers true.
    pub(crate) fn forget(&mut self, gone: impl Fn(&Value) -> bool) {
        self.cells.retain(|cell| !gone(&cell.value));
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.cells.iter_mut().map(|cell| &mut cell.value)
    }
}
