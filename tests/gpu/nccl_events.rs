//! What a launch on NCCL asks of the driver, beside the launch.

use bucketeer::ir::{DType, GlobalRank, ReduceOp};
use bucketeer_comm::nccl::{NcclOptions, NcclRank};
use bucketeer_comm::store::MemoryStore;
use bucketeer_comm::{Arena, Backend, Call, CallOptions, Op, Operands, Work};
use kit::fakegpu::{Session, session};
use std::sync::Arc;
use std::time::Duration;

/// Calls of a function since the log was last taken.
fn calls(session: &Session, name: &str) -> usize {
    session.log().iter().filter(|line| line["call"] == name).count()
}

#[test]
fn a_launch_makes_no_event_where_an_earlier_ones_is_over() {
    let session = session();
    let context = session.driver().device(0).unwrap().context().unwrap();
    let store = Arc::new(MemoryStore::world(1).remove(0));
    // The watchdog looks at nothing meanwhile.
    let options = NcclOptions { poll: Duration::from_secs(60), ..NcclOptions::default() };
    let rank = NcclRank::new(&session.nccl(), &context, store, options).unwrap();
    let group = rank.new_group("world", &[GlobalRank(0)]).unwrap();
    let arena = Arena::on_device(context.alloc(64).unwrap()).unwrap();
    let data = Operands::in_place(arena.buffer(0, 64).unwrap(), DType::F32);
    let launch = || {
        let call = Call::collective(Op::AllReduce(ReduceOp::Sum.into()), data.clone());
        rank.launch(&group, call, &CallOptions::default()).unwrap()
    };
    launch().wait(None).unwrap();
    assert_eq!(calls(&session, "cuEventCreate"), 1);
    for _ in 0..5 {
        launch().wait(None).unwrap();
    }
    assert_eq!(calls(&session, "cuEventCreate"), 0);

    // Three that nobody has seen the end of need one each.
    let works: Vec<Work> = (0..3).map(|_| launch()).collect();
    works.iter().for_each(|work| work.wait(None).unwrap());
    assert_eq!(calls(&session, "cuEventCreate"), 2);
    let works: Vec<Work> = (0..3).map(|_| launch()).collect();
    works.iter().for_each(|work| work.wait(None).unwrap());
    assert_eq!((calls(&session, "cuEventCreate"), session.violations()), (0, Vec::new()));
    rank.close().unwrap();
}
