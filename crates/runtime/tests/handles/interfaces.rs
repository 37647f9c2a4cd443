//! Tables of programs as implementations of a trait.

use crate::common::engines::engines;
use bpf_runtime::interfaces::{Loan, Method, Table};
use bpf_runtime::{
    BpfContext, Engine, FromR0, Linker, LoadError, MapSet, Object, Raw, RunError, RunLimits,
    error::{LookupError, RunErrorKind},
    host::InterfaceError,
    interface,
    isa::assemble,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A connection to be given a backend.
#[derive(BpfContext, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
struct Conn {
    port: u32,
    #[bpf(writable)]
    seen: u32,
}

/// Which backend a connection goes to.
#[interface]
trait Policy {
    fn pick(&mut self, conn: &mut Conn) -> Result<u32, RunError>;

    fn done(&mut self, conn: &mut Conn) -> Result<(), RunError> {
        conn.seen = 1;
        Ok(())
    }

    fn weigh(&mut self, conn: &mut Conn) -> Result<i64, RunError> {
        // A default may call what the table has.
        Ok(i64::from(self.pick(conn)?) + 100)
    }
}

fn load(engine: &Engine, table: &str) -> Result<PolicyOps<()>, InterfaceError> {
    let object = Object::parse(include_bytes!("../objects/policy.o")).expect("an object");
    let maps = MapSet::for_object(engine, &object).expect("its maps");
    PolicyOps::load(Linker::<()>::new(engine).loader(), &object, table, maps)
}

#[test]
fn methods_run_programs_and_defaults() {
    for engine in engines(|config| config) {
        let (full, small) = (load(&engine, "full").unwrap(), load(&engine, "small").unwrap());
        let mut conn = Conn { port: 7, seen: 0 };
        let mut host = ();
        let mut policy = full.with(&mut host);
        assert_eq!((policy.pick(&mut conn).unwrap(), policy.weigh(&mut conn).unwrap()), (3, -7));
        policy.done(&mut conn).unwrap();
        assert_eq!(conn.seen, 7);
        assert_eq!(full.setting("weight"), Some(5u32.to_ne_bytes().to_vec()));
        assert_eq!(full.setting("name"), Some(b"full\0\0\0\0".to_vec()));
        assert_eq!(full.setting("pick"), None);
        let picks = full.instance().maps().next().expect("a map").get(&[0; 4]).unwrap();
        assert_eq!(picks, Some(1u64.to_ne_bytes().to_vec()));

        let mut policy = small.with(&mut host);
        policy.done(&mut conn).unwrap();
        assert_eq!((policy.pick(&mut conn).unwrap(), policy.weigh(&mut conn).unwrap(), conn.seen), (9, 109, 1));
    }
}

/// Methods with names and arguments that are keywords of Rust: `match` runs the program of the member `match`, and the
/// object has no member `type`.
#[interface]
trait Matcher {
    fn r#match(&mut self, r#in: &mut Conn) -> Result<u32, RunError>;

    fn r#type(&mut self, r#in: &mut Conn) -> Result<u32, RunError> {
        Ok(self.r#match(r#in)? + 10)
    }
}

#[test]
fn methods_may_be_called_as_keywords_are() {
    for engine in engines(|config| config) {
        let object = Object::parse(include_bytes!("../objects/policy.o")).expect("an object");
        let maps = MapSet::for_object(&engine, &object).expect("its maps");
        let ops = MatcherOps::load(Linker::<()>::new(&engine).loader(), &object, "keyword", maps).expect("a table");
        let (mut host, mut conn) = ((), Conn { port: 7, seen: 0 });
        let mut matcher = ops.with(&mut host);
        assert_eq!((matcher.r#match(&mut conn).unwrap(), matcher.r#type(&mut conn).unwrap()), (3, 13));
    }
}

/// The backends that a policy may pick: what `pick` of the table `small` returns is none of them.
#[derive(FromR0, PartialEq, Debug)]
#[repr(u32)]
enum Backend {
    First = 1,
    Third = 3,
}

/// [`Policy`] with a result of the host's own.
#[interface]
trait Typed {
    fn pick(&mut self, conn: &mut Conn) -> Result<Backend, RunError>;

    fn done(&mut self, conn: &mut Conn) -> Result<(), RunError> {
        let _ = conn;
        Ok(())
    }

    fn weigh(&mut self, conn: &mut Conn) -> Result<i64, RunError> {
        let _ = conn;
        Ok(0)
    }
}

#[test]
fn a_result_that_its_type_does_not_have_is_an_error() {
    let refused = |error: RunError, wrong: u64, program: &str| {
        let text = error.to_string();
        assert!(text.starts_with(&format!("the program returned {wrong}, which is no `")), "{text}");
        assert!(text.ends_with(&format!("Backend` of `{program}`")), "{text}");
        assert_eq!((error.kind(), error.origin().unwrap().program.as_str()), (RunErrorKind::Result, program));
        assert!(matches!(error, RunError::Result { value, .. } if value == wrong));
    };
    for engine in engines(|config| config) {
        let object = Object::parse(include_bytes!("../objects/policy.o")).expect("an object");
        let load = |table| {
            let maps = MapSet::for_object(&engine, &object).expect("its maps");
            TypedOps::load(Linker::<()>::new(&engine).loader(), &object, table, maps).expect("a table")
        };
        let (full, small, mut conn) = (load("full"), load("small"), Conn { port: 7, seen: 0 });
        assert_eq!(full.with(&mut ()).pick(&mut conn).unwrap(), Backend::Third);
        refused(small.with(&mut ()).pick(&mut conn).unwrap_err(), 9, "always_nine");

        let by_port = full.instance().program_returning::<Conn, Backend>("by_port").unwrap();
        assert_eq!(by_port.run_on(&mut conn).unwrap(), Backend::Third);
        assert!(by_port.program().clone().returning::<bool>().run_on(&mut conn).unwrap());
        let other = full.instance().program_returning::<Conn, i64>("mark").map(drop);
        assert!(matches!(other, Err(LookupError::NoResult { .. })), "{other:?}");

        // The C function returns 32 bits: the rest of r0 is not its result.
        let words = assemble("r0 = 0x700000001 ll\nif r2 == 0 goto +2\nr0 = 0xffffffff00000002 ll\nexit").unwrap();
        let program = Linker::<()>::new(&engine).loader::<Raw>().insns("words", words).unwrap().returning::<Backend>();
        assert_eq!(program.run_on(&mut []).unwrap(), Backend::First);
        refused(program.run_on(&mut [0]).unwrap_err(), 0xffff_ffff_0000_0002, "words");
    }
}

/// A method that returns nothing leaves an address in r0, which only its interface may run.
#[test]
fn a_method_without_a_result_is_run_by_its_interface_only() {
    for engine in engines(|config| config) {
        let object = Object::parse(include_bytes!("../objects/policy.o")).expect("an object");
        let linker = Linker::<()>::new(&engine);
        let maps = || MapSet::for_object(&engine, &object).expect("its maps");
        let refused = |result: Result<(), LoadError>, program: &str| {
            assert!(matches!(&result, Err(LoadError::NoResult { program: of }) if of == program), "{result:?}");
        };
        let withheld = |result: Result<(), LookupError>, program: &str| {
            assert!(matches!(&result, Err(LookupError::NoResult { program: of }) if of == program), "{result:?}");
        };
        let full = load(&engine, "full").unwrap();
        withheld(full.instance().program::<Conn>("mark").map(drop), "mark");
        assert_eq!(
            full.instance().program::<Conn>("by_port").unwrap().run(&mut (), &mut Conn { port: 7, seen: 0 }).unwrap(),
            3
        );
        // A caller that declares a method with another type is refused, too.
        let methods = [
            Method { name: "pick", optional: false, returns: u32::RETURNS, waits: false },
            Method { name: "done", optional: false, returns: <()>::RETURNS, waits: false },
            Method { name: "weigh", optional: false, returns: i64::RETURNS, waits: false },
        ];
        let table = Table::<Conn, ()>::load(linker.loader(), &object, "full", maps(), &methods).expect("a table");
        let results = [0, 1, 2].map(|method| {
            let called = table.call::<u64>(method, &mut Loan::new(&mut ()), &mut Conn { port: 7, seen: 0 }, None);
            called.expect("a run").expect("a program")
        });
        assert_eq!(results, [3, 0, -7i64 as u64]);
        // Without its interface it is loaded if r0 is a number, which it is not.
        let only = || linker.loader::<Conn>().only(&["mark"]);
        if engine.config().get_mode() == bpf_runtime::Mode::Jit {
            refused(only().object(&object, maps()).map(drop), "mark");
            refused(only().compile(&object).map(drop), "mark");
        }
        assert_eq!(only().verify(&object, maps(), false).expect("verified as its interface loads it").len(), 1);
    }
}

#[test]
fn a_table_is_compiled_once_for_many_instances() {
    for engine in engines(|config| config.metrics(true)) {
        let object = Object::parse(include_bytes!("../objects/policy.o")).expect("an object");
        let linker = Linker::<()>::new(&engine);
        let module = PolicyOps::compile(linker.loader(), &object, "full").expect("a module");
        let picks = |ops: &PolicyOps<()>| ops.instance().maps().next().expect("a map").get(&[0; 4]).unwrap().unwrap();
        let call = |ops: &PolicyOps<()>| {
            let mut conn = Conn { port: 7, seen: 0 };
            let mut host = ();
            let mut policy = ops.with(&mut host);
            assert_eq!((policy.pick(&mut conn).unwrap(), policy.weigh(&mut conn).unwrap()), (3, -7));
            policy.done(&mut conn).unwrap();
            assert_eq!(conn.seen, 7);
        };
        let account = engine.account("acme", 1 << 20);
        let acme = module.make(|options| options.name("acme").account(&account)).expect("an instance");
        let other = module.make(|options| options.name("other")).expect("an instance");
        call(&acme);
        call(&acme);
        call(&other);
        assert_eq!((picks(&acme), picks(&other)), (2u64.to_ne_bytes().to_vec(), 1u64.to_ne_bytes().to_vec()));
        assert_eq!(acme.setting("weight"), Some(5u32.to_ne_bytes().to_vec()));
        assert!(acme.instance().name() == Some("acme") && account.used() > 0);
        assert!(matches!(acme.instance().program::<Conn>("mark"), Err(LookupError::NoResult { .. })));
        assert!(matches!(
            module.module().instance().make().unwrap().program::<Conn>("mark"),
            Err(LookupError::NoResult { .. })
        ));
        let counted: Vec<_> = engine.snapshot().programs.into_iter().filter(|p| p.program == "mark").collect();
        assert!(counted.iter().any(|p| p.instance.as_deref() == Some("acme") && p.runs == 2), "{counted:?}");
        // A version is replaced by an instance of another module.
        let small = PolicyOps::compile(linker.loader(), &object, "small").expect("a module");
        other.replace(&small.make(|options| options).expect("an instance")).unwrap();
        assert_eq!(other.with(&mut ()).pick(&mut Conn { port: 7, seen: 0 }).unwrap(), 9);
        // Options of an instance of another module do not lead to that one's programs.
        let foreign = small.module().maps();
        let refused = module.make(|_| small.module().instance().maps(foreign));
        assert!(matches!(refused, Err(InterfaceError::Load(LoadError::MapSet { .. })) | Ok(_)), "{refused:?}");
        let own = module.make(|_| small.module().instance()).expect("an instance of its own module");
        call(&own);
        assert!(matches!(PolicyOps::compile(linker.loader(), &object, "none"), Err(InterfaceError::Missing { .. })));
    }
}

#[test]
fn calls_end_by_their_limits() {
    for engine in engines(|config| config.interruptible(true)) {
        let small = load(&engine, "small").unwrap();
        let mut conn = Conn { port: 7, seen: 0 };
        let far = RunLimits::new().deadline(engine.deadline_in(Duration::from_secs(3600)).unwrap());
        assert_eq!(small.with(&mut ()).limits(&far).pick(&mut conn).unwrap(), 9);
        let near = RunLimits::new().deadline(engine.deadline_in(Duration::from_millis(1)).unwrap());
        let mut host = ();
        let mut policy = small.with(&mut host).limits(&near);
        let over = loop {
            match policy.pick(&mut conn) {
                Ok(_) => std::thread::yield_now(),
                Err(error) => break error,
            }
        };
        assert!(matches!(over, RunError::Deadline { .. }), "{over}");
        // Limits hold for methods that a default implementation calls, and not for calls without limits.
        assert!(matches!(policy.weigh(&mut conn), Err(RunError::Deadline { .. })));
        assert_eq!(small.with(&mut ()).weigh(&mut conn).unwrap(), 109);
        let counted = RunLimits::new().budget(1);
        let refused = small.with(&mut ()).limits(&counted).pick(&mut conn);
        assert!(matches!(refused, Err(RunError::Unlimited { .. })), "{refused:?}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for engine in engines(|config| config) {
        let message = |table| load(&engine, table).expect_err("refused").to_string();
        assert_eq!(message("none"), "table `none` has no program for `pick`, which is not optional");
        assert_eq!(message("newer"), "table `newer` has a program in `later`, which the host does not know");
        load(&engine, "newer_unused").expect("a member that is not used may be unknown");
        for (table, found) in [
            ("returns_more", "a function that returns `__u64`"),
            ("takes_another", "a function of `struct policy *`"),
            ("number", "`__u32`"),
        ] {
            let message = message(table);
            let wanted = "; the host calls a function of one pointer to `struct conn` that returns an unsigned integer of 4 bytes";
            assert_eq!(message, format!("`pick` of table `{table}` is {found}{wanted}"));
        }
        let nothing = "`pick` of table `result_of_nothing` is the program `mark`, which returns nothing; the host calls a \
                       function that returns an unsigned integer of 4 bytes";
        assert_eq!(message("result_of_nothing"), nothing);
        let object = Object::parse(include_bytes!("../objects/policy.o")).unwrap();
        let compiled = PolicyOps::compile(Linker::<()>::new(&engine).loader(), &object, "result_of_nothing");
        assert_eq!(compiled.map(drop).expect_err("refused").to_string(), nothing);
        let InterfaceError::NoTable { have, .. } = load(&engine, "gone").expect_err("refused") else { panic!() };
        assert!(have.contains(&"full".to_owned()) && have.len() == 11, "{have:?}");
    }
}

/// An interface whose methods return C enumerations.
#[interface]
trait Judge {
    fn judge(&mut self, conn: &mut Conn) -> Result<u32, RunError>;
    fn lean(&mut self, conn: &mut Conn) -> Result<i32, RunError>;
}

/// The interface of [`Judge`] with the signs of the results exchanged.
#[interface]
#[expect(dead_code, reason = "refused before it is called")]
trait OtherJudge {
    fn judge(&mut self, conn: &mut Conn) -> Result<i32, RunError>;
    fn lean(&mut self, conn: &mut Conn) -> Result<u32, RunError>;
}

#[test]
fn an_enumeration_is_an_integer() {
    for engine in engines(|config| config) {
        let object = Object::parse(include_bytes!("../objects/policy.o")).expect("an object");
        let linker = Linker::<()>::new(&engine);
        let maps = || MapSet::for_object(&engine, &object).expect("its maps");
        let judge = JudgeOps::load(linker.loader(), &object, "enumerations", maps()).unwrap();
        let mut host = ();
        let mut judge = judge.with(&mut host);
        let mut of = |port| {
            let mut conn = Conn { port, seen: 0 };
            (judge.judge(&mut conn).unwrap(), judge.lean(&mut conn).unwrap())
        };
        assert_eq!((of(22), of(4001)), ((1, -1), (0, 1)));
        // Without negative values either will do; with one, it is signed.
        let refused = OtherJudgeOps::load(linker.loader(), &object, "enumerations", maps()).expect_err("refused");
        assert_eq!(
            refused.to_string(),
            "`lean` of table `enumerations` is a function that returns `enum lean`; the host calls a function of one \
             pointer to `struct conn` that returns an unsigned integer of 4 bytes"
        );
    }
}

/// A structure `Conn` with a further member at its end.
mod other {
    use bpf_runtime::{BpfContext, RunError, interface};

    #[derive(BpfContext, Clone, Copy)]
    #[repr(C)]
    pub(super) struct Conn {
        pub(super) seen: u32,
        pub(super) port: u32,
    }

    #[interface]
    pub(super) trait Policy {
        fn pick(&mut self, conn: &mut Conn) -> Result<u32, RunError>;
        fn done(&mut self, conn: &mut Conn) -> Result<(), RunError> {
            conn.seen = 0;
            Ok(())
        }
        fn weigh(&mut self, conn: &mut Conn) -> Result<i64, RunError> {
            Ok(i64::from(conn.seen))
        }
    }
}

#[test]
fn another_layout_of_the_context_is_refused() {
    for engine in engines(|config| config) {
        let object = Object::parse(include_bytes!("../objects/policy.o")).expect("an object");
        let load = |table| {
            let maps = MapSet::for_object(&engine, &object).expect("its maps");
            other::PolicyOps::load(Linker::<()>::new(&engine).loader(), &object, table, maps)
        };
        let error = load("full").map(drop).expect_err("refused");
        let layout = |error: &InterfaceError| matches!(error, InterfaceError::Load(LoadError::ContextLayout { .. }));
        assert!(layout(&error), "{error}");
        // Its programs access no field.
        let small = load("small").unwrap();
        let mut conn = other::Conn { seen: 0, port: 0 };
        assert_eq!(other::Policy::pick(&mut small.with(&mut ()), &mut conn).unwrap(), 9);
    }
}

#[test]
fn a_table_is_replaced_as_a_whole_under_traffic() {
    for engine in engines(|config| config) {
        let (live, full, small) =
            (load(&engine, "full").unwrap(), load(&engine, "full").unwrap(), load(&engine, "small").unwrap());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        let mut conn = Conn { port: 7, seen: 0 };
                        let weight = live.with(&mut ()).weigh(&mut conn).unwrap();
                        // The default, beside either version's `pick`, which is a call of its own.
                        assert!([-7, 103, 109].contains(&weight), "{weight}");
                    }
                });
            }
            for _ in 0..200 {
                live.replace(&small).unwrap();
                live.replace(&full).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        drop((full, small));
        engine.reclaim();
        assert_eq!(live.with(&mut ()).pick(&mut Conn { port: 6, seen: 0 }).unwrap(), 2);
    }
}

#[test]
fn a_table_of_another_engine_is_refused() {
    let mut engines = engines(|config| config);
    let (one, other) = (engines.remove(0), bpf_runtime::Engine::new(bpf_runtime::Config::new()).unwrap());
    let (one, other) = (load(&one, "full").unwrap(), load(&other, "small").unwrap());
    assert!(matches!(one.replace(&other), Err(InterfaceError::OtherEngine(_))));
    assert_eq!(one.with(&mut ()).pick(&mut Conn { port: 6, seen: 0 }).unwrap(), 2);
}

/// One without any program, too: its maps and settings are the other engine's.
#[test]
fn an_empty_table_of_another_engine_is_refused() {
    #[interface]
    trait Nothing {
        fn nothing(&mut self, _conn: &mut Conn) -> Result<u32, RunError> {
            Ok(5)
        }
    }
    for engine in engines(|config| config) {
        let other = Engine::new(bpf_runtime::Config::new()).unwrap();
        let load = |engine: &Engine| {
            let object = Object::parse(include_bytes!("../objects/policy.o")).unwrap();
            let maps = MapSet::for_object(engine, &object).unwrap();
            NothingOps::load(Linker::<()>::new(engine).loader(), &object, "number", maps).unwrap()
        };
        let (one, same, foreign) = (load(&engine), load(&engine), load(&other));
        assert!(matches!(one.replace(&foreign), Err(InterfaceError::OtherEngine(_))));
        one.replace(&same).unwrap();
        assert_eq!(one.with(&mut ()).nothing(&mut Conn { port: 6, seen: 0 }).unwrap(), 5);
    }
}
