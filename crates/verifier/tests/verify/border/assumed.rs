//! Loops whose safety depends on the assumptions of loose walks: each access is in bounds, a number added to a pointer
//! does not lead far out of its region, and a number cast to 32 bits fits them.
//!
//! An index, of any size when the loop begins or moved by numbers of any size, is cast or not, added to a pointer to
//! the buffer or the stack, and used, with a test of one or the other before the address, behind it, behind the access
//! or nowhere. A loose walk passes all of these and derives bounds from its assumptions; if an assumption remained in
//! the checked state, most of these programs would be accepted.

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

/// Bytes of the stack that are written before the loop.
const STACK: u32 = 32;

/// A line that loads an index, mostly one that fits.
fn index(c: &mut Choices<'_>, r: u32) -> String {
    let at = c.below(24);
    match c.below(5) {
        0 | 1 => format!("r{r} = 0"),
        2 => format!("r{r} = *(u8 *)(r6 + {at})\nr{r} &= 15"),
        3 => format!("r{r} = *(u32 *)(r6 + {at})"),
        _ => format!("r{r} = *(u64 *)(r6 + {at})"),
    }
}

/// A test of the index, or of its cast copy, that leaves the loop. The bound may be negative.
fn test(c: &mut Choices<'_>, least: u32) -> String {
    let (r, cond) = (c.pick(&["r7", "r7", "r4"]), c.pick(&[">", ">", ">", ">=", "s>"]));
    let end = match c.below(4) {
        0 => "r8".to_owned(),
        1 => (least - 1).to_string(),
        _ => (least - 1 - c.below(8)).to_string(),
    };
    format!("if {r} {cond} {end} goto out")
}

/// Makes a program.
pub(crate) fn generate(c: &mut Choices<'_>) -> Option<Program> {
    let on_stack = c.one_in(3);
    let mut text: Vec<String> = vec!["r6 = r1".into(), "r3 = 0".into()];
    text.extend((1..=STACK / 8).map(|i| format!("*(u64 *)(r10 - {}) = {i}", 8 * i)));
    text.push(index(c, 7));
    // An end that the loop itself does not bound, and the step of the index.
    text.push(c.pick(&["r8 = r2", "r8 = 31", "r8 = *(u8 *)(r6 + 3)", "r8 = *(u64 *)(r6 + 8)"]).into());
    text.push(index(c, 9));
    let memory = if on_stack { STACK } else { 32 };
    let size = c.below(4);
    let least = memory + 1 - (1 << size);
    let (tested, again) = (c.pick(&[0, 1, 2, 3, 3, 3, 4, 5]), c.one_in(4));
    // Each round after the first, which is walked concretely, loads an index of any size.
    let loads = c.one_in(2);
    if loads {
        text.push("r7 &= 7".into());
    }
    text.push("a:".into());
    if tested == 0 {
        text.push(test(c, least));
    }
    text.push("r4 = r7".into());
    match c.below(4) {
        0 => text.push("r4 <<= 32\nr4 >>= 32".into()),
        1 => text.push("r4 <<= 32\nr4 s>>= 32".into()),
        2 => text.push("w4 = w7".into()),
        _ => {}
    }
    if tested == 1 || tested == 2 || again {
        text.push(test(c, least));
    }
    text.push(if on_stack { format!("r5 = r10\nr5 += -{STACK}") } else { "r5 = r6".into() });
    match c.below(6) {
        0 => text.push("r5 += r7".into()),
        1 => text.push("r4 += r5\nr5 = r4".into()),
        _ => text.push("r5 += r4".into()),
    }
    if tested == 3 {
        text.push(test(c, least).replace("r4", "r7"));
    }
    let (width, off) = (["u8", "u16", "u32", "u64"][size as usize], c.pick(&["+ 0", "+ 0", "+ 0", "+ 1", "- 1"]));
    match c.below(4) {
        0 => text.push(format!("*({width} *)(r5 {off}) = 7\nr0 = r3")),
        _ => text.push(format!("r0 = *({width} *)(r5 {off})")),
    }
    if tested == 4 {
        text.push(test(c, least).replace("r4", "r7"));
    }
    text.push(
        c.pick(&["r7 += 1", "r7 += 1", "r7 += 1", "r7 += 4", "r7 += r9", "r7 += r0", "r7 -= 1", "r7 = r9"]).into(),
    );
    if loads || c.one_in(4) {
        text.push("r3 += 1\nif r3 > 20 goto out".into());
    }
    if loads {
        text.push("r7 = r6\nr7 += r3\nr7 = *(u64 *)(r7 + 0)\ngoto a".into());
    }
    let (bound, end) = (c.pick(&["<", "<=", "!="]), c.pick(&["r8", "r8", "31", "16", "40"]));
    text.push(format!("if r7 {bound} {end} goto a"));
    text.extend(["out: r0 = 0".into(), "exit".into()]);
    let text = text.join("\n");
    let insns = assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Program::new(insns).ok()
}
