//! The starts of a contained program's objects, kept function by function.

use super::webs::NO_WEB;
use bpf_analysis::{Contained, Home};
use bpf_lir::VReg;

/// The starts that a contained function keeps for its accesses.
pub(super) struct Starts<'a> {
    pub(super) facts: &'a Contained,
    /// The start of the object that each home's pointer leads to.
    pub(super) homes: [VReg; Home::COUNT],
    /// Start and length of each region, where these do not change in the run.
    pub(super) regions: [Option<(VReg, VReg)>; 8],
    /// For each region whose bounds do not change, and each size `1 << i` of an access: the limit below which the
    /// access may begin, as a distance from the region's start.
    pub(super) limits: [[VReg; 4]; 8],
    /// The address of the sink, which is accessed where there is no object.
    pub(super) sink: Option<VReg>,
    /// The context.
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
