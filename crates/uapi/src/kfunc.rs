//! The kernel functions that programs call by name (kfuncs), as far as this family implements them.
//!
//! Problem: a kfunc has no number; an object calls an undefined symbol, which BTF declares in `.ksyms`. Approach: one
//! table of names, from which the enum and the look-up are generated. Each kfunc has a prototype in the verifier and
//! a function in the runtime, found by exhaustive matches. Functions that compilers call implicitly (`memcpy`,
//! [`crate::Builtin`]) are not kfuncs.
//!
//! Source: `kernel/bpf/helpers.c`, `kernel/bpf/arena.c`, `kernel/bpf/bpf_iter.c`, `net/core/filter.c` (Linux 6.18).

macro_rules! kfuncs {
    ($($variant:ident $name:literal;)*) => {
        /// A kernel function that programs call by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        #[expect(missing_docs, reason = "the kernel's names")]
        pub enum Kfunc {
            $($variant,)*
        }

        impl Kfunc {
            /// All implemented kfuncs.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The kernel's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

impl Kfunc {
    /// The kfunc with this name. Newer kernels leave `_impl` off the names of functions to which the verifier passes
    /// further arguments: both names are known, and the further arguments are not read.
    ///
    /// ```
    /// use bpf_uapi::Kfunc;
    /// assert_eq!(Kfunc::from_name("bpf_iter_num_next"), Some(Kfunc::IterNumNext));
    /// assert_eq!(Kfunc::from_name("bpf_wq_set_callback"), Kfunc::from_name("bpf_wq_set_callback_impl"));
    /// assert_eq!(Kfunc::from_name("bpf_ct_release"), None);
    /// ```
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kfunc| {
            let known = kfunc.name();
            known == name || known.strip_suffix("_impl") == Some(name)
        })
    }

    /// The kfunc whose prototypes carry this number.
    #[must_use]
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|kfunc| kfunc.id() == id)
    }

    /// The number in its prototypes: larger than every helper's; no call instruction contains it.
    #[must_use]
    pub const fn id(self) -> u32 {
        const FIRST: u32 = 1 << 28;
        FIRST + self as u32
    }
}

kfuncs! {
    IterNumNew "bpf_iter_num_new";
    IterNumNext "bpf_iter_num_next";
    IterNumDestroy "bpf_iter_num_destroy";
    DynptrFromSkb "bpf_dynptr_from_skb";
    DynptrFromXdp "bpf_dynptr_from_xdp";
    DynptrSlice "bpf_dynptr_slice";
    DynptrSliceRdwr "bpf_dynptr_slice_rdwr";
    DynptrAdjust "bpf_dynptr_adjust";
    DynptrIsNull "bpf_dynptr_is_null";
    DynptrIsRdonly "bpf_dynptr_is_rdonly";
    DynptrSize "bpf_dynptr_size";
    DynptrClone "bpf_dynptr_clone";
    DynptrFromSkbMeta "bpf_dynptr_from_skb_meta";
    DynptrCopy "bpf_dynptr_copy";
    DynptrMemset "bpf_dynptr_memset";
    XdpPullData "bpf_xdp_pull_data";
    XdpMetadataRxTimestamp "bpf_xdp_metadata_rx_timestamp";
    XdpMetadataRxHash "bpf_xdp_metadata_rx_hash";
    XdpMetadataRxVlanTag "bpf_xdp_metadata_rx_vlan_tag";
    IterBitsNew "bpf_iter_bits_new";
    IterBitsNext "bpf_iter_bits_next";
    IterBitsDestroy "bpf_iter_bits_destroy";
    Strcmp "bpf_strcmp";
    Strcasecmp "bpf_strcasecmp";
    Strchr "bpf_strchr";
    Strchrnul "bpf_strchrnul";
    Strnchr "bpf_strnchr";
    Strrchr "bpf_strrchr";
    Strlen "bpf_strlen";
    Strnlen "bpf_strnlen";
    Strspn "bpf_strspn";
    Strcspn "bpf_strcspn";
    Strstr "bpf_strstr";
    Strnstr "bpf_strnstr";
    MapSumElemCount "bpf_map_sum_elem_count";
    LocalIrqSave "bpf_local_irq_save";
    LocalIrqRestore "bpf_local_irq_restore";
    RcuReadLock "bpf_rcu_read_lock";
    RcuReadUnlock "bpf_rcu_read_unlock";
    PreemptDisable "bpf_preempt_disable";
    PreemptEnable "bpf_preempt_enable";
    ArenaAllocPages "bpf_arena_alloc_pages";
    ArenaFreePages "bpf_arena_free_pages";
    ArenaReservePages "bpf_arena_reserve_pages";
    ObjNew "bpf_obj_new_impl";
    ObjDrop "bpf_obj_drop_impl";
    RefcountAcquire "bpf_refcount_acquire_impl";
    ListPushFront "bpf_list_push_front_impl";
    ListPushBack "bpf_list_push_back_impl";
    ListPopFront "bpf_list_pop_front";
    ListPopBack "bpf_list_pop_back";
    ListFront "bpf_list_front";
    ListBack "bpf_list_back";
    RbtreeAdd "bpf_rbtree_add_impl";
    RbtreeRemove "bpf_rbtree_remove";
    RbtreeFirst "bpf_rbtree_first";
    RbtreeRoot "bpf_rbtree_root";
    RbtreeLeft "bpf_rbtree_left";
    RbtreeRight "bpf_rbtree_right";
    Throw "bpf_throw";
    WqInit "bpf_wq_init";
    WqSetCallback "bpf_wq_set_callback_impl";
    WqStart "bpf_wq_start";
    ResSpinLock "bpf_res_spin_lock";
    ResSpinUnlock "bpf_res_spin_unlock";
    ResSpinLockIrqsave "bpf_res_spin_lock_irqsave";
    ResSpinUnlockIrqrestore "bpf_res_spin_unlock_irqrestore";
    PercpuObjNew "bpf_percpu_obj_new_impl";
    PercpuObjDrop "bpf_percpu_obj_drop_impl";
}
