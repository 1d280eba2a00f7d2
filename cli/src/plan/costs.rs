//! What things cost: as a file says, or by the machine and the shapes.

use crate::fault::InputFault;
use crate::input;
use anyhow::{Context, Result, bail};
use bucketeer::ir::Graph;
use bucketeer::passes::schedule::profile_json::times_from_json;
use bucketeer::passes::schedule::times::override_times;
use bucketeer::passes::schedule::{Costs, Profile};
use std::path::{Path, PathBuf};

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
    pub fn of(&self, graph: &Graph, label: &str) -> Result<Costs> {
        if let Some(path) = &self.costs {
            let (file, text) = read_text(path)?;
            return match Costs::from_json(&text) {
                Ok((costs, _)) => Ok(costs),
                Err(error) => Err(InputFault::of_file(&file, error.to_string()).into()),
            };
        }
        let word = self.profile.as_deref().unwrap_or_default();
        let profile = match Profile::named(word) {
            Some(profile) => profile,
            None if Path::new(word).exists() => {
                let (file, text) = read_text(Path::new(word))?;
                Profile::from_json(&text).map_err(|error| InputFault::of_file(&file, error.to_string()))?
            }
            None => {
                let known: Vec<&str> = Profile::names().collect();
                bail!(
                    "--profile {word}: found neither a file nor a machine of that name; expected a file, or one of {}",
                    known.join(", ")
                )
            }
        };
        let mut costs = profile.costs(graph).map_err(|error| InputFault::of_file(label, error.to_string()))?;
        if let Some(path) = &self.times {
            let (file, text) = read_text(path)?;
            let measured = times_from_json(&text).map_err(|error| InputFault::of_file(&file, error.to_string()))?;
            override_times(&mut costs, graph, &measured)
                .map_err(|error| InputFault::of_file(&file, error.to_string()))?;
        }
        Ok(costs)
    }
}

fn read_text(path: &Path) -> Result<(String, String)> {
    let label = input::label(path);
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {label}"))?;
    let text =
        String::from_utf8(bytes).map_err(|_| InputFault::of_file(&label, "the file is not UTF-8 text".to_owned()))?;
    Ok((label, text))
}
