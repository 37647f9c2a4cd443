//! Proofs in objects: a certificate with digests of its inputs, and the section of an object that holds proofs.
//!
//! The producer of a proof need not be trusted: [`Proof::check`] lets the trusted core check it for the program and the
//! environment at hand. The section [`SECTION`] is not loaded, and the kernel and libbpf ignore it.

use std::collections::HashMap;

use bpf_analysis::Facts;
use bpf_isa::Program;
use bpf_verifier_core::{Env, FUEL, Limits, Replay, check};

use super::against::{Against, Part};
use super::error::{ProofError, Unproven, VERSION};
use super::format::{Reader, Writer};
use super::{Certificate, certify_within};

/// The name of the section of an object that holds the proofs of its programs.
pub const SECTION: &str = ".bpf.proof";
/// The first bytes of the section.
const MAGIC: &[u8] = b"BPFPROOF";
/// Units of [`bpf_verifier_core::Limits::fuel`] in one unit of a check's fuel.
const WALK_FUEL: u64 = 256;

/// A certificate, with digests of the program and environment that it was made for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proof {
    against: Against,
    certificate: Certificate,
}

impl Proof {
    /// Looks for a proof of the program, with `fuel` for each pass.
    ///
    /// # Errors
    /// The first step that each strategy could not prove. The program may be safe all the same.
    pub fn search(program: &Program, env: &Env<'_>, fuel: u64) -> Result<Proof, Unproven> {
        let certificate = certify_within(program, env, fuel)?;
        Ok(Proof { against: Against::of(program, env), certificate })
    }

    /// The proof in its binary form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        self.against.0.iter().for_each(|digest| writer.bytes.extend(digest.to_le_bytes()));
        writer.certificate(&self.certificate);
        writer.bytes
    }

    /// Reads the binary form, in time and memory linear in the bytes, and within the memory that a verification may
    /// hold by default ([`Limits::memory`]).
    ///
    /// # Errors
    /// [`ProofError::Malformed`], with the place.
    pub fn from_bytes(bytes: &[u8]) -> Result<Proof, ProofError> {
        Proof::from_bytes_within(bytes, Limits::default().memory)
    }

    /// As [`Proof::from_bytes`], within this many bytes of memory.
    ///
    /// # Errors
    /// [`ProofError::Malformed`], with the place.
    pub fn from_bytes_within(bytes: &[u8], memory: usize) -> Result<Proof, ProofError> {
        let mut reader = Reader::new(bytes, memory);
        let mut digests = [0; Part::ALL.len()];
        for digest in &mut digests {
            let word = reader.take(4)?.try_into().map_err(|_| reader.wrong("no digest"))?;
            *digest = u32::from_le_bytes(word);
        }
        let certificate = reader.certificate()?;
        match reader.is_at_end() {
            true => Ok(Proof { against: Against(digests), certificate }),
            false => Err(reader.wrong("more than a proof")),
        }
    }

    /// Has the trusted core check the proof for this program in this environment, and returns the facts that the core
    /// derives.
    ///
    /// # Errors
    /// [`ProofError::Differs`] or [`ProofError::NotProven`].
    pub fn check(&self, program: &Program, env: &Env<'_>) -> Result<Facts, ProofError> {
        if let Some(part) = self.against.difference(&Against::of(program, env)) {
            return Err(ProofError::Differs { part });
        }
        // One unit of a check costs at most a few hundred units of the walk.
        let fuel = FUEL.min(env.limits.fuel / WALK_FUEL);
        Ok(check(program, env, &self.certificate.kept, &mut Replay::new(&self.certificate.answers), fuel)?)
    }

    /// The certificate.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }
}

/// The proofs of an object's programs, by name, as they are in its section.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProofSection<'a> {
    entries: Vec<(&'a str, &'a [u8])>,
    /// The first entry of each name, as an index: an object with many programs looks up each of them.
    by_name: HashMap<&'a str, usize>,
}

impl<'a> ProofSection<'a> {
    /// Reads the section; the proofs in it are not read.
    ///
    /// # Errors
    /// [`ProofError::Malformed`], with the place, or [`ProofError::Version`].
    pub fn parse(bytes: &'a [u8]) -> Result<ProofSection<'a>, ProofError> {
        let mut reader = Reader::new(bytes, Limits::default().memory);
        if reader.take(MAGIC.len()).ok() != Some(MAGIC) {
            return Err(ProofError::Malformed { at: 0, what: "no section of proofs" });
        }
        let found = reader.number()?;
        if found != VERSION {
            return Err(ProofError::Version { found });
        }
        let entries = reader.list(|reader| {
            let name = reader.number().and_then(|length| reader.take(length))?;
            let name = std::str::from_utf8(name).map_err(|_| reader.wrong("a name that is not UTF-8"))?;
            Ok((name, reader.number().and_then(|length| reader.take(length))?))
        })?;
        match reader.is_at_end() {
            true => {
                let mut by_name = HashMap::new();
                for (i, (name, _)) in entries.iter().enumerate() {
                    by_name.entry(*name).or_insert(i);
                }
                Ok(ProofSection { entries, by_name })
            }
            false => Err(reader.wrong("more than proofs")),
        }
    }

    /// The proof of the program of this name, if there is one, unread.
    pub fn of(&self, program: &str) -> Option<&'a [u8]> {
        Some(self.entries.get(*self.by_name.get(program)?)?.1)
    }

    /// The names of the programs, each with its proof.
    pub fn entries(&self) -> &[(&'a str, &'a [u8])] {
        &self.entries
    }

    /// The bytes of a section with these proofs.
    pub fn to_bytes(proofs: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut writer = Writer { bytes: MAGIC.to_vec() };
        writer.number(VERSION.into());
        writer.count(proofs.len());
        for (name, proof) in proofs {
            writer.count(name.len());
            writer.bytes.extend(name.as_bytes());
            writer.count(proof.len());
            writer.bytes.extend(proof);
        }
        writer.bytes
    }
}
