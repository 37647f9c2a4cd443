//! Which helpers are shipped: their functions by id.

use crate::call::HostFn;
use crate::call::helpers::callback_shims::{By, Drain, ForEach, Loop, shim};
use crate::call::helpers::print::{snprintf, trace_printk, trace_vprintk};
use crate::call::helpers::{
    dynptr, maps, network, owned, probe, ring, socket, storage, syncookie, system, text, timers,
};
use bpf_uapi::Helper;

/// The helpers, ascending by id.
const SHIPPED: &[(Helper, HostFn)] = &[
    (Helper::MapLookupElem, HostFn::with_run(maps::map_lookup_elem)),
    (Helper::MapUpdateElem, HostFn::with_run(maps::map_update_elem)),
    (Helper::MapDeleteElem, HostFn::with_run(maps::map_delete_elem)),
    (Helper::ProbeRead, probe::function(Helper::ProbeRead)),
    (Helper::KtimeGetNs, HostFn::plain(system::ktime_get_ns)),
    (Helper::TracePrintk, HostFn::with_run(trace_printk::<false>)),
    (Helper::GetPrandomU32, HostFn::plain(system::get_prandom_u32)),
    (Helper::GetSmpProcessorId, HostFn::with_run(system::get_smp_processor_id)),
    (Helper::GetCurrentPidTgid, HostFn::plain(system::get_current_pid_tgid)),
    (Helper::GetCurrentUidGid, HostFn::plain(system::get_current_uid_gid)),
    (Helper::GetCurrentComm, HostFn::plain(system::get_current_comm)),
    (Helper::PerfEventOutput, HostFn::with_run(ring::perf_event_output)),
    (Helper::GetNumaNodeId, HostFn::plain(system::zero)),
    (Helper::ProbeReadStr, probe::function(Helper::ProbeReadStr)),
    (Helper::SkLookupTcp, HostFn::with_run(socket::sk_lookup_tcp)),
    (Helper::SkLookupUdp, HostFn::with_run(socket::sk_lookup_udp)),
    (Helper::SkRelease, HostFn::with_run(socket::sk_release)),
    (Helper::MapPushElem, HostFn::with_run(maps::map_push_elem)),
    (Helper::MapPopElem, HostFn::with_run(maps::map_pop_elem)),
    (Helper::MapPeekElem, HostFn::with_run(maps::map_peek_elem)),
    (Helper::SpinLock, HostFn::with_run(maps::spin_lock)),
    (Helper::SpinUnlock, HostFn::with_run(maps::spin_unlock)),
    (Helper::SkFullsock, HostFn::plain(socket::sk_fullsock)),
    (Helper::TcpSock, HostFn::plain(socket::tcp_sock)),
    (Helper::GetListenerSock, HostFn::plain(socket::get_listener_sock)),
    (Helper::SkcLookupTcp, HostFn::with_run(socket::skc_lookup_tcp)),
    (Helper::Strtol, HostFn::plain(text::strtol)),
    (Helper::Strtoul, HostFn::plain(text::strtoul)),
    (Helper::ProbeReadUser, probe::function(Helper::ProbeReadUser)),
    (Helper::ProbeReadKernel, probe::function(Helper::ProbeReadKernel)),
    (Helper::ProbeReadUserStr, probe::function(Helper::ProbeReadUserStr)),
    (Helper::ProbeReadKernelStr, probe::function(Helper::ProbeReadKernelStr)),
    (Helper::Jiffies64, HostFn::plain(system::jiffies64)),
    (Helper::GetNetnsCookie, HostFn::with_run(network::get_netns_cookie)),
    (Helper::KtimeGetBootNs, HostFn::plain(system::ktime_get_boot_ns)),
    (Helper::SkCgroupId, HostFn::plain(system::zero)),
    (Helper::SkAncestorCgroupId, HostFn::plain(system::zero)),
    (Helper::RingbufOutput, HostFn::with_run(ring::ringbuf_output)),
    (Helper::RingbufReserve, HostFn::with_run(ring::ringbuf_reserve)),
    (Helper::RingbufSubmit, HostFn::with_run(ring::ringbuf_submit)),
    (Helper::RingbufDiscard, HostFn::with_run(ring::ringbuf_discard)),
    (Helper::RingbufQuery, HostFn::plain(ring::ringbuf_query)),
    (Helper::PerCpuPtr, HostFn::plain(owned::per_cpu_ptr)),
    (Helper::ThisCpuPtr, HostFn::with_run(owned::this_cpu_ptr)),
    (Helper::TaskStorageGet, HostFn::with_run(storage::task_storage_get)),
    (Helper::TaskStorageDelete, HostFn::with_run(storage::task_storage_delete)),
    (Helper::GetCurrentTaskBtf, HostFn::plain(system::get_current_task)),
    (Helper::KtimeGetCoarseNs, HostFn::plain(system::ktime_get_coarse_ns)),
    // Emitted code calls the shims that do the checks which are otherwise its own ([`super::callback_shims`]); the
    // interpreter calls none of these.
    (Helper::ForEachMapElem, HostFn::with_run(shim::<ForEach, By<3>>)),
    (Helper::Snprintf, HostFn::with_run(snprintf::<false>)),
    (Helper::TimerInit, HostFn::with_run(timers::init)),
    // Bound to each program by itself ([`timers::own_set_callback`]).
    (Helper::TimerSetCallback, HostFn::with_run(timers::set_callback)),
    (Helper::TimerStart, HostFn::with_run(timers::start)),
    (Helper::TimerCancel, HostFn::with_run(timers::cancel)),
    (Helper::TraceVprintk, HostFn::with_run(trace_vprintk::<false>)),
    (Helper::Loop, HostFn::with_run(shim::<Loop, By<3>>)),
    (Helper::Strncmp, HostFn::plain(text::strncmp)),
    (Helper::KptrXchg, HostFn::with_run(owned::kptr_xchg)),
    (Helper::MapLookupPercpuElem, HostFn::plain(maps::map_lookup_percpu_elem)),
    (Helper::DynptrFromMem, HostFn::plain(dynptr::from_mem)),
    (Helper::RingbufReserveDynptr, HostFn::with_run(dynptr::reserve)),
    (Helper::RingbufSubmitDynptr, HostFn::with_run(dynptr::submit)),
    (Helper::RingbufDiscardDynptr, HostFn::with_run(dynptr::discard)),
    (Helper::DynptrRead, HostFn::plain(dynptr::dynptr_read)),
    (Helper::DynptrWrite, HostFn::with_run(dynptr::dynptr_write)),
    (Helper::DynptrData, HostFn::plain(dynptr::dynptr_data)),
    (Helper::TcpRawGenSyncookieIpv4, HostFn::plain(syncookie::gen_ipv4)),
    (Helper::TcpRawGenSyncookieIpv6, HostFn::plain(syncookie::gen_ipv6)),
    (Helper::TcpRawCheckSyncookieIpv4, HostFn::plain(syncookie::check_ipv4)),
    (Helper::TcpRawCheckSyncookieIpv6, HostFn::plain(syncookie::check_ipv6)),
    (Helper::KtimeGetTaiNs, HostFn::plain(system::ktime_get_tai_ns)),
    (Helper::UserRingbufDrain, HostFn::with_run(shim::<Drain, By<3>>)),
];

