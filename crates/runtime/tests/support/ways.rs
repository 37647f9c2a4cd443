//! One object, loaded in every way there is, and results as its programs note them.

use bpf_runtime::{Config, Context, Engine, Instance, Linker, LoadError, MapSet, Mode, Module, Object, OptLevel, Raw};

/// The ways to load a program of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Not verified, by the checking interpreter.
    Interpreted,
    /// Not verified, as machine code.
    Unverified,
    /// Verified, as machine code.
    Verified,
    /// Verified, as machine code made without optimisation.
    Unoptimised,
    /// Verified, by the interpreter.
    VerifiedInterpreted,
    /// Verified, as machine code: an instance of a module that was serialised and read back, after one of the module
    /// itself.
    Instance,
    /// An instance of a module, in the interpreter.
    InterpretedInstance,
}

impl Way {
    pub(crate) fn is_interpreted(self) -> bool {
        match self {
            Way::Interpreted | Way::VerifiedInterpreted | Way::InterpretedInstance => true,
            Way::Unverified | Way::Verified | Way::Unoptimised | Way::Instance => false,
        }
    }

    pub(crate) fn is_verified(self) -> bool {
        match self {
            Way::Interpreted | Way::Unverified => false,
            Way::Verified | Way::Unoptimised | Way::VerifiedInterpreted | Way::Instance | Way::InterpretedInstance => {
                true
            }
        }
    }
}

pub(crate) const WAYS: [Way; 7] = [
    Way::Interpreted,
    Way::Unverified,
    Way::Verified,
    Way::Unoptimised,
    Way::VerifiedInterpreted,
    Way::Instance,
    Way::InterpretedInstance,
];

/// An engine for this way.
pub(crate) fn engine(way: Way, configure: impl FnOnce(Config) -> Config) -> Engine {
    let mut config = Config::new();
    if matches!(way, Way::VerifiedInterpreted | Way::InterpretedInstance) {
        config = config.mode(Mode::Interpreter);
    }
    if way == Way::Unoptimised {
        config = config.opt_level(OptLevel::None);
    }
    Engine::new(configure(config)).unwrap()
}

/// Loads an object that the verifier accepts.
pub(crate) fn instance(engine: &Engine, way: Way, object: &Object) -> Instance<()> {
    try_instance(engine, way, object).unwrap_or_else(|e| panic!("{way:?}: {e}"))
}

/// An object on an engine of its own, and the engine.
pub(crate) fn loaded(way: Way, object: &Object) -> (Engine, Instance<()>) {
    let engine = engine(way, |config| config);
    let instance = instance(&engine, way, object);
    (engine, instance)
}

/// Runs a program on a copy of these bytes.
pub(crate) fn run(instance: &Instance<()>, name: &str, bytes: &[u8]) -> u64 {
    let program = instance.program::<Raw>(name).unwrap();
    program.run(&mut (), &mut bytes.to_vec()).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Loads an object. The verifier accepts each of its programs that the tests run.
pub(crate) fn try_instance(engine: &Engine, way: Way, object: &Object) -> Result<Instance<()>, LoadError> {
    let linker = Linker::<()>::new(engine);
    let loader = match way {
        Way::Interpreted => linker.loader::<Raw>().interpreted(true),
        // SAFETY: the verifier accepts the objects' programs.
        Way::Unverified => unsafe { linker.loader::<Raw>().unverified(true) },
        Way::Instance | Way::InterpretedInstance => {
            let module = linker.compile::<Raw>(object)?;
            // The first is gone when the second is made.
            module.instance().make()?;
            return read_back(&linker, module).instance().make();
        }
        Way::Verified | Way::Unoptimised | Way::VerifiedInterpreted => linker.loader::<Raw>(),
    };
    loader.object(object, MapSet::for_object(engine, object).unwrap())
}

/// Returns the module read back from its bytes, or unchanged if it cannot be serialised.
pub(crate) fn read_back<C: Context, H: 'static>(linker: &Linker<H>, module: Module<C, H>) -> Module<C, H> {
    match module.serialize() {
        // SAFETY: `serialize` of this process returned the bytes.
        Ok(bytes) => unsafe { Module::deserialize(linker, &bytes) }.unwrap_or_else(|error| panic!("{error}")),
        Err(error) => {
            let refused = ["are interpreted", "make objects", "own objects", "of a first tier"];
            assert!(refused.iter().any(|what| error.what.contains(what)), "{error}");
            module
        }
    }
}

/// Errors as `NOTE` in the sources writes them: the low byte of -errno.
pub(crate) const ENOENT: u64 = 0xfe;
pub(crate) const E2BIG: u64 = 0xf9;
pub(crate) const EEXIST: u64 = 0xef;
pub(crate) const EINVAL: u64 = 0xea;

/// The results of a sequence of operations, a byte each.
pub(crate) fn notes(results: &[u64]) -> u64 {
    results.iter().fold(0, |all, note| all << 8 | note)
}
