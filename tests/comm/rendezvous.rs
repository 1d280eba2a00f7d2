//! Which rank a process is, as launchers say it in variables.

use bucketeer::ir::GlobalRank;
use bucketeer_comm::rendezvous::{Launcher, Rendezvous};
use bucketeer_comm::store::{Store, StoreError};
use std::collections::HashMap;
use std::ffi::OsString;
use std::thread;
use std::time::Duration;

/// Reads variables like `RANK=1 WORLD_SIZE=2`.
fn read(line: &str) -> Result<Option<Rendezvous>, StoreError> {
    let variables: HashMap<&str, &str> = line.split_whitespace().map(|word| word.split_once('=').unwrap()).collect();
    Rendezvous::from_variables(|name| variables.get(name).map(OsString::from))
}

#[track_caller]
fn fine(line: &str) -> Rendezvous {
    read(line).unwrap().unwrap()
}

#[track_caller]
fn wrong(line: &str) -> String {
    read(line).unwrap_err().to_string()
}

const TORCHRUN: &str = "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=29500";

#[test]
fn an_environment_that_says_nothing_is_a_world_of_one() {
    assert_eq!(read("").unwrap(), None);
    // Neither is of a process that was started as one of several.
    assert_eq!(read("MASTER_ADDR=a MASTER_PORT=1 SLURM_NTASKS=4 SLURM_JOB_ID=7").unwrap(), None);
}

#[test]
fn what_torchrun_says_is_read() {
    let found = fine(TORCHRUN);
    assert_eq!((found.rank, found.world_size), (GlobalRank(3), 4));
    assert_eq!((found.local_rank, found.local_world_size), (Some(1), Some(2)));
    assert_eq!((found.launcher, found.address().as_str()), (Launcher::Torchrun, "a:29500"));
    let by_hand = fine("RANK=0 WORLD_SIZE=1 MASTER_ADDR=::1 MASTER_PORT=1");
    assert_eq!((by_hand.local_rank, by_hand.local_world_size), (None, None));
    assert_eq!(by_hand.address(), "[::1]:1");
}

#[test]
fn the_store_keeps_off_the_port_that_torchrun_listens_on() {
    let port = |more: &str| fine(&format!("{TORCHRUN} {more}")).port;
    assert_eq!(port("TORCHELASTIC_USE_AGENT_STORE=True"), 30500);
    assert_eq!(port("TORCHELASTIC_USE_AGENT_STORE=False"), 29500);
    assert_eq!(port("TORCHELASTIC_USE_AGENT_STORE=True MASTER_PORT=64535"), 65535);
    assert_eq!(port("TORCHELASTIC_USE_AGENT_STORE=True MASTER_PORT=64536"), 63536);
    assert_eq!(port("TORCHELASTIC_USE_AGENT_STORE=True BUCKETEER_STORE_PORT=7"), 7);
    let launched = fine(&format!("{TORCHRUN} BUCKETEER_LAUNCHER=12"));
    assert_eq!((launched.launcher, launched.port), (Launcher::Bucketeer, 29500));
}

#[test]
fn what_slurm_says_is_read() {
    let step =
        "SLURM_PROCID=5 SLURM_NTASKS=6 SLURM_LOCALID=1 SLURM_NODEID=2 SLURM_JOB_NODELIST=n[08-10] SLURM_JOB_ID=123456";
    let found = fine(step);
    assert_eq!((found.rank, found.world_size, found.local_rank), (GlobalRank(5), 6, Some(1)));
    assert_eq!((found.launcher, found.address().as_str()), (Launcher::Slurm, "n08:23456"));
    assert_eq!(found.local_world_size, None);
    let found = fine(&format!("{step} SLURM_STEP_ID=2 SLURM_STEP_NODELIST=n09 SLURM_STEP_TASKS_PER_NODE=2(x3)"));
    assert_eq!((found.local_world_size, found.address().as_str()), (Some(2), "n09:23658"));
    assert_eq!(fine(&format!("{step} MASTER_ADDR=b MASTER_PORT=9")).address(), "b:9");
}

#[test]
fn what_mpirun_says_is_read_before_what_slurm_says_of_its_daemon() {
    let open_mpi =
        "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1";
    let found = fine(&format!("{open_mpi} MASTER_ADDR=a MASTER_PORT=5"));
    assert_eq!((found.rank, found.local_rank, found.local_world_size), (GlobalRank(1), Some(0), Some(1)));
    assert_eq!((found.launcher, found.address().as_str()), (Launcher::OpenMpi, "a:5"));
    let job =
        "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_ID=7 SLURM_STEP_ID=3 SLURM_JOB_NODELIST=x[1-2] SLURM_STEP_NODELIST=x2";
    let found = fine(&format!("{open_mpi} {job}"));
    assert_eq!((found.launcher, found.rank, found.address().as_str()), (Launcher::OpenMpi, GlobalRank(1), "x1:20007"));
    let found = fine("PMI_RANK=1 PMI_SIZE=3 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=3 MASTER_ADDR=a MASTER_PORT=5");
    assert_eq!((found.launcher, found.rank, found.local_rank), (Launcher::Pmi, GlobalRank(1), Some(1)));
    let alone = fine("PMI_RANK=0 PMI_SIZE=1");
    assert_eq!(alone.address(), "127.0.0.1:0");
}

