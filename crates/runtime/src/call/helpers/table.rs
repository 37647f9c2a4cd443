//! Which helpers are shipped: their functions by id.

use crate::call::HostFn;
use crate::call::helpers::callback_shims::{By, bpf_loop, for_each_map_elem, user_ringbuf_drain};
use crate::call::helpers::print::trace_printk;
use crate::call::helpers::{maps, network, ring, system, text};
use bpf_uapi::Helper;

/// The helpers, ascending by id.
const SHIPPED: &[(Helper, HostFn)] = &[
    (Helper::MapLookupElem, HostFn::with_run(maps::map_lookup_elem)),
    (Helper::MapUpdateElem, HostFn::with_run(maps::map_update_elem)),
    (Helper::MapDeleteElem, HostFn::with_run(maps::map_delete_elem)),
    (Helper::KtimeGetNs, HostFn::plain(system::ktime_get_ns)),
    (Helper::TracePrintk, HostFn::with_run(trace_printk)),
    (Helper::GetPrandomU32, HostFn::plain(system::get_prandom_u32)),
    (Helper::GetSmpProcessorId, HostFn::with_run(system::get_smp_processor_id)),
    (Helper::GetCurrentPidTgid, HostFn::plain(system::get_current_pid_tgid)),
    (Helper::GetCurrentUidGid, HostFn::plain(system::get_current_uid_gid)),
    (Helper::GetCurrentComm, HostFn::plain(system::get_current_comm)),
    (Helper::PerfEventOutput, HostFn::with_run(ring::perf_event_output)),
    (Helper::MapPushElem, HostFn::with_run(maps::map_push_elem)),
    (Helper::MapPopElem, HostFn::with_run(maps::map_pop_elem)),
    (Helper::MapPeekElem, HostFn::with_run(maps::map_peek_elem)),
    (Helper::SpinLock, HostFn::with_run(maps::spin_lock)),
    (Helper::SpinUnlock, HostFn::with_run(maps::spin_unlock)),
    (Helper::Strtol, HostFn::plain(text::strtol)),
    (Helper::Strtoul, HostFn::plain(text::strtoul)),
    (Helper::Jiffies64, HostFn::plain(system::jiffies64)),
    (Helper::GetNetnsCookie, HostFn::with_run(network::get_netns_cookie)),
    (Helper::KtimeGetBootNs, HostFn::plain(system::ktime_get_boot_ns)),
    (Helper::RingbufOutput, HostFn::with_run(ring::ringbuf_output)),
    (Helper::RingbufReserve, HostFn::with_run(ring::ringbuf_reserve)),
    (Helper::RingbufSubmit, HostFn::with_run(ring::ringbuf_submit)),
    (Helper::RingbufDiscard, HostFn::with_run(ring::ringbuf_discard)),
    (Helper::RingbufQuery, HostFn::plain(ring::ringbuf_query)),
    (Helper::KtimeGetCoarseNs, HostFn::plain(system::ktime_get_coarse_ns)),
    // Emitted code calls those that check what it does itself ([`super::callback_shims`]), the interpreter none.
    (Helper::ForEachMapElem, HostFn::with_run(for_each_map_elem::<By<3>>)),
    (Helper::Loop, HostFn::with_run(bpf_loop::<By<3>>)),
    (Helper::MapLookupPercpuElem, HostFn::plain(maps::map_lookup_percpu_elem)),
    (Helper::DynptrRead, HostFn::plain(ring::dynptr_read)),
    (Helper::KtimeGetTaiNs, HostFn::plain(system::ktime_get_tai_ns)),
    (Helper::UserRingbufDrain, HostFn::with_run(user_ringbuf_drain::<By<3>>)),
];

/// The function of a helper that works on any context, if there is one.
pub(crate) fn shipped(helper: Helper) -> Option<&'static HostFn> {
    SHIPPED.binary_search_by_key(&helper, |h| h.0).ok().map(|i| &SHIPPED[i].1)
}

#[cfg(test)]
mod tests {
    use super::SHIPPED;
    use crate::call::helpers::packet::is_packet_helper;
    use bpf_uapi::Helper;
    use bpf_verifier::Helpers;

    /// A helper is its function, its prototype and its line in docs/helpers.md: all three or none.
    #[test]
    fn helpers_have_function_prototype_and_documentation() {
        let text = include_str!("../../../../../docs/helpers.md");
        let prototypes = Helpers::shipped();
        for helper in Helper::ALL.iter().copied() {
            // Emitted code and the interpreter jump; there is no function to call.
            let function = helper == Helper::TailCall
                || is_packet_helper(helper)
                || SHIPPED.iter().any(|shipped| shipped.0 == helper);
            let name = helper.name();
            assert_eq!(text.contains(&format!("`{name}`")), function, "{name} in docs/helpers.md, and its function");
            assert!(!function || prototypes.get(helper.id()).is_some(), "{name} has no prototype");
        }
    }
}