/// The function of a helper that works on any context, if there is one.
pub(crate) fn shipped(helper: Helper) -> Option<&'static HostFn> {
    SHIPPED.binary_search_by_key(&helper, |h| h.0).ok().map(|i| &SHIPPED[i].1)
}

#[cfg(test)]
mod tests {
    use super::SHIPPED;
    use crate::call::helpers::packet::is_packet_helper;
    use bpf_uapi::{Helper, Kfunc};
    use bpf_verifier::Helpers;
    use std::collections::{BTreeMap, BTreeSet};

    /// A helper is its function, its prototype and its row in docs/book/reference/helpers.md: all three or none.
    #[test]
    fn helpers_have_function_prototype_and_documentation() {
        let (documented, refused) = documented(include_str!("../../../../../docs/book/reference/helpers.md"));
        assert!(SHIPPED.is_sorted_by_key(|row| row.0), "rows ascend by id: they are searched");
        let prototypes = Helpers::shipped();
        assert!(prototypes.iter().is_sorted_by(|a, b| a.id < b.id), "one prototype for each id: they are searched");
        for helper in Helper::ALL.iter().copied() {
            // Emitted code and the interpreter jump; there is no function to call.
            let function = helper == Helper::TailCall
                || is_packet_helper(helper)
                || SHIPPED.iter().any(|shipped| shipped.0 == helper);
            let name = helper.name();
            assert_eq!(
                documented.get(&helper.id()).copied() == Some(name),
                function,
                "{name} in docs/book/reference/helpers.md"
            );
            assert_eq!(prototypes.get(helper.id()).is_some(), function, "{name}: its prototype");
            assert_eq!(
                refused.contains(&helper.id()),
                !function,
                "{name} among the refused helpers of docs/book/reference/helpers.md"
            );
        }
        let unknown = documented.iter().find(|(id, _)| !Helper::ALL.iter().any(|helper| helper.id() == **id));
        assert_eq!(unknown, None, "docs/book/reference/helpers.md");
    }

