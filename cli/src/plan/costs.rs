//! What things cost: as a file says, or by the machine and the shapes.

use crate::advice::Answered as _;
use crate::fault::InputFault;
use crate::input::Files;
use crate::machine::{profile, read_text};
use anyhow::Result;
use bucketeer::ir::Graph;
use bucketeer::passes::schedule::costs::Map;
use bucketeer::passes::schedule::profile_json::times_from_json;
use bucketeer::passes::schedule::{CostError, Costs};
use std::path::PathBuf;

/// Where costs come from.
#[derive(Debug, clap::Args)]
pub struct CostsArgs {
    /// The time of each node, and of messages by group and kind, as JSON; docs/planning.md says how it is written
    #[arg(long, value_name = "FILE", required_unless_present = "profile")]
    costs: Option<PathBuf>,
    /// The machine, in place of costs: one of those that are known (docs/costs.md), or a file. The time of each call then
    /// follows from its shapes
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "costs")]
    profile: Option<String>,
    /// Measured times of nodes, as JSON, in place of those that the shapes give
    #[arg(long, value_name = "FILE", requires = "profile")]
    times: Option<PathBuf>,
}

impl CostsArgs {
    /// What the graph costs: as a file says, or on a machine.
    pub fn of(&self, graph: &Graph, label: &str, files: &Files) -> Result<Costs> {
        if let Some(path) = &self.costs {
            let (file, text) = read_text(path, files)?;
            return match Costs::from_json(&text) {
                Ok((costs, _)) => Ok(costs),
                Err(error) => Err(InputFault::of_file(&file, error.to_string()).into()),
            };
        }
        let word = self.profile.as_deref().unwrap_or_default();
        let profile = profile("--profile", word, files)?;
        let (file, measured) = match &self.times {
            None => (label.to_owned(), Map::default()),
            Some(path) => {
                let (file, text) = read_text(path, files)?;
                let measured = times_from_json(&text).map_err(|error| InputFault::of_file(&file, error.to_string()))?;
                (file, measured)
            }
        };
        let costs = profile.costs_with(graph, &measured);
        costs.map_err(|error| {
            let at_fault = if matches!(error, CostError::NoNode { .. }) { &file } else { label };
            InputFault::of_file(at_fault, error.advised()).into()
        })
    }
}
