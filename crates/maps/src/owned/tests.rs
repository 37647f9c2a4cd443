//! Compares lists and trees with plain vectors, and checks the count of objects.

use super::graph::{self, End};
use super::*;
use bpf_quiesce::Options;
use bpf_uapi::OwnedField;

fn pool() -> (Arc<Domain>, Arc<Objects>) {
    let domain = Domain::new(Options::default());
    let pool = Objects::new(&domain, domain.memory()).unwrap();
    (domain, pool)
}

/// A type with a number, a list's node, a tree's node and a pointer to another object.
fn ty() -> Arc<OwnedType> {
    let field = |offset, kind| OwnedField { offset, kind };
    let fields =
        vec![field(8, OwnedKind::ListNode), field(32, OwnedKind::TreeNode), field(64, OwnedKind::Kptr { to: 0 })];
    Arc::new(OwnedType { name: "object".into(), size: 72, fields, per_cpu: false })
}

const LIST: OwnedKind = OwnedKind::ListHead { of: 0, node: 8 };
const TREE: OwnedKind = OwnedKind::TreeRoot { of: 0, node: 32 };

/// A root in words, as a map's value has them.
struct Root([AtomicU64; 2]);

impl Root {
    fn new() -> Root {
        Root([AtomicU64::new(0), AtomicU64::new(0)])
    }
    fn at(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }
    fn empty(&self, kind: OwnedKind) {
        let mut leaving = Leaving::nothing();
        // SAFETY: a root that this test owns.
        unsafe { leaving.take(self.at(), kind) };
        leaving.give_up();
    }
}

fn number<'a>(object: u64) -> &'a AtomicU64 {
    // SAFETY: aligned words of an object that this test owns, all of which are accessed atomically.
    unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(crate::num::index(object))) }
}

/// The next number of a pseudo-random sequence.
fn chance(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *state >> 33
}

#[test]
fn lists_are_what_vectors_are() {
    let (_domain, pool) = pool();
    let (ty, root) = (ty(), Root::new());
    let mut model = std::collections::VecDeque::new();
    let mut state = 1;
    for n in 0..3000 {
        let end = if chance(&mut state).is_multiple_of(2) { End::Front } else { End::Back };
        if chance(&mut state).is_multiple_of(2) {
            let object = pool.make(&ty);
            number(object).store(n, Ordering::Relaxed);
            // SAFETY: the root is a list's, and the test owns the object, whose list node is at byte 8.
            assert!(unsafe { graph::push(root.at(), object + 8, end) });
            // SAFETY: the root is a list's, and the object, which the list owns, stays in it.
            assert!(!unsafe { graph::push(root.at(), object + 8, end) }, "it is in a list");
            if end == End::Front { model.push_front(n) } else { model.push_back(n) }
        } else {
            // SAFETY: the root is a list's, and only this thread uses it.
            let peeked = unsafe { graph::peek(root.at(), end) };
            // SAFETY: the root is a list's, and only this thread uses it.
            let popped = unsafe { graph::pop(root.at(), end) };
            assert_eq!(peeked, popped);
            let expected = if end == End::Front { model.pop_front() } else { model.pop_back() };
            // SAFETY: `popped` is the list node of an object of type `ty`.
            let object = (popped != 0).then(|| unsafe { graph::of_list_node(popped) });
            assert_eq!(object.map(|object| number(object).load(Ordering::Relaxed)), expected);
            // SAFETY: the object that was taken out belongs to this test.
            object.into_iter().for_each(|object| unsafe { release(object) });
        }
        assert_eq!(pool.alive(), model.len() as u64);
    }
    assert!(!model.is_empty());
    root.empty(LIST);
    assert_eq!(pool.alive(), 0);
}

/// Appends the numbers of a tree in order, and checks its links and colours. Returns its black height.
fn walk(node: u64, parent: u64, out: &mut Vec<u64>) -> u32 {
    if node == 0 {
        return 1;
    }
    // SAFETY: words of a node in a tree of this test.
    let word = |i: u64| number(node + 8 * i).load(Ordering::Relaxed);
    assert_eq!(word(0) & !1, parent);
    let black = word(0) & 1 != 0;
    if !black {
        assert!(parent == 0 || number(parent).load(Ordering::Relaxed) & 1 != 0, "two red ones");
    }
    let left = walk(word(1), node, out);
    out.push(number(node - 32).load(Ordering::Relaxed));
    let right = walk(word(2), node, out);
    assert_eq!(left, right, "as many black nodes on both sides");
    left + u32::from(black)
}

