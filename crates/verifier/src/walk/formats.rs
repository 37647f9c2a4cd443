//! Formats: the values that a format asks for, and the proofs about pointers among them.
//!
//! Problem: `%s` and `%pI4` make a helper read memory that no prototype speaks of. Approach: where the format is known,
//! a value that it wants an address for may be a pointer. The walk proves as many bytes readable behind it as the
//! format needs, or of a string as many as there are, and notes that ([`crate::notes::Notes::format`]): only bytes that
//! are readable on every path may be read by the helper at this call ([`bpf_analysis::FormatCall`]).
//!
//! Invariant: a pointer is accepted only where the format asks for one; any other would leak.

use bpf_isa::Reg;

use bpf_analysis::FORMAT_VALUES;

use super::args::Call;
use super::{Res, Walk};
use crate::error::Reason;
use crate::helpers::{ArgKind, HelperProto, MemArg};
use crate::value::{Origin, Ty, Value};

/// The value that a conversion of a format needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wants {
    /// A number.
    Number,
    /// An address whose memory is not read.
    Address,
    /// An address of so many bytes.
    Bytes(u32),
    /// A string.
    Text,
}

/// The most bytes of a string that are proven.
const MAX_TEXT: u32 = 1024;

/// Bytes in a value.
const VALUE: usize = 8;

impl<'a> Walk<'a> {
    /// Whether argument `i` is beyond the values that the format asks for. The format is in the first two arguments,
    /// which are proven to be memory and its length. `false` if the format's bytes are not known.
    pub(super) fn is_beyond_format(&mut self, proto: &HelperProto, i: usize) -> Res<bool> {
        let Some(first) = proto.args.iter().position(|kind| *kind == ArgKind::Formatted) else { return Ok(false) };
        Ok(self.format(proto)?.is_some_and(|format| wants(&format).nth(i - first).is_none()))
    }

    /// Checks a pointer among the values in registers.
    pub(super) fn formatted_pointer(
        &mut self,
        proto: &HelperProto,
        i: usize,
        reg: Reg,
        v: &Value,
        call: &mut Call<'a>,
    ) -> Res<bool> {
        let Some(first) = proto.args.iter().position(|kind| *kind == ArgKind::Formatted) else { return Ok(false) };
        let wants = self.format(proto)?.and_then(|format| wants(&format).nth(i - first));
        let Some(known) = self.pointer_value(proto, i, reg, v, wants)? else { return Ok(false) };
        call.values[i - first] = Some(known);
        Ok(true)
    }

    /// Checks an array of values on the stack, whose length is the next argument: pointers in it are checked as in
    /// registers. `false` if it is not an array of 8-byte values on the stack, so that it must hold numbers only.
    pub(super) fn values_on_stack(
        &mut self,
        proto: &HelperProto,
        i: usize,
        reg: Reg,
        v: &Value,
        (least, most): (u64, u64),
        call: &mut Call<'a>,
    ) -> Res<bool> {
        let Ty::Stack { frame } = v.ty else { return Ok(false) };
        let bytes = crate::num::size(most);
        let constant =
            least == most && v.n.as_const().is_some() && bytes.is_multiple_of(VALUE) && bytes / VALUE <= FORMAT_VALUES;
        let depth = v.n.smin().checked_neg().and_then(|depth| usize::try_from(depth).ok());
        let Some(depth) =
            depth.filter(|depth| constant && bytes > 0 && *depth >= bytes && *depth <= self.frame_bytes())
        else {
            return Ok(false);
        };
        let format = self.format(proto)?;
        for k in 0..bytes / VALUE {
            let at = depth - k * VALUE;
            let f = &self.state.frames[usize::from(frame)];
            let pointer = f.spilled(at, VALUE).map(|spill| spill.value).filter(|v| !v.is_scalar() && !v.is_local());
            let Some(pointer) = pointer else { continue };
            let wants = format.as_deref().and_then(|format| wants(format).nth(k));
            self.stack_decides(frame.into(), at, VALUE);
            let Some(known) = self.pointer_value(proto, i, reg, &pointer, wants)? else { return Ok(false) };
            call.values[k] = Some(known);
        }
        // The other values must be numbers.
        for k in (0..bytes / VALUE).filter(|k| call.values[*k].is_none()) {
            self.readable_stack(frame, depth - k * VALUE, VALUE)
                .map_err(|why| Box::new(Reason::ArgMem { func: proto.name.to_string(), arg: i + 1, reg, why }))?;
        }
        self.notes.stack(self.state.frames[usize::from(frame)].subprog, (depth, bytes), reg);
        Ok(true)
    }

