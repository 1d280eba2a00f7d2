//! What launchers say in variables.

use super::{LAUNCHER_VARIABLE, Launcher, PORT_VARIABLE, Rendezvous, TORCHRUN_PORT_OFFSET, slurm};
use crate::store::StoreError;
use bucketeer_types::GlobalRank;
use std::ffi::OsString;

const MASTER_ADDR: &str = "MASTER_ADDR";
const MASTER_PORT: &str = "MASTER_PORT";

/// Variables by name.
pub(super) struct Variables<'a>(&'a dyn Fn(&str) -> Option<OsString>);

impl<'a> Variables<'a> {
    pub fn new(lookup: &'a dyn Fn(&str) -> Option<OsString>) -> Self {
        Self(lookup)
    }

    pub fn has(&self, name: &str) -> bool {
        (self.0)(name).is_some()
    }

    pub fn text(&self, name: &str) -> Result<Option<String>, StoreError> {
        let Some(value) = (self.0)(name) else { return Ok(None) };
        let text = value.into_string().map_err(|_| wrong(name, "is no UTF-8".to_owned()))?;
        if text.is_empty() {
            return Err(wrong(name, "is empty; set it, or take it away".to_owned()));
        }
        Ok(Some(text))
    }

    pub fn number(&self, name: &str) -> Result<Option<u32>, StoreError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let number =
            text.parse().map_err(|_| wrong(name, format!("`{text}` is not a number from 0 to {}", u32::MAX)))?;
        Ok(Some(number))
    }

    /// A number that must be there because another variable is.
    pub fn must(&self, name: &str, because: &str) -> Result<u32, StoreError> {
        self.number(name)?.ok_or_else(|| missing(name, because))
    }

    fn port(&self, name: &str) -> Result<Option<u16>, StoreError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match text.parse() {
            Ok(port) if port > 0 => Ok(Some(port)),
            _ => Err(wrong(name, format!("`{text}` is not a port, which is a number from 1 to 65535"))),
        }
    }
}

pub(super) fn wrong(name: &str, reason: String) -> StoreError {
    StoreError::Environment { variable: name.to_owned(), reason }
}

fn missing(name: &str, because: &str) -> StoreError {
    wrong(name, format!("is not set, but {because} is; set both or none"))
}

/// The names that a launcher uses.
struct Names {
    launcher: Launcher,
    rank: &'static str,
    world_size: &'static str,
    local_rank: &'static str,
    local_world_size: &'static str,
}

/// In the order in which they are looked for: `mpirun` in a Slurm job leaves Slurm's variables of its own process.
const LAUNCHERS: [Names; 4] = [
    Names {
        launcher: Launcher::Torchrun,
        rank: "RANK",
        world_size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_world_size: "LOCAL_WORLD_SIZE",
    },
    Names {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_world_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
    },
    Names {
        launcher: Launcher::Pmi,
        rank: "PMI_RANK",
        world_size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_world_size: "MPI_LOCALNRANKS",
    },
    Names {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        world_size: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        // Slurm has lists for all machines instead.
        local_world_size: "",
    },
];

pub(super) fn read(variables: &Variables<'_>) -> Result<Option<Rendezvous>, StoreError> {
    // Slurm says how many tasks a job has in places where there is no task, too.
    let says = |names: &&Names| {
        let slurm = names.launcher == Launcher::Slurm;
        variables.has(names.rank) || (!slurm && variables.has(names.world_size))
    };
    let Some(names) = LAUNCHERS.iter().find(says) else { return Ok(None) };
    let rank = variables.must(names.rank, names.world_size)?;
    let world_size = variables.must(names.world_size, names.rank)?;
    let local_rank = variables.number(names.local_rank)?;
    let local_world_size = match names.launcher {
        Launcher::Slurm => slurm::tasks_here(variables)?,
        _ => variables.number(names.local_world_size)?,
    };
    if rank >= world_size {
        let reason = format!("{rank} is out of range: {} is {world_size}, ranks start at 0", names.world_size);
        return Err(wrong(names.rank, reason));
    }
    if local_rank.is_some_and(|local| local >= local_world_size.unwrap_or(world_size)) {
        let of = local_world_size.unwrap_or(world_size);
        let reason =
            format!("{} is out of range: {of} ranks run on this machine, ranks start at 0", local_rank.unwrap_or(0));
        return Err(wrong(names.local_rank, reason));
    }
    if let Some(local) = local_world_size.filter(|&local| local > world_size) {
        let reason = format!("{local} ranks on this machine are more than {world_size} in the world");
        return Err(wrong(names.local_world_size, reason));
    }
    let launcher = match names.launcher {
        Launcher::Torchrun if variables.has(LAUNCHER_VARIABLE) => Launcher::Bucketeer,
        launcher => launcher,
    };
    let (host, port) = address(variables, launcher, names, world_size)?;
    Ok(Some(Rendezvous { launcher, rank: GlobalRank(rank), world_size, local_rank, local_world_size, host, port }))
}

/// Where the store is: as said by hand, or as the launcher says it.
fn address(
    variables: &Variables<'_>,
    launcher: Launcher,
    names: &Names,
    world_size: u32,
) -> Result<(String, u16), StoreError> {
    let in_job = variables.has("SLURM_JOB_ID");
    let alone = world_size == 1;
    let host = match variables.text(MASTER_ADDR)? {
        Some(host) => host,
        None if launcher == Launcher::Slurm || in_job => slurm::first_host(variables, launcher)?,
        None if alone => "127.0.0.1".to_owned(),
        None => return Err(no_address(MASTER_ADDR, names)),
    };
    let port = match (variables.port(PORT_VARIABLE)?, variables.port(MASTER_PORT)?) {
        (Some(port), _) => port,
        (None, Some(port)) if launcher == Launcher::Torchrun => beside_torchrun(variables, port)?,
        (None, Some(port)) => port,
        (None, None) if launcher == Launcher::Slurm || in_job => slurm::port(variables, launcher)?,
        // Any free one.
        (None, None) if alone => 0,
        (None, None) => return Err(no_address(MASTER_PORT, names)),
    };
    Ok((host, port))
}

fn no_address(name: &str, names: &Names) -> StoreError {
    let reason =
        format!("is not set, but {} is; set it to where rank 0 is to listen, the same on all ranks", names.rank);
    wrong(name, reason)
}

/// torchrun has a store of its own on `MASTER_PORT`, unless it is told to leave the port to rank 0.
fn beside_torchrun(variables: &Variables<'_>, port: u16) -> Result<u16, StoreError> {
    if variables.text("TORCHELASTIC_USE_AGENT_STORE")?.as_deref() != Some("True") {
        return Ok(port);
    }
    Ok(port.checked_add(TORCHRUN_PORT_OFFSET).unwrap_or_else(|| port - TORCHRUN_PORT_OFFSET))
}
