//! References to the things a graph owns: `u32` newtypes that index its arenas.

use std::fmt;

macro_rules! entity {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// The entity at `index` of its arena.
            ///
            /// # Panics
            /// When `index` does not fit in 32 bits; arenas refuse to grow that far.
            #[must_use]
            pub fn from_index(index: usize) -> Self {
                Self(u32::try_from(index).expect("an arena holds at most u32::MAX entities"))
            }

            /// The place in the arena.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

entity! {
    /// A node of a [`Graph`](super::Graph) and the one value it makes.
    NodeId, "n"
}
entity! {
    /// An interned string: a value's name or an operator's target.
    Name, "name"
}
entity! {
    /// An interned [`Type`](super::Type).
    TypeId, "type"
}
entity! {
    /// An interned argument list, [`Args`](super::Args).
    ArgsId, "args"
}
entity! {
    /// A [`ProcessGroup`](super::ProcessGroup) of the graph.
    GroupId, "group"
}
entity! {
    /// A [`Region`](super::Region) of the graph; [`RegionId::ROOT`] is its top level.
    RegionId, "region"
}
entity! {
    /// What is known of a node beside its meaning, [`Meta`](super::Meta); [`MetaId::NONE`] is nothing.
    MetaId, "meta"
}

impl RegionId {
    /// The top level of every graph.
    pub const ROOT: Self = Self(0);
}

impl MetaId {
    /// No metadata.
    pub const NONE: Self = Self(0);
}

impl TypeId {
    /// The type of a value about which nothing is known.
    pub const UNKNOWN: Self = Self(0);
}

impl ArgsId {
    /// No arguments.
    pub const EMPTY: Self = Self(0);
}