#[test]
fn trees_are_what_sorted_vectors_are() {
    let (_domain, pool) = pool();
    let (ty, root) = (ty(), Root::new());
    let key = |node: u64| number(node - 32).load(Ordering::Relaxed);
    let mut less = |a: u64, b: u64| Ok::<bool, ()>(key(a) < key(b));
    let (mut model, mut nodes) = (Vec::<u64>::new(), Vec::<u64>::new());
    let mut state = 7;
    for round in 0..2000 {
        let grows = chance(&mut state) % 8 < if round < 1000 { 5 } else { 3 };
        if grows || nodes.is_empty() {
            let (object, n) = (pool.make(&ty), chance(&mut state) % 200);
            number(object).store(n, Ordering::Relaxed);
            // SAFETY: the root is a tree's, and the test owns the object, whose tree node is at byte 32.
            assert_eq!(unsafe { graph::add(root.at(), object + 32, &mut less) }, Ok(true));
            // SAFETY: the root is a tree's, and the object, which the tree owns, stays in it.
            assert_eq!(unsafe { graph::add(root.at(), object + 32, &mut less) }, Ok(false), "it is in a tree");
            nodes.push(object + 32);
            model.insert(model.partition_point(|m| *m <= n), n);
        } else {
            let at = chance(&mut state) as usize % nodes.len();
            let node = nodes.swap_remove(at);
            // SAFETY: the root is a tree's, and the node belongs to an object in it.
            assert_eq!(unsafe { graph::remove(root.at(), node) }, node);
            // SAFETY: the root is a tree's, and the object of the node, now the test's, is still there.
            assert_eq!(unsafe { graph::remove(root.at(), node) }, 0, "it is in no tree");
            model.remove(model.iter().position(|m| *m == key(node)).unwrap());
            // SAFETY: `node` is the tree node of an object of type `ty`.
            let object = unsafe { graph::of_tree_node(node) };
            // SAFETY: the object that was taken out belongs to this test.
            unsafe { release(object) };
        }
        let mut numbers = Vec::new();
        // SAFETY: the root is a tree's, and only this thread uses it.
        walk(unsafe { graph::top(root.at()) }, 0, &mut numbers);
        assert_eq!(numbers, model);
        // SAFETY: the root is a tree's, and only this thread uses it.
        let first = unsafe { graph::first(root.at()) };
        assert_eq!((first != 0).then(|| key(first)), model.first().copied());
    }
    assert!(!model.is_empty() && pool.alive() == model.len() as u64);
    root.empty(TREE);
    assert_eq!(pool.alive(), 0);
}

#[test]
fn a_failed_comparison_leaves_the_node_out() {
    let (_domain, pool) = pool();
    let (ty, root) = (ty(), Root::new());
    let objects = [pool.make(&ty), pool.make(&ty)];
    // SAFETY: the root is a tree's, and the test owns the first object.
    assert_eq!(unsafe { graph::add(root.at(), objects[0] + 32, |_, _| Err("none to compare")) }, Ok(true));
    // SAFETY: the root is a tree's, and the test owns the second object.
    assert_eq!(unsafe { graph::add(root.at(), objects[1] + 32, |_, _| Err("stopped")) }, Err("stopped"));
    // SAFETY: the test still owns the second object, because it was not added.
    unsafe { release(objects[1]) };
    assert_eq!(pool.alive(), 1);
    root.empty(TREE);
    assert_eq!(pool.alive(), 0);
}

#[test]
fn objects_of_several_owners_go_with_the_last() {
    let (domain, pool) = pool();
    let (ty, list, tree) = (ty(), Root::new(), Root::new());
    let object = pool.make(&ty);
    let _guard = domain.enter().unwrap();
    // SAFETY: the test owns the object.
    assert!(unsafe { acquire(object) });
    // SAFETY: the root is a list's, which becomes one of the object's two owners.
    assert!(unsafe { graph::push(list.at(), object + 8, End::Back) });
    // SAFETY: the root is a tree's, which becomes the object's other owner.
    assert_eq!(unsafe { graph::add(tree.at(), object + 32, |_, _| Ok::<_, ()>(true)) }, Ok(true));
    list.empty(LIST);
    assert_eq!(pool.alive(), 1);
    tree.empty(TREE);
    assert_eq!(pool.alive(), 0);
    // SAFETY: the guard keeps the object's memory.
    assert!(!unsafe { acquire(object) }, "nobody can own it any more");
}

#[test]
fn chains_are_given_up_one_after_the_other() {
    let (_domain, pool) = pool();
    let ty = ty();
    let mut first = 0;
    // Long enough to overflow the stack if the objects were released recursively.
    for _ in 0..200_000 {
        let object = pool.make(&ty);
        // SAFETY: the field at byte 64 of the test's object is a kptr, and `first` is 0 or an object of the kptr's
        // type.
        assert_eq!(unsafe { swap(object + 64, first) }, 0);
        first = object;
    }
    assert_eq!(pool.alive(), 200_000);
    // SAFETY: the test owns the first object of the chain.
    unsafe { release(first) };
    assert_eq!(pool.alive(), 0);
}

