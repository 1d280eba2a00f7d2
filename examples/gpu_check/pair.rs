//! Two processes that share the GPU as two hosts, which talk over sockets.

use crate::nccl::{self, TIMEOUT};
use crate::{device, told};
use bucketeer::ir::GlobalRank;
use bucketeer_comm::store::{JoinOptions, ServerOptions, StoreServer, TcpStore};
use bucketeer_comm::{Backend, CallOptions};
use bucketeer_cuda::nccl::Nccl;
use bucketeer_cuda::nvrtc::Nvrtc;
use std::error::Error;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Set for both: `RANK ADDRESS`, and where the store is.
const TASK: &str = "GPU_CHECK_PAIR";

/// Exit code of a rank that NCCL does not connect.
const REFUSED: u8 = 4;

/// Longest time for both.
const LIMIT: Duration = Duration::from_secs(75);

/// Runs both; says so where NCCL does not let them share the GPU, which is not a failure.
pub fn check(quick: bool) -> Result<(), Box<dyn Error>> {
    let server = StoreServer::open("127.0.0.1:0".parse()?, ServerOptions::new(2))?;
    let mut ranks = Vec::new();
    for rank in 0..2 {
        let mut command = Command::new(std::env::current_exe()?);
        command.env(TASK, format!("{rank} {}", server.address()));
        // NCCL takes ranks of one GPU for a mistake unless they are on several hosts.
        command.envs([("NCCL_HOSTID", format!("gpu-check-{rank}")), ("NCCL_SOCKET_IFNAME", "lo".to_owned())]);
        command.env("NCCL_IB_DISABLE", "1").stderr(Stdio::inherit());
        command.stdout(if rank == 0 { Stdio::inherit() } else { Stdio::null() });
        if quick {
            command.arg("--quick");
        }
        ranks.push(Running(command.spawn()?));
    }
    let start = Instant::now();
    let mut ends: [Option<ExitStatus>; 2] = [None; 2];
    while ends.iter().any(Option::is_none) && start.elapsed() < LIMIT {
        for (rank, end) in ranks.iter_mut().zip(&mut ends) {
            *end = end.or(rank.0.try_wait()?);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    match ends {
        [Some(a), Some(b)] if a.success() && b.success() => Ok(()),
        [Some(a), Some(b)] if [a, b].iter().all(|end| end.code() == Some(REFUSED.into())) => {
            println!("NCCL, two processes on one GPU: not checked, this NCCL does not connect them");
            Ok(())
        }
        _ => Err(format!("two processes on one GPU: they ended with {ends:?} within {LIMIT:?}").into()),
    }
}

/// Ends with its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a rank of the two does; none where this process is none.
pub fn rank(quick: bool) -> Option<ExitCode> {
    let task = std::env::var(TASK).ok()?;
    let done = task.split_once(' ').ok_or_else(|| "no address".into()).and_then(|(rank, address)| {
        let connected = connect(rank.parse()?, address)?;
        let Some((store_rank, nvrtc)) = connected else { return Ok(ExitCode::from(REFUSED)) };
        let calls = nccl::collectives(&store_rank)?;
        if store_rank.rank() == GlobalRank(0) {
            println!("NCCL, two processes on one GPU as two hosts: {calls} kinds of collectives are right");
        }
        nccl::buckets(&store_rank, nvrtc.as_ref(), quick)?;
        nccl::real_graph_on(&store_rank, nvrtc.as_ref())?;
        store_rank.close()?;
        Ok::<_, Box<dyn Error>>(ExitCode::SUCCESS)
    });
    Some(done.unwrap_or_else(|error| {
        println!("two processes on one GPU, FAILED: {}", told(&*error));
        ExitCode::FAILURE
    }))
}

type Connected = (bucketeer_comm::nccl::NcclRank, Result<Nvrtc, bucketeer_cuda::nvrtc::NvrtcError>);

/// Joins the other rank; none where NCCL does not connect them, which is said.
fn connect(rank: u32, address: &str) -> Result<Option<Connected>, Box<dyn Error>> {
    let options = JoinOptions {
        address: address.to_owned(),
        rank: GlobalRank(rank),
        world_size: 2,
        secret: None,
        timeout: TIMEOUT,
    };
    let store = Arc::new(TcpStore::join(&options)?);
    let context = device()?;
    let rank = nccl::rank(&Nccl::load(None)?, &context, store, "pair")?;
    let group = rank.new_group("first", &[GlobalRank(0), GlobalRank(1)])?;
    match rank.barrier(&group, &CallOptions::blocking()) {
        Ok(_) => Ok(Some((rank, Nvrtc::load(None)))),
        Err(error) => {
            println!("NCCL, two processes on one GPU: {}", told(&error));
            Ok(None)
        }
    }
}
