//! What Slurm says, beside rank and world size: lists of machines.

use super::Launcher;
use super::variables::{Variables, wrong};
use crate::store::StoreError;

/// Ports that jobs get: below those that Linux gives to outgoing connections.
const FIRST_PORT: u64 = 20_000;
const PORTS: u64 = 10_000;

/// How far the ports of two steps of a job are from one another.
const STEP_PORTS: u64 = 101;

/// The machine of rank 0: the first of the step, or under `mpirun` of the job.
pub(super) fn first_host(variables: &Variables<'_>, launcher: Launcher) -> Result<String, StoreError> {
    let names: &[&str] = match launcher {
        Launcher::Slurm => &["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"],
        // The step is that of the daemon that started this process.
        _ => &["SLURM_JOB_NODELIST"],
    };
    for name in names {
        if let Some(list) = variables.text(name)? {
            let host = first_of_list(&list);
            return host
                .ok_or_else(|| wrong(name, format!("`{list}` is not a list of machines like `node[01-04,07],other`")));
        }
    }
    let reason = "is not set, nor is MASTER_ADDR; set one of them to where rank 0 is".to_owned();
    Err(wrong("SLURM_JOB_NODELIST", reason))
}

/// The first machine of a list like `node[01-04,07]-[3,4],other`: `node01-3`.
fn first_of_list(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    loop {
        let Some(at) = rest.find([',', '[', ']']) else {
            host.push_str(rest);
            break;
        };
        host.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            b',' => break,
            b'[' => {
                let (ranges, after) = rest[at + 1..].split_once(']')?;
                let first = ranges.split(['-', ',']).next()?;
                if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
                    return None;
                }
                host.push_str(first);
                rest = after;
            }
            _ => return None,
        }
    }
    let fine = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    (!host.is_empty() && host.chars().all(fine)).then_some(host)
}

/// A port that all ranks of a step compute alike, and other jobs most likely not:
/// 20,000 + (job id + 101 * step id) mod 10,000.
pub(super) fn port(variables: &Variables<'_>, launcher: Launcher) -> Result<u16, StoreError> {
    let job = variables.must("SLURM_JOB_ID", "SLURM_PROCID")?;
    let step = match launcher {
        Launcher::Slurm => variables.number("SLURM_STEP_ID")?.unwrap_or(0),
        _ => 0,
    };
    let port = FIRST_PORT + (u64::from(job) + STEP_PORTS * u64::from(step)) % PORTS;
    // Below 30,000.
    Ok(port as u16)
}

/// Number of tasks on this machine, from a list like `4(x2),3` and the machine's place in it.
pub(super) fn tasks_here(variables: &Variables<'_>) -> Result<Option<u32>, StoreError> {
    for name in ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"] {
        if let (Some(list), Some(node)) = (variables.text(name)?, variables.number("SLURM_NODEID")?) {
            let tasks = tasks_of(&list, node);
            let reason = || format!("`{list}` is not a list like `4(x2),3` that has machine {node}");
            return tasks.map(Some).ok_or_else(|| wrong(name, reason()));
        }
    }
    Ok(None)
}

fn tasks_of(list: &str, node: u32) -> Option<u32> {
    let mut before = 0_u32;
    for item in list.split(',') {
        let (tasks, times) = match item.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse::<u32>().ok()?),
            None => (item, 1),
        };
        before = before.checked_add(times)?;
        if node < before {
            return tasks.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_machine_of_a_list_is_found_in_all_of_its_forms() {
        for (list, host) in [
            ("a", Some("a")),
            ("gpu-1.example,b", Some("gpu-1.example")),
            ("node[01-04,07],other", Some("node01")),
            ("node[7]", Some("node7")),
            ("node[7,9-12]x,y", Some("node7x")),
            ("rack[2-3]n[005-6]", Some("rack2n005")),
            ("", None),
            (",a", None),
            ("node[", None),
            ("node[]", None),
            ("node[x]", None),
            ("node]1", None),
            ("no de", None),
        ] {
            assert_eq!(first_of_list(list).as_deref(), host, "{list}");
        }
    }

    #[test]
    fn tasks_are_counted_for_the_place_of_a_machine() {
        let tasks = |node| tasks_of("4(x2),3,1(x10)", node);
        assert_eq!([0, 1, 2, 3, 12, 13].map(tasks), [Some(4), Some(4), Some(3), Some(1), Some(1), None]);
        for list in ["", "x", "4(x", "4(xy)", "4(x4294967295),1(x1)"] {
            assert_eq!(tasks_of(list, u32::MAX), None, "{list}");
        }
    }
}
