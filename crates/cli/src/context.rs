//! The context of a program: chosen by the user, by its section, or by its use of r1.
//!
//! Objects of older loaders name their sections by number (`2/7`) or arbitrarily (`from-netdev`), and the loader
//! tells the kernel the program's type. Here the verifier determines the context: a program that verifies on exactly
//! one of the shipped contexts gets that one. A program that verifies on raw bytes reads no context, and may run on
//! them.

use crate::load::NoHost;
use anyhow::{Result, ensure};
use bpf_runtime::{
    Engine, Linker, LoadError, MapSet, Object, Raw,
    net::{Skb, Xdp},
    object::{Program as ObjectProgram, ProgramType},
};
use clap::ValueEnum;
use std::path::Path;

/// The context of a program.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ContextArg {
    /// r1 = the input's address, r2 = its length.
    Raw,
    /// `struct xdp_md`: the input is a packet.
    Xdp,
    /// `struct xdp_md`, for programs of sections `xdp.frags`: the input is a packet, in pieces with --frag-size.
    XdpFrags,
    /// `struct __sk_buff`: the input is a packet.
    Skb,
    /// `struct bpf_sk_lookup`, of zeros.
    SkLookup,
    /// `struct bpf_sock`, of zeros.
    Sock,
    /// `struct bpf_sock_addr`, of zeros.
    SockAddr,
    /// `struct bpf_sock_ops`, of zeros.
    SockOps,
}

impl ContextArg {
    /// The conventional context of a program of this type.
    pub(crate) fn of(kind: ProgramType) -> ContextArg {
        match kind {
            ProgramType::Xdp => ContextArg::Xdp,
            ProgramType::SocketFilter
            | ProgramType::TcClassifier
            | ProgramType::TcAction
            | ProgramType::CgroupSkb
            | ProgramType::LwtIn
            | ProgramType::LwtOut
            | ProgramType::LwtXmit
            | ProgramType::FlowDissector => ContextArg::Skb,
            ProgramType::SkLookup => ContextArg::SkLookup,
            ProgramType::CgroupSock => ContextArg::Sock,
            ProgramType::CgroupSockAddr => ContextArg::SockAddr,
            ProgramType::SockOps => ContextArg::SockOps,
            _ => ContextArg::Raw,
        }
    }
}

/// A context, and the reason for choosing it.
#[derive(Clone, Copy)]
pub(crate) struct Chosen {
    pub(crate) context: ContextArg,
    why: Why,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The user or the section chose it.
    Said,
    /// The program verifies on no other.
    Only,
    /// The program verifies on others too.
    OneOfSeveral,
    /// Neither the section nor the program's accesses determine the context.
    Guess,
}

impl Chosen {
    /// The context of a program of the object.
    pub(crate) fn of(
        engine: &Engine,
        linker: &Linker<NoHost>,
        object: &Object,
        program: &ObjectProgram,
        asked: Option<ContextArg>,
    ) -> Chosen {
        let context = asked.unwrap_or(ContextArg::of(program.kind()));
        if asked.is_some() || program.kind() == ProgramType::Raw || context != ContextArg::Raw {
            return Chosen { context, why: Why::Said };
        }
        // A type that is known by its section and has no context here has none of these contexts either.
        if program.kind() != ProgramType::Unknown || verifies::<Raw>(engine, linker, object, program) {
            return Chosen { context, why: Why::Guess };
        }
        match (verifies::<Skb>(engine, linker, object, program), verifies::<Xdp>(engine, linker, object, program)) {
            (true, false) => Chosen { context: ContextArg::Skb, why: Why::Only },
            (false, true) => Chosen { context: ContextArg::Xdp, why: Why::Only },
            (true, true) => Chosen { context: ContextArg::Skb, why: Why::OneOfSeveral },
            (false, false) => Chosen { context, why: Why::Guess },
        }
    }

    /// The context, if it is certain enough to run the program on it.
    pub(crate) fn to_run(self) -> Result<ContextArg> {
        ensure!(self.why != Why::OneOfSeveral, "choose what it runs on with --ctx");
        Ok(self.context)
    }

    /// The context's name, if only the program itself determined it.
    pub(crate) fn deduced(self) -> Option<&'static str> {
        match (self.why, self.context) {
            (Why::Said | Why::Guess, _) => None,
            (Why::OneOfSeveral, _) => Some("xdp or skb"),
            (Why::Only, ContextArg::Raw) => Some("raw"),
            (Why::Only, ContextArg::Xdp) => Some("xdp"),
            (Why::Only, ContextArg::XdpFrags) => Some("xdp-frags"),
            (Why::Only, ContextArg::Skb) => Some("skb"),
            (Why::Only, ContextArg::SkLookup) => Some("sk-lookup"),
            (Why::Only, ContextArg::Sock) => Some("sock"),
            (Why::Only, ContextArg::SockAddr) => Some("sock-addr"),
            (Why::Only, ContextArg::SockOps) => Some("sock-ops"),
        }
    }

    /// The place of a program for messages, and the context assumed for it, if neither the user nor the section chose
    /// one.
    pub(crate) fn place(self, path: &Path, program: &ObjectProgram) -> String {
        let (path, section) = (path.display(), program.section());
        let note = match self.why {
            Why::Said => "",
            Why::Only => ", which names no context: taken to run on the only one on which it verifies",
            Why::OneOfSeveral => ", which names no context: it verifies on xdp and skb, --ctx chooses",
            Why::Guess => ", for which no context is shipped: taken to run on raw bytes, --ctx chooses",
        };
        format!("{path}, section `{section}`{note}")
    }
}

fn verifies<C: bpf_runtime::Context>(
    engine: &Engine,
    linker: &Linker<NoHost>,
    object: &Object,
    program: &ObjectProgram,
) -> bool {
    let verified = || -> core::result::Result<(), LoadError> {
        let maps = MapSet::for_object(engine, object)?;
        linker.loader::<C>().only(&[program.name()]).verify(object, maps, false).map(drop)
    };
    verified().is_ok()
}
