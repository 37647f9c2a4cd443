//! The host's context and functions, made from its description. Do not edit.
#![allow(dead_code, reason = "a plug-in uses a part of its host")]

/// The context of programs. They write only fields with `#[bpf(writable)]`.
#[derive(bpf_guest::BpfContext)]
#[bpf(name = "request")]
#[repr(C)]
pub struct Request<'c> {
    pub client: u32,
    #[bpf(writable)]
    pub cost: u32,
    pub path: bpf_guest::ContextBytes<'c>,
}

bpf_guest::host_functions! {
    pub fn say(a: &[u8]);
    pub fn price(a: u32) -> u32;
}
