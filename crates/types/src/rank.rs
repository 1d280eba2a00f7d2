//! Numbers of ranks.

/// A rank's number among all ranks of the job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GlobalRank(pub u32);

/// A rank's number inside one group, from 0 to the group's size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupRank(pub u32);
