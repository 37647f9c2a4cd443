//! The kernel's functions over objects that programs own: lists, trees, and pointers in maps' values.
//!
//! The operations are in [`bpf_maps::owned`]. A run records the objects that it owns, so that a stopped run releases
//! them. An operation on an object that the run does not own does nothing.
//!
//! Source: `kernel/bpf/helpers.c` (Linux 6.18).

use crate::abi::run::Run;
use crate::call::helpers::callbacks::CallBack;
use crate::call::helpers::skb::{EINVAL, ret};
use crate::call::{HostFn, guarded, leave};
use crate::error::HelperError;
use crate::num::low;
use bpf_jit_code::RunCtx;
use bpf_maps::owned::graph::{self, End};
use bpf_maps::owned::{self, Objects};
use bpf_uapi::{Kfunc, OwnedType};
use std::sync::Arc;

/// The types that a program may make objects of, and where it has them from.
#[derive(Debug)]
pub(crate) struct LocalTypes {
    pub(crate) pool: Arc<Objects>,
    /// The types, ascending by the program's number, each with all types that it refers to. Two may have one number:
    /// the second one has an instance for each CPU.
    pub(crate) types: Arc<[LocalType]>,
}

/// A type that a program may make objects of: its number, the type, and the type with all types that it leads to.
pub(crate) type LocalType = (u32, Arc<OwnedType>, Vec<OwnedType>);

/// The type of this number: the first of the closure.
pub(crate) fn local_type(number: u32, closure: Vec<OwnedType>) -> Option<LocalType> {
    Some((number, Arc::new(closure.first()?.clone()), closure))
}

/// The function of one program that makes objects, if the name is that of one.
pub(crate) fn own_obj_new(id: u32, types: &Arc<LocalTypes>) -> Option<HostFn> {
    let shim = match Kfunc::from_id(id)? {
        Kfunc::ObjNew => obj_new::<false>,
        Kfunc::PercpuObjNew => obj_new::<true>,
        _other => return None,
    };
    Some(HostFn { env: Some(Arc::clone(types) as _), ..HostFn::with_run(shim) })
}

/// The function of this number that makes objects, as programs are compiled for it: each instance replaces it by its
/// own ([`own_obj_new`]).
pub(crate) fn declared_obj_new(id: u32) -> Option<HostFn> {
    makes_objects(id).then(|| HostFn { env: Some(Arc::new(())), ..HostFn::with_run(obj_new::<false>) })
}

/// Whether the function of this number makes objects of a program's own types.
pub(crate) fn makes_objects(id: u32) -> bool {
    id == Kfunc::ObjNew.id() || id == Kfunc::PercpuObjNew.id()
}

/// Does something in the run behind the hidden argument; an error ends the run.
///
/// # Safety
/// `ctx` must be the first field of the live [`Run`] that this thread is in, by a pointer to all of it, and the
/// caller's frame have nothing to drop.
#[inline(always)]
unsafe fn in_run(ctx: *mut RunCtx, body: impl FnOnce(&mut Run) -> Result<u64, HelperError>) -> u64 {
    let result = {
        // SAFETY: the contract; emitted code, which has the only other pointer, waits for this call.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        guarded(run, body)
    };
    match result {
        Some(r0) => r0,
        // SAFETY: the contract.
        None => unsafe { leave(ctx) },
    }
}

/// `bpf_obj_new_impl(local_type_id, meta)`, or `bpf_percpu_obj_new_impl`. Without the types of a program there is none.
///
/// # Safety
/// `ctx` must be the first field of this thread's live [`Run`], whose environment is a [`LocalTypes`].
unsafe extern "C" fn obj_new<const PER_CPU: bool>(id: u64, _: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: this thread's run.
    let env = unsafe { (*ctx).host_env } as *const LocalTypes;
    // SAFETY: the call's `LocalTypes`, whose address the linker has bound to the call (contract); the running program
    // keeps them.
    let LocalTypes { pool, types } = unsafe { &*env };
    let body = |run: &mut Run| {
        let key = (id, PER_CPU);
        let Ok(at) = types.binary_search_by_key(&key, |ty| (ty.0.into(), ty.1.per_cpu)) else { return Ok(0) };
        run.held.expect_object()?;
        let object = pool.make(&types[at].1);
        run.held.add_object(object);
        Ok(object)
    };
    // SAFETY: the caller's contract.
    unsafe { in_run(ctx, body) }
}

