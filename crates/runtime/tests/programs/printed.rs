//! The sink of `bpf_trace_printk` is told who printed: the program, its account, its slot, and a level if the text has
//! one.

use crate::support;
use crate::support::ways::{self, WAYS, Way};
use bpf_runtime::{Raw, run::Printed};
use std::sync::{Arc, Mutex};

/// A call as the sink received it: program, account, text.
type Told = (String, Option<String>, String);

/// Prints `text`, as a format without values, or with the number 7 for its last two bytes if it ends in `%d`.
fn printer(text: &[u8; 8]) -> String {
    let word = u64::from_le_bytes(*text);
    format!(
        "r1 = {word} ll; *(u64 *)(r10 - 16) = r1; *(u64 *)(r10 - 8) = 0; r1 = r10; r1 += -16; r2 = 9; r3 = 7; call 6; exit"
    )
}

#[test]
fn the_sink_is_told_who_printed() {
    for way in WAYS {
        let told = Arc::new(Mutex::new(Vec::<Told>::new()));
        let sink = Arc::clone(&told);
        let engine = ways::engine(way, |mut config| {
            config = config.print(move |printed: &Printed<'_>| {
                let account = printed.account.map(str::to_owned);
                assert_eq!(printed.to_string(), printed.text);
                let level = printed.text.strip_prefix("<3>").map_or((None, printed.text), |text| (Some(3), text));
                assert_eq!(printed.level(), level);
                sink.lock().unwrap().push((printed.program.to_owned(), account, printed.text.to_owned()));
            });
            config
        });
        let linker = bpf_runtime::Linker::<()>::new(&engine);
        let account = engine.account("tenant", 16 << 20);
        let load = |name: &str, text: &[u8; 8], accounted: bool| {
            let loader = linker.loader::<Raw>();
            let loader = if accounted { loader.account(&account) } else { loader };
            let loader = match way {
                Way::Interpreted => loader.interpreted(true),
                // SAFETY: the verifier accepts these programs.
                Way::Unverified => unsafe { loader.unverified(true) },
                Way::Verified
                | Way::Unoptimised
                | Way::VerifiedInterpreted
                | Way::Instance
                | Way::InterpretedInstance => loader,
            };
            loader.insns(name, support::program(&printer(text))).unwrap()
        };
        let programs = [load("alone", b"it is %d", false), load("counted", b"<3>no %d", true)];
        for program in &programs {
            assert_eq!(program.run(&mut (), &mut &mut [][..]).unwrap(), 7, "{way:?}");
        }
        let told = told.lock().unwrap();
        let expected = [("alone", None, "it is 7"), ("counted", Some("tenant"), "<3>no 7")];
        let expected =
            expected.map(|(program, account, text)| (program.to_owned(), account.map(str::to_owned), text.to_owned()));
        assert_eq!(*told, expected, "{way:?}");
    }
}
