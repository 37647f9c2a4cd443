//! A map as it was when it was made.
//!
//! Problem: whoever wants a fresh state for each request would make maps anew, which costs memory from the system and
//! its return. Approach: each family has a way to be empty again that leaves its memory where it is: arrays are written
//! with zeros, elements are deleted, records are consumed. What programs do to the map meanwhile, they do before or
//! after it, element by element, as beside any other writer.

use crate::arena::Arena;
use crate::array::ArrayMap;
use crate::bloom::BloomMap;
use crate::def::Family;
use crate::errno::{Errno, OpResult};
use crate::error::MapError;
use crate::map::Map;
use crate::mem::zeroes;
use crate::ring::RingMap;
use crate::ring::consumer::RingBuf;
use bpf_uapi::MapType;

const OP: &str = "reset";

impl Map {
    /// Makes it as it was when it was made: arrays are zero, other maps empty, rings have no records. A frozen map
    /// stays as it is; so do the rings of a perf event array, which are their consumers'. What the host or a program
    /// may write does not matter: a reset is the owner's.
    ///
    /// Locks, timers and work in values of arrays stay as they are; elements that are deleted take theirs along, and
    /// objects that values own are let go.
    ///
    /// # Errors
    /// `EBUSY` of a ring buffer with a consumer; [`MapError`] of a run guard that is not to be had, as in a forked
    /// child.
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
                        // Nothing was there; of sockets that is EINVAL.
                        Err(Errno::ENOENT | Errno::EINVAL) => Ok(()),
                        other => other,
                    });
                    deleted?;
                }
            }
            Family::Queue => {
                let mut value = zeroes(self.host_value_size()).map_err(|errno| self.error(OP, errno))?;
                // No more than there can be, so that it ends beside programs that push.
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
                self.run(OP, |ops, _| match ops.as_any().downcast_ref::<RingMap>() {
                    Some(ring) => ring.ring.drain(0, &mut |_, _| true).map(drop),
                    None => Ok(()),
                })?;
            }
            Family::Ring => {
                RingBuf::new(self)?.consume(|_| true);
            }
            Family::Arena => {
                let arena = Arena::new(self)?;
                arena.free(arena.start(), arena.pages())?;
            }
            Family::Perf | Family::InsnArray => {}
        }
        // Elements and inner maps wait for a grace period.
        self.domain().tend();
        Ok(())
    }

    fn delete_all(&self) -> Result<(), MapError> {
        let mut key = zeroes(self.def().key_size as usize).map_err(|errno| self.error(OP, errno))?;
        // One guard each, so that elements of a large map can be given back meanwhile.
        while self.run(OP, |ops, slot| {
            let next = found(ops.next_key(None, &mut key))?;
            if next {
                // Whoever else deletes it does no harm.
                found(ops.delete(&key, slot))?;
            }
            Ok(next)
        })? {}
        Ok(())
    }
}

/// Whether there was something.
fn found(result: OpResult) -> OpResult<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(Errno::ENOENT) => Ok(false),
        Err(other) => Err(other),
    }
}
