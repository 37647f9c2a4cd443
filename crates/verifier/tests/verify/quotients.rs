//! Quotients, shifts and truncations: each rule beside programs for which it does not hold.

use crate::common::{accepted, refused};

/// The low half of `(r2 + 2^34 - 32) >> 2`: words behind 32 bytes.
const WORDS: &str = ";raw
    if r2 < 36 goto out
    r3 = 17179869152 ll
    r2 += r3
    r2 >>= 2
    w4 = w2
    r1 += 32
    r5 = 0
    a: if r5 >= r4 goto out
    r0 = *(u32 *)(r1 + 0)
    r1 += 4
    r5 += 1
    goto a
    out: r0 = 0
    exit";

#[test]
fn what_is_added_beyond_32_bits_is_cut_off_again() {
    accepted(WORDS);
    accepted(&WORDS.replace("w4 = w2", "r2 <<= 32\nr2 >>= 32\nr4 = r2"));
    accepted(&WORDS.replace("w4 = w2", "w2 += 0\nr4 = r2"));
    accepted(&WORDS.replace("w4 = w2", "r4 = r2\nr4 &= 2147483647"));
    // The subtrahend is more than the minuend.
    refused(&WORDS.replace("r2 < 36", "r2 < 31"));
    // The bits above 32 are not cut off, or not all of them.
    refused(&WORDS.replace("w4 = w2", "r4 = r2"));
    refused(&WORDS.replace("w4 = w2", "r2 <<= 31\nr2 >>= 31\nr4 = r2"));
    // Shifted by one bit more, the added 2^34 leaves a bit in the low half.
    refused(&WORDS.replace("r2 >>= 2", "r2 >>= 3").replace("+ 0)\n    r1 += 4", "+ 0)\n    r1 += 8"));
    // The buffer is entered one word later.
    refused(&WORDS.replace("r1 += 32", "r1 += 36"));
    // Each word is taken to have eight bytes.
    refused(&WORDS.replace("r1 += 4", "r1 += 8"));
}

/// The hexadecimal digits of a number of 32 bits.
const DIGITS: &str = ";raw
    if r2 < 8 goto out
    r3 = *(u32 *)(r1 + 0)
    r4 = 0
    a: r5 = r10
    r5 += -8
    r5 += r4
    *(u8 *)(r5 + 0) = 1
    r4 += 1
    r6 = r3
    r3 >>= 4
    if r6 > 15 goto a
    r5 = r10
    r5 += -9
    r5 += r4
    r0 = *(u8 *)(r5 + 0)
    out: r0 = 0
    exit";

#[test]
fn digits_are_as_many_as_a_number_can_be_divided() {
    accepted(DIGITS);
    accepted(&DIGITS.replace("r3 >>= 4", "r3 /= 16"));
    // Binary digits: of a byte there are 8, of 32 bits too many.
    let bits = DIGITS.replace("r3 >>= 4", "r3 >>= 1").replace("> 15", "> 1");
    accepted(&bits.replace("r3 = *(u32", "r3 = *(u8"));
    refused(&bits);
    refused(&DIGITS.replace("r3 >>= 4", "r3 /= 15").replace("> 15", "> 14"));
    // The loop divides once more, after the last digit.
    refused(&DIGITS.replace("r6 > 15", "r6 > 0"));
    // The loop never ends.
    refused(&DIGITS.replace("if r6 > 15", "if r6 >= 0"));
    // Each round loads the number anew.
    refused(&DIGITS.replace("r6 = r3", "r3 = *(u32 *)(r1 + 4)\nr6 = r3"));
}

/// Chunks whose length is rounded up to four bytes: each has at least one byte, so the loop advances.
#[test]
fn what_is_rounded_down_is_no_less_than_its_least_rounded_down() {
    let text = ";raw
        r3 = 0
        a: r4 = r3
        r4 += 4
        if r4 > r2 goto out
        r5 = r1
        r5 += r3
        r6 = *(u16 *)(r5 + 2)
        if w6 < 4 goto out
        w6 += 3
        w6 &= 131068
        r3 += r6
        goto a
        out: r0 = 0
        exit";
    accepted(text);
    accepted(&text.replace("w6 < 4", "w6 < 1"));
    // A length of 0 is rounded to 0, and so are 1 and 3 where nothing is added before rounding down.
    refused(&text.replace("if w6 < 4 goto out\n", ""));
    refused(&text.replace("w6 += 3\n", "").replace("w6 < 4", "w6 < 3"));
    // Bits in the middle are lost.
    refused(&text.replace("131068", "131064"));
    refused(&text.replace("131068", "131056"));
}

