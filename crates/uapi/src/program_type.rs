//! The kernel's program types, and the names of the sections that hold programs of each.
//!
//! The names are libbpf's; a name applies with or without a `/suffix` (`kprobe/sys_execve`, `xdp/cpumap`), and the
//! longest matching name wins. libbpf allows a suffix only where it has a meaning. Here it is accepted everywhere,
//! because old objects number their programs that way (`socket/3`). Before version 1.0 libbpf accepted some names as
//! prefixes, and the kernel's samples rely on it (`socket1`, `xdp_prog`): where no name applies, prefixes do.

use core::fmt;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $number:literal: $($name:literal)*;)*) => {
        /// The purpose of a program, which determines its context and its result.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum ProgramType {
            $($(#[$doc])* $kind,)*
            /// The section name determines no type; the user chooses one.
            Unknown,
        }

        /// Section names with their kinds.
        const NAMES: &[(&str, ProgramType)] = &[$($(($name, ProgramType::$kind),)*)*];

        impl ProgramType {
            /// The number in the kernel's `enum bpf_prog_type`; 0 for kinds the kernel does not have.
            pub fn number(self) -> u32 {
                match self {
                    $(ProgramType::$kind => $number,)*
                    ProgramType::Unknown => 0,
                }
            }
        }
    };
}

// Numbers: Linux include/uapi/linux/bpf.h, enum bpf_prog_type. Names: libbpf's section table.
kinds! {
    /// Raw bytes: r1 is their address, r2 their number. Specific to this family; the kernel has no equivalent.
    Raw = 0: "raw";
    /// Socket filter.
    SocketFilter = 1: "socket";
    /// Probe of a kernel or user function, or a system call.
    Kprobe = 2: "kprobe" "kretprobe" "kprobe.multi" "kretprobe.multi" "kprobe.session" "ksyscall" "kretsyscall"
        "uprobe" "uprobe.s" "uretprobe" "uretprobe.s" "uprobe.multi" "uretprobe.multi" "uprobe.multi.s"
        "uretprobe.multi.s" "uprobe.session" "uprobe.session.s" "usdt" "usdt.s";
    /// Traffic control classifier.
    TcClassifier = 3: "tc" "tcx" "netkit" "classifier";
    /// Traffic control action.
    TcAction = 4: "action";
    /// Tracepoint.
    Tracepoint = 5: "tracepoint" "tp";
    /// Express data path.
    Xdp = 6: "xdp" "xdp.frags";
    /// Performance event.
    PerfEvent = 7: "perf_event";
    /// Packets of a control group.
    CgroupSkb = 8: "cgroup_skb" "cgroup/skb";
    /// Sockets of a control group.
    CgroupSock = 9: "cgroup/sock" "cgroup/sock_create" "cgroup/sock_release" "cgroup/post_bind4" "cgroup/post_bind6";
    /// Lightweight tunnel, input.
    LwtIn = 10: "lwt_in";
    /// Lightweight tunnel, output.
    LwtOut = 11: "lwt_out";
    /// Lightweight tunnel, transmit.
    LwtXmit = 12: "lwt_xmit";
    /// Socket operations.
    SockOps = 13: "sockops";
    /// Redirection between sockets.
    SkSkb = 14: "sk_skb";
    /// Devices of a control group.
    CgroupDevice = 15: "cgroup/dev";
    /// Messages on sockets.
    SkMsg = 16: "sk_msg";
    /// Raw tracepoint.
    RawTracepoint = 17: "raw_tracepoint" "raw_tp";
    /// Socket addresses of a control group.
    CgroupSockAddr = 18: "cgroup/bind4" "cgroup/bind6" "cgroup/connect4" "cgroup/connect6" "cgroup/connect_unix"
        "cgroup/sendmsg4" "cgroup/sendmsg6" "cgroup/sendmsg_unix" "cgroup/recvmsg4" "cgroup/recvmsg6"
        "cgroup/recvmsg_unix" "cgroup/getpeername4" "cgroup/getpeername6" "cgroup/getpeername_unix"
        "cgroup/getsockname4" "cgroup/getsockname6" "cgroup/getsockname_unix";
    /// Lightweight tunnel, segment routing.
    LwtSeg6Local = 19: "lwt_seg6local";
    /// Infrared receiver.
    LircMode2 = 20: "lirc_mode2";
    /// Choice among sockets that share a port.
    SkReuseport = 21: "sk_reuseport";
    /// Flow dissector.
    FlowDissector = 22: "flow_dissector";
    /// System parameters of a control group.
    CgroupSysctl = 23: "cgroup/sysctl";
    /// Raw tracepoint that may write.
    RawTracepointWritable = 24: "raw_tracepoint.w" "raw_tp.w";
    /// Socket options of a control group.
    CgroupSockopt = 25: "cgroup/getsockopt" "cgroup/setsockopt";
    /// Trampolines of kernel functions, and iterators.
    Tracing = 26: "tp_btf" "fentry" "fentry.s" "fexit" "fexit.s" "fmod_ret" "fmod_ret.s" "iter" "iter.s";
    /// Function of a structure of callbacks.
    StructOps = 27: "struct_ops" "struct_ops.s";
    /// Replacement of a program's function.
    Ext = 28: "freplace";
    /// Security hook.
    Lsm = 29: "lsm" "lsm.s" "lsm_cgroup";
    /// Socket look-up.
    SkLookup = 30: "sk_lookup";
    /// Program called by a system call.
    Syscall = 31: "syscall";
    /// Netfilter hook.
    Netfilter = 32: "netfilter";
}

/// Names that old objects extend with arbitrary text.
const BEGINNINGS: [(&str, ProgramType); 6] = [
    ("socket", ProgramType::SocketFilter),
    ("xdp", ProgramType::Xdp),
    ("classifier", ProgramType::TcClassifier),
    ("action", ProgramType::TcAction),
    ("cgroup/skb", ProgramType::CgroupSkb),
    ("cgroup/sock", ProgramType::CgroupSock),
];

impl ProgramType {
    /// The type of the programs in a section of this name.
    pub fn from_section(section: &str) -> ProgramType {
        // libbpf's mark for programs that are not loaded automatically.
        let section = section.strip_prefix('?').unwrap_or(section);
        NAMES
            .iter()
            .filter(|(name, _)| section.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
            .max_by_key(|(name, _)| name.len())
            .or_else(|| BEGINNINGS.iter().find(|(name, _)| section.starts_with(name)))
            .map_or(ProgramType::Unknown, |&(_, kind)| kind)
    }
}

impl fmt::Display for ProgramType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
