//! Who is in a group whose members nobody lists: one rule, for whoever asks.

/// Who is in a group, as far as its size and that of the world say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Membership {
    /// Each rank in a group of its own: groups of that name have one rank.
    Alone,
    /// All ranks of the world.
    World,
    /// The first so many ranks, if there is no other group whose members are not listed: the world has no known size.
    First(u32),
    /// Nobody knows: the group is smaller than the world, or neither has a known size.
    Unknown,
}

impl Membership {
    /// Of a group without listed members, of `size` ranks, in a world of `world_size`; `None` for what is not known.
    #[must_use]
    pub const fn of_unlisted(size: Option<u32>, world_size: Option<u32>) -> Self {
        match (size, world_size) {
            (Some(1), _) => Self::Alone,
            (None, Some(_)) => Self::World,
            (Some(size), Some(world)) if size == world => Self::World,
            (Some(size), None) => Self::First(size),
            (None, None) | (Some(_), Some(_)) => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_in_a_group_that_lists_nobody_follows_from_its_size_and_the_worlds() {
        for (size, world, expected) in [
            (Some(1), None, Membership::Alone),
            (Some(1), Some(8), Membership::Alone),
            (Some(8), Some(8), Membership::World),
            (None, Some(8), Membership::World),
            (Some(4), Some(8), Membership::Unknown),
            (Some(16), Some(8), Membership::Unknown),
            (Some(4), None, Membership::First(4)),
            (None, None, Membership::Unknown),
        ] {
            assert_eq!(Membership::of_unlisted(size, world), expected, "{size:?} of {world:?}");
        }
    }
}
