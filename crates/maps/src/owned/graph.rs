//! Lists and trees of objects, linked through fields of the objects themselves.
//!
//! A root lies in a map's value or in an object and has 16 bytes: the first and the last node of a list, or the
//! topmost node of a tree. A node lies in an object. A list's node holds the next node, the previous node and the
//! *owner*; a tree's node holds the parent (whose lowest bit says that the node is black), the left and the right
//! child, and the owner. The lower 48 bits of the owner word are the address of the root that the node is in, or 0.
//! The upper 16 bits are the node's offset in its object, so that the node's address suffices to find the object. No
//! address has more than 48 bits (Linux returns longer ones only to a process that asks for them).
//!
//! Trees are red-black trees (Guibas and Sedgewick), as in the kernel, so that a program that walks down a tree sees
//! the kernel's height.
//!
//! Invariants: a root and the nodes that it owns are changed only under the lock beside the root. A node without an
//! owner is claimed by a compare-exchange, because an object with several owners may be inserted into two roots at
//! once. A root owns the objects whose nodes it links.

use std::sync::atomic::{AtomicU64, Ordering};

use bpf_uapi::{OwnedField, OwnedKind};

/// Index of the owner word in a list's node and in a tree's node.
const LIST_OWNER: u64 = 2;
const TREE_OWNER: u64 = 3;
/// The words of a root.
const FIRST: u64 = 0;
const LAST: u64 = 1;
/// The words of a list's node.
const NEXT: u64 = 0;
const BEFORE: u64 = 1;
/// The words of a tree's node. The right child follows the left one.
const PARENT: u64 = 0;
const LEFT: u64 = 1;
const RIGHT: u64 = 2;
const BLACK: u64 = 1;
/// Number of bits of an address.
const ADDRESS: u32 = 48;

/// The address of a root or node. The creator guarantees that it is live and of the right kind, and links in a live
/// root or node lead to live ones.
#[derive(Clone, Copy, PartialEq, Eq)]
struct At(u64);

impl At {
    fn word<'a>(self, word: u64) -> &'a AtomicU64 {
        let at = std::ptr::with_exposed_provenance_mut(crate::num::index(self.0 + 8 * word));
        // SAFETY: a word of a live root or node (see the type), valid for as long as the caller's guard, and aligned
        // as all of them are; it is accessed by atomics only.
        unsafe { AtomicU64::from_ptr(at) }
    }

    // Relaxed, except for the owner word: the lock that guards a root orders all changes to it.
    fn get(self, word: u64) -> u64 {
        self.word(word).load(Ordering::Relaxed)
    }

    fn set(self, word: u64, value: u64) {
        self.word(word).store(value, Ordering::Relaxed);
    }

    /// Makes `root` the owner of a node; false if the node has an owner already.
    fn claim(self, owner: u64, root: u64) -> bool {
        let word = self.word(owner);
        let free = word.load(Ordering::Relaxed) >> ADDRESS << ADDRESS;
        // Acquire pairs with the release in `disclaim`: the previous owner has finished with the node's words.
        root >> ADDRESS == 0 && word.compare_exchange(free, free | root, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Removes the owner of a node.
    fn disclaim(self, owner: u64) {
        let word = self.word(owner);
        // Release pairs with the acquire in `claim`.
        word.store(word.load(Ordering::Relaxed) >> ADDRESS << ADDRESS, Ordering::Release);
    }

    fn is_of(self, owner: u64, root: u64) -> bool {
        self.get(owner) << (64 - ADDRESS) >> (64 - ADDRESS) == root
    }

    /// The object that contains the node.
    fn object(self, owner: u64) -> u64 {
        self.0 - (self.get(owner) >> ADDRESS)
    }
}

/// Initialises a field of a new object, which is all zeros.
///
/// # Safety
/// `field` must be a field of the live object `object`, which no other thread has.
pub(super) unsafe fn begin(object: u64, field: OwnedField) {
    let at = At(object + u64::from(field.offset));
    let owner = match field.kind {
        OwnedKind::ListNode => LIST_OWNER,
        OwnedKind::TreeNode => TREE_OWNER,
        OwnedKind::Kptr { .. }
        | OwnedKind::ListHead { .. }
        | OwnedKind::TreeRoot { .. }
        | OwnedKind::Refcount
        | OwnedKind::Lock { .. } => return,
    };
    at.set(owner, u64::from(field.offset) << ADDRESS);
}

/// The object that contains a list's node.
///
/// # Safety
/// `node` must be a `struct bpf_list_node` of a live object.
pub unsafe fn of_list_node(node: u64) -> u64 {
    At(node).object(LIST_OWNER)
}

/// The object that contains a tree's node.
///
/// # Safety
/// `node` must be a `struct bpf_rb_node` of a live object.
pub unsafe fn of_tree_node(node: u64) -> u64 {
    At(node).object(TREE_OWNER)
}

/// An end of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The end with the first node.
    Front,
    /// The end with the last node.
    Back,
}

impl End {
    /// The root's word for this end, and the node's word that leads away from this end.
    fn words(self) -> (u64, u64) {
        match self {
            End::Front => (FIRST, NEXT),
            End::Back => (LAST, BEFORE),
        }
    }

