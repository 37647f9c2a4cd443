//! Functions of the host, called by name.

/// Declares functions that the host has registered under these names (`Linker::func_named`). Arguments are integers, or
/// bytes as `&[u8]` or `&mut [u8]`, which the host gets as pointer and length.
///
/// ```
/// bpf_guest::host_functions! {
///     /// Tells the service.
///     pub fn say(text: &[u8]);
///     /// What an item costs.
///     pub fn price(item: u32) -> u64;
/// }
/// # say::mock(|_| {});
/// ```
///
/// Under `cargo test` each function has a mock, which is set by a function in a module of its name:
/// `price::mock(|item| u64::from(item) * 3)`. See [`mock`](crate::mock).
#[macro_export]
macro_rules! host_functions {
    ($($(#[$doc:meta])* $vis:vis fn $name:ident($($args:tt)*) $(-> $ret:ty)?;)*) => {$(
        $(#[$doc])*
        #[cfg(target_arch = "bpf")]
        #[inline(always)]
        $vis fn $name($($args)*) $(-> $ret)? {
            $crate::host_functions!(@call $name [$($args)*] [] $(-> $ret)?)
        }
        $crate::host_functions!(@mock [$(#[$doc])*] [$vis] $name [$($args)*] $(-> $ret)?);
    )*};
    (@mock [$(#[$doc:meta])*] [$vis:vis] $name:ident [$($arg:ident: $ty:ty),* $(,)?] $(-> $ret:ty)?) => {
        $(#[$doc])*
        #[cfg(not(target_arch = "bpf"))]
        #[track_caller]
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            let mock = $crate::mock::registered::<$name::Mock>(::core::stringify!($name));
            let mut mock = mock.try_borrow_mut().expect("the mock of a host function that calls the function");
            (*mock)($($arg),*)
        }
        /// The mock of the function, for `cargo test`.
        #[cfg(not(target_arch = "bpf"))]
        #[allow(unused_imports, dead_code, reason = "types of the arguments may come from there; tests set mocks")]
        $vis mod $name {
            use super::*;
            #[doc(hidden)]
            pub type Mock = $crate::mock::Box<dyn ::core::ops::FnMut($($ty),*) $(-> $ret)?>;
            /// Sets what the function does in this thread.
            pub fn mock(function: impl ::core::ops::FnMut($($ty),*) $(-> $ret)? + 'static) {
                $crate::mock::register::<Mock>(::core::stringify!($name), $crate::mock::Box::new(function));
            }
        }
    };
    // The next three rules convert one argument each: a slice becomes a pointer and a length.
    (@call $name:ident [$arg:ident: &[u8] $(, $($rest:tt)*)?] [$($done:tt)*] $(-> $ret:ty)?) => {
        $crate::host_functions!(
            @call $name [$($($rest)*)?] [$($done)* (*const u8, $arg.as_ptr()) (u64, $arg.len() as u64)] $(-> $ret)?
        )
    };
    (@call $name:ident [$arg:ident: &mut [u8] $(, $($rest:tt)*)?] [$($done:tt)*] $(-> $ret:ty)?) => {
        $crate::host_functions!(
            @call $name [$($($rest)*)?] [$($done)* (*mut u8, $arg.as_mut_ptr()) (u64, $arg.len() as u64)] $(-> $ret)?
        )
    };
    (@call $name:ident [$arg:ident: $ty:ty $(, $($rest:tt)*)?] [$($done:tt)*] $(-> $ret:ty)?) => {
        $crate::host_functions!(@call $name [$($($rest)*)?] [$($done)* ($ty, $arg)] $(-> $ret)?)
    };
    (@call $name:ident [] [$(($ty:ty, $value:expr))*] $(-> $ret:ty)?) => {{
        mod linked {
            #[allow(unused_imports, reason = "types of the arguments may come from there")]
            use super::*;
            unsafe extern "C" {
                pub(super) fn $name($(_: $ty),*) $(-> $ret)?;
            }
        }
        // SAFETY: the host's function has this type, otherwise the verifier refuses the call.
        unsafe { linked::$name($($value),*) }
    }};
}
