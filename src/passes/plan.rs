//! What a bucket pass decides: buckets and remarks, as plain values.

use super::memory::MemoryUse;
use super::options::BucketOptions;
use crate::ir::{CollectiveKind, DType, Graph, GroupId, NodeId, Order, RegionId, Variant};

/// Everything that members of one bucket agree on. In mode `concat` the dimension of a gather or scatter is not in it:
/// members are packed flat, and unpacking puts each along its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BucketKey {
    /// Kind, with reduce op or root; dimensions are zero where members are packed flat.
    pub kind: CollectiveKind,
    /// In a new tensor or in place.
    pub variant: Variant,
    /// The ranks.
    pub group: GroupId,
    /// Element type; `None` when bytes travel.
    pub dtype: Option<DType>,
    /// Region the collectives stand in.
    pub region: RegionId,
    /// Device, as a number of the plan's own; 0 if it is not stated.
    pub device: u32,
    /// User boundary, likewise.
    pub boundary: u32,
    /// Further options stated on the collective, likewise.
    pub extras: u32,
    /// What a rule of the user's own adds; 0 without one.
    pub own: u32,
}

impl BucketKey {
    /// Names of the fields in which two keys differ.
    pub(super) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let checks = [
            (self.kind != other.kind, "reduce op, root or dimension"),
            (self.variant != other.variant, "in-place form"),
            (self.group != other.group, "group"),
            (self.dtype != other.dtype, "dtype"),
            (self.region != other.region, "region"),
            (self.device != other.device, "device"),
            (self.boundary != other.boundary, "user boundary"),
            (self.extras != other.extras, "options"),
            (self.own != other.own, "the policy's own key"),
        ];
        checks.into_iter().filter(|(differs, _)| *differs).map(|(_, field)| field).collect()
    }
}

/// Collectives that travel in one call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bucket {
    /// What they agree on.
    pub key: BucketKey,
    /// At least two, in pack order.
    pub members: Vec<Member>,
}

/// A collective of a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// The collective.
    pub collective: NodeId,
    /// Its wait.
    pub wait: NodeId,
    /// The larger of what goes in and what comes out; `None` if not known.
    pub bytes: Option<u64>,
}

/// What to merge.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BucketPlan {
    /// The options it was made with.
    pub options: BucketOptions,
    /// In the order in which they were opened.
    pub buckets: Vec<Bucket>,
    /// One for each collective of the kind, in issue order.
    pub remarks: Vec<Remark>,
    /// What was done to keep the cap on memory, if there is one.
    pub memory: Option<MemoryUse>,
}

impl std::fmt::Display for BucketPlan {
    /// A line for the pass, one for each bucket, one for each collective that was left alone, with the reason, and one for the
    /// cap on memory, if there is one.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { options, remarks, .. } = self;
        write!(f, "bucket-{}{{{options}}}: {} of {} merged", options.kind.word(), self.merged(), remarks.len())?;
        for (number, names) in (1..).zip(self.remarked_names()) {
            write!(f, "\nbucket {number}: {}", names.join(", "))?;
        }
        for remark in remarks {
            if let Decision::Alone(reason) = &remark.decision {
                write!(f, "\n{}: {reason}", remark.name)?;
            }
        }
        self.memory.as_ref().map_or(Ok(()), |memory| write!(f, "\nmemory: {memory}"))
    }
}

impl BucketPlan {
    /// The plan that merges nothing.
    pub(super) fn empty(options: BucketOptions) -> Self {
        Self { options, buckets: Vec::new(), remarks: Vec::new(), memory: None }
    }

    /// Names of the members, bucket by bucket, in the order in which the graph launches them.
    pub(super) fn remarked_names(&self) -> Vec<Vec<&str>> {
        let mut names = vec![Vec::new(); self.buckets.len()];
        for remark in &self.remarks {
            if let Decision::Merged { bucket } = remark.decision {
                names[bucket].push(&*remark.name);
            }
        }
        names
    }

    /// How many collectives are members of a bucket.
    #[must_use]
    pub fn merged(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.members.len()).sum()
    }

    /// Names of the members, bucket by bucket.
    #[must_use]
    pub fn names(&self, graph: &Graph) -> Vec<Vec<String>> {
        let name = |member: &Member| graph.name_of(member.collective).to_owned();
        self.buckets.iter().map(|bucket| bucket.members.iter().map(name).collect()).collect()
    }
}

