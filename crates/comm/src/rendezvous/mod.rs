//! Who this process is among the ranks of a world, as its launcher says it, and where the ranks meet.
//!
//! Launchers say so in variables: `torchrun` and [`bucketeer launch`](LAUNCHER_VARIABLE), Open MPI's and MPICH's
//! `mpirun`, and Slurm's `srun`. What is read, in which order, is in `docs/launch.md`.

mod slurm;
mod variables;

use super::store::{JoinOptions, Secret, ServerOptions, StoreError, StoreServer, TcpStore};
use bucketeer_types::GlobalRank;
use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;
use variables::Variables;

/// The variable that sets the store's port, whatever the launcher says.
pub const PORT_VARIABLE: &str = "BUCKETEER_STORE_PORT";

/// The variable that says that the launcher holds the store, so that no rank opens one; its value is the launcher's
/// process id. `bucketeer launch` sets it.
pub const LAUNCHER_VARIABLE: &str = "BUCKETEER_LAUNCHER";

/// How far from `MASTER_PORT` the store's port is, where torchrun has a store of its own on `MASTER_PORT`.
pub const TORCHRUN_PORT_OFFSET: u16 = 1000;

/// Whose variables say who this process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Launcher {
    /// `RANK` and `WORLD_SIZE`, with a launcher of ours that holds the store.
    Bucketeer,
    /// `RANK` and `WORLD_SIZE`: torchrun, or by hand.
    Torchrun,
    /// `OMPI_COMM_WORLD_RANK` and `OMPI_COMM_WORLD_SIZE`.
    OpenMpi,
    /// `PMI_RANK` and `PMI_SIZE`.
    Pmi,
    /// `SLURM_PROCID` and `SLURM_NTASKS`.
    Slurm,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bucketeer => "bucketeer launch",
            Self::Torchrun => "RANK and WORLD_SIZE, as torchrun sets them",
            Self::OpenMpi => "Open MPI",
            Self::Pmi => "PMI",
            Self::Slurm => "Slurm",
        })
    }
}

/// Who this process is, and where the ranks meet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rendezvous {
    /// Who says so.
    pub launcher: Launcher,
    /// This rank.
    pub rank: GlobalRank,
    /// Number of ranks.
    pub world_size: u32,
    /// Which of the ranks on this machine this is, from 0; `None` where the launcher does not say.
    pub local_rank: Option<u32>,
    /// Number of ranks on this machine; `None` where the launcher does not say.
    pub local_world_size: Option<u32>,
    /// Name or address of the machine where the store is.
    pub host: String,
    /// Port of the store.
    pub port: u16,
}

impl Rendezvous {
    /// What the environment says; `None` when it says nothing, which is a world of one.
    ///
    /// # Errors
    /// [`StoreError::Environment`], with the variable: one is missing that belongs to others, is not a number, or
    /// contradicts another.
    pub fn from_env() -> Result<Option<Self>, StoreError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// As [`from_env`](Self::from_env), for these variables.
    ///
    /// # Errors
    /// As for [`from_env`](Self::from_env).
    pub fn from_variables(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, StoreError> {
        variables::read(&Variables::new(&lookup))
    }

    /// Where the store is.
    #[must_use]
    pub fn address(&self) -> String {
        match self.host.parse::<IpAddr>() {
            Ok(IpAddr::V6(_)) => format!("[{}]:{}", self.host, self.port),
            _ => format!("{}:{}", self.host, self.port),
        }
    }

    /// Joins the world, and waits until all ranks are there. Rank 0 opens the store, unless the launcher holds it. A
    /// secret is taken from the environment, if it has one.
    ///
    /// # Errors
    /// [`StoreError::Open`] when rank 0 cannot open the store, and all of [`TcpStore::join`].
    pub fn join(&self, timeout: Duration) -> Result<TcpStore, StoreError> {
        let mut options = JoinOptions {
            address: self.address(),
            rank: self.rank,
            world_size: self.world_size,
            secret: Secret::from_env()?,
            timeout,
        };
        if self.rank.0 != 0 || self.launcher == Launcher::Bucketeer {
            return TcpStore::join(&options);
        }
        let server = self.open(options.secret.clone())?;
        options.address = server.address().to_string();
        TcpStore::join_own(server, &options)
    }

    /// Opens the store at the first address of the host that this machine can listen on.
    fn open(&self, secret: Option<Secret>) -> Result<StoreServer, StoreError> {
        let fail = |reason: String| StoreError::Open { address: self.address(), reason };
        let addresses = self.address().to_socket_addrs().map_err(|error| fail(error.to_string()))?;
        let mut failure = fail("the name stands for no address".to_owned());
        for address in addresses {
            self.check_reach(address)?;
            let options = ServerOptions {
                secret: secret.clone(),
                holder: Some(self.rank),
                ..ServerOptions::new(self.world_size)
            };
            match StoreServer::open(address, options) {
                Ok(server) => return Ok(server),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Some systems give their own name an address that others cannot reach.
    fn check_reach(&self, address: SocketAddr) -> Result<(), StoreError> {
        let elsewhere = self.local_world_size.is_some_and(|local| local < self.world_size);
        let named = self.host != "localhost" && self.host.parse::<IpAddr>().is_err();
        if elsewhere && named && address.ip().is_loopback() {
            let reason = format!(
                "on this machine the name stands for {}, which ranks on others cannot reach; \
                 give the machine's address in MASTER_ADDR",
                address.ip()
            );
            return Err(StoreError::Open { address: self.address(), reason });
        }
        Ok(())
    }
}
