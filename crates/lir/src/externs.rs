//! The external symbols of a program, by number: the linker resolves them to addresses when the code is placed.

use bpf_isa::InsnIdx;
use bpf_jit_code::Symbol;

/// Converts an index of either type to a number, and back.
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

/// Generates [`Extern`], its conversions to and from symbols, and its names from one table. A new kind is one line
/// here, and an arm in every match over kinds.
macro_rules! externs {
    ($($(#[$doc:meta])* $kind:ident($index:tt) = $number:literal $name:literal,)*) => {
        /// An external object that the program refers to, which converts to a [`Symbol`].
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Extern {
            $($(#[$doc])* $kind($index),)*
        }

        impl Extern {
            /// Converts to a symbol.
            pub const fn symbol(self) -> Symbol {
                match self {
                    $(Extern::$kind(index) => {
                        let number = as_number!($index, index);
                        Symbol { kind: $number, index: number }
                    })*
                }
            }

            /// The external object of a symbol made by [`Extern::symbol`]; `None` for other symbols.
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

            /// The external object with this kind's name and this index.
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
    /// A map, by index: the value that BPF code sees as the map's pointer.
    Map(u32) = 2 "map",
    /// The value of the two-slot load at this slot: a map value or a variable.
    Imm64(InsnIdx) = 3 "value",
    /// The environment of the function behind a helper id.
    HelperEnv(u32) = 4 "helper_env",
    /// The environment of a host function, by index.
    HostEnv(u32) = 5 "host_env",
    /// The first element of an array, per-CPU array or array of maps, by index.
    ArrayBase(u32) = 6 "array",
    /// The function that looks a key up in a map, by index.
    MapLookup(u32) = 7 "lookup",
    /// The counters of the program's runs, one for each execution slot.
    Counters(u32) = 8 "counters",
    /// Memory of the program to which a contained program's out-of-bounds accesses are redirected.
    Sink(u32) = 9 "sink",
    /// The function that code calls when the budget is spent: with 1 in r1 where the run may yield, else 0.
    Spent(u32) = 10 "spent",
}

impl Extern {
    /// The largest index or id a symbol can carry.
    pub const MAX: u32 = u32::MAX;

    /// The index within the kind.
    pub const fn index(self) -> u32 {
        self.symbol().index
    }
}