/// Why a collective was left alone.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// An option keeps it out.
    Filtered {
        /// Which.
        by: &'static str,
    },
    /// It is a merged collective already.
    AlreadyMerged,
    /// It takes a list: it travels as one already.
    Coalesced,
    /// It is split into start and done already, as HLO text has it: what runs between the two was chosen for it.
    StartAndDone,
    /// It writes a tensor given as `out`, which others may read.
    WritesOut,
    /// Its group has one rank: nothing is sent, so a bucket would only copy and move what reads it.
    OneRank,
    /// It exchanges other amounts with some ranks than with others, or amounts known only at run time.
    UnevenSplits,
    /// Nothing waits for it in this graph.
    NoWait,
    /// More than one node waits for it.
    WaitedTwice {
        /// How many.
        waits: usize,
    },
    /// Its wait is for a list, with others.
    WaitedInList {
        /// The wait.
        wait: String,
    },
    /// Something reads or views it before its wait.
    ReadBeforeWait {
        /// The reader.
        by: String,
    },
    /// The sizes or strides of what it sends or makes are changed in place, so that their types do not hold throughout.
    Restated,
    /// Its wait is in another region.
    RegionBorder,
    /// It is in a loop body, and those were not to be touched.
    InLoop,
    /// Its size is not known, so it cannot be held against the cap.
    SizeUnknown,
    /// Larger than the cap by itself.
    Oversize {
        /// Its own bytes.
        bytes: u64,
        /// The cap.
        cap_bytes: u64,
    },
    /// Larger than what is worth copying.
    LargeMember {
        /// Its own bytes.
        bytes: u64,
        /// The largest that is.
        max_member_bytes: u64,
    },
    /// Every bucket it might have joined was full.
    CapReached {
        /// A collective it did not fit with.
        other: String,
    },
    /// It depends on the bucket it might have joined, or the bucket on it.
    Dependent {
        /// A collective of that bucket.
        other: String,
        /// The nodes from one to the other; `...` where the path is long or leads through another bucket.
        path: Vec<String>,
        /// The strongest reason for order on the path, beside data.
        because: Order,
        /// Targets on the path of which nothing is known, so that they were taken to do whatever they can.
        unknown: Vec<String>,
    },
    /// No neighbour in wait order has its key (policy `adjacent`).
    NotAdjacent,
    /// The graph has merged collectives of the kind already, and the options look at a graph once: policy `adjacent`,
    /// or a list of caps.
    LookedAt,
    /// The nearest collective of its kind differs in these parts of the key.
    KeyDiffers {
        /// The nearest one.
        from: String,
        /// The parts.
        fields: Vec<&'static str>,
    },
    /// Another rank that launches it cannot merge it; of graphs that are rewritten together.
    AtAnotherRank {
        /// The rank, counted from 0.
        rank: usize,
        /// Why that rank cannot, if its graph says.
        because: Box<Reason>,
    },
    /// With its bucket, or the part of it that it could have joined, more would be alive at once than may be.
    MemoryCap {
        /// A node at which that would be so.
        at: String,
        /// How many bytes would be alive there.
        alive_bytes: u64,
        /// How many may be: the cap on memory, or what the graph needed before if that is more.
        limit_bytes: u64,
    },
    /// The user's own policy left it alone.
    NotChosen,
    /// It is the only one of its kind.
    NoPartner,
}