/// `bpf_obj_drop_impl(object, meta)`, and `bpf_percpu_obj_drop_impl`.
///
/// # Safety
/// `ctx` must be the first field of this thread's live [`Run`].
pub(super) unsafe extern "C" fn obj_drop(object: u64, _: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    let body = |run: &mut Run| {
        give_up(run, object);
        Ok(0)
    };
    // SAFETY: the caller's contract.
    unsafe { in_run(ctx, body) }
}

/// The run does not own the object any more, and no other owner has taken it over.
fn give_up(run: &mut Run, object: u64) {
    if run.held.remove_object(object) {
        // SAFETY: the run has owned it, and it is off the list.
        unsafe { owned::release(object) };
    }
}

/// `bpf_refcount_acquire_impl(object, meta)`.
///
/// # Safety
/// `object` must be one that the program owns, has borrowed or has loaded, so that its memory stays to the run's end;
/// `ctx` the first field of this thread's live [`Run`].
pub(super) unsafe extern "C" fn refcount_acquire(object: u64, _: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    let body = |run: &mut Run| {
        run.held.expect_object()?;
        // SAFETY: an object that is there (contract).
        let acquired = unsafe { owned::acquire(object) };
        let object = if acquired { object } else { 0 };
        run.held.add_object(object);
        Ok(object)
    };
    // SAFETY: the caller's contract.
    unsafe { in_run(ctx, body) }
}

/// `bpf_list_push_front_impl(head, node, meta, off)`, or at the back.
///
/// # Safety
/// `head` must be a list in a value or an object whose lock the run has, `node` the node of an object for it that the
/// run owns; `ctx` the first field of this thread's live [`Run`].
pub(super) unsafe extern "C" fn list_push<const FRONT: bool>(
    head: u64,
    node: u64,
    _: u64,
    _: u64,
    _: u64,
    ctx: *mut RunCtx,
) -> u64 {
    let body = |run: &mut Run| {
        // SAFETY: the node of an object that the run owns (contract).
        let object = unsafe { graph::of_list_node(node) };
        // SAFETY: a list whose lock the run has, and that node (contract).
        if unsafe { graph::push(head, node, end(FRONT)) } {
            run.held.remove_object(object);
            return Ok(0);
        }
        give_up(run, object);
        Ok(ret(Err(EINVAL)))
    };
    // SAFETY: the caller's contract.
    unsafe { in_run(ctx, body) }
}

const fn end(front: bool) -> End {
    if front { End::Front } else { End::Back }
}

/// `bpf_list_pop_front(head)`, or at the back.
///
/// # Safety
/// As for [`list_push`], of `head` and `ctx`.
pub(super) unsafe extern "C" fn list_pop<const FRONT: bool>(
    head: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    ctx: *mut RunCtx,
) -> u64 {
    let body = |run: &mut Run| {
        run.held.expect_object()?;
        // SAFETY: a list whose lock the run has (contract).
        let node = unsafe { graph::pop(head, end(FRONT)) };
        if node != 0 {
            // SAFETY: the node of an object that was in the list, and is the run's.
            run.held.add_object(unsafe { graph::of_list_node(node) });
        }
        Ok(node)
    };
    // SAFETY: the caller's contract.
    unsafe { in_run(ctx, body) }
}

/// `bpf_list_front(head)`, or the back.
///
/// # Safety
/// As for [`list_push`], of `head`.
pub(super) unsafe extern "C" fn list_peek<const FRONT: bool>(
    head: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: *mut RunCtx,
) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { graph::peek(head, end(FRONT)) }
}

