//! Functions that compilers call implicitly: C library functions on memory.
//!
//! Problem: a compiler that cannot unroll a copy emits a call of `memcpy`, which the source does not declare. The
//! kernel and its loader know no such function, and refuse the object. Approach: they are called by name like other
//! functions, but only where neither the object nor the host defines one.
//!
//! Source: ISO C, 7.26.2 and 7.26.4; GCC's manual, "Language Standards Supported by GCC", of which functions it
//! assumes.

/// A function on memory that compilers call implicitly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Builtin {
    /// `void *memcpy(void *to, const void *from, size_t bytes)`; the two may overlap here.
    Memcpy,
    /// `void *memmove(void *to, const void *from, size_t bytes)`.
    Memmove,
    /// `void *memset(void *to, int byte, size_t bytes)`.
    Memset,
    /// `int memcmp(const void *a, const void *b, size_t bytes)`.
    Memcmp,
}

impl Builtin {
    /// All builtins.
    pub const ALL: [Self; 4] = [Self::Memcpy, Self::Memmove, Self::Memset, Self::Memcmp];

    /// Its name in C.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memcpy => "memcpy",
            Self::Memmove => "memmove",
            Self::Memset => "memset",
            Self::Memcmp => "memcmp",
        }
    }

    /// The function with this name.
    ///
    /// ```
    /// use bpf_uapi::Builtin;
    /// assert_eq!(Builtin::from_name("memcpy"), Some(Builtin::Memcpy));
    /// assert_eq!(Builtin::from_name("strcpy"), None);
    /// ```
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|builtin| builtin.name() == name)
    }
}