#[test]
fn memory_is_counted_and_comes_back() {
    let domain = Domain::new(Options::default());
    let account = domain.memory().account("objects", 20_000);
    let pool = Objects::new(&domain, &account).unwrap();
    let ty = ty();
    let mut objects = Vec::new();
    loop {
        let object = pool.make(&ty);
        if object == 0 {
            break;
        }
        objects.push(object);
    }
    assert!(objects.len() > 100 && account.used() <= 20_000);
    // SAFETY: the test owns the objects.
    objects.iter().for_each(|object| unsafe { release(*object) });
    // Waiting objects are freed when there is no other memory left.
    for _ in 0..1000 {
        let object = pool.make(&ty);
        assert_ne!(object, 0);
        // SAFETY: the test owns the object.
        unsafe { release(object) };
    }
    let large = Arc::new(OwnedType { name: "large".into(), size: MAX_OBJECT + 1, fields: Vec::new(), per_cpu: false });
    assert_eq!(pool.make(&large), 0);
    drop(pool);
    domain.drain().unwrap();
    assert_eq!(account.used(), 0);
}

/// Instances are zeroed, lie on separate cache lines, and are freed with the object; there is one per slot.
#[test]
fn instances_lie_apart_and_go_with_the_object() {
    for (slots, size) in [(1, 1), (3, 8), (4, 64), (64, 65), (7, MAX_INSTANCE)] {
        let domain = Domain::new(Options::new().max_slots(slots));
        let pool = Objects::new(&domain, domain.memory()).unwrap();
        let ty = Arc::new(OwnedType { name: "counter".into(), size, fields: Vec::new(), per_cpu: true });
        let object = pool.make(&ty);
        assert_ne!(object, 0);
        // SAFETY: the test owns the object.
        assert!(unsafe { is_per_cpu(object) });
        // SAFETY: the test owns the object.
        assert_eq!(unsafe { super::size(object) }, size);
        let mut last = 0;
        for slot in 0..slots {
            // SAFETY: the test owns the object, which has an instance for each slot.
            let at = unsafe { instance(object, slot) };
            assert!(at.is_multiple_of(64) && at >= last, "{slots} of {size} bytes: {at:#x} behind {last:#x}");
            last = at + u64::from(size).next_multiple_of(64);
            for byte in 0..u64::from(size) {
                let byte = std::ptr::with_exposed_provenance_mut::<u8>(crate::num::index(at + byte));
                // SAFETY: a byte of the instance, which only this thread uses.
                assert_eq!(unsafe { byte.replace(0xff) }, 0);
            }
        }
        for beyond in [slots, slots + 1, u32::MAX] {
            // SAFETY: the test owns the object; a slot beyond the last has no instance, and gets 0.
            assert_eq!(unsafe { instance(object, beyond) }, 0);
        }
        assert!(domain.memory().used() >= u64::from(slots * size));
        // SAFETY: the test owns the object, and does not use it from here on.
        unsafe { release(object) };
        drop(pool);
        domain.drain().unwrap();
        assert_eq!(domain.memory().used(), 0);
    }
    let (_domain, pool) = pool();
    let large = OwnedType { name: "large".into(), size: MAX_INSTANCE + 1, fields: Vec::new(), per_cpu: true };
    assert_eq!(pool.make(&Arc::new(large)), 0);
}

/// Types made by hand: fields that are not aligned, that overlap or exceed the size, and roots without a lock.
#[test]
fn no_object_is_made_of_a_layout_that_makes_no_sense() {
    let (domain, pool) = pool();
    let field = |offset, kind| OwnedField { offset, kind };
    let lock = OwnedKind::Lock { resilient: false };
    let unsound = [
        vec![field(4, OwnedKind::ListNode)],
        vec![field(1, OwnedKind::Kptr { to: 0 })],
        vec![field(0, OwnedKind::ListNode), field(16, OwnedKind::TreeNode)],
        vec![field(32, OwnedKind::ListNode), field(0, OwnedKind::Kptr { to: 0 })],
        vec![field(0, OwnedKind::Kptr { to: 0 }), field(0, OwnedKind::Kptr { to: 0 })],
        vec![field(64, OwnedKind::ListNode)],
        vec![field(u32::MAX - 7, OwnedKind::ListNode)],
        vec![field(0, LIST)],
        vec![field(2, lock), field(8, TREE)],
    ];
    for fields in unsound {
        let ty = Arc::new(OwnedType { name: "unsound".into(), size: 72, fields, per_cpu: false });
        assert_eq!(pool.make(&ty), 0, "{ty:?}");
    }
    let fields = vec![field(0, lock), field(8, LIST), field(24, TREE)];
    let object = pool.make(&Arc::new(OwnedType { name: "sound".into(), size: 40, fields, per_cpu: false }));
    assert_ne!(object, 0);
    // SAFETY: this test's.
    unsafe { release(object) };
    assert_eq!(pool.alive(), 0);
    drop(pool);
    domain.drain().unwrap();
}