/// A counter of 64 bits whose low half is compared.
#[test]
fn a_counter_of_which_the_low_half_is_compared_counts() {
    let text = ";raw
        r0 = 0
        if r2 < 400001 goto out
        r9 = 0
        a: r5 = r1
        r5 += r9
        r0 = *(u8 *)(r5 + 0)
        r9 += 1
        w4 = w9
        w4 += -1
        if w4 < 400000 goto a
        out: r0 = 0
        exit";
    accepted(text);
    refused(&text.replace("r2 < 400001", "r2 < 400000"));
    // The counter begins at 2^32: its low half is 0, and the counter is not.
    refused(&text.replace("r9 = 0", "r9 = 4294967296 ll"));
}

/// A counter of 64 bits whose low byte is compared.
#[test]
fn a_counter_of_which_the_low_byte_is_compared_counts() {
    let text = ";raw
        r0 = 0
        r5 = 0
        a: r3 = r5
        r3 += 1
        if r3 > r2 goto out
        r4 = r1
        r4 += r5
        r4 = *(u8 *)(r4 + 0)
        if r4 == 0 goto out
        r5 += r4
        if r5 > r2 goto out
        r6 = 1
        b: r7 = r10
        r7 += -255
        r7 += r6
        *(u8 *)(r7 - 1) = 0
        w6 += 1
        r7 = r6
        r7 &= 255
        if w7 < w4 goto b
        goto a
        out: r0 = 0
        exit";
    accepted(text);
    // The compared byte may be 255, so the counter is at most 254, which is out of range.
    refused(&text.replace("r7 += -255", "r7 += -253"));
    // In steps of 2, odd counters end at 253, and even ones wrap round to 0.
    let by_2 = text.replace("w6 += 1", "w6 += 2");
    accepted(&by_2);
    refused(&by_2.replace("r6 = 1", "r6 = 2"));
}

/// Rounds that an exit bounds; some of them divide a number, too, and others do not.
#[test]
fn what_an_exit_bounds_is_not_counted_by_a_division() {
    let text = ";raw
        if r2 < 16 goto out
        r3 = *(u32 *)(r1 + 0)
        r4 = 0
        a: if r4 >= r2 goto out
        r5 = r1
        r5 += r4
        r0 = *(u8 *)(r5 + 0)
        r7 = *(u64 *)(r1 + 8)
        r7 += 1
        r4 += 1
        if r7 == 0 goto a
        r6 = r3
        r3 >>= 4
        if r6 > 15 goto a
        out: r0 = 0
        exit";
    accepted(text);
    refused(&text.replace("if r4 >= r2", "if r4 > r2"));
}

/// A length of two bytes, whose high byte is tested to be 0.
const BYTES: &str = ";raw
    if r2 < 2 goto out
    r3 = *(u8 *)(r1 + 0)
    r4 = *(u8 *)(r1 + 1)
    r5 = r3
    r5 <<= 8
    r5 |= r4
    r4 = 0
    if r3 != 0 goto out
    a: r6 = r10
    r6 += -256
    r6 += r4
    *(u8 *)(r6 + 0) = 1
    r4 += 1
    if r4 < r5 goto a
    out: r0 = 0
    exit";

#[test]
fn what_has_no_high_byte_is_a_byte() {
    accepted(BYTES);
    accepted(&BYTES.replace("r5 |= r4", "r5 += r4"));
    accepted(&BYTES.replace("-256", "-512").replace("!= 0", "> 1"));
    refused(&BYTES.replace("-256", "-510").replace("!= 0", "> 1"));
    refused(&BYTES.replace("-256", "-254"));
    // The low part has 16 bits, not 8.
    refused(&BYTES.replace("r2 < 2", "r2 < 3").replace("r4 = *(u8 *)", "r4 = *(u16 *)").replace("|=", "+="));
    // Another byte is tested.
    refused(&BYTES.replace("if r3 != 0", "r3 = *(u8 *)(r1 + 1)\nif r3 != 0"));
}