#[test]
fn variables_that_are_half_set_are_errors() {
    assert_eq!(wrong("RANK=0"), "WORLD_SIZE: is not set, but RANK is; set both or none");
    assert_eq!(wrong("WORLD_SIZE=2"), "RANK: is not set, but WORLD_SIZE is; set both or none");
    assert_eq!(wrong("SLURM_PROCID=0"), "SLURM_NTASKS: is not set, but SLURM_PROCID is; set both or none");
    assert!(wrong("OMPI_COMM_WORLD_SIZE=2").starts_with("OMPI_COMM_WORLD_RANK: is not set"));
    let text = "MASTER_ADDR: is not set, but RANK is; set it to where rank 0 is to listen, the same on all ranks";
    assert_eq!(wrong("RANK=0 WORLD_SIZE=2 MASTER_PORT=1"), text);
    assert!(wrong("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a").starts_with("MASTER_PORT: is not set"));
    assert!(wrong("PMI_RANK=0 PMI_SIZE=2").starts_with("MASTER_ADDR: is not set, but PMI_RANK is"));
    assert!(wrong("SLURM_PROCID=0 SLURM_NTASKS=2").starts_with("SLURM_JOB_NODELIST: is not set"));
    assert!(wrong("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=a").starts_with("SLURM_JOB_ID: is not set"));
}

#[test]
fn variables_that_are_no_numbers_are_errors() {
    let with = |variable: &str| wrong(&format!("{TORCHRUN} {variable}"));
    assert_eq!(with("RANK=one"), "RANK: `one` is not a number from 0 to 4294967295");
    assert_eq!(with("WORLD_SIZE=-1"), "WORLD_SIZE: `-1` is not a number from 0 to 4294967295");
    assert_eq!(with("LOCAL_RANK="), "LOCAL_RANK: is empty; set it, or take it away");
    assert_eq!(with("MASTER_PORT=0"), "MASTER_PORT: `0` is not a port, which is a number from 1 to 65535");
    assert_eq!(with("MASTER_PORT=65536"), "MASTER_PORT: `65536` is not a port, which is a number from 1 to 65535");
    assert!(with("BUCKETEER_STORE_PORT=x").starts_with("BUCKETEER_STORE_PORT: `x` is not a port"));
    let list = wrong("SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[");
    assert_eq!(list, "SLURM_JOB_NODELIST: `n[` is not a list of machines like `node[01-04,07],other`");
}

#[test]
fn variables_that_contradict_one_another_are_errors() {
    let with = |variable: &str| wrong(&format!("{TORCHRUN} {variable}"));
    assert_eq!(with("RANK=4"), "RANK: 4 is out of range: WORLD_SIZE is 4, ranks start at 0");
    assert_eq!(with("LOCAL_RANK=2"), "LOCAL_RANK: 2 is out of range: 2 ranks run on this machine, ranks start at 0");
    assert_eq!(with("LOCAL_WORLD_SIZE=5"), "LOCAL_WORLD_SIZE: 5 ranks on this machine are more than 4 in the world");
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_no_text_is_an_error() {
    use std::os::unix::ffi::OsStringExt;
    let lookup = |name: &str| (name == "RANK").then(|| OsString::from_vec(vec![0xff]));
    assert_eq!(Rendezvous::from_variables(lookup).unwrap_err().to_string(), "RANK: is no UTF-8");
}

#[test]
fn ranks_meet_where_the_variables_say() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    thread::scope(|scope| {
        let join = |rank: u32| {
            let meeting = fine(&format!("RANK={rank} WORLD_SIZE=3 MASTER_ADDR=localhost MASTER_PORT={free}"));
            scope.spawn(move || {
                let store = meeting.join(Duration::from_secs(60)).unwrap();
                store.set(&format!("rank {rank}"), b"").unwrap();
                let all: Vec<String> = (0..3).map(|rank| format!("rank {rank}")).collect();
                store.wait(&all, Duration::from_secs(60)).unwrap();
                store.world_size()
            })
        };
        for joining in [join(2), join(1), join(0)] {
            assert_eq!(joining.join().unwrap(), 3);
        }
    });
}
