//! Restores the initial contents of a map.
//!
//! Problem: a fresh state for each request would take new maps, whose memory must be obtained from the system and given
//! back. Approach: each family of maps is emptied in place: arrays are written with zeros, elements are deleted,
//! records are consumed. A concurrent operation of a program on an element comes before or after the reset of that
//! element, as with any other writer.

use crate::arena::Arena;
use crate::array::ArrayMap;
use crate::bloom::BloomMap;
use crate::def::Family;
use crate::errno::{Errno, OpResult};
use crate::error::MapError;
use crate::map::Map;
use crate::mem::zeroes;
use crate::ops::Cursor;
use crate::ring::RingMap;
use crate::ring::consumer::RingBuf;
use crate::ring::user::MAX_SAMPLES;
use bpf_uapi::MapType;

const OP: &str = "reset";

impl Map {
    /// Empties the map as if it were new: arrays become zero, other maps empty, and rings have no records. Frozen
    /// maps are not changed, nor are the rings of a perf event array, which belong to their consumers. Flags that
    /// forbid writes by the host or by programs do not prevent a reset.
    ///
    /// Locks in values of arrays are not changed. Timers and deferred work in values end, and objects that values own
    /// are released.
    ///
    /// # Errors
    /// `EBUSY` for a ring buffer with a consumer; [`MapError`] if no run guard can be taken, as in a forked child.
    ///
    /// # Panics
    /// Resumes the panic of a deferred callback of the host ([`bpf_quiesce::Domain::enqueue`]). The map may then be
    /// emptied in part, and can be reset again.
    pub fn reset(&self) -> Result<(), MapError> {
        if self.is_frozen() {
            return Ok(());
        }
        let entries = self.header().max_entries;
        match Family::of(self.map_type())? {
            Family::Array => {
                let value = zeroes(self.host_value_size()).map_err(|errno| self.error(OP, errno))?;
                self.run(OP, |ops, slot| match ops.as_any().downcast_ref::<ArrayMap>() {
                    Some(array) if array.clear() => Ok(()),
                    Some(_) | None => {
                        (0..entries).try_for_each(|index| ops.update(&index.to_ne_bytes(), &value, 0, slot))
                    }
                })?;
            }
            Family::Hash | Family::Trie | Family::HashOfMaps | Family::RedirectHash | Family::SocketHash => {
                self.delete_all()?;
            }
            Family::ArrayOfMaps | Family::Redirect => {
                for index in 0..entries {
                    let deleted = self.run(OP, |ops, slot| match ops.delete(&index.to_ne_bytes(), slot) {
                        // The slot was empty; maps of sockets report that as EINVAL.
                        Err(Errno::ENOENT | Errno::EINVAL) => Ok(()),
                        other => other,
                    });
                    deleted?;
                }
            }
            Family::Queue => {
                let mut value = zeroes(self.host_value_size()).map_err(|errno| self.error(OP, errno))?;
                // At most `entries` times, so that the loop ends although programs may push.
                for _ in 0..entries {
                    let taken = self.run(OP, |ops, slot| found(ops.lookup_and_delete(&[], &mut value, 0, slot)));
                    if !taken? {
                        break;
                    }
                }
            }
            Family::Bloom => {
                if let Some(bloom) = self.ops().as_any().downcast_ref::<BloomMap>() {
                    bloom.clear();
                }
            }
            Family::Ring if self.map_type() == MapType::UserRingBuf => {
                // One drain takes at most MAX_SAMPLES samples, each with a header of eight bytes. The number of drains
                // is that for a full ring, so that the loop ends while a producer adds samples.
                for _ in 0..=u64::from(entries) / size_of::<u64>() as u64 / MAX_SAMPLES {
                    self.run(OP, |ops, _| match ops.as_any().downcast_ref::<RingMap>() {
                        Some(ring) => ring.ring.drain(0, &mut |_, _| true).map(drop),
                        None => Ok(()),
                    })?;
                }
            }
            Family::Ring => {
                RingBuf::new(self)?.skip();
            }
            Family::Arena => {
                let arena = Arena::new(self)?;
                arena.free(arena.start(), arena.pages())?;
            }
            Family::Perf | Family::InsnArray => {}
        }
        // Deleted elements and inner maps wait for a grace period.
        self.domain().tend();
        Ok(())
    }

    fn delete_all(&self) -> Result<(), MapError> {
        let buffer = |bytes: usize| zeroes(bytes).map_err(|errno| self.error(OP, errno));
        let (mut key, mut value) = (buffer(self.def().key_size as usize)?, buffer(self.host_value_size())?);
        // A cursor reaches the end whatever other threads insert meanwhile, and visits each place of a table once.
        let mut cursor = Cursor::default();
        // A guard for each element, so that elements of a large map can be freed meanwhile.
        while self.run(OP, |ops, slot| {
            let next = found(ops.next_at(&mut cursor, &mut key, &mut value, slot))?;
            if next {
                // If another thread has deleted the element, there is nothing to do.
                found(ops.delete(&key, slot))?;
            }
            Ok(next)
        })? {}
        Ok(())
    }
}

/// Converts the result of an operation on an element: `false` for `ENOENT`.
fn found(result: OpResult) -> OpResult<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(Errno::ENOENT) => Ok(false),
        Err(other) => Err(other),
    }
}