/// A range of characters, as compilers test it; the distance of a character in the range from its start is an index.
const RANGE: &str = ";raw
    if r2 < 2 goto out
    r3 = *(u8 *)(r1 + 0)
    r4 = r3
    w4 += -97
    w4 &= 255
    if w4 >= 26 goto out
    r5 = r10
    r5 += -123
    r5 += r3
    *(u8 *)(r5 + 0) = 1
    out: r3 = 0
    a: r3 += 1
    if r3 < 3 goto a
    r0 = 0
    exit";

#[test]
fn a_difference_of_a_byte_is_cut_to_a_byte() {
    accepted(RANGE);
    accepted(&RANGE.replace("w4", "r4"));
    accepted(&RANGE.replace("& 255", "& 511"));
    // The range ends one character further.
    refused(&RANGE.replace("-123", "-122"));
    // The mask keeps fewer bits than the number has; the loaded number has more bits than the mask keeps.
    refused(&RANGE.replace("&= 255", "&= 127"));
    refused(&RANGE.replace("*(u8 *)(r1", "*(u16 *)(r1"));
    // The bound is larger than some differences that have wrapped round.
    refused(&RANGE.replace(">= 26", ">= 160"));
}

/// A gap that shrinks by 10 / 13, around another loop.
const GAPS: &str = ";raw
    if r2 < 2 goto out
    r3 = r2
    a: r4 = r3
    r4 *= 10
    r3 = r4
    r3 /= 13
    r5 = 0
    b: r6 = r1
    r6 += r5
    r0 = *(u8 *)(r6 + 0)
    r5 += 1
    if r5 < r2 goto b
    if r4 >= 26 goto a
    out: r0 = 0
    exit";

#[test]
fn a_part_of_a_multiple_is_less() {
    accepted(GAPS);
    accepted(&GAPS.replace("/= 13", "/= 11").replace("26", "22"));
    // The gap is multiplied by 10 / 10, and by 10 / 9.
    refused(&GAPS.replace("/= 13", "/= 10").replace("26", "20"));
    refused(&GAPS.replace("/= 13", "/= 9").replace("26", "18"));
    // A gap of 0 stays 0, so the loop does not end.
    refused(&GAPS.replace("if r4 >= 26", "if r4 >= 0"));
}

/// A number without the zeros at its end, as compilers test for these.
const ODD: &str = ";raw
    if r2 < 4 goto out
    r3 = *(u32 *)(r1 + 0)
    if r3 == 0 goto out
    r4 = r3
    r4 &= 1
    if r4 != 0 goto out
    r5 = r3
    a: r3 >>= 1
    r6 = r5
    r6 &= 2
    r5 = r3
    if r6 == 0 goto a
    out: r0 = 0
    exit";

#[test]
fn half_of_what_is_even_and_not_zero_is_not_zero() {
    accepted(ODD);
    // The number may be 0.
    refused(&ODD.replace("if r3 == 0 goto out", "if r3 == 1 goto out"));
    // The tested bit is not the one that the next shift drops.
    refused(&ODD.replace("r6 &= 2", "r6 &= 4"));
    // The loop continues where the bit is set, too.
    refused(&ODD.replace("if r6 == 0 goto a", "if r6 >= 0 goto a"));
    // The tested number is not the halved one.
    refused(&ODD.replace("r5 = r3\n    if", "r5 = *(u8 *)(r1 + 2)\n    if"));
}

/// The top two bits of an item's first byte give the exponent of its length in bytes: 1, 2, 4 or 8.
const WIDTH: &str = ";raw
    r3 = 0
    a: r6 = r2
    if r3 >= r2 goto out
    r6 -= r3
    r4 = r1
    r4 += r3
    r5 = *(u8 *)(r4 + 0)
    w7 = w5
    w7 >>= 6
    w8 = 1
    w8 <<= w7
    if r6 < r8 goto out
    r3 += r8
    if w5 < 64 goto a
    r0 = *(u8 *)(r4 + 1)
    if w5 < 128 goto a
    r0 = *(u16 *)(r4 + 2)
    goto a
    out: r0 = 0
    exit";

