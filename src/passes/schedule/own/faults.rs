//! What is wrong with a plan of one's own, and where.

use super::super::problem::PlanError;
use crate::passes::plan::Reason;
use std::fmt;

/// Why a plan of one's own was not put into its graph, which is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OwnPlanError {
    /// The graph or its costs cannot be planned, by whomever.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The plan does not fit the graph: all that is wrong with it.
    #[error("{}", listed(.0))]
    Faults(Vec<OwnFault>),
    /// More bytes are alive at once than may be.
    #[error("under this plan {peak_bytes} bytes are alive at `{at}`, which is above the cap of {cap_bytes}")]
    Memory {
        /// The most bytes alive at once.
        peak_bytes: u64,
        /// The node where that is.
        at: String,
        /// The most that may be.
        cap_bytes: u64,
    },
}

fn listed(faults: &[OwnFault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// A fault of a plan of one's own, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}")]
#[non_exhaustive]
pub struct OwnFault {
    /// Where it is.
    pub at: OwnPosition,
    /// What it is.
    pub what: OwnFaultKind,
}

/// A place in the file of a plan, counted from 0 as JSON is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct OwnPosition {
    /// The bucket.
    pub bucket: usize,
    /// Its field, if it is one alone.
    pub field: Option<&'static str>,
    /// Which of the field's list.
    pub index: Option<usize>,
}

impl OwnPosition {
    pub(super) const fn of(bucket: usize) -> Self {
        Self { bucket, field: None, index: None }
    }

    pub(super) const fn field(self, field: &'static str) -> Self {
        Self { field: Some(field), ..self }
    }
}

impl fmt::Display for OwnPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buckets[{}]", self.bucket)?;
        if let Some(field) = self.field {
            write!(f, ".{field}")?;
        }
        self.index.map_or(Ok(()), |index| write!(f, "[{index}]"))
    }
}

/// Some names, and how many there are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SomeNames {
    /// The first of them.
    pub names: Vec<String>,
    /// How many there are.
    pub count: usize,
}

impl SomeNames {
    /// The first few of many.
    pub(super) fn of<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let mut some = Self { names: Vec::new(), count: 0 };
        for name in names {
            if some.names.len() < 5 {
                some.names.push(name.to_owned());
            }
            some.count += 1;
        }
        some
    }
}

impl fmt::Display for SomeNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.names.join("`, `"))?;
        match self.count - self.names.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field holds")]
#[non_exhaustive]
pub enum OwnFaultKind {
    #[error("`{pattern}` {why}")]
    Pattern { pattern: String, why: &'static str },
    #[error("no member is named")]
    NoMembers,
    #[error("{pattern} matches no collective; {}", offered(.there_are))]
    NoMatch { pattern: String, there_are: SomeNames },
    #[error("{pattern} matches {found} alone, which is no collective")]
    NoCollective { pattern: String, found: SomeNames },
    #[error("`{member}` is claimed by buckets[{other}] already; a collective travels once")]
    Claimed { member: String, other: usize },
    #[error("`{member}` cannot travel with others: {because}")]
    CannotTravel { member: String, because: Box<Reason> },
    #[error(
        "`{member}` cannot travel with others: collectives of kind {kind} are moved, and never merged; `separate` moves each alone"
    )]
    NeverMerged { member: String, kind: &'static str },
    #[error("`{member}` cannot be moved: {because}")]
    CannotMove { member: String, because: Box<Reason> },
    #[error("`{one}` and `{other}` cannot travel together: they differ in {}", fields.join(", "))]
    Differ { one: String, other: String, fields: Vec<&'static str> },
    #[error("`{}` needs the result of `{}`, so they cannot travel together ({})", path[path.len() - 1], path[0], path.join(" > "))]
    NeedsAnother { path: Vec<String> },
    #[error(
        "{} need one another's results in a circle ({})",
        buckets.iter().map(|bucket| format!("buckets[{bucket}]")).collect::<Vec<_>>().join(" and "),
        paths.iter().map(|path| path.join(" > ")).collect::<Vec<_>>().join("; ")
    )]
    Circle { buckets: Vec<usize>, paths: Vec<Vec<String>> },
    #[error("found `launch_after` and `launch_before`, expected one of them")]
    TwoLaunches,
    #[error("`{pattern}` matches no node; {}", offered(.there_are))]
    NoPlace { pattern: String, there_are: SomeNames },
    #[error("`{pattern}` matches {found}; a place is one node")]
    SeveralPlaces { pattern: String, found: SomeNames },
    #[error("`{place}` is moved itself, by buckets[{by}]; name a node that stays")]
    PlaceMoves { place: String, by: usize },
    #[error("it is launched before `{needs}`, which it needs")]
    LaunchedTooEarly { needs: String },
    #[error("it is launched behind `{reader}`, which needs its result")]
    LaunchedTooLate { reader: String },
    #[error(
        "its members cannot travel together as long as the computation keeps its order: one needs `{needs}`, and `{reader}`, which needs the result of another, comes before that"
    )]
    Apart { needs: String, reader: String },
    #[error("it is waited for before it is launched")]
    WaitedTooEarly,
    #[error("it is waited for before `{needs}`, which the wait has to follow")]
    WaitedBefore { needs: String },
    #[error("it is waited for behind `{reader}`, which needs its result")]
    WaitedTooLate { reader: String },
}

fn offered(there_are: &SomeNames) -> String {
    if there_are.count == 0 { "there is none".to_owned() } else { format!("there are {there_are}") }
}