    /// Each function that Linux 6.18 lets programs on packets and sockets call by name is here, or refused in
    /// docs/book/reference/kfuncs.md with the reason. The list is what the kernel's verifier does not refuse as "not
    /// allowed", asked with one call a program for each function that its BTF marks (`bpf_kfunc`).
    #[test]
    fn functions_called_by_name_are_documented() {
        let text = include_str!("../../../../../docs/book/reference/kfuncs.md");
        let quoted: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
        let kernels: Vec<&str> = include_str!("kernel_functions.txt").lines().collect();
        assert!(kernels.is_sorted() && kernels.len() > 100);
        for name in &kernels {
            assert!(quoted.contains(name), "{name} in docs/book/reference/kfuncs.md");
        }
        let (here, refused) = text.split_once("| function | why |").unwrap();
        for kfunc in Kfunc::ALL {
            assert!(kernels.contains(&kfunc.name()), "{}: no such function of the kernel's", kfunc.name());
            let name = format!("`{}`", kfunc.name());
            assert!(here.contains(&name) && !refused.contains(&name), "{name} is here");
        }
    }

    /// Ids and names of the rows `| 1, 3 to 4 | `a`, `b`, `c` | …`; and the ids of rows that do not quote names.
    fn documented(text: &str) -> (BTreeMap<u32, &str>, BTreeSet<u32>) {
        let (mut found, mut refused) = (BTreeMap::new(), BTreeSet::new());
        for row in text.lines().filter_map(|line| line.strip_prefix("| ")) {
            let mut cells = row.split('|').map(str::trim);
            let (Some(ids), Some(names)) = (cells.next(), cells.next()) else { continue };
            let ids = ids.split(", ").filter_map(|id| {
                let (first, last) = id.split_once(" to ").unwrap_or((id, id));
                Some(first.parse().ok()?..=last.parse().ok()?)
            });
            let ids: Vec<u32> = ids.flatten().collect();
            // Other quoted names in the cell are contexts.
            let quoted = names.split('`').skip(1).step_by(2);
            let names: Vec<&str> = quoted.filter(|name| name.starts_with("bpf_")).collect();
            if names.is_empty() {
                refused.extend(ids);
                continue;
            }
            assert!(ids.is_empty() || ids.len() == names.len(), "as many names as ids: {row}");
            found.extend(ids.into_iter().zip(names));
        }
        assert!(found.len() > 30, "rows are found");
        (found, refused)
    }
}
