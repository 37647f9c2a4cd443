//! The parser of the text form: see `text`.
//!
//! Recursive descent over the words of a line. Numbers of values and blocks are kept, so that a text describes an
//! identical function each time it is read. `verify` detects references to blocks that do not exist.

use crate::externs::Extern;
use crate::func::{Block, Func, Lir, Span};
use crate::op::{Base, BlockId, CallTarget, Cond, Mem, Op, Region, TailKey, VReg, Val};
use crate::text::{
    ATOMIC_OPS, BIN_OPS, CHECKS, SIZES, atomic_name, bin_name, check_name, cond_name, region_name, size_name,
};
use bpf_isa::{Size, SubprogId, Width};
use bpf_jit_code::{StopCode, Symbol};
use core::str::FromStr;

/// The reason why a text is not an intermediate form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError {
    /// The line, from 1.
    pub line: usize,
    /// The expected text, and the text found.
    pub message: String,
}

impl core::fmt::Display for ParseError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl core::error::Error for ParseError {}

type Result<T> = core::result::Result<T, String>;

impl FromStr for Lir {
    type Err = ParseError;

    /// Parses the output of `Display`. Text after `;` is a comment.
    fn from_str(text: &str) -> core::result::Result<Lir, ParseError> {
        let mut lir = Lir::default();
        let mut open: Option<Func> = None;
        let mut last = 0;
        for (line, text) in (1..).zip(text.lines()) {
            last = line;
            let text = text.split(';').next().unwrap_or_default().trim();
            if text.is_empty() {
                continue;
            }
            let mut words = Words::of(text);
            open = match open {
                None => words.header(lir.funcs.len()).map(Some),
                Some(func) if text == "}" => {
                    lir.funcs.push(func);
                    Ok(None)
                }
                Some(mut func) => words.line(&mut func).map(|()| Some(func)),
            }
            .and_then(|open| if text == "}" { Ok(open) } else { words.end().map(|()| open) })
            .map_err(|message| ParseError { line, message })?;
        }
        match open {
            None => Ok(lir),
            Some(_) => Err(ParseError { line: last, message: "expected `}`, found the end".into() }),
        }
    }
}

/// The words of a line that are not read yet: names, numbers and single signs.
struct Words<'a> {
    rest: &'a str,
}

impl<'a> Words<'a> {
    fn of(text: &'a str) -> Words<'a> {
        Words { rest: text }
    }

    fn peek(&self) -> &'a str {
        let named = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let len = match self.rest.find(|c| !named(c)) {
            Some(0) => self.rest.chars().next().map_or(0, char::len_utf8),
            Some(len) => len,
            None => self.rest.len(),
        };
        &self.rest[..len]
    }

