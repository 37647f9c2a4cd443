//! Replaces the tools in builds without the feature `tools`: types without values. [`crate::Registry::new`] refuses
//! options that would need one.

use crate::Error;
use crate::unit::Unit;
use bpf_jit_code::Arch;
use std::io;
use std::path::Path;

#[derive(Debug)]
pub(crate) enum PerfMap {}

impl PerfMap {
    pub(crate) fn create(_: &Path) -> Result<PerfMap, Error> {
        Err(Error::NotBuilt)
    }

    pub(crate) fn add(&self, _: &Unit) -> io::Result<()> {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) enum JitDump {}

impl JitDump {
    pub(crate) fn create(_: &Path, _: Arch) -> Result<JitDump, Error> {
        Err(Error::NotBuilt)
    }

    pub(crate) fn add(&self, _: &Unit, _: &[u8]) -> io::Result<()> {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) enum RegisteredFrames {}

impl RegisteredFrames {
    /// # Safety
    /// None: nothing is registered.
    pub(crate) unsafe fn new(_: &Unit) -> Option<RegisteredFrames> {
        None
    }
}

#[derive(Debug)]
pub(crate) struct Announced {}

impl Announced {
    pub(crate) fn new(_: &Unit) -> Announced {
        // `Registry::new` has refused the options before.
        Announced {}
    }
}