/// Implements `bpf_rbtree_add_impl(root, node, less, meta, off)`, independent of the engine that calls `less`.
///
/// # Safety
/// `root` must be a tree in a value or an object whose lock the run has, `node` the node of an object for it that the
/// run owns.
pub(crate) unsafe fn add_to_tree(run: &mut Run, root: u64, node: u64, call: CallBack<'_>) -> Result<u64, HelperError> {
    // The kernel's functions return a bool: the rest of the register is anything.
    let less = |a: u64, b: u64| Ok::<bool, HelperError>(low(call(run, [a, b, 0, 0, 0])?) & 0xff != 0);
    // SAFETY: the caller's contract; the program's comparison cannot change a tree.
    let added = unsafe { graph::add(root, node, less) }?;
    // SAFETY: the node of an object that the run owns, or has until now.
    let object = unsafe { graph::of_tree_node(node) };
    if added {
        run.held.remove_object(object);
        return Ok(0);
    }
    give_up(run, object);
    Ok(ret(Err(EINVAL)))
}

/// `bpf_rbtree_remove(root, node)`.
///
/// # Safety
/// As for [`add_to_tree`], of `root`; `node` must be the node of an object that the run owns or has borrowed; `ctx` the
/// first field of this thread's live [`Run`].
pub(super) unsafe extern "C" fn rbtree_remove(root: u64, node: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    let body = |run: &mut Run| {
        run.held.expect_object()?;
        // SAFETY: a tree whose lock the run has, and the node of an object that is there (contract).
        let node = unsafe { graph::remove(root, node) };
        if node != 0 {
            // SAFETY: the node of an object that was in the tree, and is the run's.
            run.held.add_object(unsafe { graph::of_tree_node(node) });
        }
        Ok(node)
    };
    // SAFETY: the caller's contract.
    unsafe { in_run(ctx, body) }
}

/// `bpf_rbtree_first(root)`.
///
/// # Safety
/// As for [`add_to_tree`], of `root`.
pub(super) unsafe extern "C" fn rbtree_first(root: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { graph::first(root) }
}

/// `bpf_rbtree_root(root)`.
///
/// # Safety
/// As for [`add_to_tree`], of `root`.
pub(super) unsafe extern "C" fn rbtree_root(root: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { graph::top(root) }
}

/// `bpf_rbtree_left(root, node)`, or to the right.
///
/// # Safety
/// As for [`rbtree_remove`].
pub(super) unsafe extern "C" fn rbtree_child<const LEFT: bool>(
    root: u64,
    node: u64,
    _: u64,
    _: u64,
    _: u64,
    _: *mut RunCtx,
) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { graph::child(root, node, LEFT) }
}

/// `bpf_kptr_xchg(field, object)`.
///
/// # Safety
/// `field` must be a kptr in a map's value or an object that is there, `object` 0 or one of its type that the run owns;
/// `ctx` the first field of this thread's live [`Run`].
pub(super) unsafe extern "C" fn kptr_xchg(field: u64, object: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    let body = |run: &mut Run| {
        run.held.expect_object()?;
        // SAFETY: a kptr that is there, and an object of its type that the run owns (contract).
        let old = unsafe { owned::swap(field, object) };
        run.held.remove_object(object);
        run.held.add_object(old);
        Ok(old)
    };
    // SAFETY: the caller's contract.
    unsafe { in_run(ctx, body) }
}

/// `bpf_per_cpu_ptr(object, cpu)`: the instance of an execution slot, or null.
///
/// # Safety
/// `object` must have an instance for each CPU and be there, by the run's guard.
pub(super) unsafe extern "C" fn per_cpu_ptr(object: u64, cpu: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { owned::instance(object, low(cpu)) }
}

/// `bpf_this_cpu_ptr(object)`: the instance of the run's own slot. The object is of the run's domain, so there is one.
///
/// # Safety
/// As for [`per_cpu_ptr`]; `ctx` must be the first field of this thread's live [`Run`].
pub(super) unsafe extern "C" fn this_cpu_ptr(object: u64, _: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    let body = |run: &mut Run| {
        // SAFETY: the caller's contract.
        let instance = unsafe { owned::instance(object, run.ctx.slot) };
        if instance == 0 {
            Err(HelperError::new("an execution slot beyond those of the object's domain"))
        } else {
            Ok(instance)
        }
    };
    // SAFETY: the caller's contract.
    unsafe { in_run(ctx, body) }
}
