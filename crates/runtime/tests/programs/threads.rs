//! Task storage: data that programs keep for the threads that run them.

use crate::support::ways::{self, Way};
use bpf_runtime::{
    Instance, Linker, MapSet, Object,
    net::{Xdp, XdpBuff},
};
use bpf_testkit::kernel::{self, pinned};
use bpf_testkit::skipped;
use std::path::Path;

const OBJECT: &[u8] = include_bytes!("../objects/threads.o");
const VERIFIED: [Way; 5] =
    [Way::Verified, Way::Unoptimised, Way::VerifiedInterpreted, Way::Instance, Way::InterpretedInstance];

fn load(way: Way) -> Instance<()> {
    let object = Object::parse(OBJECT).unwrap();
    let engine = ways::engine(way, |config| config);
    let maps = MapSet::for_object(&engine, &object).unwrap();
    let linker = Linker::<()>::new(&engine);
    linker.loader::<Xdp>().object(&object, maps).unwrap_or_else(|e| panic!("{way:?}: {e}"))
}

fn run(instance: &Instance<()>, name: &str) -> u64 {
    instance.program::<Xdp>(name).unwrap().run(&mut (), &mut XdpBuff::new(&mut [0; 64])).unwrap()
}

#[test]
fn each_thread_has_what_is_kept_of_it() {
    for way in VERIFIED {
        let instance = load(way);
        assert_eq!([(); 3].map(|()| run(&instance, "count")), [101, 102, 103], "{way:?}");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| [run(&instance, "count"), run(&instance, "count")]);
            assert_eq!(other.join().unwrap(), [101, 102], "{way:?}");
        });
        assert_eq!(run(&instance, "count"), 104, "{way:?}");
        // The host sees both, and says that one is gone.
        let threads = instance.map("threads").unwrap();
        assert_eq!(threads.len(), 2, "{way:?}");
        let keys: Vec<_> = threads.iter().map(|element| element.unwrap().0).collect();
        let runs = |key: &[u8]| threads.get(key).unwrap().unwrap();
        let mine = keys.iter().find(|key| runs(key) == 104u64.to_ne_bytes()).unwrap();
        threads.delete(mine).unwrap();
        assert_eq!(run(&instance, "count"), 101, "{way:?}");
        assert_eq!(run(&instance, "steps"), 77, "{way:?}");
    }
}

#[test]
fn steps_are_the_kernels() {
    const WHAT: &str = "what is kept of threads against the kernel";
    if let Err(reason) = kernel::available() {
        return skipped(WHAT, &reason);
    }
    let object = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/objects/threads.o");
    match pinned::load(&object) {
        Ok(theirs) => {
            let theirs = |name: &str| theirs.programs[name].test_run_output(&[0; 64]).unwrap().0;
            assert_eq!([(); 3].map(|()| theirs("count")), [101, 102, 103]);
            assert_eq!(theirs("steps"), 77);
        }
        Err(reason @ pinned::NotLoaded::NoLoader(_)) => skipped(WHAT, &reason.to_string()),
        Err(refused) => panic!("{refused}"),
    }
}
