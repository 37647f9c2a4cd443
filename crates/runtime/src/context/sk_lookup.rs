//! The kernel's context of programs that choose a socket for a packet, `struct bpf_sk_lookup`.
//!
//! Problem: `sk` is the socket chosen so far, and changes when the program chooses another, while it may still hold a
//! pointer to the one before. Approach: sockets that a run has replaced are kept until the next one begins.
//!
//! Source: `include/uapi/linux/bpf.h`, `sk_lookup_is_valid_access` and `bpf_sk_lookup_assign` in `net/core/filter.c`
//! (Linux 6.18).

use crate::context::packet::field;
use crate::context::socket::Socket;
use crate::context::{Context, ContextLayout, Parts, core_field};
use bpf_object::CoreType;
use bpf_uapi::context::sk_lookup;
use bpf_uapi::{ContextField, Errno};
use bpf_verifier::{Access, FieldKind};
use core::mem::offset_of;
use std::sync::{Arc, LazyLock};

/// The numbers of a `struct bpf_sk_lookup`: addresses and `remote_port` in network byte order, `local_port` a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[expect(missing_docs, reason = "the kernel's names")]
pub struct SkLookupFields {
    pub family: u32,
    pub protocol: u32,
    pub remote_ip4: u32,
    pub remote_ip6: [u32; 4],
    pub remote_port: u32,
    pub local_ip4: u32,
    pub local_ip6: [u32; 4],
    pub local_port: u32,
    pub ingress_ifindex: u32,
}

/// A packet that a socket is looked up for.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SkLookupBuff {
    /// The numbers.
    pub fields: SkLookupFields,
    /// The socket that was chosen, by the program or before it.
    pub selected: Option<Arc<Socket>>,
    /// Whether the program has asked not to choose among the sockets that share the port
    /// (`BPF_SK_LOOKUP_F_NO_REUSEPORT`).
    pub no_reuseport: bool,
    /// The address of `selected`, or null.
    socket_at: usize,
    /// Sockets that a run has replaced, kept since the run may still point to them.
    replaced: Vec<Arc<Socket>>,
}

/// Sockets that one run may replace.
const MAX_REPLACED: usize = 64;
const REPLACE: u64 = 1;
const NO_REUSEPORT: u64 = 2;

impl SkLookupBuff {
    /// A packet for which no socket is chosen yet.
    pub fn new(fields: SkLookupFields) -> Self {
        SkLookupBuff { fields, ..SkLookupBuff::default() }
    }

    fn point(&mut self) {
        let address = |socket: &Socket| core::ptr::from_ref(socket).expose_provenance();
        self.socket_at = self.selected.as_deref().map_or(0, address);
    }

    /// `bpf_sk_assign(ctx, sk, flags)`.
    pub(crate) fn assign(&mut self, socket: Option<Arc<Socket>>, flags: u64) -> Result<u64, Errno> {
        const INET: u32 = bpf_uapi::address_family::INET;
        if flags & !(REPLACE | NO_REUSEPORT) != 0 {
            return Err(Errno::EINVAL);
        }
        if let Some(socket) = &socket {
            if socket.fields.protocol != self.fields.protocol {
                return Err(Errno::EPROTOTYPE);
            }
            if socket.fields.family != self.fields.family && socket.fields.family == INET {
                return Err(Errno::EAFNOSUPPORT);
            }
        }
        if self.selected.is_some() && flags & REPLACE == 0 {
            return Err(Errno::EEXIST);
        }
        if self.replaced.len() >= MAX_REPLACED {
            return Err(Errno::ENOMEM);
        }
        self.replaced.extend(self.selected.take());
        self.no_reuseport = socket.is_some() && flags & NO_REUSEPORT != 0;
        self.selected = socket;
        self.point();
        Ok(0)
    }
}

/// The context of programs that choose sockets: `struct bpf_sk_lookup`. Verdicts are 1 (`SK_PASS`) and 0 (`SK_DROP`).
#[derive(Debug)]
pub enum SkLookup {}

// SAFETY: the layout describes `SkLookupBuff` (`repr(C)`, offsets taken from it); `socket_at` is the address of a
// socket that it keeps, and keeps until the next run when the program replaces it.
unsafe impl Context for SkLookup {
    type Data<'r, 'p>
        = &'r mut SkLookupBuff
    where
        'p: 'r;

    fn layout() -> &'static ContextLayout {
        static LAYOUT: LazyLock<ContextLayout> = LazyLock::new(|| {
            use Access::Read;
            let number = |of: ContextField, offset: usize| {
                field(of, Read, FieldKind::Scalar, (offset_of!(SkLookupBuff, fields) + offset, of.size))
            };
            macro_rules! fields {
                ($($name:ident $field:ident),* $(,)?) => {
                    vec![$(number(sk_lookup::$name, offset_of!(SkLookupFields, $field))),*]
                };
            }
            let mut fields = fields![
                FAMILY family, PROTOCOL protocol, REMOTE_IP4 remote_ip4, REMOTE_IP6 remote_ip6,
                REMOTE_PORT remote_port, LOCAL_IP4 local_ip4, LOCAL_IP6 local_ip6, LOCAL_PORT local_port,
                INGRESS_IFINDEX ingress_ifindex,
            ];
            let socket = offset_of!(SkLookupBuff, socket_at);
            fields.insert(0, field(sk_lookup::SK, Read, FieldKind::Socket, (socket, 8)));
            ContextLayout {
                name: sk_lookup::NAME.into(),
                raw: false,
                fields,
                regions: Vec::new(),
                legacy_loads: None,
                returns: Some((0, 1)),
            }
        });
        &LAYOUT
    }

    fn types() -> Vec<CoreType> {
        let fields = Self::layout().fields.iter().map(core_field).collect();
        vec![CoreType::Struct { name: sk_lookup::NAME.into(), size: sk_lookup::SIZE, fields }]
    }

    #[inline]
    fn parts(data: &mut &mut SkLookupBuff) -> Parts {
        data.replaced.clear();
        data.point();
        Parts::of_context(&mut **data)
    }
}
