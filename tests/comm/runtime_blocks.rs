//! Groups and coalescing blocks are the same on every backend; here on those that one process can have.

use bucketeer_comm::fake::FakeRank;
use bucketeer_comm::local::{LocalOptions, world};
use bucketeer_comm::{Backend, CallOptions, CommError, Group, Operands, Work};
use bucketeer_types::{DType, GlobalRank, ReduceOp};

const WORLD: [GlobalRank; 2] = [GlobalRank(0), GlobalRank(1)];

/// Rank 0 of two, and another rank's handle on its group `G`; once for each backend.
fn each_backend(check: impl Fn(Box<dyn Backend>, Group)) {
    let mut local = world(2, LocalOptions::default()).unwrap();
    let (other, own) = (local.pop().unwrap(), local.pop().unwrap());
    let handle = other.new_group("G", &WORLD).unwrap();
    check(Box::new(own), handle);
    let fake = |rank| FakeRank::new(GlobalRank(rank), 2).unwrap();
    check(Box::new(fake(0)), fake(1).new_group("G", &WORLD).unwrap());
}

fn all_reduce(rank: &dyn Backend, group: &Group, data: &Operands) -> Result<Work, CommError> {
    rank.all_reduce(group, data.clone(), ReduceOp::Sum.into(), &CallOptions::default())
}

fn data(rank: &dyn Backend) -> Operands {
    Operands::in_place(rank.arena(8).unwrap().buffer(0, 8).unwrap(), DType::F32)
}

fn refused<T>(result: Result<T, CommError>) -> String {
    result.err().expect("it is refused").to_string()
}

#[test]
fn a_rank_joins_a_name_once_whatever_the_members_are() {
    each_backend(|rank, _| {
        rank.new_group("G", &WORLD).unwrap();
        for members in [&WORLD[..], &WORLD[..1]] {
            assert_eq!(refused(rank.new_group("G", members)), "group G, new_group: rank 0 has joined before");
        }
        let twice = [GlobalRank(0), GlobalRank(0)];
        assert_eq!(refused(rank.new_group("G", &twice)), "group G, new_group: rank 0 is a member twice");
        assert!(rank.joined("G", &WORLD).is_some() && rank.joined("G", &WORLD[..1]).is_none());
    });
}

#[test]
fn a_handle_of_another_rank_is_refused_by_all_that_take_one() {
    each_backend(|rank, handle| {
        let text = |op: &str| format!("group G, {op}: rank 0 has not made this group");
        assert_eq!(refused(rank.barrier(&handle, &CallOptions::default())), text("barrier"));
        assert_eq!(refused(rank.start_coalescing(&handle)), text("start_coalescing"));
        assert_eq!(refused(rank.end_coalescing(&handle, &CallOptions::default())), text("end_coalescing"));
        assert_eq!(refused(rank.shrink(&handle, &[])), text("shrink"));
    });
}

#[test]
fn calls_of_a_block_hold_their_buffers_from_when_they_are_made() {
    each_backend(|rank, _| {
        let group = rank.new_group("alone", &WORLD[..1]).unwrap();
        let data = data(&*rank);
        rank.start_coalescing(&group).unwrap();
        all_reduce(&*rank, &group, &data).unwrap();
        let busy = "bytes 0 to 8 of the arena are in use by all_reduce of group alone; wait for it first";
        assert_eq!(refused(all_reduce(&*rank, &group, &data)), format!("group alone, all_reduce: {busy}"));
        rank.end_coalescing(&group, &CallOptions::blocking()).unwrap();
        all_reduce(&*rank, &group, &data).unwrap().wait(None).unwrap();
    });
}

#[test]
fn a_block_on_an_aborted_group_fails_at_its_end_and_so_do_its_calls() {
    each_backend(|rank, _| {
        let group = rank.new_group("alone", &WORLD[..1]).unwrap();
        rank.start_coalescing(&group).unwrap();
        rank.abort(&group);
        let work = all_reduce(&*rank, &group, &data(&*rank)).unwrap();
        let failed = refused(rank.end_coalescing(&group, &CallOptions::default()));
        assert!(failed.starts_with("group alone, all_reduce"), "{failed}");
        assert!(failed.ends_with(": rank 0 aborted the group"), "{failed}");
        assert_eq!((refused(work.wait(None)), work.is_done()), (failed, true));
    });
}

#[test]
fn a_block_that_is_open_when_its_rank_leaves_fails_and_says_so() {
    each_backend(|rank, _| {
        let group = rank.new_group("alone", &WORLD[..1]).unwrap();
        rank.start_coalescing(&group).unwrap();
        let work = all_reduce(&*rank, &group, &data(&*rank)).unwrap();
        let open = "group alone, wait: the call is part of a coalescing block that has not been ended";
        assert_eq!((refused(work.wait(None)).as_str(), work.is_done()), (open, false));
        drop(rank);
        let left = "group alone, end_coalescing: rank 0 dropped its handle";
        assert_eq!((refused(work.wait(None)).as_str(), work.is_done()), (left, true));
    });
}
