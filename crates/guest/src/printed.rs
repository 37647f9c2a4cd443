//! Values of `printk!`.

use core::ffi::CStr;

/// A value of [`printk!`](crate::printk): an integer, a `bool`, or a text.
pub trait Printed: sealed::Sealed {
    /// The value as an argument.
    #[doc(hidden)]
    fn value(self) -> Value;
}

/// A value for a format.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// A number; signed ones keep their sign, as a format of 64 bits reads them.
    Number(u64),
    /// A text for `%s`.
    Text(&'static CStr),
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! printed {
    ($($number:ty)*) => {
        $(
            impl sealed::Sealed for $number {}
            impl Printed for $number {
                #[inline(always)]
                fn value(self) -> Value {
                    Value::Number(self as u64)
                }
            }
        )*
    };
}

printed!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize bool);

impl sealed::Sealed for &'static CStr {}
impl Printed for &'static CStr {
    #[inline(always)]
    fn value(self) -> Value {
        Value::Text(self)
    }
}
