//! The allocator of chunks: two-level segregated fit, with its bookkeeping outside the memory it manages.
//!
//! Problem: thousands of programs of a few hundred bytes are loaded and freed in random order. Free memory is filled
//! with traps, so it cannot hold list links, and executable memory is too scarce to waste by searching badly.
//!
//! Approach: TLSF (Masmano et al. 2004). Every maximal free extent of chunks has a node in a side table. Nodes of
//! similar length share a list, and two bitmaps record which lists are not empty. One tag per chunk, used only at the
//! two ends of an extent, finds the neighbours to merge with.
//!
//! Cost: allocating and freeing take constant time, however many extents, packs and programs there are (allocation
//! looks at no more than [`CLOSE_FITS`] nodes of the one list in which an extent may or may not fit). Memory: 4 bytes a
//! chunk and 20 bytes a free extent.
//!
//! Fragmentation is low because a request takes the smallest class that fits: small holes fill up first, and an empty
//! pack, which is the largest extent, is used last.
//!
//! Invariants: two free extents are never adjacent; `tags` is 0 at both ends of every extent in use, and node + 1 at
//! both ends of every free one.

/// Second-level lists for each power of two.
const SUBCLASSES: u32 = 8;
const SUBCLASS_BITS: u32 = SUBCLASSES.ilog2();
/// First-level lists: enough for 2^32 chunks.
const CLASSES: usize = 32 - SUBCLASS_BITS as usize + 1;
/// Number of nodes examined in the list whose extents are about as long as the request.
const CLOSE_FITS: usize = 8;
/// The number that stands for no node.
const NONE: u32 = u32::MAX;

/// An extent of chunks in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) pack: u32,
    pub(crate) start: u32,
    pub(crate) len: u32,
}

/// A maximal free extent.
#[derive(Debug, Clone, Copy)]
struct Node {
    extent: Extent,
    prev: u32,
    next: u32,
}

#[derive(Debug)]
struct Pack {
    tags: Vec<u32>,
    used: u32,
}

/// The allocator of a set of packs, each known by its number and length only.
#[derive(Debug)]
pub(crate) struct Chunks {
    packs: Vec<Option<Pack>>,
    nodes: Vec<Node>,
    spare_nodes: Vec<u32>,
    heads: [[u32; SUBCLASSES as usize]; CLASSES],
    /// Bit c is set if some list of class c is not empty.
    classes: u32,
    /// Bit s of element c is set if list (c, s) is not empty.
    subclasses: [u8; CLASSES],
}

/// The list for extents of `len` chunks: exact below 2 * [`SUBCLASSES`], then eight lists for each power of two.
fn class_of(len: u32) -> (usize, usize) {
    if len < SUBCLASSES {
        return (0, len as usize);
    }
    let log = len.ilog2();
    let class = log - SUBCLASS_BITS + 1;
    let subclass = (len >> (log - SUBCLASS_BITS)) & (SUBCLASSES - 1);
    (class as usize, subclass as usize)
}

/// The first list in which every extent has at least `len` chunks; `None` beyond the last list.
fn class_that_fits(len: u32) -> Option<(usize, usize)> {
    let log = len.max(1).ilog2();
    let round = if log < SUBCLASS_BITS { 0 } else { (1 << (log - SUBCLASS_BITS)) - 1 };
    len.checked_add(round).map(class_of)
}

impl Chunks {
    pub(crate) fn new() -> Self {
        Self {
            packs: Vec::new(),
            nodes: Vec::new(),
            spare_nodes: Vec::new(),
            heads: [[NONE; SUBCLASSES as usize]; CLASSES],
            classes: 0,
            subclasses: [0; CLASSES],
        }
    }

    /// Adds an empty pack under the number `pack`.
    pub(crate) fn add_pack(&mut self, pack: u32, chunks: u32) {
        let at = pack as usize;
        if self.packs.len() <= at {
            self.packs.resize_with(at + 1, || None);
        }
        debug_assert!(self.packs[at].is_none());
        self.packs[at] = Some(Pack { tags: vec![0; chunks as usize], used: 0 });
        self.insert(Extent { pack, start: 0, len: chunks });
    }

    /// Removes an empty pack.
    pub(crate) fn remove_pack(&mut self, pack: u32) {
        if let Some(p) = self.packs[pack as usize].take() {
            debug_assert!(p.used == 0 && p.tags[0] != 0);
            self.unlink(p.tags[0] - 1);
        }
    }

    /// Number of chunks in use in a pack.
    pub(crate) fn used(&self, pack: u32) -> u32 {
        self.packs.get(pack as usize).and_then(Option::as_ref).map_or(0, |p| p.used)
    }

    /// Allocates `len` adjacent chunks (at least one); `None` if no free extent is known to be that long.
    #[cfg(test)]
    pub(crate) fn allocate(&mut self, len: u32) -> Option<Extent> {
        self.allocate_at(len, |_| 0)
    }

