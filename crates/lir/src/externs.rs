//! What a program refers to outside itself, by number: the linker turns it into addresses when the code is placed.

use bpf_isa::InsnIdx;
use bpf_jit_code::Symbol;

/// An index of either type as a number, and back.
macro_rules! as_number {
    (u32, $index:expr) => {
        $index
    };
    (InsnIdx, $index:expr) => {
        $index.0
    };
}
macro_rules! of_number {
    (u32, $number:expr) => {
        $number
    };
    (InsnIdx, $number:expr) => {
        InsnIdx($number)
    };
}

/// Makes [`Extern`], its way into symbols and back, and its names from one table: a kind more is a line more here, and
/// an arm wherever somebody matches over kinds.
macro_rules! externs {
    ($($(#[$doc:meta])* $kind:ident($index:tt) = $number:literal $name:literal,)*) => {
        /// What the program refers to outside itself, as a [`Symbol`].
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Extern {
            $($(#[$doc])* $kind($index),)*
        }

        impl Extern {
            /// As a symbol.
            pub const fn symbol(self) -> Symbol {
                match self {
                    $(Extern::$kind(index) => {
                        let number = as_number!($index, index);
                        Symbol { kind: $number, index: number }
                    })*
                }
            }

            /// What a symbol made by [`Extern::symbol`] stands for; `None` for any other.
            pub const fn from_symbol(symbol: Symbol) -> Option<Extern> {
                match symbol.kind {
                    $($number => Some(Extern::$kind(of_number!($index, symbol.index))),)*
                    _ => None,
                }
            }

            /// The kind's name, for listings.
            pub const fn kind(self) -> &'static str {
                match self {
                    $(Extern::$kind(_) => $name,)*
                }
            }

            /// One of the kind with this name.
            pub fn of_kind(name: &str, index: u32) -> Option<Extern> {
                match name {
                    $($name => Some(Extern::$kind(of_number!($index, index))),)*
                    _ => None,
                }
            }
        }
    };
}

externs! {
    /// The function behind a helper id.
    Helper(u32) = 0 "helper",
    /// A host function, by index.
    Host(u32) = 1 "host",
    /// A map, by index: the value BPF sees as the map's pointer.
    Map(u32) = 2 "map",
    /// What the two-slot load at this slot loads: a map value or a variable.
    Imm64(InsnIdx) = 3 "value",
    /// The environment of the function behind a helper id.
    HelperEnv(u32) = 4 "helper_env",
    /// The environment of a host function, by index.
    HostEnv(u32) = 5 "host_env",
    /// The first element of an array, per-CPU array or array of maps, by index.
    ArrayBase(u32) = 6 "array",
    /// The function that looks a key up in a map, by index.
    MapLookup(u32) = 7 "lookup",
    /// Where the program counts its runs: a counter for each execution slot.
    Counters(u32) = 8 "counters",
    /// Memory of the program's own, where a contained program's accesses are made that are outside of what they should
    /// be in.
    Sink(u32) = 9 "sink",
}

impl Extern {
    /// The largest index or id a symbol can carry.
    pub const MAX: u32 = u32::MAX;

    /// Which one of its kind.
    pub const fn index(self) -> u32 {
        self.symbol().index
    }
}
