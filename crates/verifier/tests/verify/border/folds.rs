//! Programs that fold a sum as a checksum does: the bits above a width are added to the bits below it until none is
//! left. Others test the carry bit of a sum and then use the sum as an index. They are safe except for the mistakes
//! made here.

use std::fmt::Write;

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

/// Makes a program.
pub(crate) fn generate(c: &mut Choices<'_>) -> Option<Program> {
    let mut text = String::new();
    let mut line = |s: String| writeln!(text, "{s}").expect("a string");
    let w = c.pick(&["w", "r"]);
    let bits = c.pick(&[3, 4, 4, 5, 5, 8, 16]);
    let one = 1u32 << bits;
    // r6: the buffer, of at least so many bytes.
    let least = 8 + c.below(60);
    line("r6 = r1".into());
    line(format!("if r2 < {least} goto out"));
    line(format!("r0 = *({} *)(r6 + 0)", c.pick(&["u8", "u16", "u32", "u64"])));
    if c.one_in(2) {
        line(format!("{w}0 &= {}", c.pick(&[one - 1, 2 * one - 1, 3 * one, 0xffff])));
    }
    if c.one_in(2) {
        line(format!("{w}0 += {}", c.below(4)));
    }
    // Computes the carry; one in eight has a width that is off by one.
    let carried = |line: &mut dyn FnMut(String), c: &mut Choices<'_>, to: u32, ahead: u32| {
        line(format!("{w}{to} = {w}0"));
        if ahead > 0 {
            line(format!("{w}{to} += {ahead}"));
        }
        let by = if c.one_in(8) { bits - 1 + 2 * c.below(2) } else { bits };
        line(format!("{w}{to} >>= {by}"));
    };
    if c.one_in(2) {
        carried(&mut line, c, 3, 0);
        line(format!("if {w}3 == 0 goto folded"));
        let mask = if c.one_in(6) { c.pick(&[one, 2 * one - 1, one / 2 - 1]) } else { one - 1 };
        line(format!("a: {w}0 &= {mask}"));
        line(format!("{w}0 += {w}3"));
        if c.one_in(8) {
            line(format!("{w}0 += {}", 1 + c.below(2)));
        }
        carried(&mut line, c, 3, 0);
        line(format!("if {w}3 != 0 goto a"));
        line("folded:".into());
    }
    // Computes the carry of the folded sum plus `ahead`; the access does not include `ahead`.
    let ahead = c.below(3) * c.below(one / 2);
    carried(&mut line, c, 4, ahead);
    let (set, limit) = (c.one_in(2), one - u32::from(c.one_in(2)) * (ahead + 1).min(one));
    line(format!("if {w}4 {} 0 goto out", if set { "==" } else { "!=" }));
    // The sum is at least `one - ahead` if the carry is set, and less if not.
    line(format!("if r0 > {} goto out", limit + c.below(8)));
    line("r5 = r6".into());
    line("r5 += r0".into());
    let off = if set { i64::from(one) - i64::from(ahead) + i64::from(c.below(2)) } else { i64::from(c.below(2)) };
    line(format!("r5 -= {off}"));
    line("r0 = *(u8 *)(r5 + 0)".into());
    line("out: r0 = 0".into());
    line("exit".into());
    let insns = assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Program::new(insns).ok()
}
