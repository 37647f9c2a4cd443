//! The kernel's contexts of control groups on sockets: `struct bpf_sock`, of a socket that is made, bound or closed,
//! and `struct bpf_sock_addr`, of an address that it is bound to, connects to or is sent to.
//!
//! Problem: programs change the arguments of a system call. Approach: the host stores the numbers in the context before
//! the run, and continues with the numbers that are there afterwards.
//!
//! Source: `include/uapi/linux/bpf.h`, `sock_filter_is_valid_access` and `sock_addr_is_valid_access` in
//! `net/core/filter.c` (Linux 6.18). A field that only some of the kernel's hooks may access is accessible to all here.

use crate::context::packet::field;
use crate::context::socket::{SockFields, Socket};
use crate::context::{Context, ContextLayout, Parts, core_field};
use bpf_object::{CoreField, CoreType, FieldType};
use bpf_uapi::ContextField;
use bpf_uapi::context::{sock, sock_addr};
use bpf_verifier::{Access, FieldKind};
use core::mem::offset_of;
use std::sync::{Arc, LazyLock};

/// The numbers of a `struct bpf_sock_addr`: addresses and ports in network byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[expect(missing_docs, reason = "the kernel's names")]
pub struct SockAddrFields {
    pub user_family: u32,
    pub user_ip4: u32,
    pub user_ip6: [u32; 4],
    pub user_port: u32,
    pub family: u32,
    /// `SOCK_STREAM` and so on.
    pub kind: u32,
    pub protocol: u32,
    pub msg_src_ip4: u32,
    pub msg_src_ip6: [u32; 4],
}

/// An address, and the socket that it is given for.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SockAddrBuff {
    /// The numbers.
    pub fields: SockAddrFields,
    /// The target of `sk`.
    pub socket: Option<Arc<Socket>>,
    /// Its address, set by each run.
    socket_at: usize,
}

impl SockAddrBuff {
    /// An address for a socket that is not known.
    pub fn new(fields: SockAddrFields) -> Self {
        SockAddrBuff { fields, ..SockAddrBuff::default() }
    }
}

/// A socket that a program decides on.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SockBuff {
    /// The numbers. Programs may change `bound_dev_if`, `mark` and `priority`.
    pub fields: SockFields,
    /// `bpf_get_socket_cookie`.
    pub cookie: u64,
}

impl SockBuff {
    /// A socket.
    pub fn new(fields: SockFields) -> Self {
        SockBuff { fields, cookie: 0 }
    }
}

/// The context of programs of control groups on sockets (`cgroup/sock_create`, `cgroup/post_bind4`): `struct bpf_sock`.
/// They return 1 for yes and 0 for no.
#[derive(Debug)]
pub enum Sock {}

/// The context of programs of control groups on addresses (`cgroup/connect4`, `cgroup/bind6`): `struct bpf_sock_addr`.
/// They return 1 for yes and 0 for no; of `bind`, also 2 and 3, which waive what a port below 1024 asks for.
#[derive(Debug)]
pub enum SockAddr {}

fn layout_of(name: &'static str, mut fields: Vec<bpf_verifier::Field>, returns: (i64, i64)) -> ContextLayout {
    fields.sort_by_key(|field| field.offset);
    ContextLayout {
        name: name.into(),
        raw: false,
        fields,
        regions: Vec::new(),
        legacy_loads: None,
        returns: Some(returns),
    }
}

/// The fields as the program's types have them.
fn core_fields(layout: &ContextLayout) -> Vec<CoreField> {
    let mut fields: Vec<CoreField> = layout.fields.iter().map(core_field).collect();
    for field in &mut fields {
        if field.name == sock::DST_PORT.name {
            field.ty = FieldType::unsigned(2);
        }
    }
    fields
}

// SAFETY: the layout describes `SockBuff` (`repr(C)`, offsets taken from it), which holds numbers only.
unsafe impl Context for Sock {
    type Data<'r, 'p>
        = &'r mut SockBuff
    where
        'p: 'r;

