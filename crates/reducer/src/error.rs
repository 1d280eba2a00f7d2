//! What can go wrong in a step, said with rank, step and parameter.

use crate::assign::AssignError;
use bucketeer_comm::{BufferError, CommError};
use bucketeer_types::GlobalRank;
use std::fmt;
use std::sync::Arc;

/// How many parameters an error names.
const NAMED: usize = 16;

/// A parameter, by index and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its place in the reducer's list.
    pub index: usize,
    /// Its name.
    pub name: String,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.name {
            "" => write!(f, "parameter {}", self.index),
            name => write!(f, "parameter {} ({name})", self.index),
        }
    }
}

/// `parameters 2 (a.w) and 3 (a.b)`; above 16, the first of them and how many more.
fn list(params: &[Named]) -> String {
    let one = |param: &Named| format!("{} ({})", param.index, param.name);
    match params {
        [] => "no parameters".to_owned(),
        [param] => format!("parameter {}", one(param)),
        [most @ .., last] if params.len() <= NAMED => {
            format!("parameters {} and {}", most.iter().map(one).collect::<Vec<_>>().join(", "), one(last))
        }
        _ => {
            let first = params[..NAMED].iter().map(one).collect::<Vec<_>>().join(", ");
            format!("parameters {first} and {} more", params.len() - NAMED)
        }
    }
}

/// Why a reducer, a mark or a step failed.
///
/// A mark that is refused changes nothing: the step can go on. After any other failure of a step the reducer is broken on
/// all ranks, as ranks would wait for one another; [`Reducer::change_group`](crate::Reducer::change_group) makes it whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReducerError {
    /// What a reducer is made of cannot be used.
    #[error("rank {}: {reason}", rank.0)]
    Invalid {
        /// This rank.
        rank: GlobalRank,
        /// What was found, and what was expected.
        reason: String,
    },
    /// There is no assignment to buckets.
    #[error("rank {}: {error}", rank.0)]
    Assign {
        /// This rank.
        rank: GlobalRank,
        /// Why.
        error: AssignError,
    },
    /// Ranks made reducers of different things. Every rank gets both sides.
    #[error(
        "ranks disagree on {what}: rank {} has {}, rank {} has {}",
        ranks.0.0, values.0, ranks.1.0, values.1
    )]
    Disagree {
        /// On what: `the number of parameters`, `parameter 3`, `the options`.
        what: String,
        /// Two that differ, in the group's order.
        ranks: (GlobalRank, GlobalRank),
        /// What each has.
        values: Box<(String, String)>,
    },
    /// A mark cannot be taken. Nothing was changed.
    #[error("rank {}, step {step}, {param}: {reason}", rank.0)]
    Mark {
        /// This rank.
        rank: GlobalRank,
        /// From 0.
        step: u64,
        /// Which.
        param: Named,
        /// What was found, and what to do.
        reason: String,
    },
    /// Parameters were not marked in a step that is to be finished.
    #[error("rank {}, step {step}: no gradient came for {}; {way_out}", rank.0, list(params))]
    Missing {
        /// This rank.
        rank: GlobalRank,
        /// From 0.
        step: u64,
        /// Which, by index.
        params: Vec<Named>,
        /// What to do.
        way_out: &'static str,
    },
    /// A step was given up after marks.
    #[error("rank {}, step {step}: given up before it was finished{}", rank.0, after(reason))]
    GivenUp {
        /// This rank.
        rank: GlobalRank,
        /// From 0.
        step: u64,
        /// The last mark that was refused, if any.
        reason: Option<Arc<str>>,
    },
    /// A hook failed.
    #[error("rank {}, step {step}, bucket {bucket} (from {first}): hook {hook}: {reason}", rank.0)]
    Hook {
        /// This rank.
        rank: GlobalRank,
        /// From 0.
        step: u64,
        /// In the order of launches.
        bucket: usize,
        /// The bucket's first parameter.
        first: Named,
        /// As it describes itself.
        hook: String,
        /// What it says.
        reason: Arc<str>,
    },
    /// A collective failed.
    #[error("rank {}, step {step}, {what}: {error}", rank.0)]
    Comm {
        /// This rank.
        rank: GlobalRank,
        /// From 0.
        step: u64,
        /// What was sent: `bucket 2 (from parameter 5 (f.bias))`, `the used map`.
        what: String,
        /// Why.
        error: Box<CommError>,
    },
    /// Another rank failed, and says why.
    #[error("step {step}: rank {} failed: {reason}", rank.0)]
    Elsewhere {
        /// Who.
        rank: GlobalRank,
        /// Of this rank.
        step: u64,
        /// What it says.
        reason: String,
    },
    /// Ranks ran out of data, where that is an error.
    #[error("rank {}, step {step}: {} ran out of data", rank.0, ran_out(ranks))]
    RanOut {
        /// This rank.
        rank: GlobalRank,
        /// From 0.
        step: u64,
        /// Who.
        ranks: Vec<GlobalRank>,
    },
    /// An earlier step failed.
    #[error("rank {}: the reducer is broken since an earlier step: {cause}; go on with `change_group`", rank.0)]
    Broken {
        /// This rank.
        rank: GlobalRank,
        /// The first failure.
        cause: Arc<ReducerError>,
    },
    /// The driver of the device that the buckets are on refuses something.
    #[error("rank {}: {reason}", rank.0)]
    Device {
        /// This rank.
        rank: GlobalRank,
        /// What it says.
        reason: Arc<str>,
    },
    /// Memory cannot be had or reached.
    #[error("rank {}: {error}", rank.0)]
    Buffer {
        /// This rank.
        rank: GlobalRank,
        /// Why.
        error: BufferError,
    },
}

fn ran_out(ranks: &[GlobalRank]) -> String {
    let numbers: Vec<String> = ranks.iter().map(|rank| rank.0.to_string()).collect();
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, numbers.join(", "))
}

fn after(reason: &Option<Arc<str>>) -> String {
    reason.as_ref().map_or_else(String::new, |reason| format!(", after {reason}"))
}

impl ReducerError {
    /// The ranks to go on without: those that went away or did not arrive. Empty when none is known, or when a rank only
    /// made a mistake.
    #[must_use]
    pub fn culprits(&self) -> Vec<GlobalRank> {
        match self {
            Self::Comm { error, .. } => error.culprits(),
            Self::Broken { cause, .. } => cause.culprits(),
            _ => Vec::new(),
        }
    }
}
