//! The engines and maps that generated programs live in.
//!
//! A world is made once and used for many programs: before each run the maps that the program uses are put into a state
//! that a seed decides, and afterwards what they hold is read back, in an order that no engine decides.

use super::objects::{BIN, BIN_LIST, BIN_LOCK, BIN_TREE, CRATE, LIST, LIST_NODE, NODE, PLAIN, TREE, TREE_NODE};
use super::{ARRAY_VALUE, CONSTANTS, GLOBAL_VALUE, HASH_VALUE, INNER_VALUE, MapId};
use crate::generate::Choices;
use bpf_runtime::maps::flags;
use bpf_runtime::{
    Config, Engine, Linker, Mode,
    maps::{Map, MapDef, MapError, MapType, RingBuf},
};
use bpf_uapi::{OwnedField, OwnedKind, OwnedType};

pub(super) struct World {
    pub(super) linker: Linker<()>,
    pub(super) maps: Vec<Map>,
    inner: [Map; 2],
    ring: RingBuf,
    /// The bytes in and around the packet, kept so that each run has them at the same address.
    pub(super) memory: Vec<u8>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("linker", &self.linker).finish_non_exhaustive()
    }
}

/// Bytes of a value that holds objects: the last 8 are a number.
const HOLDING_VALUE: u32 = 80;

/// A value of the arrays that hold objects, and the types that it leads to: behind it those of the numbers from 1 on.
pub(super) fn types() -> Vec<OwnedType> {
    let field = |offset, kind| OwnedField { offset, kind };
    let ty = |name: &str, size, fields| OwnedType { name: name.into(), size, fields, per_cpu: false };
    let list = OwnedKind::ListHead { of: 1, node: LIST_NODE as u32 };
    let tree = OwnedKind::TreeRoot { of: 1, node: TREE_NODE as u32 };
    let guarded = |name, resilient| {
        let lock = field(BIN_LOCK, OwnedKind::Lock { resilient });
        ty(name, 64, vec![lock, field(BIN_LIST, list), field(BIN_TREE, tree)])
    };
    vec![
        ty(
            "",
            HOLDING_VALUE,
            vec![
                field(LIST, list),
                field(TREE, tree),
                field(PLAIN, OwnedKind::Kptr { to: 2 }),
                field(NODE, OwnedKind::Kptr { to: 1 }),
                field(BIN, OwnedKind::Kptr { to: 4 }),
                field(CRATE, OwnedKind::Kptr { to: 5 }),
            ],
        ),
        ty(
            "node",
            80,
            vec![
                field(LIST_NODE as u32, OwnedKind::ListNode),
                field(TREE_NODE as u32, OwnedKind::TreeNode),
                field(64, OwnedKind::Refcount),
                field(72, OwnedKind::Kptr { to: 2 }),
            ],
        ),
        ty("plain", 16, Vec::new()),
        ty("chain", 16, vec![field(8, OwnedKind::Kptr { to: 3 })]),
        guarded("bin", false),
        guarded("crate", true),
    ]
}

/// The map's definition.
fn definition(map: MapId) -> MapDef {
    let holding = |name| {
        let mut def = MapDef::new(name, MapType::Array, 4, HOLDING_VALUE, 1);
        def.owned = Some(types().into());
        def
    };
    let inner = || MapDef::new("inner", MapType::Array, 4, INNER_VALUE, 3);
    match map {
        MapId::Array => MapDef::new("array", MapType::Array, 4, ARRAY_VALUE, 4),
        MapId::Hash => MapDef::new("hash", MapType::Hash, 8, HASH_VALUE, 8),
        MapId::Outer => MapDef::new("outer", MapType::ArrayOfMaps, 4, 4, 2).inner(inner()),
        MapId::Global => MapDef::new("global", MapType::Array, 4, GLOBAL_VALUE, 1),
        MapId::Locked => MapDef::new("locked", MapType::Array, 4, 24, 2).spin_lock(8),
        MapId::Queue => MapDef::new("queue", MapType::Queue, 0, 16, 3),
        MapId::Ring => MapDef::new("ring", MapType::RingBuf, 0, 0, 4096),
        MapId::PerCpu => MapDef::new("percpu", MapType::PerCpuArray, 4, 16, 2),
        MapId::Constants => MapDef::new("constants", MapType::Array, 4, CONSTANTS, 1).flags(flags::RDONLY_PROG),
        MapId::Holding => holding("holding").spin_lock(0),
        MapId::HoldingResilient => holding("resilient").res_spin_lock(0),
        MapId::OuterHash => MapDef::new("outer_hash", MapType::HashOfMaps, 4, 4, 2).inner(inner()),
    }
}

impl World {
    /// `steps`: the limit on the steps of a verification.
    pub(super) fn new(mode: Mode, budget: Option<u64>, steps: u64) -> World {
        let mut config = Config::new().mode(mode).budget(budget).max_slots(2);
        // Frames are larger than the kernel's, since the verifier tracks bytes below the first 512 in another way.
        config = config.frame_bytes(1024);
        // Steps decide: a generated program may ask many questions.
        config = config.limits(|limits| limits.steps(steps).fuel(u64::MAX));
        let engine = Engine::new(config).expect("an engine");
        let create = |def| Map::create(def, engine.domain()).expect("a map");
        let maps: Vec<Map> = MapId::ALL.into_iter().map(|map| create(definition(map))).collect();
        let inner = [0, 1].map(|_| create(MapDef::new("inner", MapType::Array, 4, INNER_VALUE, 3)));
        let constants: Vec<u8> = (0..CONSTANTS as u8).collect();
        let at = |map: MapId| &maps[map as usize];
        let made = at(MapId::Constants)
            .update(&[0; 4], &constants, 0)
            .and_then(|()| at(MapId::Constants).freeze())
            .and_then(|()| at(MapId::Outer).set_inner(&[0; 4], &inner[0], 0))
            .and_then(|()| at(MapId::OuterHash).set_inner(&[0; 4], &inner[1], 0));
        made.expect("the maps take their contents");
        let ring = RingBuf::new(at(MapId::Ring)).expect("a consumer");
        World { linker: Linker::new(&engine), maps, inner, ring, memory: Vec::with_capacity(1024) }
    }