    fn other(self) -> End {
        match self {
            End::Front => End::Back,
            End::Back => End::Front,
        }
    }
}

/// Inserts a node into a list, which then owns its object. `false` if the node is in a list already: the caller still
/// owns the object.
///
/// # Safety
/// `head` must be a `struct bpf_list_head` in a value or an object whose lock the caller has, `node` the node of an
/// object for such lists that the caller owns.
pub unsafe fn push(head: u64, node: u64, end: End) -> bool {
    let (head, node) = (At(head), At(node));
    if !node.claim(LIST_OWNER, head.0) {
        return false;
    }
    let ((outer, away), (far, toward)) = (end.words(), end.other().words());
    let neighbour = head.get(outer);
    node.set(away, neighbour);
    node.set(toward, 0);
    match neighbour {
        0 => head.set(far, node.0),
        neighbour => At(neighbour).set(toward, node.0),
    }
    head.set(outer, node.0);
    true
}

/// Removes the node at this end of a list and returns it; the caller then owns its object. 0 if the list is empty.
///
/// # Safety
/// As for [`push`], of `head`.
pub unsafe fn pop(head: u64, end: End) -> u64 {
    let head = At(head);
    let ((outer, away), (far, toward)) = (end.words(), end.other().words());
    let node = head.get(outer);
    if node == 0 {
        return 0;
    }
    let next = At(node).get(away);
    match next {
        0 => head.set(far, 0),
        next => At(next).set(toward, 0),
    }
    head.set(outer, next);
    At(node).disclaim(LIST_OWNER);
    node
}

/// Returns the node at this end of a list; 0 if the list is empty.
///
/// # Safety
/// As for [`push`], of `head`.
pub unsafe fn peek(head: u64, end: End) -> u64 {
    At(head).get(end.words().0)
}

/// Accessors for a tree's node.
impl At {
    fn parent(self) -> u64 {
        self.get(PARENT) & !BLACK
    }

    fn is_black(self) -> bool {
        self.0 == 0 || self.get(PARENT) & BLACK != 0
    }

    fn set_parent(self, parent: u64) {
        self.set(PARENT, parent | self.get(PARENT) & BLACK);
    }

    fn set_black(self, black: bool) {
        self.set(PARENT, self.parent() | u64::from(black));
    }

    fn child(self, side: u64) -> At {
        At(self.get(side))
    }

    /// The side of this node on which its child `child` is.
    fn side_of(self, child: At) -> u64 {
        if self.child(LEFT) == child { LEFT } else { RIGHT }
    }
}

const fn other(side: u64) -> u64 {
    LEFT + RIGHT - side
}

/// A tree, named by its root.
#[derive(Clone, Copy)]
struct Tree(At);

impl Tree {
    fn top(self) -> At {
        At(self.0.get(FIRST))
    }

