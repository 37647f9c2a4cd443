//! A handle for one host type or context does not convert to one for another, in either direction.
use bpf_runtime::{Caller, Dispatcher, Hook, Instance, Linker, Loader, ProgArray, Program, Raw, Runner};

type Long = fn(&'static str);
type Any = for<'a> fn(&'a str);

fn program_in(p: Program<Raw, Long>) -> Program<Raw, Any> {
    p
}
fn program_out(p: Program<Raw, Any>) -> Program<Raw, Long> {
    p
}
fn program_context_in(p: Program<Long, ()>) -> Program<Any, ()> {
    p
}
fn program_context_out(p: Program<Any, ()>) -> Program<Long, ()> {
    p
}
fn instance_in(i: Instance<Long>) -> Instance<Any> {
    i
}
fn instance_out(i: Instance<Any>) -> Instance<Long> {
    i
}
fn linker_in(l: &Linker<Long>) -> &Linker<Any> {
    l
}
fn linker_out(l: &Linker<Any>) -> &Linker<Long> {
    l
}
fn loader_in<'l>(l: Loader<'l, Raw, Long>) -> Loader<'l, Raw, Any> {
    l
}
fn loader_context_in<'l>(l: Loader<'l, Long, ()>) -> Loader<'l, Any, ()> {
    l
}
fn loader_context_out<'l>(l: Loader<'l, Any, ()>) -> Loader<'l, Long, ()> {
    l
}
fn array_in(a: ProgArray<Raw, Long>) -> ProgArray<Raw, Any> {
    a
}
fn array_out(a: ProgArray<Raw, Any>) -> ProgArray<Raw, Long> {
    a
}
fn array_context_in(a: ProgArray<Long, ()>) -> ProgArray<Any, ()> {
    a
}
fn hook_in(h: Hook<Raw, Long>) -> Hook<Raw, Any> {
    h
}
fn hook_out(h: Hook<Raw, Any>) -> Hook<Raw, Long> {
    h
}
fn dispatcher_in(d: Dispatcher<Raw, Long>) -> Dispatcher<Raw, Any> {
    d
}
fn dispatcher_out(d: Dispatcher<Raw, Any>) -> Dispatcher<Raw, Long> {
    d
}
fn runner_in<'r>(r: Runner<'r, Raw, Long>) -> Runner<'r, Raw, Any> {
    r
}
fn runner_out<'r>(r: Runner<'r, Raw, Any>) -> Runner<'r, Raw, Long> {
    r
}
fn caller_in<'r>(c: Caller<'r, Long>) -> Caller<'r, Any> {
    c
}
fn caller_out<'r>(c: Caller<'r, Any>) -> Caller<'r, Long> {
    c
}

fn main() {}