    fn at(&self, map: MapId) -> &Map {
        &self.maps[map as usize]
    }

    /// Puts these maps into the state that the choices decide.
    pub(super) fn reset(&mut self, used: u16, c: &mut Choices<'_>) -> Result<(), MapError> {
        let mut bytes = |len: u32| -> Vec<u8> {
            // Small numbers as well as noise.
            let mut bytes = Vec::with_capacity(len as usize + 8);
            while bytes.len() < len as usize {
                let n = if c.one_in(2) { c.value() } else { c.below(64).into() };
                bytes.extend(n.to_le_bytes());
            }
            bytes.truncate(len as usize);
            bytes
        };
        let uses = |map: MapId| used >> map as u8 & 1 != 0;
        let index = |i: u32| i.to_ne_bytes();
        if uses(MapId::Global) {
            self.at(MapId::Global).update(&index(0), &bytes(GLOBAL_VALUE), 0)?;
        }
        if uses(MapId::Array) {
            for i in 0..4 {
                self.at(MapId::Array).update(&index(i), &bytes(ARRAY_VALUE), 0)?;
            }
        }
        if uses(MapId::Hash) {
            let map = self.at(MapId::Hash);
            let keys: Vec<_> = map.iter().map(|e| e.map(|e| e.0)).collect::<Result<_, _>>()?;
            for key in keys {
                map.delete(&key)?;
            }
            for key in [0u64, 2] {
                map.update(&key.to_ne_bytes(), &bytes(HASH_VALUE), 0)?;
            }
        }
        for inner in self.inner.iter().filter(|_| uses(MapId::Outer) || uses(MapId::OuterHash)) {
            for i in 0..3 {
                inner.update(&index(i), &bytes(INNER_VALUE), 0)?;
            }
        }
        if uses(MapId::Locked) {
            for i in 0..2 {
                let mut value = bytes(24);
                value[8..16].fill(0);
                self.at(MapId::Locked).update(&index(i), &value, 0)?;
            }
        }
        for map in [MapId::Holding, MapId::HoldingResilient].into_iter().filter(|map| uses(*map)) {
            // The update releases the objects that the value holds.
            let mut value = bytes(HOLDING_VALUE);
            value[..72].fill(0);
            self.at(map).update(&index(0), &value, 0)?;
        }
        if uses(MapId::Queue) {
            let map = self.at(MapId::Queue);
            while map.pop(&mut [0; 16])? {}
            map.push(&bytes(16), 0)?;
        }
        if uses(MapId::PerCpu) {
            let map = self.at(MapId::PerCpu);
            for i in 0..2 {
                map.update(&index(i), &bytes(map.host_value_size() as u32), 0)?;
            }
        }
        if uses(MapId::Ring) {
            while self.ring.next_record().is_some() {}
        }
        Ok(())
    }

    /// Whether the constants are as they were, if they are used.
    pub(super) fn constants_hold(&self, used: u16) -> Result<bool, MapError> {
        let constants: Vec<u8> = (0..CONSTANTS as u8).collect();
        Ok(used >> MapId::Constants as u8 & 1 == 0 || self.at(MapId::Constants).get(&[0; 4])? == Some(constants))
    }

    /// Returns the contents of the maps in `used`.
    pub(super) fn contents(&mut self, used: u16) -> Result<Vec<u8>, MapError> {
        let uses = |map: MapId| used >> map as u8 & 1 != 0;
        let mut all = Vec::new();
        let arrays = [
            (MapId::Global, 1),
            (MapId::Array, 4),
            (MapId::Locked, 2),
            (MapId::PerCpu, 2),
            (MapId::Holding, 1),
            (MapId::HoldingResilient, 1),
        ];
        for (map, entries) in arrays.into_iter().filter(|(map, _)| uses(*map)) {
            for i in 0..entries as u32 {
                all.extend(self.at(map).get(&i.to_ne_bytes())?.unwrap_or_default());
            }
        }
        if uses(MapId::Hash) {
            let mut elements: Vec<_> = self.at(MapId::Hash).iter().collect::<Result<_, _>>()?;
            elements.sort();
            all.extend(elements.into_iter().flat_map(|(key, value)| [key, value]).flatten());
        }
        for inner in self.inner.iter().filter(|_| uses(MapId::Outer) || uses(MapId::OuterHash)) {
            for i in 0..3u32 {
                all.extend(inner.get(&i.to_ne_bytes())?.unwrap_or_default());
            }
        }
        if uses(MapId::Queue) {
            let mut value = [0; 16];
            while self.at(MapId::Queue).pop(&mut value)? {
                all.extend(value);
            }
        }
        if uses(MapId::Ring) {
            while let Some(record) = self.ring.next_record() {
                all.extend_from_slice(&record);
            }
        }
        Ok(all)
    }
}
