//! A plug-in as it travels: an object, which may carry proofs, and its constants.

use bpf_example_datafusion::{Rows, Sketch};
use bpf_runtime::{
    Linker, MapSet, Object,
    verify::{PROVING_FUEL, ProofSection},
};
use prost::Message;
use sha2::{Digest as _, Sha256};
use std::error::Error;
use std::fmt;

/// The parts of a function of SQL. Its bytes are a protobuf message, as are those of the plans that carry it.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
#[prost(skip_debug)]
pub struct Plugin {
    /// The function's name in SQL. A scalar function's program has it too.
    #[prost(string, tag = "1")]
    pub function: String,
    #[prost(enumeration = "Kind", tag = "2")]
    pub kind: i32,
    /// The object file, with a section `.bpf.proof` or without.
    #[prost(bytes = "vec", tag = "3")]
    pub object: Vec<u8>,
    /// Values of `const volatile` variables, set before anything is verified.
    #[prost(message, repeated, tag = "4")]
    pub constants: Vec<Constant>,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Constant {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum Kind {
    /// A number that this version does not know (protobuf decodes it to 0).
    Unknown = 0,
    /// One program, on [`Rows`]: two columns of 64-bit integers to one.
    Scalar = 1,
    /// The programs `add` and `merge`, on [`Sketch`].
    Aggregate = 2,
}

/// SHA-256 of a plug-in's bytes: equal digests are equal plug-ins.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..6].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Plugin {
    /// A scalar function: this object's program of the function's name.
    pub fn scalar(function: &str, object: &[u8]) -> Self {
        Self::new(function, Kind::Scalar, object)
    }

    /// An aggregate: this object's programs `add` and `merge`.
    pub fn aggregate(function: &str, object: &[u8]) -> Self {
        Self::new(function, Kind::Aggregate, object)
    }

    fn new(function: &str, kind: Kind, object: &[u8]) -> Self {
        let (function, object) = (function.to_owned(), object.to_vec());
        Plugin { function, kind: kind.into(), object, constants: Vec::new() }
    }

    /// Sets a constant of the programs. Proofs are of programs with their constants: this comes before
    /// [`Plugin::prove`].
    pub fn constant(mut self, name: &str, value: &[u8]) -> Self {
        self.constants.push(Constant { name: name.to_owned(), value: value.to_vec() });
        self
    }

    /// Looks for proofs of the programs, which the object carries from then on. The linker needs host functions of the
    /// same names and types as executors have.
    ///
    /// # Errors
    /// The object is malformed, or no proof is found of some program: the error says which, and where.
    pub fn prove(mut self, linker: &Linker<()>, engine: &bpf_runtime::Engine) -> Result<Self, Refused> {
        let object = self.open()?;
        let maps = MapSet::for_object(engine, &object)?;
        let reports = match self.kind() {
            Kind::Scalar => linker.loader::<Rows>().prove(&object, maps, PROVING_FUEL)?,
            Kind::Aggregate => linker.loader::<Sketch>().prove(&object, maps, PROVING_FUEL)?,
            Kind::Unknown => return Err("it is neither a scalar function nor an aggregate".into()),
        };
        let mut proofs = Vec::new();
        for report in &reports {
            match &report.proof {
                Ok(proof) => proofs.push((&*report.program, proof.clone())),
                Err(refusal) => return Err(format!("no proof of program `{}`: {refusal}", report.program).into()),
            }
        }
        self.object = Object::with_proofs(&self.object, &ProofSection::to_bytes(&proofs))?;
        Ok(self)
    }

    /// The object, with its constants.
    ///
    /// # Errors
    /// The object is malformed, or has no constant of that name and size.
    pub(crate) fn open(&self) -> Result<Object, Refused> {
        let mut object = Object::parse(&self.object)?;
        for Constant { name, value } in &self.constants {
            object.set_global(name, value)?;
        }
        Ok(object)
    }

    pub fn digest(&self) -> Digest {
        Digest(Sha256::digest(self.encode_to_vec()).into())
    }
}

/// Why a plug-in is not taken.
pub type Refused = Box<dyn Error + Send + Sync>;

/// Prints the digest in place of the object.
impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?}, {})", self.function, self.kind(), self.digest())
    }
}
