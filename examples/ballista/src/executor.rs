//! Plug-ins on an executor: checked against its terms, compiled, kept by digest.

use crate::plugin::{Digest, Kind, Plugin, Refused};
use bpf_example_datafusion::{Distinct, Rows, Score, Sketch};
use bpf_runtime::object::text::ShownLines;
use bpf_runtime::{Engine, Linker, LoadError, MapSet, verify::Proofs};
use prost::Message;
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
    /// Bytes of a plug-in with its constants, at most.
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

/// The compiled plug-in, or the reason for its refusal. One thread finds it while others that need it wait.
type Verdict = Arc<OnceLock<Result<Loaded, Refusal>>>;

#[derive(Clone)]
struct Refusal {
    why: String,
    /// Whether the plug-in alone is the reason. The executor keeps a final refusal, so that it does not verify a plug-in
    /// again which is sent again. Other refusals, for instance because memory is short at the moment, are forgotten.
    is_final: bool,
}

impl Refusal {
    fn of(error: &Refused) -> Refusal {
        // The verifier's verdicts depend on the plug-in and the engine's limits alone.
        let is_final = matches!(
            error.downcast_ref(),
            Some(LoadError::Verifier { .. } | LoadError::Proof { .. } | LoadError::Uncontained { .. })
        );
        Refusal { why: error.to_string(), is_final }
    }
}

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
        // The function's name and the message have parts of a stranger's plug-in: they are shown on terminals and logs.
        let refuse = |why: &dyn fmt::Display| {
            let refused = format!("executor `{}` refuses the function `{}`: {why}", self.executor, plugin.function);
            ShownLines(refused).to_string()
        };
        let most = self.terms.object_bytes;
        // The size is compared first: hashing takes time that grows with it.
        let size = plugin.encoded_len();
        if size > most {
            return Err(refuse(&format_args!("it has {size} bytes; at most {most} are taken here")));
        }
        let digest = plugin.digest();
        let verdict = self.verdict(digest);
        let found = verdict.get_or_init(|| self.load(plugin).map_err(|why| Refusal::of(&why)));
        found.clone().map_err(|Refusal { why, is_final }| {
            if !is_final {
                self.forget(digest, &verdict);
            }
            refuse(&format_args!("{why} (plug-in {digest})"))
        })
    }

    /// Forgets a verdict, unless another one has taken its place.
    fn forget(&self, digest: Digest, verdict: &Verdict) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.verdicts.get(&digest).is_some_and(|(_, kept)| Arc::ptr_eq(kept, verdict)) {
            kept.verdicts.remove(&digest);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use bpf_runtime::{
        Config,
        maps::{Map, MapDef, MapType},
    };

    const SCORE: &[u8] = include_bytes!("../../datafusion/score.o");

    fn plugins(engine: &Engine) -> Plugins {
        Plugins::new("one", engine, Linker::new(engine), Terms { proofs: Proofs::Ignore, ..Terms::default() })
    }

    /// A refusal because memory is short is not kept; one by the verifier is.
    #[test]
    fn only_verdicts_on_the_plugin_are_kept() {
        let config = Config::untrusted().memory_limit(4 << 20);
        let engine = Engine::new(config).unwrap();
        let (plugins, score) = (plugins(&engine), Plugin::scalar("score", SCORE));
        let mut held = Vec::new();
        for size in (3..22).rev().map(|log| 1u32 << log) {
            let map = MapDef::new("held", MapType::Array, 4, size, 1);
            held.extend(std::iter::from_fn(|| engine.create_map(map.clone()).ok()).take(2));
        }
        let refused = plugins.get(&score).err().unwrap();
        assert!(refused.contains("refuses the function `score`"), "{refused}");
        drop(held);
        engine.reclaim();
        assert!(plugins.get(&score).is_ok());
        let before = plugins.kept.lock().unwrap().verdicts.len();
        let missing = Plugin::scalar("nowhere", SCORE);
        assert!(plugins.get(&missing).is_err());
        assert_eq!(plugins.kept.lock().unwrap().verdicts.len(), before);
    }

    /// Names of strangers do not reach terminals raw, and constants count as bytes.
    #[test]
    fn names_and_sizes_of_strangers_are_bounded() {
        let engine = Engine::new(Config::untrusted()).unwrap();
        let plugins = plugins(&engine);
        let refused = plugins.get(&Plugin::scalar("\u{1b}[2Jname", SCORE)).err().unwrap();
        assert!(!refused.contains('\u{1b}'), "{refused}");
        let large = Plugin::scalar("score", SCORE).constant("large", &vec![0; 2 << 20]);
        let refused = plugins.get(&large).err().unwrap();
        assert!(refused.contains("at most 1048576 are taken here"), "{refused}");
    }
}
