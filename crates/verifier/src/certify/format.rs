//! The binary form of certificates.
//!
//! Problem: a certificate travels with its program, so its form must be compact, have a version, and be read from bytes
//! of any origin. Approach: variable-length integers (LEB128, signed ones in zigzag order), differences in the place of
//! ascending numbers, runs in the place of equal stack bytes. A certificate that is read need not be meaningful: the
//! check decides whether it proves the program.
//!
//! Invariants: reading takes time and memory linear in the bytes: each element of a list takes a byte at least, and the
//! stack bytes that runs stand for are limited by [`MAX_STACK_BYTES`] and [`MAX_CELLS`]. One byte may expand to a
//! hundred bytes of memory, so the reader of a certificate sets a limit on memory.

use bpf_isa::InsnIdx;
use bpf_verifier_core::{
    Advice, Answer, Base, Byte, Cell, Combination, Form, Frame, Interval, Invariant, Kept, Known, Name, Pointer,
    Recording, Scalar, Sections, Stack, Step, Tnum, Value,
};

use super::certificate::Certificate;
use super::error::ProofError;

/// Most stack bytes in the invariants of one certificate.
const MAX_STACK_BYTES: usize = 1 << 22;
/// Most slots of one frame with a known value.
const MAX_CELLS: usize = 1024;

type Res<T> = Result<T, ProofError>;

/// Writes bytes.
#[derive(Debug, Default)]
pub(super) struct Writer {
    pub(super) bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    pub(super) fn number(&mut self, mut n: u128) {
        while n >= 0x80 {
            self.bytes.push(low_byte(n) | 0x80);
            n >>= 7;
        }
        self.bytes.push(low_byte(n));
    }

    pub(super) fn count(&mut self, n: usize) {
        self.number(n as u128);
    }

    fn signed(&mut self, n: i128) {
        self.number((n << 1 ^ n >> 127).cast_unsigned());
    }

    fn form(&mut self, form: &Form) {
        let ones = form.terms().iter().all(|(_, a)| *a == 1);
        let head = form.terms().len() | usize::from(form.offset() != 0) << 4 | usize::from(ones) << 5;
        self.byte(low_byte(head as u128));
        let mut next = 0;
        for (n, a) in form.terms() {
            self.number((n.0 - next).into());
            next = n.0;
            if !ones {
                self.signed(*a);
            }
        }
        if form.offset() != 0 {
            self.signed(form.offset());
        }
    }

    fn forms(&mut self, forms: &[Form]) {
        self.count(forms.len());
        forms.iter().for_each(|form| self.form(form));
    }