impl Reason {
    /// One word or two for tables.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Filtered { .. } => "filtered",
            Self::AlreadyMerged => "already merged",
            Self::Coalesced => "coalesced",
            Self::StartAndDone => "start and done",
            Self::WritesOut => "writes out",
            Self::OneRank => "one rank",
            Self::UnevenSplits => "uneven splits",
            Self::NoWait => "no wait in sight",
            Self::WaitedTwice { .. } => "waited twice",
            Self::WaitedInList { .. } => "waited in a list",
            Self::ReadBeforeWait { .. } => "read before wait",
            Self::Restated => "restated",
            Self::RegionBorder => "region border",
            Self::InLoop => "in loop",
            Self::SizeUnknown => "size unknown",
            Self::Oversize { .. } => "oversize",
            Self::LargeMember { .. } => "large",
            Self::CapReached { .. } => "cap reached",
            Self::Dependent { because, .. } => match because {
                Order::Data => "dependent",
                Order::Memory => "written between",
                Order::Fence => "fence",
                Order::Control => "control edge",
                Order::Region => "region border",
                Order::Schedule => "schedule",
            },
            Self::NotAdjacent => "not adjacent",
            Self::LookedAt => "looked at before",
            Self::KeyDiffers { .. } => "key differs",
            Self::AtAnotherRank { .. } => "at another rank",
            Self::MemoryCap { .. } => "memory cap",
            Self::NotChosen => "not chosen",
            Self::NoPartner => "no partner",
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Filtered { by } => write!(f, "left out by {by}"),
            Self::AlreadyMerged => f.write_str("is a bucket already; rewrite the original graph for other caps"),
            Self::Coalesced => f.write_str("takes a list, so it travels in one launch already"),
            Self::StartAndDone => f.write_str("is split into start and done; merge before XLA splits collectives"),
            Self::WritesOut => f.write_str("writes into a tensor given as `out`, which others may read"),
            Self::OneRank => f.write_str("its group has one rank, so it sends nothing; `fold-trivial` takes it away"),
            Self::UnevenSplits => f.write_str("split sizes are uneven or known only at run time"),
            Self::NoWait => f.write_str("no wait in sight: its result leaves the graph before it is valid"),
            Self::WaitedTwice { waits } => write!(f, "{waits} nodes wait for it; `dedupe-waits` makes them one"),
            Self::WaitedInList { wait } => write!(f, "`{wait}` waits for it in a list, with others"),
            Self::ReadBeforeWait { by } => write!(f, "`{by}` takes it before its wait"),
            Self::Restated => f.write_str("the sizes or strides of what it sends or makes are changed in place"),
            Self::RegionBorder => f.write_str("its wait is in another region"),
            Self::InLoop => f.write_str("is in a loop body, and `in_loops` is off"),
            Self::SizeUnknown => f.write_str("size unknown; give its symbols likely values, or lift the cap"),
            Self::Oversize { bytes, cap_bytes } => write!(f, "{bytes} bytes are more than the cap of {cap_bytes}"),
            Self::LargeMember { bytes, max_member_bytes } => {
                write!(f, "{bytes} bytes are more than the {max_member_bytes} that are worth copying")
            }
            Self::CapReached { other } => write!(f, "cap reached: does not fit with `{other}`"),
            Self::Dependent { other, path, unknown, .. } => {
                write!(f, "{}: cannot travel with `{other}`", self.label())?;
                if !path.is_empty() {
                    write!(f, " ({})", path.join(" > "))?;
                }
                match &unknown[..] {
                    [] => Ok(()),
                    [one] => write!(f, "; `{one}` is not known; declare it"),
                    several => write!(f, "; `{}` are not known; declare them", several.join("`, `")),
                }
            }
            Self::NotAdjacent => f.write_str("no neighbour in wait order has its key"),
            Self::LookedAt => {
                f.write_str("already bucketed; this policy, a list of caps or a cap on memory buckets a graph once")
            }
            Self::KeyDiffers { from, fields } => {
                write!(f, "key differs from that of `{from}`, the nearest: {}", fields.join(", "))
            }
            Self::AtAnotherRank { rank, because } => write!(f, "cannot be merged on rank {rank}: {because}"),
            Self::MemoryCap { at, alive_bytes, limit_bytes } => {
                write!(
                    f,
                    "declined: {alive_bytes} bytes would be alive at once at `{at}`; at most {limit_bytes} may be"
                )
            }
            Self::NotChosen => f.write_str("the policy did not choose it"),
            Self::NoPartner => f.write_str("the only one of its kind"),
        }
    }
}

/// What was decided for a collective.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// It joins a bucket.
    Merged {
        /// Index into [`BucketPlan::buckets`](BucketPlan::buckets).
        bucket: usize,
    },
    /// It stays as it is.
    Alone(Reason),
}

/// One collective of the planned kind, and what was decided.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Remark {
    /// The collective.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Name of its group.
    pub group: String,
    /// The larger of what goes in and what comes out; `None` if not known.
    pub bytes: Option<u64>,
    /// What was decided.
    pub decision: Decision,
}