#[test]
fn an_exponent_of_two_bits_is_what_they_are() {
    accepted(WIDTH);
    accepted(&WIDTH.replace("w7 >>= 6", "w7 >>= 6\nw7 &= 3"));
    // The program reads a third byte where there are two, or a fifth where there are four.
    refused(&WIDTH.replace("(r4 + 1)", "(r4 + 2)"));
    refused(&WIDTH.replace("(r4 + 2)", "(r4 + 3)"));
    // A first byte of 63 means one byte, and the program reads two; 127 means two bytes, and the program reads four.
    refused(&WIDTH.replace("w5 < 64", "w5 < 63"));
    refused(&WIDTH.replace("w5 < 128", "w5 < 127"));
    // The exponent is made of other bits.
    refused(&WIDTH.replace("w7 >>= 6", "w7 >>= 5"));
    refused(&WIDTH.replace("w7 >>= 6", "w7 >>= 4\nw7 &= 3"));
    refused(&WIDTH.replace("w8 = 1", "w8 = 1\nw5 += 1"));
}

/// A state machine whose next state comes from one part of a table and its output from another: `table[state][class]`,
/// followed by letters.
#[test]
fn states_are_those_that_a_table_leads_to() {
    use bpf_isa::{Program, assemble};
    use bpf_verifier::{Access, ContextLayout, Env, Helpers, KnownMap, MapType, Verifier};
    let text = "r3 = 0
        a: if r2 == 0 goto out
        r4 = *(u8 *)(r1 + 0)
        r1 += 1
        r2 -= 1
        r4 &= 1
        r3 <<= 1
        r5 = map[fd:0][0]+0
        r5 += r3
        r5 += r4
        r3 = *(u8 *)(r5 + 0)
        goto a
        out: r0 = 0
        exit";
    let verify = |table: &[u8]| {
        let program = Program::new(assemble(text).expect("instructions")).expect("valid");
        let context = ContextLayout::raw(true);
        let helpers = Helpers::none();
        let size = u32::try_from(table.len()).expect("small");
        let maps = [KnownMap {
            access: Access::Read,
            frozen: Some(table.into()),
            ..KnownMap::new("table", MapType::Array, 4, size, 1)
        }];
        let mut env = Env::new(&context, &helpers);
        env.maps = &maps;
        Verifier::new().verify(program, &env).map_err(|e| e.to_string())
    };
    let table = [1, 0, 2, 1, 3, 1, 0, 2];
    let letters = b"letters, beyond what is a state";
    if let Err(e) = verify(&[&table[..], letters].concat()) {
        panic!("{e}");
    }
    // The table leads into the letters, which as states lead out of the table.
    let wrong = [1, 0, 2, 1, 3, 1, 4, 2];
    assert!(verify(&[&wrong[..], letters].concat()).is_err());
    // The table leads out of the map.
    assert!(verify(&wrong).is_err());
}

/// A number is shifted or masked before two paths meet, and again on a path that knows the number to be at most 20 and
/// ends by itself. The other path knows the result of the first shift, and not the bound of 20.
fn sibling(made: &str, compared: u32, between: &str) -> String {
    format!(
        ";raw
         if r2 < 8 goto out
         r6 = *(u32 *)(r1 + 0)
         r8 = *(u8 *)(r1 + 4)
         r3 = 0
         a: r3 += 1
         if r3 < 3 goto a
         r4 = r6
         r4 {made}
         {between}
         if r8 > 100 goto b
         if r6 > 20 goto out
         r5 = r6
         r5 {made}
         r5 = r6
         r5 >>= 5
         r5 = r6
         r5 >>= 6
         r5 = r6
         r5 >>= 7
         goto out
         b: if r4 != {compared} goto out
         r5 = r10
         r5 += -21
         r5 += r6
         *(u8 *)(r5 + 0) = 1
         out: r0 = 0
         exit"
    )
}