    fn known(&mut self, known: &Known) {
        let (min, max) = known.bounds();
        let sign = u8::from(known.signed);
        if known.word == Scalar::UNKNOWN {
            self.byte(sign);
        } else if known.word.as_const().is_some() {
            self.byte(sign | 2);
            self.signed(min);
        } else if known.is_range() {
            self.byte(sign | 4);
            self.signed(min);
            self.number((max - min).cast_unsigned());
        } else {
            self.byte(sign | 6);
            let (word, low) = (&known.word, known.word.low_range());
            let bits = word.bits();
            let unsigned = [bits.value(), bits.mask(), word.umin(), word.umax() - word.umin(), low.umin];
            unsigned.into_iter().for_each(|n| self.number(n.into()));
            self.number((low.umax - low.umin).into());
            [word.smin(), word.smax(), low.smin, low.smax].into_iter().for_each(|n| self.signed(n.into()));
        }
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Unset => self.byte(0),
            Value::Number(form) => {
                self.byte(1);
                self.form(form);
            }
            Value::Pointer(Pointer { base, offset, present }) => {
                let is_present = u8::from(present.is_some()) << 7;
                let (tag, number) = match *base {
                    Base::Context => (2, None),
                    Base::Stack(frame) => (3, Some(frame.into())),
                    Base::Region(region) => (4, Some(region.into())),
                    Base::Map(map) => (5, Some(map)),
                    Base::MapValue(map) => (6, Some(map)),
                    Base::Inner(map) => (10, Some(map)),
                    Base::InnerValue(map) => (11, Some(map)),
                    Base::Memory { size, writable: false } => (7, Some(size)),
                    Base::Memory { size, writable: true } => (8, Some(size)),
                    Base::Record { size, .. } => (9, Some(size)),
                };
                self.byte(tag | is_present);
                number.into_iter().for_each(|n| self.number(n.into()));
                if let Base::Record { owner, .. } = base {
                    self.number(owner.0.into());
                }
                present.iter().for_each(|n| self.number(n.0.into()));
                self.form(offset);
            }
        }
    }

    fn frame(&mut self, frame: &Frame) {
        self.number(frame.subprog.into());
        self.number(frame.back.map_or(0, |back| u128::from(back.0) + 1));
        frame.regs.iter().for_each(|value| self.value(value));
        let bytes = frame.stack.bytes();
        self.count(bytes.len());
        for run in bytes.chunk_by(|a, b| a == b) {
            let kind = match run[0] {
                Byte::Fresh => 0,
                Byte::Maybe => 1,
                Byte::Number => 2,
                Byte::Opaque => 3,
            };
            self.count((run.len() - 1) << 2 | kind);
        }
        self.count(frame.stack.cells().len());
        for cell in frame.stack.cells() {
            self.number(cell.depth.into());
            self.number(cell.size.into());
            self.value(&cell.value);
        }
    }

    fn kept(&mut self, kept: &Kept) {
        let Invariant { names, rows, lengths, frames, held, sections } = &kept.claim;
        self.number(kept.at.0.into());
        self.count(names.len());
        names.iter().for_each(|known| self.known(known));
        self.forms(rows);
        self.forms(lengths);
        self.count(frames.len());
        frames.iter().for_each(|frame| self.frame(frame));
        self.count(held.len());
        held.iter().for_each(|n| self.number(n.0.into()));
        self.number(sections.rcu.into());
        self.number(sections.preempt.into());
        self.forms(&kept.rank);
    }

    fn answer(&mut self, after: u64, answer: &Answer) {
        let head = |tag: u8| u128::from(after) * 6 + u128::from(tag);
        match answer {
            Answer::Advice(Advice::Step | Advice::Stop) => self.number(head(0)),
            Answer::Advice(Advice::Cover { kept, renaming }) => {
                self.number(head(1));
                self.count(*kept);
                self.forms(renaming);
            }
            Answer::Advice(Advice::Split(form)) => {
                self.number(head(2));
                self.form(form);
            }
            Answer::Advice(Advice::Name { form, signed }) => {
                self.number(head(3 + u8::from(*signed)));
                self.form(form);
            }
            Answer::Proof(Combination { steps }) => {
                self.number(head(5));
                for (i, Step { scale, rows }) in (1..).zip(steps) {
                    self.signed(*scale);
                    // The last bit says whether another step follows.
                    self.count(rows.len() << 1 | usize::from(i < steps.len()));
                    for (row, times) in rows {
                        self.number((*row).into());
                        self.signed(*times);
                    }
                }
            }
        }
    }

    pub(super) fn certificate(&mut self, Certificate { kept, answers }: &Certificate) {
        self.count(kept.len());
        kept.iter().for_each(|kept| self.kept(kept));
        self.count(answers.answers.len());
        answers.answers.iter().for_each(|(after, answer)| self.answer(*after, answer));
    }
}

fn low_byte(n: u128) -> u8 {
    n.to_le_bytes()[0] & 0x7f
}

/// Reads bytes of any origin.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Stack bytes that may still be read.
    stack: usize,
    /// Bytes of memory that the certificate may still take.
    memory: usize,
}

impl<'a> Reader<'a> {
    /// Reads these bytes; elements may take this much memory.
    pub(super) fn new(bytes: &'a [u8], memory: usize) -> Reader<'a> {
        Reader { bytes, at: 0, stack: MAX_STACK_BYTES, memory }
    }

    /// Returns the error that `what` was found at this place.
    pub(super) fn wrong(&self, what: &'static str) -> ProofError {
        ProofError::Malformed { at: self.at, what }
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    pub(super) fn byte(&mut self) -> Res<u8> {
        let byte = *self.bytes.get(self.at).ok_or_else(|| self.wrong("the end, where more is expected"))?;
        self.at += 1;
        Ok(byte)
    }

    /// Takes the next bytes unchanged.
    pub(super) fn take(&mut self, count: usize) -> Res<&'a [u8]> {
        let end = self.at.checked_add(count);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| self.wrong("a length beyond the end"))?;
        self.at += count;
        Ok(taken)
    }

