//! Which collectives of a graph have one colour.

use bucketeer::ir::{Graph, NodeId};
use bucketeer::passes::bucketing::{Decision, collective_bytes};
use bucketeer::passes::{Pipeline, PipelineError};

/// What is to become of a collective, or has become of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It is a merged collective, and a bucket by itself.
    Merged {
        /// Index of the bucket.
        bucket: usize,
    },
    /// It is put into a bucket.
    Joins {
        /// Index of the bucket.
        bucket: usize,
    },
    /// It stays as it is.
    Alone(String),
}

impl Fate {
    pub(super) const fn bucket(&self) -> Option<usize> {
        match self {
            Self::Merged { bucket } | Self::Joins { bucket } => Some(*bucket),
            Self::Alone(_) => None,
        }
    }
}

/// What a bucket that a pass makes is called, as in the reports of `rewrite`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Number {
    /// Within its pass, from 1, in the order of the plan.
    pub nth: usize,
    /// How many buckets the pass makes.
    pub of: usize,
}

#[derive(Clone, Debug)]
struct Bucket {
    first: NodeId,
    /// None of a merged collective, which no pass makes.
    number: Option<Number>,
    members: usize,
    /// `None` if a size is not known.
    bytes: Option<u64>,
}

/// The buckets of a graph, in the issue order of their first members: those that a pipeline would make, and the merged
/// collectives that stand there.
#[derive(Clone, Debug)]
pub struct Buckets {
    buckets: Vec<Bucket>,
    /// By arena index.
    fates: Vec<Option<Fate>>,
}

/// Of what is not a collective of the graph.
static NOT_LOOKED_AT: Fate = Fate::Alone(String::new());

impl Buckets {
    /// The buckets that a pipeline makes of a graph; the graph stays as it is.
    ///
    /// # Errors
    /// As [`Pipeline::run`].
    pub fn planned(graph: &Graph, pipeline: &Pipeline) -> Result<Self, PipelineError> {
        // Nodes keep their ids in a copy, and the passes only add to them.
        let mut merged = graph.clone();
        let reports = pipeline.run(&mut merged)?;
        let mut group_of = vec![None; graph.arena_len()];
        let mut reasons: Vec<Option<String>> = vec![None; graph.arena_len()];
        let mut groups = Vec::new();
        for plan in reports.iter().filter_map(|report| report.plan.as_ref()) {
            for (bucket, nth) in plan.buckets.iter().zip(1..) {
                for member in &bucket.members {
                    if let Some(group) = group_of.get_mut(member.collective.index()) {
                        *group = Some(groups.len());
                    }
                }
                groups.push(Number { nth, of: plan.buckets.len() });
            }
            for remark in &plan.remarks {
                if let (Decision::Alone(reason), Some(told)) = (&remark.decision, reasons.get_mut(remark.node.index()))
                {
                    *told = Some(reason.to_string());
                }
            }
        }
        Ok(Self::new(graph, &merged, &groups, &group_of, &mut reasons))
    }

    fn new(
        graph: &Graph,
        merged: &Graph,
        groups: &[Number],
        group_of: &[Option<usize>],
        reasons: &mut [Option<String>],
    ) -> Self {
        let mut still_there = vec![false; graph.arena_len()];
        merged.order().iter().filter(|id| id.index() < graph.arena_len()).for_each(|id| still_there[id.index()] = true);
        let mut made = Self { buckets: Vec::new(), fates: vec![None; graph.arena_len()] };
        let mut place = vec![usize::MAX; groups.len()];
        for &id in graph.order().iter().filter(|&&id| graph.collective(id).is_some()) {
            let bytes = collective_bytes(graph, id);
            let fate = if let Some(group) = group_of[id.index()] {
                if place[group] == usize::MAX {
                    place[group] =
                        made.add(Bucket { first: id, number: Some(groups[group]), members: 0, bytes: Some(0) });
                }
                let bucket = &mut made.buckets[place[group]];
                bucket.members += 1;
                bucket.bytes = bucket.bytes.zip(bytes).and_then(|(sum, bytes)| sum.checked_add(bytes));
                Fate::Joins { bucket: place[group] }
            } else if let Some(members) = members_of(graph, id) {
                Fate::Merged { bucket: made.add(Bucket { first: id, number: None, members, bytes }) }
            } else {
                let gone = || "a pass takes it away, for it sends nothing new".to_owned();
                let reason = reasons[id.index()].take();
                let silent = || if still_there[id.index()] { "its kind is not merged".to_owned() } else { gone() };
                Fate::Alone(reason.unwrap_or_else(silent))
            };
            made.fates[id.index()] = Some(fate);
        }
        made
    }

    fn add(&mut self, bucket: Bucket) -> usize {
        self.buckets.push(bucket);
        self.buckets.len() - 1
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// What becomes of a collective.
    #[must_use]
    pub fn of(&self, id: NodeId) -> &Fate {
        self.fates.get(id.index()).and_then(Option::as_ref).unwrap_or(&NOT_LOOKED_AT)
    }

    /// How many collectives are in a bucket, or were merged into it.
    #[must_use]
    pub fn members(&self, bucket: usize) -> usize {
        self.buckets[bucket].members
    }

    /// What a bucket is called in reports; `None` of a merged collective that stands in the graph.
    #[must_use]
    pub fn number(&self, bucket: usize) -> Option<Number> {
        self.buckets[bucket].number
    }

    /// The first collective of a bucket, in issue order.
    #[must_use]
    pub fn first(&self, bucket: usize) -> NodeId {
        self.buckets[bucket].first
    }

    /// The bytes of a bucket's collectives, each the larger of what goes in and what comes out; `None` if not known.
    #[must_use]
    pub fn bytes(&self, bucket: usize) -> Option<u64> {
        self.buckets[bucket].bytes
    }
}

/// Of a merged collective: how many it was. One that takes a list counts, whoever merged it.
fn members_of(graph: &Graph, id: NodeId) -> Option<usize> {
    let named = graph.meta_of(id).members.len();
    let listed = if graph.collective(id)?.coalesced { graph.collective_inputs(id).len() } else { 0 };
    Some(named.max(listed)).filter(|&members| members > 1)
}