    fn next(&mut self) -> &'a str {
        let word = self.peek();
        self.rest = self.rest[word.len()..].trim_start();
        word
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.peek() == word;
        if found {
            self.next();
        }
        found
    }

    fn expect(&mut self, word: &str) -> Result<()> {
        if self.take(word) { Ok(()) } else { Err(format!("expected `{word}`, found `{}`", self.rest)) }
    }

    fn end(&self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(format!("expected the end of the line, found `{}`", self.rest)) }
    }

    /// Takes a name that consists of `letter` and a number.
    fn numbered(&mut self, letter: &str, what: &str) -> Result<u32> {
        let word = self.next();
        let number = word.strip_prefix(letter).and_then(|n| n.parse().ok());
        number.ok_or_else(|| format!("expected {what}, found `{word}`"))
    }

    fn vreg(&mut self) -> Result<VReg> {
        // The limit is above the number of values that ops can make; a larger number would only cost memory.
        let n = self.numbered("v", "a value")?;
        if n < 1 << 20 { Ok(VReg(n)) } else { Err(format!("expected a value, found `v{n}`")) }
    }

    fn optional(&mut self) -> Result<Option<VReg>> {
        if self.take("-") { Ok(None) } else { self.vreg().map(Some) }
    }

    fn block(&mut self) -> Result<BlockId> {
        let n = self.numbered("b", "a block")?;
        if n < 1 << 20 { Ok(BlockId(n)) } else { Err(format!("expected a block, found `b{n}`")) }
    }

    fn number(&mut self) -> Result<i64> {
        let negative = self.take("-");
        let word = self.next();
        let number = match word.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => word.parse(),
        };
        let number = number.map_err(|_| format!("expected a number, found `{word}`"))?;
        Ok(if negative { (number as i64).wrapping_neg() } else { number as i64 })
    }

    fn small<T: TryFrom<i64>>(&mut self) -> Result<T> {
        let number = self.number()?;
        T::try_from(number).map_err(|_| format!("expected a smaller number, found `{number}`"))
    }

    fn val(&mut self) -> Result<Val> {
        if self.peek().starts_with('v') { self.vreg().map(Val::Reg) } else { self.number().map(Val::Imm) }
    }

    fn cond(&mut self) -> Result<Cond> {
        let word = self.next();
        let cond = Cond::ALL.into_iter().find(|cond| cond_name(*cond) == word);
        cond.ok_or_else(|| format!("expected a condition, found `{word}`"))
    }

    fn mem(&mut self) -> Result<Mem> {
        self.expect("[")?;
        let mut base = if self.take("frame") { Base::Frame } else { Base::Reg(self.vreg()?) };
        let mut plus = self.take("+");
        if let Base::Reg(start) = base
            && plus
            && self.peek().starts_with('v')
        {
            let index = self.vreg()?;
            self.expect("<")?;
            self.expect("<")?;
            let shift = self.small()?;
            if shift > 3 {
                return Err(format!("expected a shift of 0 to 3, found `{shift}`"));
            }
            base = Base::Indexed { base: start, index, shift };
            plus = self.take("+");
        }
        let off = match self.peek() {
            "]" | ":" if !plus => 0,
            _ => self.number()?,
        };
        let off = i32::try_from(off).map_err(|_| format!("expected an offset, found `{off}`"))?;
        let mut mem = Mem::new(base, off);
        if self.take(":") {
            let word = self.next();
            let region = Region::ALL.into_iter().find(|region| region_name(*region) == word);
            mem.region = region.ok_or_else(|| format!("expected a region, found `{word}`"))?;
        }
        self.expect("]")?;
        Ok(mem)
    }

    fn symbol(&mut self) -> Result<Symbol> {
        let kind = self.next();
        self.expect(":")?;
        let index = self.small()?;
        let other = || kind.strip_prefix("symbol")?.parse().ok().map(|kind| Symbol { kind, index });
        Extern::of_kind(kind, index)
            .map(Extern::symbol)
            .or_else(other)
            .ok_or_else(|| format!("expected a kind of symbol, found `{kind}`"))
    }

    fn subprog(&mut self) -> Result<SubprogId> {
        self.expect("func")?;
        self.expect(":")?;
        self.small().map(SubprogId)
    }

    fn five(&mut self) -> Result<[Option<VReg>; 5]> {
        let mut regs = [None; 5];
        for (i, reg) in regs.iter_mut().enumerate() {
            self.expect(if i == 0 { "(" } else { "," })?;
            *reg = self.optional()?;
        }
        self.expect(")")?;
        Ok(regs)
    }

    fn ctx(&mut self) -> Result<VReg> {
        self.expect("ctx")?;
        self.vreg()
    }

    fn header(&mut self, index: usize) -> Result<Func> {
        self.expect("func")?;
        let found: usize = self.small()?;
        if found != index {
            return Err(format!("expected function {index}, found {found}"));
        }
        let mut func = Func { params: self.five()?, ..Func::default() };
        if self.peek() == "ctx" {
            func.ctx = Some(self.ctx()?);
        }
        if self.take("stack") {
            func.stack_bytes = self.small()?;
        }
        while self.take("private") {
            let start = self.small()?;
            self.expect(":")?;
            func.private.push(start..self.small()?);
        }
        self.expect("{")?;
        func.vregs = func.entry_values().map(|v| v.0 + 1).max().unwrap_or(0);
        Ok(func)
    }

    /// Parses a block's label, or an op of the last block.
    fn line(&mut self, func: &mut Func) -> Result<()> {
        if self.rest.starts_with('b') && self.rest.ends_with(':') {
            let block = self.block()?;
            self.expect(":")?;
            let end = crate::small(func.ops.len());
            if func.order.contains(&block) {
                return Err(format!("expected another block than `{block}`, which there is already"));
            }
            let blocks = func.blocks.len().max(block.index() + 1);
            func.blocks.resize(blocks, Block { ops: 0..0 });
            func.blocks[block.index()].ops = end..end;
            func.order.push(block);
            return Ok(());
        }
        let op = self.op()?;
        let mut vregs = func.vregs;
        op.for_each_use(|v| vregs = vregs.max(v.0 + 1));
        func.vregs = vregs.max(op.def().map_or(0, |v| v.0 + 1));
        let first = crate::small(func.ops.len());
        let mut span = Span { first, len: 1 };
        if self.take("@") {
            span.first = self.small()?;
            if self.take("+") {
                span.len = self.small()?;
            } else if self.take("-") {
                let last: u32 = self.small()?;
                span.len = last.checked_add(1).and_then(|end| end.checked_sub(span.first)).ok_or("an empty span")?;
            }
        }
        let last = *func.order.last().ok_or("expected a block's label before the first op")?;
        func.ops.push(op);
        func.spans.push(span);
        func.blocks[last.index()].ops.end = crate::small(func.ops.len());
        Ok(())
    }

    fn op(&mut self) -> Result<Op> {
        let dst = match self.peek().strip_prefix('v').is_some_and(|n| n.parse::<u32>().is_ok()) {
            true => Some(self.vreg()?),
            false => None,
        };
        if dst.is_some() {
            self.expect("=")?;
        }
        let name = self.next();
        let mut parts = name.split('.');
        let kind = parts.next().unwrap_or_default();
        let suffixes: Vec<&str> = parts.collect();
        let written = dst.ok_or_else(|| format!("expected `v.. = {name}`, found no result"));
        let width = || match suffixes.last() {
            Some(&"32") => Ok(Width::W32),
            Some(&"64") => Ok(Width::W64),
            Some(_) | None => Err(format!("expected a width, found `{name}`")),
        };
        let size = || {
            let size = SIZES.into_iter().find(|size| suffixes.first() == Some(&size_name(*size)));
            size.ok_or_else(|| format!("expected a size, found `{name}`"))
        };
        let flag = |name: &str| suffixes.iter().skip(1).any(|suffix| *suffix == name);
        let op = match kind {
            "mov" => Op::Mov { width: width()?, dst: written?, src: self.val()? },
            "sext" | "zext" => {
                let (signed, from) = (kind == "sext", size()?);
                if from == Size::DW {
                    return Err("expected a size below dw".into());
                }
                Op::Ext { width: width()?, signed, from, dst: written?, src: self.vreg()? }
            }
            "neg" => Op::Neg { width: width()?, dst: written?, src: self.vreg()? },
            "bswap" => Op::Bswap { size: size()?, dst: written?, src: self.vreg()? },
            "addshift" => {
                let a = self.vreg()?;
                self.expect(",")?;
                let b = self.vreg()?;
                self.expect(",")?;
                let shift = self.small()?;
                if shift > 3 {
                    return Err(format!("expected a shift of 0 to 3, found {shift}"));
                }
                Op::AddShift { width: width()?, dst: written?, a, b, shift }
            }
            "select" => {
                let (a, cond, b) = (self.vreg()?, self.cond()?, self.val()?);
                self.expect(",")?;
                let yes = self.vreg()?;
                self.expect(",")?;
                Op::Select { width: width()?, cond, a, b, dst: written?, yes, no: self.vreg()? }
            }
            "confine" => {
                let a = self.vreg()?;
                self.expect(",")?;
                let limit = self.val()?;
                self.expect(",")?;
                let yes = self.vreg()?;
                self.expect(",")?;
                Op::Confine { a, limit, dst: written?, yes, no: self.vreg()? }
            }
            "frame" => Op::FrameAddr { dst: written?, off: self.small()? },
            "addr" if self.peek() == "func" => Op::SubprogAddr { dst: written?, subprog: self.subprog()? },
            "addr" => Op::SymAddr { dst: written?, symbol: self.symbol()? },
            "load" => {
                let (signed, swap) = (flag("signed"), flag("swap"));
                Op::Load { size: size()?, signed, swap, dst: written?, mem: self.mem()? }
            }
            "acquire" => Op::LoadAcquire { size: size()?, dst: written?, mem: self.mem()? },
            "store" => {
                let mem = self.mem()?;
                self.expect(",")?;
                Op::Store { size: size()?, mem, src: self.val()? }
            }
            "release" => {
                let mem = self.mem()?;
                self.expect(",")?;
                Op::StoreRelease { size: size()?, mem, src: self.vreg()? }
            }
            "cmpxchg" => {
                let mem = self.mem()?;
                self.expect(",")?;
                let expected = self.vreg()?;
                self.expect(",")?;
                Op::CmpXchg { width: width()?, mem, expected, new: self.vreg()?, dst: written? }
            }
            "call" => {
                let target = match self.peek() {
                    "func" => CallTarget::Subprog(self.subprog()?),
                    _ => CallTarget::Extern(self.symbol()?),
                };
                let args = self.five()?;
                let ctx = if self.peek() == "ctx" { Some(self.ctx()?) } else { None };
                Op::Call { target, args, ctx, ret: dst }
            }
            "tailcall" => {
                let dynamic = self.peek().strip_prefix('v').is_some_and(|n| n.parse::<u32>().is_ok());
                let key = if dynamic {
                    let table = self.vreg()?;
                    self.expect("[")?;
                    TailKey::Dynamic { table, index: self.vreg()? }
                } else {
                    let table = self.symbol()?;
                    self.expect("[")?;
                    TailKey::Const { table, index: self.small()? }
                };
                self.expect("]")?;
                self.expect("(")?;
                let arg = self.vreg()?;
                self.expect(")")?;
                let ctx = self.ctx()?;
                Op::TailCall { key, arg, ctx, reload_len: self.take("len") }
            }
            "check" => {
                let word = self.next();
                let check = CHECKS.into_iter().find(|check| check_name(*check) == word);
                let mut check = check.ok_or_else(|| format!("expected a check, found `{word}`"))?;
                if let crate::Check::Budget(times) = &mut check
                    && self.peek() != "ctx"
                {
                    let number = self.number()?;
                    *times = u8::try_from(number).map_err(|_| format!("{number} is no number of rounds below 256"))?;
                }
                Op::Check { check, ctx: self.ctx()? }
            }
            "bound" => {
                let a = self.vreg()?;
                self.expect(",")?;
                Op::Bound { a, limit: self.val()?, ctx: self.ctx()? }
            }
            "stop" => {
                let word = self.next();
                let code = StopCode::ALL.into_iter().find(|code| code.name() == word);
                let code = code.ok_or_else(|| format!("expected a reason to stop, found `{word}`"))?;
                Op::Stop { code, ctx: self.ctx()? }
            }
            "jump" => Op::Jump { target: self.block()? },
            "branch" => {
                let (a, cond, b) = (self.vreg()?, self.cond()?, self.val()?);
                self.expect(",")?;
                Op::Branch { width: width()?, cond, a, b, target: self.block()? }
            }
            "exit" => Op::Exit { value: self.vreg()? },
            _ => {
                if let Some(op) = BIN_OPS.into_iter().find(|op| bin_name(*op) == kind) {
                    let a = self.vreg()?;
                    self.expect(",")?;
                    Op::Bin { op, width: width()?, dst: written?, a, b: self.val()? }
                } else if let Some(op) = ATOMIC_OPS.into_iter().find(|op| atomic_name(*op) == kind) {
                    let mem = self.mem()?;
                    self.expect(",")?;
                    Op::Atomic { op, width: width()?, mem, src: self.vreg()?, fetch: dst }
                } else {
                    return Err(format!("expected an op, found `{name}`"));
                }
            }
        };
        if dst.is_some() && op.def().is_none() {
            return Err(format!("`{name}` has no result"));
        }
        Ok(op)
    }
}