    /// The number of bytes proven readable behind a pointer that the format asks for; `None` if it asks for no address.
    fn pointer_value(
        &mut self,
        proto: &HelperProto,
        i: usize,
        reg: Reg,
        v: &Value,
        wants: Option<Wants>,
    ) -> Res<Option<u32>> {
        // The requirement depends on the format, and the proof on the place of the pointer.
        self.decides();
        // The function tests for null before it reads.
        let pointer = Value { null: false, ..*v };
        let bytes = match wants {
            None | Some(Wants::Number) => return Ok(None),
            Some(Wants::Address) => return Ok(Some(0)),
            Some(Wants::Bytes(bytes)) => bytes,
            Some(Wants::Text) => self.readable_behind(&pointer, MAX_TEXT, true),
        };
        self.prove_readable(proto, i, reg, &pointer, bytes)?;
        Ok(Some(bytes))
    }

    fn prove_readable(&mut self, proto: &HelperProto, i: usize, reg: Reg, pointer: &Value, bytes: u32) -> Res<()> {
        let proven = self.prove_memory(reg, pointer, bytes.into(), MemArg::READ);
        proven.map(drop).map_err(|why| match *why {
            Reason::Environment(_) | Reason::Internal(_) => why,
            _ => Box::new(Reason::ArgMem { func: proto.name.to_string(), arg: i + 1, reg, why }),
        })
    }

    /// The number of bytes that a function may read behind an argument that is a pointer, or null; for a text, up to
    /// its zero byte.
    pub(super) fn peeked(&mut self, proto: &HelperProto, i: usize, reg: Reg, v: &Value, text: bool) -> Res<u32> {
        /// Linux: `XATTR_SIZE_MAX`, as far as functions on text look.
        const MOST: u32 = 1 << 16;
        // The function's result depends on the number of bytes proven.
        self.decides();
        let pointer = Value { null: false, ..*v };
        let bytes = self.readable_behind(&pointer, MOST, text);
        self.prove_readable(proto, i, reg, &pointer, bytes)?;
        Ok(bytes)
    }

    /// An estimate of the readable bytes, at least 1, which the caller then proves. `text`: up to a zero byte.
    fn readable_behind(&self, v: &Value, most: u32, text: bool) -> u32 {
        let end = v.n.smax();
        let left = |size: u32| i64::from(size).saturating_sub(end);
        let bytes = match v.ty {
            Ty::Stack { frame } => {
                let frame = &self.state.frames[usize::from(frame)];
                let Some(depth) = v.n.as_const().and_then(|off| usize::try_from((off as i64).checked_neg()?).ok())
                else {
                    return 1;
                };
                let readable = |d: usize| frame.check_readable(d, 1).is_ok();
                let bytes = (1..=depth.min(self.frame_bytes())).rev().take_while(|d| readable(*d));
                let len = bytes.clone().count();
                // The text ends at a known zero.
                let zero = bytes.clone().position(|d| text && frame.known_number(d, 1) == Some(0));
                zero.map_or(len, |at| at + 1) as i64
            }
            Ty::MapValue { map, inner } => match self.map(map, inner) {
                Ok(def) => left(def.plain_until(end)),
                Err(_) => 1,
            },
            Ty::Mem { from: Origin::Object { class, .. }, size, .. } => {
                let fields = self.env.class(class).map_or(&[][..], |ty| &ty.fields);
                let next = fields.iter().map(|field| field.offset).find(|at| i64::from(*at) > end);
                left(next.unwrap_or(size))
            }
            Ty::Mem { size, .. } => left(size),
            Ty::Packet { region } => {
                let proven = self.state.room(region, v.id, v.scale, v.least_of_line()).unwrap_or(0);
                let all = i64::from(self.state.min_len[usize::from(region)]).saturating_sub(end);
                all.max(i64::from(proven).saturating_sub(v.delta.into()))
            }
            _ => 1,
        };
        u32::try_from(bytes.clamp(1, most.into())).unwrap_or(1)
    }

