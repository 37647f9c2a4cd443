//! Functions of the host, called by name.

/// Declares functions that the host has registered under these names (`Linker::func_named`). Arguments are integers, or
/// bytes as `&[u8]`, which the host gets as pointer and length.
///
/// ```
/// bpf_guest::host_functions! {
///     /// Tells the service.
///     pub fn say(text: &[u8]);
///     /// What an item costs.
///     pub fn price(item: u32) -> u64;
/// }
/// ```
#[macro_export]
macro_rules! host_functions {
    ($($(#[$doc:meta])* $vis:vis fn $name:ident($($args:tt)*) $(-> $ret:ty)?;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        $vis fn $name($($args)*) $(-> $ret)? {
            $crate::host_functions!(@call $name [$($args)*] [] $(-> $ret)?)
        }
    )*};
    // The next two rules convert one argument each: a `&[u8]` becomes a pointer and a length.
    (@call $name:ident [$arg:ident: &[u8] $(, $($rest:tt)*)?] [$($done:tt)*] $(-> $ret:ty)?) => {
        $crate::host_functions!(
            @call $name [$($($rest)*)?] [$($done)* (*const u8, $arg.as_ptr()) (u64, $arg.len() as u64)] $(-> $ret)?
        )
    };
    (@call $name:ident [$arg:ident: $ty:ty $(, $($rest:tt)*)?] [$($done:tt)*] $(-> $ret:ty)?) => {
        $crate::host_functions!(@call $name [$($($rest)*)?] [$($done)* ($ty, $arg)] $(-> $ret)?)
    };
    (@call $name:ident [] [$(($ty:ty, $value:expr))*] $(-> $ret:ty)?) => {{
        #[cfg(target_arch = "bpf")]
        {
            mod linked {
                unsafe extern "C" {
                    pub(super) fn $name($(_: $ty),*) $(-> $ret)?;
                }
            }
            // SAFETY: the host's function has this type, otherwise the verifier refuses the call.
            unsafe { linked::$name($($value),*) }
        }
        #[cfg(not(target_arch = "bpf"))]
        {
            $(let _: $ty = $value;)*
            ::core::unimplemented!("the function is the host's: programs run as BPF, loaded with bpf-runtime")
        }
    }};
}
