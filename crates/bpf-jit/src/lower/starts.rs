//! The starts of objects that a contained function keeps in virtual registers.

use super::webs::NO_WEB;
use bpf_analysis::{Contained, Home};
use bpf_lir::VReg;

/// The starts of objects that a contained function keeps for its accesses.
pub(super) struct Starts<'a> {
    pub(super) facts: &'a Contained,
    /// By home: the start of the object that the home's pointer leads to.
    pub(super) homes: [VReg; Home::COUNT],
    /// By region: its start and length, if these do not change in the run.
    pub(super) regions: [Option<(VReg, VReg)>; 8],
    /// By region whose bounds do not change, and by size `1 << i` of an access: the limit below which the access may
    /// begin, as a distance in bytes from the region's start.
    pub(super) limits: [[VReg; 4]; 8],
    /// The address of the sink, which is accessed in place of memory outside of an object.
    pub(super) sink: Option<VReg>,
    /// The address of the context.
    pub(super) context: Option<VReg>,
}

impl<'a> Starts<'a> {
    pub(super) fn new(facts: &'a Contained) -> Starts<'a> {
        Starts {
            facts,
            homes: [NO_WEB; Home::COUNT],
            regions: [None; 8],
            limits: [[NO_WEB; 4]; 8],
            sink: None,
            context: None,
        }
    }
}