    /// Puts `new` (or nothing) in the place of `old` below its parent.
    fn replace(self, old: At, new: At) {
        match old.parent() {
            0 => self.0.set(FIRST, new.0),
            parent => At(parent).set(At(parent).side_of(old), new.0),
        }
        if new.0 != 0 {
            new.set_parent(old.parent());
        }
    }

    /// Rotates: lowers a node to `side` and raises its child on the other side.
    fn rotate(self, node: At, side: u64) {
        let raised = node.child(other(side));
        let between = raised.child(side);
        node.set(other(side), between.0);
        if between.0 != 0 {
            between.set_parent(node.0);
        }
        self.replace(node, raised);
        raised.set(side, node.0);
        node.set_parent(raised.0);
    }

    /// Restores the red-black properties after `node` was inserted as a red leaf.
    fn inserted(self, mut node: At) {
        loop {
            let parent = At(node.parent());
            if parent.0 == 0 {
                node.set_black(true);
                return;
            }
            if parent.is_black() {
                return;
            }
            // A red parent is not the topmost node, so a grandparent exists.
            let grand = At(parent.parent());
            let side = grand.side_of(parent);
            let uncle = grand.child(other(side));
            if !uncle.is_black() {
                parent.set_black(true);
                uncle.set_black(true);
                grand.set_black(false);
                node = grand;
                continue;
            }
            let parent = if parent.child(other(side)) == node {
                self.rotate(parent, side);
                node
            } else {
                parent
            };
            parent.set_black(true);
            grand.set_black(false);
            self.rotate(grand, other(side));
            return;
        }
    }

    /// Restores the red-black properties after a black node was removed above `node` (which may be null), below
    /// `parent`.
    fn removed(self, mut node: At, mut parent: At) {
        while parent.0 != 0 && node.is_black() {
            let side = parent.side_of(node);
            let mut sibling = parent.child(other(side));
            if !sibling.is_black() {
                sibling.set_black(true);
                parent.set_black(false);
                self.rotate(parent, side);
                sibling = parent.child(other(side));
            }
            // The sibling exists, because its side has as many black nodes as the other side had before the removal.
            let (near, far) = (sibling.child(side), sibling.child(other(side)));
            if near.is_black() && far.is_black() {
                sibling.set_black(false);
                node = parent;
                parent = At(node.parent());
                continue;
            }
            if far.is_black() {
                near.set_black(true);
                sibling.set_black(false);
                self.rotate(sibling, other(side));
                sibling = near;
            }
            sibling.set_black(parent.is_black());
            parent.set_black(true);
            sibling.child(other(side)).set_black(true);
            self.rotate(parent, side);
            return;
        }
        if node.0 != 0 {
            node.set_black(true);
        }
    }