    /// The format of a call, if its bytes are known.
    fn format(&mut self, proto: &HelperProto) -> Res<Option<Vec<u8>>> {
        if let Some(at) = proto.args.iter().position(|kind| *kind == ArgKind::ConstStr) {
            let v = self.read(Reg::ARGS[at])?;
            let Ty::MapValue { map, inner: false } = v.ty else { return Ok(None) };
            let size = self.env.maps[map as usize].value_size;
            let len = v.n.as_const().and_then(|start| usize::try_from(u64::from(size).checked_sub(start)?).ok());
            return Ok(len.and_then(|len| self.known_text(&v, len)));
        }
        let (at, len) = (self.read(Reg::R1)?, self.read(Reg::R2)?);
        let Some(len) = len.as_const().and_then(|len| usize::try_from(len).ok()) else { return Ok(None) };
        Ok(self.known_text(&at, len))
    }

    /// The bytes of a string of at most `len` bytes up to its zero byte, if they are known: constants of a frozen map,
    /// or bytes that the program stored.
    fn known_text(&mut self, at: &Value, len: usize) -> Option<Vec<u8>> {
        let start = at.n.as_const()? as i64;
        match at.ty {
            Ty::MapValue { map, inner: false } if !at.null => {
                let def = &self.env.maps[map as usize];
                let contents = def.frozen.as_ref().filter(|_| !def.access.writes())?;
                let start = usize::try_from(start).ok()?;
                let text = contents.get(start..start.checked_add(len)?)?;
                Some(text.split(|byte| *byte == 0).next()?.to_vec())
            }
            Ty::Stack { frame } => {
                let depth = usize::try_from(start.checked_neg()?).ok()?.checked_sub(len)? + len;
                // The bytes decide which values are checked.
                self.stack_decides(frame.into(), depth, len);
                let f = &self.state.frames[usize::from(frame)];
                let text: Vec<u8> =
                    (0..len).map(|i| u8::try_from(f.known_number(depth - i, 1)?).ok()).collect::<Option<_>>()?;
                Some(text.split(|byte| *byte == 0).next()?.to_vec())
            }
            _ => None,
        }
    }

    fn frame_bytes(&self) -> usize {
        crate::num::size(self.env.frame_bytes.into())
    }
}

/// The requirement of each value of a format: one for each `%` that is not doubled. For a conversion that the helper
/// refuses, any requirement may result.
fn wants(format: &[u8]) -> impl Iterator<Item = Wants> + '_ {
    let mut rest = format;
    core::iter::from_fn(move || {
        loop {
            let at = rest.iter().position(|byte| *byte == b'%')?;
            rest = &rest[at + 1..];
            if let [b'%', after @ ..] = rest {
                rest = after;
                continue;
            }
            let flags = rest.iter().take_while(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b' ')).count();
            return Some(match &rest[flags..] {
                [b's', ..] | [b'p', b'k' | b'u', b's', ..] => Wants::Text,
                [b'p', b'i' | b'I', b'4', ..] => Wants::Bytes(4),
                [b'p', b'i' | b'I', b'6', ..] => Wants::Bytes(16),
                [b'p', ..] => Wants::Address,
                _ => Wants::Number,
            });
        }
    })
}