    /// Allocates `len` adjacent chunks; `None` as for `allocate`. `skip` gets the number of chunks by which the free
    /// extent is longer, and returns how many to leave free in front.
    pub(crate) fn allocate_at(&mut self, len: u32, skip: impl FnOnce(u32) -> u32) -> Option<Extent> {
        let node = self.find(len)?;
        let free = self.nodes[node as usize].extent;
        self.unlink(node);
        let skipped = skip(free.len - len).min(free.len - len);
        let extent = Extent { start: free.start + skipped, len, ..free };
        if skipped > 0 {
            self.insert(Extent { len: skipped, ..free });
        }
        let behind = free.len - len - skipped;
        if behind > 0 {
            self.insert(Extent { start: extent.start + len, len: behind, ..free });
        }
        let pack = self.pack_mut(extent.pack);
        pack.used += len;
        pack.tags[extent.start as usize] = 0;
        pack.tags[(extent.start + len - 1) as usize] = 0;
        Some(extent)
    }

    /// Frees an extent and returns whether its pack is empty afterwards.
    pub(crate) fn free(&mut self, extent: Extent) -> bool {
        let pack = self.pack_mut(extent.pack);
        pack.used -= extent.len;
        let empty = pack.used == 0;
        let mut merged = extent;
        let before = extent.start.checked_sub(1).map_or(0, |at| pack.tags[at as usize]);
        let after = pack.tags.get((extent.start + extent.len) as usize).copied().unwrap_or(0);
        if before != 0 {
            let left = self.nodes[before as usize - 1].extent;
            self.unlink(before - 1);
            merged = Extent { start: left.start, len: left.len + merged.len, ..extent };
        }
        if after != 0 {
            let right = self.nodes[after as usize - 1].extent;
            self.unlink(after - 1);
            merged.len += right.len;
        }
        self.insert(merged);
        empty
    }

    /// Length of the longest free extent, in chunks. Examines one list.
    pub(crate) fn largest_hole(&self) -> u32 {
        let Some(class) = self.classes.checked_ilog2() else { return 0 };
        let Some(subclass) = self.subclasses[class as usize].checked_ilog2() else { return 0 };
        let mut longest = 0;
        let mut node = self.heads[class as usize][subclass as usize];
        while node != NONE {
            longest = longest.max(self.nodes[node as usize].extent.len);
            node = self.nodes[node as usize].next;
        }
        longest
    }

    /// Number of free extents.
    pub(crate) fn holes(&self) -> usize {
        self.nodes.len() - self.spare_nodes.len()
    }

    /// All free extents.
    #[cfg(test)]
    pub(crate) fn free_extents(&self) -> Vec<Extent> {
        let mut extents = Vec::new();
        for mut node in self.heads.into_iter().flatten() {
            while node != NONE {
                extents.push(self.nodes[node as usize].extent);
                node = self.nodes[node as usize].next;
            }
        }
        extents
    }

    fn pack_mut(&mut self, pack: u32) -> &mut Pack {
        self.packs[pack as usize].as_mut().expect("an extent's pack is not removed before the extent")
    }

    fn find(&self, len: u32) -> Option<u32> {
        if let Some((class, subclass)) = class_that_fits(len) {
            // The rest of this class, then the next class with a non-empty list.
            let rest = u32::from(self.subclasses[class]) >> subclass << subclass;
            if rest != 0 {
                return Some(self.heads[class][rest.trailing_zeros() as usize]);
            }
            let larger = u64::from(self.classes) >> (class + 1) << (class + 1);
            if larger != 0 {
                let class = larger.trailing_zeros() as usize;
                return Some(self.heads[class][self.subclasses[class].trailing_zeros() as usize]);
            }
        }
        // Extents in the request's own list may be a little longer or a little shorter than the request.
        let (class, subclass) = class_of(len);
        let mut node = self.heads[class][subclass];
        for _ in 0..CLOSE_FITS {
            if node == NONE {
                return None;
            }
            if self.nodes[node as usize].extent.len >= len {
                return Some(node);
            }
            node = self.nodes[node as usize].next;
        }
        None
    }

    /// Puts a free extent into its list.
    fn insert(&mut self, extent: Extent) {
        let (class, subclass) = class_of(extent.len);
        let next = self.heads[class][subclass];
        let node = Node { extent, prev: NONE, next };
        let id = match self.spare_nodes.pop() {
            Some(id) => {
                self.nodes[id as usize] = node;
                id
            }
            None => {
                self.nodes.push(node);
                // Fits: each chunk is in at most one extent.
                crate::small(self.nodes.len()) - 1
            }
        };
        if next != NONE {
            self.nodes[next as usize].prev = id;
        }
        self.heads[class][subclass] = id;
        self.classes |= 1 << class;
        self.subclasses[class] |= 1 << subclass;
        let pack = self.pack_mut(extent.pack);
        pack.tags[extent.start as usize] = id + 1;
        pack.tags[(extent.start + extent.len - 1) as usize] = id + 1;
    }

