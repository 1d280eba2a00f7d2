//! A plan of the user's own, from a file.

use crate::fault::InputFault;
use crate::input::Files;
use crate::machine::read_text;
use crate::units::human;
use anyhow::Result;
use bucketeer::ir::Graph;
use bucketeer::passes::schedule::{Costs, OwnPlan, OwnPlanError, Planned, plan_own};
use std::path::Path;

/// Faults of one file that are shown.
const MOST_FAULTS: usize = 20;

/// Puts the plan of a file into a graph, which `label` names.
pub fn apply(
    path: &Path,
    files: &Files,
    graph: &mut Graph,
    label: &str,
    costs: &Costs,
    cap_bytes: Option<u64>,
) -> Result<Planned> {
    let (file, text) = read_text(path, files)?;
    let own = OwnPlan::from_json(&text).map_err(|error| InputFault::of_file(&file, error.to_string()))?;
    plan_own(graph, costs, &own, cap_bytes).map_err(|error| {
        match error {
        OwnPlanError::Faults(faults) => {
            let shown = faults.iter().take(MOST_FAULTS).map(|fault| format!("\n  {fault}")).collect::<String>();
            let rest = match faults.len().saturating_sub(MOST_FAULTS) {
                0 => String::new(),
                more => format!("\n  ... and {more} more"),
            };
            let count = crate::units::count(faults.len(), "fault");
            InputFault::of_file(&file, format!("the plan does not fit graph `{}`, {count}:{shown}{rest}", graph.name))
        }
        OwnPlanError::Memory { peak_bytes, at, cap_bytes } => InputFault::of_file(
            &file,
            format!(
                "under this plan {} are alive at `{at}`, above the cap of {}; --memory none, or a size, allows more",
                human(peak_bytes),
                human(cap_bytes)
            ),
        ),
        other => InputFault::of_file(label, other.to_string()),
    }.into()
    })
}