    fn layout() -> &'static ContextLayout {
        static LAYOUT: LazyLock<ContextLayout> = LazyLock::new(|| {
            use Access::{Read, ReadWrite};
            // The port and its padding are four bytes that lie as the program sees them.
            const _: () = assert!(offset_of!(SockFields, padding) == offset_of!(SockFields, dst_port) + 2);
            let number = |of: ContextField, access, offset: usize| {
                field(of, access, FieldKind::Scalar, (offset_of!(SockBuff, fields) + offset, of.size))
            };
            macro_rules! fields {
                ($($name:ident $access:ident $field:ident),* $(,)?) => {
                    vec![$(number(sock::$name, $access, offset_of!(SockFields, $field))),*]
                };
            }
            let fields = fields![
                BOUND_DEV_IF ReadWrite bound_dev_if, FAMILY Read family, TYPE Read kind, PROTOCOL Read protocol,
                MARK ReadWrite mark, PRIORITY ReadWrite priority, SRC_IP4 Read src_ip4, SRC_IP6 Read src_ip6,
                SRC_PORT Read src_port, DST_PORT Read dst_port, DST_IP4 Read dst_ip4, DST_IP6 Read dst_ip6,
                STATE Read state, RX_QUEUE_MAPPING Read rx_queue_mapping,
            ];
            layout_of(sock::NAME, fields, (0, 1))
        });
        &LAYOUT
    }

    fn types() -> Vec<CoreType> {
        vec![CoreType::Struct { name: sock::NAME.into(), size: sock::SIZE, fields: core_fields(Self::layout()) }]
    }

    #[inline]
    fn parts(data: &mut &mut SockBuff) -> Parts {
        Parts::of_context(&mut **data)
    }
}

// SAFETY: the layout describes `SockAddrBuff` (`repr(C)`, offsets taken from it); `socket_at` is the address of a
// socket that it keeps, and that nobody replaces while the context is borrowed for the run.
unsafe impl Context for SockAddr {
    type Data<'r, 'p>
        = &'r mut SockAddrBuff
    where
        'p: 'r;

    fn layout() -> &'static ContextLayout {
        static LAYOUT: LazyLock<ContextLayout> = LazyLock::new(|| {
            use Access::{Read, ReadWrite};
            let number = |of: ContextField, access, offset: usize| {
                field(of, access, FieldKind::Scalar, (offset_of!(SockAddrBuff, fields) + offset, of.size))
            };
            macro_rules! fields {
                ($($name:ident $access:ident $field:ident),* $(,)?) => {
                    vec![$(number(sock_addr::$name, $access, offset_of!(SockAddrFields, $field))),*]
                };
            }
            let mut fields = fields![
                USER_FAMILY Read user_family, USER_IP4 ReadWrite user_ip4, USER_IP6 ReadWrite user_ip6,
                USER_PORT ReadWrite user_port, FAMILY Read family, TYPE Read kind, PROTOCOL Read protocol,
                MSG_SRC_IP4 ReadWrite msg_src_ip4, MSG_SRC_IP6 ReadWrite msg_src_ip6,
            ];
            let socket = offset_of!(SockAddrBuff, socket_at);
            fields.push(field(sock_addr::SK, Read, FieldKind::Socket, (socket, 8)));
            layout_of(sock_addr::NAME, fields, (0, 3))
        });
        &LAYOUT
    }

    fn types() -> Vec<CoreType> {
        let fields = core_fields(Self::layout());
        vec![CoreType::Struct { name: sock_addr::NAME.into(), size: sock_addr::SIZE, fields }]
    }

    #[inline]
    fn parts(data: &mut &mut SockAddrBuff) -> Parts {
        let address = |socket: &Socket| core::ptr::from_ref(socket).expose_provenance();
        data.socket_at = data.socket.as_deref().map_or(0, address);
        Parts::of_context(&mut **data)
    }
}