    /// Takes a free extent out of its list. The caller updates its tags.
    fn unlink(&mut self, id: u32) {
        let Node { extent, prev, next } = self.nodes[id as usize];
        if next != NONE {
            self.nodes[next as usize].prev = prev;
        }
        if prev != NONE {
            self.nodes[prev as usize].next = next;
        } else {
            let (class, subclass) = class_of(extent.len);
            self.heads[class][subclass] = next;
            if next == NONE {
                self.subclasses[class] &= !(1 << subclass);
                if self.subclasses[class] == 0 {
                    self.classes &= !(1 << class);
                }
            }
        }
        self.spare_nodes.push(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The naive twin: one bool per chunk.
    struct Naive(Vec<Option<Vec<bool>>>);

    impl Naive {
        fn set(&mut self, extent: Extent, used: bool) {
            let pack = self.0[extent.pack as usize].as_mut().unwrap();
            for chunk in &mut pack[extent.start as usize..(extent.start + extent.len) as usize] {
                assert_ne!(*chunk, used, "every chunk belongs to exactly one owner");
                *chunk = used;
            }
        }

        /// Maximal free extents, in order.
        fn holes(&self) -> Vec<u32> {
            let packs = self.0.iter().flatten();
            packs.flat_map(|p| p.split(|used| *used).map(|hole| hole.len() as u32).filter(|len| *len > 0)).collect()
        }
    }

    fn check(chunks: &Chunks, naive: &Naive) {
        let holes = naive.holes();
        assert_eq!(chunks.holes(), holes.len());
        assert_eq!(chunks.largest_hole(), holes.iter().copied().max().unwrap_or(0));
        for (pack, used) in naive.0.iter().enumerate() {
            let used = used.as_ref().map_or(0, |p| p.iter().filter(|used| **used).count());
            assert_eq!(chunks.used(pack as u32) as usize, used);
        }
        for (class, lists) in chunks.heads.iter().enumerate() {
            assert_eq!(chunks.classes & (1 << class) != 0, lists.iter().any(|head| *head != NONE));
            for (subclass, head) in lists.iter().enumerate() {
                assert_eq!(chunks.subclasses[class] & (1 << subclass) != 0, *head != NONE);
            }
        }
    }

    #[test]
    fn agrees_with_one_bool_a_chunk() {
        let mut seed = 1u64;
        let mut random = move |below: u32| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 33) as u32 % below
        };
        for round in 0..40 {
            let (mut chunks, mut naive, mut live) = (Chunks::new(), Naive(vec![None; 4]), Vec::new());
            let longest = [3, 12, 40, 200][round % 4];
            for _ in 0..400 {
                match random(8) {
                    0 => {
                        let pack = random(4);
                        match &naive.0[pack as usize] {
                            None => {
                                let len = 1 + random(400);
                                chunks.add_pack(pack, len);
                                naive.0[pack as usize] = Some(vec![false; len as usize]);
                            }
                            Some(used) if used.iter().all(|used| !used) => {
                                chunks.remove_pack(pack);
                                naive.0[pack as usize] = None;
                            }
                            Some(_) => {}
                        }
                    }
                    1..=4 => {
                        let len = 1 + random(longest);
                        let skips = random(2) == 0;
                        match chunks.allocate_at(len, |most| if skips { random(most + 1) } else { 0 }) {
                            Some(extent) => {
                                assert_eq!(extent.len, len);
                                naive.set(extent, true);
                                live.push(extent);
                            }
                            None => {
                                // Only extents of the request's own list, after its first nodes, may be missed.
                                let missed = naive.holes().into_iter().filter(|hole| *hole >= len);
                                assert!(missed.clone().all(|hole| class_of(hole) == class_of(len)));
                                assert!(len >= 2 * SUBCLASSES || missed.count() == 0, "short requests fit exactly");
                            }
                        }
                    }
                    _ => {
                        if !live.is_empty() {
                            let extent = live.swap_remove(random(live.len() as u32) as usize);
                            naive.set(extent, false);
                            let pack = naive.0[extent.pack as usize].as_ref().unwrap();
                            assert_eq!(chunks.free(extent), pack.iter().all(|used| !used));
                        }
                    }
                }
                check(&chunks, &naive);
            }
        }
    }

    #[test]
    fn every_list_keeps_its_promise() {
        for len in (1..5000).chain([u32::MAX / 2, u32::MAX - 1, u32::MAX]) {
            if let Some(class) = class_that_fits(len) {
                assert!(class >= class_of(len), "{len}");
                // The shortest extent of that list: the first length of that class.
                let shortest = (len.saturating_sub(len / 4)..=len).find(|l| class_of(*l) == class);
                assert!(shortest.is_none_or(|shortest| shortest == len), "{len}: {shortest:?}");
            }
        }
        assert!(class_of(u32::MAX).0 < CLASSES);
    }

    #[test]
    fn an_empty_pack_is_touched_last() {
        let mut chunks = Chunks::new();
        chunks.add_pack(0, 64);
        let extents: Vec<_> = (0..16).map(|_| chunks.allocate(4).unwrap()).collect();
        chunks.add_pack(1, 64);
        for extent in extents.iter().step_by(2) {
            chunks.free(*extent);
        }
        for _ in 0..8 {
            assert_eq!(chunks.allocate(4).unwrap().pack, 0);
        }
        assert_eq!(chunks.allocate(4).unwrap().pack, 1);
    }
}