#[test]
fn what_one_path_learns_of_a_shifted_number_is_not_known_on_its_sibling() {
    let met = "if r8 > 50 goto m\n r7 = 1\n m: r7 = 2";
    for between in ["", met] {
        for (made, compared) in [(">>= 4", 1), ("&= 7", 1), ("&= 16", 16)] {
            let program = sibling(made, compared, between);
            refused(&program);
            // The bound of 20 is known on both paths.
            let both = "if r6 > 20 goto out\n         r8 = *(u8 *)(r1 + 4)";
            accepted(&program.replace("r8 = *(u8 *)(r1 + 4)", both));
        }
    }
    // The comparison itself bounds the shifted number to 16 to 31.
    let shifted = sibling(">>= 4", 1, "");
    accepted(&shifted.replace("r5 += -21", "r5 += -32"));
    refused(&shifted.replace("r5 += -21", "r5 += -31"));
}

/// Each planted fault in these rules lets an unsafe program be accepted, and the oracle sees it violate the proof.
#[cfg(feature = "faults")]
#[test]
fn each_fault_of_quotients_is_found() {
    use bpf_isa::{Program, assemble};
    use bpf_testkit::generate::Choices;
    use bpf_verifier::faults::{Fault, plant};

    use crate::border::{Oracle, Outcome};

    let wrong = |fault: Fault| match fault {
        // The subtrahend is more than the minuend: the quotient's low half is as large as numbers of 32 bits are.
        Fault::AheadOfNothing => {
            "r3 = *(u8 *)(r1 + 0)
             r4 = r3
             r5 = 17179869176 ll
             r4 += r5
             r4 >>= 2
             w4 += 0
             r5 = r10
             r5 += -64
             r5 += r4
             *(u8 *)(r5 + 0) = 1
             r3 = 0
             a: r3 += 1
             if r3 < 3 goto a"
        }
        // The low part is two bytes.
        Fault::DigitsOverlap => {
            "r3 = *(u8 *)(r1 + 0)
             r3 &= 1
             r4 = *(u16 *)(r1 + 2)
             r5 = r3
             r6 = r5
             r5 <<= 8
             r5 += r4
             r4 = 0
             if r6 != 0 goto out
             r7 = r10
             r7 += -256
             r7 += r5
             *(u8 *)(r7 + 0) = 1
             out: r3 = 0
             a: r3 += 1
             if r3 < 3 goto a"
        }
        // The number has two bytes.
        Fault::CutDifferencesFit => {
            "r3 = *(u16 *)(r1 + 0)
             r4 = r3
             w4 += -97
             w4 &= 255
             if w4 >= 26 goto out
             r5 = r10
             r5 += -123
             r5 += r3
             *(u8 *)(r5 + 0) = 1
             out: r3 = 0
             a: r3 += 1
             if r3 < 3 goto a"
        }
        // A number that does not fit 32 bits is not divided; a havocked iteration assumes that it fits.
        Fault::RoundsUndivided => {
            "r3 = *(u8 *)(r1 + 0)
             r4 = 0
             r8 = 4294967296 ll
             a: r5 = r10
             r5 += -8
             r5 += r4
             *(u8 *)(r5 + 0) = 1
             r4 += 1
             r6 = *(u64 *)(r1 + 8)
             r7 = r6
             r7 <<= 32
             r7 >>= 32
             if r6 >= r8 goto b
             r3 >>= 1
             b: if r3 > 0 goto a"
        }
        Fault::PartOfNothing => {
            "r3 = *(u8 *)(r1 + 0)
             r7 = *(u8 *)(r1 + 1)
             a: r4 = r3
             r4 *= 10
             r3 = r4
             r3 /= 13
             if r7 > 9 goto a"
        }
        Fault::SetBitsAreClear => {
            "r3 = *(u8 *)(r1 + 0)
             r4 = r3
             r4 &= 8
             if r4 == 0 goto out
             r3 &= 15
             r5 = r10
             r5 += -8
             r5 += r3
             *(u8 *)(r5 + 0) = 1
             out: r3 = 0
             a: r3 += 1
             if r3 < 3 goto a"
        }
        // The path that is walked first knows the number to be at most 20.
        Fault::SiblingKnowsRanges => {
            "r6 = *(u32 *)(r1 + 0)
             r8 = *(u8 *)(r1 + 4)
             r3 = 0
             a: r3 += 1
             if r3 < 3 goto a
             r4 = r6
             r4 &= 7
             if r8 > 100 goto b
             if r6 <= 20 goto n
             r0 = 0
             exit
             n: r5 = r6
             r5 &= 7
             r0 = 0
             exit
             b: if r4 != 1 goto out
             r5 = r10
             r5 += -21
             r5 += r6
             *(u8 *)(r5 + 0) = 1
             out:"
        }
        // On the other path, the bits are those of another number.
        Fault::DefinitionsKept => {
            "r6 = *(u8 *)(r1 + 0)
             r7 = *(u8 *)(r1 + 1)
             r8 = *(u8 *)(r1 + 2)
             r3 = 0
             a: r3 += 1
             if r3 < 3 goto a
             if r8 > 100 goto b
             r4 = r6
             r4 &= 144
             goto c
             b: r4 = r7
             r4 &= 144
             if r4 > r6 goto out
             c: if r4 != 16 goto out
             r5 = r10
             r5 += -128
             r5 += r6
             *(u8 *)(r5 + 0) = 1
             out:"
        }
        // The path on which r7 wraps to 0 adds up to three rounds that do not divide the number.
        Fault::UndividedUnseen => {
            "r3 = *(u32 *)(r1 + 0)
             r4 = 0
             a: r5 = r10
             r5 += -8
             r5 += r4
             *(u8 *)(r5 + 0) = 1
             r7 = *(u8 *)(r1 + 8)
             r7 |= -2
             r8 = r7
             r7 += 1
             if r7 != 0 goto b
             if r4 >= 3 goto b
             r4 += 1
             goto a
             b: r4 += 1
             r6 = r3
             r3 >>= 4
             if r6 > 15 goto a"
        }
        // The power of two may be 8, which is one byte beyond the stack.
        Fault::ExponentUnwalked => {
            "r8 = 0
             a: r3 = *(u8 *)(r1 + 0)
             r3 >>= 6
             r4 = 1
             r4 <<= r3
             r5 = r10
             r5 += -8
             r5 += r4
             *(u8 *)(r5 + 0) = 1
             r8 += 1
             if r8 < 3 goto a"
        }
        // The two copies become different constants after some rounds.
        Fault::TwinsStayAlike => {
            "r3 = *(u8 *)(r1 + 0)
             r3 &= 3
             r4 = r3
             r8 = *(u16 *)(r1 + 2)
             a: if r3 > 5 goto b
             r5 = r10
             r5 += -6
             r5 += r4
             *(u8 *)(r5 + 0) = 1
             b: r5 = *(u8 *)(r1 + 1)
             if r5 > 100 goto c
             r6 = *(u8 *)(r1 + 4)
             r3 = r6
             r4 = r6
             goto d
             c: r3 = 5
             r4 = 7
             d: r9 = *(u8 *)(r1 + 5)
             r9 |= 1
             if r8 < r9 goto out
             r8 -= r9
             goto a
             out:"
        }
        _ => "",
    };
    let mut missed = Vec::new();
    for &fault in Fault::OF_QUOTIENTS {
        let text = format!("{}\nr0 = 0\nexit", wrong(fault));
        let program = Program::new(assemble(&text).expect("instructions")).expect("valid");
        let check = || Oracle::new(false).check(&program, 64, &mut Choices::from_seed(1));
        let sound = check();
        plant(Some(fault));
        let planted = check();
        plant(None);
        assert!(matches!(sound, Outcome::Refused(_)), "{fault:?} without it");
        match planted {
            Outcome::Violation(_) => {}
            Outcome::Refused(e) => missed.push(format!("{fault:?}: refused: {e}")),
            Outcome::Ran(n) => missed.push(format!("{fault:?}: ran {n}")),
        }
    }
    assert!(missed.is_empty(), "not found: {}", missed.join("\n"));
}