    fn remove(self, node: At) {
        let (left, right) = (node.child(LEFT), node.child(RIGHT));
        let (was_black, below, parent);
        if left.0 == 0 || right.0 == 0 {
            below = if left.0 == 0 { right } else { left };
            (was_black, parent) = (node.is_black(), At(node.parent()));
            self.replace(node, below);
        } else {
            // The next node in order takes the removed node's place and colour.
            let next = lowest(right);
            below = next.child(RIGHT);
            was_black = next.is_black();
            if next == right {
                parent = next;
            } else {
                parent = At(next.parent());
                self.replace(next, below);
                next.set(RIGHT, right.0);
                right.set_parent(next.0);
            }
            self.replace(node, next);
            next.set(LEFT, left.0);
            left.set_parent(next.0);
            next.set_black(node.is_black());
        }
        if was_black {
            self.removed(below, parent);
        }
    }
}

/// The first node in order of the subtree at `node`.
fn lowest(mut node: At) -> At {
    while node.0 != 0 && node.child(LEFT).0 != 0 {
        node = node.child(LEFT);
    }
    node
}

/// Inserts a node into a tree, before the first node that it is not less than, and the tree then owns its object.
/// `Ok(false)` if the node is in a tree already. In that case, and where `less` fails, the caller still owns the
/// object.
///
/// # Safety
/// `root` must be a `struct bpf_rb_root` in a value or an object whose lock the caller has; `less` changes nothing of
/// it and does not unwind; `node` the node of an object for such trees that the caller owns.
pub unsafe fn add<E>(root: u64, node: u64, mut less: impl FnMut(u64, u64) -> Result<bool, E>) -> Result<bool, E> {
    let (tree, node) = (Tree(At(root)), At(node));
    if !node.claim(TREE_OWNER, root) {
        return Ok(false);
    }
    let (mut parent, mut side, mut below) = (At(0), LEFT, tree.top());
    while below.0 != 0 {
        parent = below;
        side = match less(node.0, parent.0) {
            Ok(true) => LEFT,
            Ok(false) => RIGHT,
            Err(error) => {
                node.disclaim(TREE_OWNER);
                return Err(error);
            }
        };
        below = parent.child(side);
    }
    // The new node is red.
    node.set(PARENT, parent.0);
    node.set(LEFT, 0);
    node.set(RIGHT, 0);
    match parent.0 {
        0 => tree.0.set(FIRST, node.0),
        _ => parent.set(side, node.0),
    }
    tree.inserted(node);
    Ok(true)
}

/// Removes a node from a tree and returns it; the caller then owns its object. 0 if the node is not in this tree.
///
/// # Safety
/// As for [`add`], of `root`; `node` must be the node of a live object.
pub unsafe fn remove(root: u64, node: u64) -> u64 {
    if !At(node).is_of(TREE_OWNER, root) {
        return 0;
    }
    Tree(At(root)).remove(At(node));
    At(node).disclaim(TREE_OWNER);
    node
}

/// The first node of a tree in order; 0 if it is empty.
///
/// # Safety
/// As for [`add`], of `root`.
pub unsafe fn first(root: u64) -> u64 {
    lowest(Tree(At(root)).top()).0
}

/// The topmost node of a tree; 0 if it is empty.
///
/// # Safety
/// As for [`add`], of `root`.
pub unsafe fn top(root: u64) -> u64 {
    Tree(At(root)).top().0
}

/// The left or right child of a tree's node; 0 if there is none, or if the node is not in this tree.
///
/// # Safety
/// As for [`remove`].
pub unsafe fn child(root: u64, node: u64, left: bool) -> u64 {
    let node = At(node);
    if node.is_of(TREE_OWNER, root) { node.child(if left { LEFT } else { RIGHT }).0 } else { 0 }
}

/// Empties a list or a tree and passes each object, with the root's ownership of it, to `left`.
///
/// # Safety
/// `root` must be a root of this kind in a value or an object whose lock the caller has, or that nobody else has.
pub(super) unsafe fn drain(root: u64, kind: OwnedKind, mut left: impl FnMut(u64)) {
    match kind {
        OwnedKind::ListHead { .. } => loop {
            // SAFETY: the caller's contract.
            let node = unsafe { pop(root, End::Front) };
            if node == 0 {
                return;
            }
            left(At(node).object(LIST_OWNER));
        },
        OwnedKind::TreeRoot { .. } => {
            let root = At(root);
            let mut node = At(root.get(FIRST));
            root.set(FIRST, 0);
            // Walks down to a leaf, removes it, and goes back to its parent, whose link is cleared.
            while node.0 != 0 {
                let side = if node.child(LEFT).0 != 0 { LEFT } else { RIGHT };
                let below = node.child(side);
                if below.0 != 0 {
                    node.set(side, 0);
                    node = below;
                    continue;
                }
                let parent = At(node.parent());
                node.disclaim(TREE_OWNER);
                left(node.object(TREE_OWNER));
                node = parent;
            }
        }
        OwnedKind::Kptr { .. }
        | OwnedKind::ListNode
        | OwnedKind::TreeNode
        | OwnedKind::Refcount
        | OwnedKind::Lock { .. } => {}
    }
}
