//! Use of an engine's memory by holder, and accounts with a limit of their own.

use crate::common::engines::engines;
use bpf_runtime::{
    Account, Config, Engine, Instance, Linker, LoadError, MapSet, Object, Raw,
    isa::assemble,
    maps::MapError,
    memory::{Holder, LimitBelowUse, Whose},
};

const OBJECT: &[u8] = include_bytes!("../objects/helpers.o");

fn load(engine: &Engine, account: Option<&Account>) -> Result<Instance<()>, LoadError> {
    let object = Object::parse(OBJECT).unwrap();
    let linker = Linker::<()>::new(engine);
    let loader = linker.loader::<Raw>();
    let loader = account.into_iter().fold(loader, |loader, account| loader.account(account));
    loader.object(&object, MapSet::for_object(engine, &object)?)
}

/// Returns the kinds and names of the holders, and the sum of their bytes.
fn held(all: &[bpf_runtime::memory::Held]) -> (Vec<(Holder, &str)>, u64) {
    (all.iter().map(|held| (held.holder, held.name.as_str())).collect(), all.iter().map(|held| held.bytes).sum())
}

#[test]
fn usage_names_plug_ins_and_their_maps() {
    for engine in engines(|config| config) {
        let account = engine.account("plug-in", 1 << 20);
        let instance = load(&engine, Some(&account)).unwrap();
        let usage = engine.usage();
        assert_eq!((usage.limit, usage.accounts.len()), (engine.config().get_memory_limit(), 1));
        let of = &usage.accounts[0];
        assert_eq!((&*of.name, of.limit, of.used), ("plug-in", 1 << 20, account.used()));
        let (names, bytes) = held(&of.held);
        assert_eq!(bytes, account.used(), "no byte that nobody has");
        for map in instance.maps() {
            assert!(names.contains(&(Holder::Map, map.name())), "{names:?}");
        }
        for program in instance.programs() {
            assert!(names.contains(&(Holder::Program, program)), "{names:?}");
        }
        let (maps, code): (Vec<_>, Vec<_>) = of.held.iter().partition(|held| held.holder != Holder::Program);
        let maps: u64 = maps.iter().map(|held| held.bytes).sum();
        assert!(code.iter().all(|held| held.bytes > 0));
        let json = serde_json::to_value(&usage).expect("it serialises");
        let first = &of.held[0];
        let expected = serde_json::json!({
            "holder": first.holder.to_string(), "instance": null, "name": first.name, "bytes": first.bytes,
        });
        assert_eq!((&json["accounts"][0]["held"][0], &json["code_used"]), (&expected, &usage.code_used.into()));
        // Code is counted with the memory for all code.
        assert_eq!(usage.used, maps + usage.code_mapped);
        // Objects without an account are listed beside the accounts.
        let beside = load(&engine, None).unwrap();
        let usage = engine.usage();
        let (names, bytes) = held(&usage.held);
        assert_eq!((names.len(), bytes), (beside.maps().count(), maps));
        drop((instance, beside));
        engine.domain().drain().unwrap();
        engine.reclaim();
        assert_eq!((account.used(), account.usage().held), (0, Vec::new()));
        drop(account);
        assert_eq!(engine.usage().accounts, Vec::new());
    }
}

#[test]
fn a_load_beyond_its_account_is_refused_whole() {
    for engine in engines(|config| config) {
        let account = engine.account("plug-in", u64::MAX);
        let first = load(&engine, Some(&account)).unwrap();
        let needed = account.used();
        let before = engine.usage();
        for limit in [needed, needed + 1, needed + needed / 2, 2 * needed - 1] {
            account.set_limit(limit).unwrap();
            match load(&engine, Some(&account)) {
                Err(
                    LoadError::MemoryFull { full, .. }
                    | LoadError::Map { source: MapError::MemoryFull { full, .. }, .. },
                ) => {
                    assert_eq!((full.whose, full.limit), (Whose::Account, limit));
                    assert!(full.needed > full.left);
                    assert!(full.to_string().contains("of this account"), "{full}");
                }
                other => panic!("{other:?}"),
            }
            engine.domain().drain().unwrap();
            assert_eq!(account.used(), needed);
        }
        let LimitBelowUse { limit, used, .. } = account.set_limit(needed - 1).expect_err("below what is used");
        assert_eq!((limit, used), (needed - 1, needed));
        assert_eq!(account.limit(), 2 * needed - 1, "as before");
        account.set_limit(2 * needed).unwrap();
        drop(load(&engine, Some(&account)).unwrap());
        engine.domain().drain().unwrap();
        assert_eq!(engine.usage().held, before.held);
        drop(first);
    }
}

/// A plug-in that leaks is stopped by its own limit, and the others go on.
#[test]
fn a_plug_in_that_leaks_takes_nothing_from_others() {
    let config = Config::new().memory_limit(16 << 20);
    let engine = Engine::new(config).unwrap();
    let (leaks, other) = (engine.account("leaks", 1 << 20), engine.account("other", 8 << 20));
    let mut kept = Vec::new();
    while let Ok(instance) = load(&engine, Some(&leaks)) {
        kept.push(instance);
    }
    assert!(kept.len() > 1 && leaks.used() <= leaks.limit());
    for _ in 0..100 {
        load(&engine, Some(&other)).unwrap();
        engine.domain().drain().unwrap();
    }
    drop(kept);
    engine.domain().drain().unwrap();
    load(&engine, Some(&leaks)).unwrap();
}

#[test]
fn an_account_of_another_engine_is_refused() {
    let [one, two] = [0; 2].map(|_| Engine::new(Config::new()).unwrap());
    let account = one.account("one", 1 << 20);
    assert!(matches!(load(&two, Some(&account)), Err(LoadError::OtherAccount { .. })));
    let insns = assemble("r0 = 1\nexit").unwrap();
    let refused = Linker::<()>::new(&two).loader::<Raw>().account(&account).insns("one", insns);
    assert!(matches!(refused, Err(LoadError::OtherAccount { .. })));
    assert_eq!(account.used(), 0);
}