    fn wide(&mut self) -> Res<u128> {
        let (mut n, mut shift) = (0u128, 0u32);
        loop {
            let byte = self.byte()?;
            let part = u128::from(byte & 0x7f);
            if shift > 126 || shift == 126 && part > 3 {
                return Err(self.wrong("an integer of more than 128 bits"));
            }
            n |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(n);
            }
            shift += 7;
        }
    }

    pub(super) fn number<T: TryFrom<u128>>(&mut self) -> Res<T> {
        let n = self.wide()?;
        T::try_from(n).map_err(|_| self.wrong("an integer that is too large"))
    }

    /// The length of a list, each element of which takes a byte at least.
    pub(super) fn count(&mut self) -> Res<usize> {
        let count = self.number()?;
        self.counted(count)
    }

    fn counted(&self, count: usize) -> Res<usize> {
        if count > self.bytes.len() - self.at {
            return Err(self.wrong("a list longer than the rest of the bytes"));
        }
        Ok(count)
    }

    pub(super) fn list<T>(&mut self, read: impl FnMut(&mut Self) -> Res<T>) -> Res<Vec<T>> {
        let count = self.count()?;
        self.elements(count, read)
    }

    fn elements<T>(&mut self, count: usize, mut read: impl FnMut(&mut Self) -> Res<T>) -> Res<Vec<T>> {
        (0..self.counted(count)?)
            .map(|_| {
                self.hold(size_of::<T>())?;
                read(self)
            })
            .collect()
    }

    /// Counts this many bytes of memory.
    fn hold(&mut self, bytes: usize) -> Res<()> {
        self.memory = self.memory.checked_sub(bytes).ok_or_else(|| self.wrong("more than a proof may hold"))?;
        Ok(())
    }

    fn signed(&mut self) -> Res<i128> {
        let n = self.wide()?;
        Ok((n >> 1).cast_signed() ^ -(n & 1).cast_signed())
    }

    fn signed_as<T: TryFrom<i128>>(&mut self) -> Res<T> {
        let n = self.signed()?;
        T::try_from(n).map_err(|_| self.wrong("an integer that is too large"))
    }

    fn name(&mut self) -> Res<Name> {
        Ok(Name(self.number()?))
    }

    fn form(&mut self) -> Res<Form> {
        let head = self.byte()?;
        if head >> 6 != 0 || usize::from(head & 15) > Form::MAX_TERMS {
            return Err(self.wrong("no linear form"));
        }
        self.hold(usize::from(head & 15) * size_of::<(Name, i128)>())?;
        let (mut terms, mut next) = (Vec::new(), 0u32);
        for _ in 0..head & 15 {
            let by: u32 = self.number()?;
            next = next.checked_add(by).ok_or_else(|| self.wrong("an integer that is too large"))?;
            terms.push((Name(next), if head & 0x20 == 0 { self.signed()? } else { 1 }));
        }
        let constant = if head & 0x10 == 0 { 0 } else { self.signed()? };
        Form::sum(terms, constant).ok_or_else(|| self.wrong("no linear form"))
    }

    fn forms(&mut self) -> Res<Vec<Form>> {
        self.list(Self::form)
    }

    fn known(&mut self) -> Res<Known> {
        let head = self.byte()?;
        let signed = head & 1 == 1;
        match head >> 1 {
            0 => Ok(Known { word: Scalar::UNKNOWN, signed }),
            kind @ (1 | 2) => {
                let min = self.signed()?;
                let span: i128 = if kind == 1 { 0 } else { self.number()? };
                let known = min.checked_add(span).and_then(|max| Known::range(min, max, signed));
                known.ok_or_else(|| self.wrong("no range of 64-bit numbers"))
            }
            3 => {
                let bits = Tnum::new(self.number()?, self.number()?);
                let (umin, uspan): (u64, u64) = (self.number()?, self.number()?);
                let (low_umin, low_uspan): (u64, u64) = (self.number()?, self.number()?);
                let (smin, smax): (i64, i64) = (self.signed_as()?, self.signed_as()?);
                let (low_smin, low_smax): (i64, i64) = (self.signed_as()?, self.signed_as()?);
                let set = || {
                    let low = Interval::unsigned(low_umin, low_umin.checked_add(low_uspan)?);
                    let low = low.intersect(Interval::FULL).intersect(Interval::signed(low_smin, low_smax));
                    (smin <= smax && !low.is_empty()).then_some(())?;
                    let word = Scalar::of(bits, Interval::FULL, Interval::FULL);
                    let word = word.meet(&Scalar::unsigned(umin, umin.checked_add(uspan)?))?;
                    let word = word.meet(&Scalar::signed(smin, smax))?;
                    word.meet(&Scalar::of(Tnum::UNKNOWN, Interval::FULL, low))
                };
                let word = set().ok_or_else(|| self.wrong("no set of 64-bit numbers"))?;
                Ok(Known { word, signed })
            }
            _other => Err(self.wrong("no set of numbers")),
        }
    }

    fn value(&mut self) -> Res<Value> {
        let head = self.byte()?;
        let base = match head & 0x7f {
            0 if head == 0 => return Ok(Value::Unset),
            1 if head == 1 => return Ok(Value::Number(self.form()?)),
            2 => Base::Context,
            3 => Base::Stack(self.number()?),
            4 => Base::Region(self.number()?),
            5 => Base::Map(self.number()?),
            6 => Base::MapValue(self.number()?),
            10 => Base::Inner(self.number()?),
            11 => Base::InnerValue(self.number()?),
            kind @ (7 | 8) => Base::Memory { size: self.number()?, writable: kind == 8 },
            9 => Base::Record { size: self.number()?, owner: self.name()? },
            _other => return Err(self.wrong("no value")),
        };
        let present = if head & 0x80 == 0 { None } else { Some(self.name()?) };
        Ok(Value::Pointer(Pointer { base, present, offset: self.form()? }))
    }

    fn frame(&mut self) -> Res<Frame> {
        let (subprog, back) = (self.number()?, self.number::<u32>()?);
        let mut regs = std::array::from_fn(|_| Value::Unset);
        for value in &mut regs {
            *value = self.value()?;
        }
        let bytes: usize = self.number()?;
        self.stack = self.stack.checked_sub(bytes).ok_or_else(|| self.wrong("more stack than invariants may have"))?;
        let mut stack = Stack::new(u32::try_from(bytes).map_err(|_| self.wrong("a stack that is too large"))?);
        let mut depth = 0;
        while depth < bytes {
            let run: usize = self.number()?;
            let kind = match run & 3 {
                0 => Byte::Fresh,
                1 => Byte::Maybe,
                2 => Byte::Number,
                _three => Byte::Opaque,
            };
            let end = depth.checked_add((run >> 2) + 1).filter(|end| *end <= bytes);
            let end = end.ok_or_else(|| self.wrong("stack bytes beyond the stack"))?;
            for depth in depth + 1..=end {
                stack =
                    stack.with_byte(u32::try_from(depth).map_err(|_| self.wrong("a stack that is too large"))?, kind);
            }
            depth = end;
        }
        let cells = self.count()?;
        if cells > MAX_CELLS {
            return Err(self.wrong("more slots than a frame may have"));
        }
        for _ in 0..cells {
            self.hold(size_of::<Cell>())?;
            let (depth, size) = (self.number()?, self.number()?);
            let value = self.value()?;
            if !matches!(size, 1 | 2 | 4 | 8) || size > depth || value == Value::Unset {
                return Err(self.wrong("no slot of a stack"));
            }
            stack = stack.with_cell(Cell { depth, size, value });
        }
        Ok(Frame { subprog, back: back.checked_sub(1).map(InsnIdx), regs, stack })
    }

    fn kept(&mut self) -> Res<Kept> {
        let at = InsnIdx(self.number()?);
        let (names, rows, lengths) = (self.list(Self::known)?, self.forms()?, self.forms()?);
        let (frames, held) = (self.list(Self::frame)?, self.list(Self::name)?);
        let sections = Sections { rcu: self.number()?, preempt: self.number()? };
        let claim = Invariant { names, rows, lengths, frames, held, sections };
        Ok(Kept { at, claim, rank: self.forms()? })
    }

    fn answer(&mut self) -> Res<(u64, Answer)> {
        let head = self.wide()?;
        let after = u64::try_from(head / 6).map_err(|_| self.wrong("an integer that is too large"))?;
        let answer = match head % 6 {
            0 => Answer::Advice(Advice::Stop),
            1 => Answer::Advice(Advice::Cover { kept: self.number()?, renaming: self.forms()? }),
            2 => Answer::Advice(Advice::Split(self.form()?)),
            name @ (3 | 4) => Answer::Advice(Advice::Name { form: self.form()?, signed: name == 4 }),
            _five => {
                let mut steps = Vec::new();
                loop {
                    self.hold(size_of::<Step>())?;
                    let scale = self.signed()?;
                    let head: usize = self.number()?;
                    let rows = self.elements(head >> 1, |reader| Ok((reader.number()?, reader.signed()?)))?;
                    steps.push(Step { scale, rows });
                    if head & 1 == 0 {
                        break;
                    }
                }
                Answer::Proof(Combination { steps })
            }
        };
        Ok((after, answer))
    }

    pub(super) fn certificate(&mut self) -> Res<Certificate> {
        let kept = self.list(Self::kept)?;
        Ok(Certificate { kept, answers: Recording { answers: self.list(Self::answer)? } })
    }
}
