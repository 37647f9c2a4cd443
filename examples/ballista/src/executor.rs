//! Plug-ins on an executor: checked against its terms, compiled, kept by digest.

use crate::plugin::{Digest, Kind, Plugin, Refused};
use bpf_example_datafusion::{Distinct, Rows, Score, Sketch};
use bpf_runtime::{Engine, Linker, MapSet, Proofs};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The conditions on which an executor takes a plug-in.
#[derive(Clone, Debug)]
pub struct Terms {
    /// `Proofs::Require`: only programs that carry a proof, which is checked. `Proofs::Ignore`: programs that this
    /// executor's verifier accepts.
    pub proofs: Proofs,
    /// Bytes of an object, at most.
    pub object_bytes: usize,
    /// Bytes of a plug-in's maps and code, at most.
    pub memory: u64,
    /// Verdicts that are kept, at most: compiled plug-ins and refusals.
    pub kept: usize,
}

impl Default for Terms {
    fn default() -> Self {
        Terms { proofs: Proofs::Require, object_bytes: 1 << 20, memory: 1 << 20, kept: 64 }
    }
}

/// A plug-in that was taken.
#[derive(Clone)]
pub(crate) enum Loaded {
    Scalar(Score),
    Aggregate(Distinct),
}

/// One executor's plug-ins.
pub struct Plugins {
    executor: String,
    engine: Engine,
    linker: Linker<()>,
    terms: Terms,
    kept: Mutex<Kept>,
    compiled: AtomicUsize,
}

/// The compiled plug-in, or the reason for its refusal. One thread finds it while others that need it wait. Verdicts
/// are deterministic, so a refusal is kept too: a plug-in that is sent again is not verified again.
type Verdict = Arc<OnceLock<Result<Loaded, String>>>;

#[derive(Default)]
struct Kept {
    verdicts: HashMap<Digest, (u64, Verdict)>,
    /// Counts uses: the verdict that was used longest ago makes room.
    now: u64,
}

impl Plugins {
    /// Makes the plug-ins of an executor that errors name `executor`. Programs may call the linker's functions; the
    /// engine is the linker's.
    pub fn new(executor: &str, engine: &Engine, linker: Linker<()>, terms: Terms) -> Self {
        let (executor, engine) = (executor.to_owned(), engine.clone());
        Plugins { executor, engine, linker, terms, kept: Mutex::default(), compiled: AtomicUsize::new(0) }
    }

    /// Plug-ins that were compiled, each once unless it had to make room.
    pub fn compiled(&self) -> usize {
        self.compiled.load(Ordering::Relaxed)
    }

    /// The loaded plug-in, or why this executor does not take it.
    pub(crate) fn get(&self, plugin: &Plugin) -> Result<Loaded, String> {
        let digest = plugin.digest();
        let verdict = self.verdict(digest);
        let found = verdict.get_or_init(|| self.load(plugin).map_err(|why| why.to_string()));
        found.clone().map_err(|why| {
            format!("executor `{}` refuses the function `{}` ({digest}): {why}", self.executor, plugin.function)
        })
    }

    fn verdict(&self, digest: Digest) -> Verdict {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.now += 1;
        let now = kept.now;
        if let Some((used, verdict)) = kept.verdicts.get_mut(&digest) {
            *used = now;
            return Arc::clone(verdict);
        }
        if kept.verdicts.len() >= self.terms.kept.max(1) {
            let oldest = kept.verdicts.iter().min_by_key(|(_, (used, _))| *used).map(|(digest, _)| *digest);
            // Queries that run it have it still.
            oldest.and_then(|digest| kept.verdicts.remove(&digest));
        }
        let verdict = Verdict::default();
        kept.verdicts.insert(digest, (now, Arc::clone(&verdict)));
        verdict
    }

    fn load(&self, plugin: &Plugin) -> Result<Loaded, Refused> {
        let (size, most) = (plugin.object.len(), self.terms.object_bytes);
        if size > most {
            return Err(format!("its object has {size} bytes; at most {most} are taken here").into());
        }
        let object = plugin.open()?;
        let maps = MapSet::for_object(&self.engine, &object)?;
        let account = self.engine.account(&plugin.function, self.terms.memory);
        let loaded = match plugin.kind() {
            Kind::Scalar => {
                let loader = self.linker.loader::<Rows>().proofs(self.terms.proofs).account(&account);
                let instance = loader.object(&object, maps)?;
                Loaded::Scalar(Score::of(&self.engine, instance.program(&plugin.function)?)?)
            }
            Kind::Aggregate => {
                let loader = self.linker.loader::<Sketch>().proofs(self.terms.proofs).account(&account);
                let instance = loader.object(&object, maps)?;
                Loaded::Aggregate(Distinct::of(instance.program("add")?, instance.program("merge")?))
            }
            Kind::Unknown => return Err("it is neither a scalar function nor an aggregate".into()),
        };
        // A statistic.
        self.compiled.fetch_add(1, Ordering::Relaxed);
        Ok(loaded)
    }
}

impl fmt::Debug for Plugins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugins").field("executor", &self.executor).field("terms", &self.terms).finish_non_exhaustive()
    }
}
