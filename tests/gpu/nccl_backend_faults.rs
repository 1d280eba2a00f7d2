//! What goes wrong between ranks of the backend `nccl`, on the fake GPU library with ranks as threads: every call ends in an
//! error that names who is at fault, on all ranks, and so does the flight record.

use bucketeer::ir::{DType, GlobalRank, GroupRank, ReduceOp};
use bucketeer_comm::nccl::{NcclOptions, NcclRank};
use bucketeer_comm::store::MemoryStore;
use bucketeer_comm::{Announced, Backend, Call, CallOptions, CallSignature, CommError, Fate, Group, Op, Operands};
use kit::fakegpu::{Session, session};
use kit::nccl_threads::{self, Meet, flight_record, folder, options, reduce, words};
use std::time::Duration;

fn run<T: Send>(
    session: &Session,
    size: u32,
    options: &NcclOptions,
    body: impl Fn(&NcclRank, &Group, &MemoryStore) -> T + Sync,
) -> Vec<T> {
    nccl_threads::run(session, size, options, |rank, group, store| body(&rank, group, store))
}

fn error(rank: &NcclRank, group: &Group, elements: u64) -> String {
    words(&reduce(rank, group, elements).unwrap_err())
}

#[test]
fn a_rank_that_does_not_launch_is_missing_in_every_rank_s_error() {
    let session = session();
    let end = Meet::new(3);
    let errors = run(&session, 3, &options(1000), |rank, group, _| {
        reduce(rank, group, 2).unwrap();
        let found = (rank.rank() != GlobalRank(1)).then(|| error(rank, group, 2));
        end.wait();
        // Whoever was late learns of it by its next call, when its watchdog has seen the verdict.
        found.unwrap_or_else(|| {
            std::thread::sleep(Duration::from_millis(100));
            error(rank, group, 2)
        })
    });
    let expected = "group world, all_reduce #1: late; rank 1 did not arrive, ranks 0 and 2 did";
    assert_eq!((&*errors[0], &*errors[2]), (expected, expected));
    assert_eq!(errors[1], format!("group world, all_reduce: the group is broken: {expected}"));
}

#[test]
fn a_rank_that_never_joins_a_group_is_named() {
    let session = session();
    let end = Meet::new(3);
    let errors = run(&session, 3, &options(1000), |rank, group, _| {
        let found = (rank.rank() != GlobalRank(2)).then(|| error(rank, group, 1));
        end.wait();
        found
    });
    for found in &errors[..2] {
        let expected = "group world, connect: late; rank 2 did not arrive, ranks 0 and 1 did";
        assert_eq!(found.as_deref(), Some(expected));
    }
}

#[test]
fn a_rank_that_leaves_fails_what_waits_for_it_and_nothing_that_it_had_done() {
    let session = session();
    let errors = run(&session, 3, &options(20_000), |rank, group, _| {
        // All are connected before one goes.
        rank.barrier(group, &CallOptions::blocking()).unwrap();
        if rank.rank() == GlobalRank(0) {
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
        Some(error(rank, group, 2))
    });
    for found in &errors[1..] {
        let found = found.as_deref().unwrap();
        assert!(
            found.starts_with("group world, all_reduce") && found.ends_with(": rank 0 dropped its handle"),
            "{found}"
        );
    }
}

#[test]
fn a_rank_that_is_lost_is_named_and_the_others_go_on_without_it() {
    let session = session();
    let end = Meet::new(3);
    let sums = run(&session, 3, &options(20_000), |rank, group, store| {
        reduce(rank, group, 2).unwrap();
        if rank.rank() == GlobalRank(1) {
            store.lose();
            end.wait();
            return None;
        }
        let error = reduce(rank, group, 2).unwrap_err();
        assert!(matches!(error, CommError::Remote { rank: GlobalRank(1), fate: Fate::Lost, .. }), "{error}");
        let smaller = rank.shrink(group, &error.culprits()).unwrap();
        let buffer = rank.arena(1).unwrap().buffer(0, 1).unwrap();
        buffer.write().unwrap()[0] = rank.rank().0 as u8 + 1;
        let data = Operands::in_place(buffer.clone(), DType::U8);
        rank.all_reduce(&smaller, data, ReduceOp::Sum.into(), &CallOptions::blocking()).unwrap();
        end.wait();
        Some((smaller.name().to_owned(), buffer.read().unwrap()[0]))
    });
    assert_eq!(sums, [Some(("world~1".to_owned(), 4)), None, Some(("world~1".to_owned(), 4))]);
}

#[test]
fn ranks_that_call_different_things_are_told_what() {
    type Launch = fn(&NcclRank, &Group) -> Call;
    fn data(rank: &NcclRank, bytes: u64, dtype: DType) -> Operands {
        Operands::in_place(rank.arena(bytes).unwrap().buffer(0, bytes).unwrap(), dtype)
    }
    let sum =
        |rank: &NcclRank, _: &Group| Call::collective(Op::AllReduce(ReduceOp::Sum.into()), data(rank, 8, DType::F32));
    let others: [(Launch, &str); 5] = [
        (
            |rank, _| Call::collective(Op::AllReduce(ReduceOp::Sum.into()), data(rank, 4, DType::F32)),
            "count: rank 0 has f32 x 2, rank 1 has f32 x 1",
        ),
        (
            |rank, _| Call::collective(Op::AllReduce(ReduceOp::Max.into()), data(rank, 8, DType::F32)),
            "reduction: rank 0 has sum, rank 1 has max",
        ),
        (
            |rank, _| Call::collective(Op::AllReduce(ReduceOp::Sum.into()), data(rank, 8, DType::F64)),
            "dtype: rank 0 has f32 x 2, rank 1 has f64 x 1",
        ),
        (
            |rank, _| Call::collective(Op::Broadcast { root: GroupRank(0) }, data(rank, 8, DType::F32)),
            "op: rank 0 has all_reduce, rank 1 has broadcast",
        ),
        (|_, _| Call::barrier(), "op: rank 0 has all_reduce, rank 1 has barrier"),
    ];
    let session = session();
    for (other, expected) in others {
        let errors = run(&session, 2, &options(20_000), |rank, group, _| {
            reduce(rank, group, 1).unwrap();
            let call = if rank.rank() == GlobalRank(0) { sum(rank, group) } else { other(rank, group) };
            rank.launch(group, call, &CallOptions::blocking()).unwrap_err().to_string()
        });
        for error in errors {
            assert!(error.ends_with(&format!("#1: ranks disagree on the {expected}")), "{error}");
        }
    }
}

#[test]
fn a_message_that_nobody_receives_names_the_receiver() {
    let session = session();
    let end = Meet::new(3);
    let errors = run(&session, 3, &options(1000), |rank, group, _| {
        reduce(rank, group, 1).unwrap();
        let found = (rank.rank() == GlobalRank(0)).then(|| {
            let buffer = rank.arena(8).unwrap().buffer(0, 8).unwrap();
            let work = rank.send(group, buffer, DType::U8, GroupRank(2), &CallOptions::default()).unwrap();
            work.wait(None).unwrap_err()
        });
        end.wait();
        found
    });
    let Some(CommError::Timeout { site, arrived, missing, .. }) = &errors[0] else { panic!("{:?}", errors[0]) };
    assert_eq!((site.op, site.seq), ("send", Some(0)));
    assert_eq!((&arrived[..], &missing[..]), (&[GlobalRank(0)][..], &[GlobalRank(2)][..]));
}

#[test]
fn a_device_that_fails_names_its_rank_on_all_ranks() {
    let session = session();
    let errors = run(&session, 3, &options(20_000), |rank, group, _| {
        reduce(rank, group, 2).unwrap();
        if rank.rank() == GlobalRank(2) {
            session.inject("ncclAllReduce:1=late:3");
            return error(rank, group, 2);
        }
        std::thread::sleep(Duration::from_millis(50));
        error(rank, group, 2)
    });
    for found in errors {
        assert!(found.contains("rank 2 failed: ") && found.contains("ncclInternalError (3)"), "{found}");
    }
}

#[test]
fn a_call_that_nccl_refuses_breaks_the_group_on_all_ranks() {
    let session = session();
    let errors = run(&session, 2, &options(20_000), |rank, group, _| {
        reduce(rank, group, 2).unwrap();
        if rank.rank() == GlobalRank(1) {
            session.inject("ncclAllReduce:1=2");
            return error(rank, group, 2);
        }
        std::thread::sleep(Duration::from_millis(50));
        error(rank, group, 2)
    });
    for found in errors {
        assert!(found.contains("rank 1 failed: ") && found.contains("ncclSystemError (2)"), "{found}");
    }
}

#[test]
fn a_transfer_that_never_ends_is_no_rank_s_fault_and_ends() {
    let session = session();
    let errors = run(&session, 2, &options(1000), |rank, group, _| {
        reduce(rank, group, 2).unwrap();
        if rank.rank() == GlobalRank(1) {
            session.inject("ncclAllReduce:1=hang");
        } else {
            std::thread::sleep(Duration::from_millis(50));
        }
        error(rank, group, 2)
    });
    let expected = "group world, all_reduce #1: late; all ranks arrived, but the transfer did not end";
    assert_eq!(errors, [expected, expected]);
}

#[test]
fn an_abort_releases_all_ranks_and_says_who_did() {
    let session = session();
    let errors = run(&session, 3, &options(20_000), |rank, group, _| {
        reduce(rank, group, 2).unwrap();
        if rank.rank() == GlobalRank(2) {
            rank.abort(group);
        }
        reduce(rank, group, 2).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error, CommError::Aborted { by: GlobalRank(2), .. }), "{error}");
        assert_eq!(error.culprits(), []);
    }
}

fn announced(rank: &NcclRank, group: &Group, elements: u64) -> Announced {
    let buffer = rank.arena(4 * elements).unwrap().buffer(0, 4 * elements).unwrap();
    let data = Operands::in_place(buffer, DType::F32);
    let call = Call::collective(Op::AllReduce(ReduceOp::Sum.into()), data);
    Announced { group: group.clone(), calls: vec![CallSignature::of(&call)] }
}

#[test]
fn another_order_of_launches_is_seen_before_the_first() {
    let session = session();
    let end = Meet::new(3);
    let errors = run(&session, 3, &options(20_000), |rank, world, _| {
        let pair = match rank.rank().0 {
            0 => None,
            _ => Some(rank.new_group("pair", &[GlobalRank(1), GlobalRank(2)]).unwrap()),
        };
        let launches = |first: u64| {
            let mut launches = vec![announced(rank, world, first)];
            launches.extend(pair.iter().map(|pair| announced(rank, pair, 3)));
            launches
        };
        // The same on all is well, also where some are in fewer groups.
        rank.announce(&launches(1)).unwrap();
        let mut other = launches(2);
        if rank.rank() == GlobalRank(2) {
            other.reverse();
        }
        let found = rank.announce(&other).map_err(|error| error.to_string());
        end.wait();
        found
    });
    assert_eq!(errors[0], Ok(()), "rank 0 sees one group alone");
    let expected = "ranks disagree on the order of launches: rank 1 has all_reduce sum f32 x 2 on world, rank 2 has \
                    all_reduce sum f32 x 3 on pair";
    for error in &errors[1..] {
        assert!(error.as_ref().is_err_and(|error| error.contains(expected)), "{error:?}");
    }
}

#[test]
fn other_launches_are_seen_before_the_first() {
    let session = session();
    let errors = run(&session, 2, &options(20_000), |rank, world, _| {
        let own = u64::from(rank.rank().0);
        let launches = [announced(rank, world, 2), announced(rank, world, 4 + own)];
        rank.announce(&launches).unwrap_err().to_string()
    });
    let expected = "group world, announce #1: ranks disagree on the count: rank 0 has f32 x 4, rank 1 has f32 x 5";
    assert_eq!(errors, [expected, expected]);
    let errors = run(&session, 2, &options(20_000), |rank, world, _| {
        let launches = [announced(rank, world, 2), announced(rank, world, 4)];
        rank.announce(&launches[rank.rank().0 as usize..]).unwrap_err().to_string()
    });
    let expected = "group world, announce #0: ranks disagree on the count: rank 0 has f32 x 2, rank 1 has f32 x 4";
    assert_eq!(errors, [expected, expected]);
    let errors = run(&session, 2, &options(20_000), |rank, world, _| {
        let launches = [announced(rank, world, 2), announced(rank, world, 4)];
        rank.announce(&launches[..1 + rank.rank().0 as usize]).unwrap_err().to_string()
    });
    let expected = "group world, announce #1: ranks disagree on the number of launches: rank 0 has 1, rank 1 has 2";
    assert_eq!(errors, [expected, expected]);
}

#[test]
fn messages_are_announced_by_both_ends() {
    let session = session();
    let ends = |rank: &NcclRank, world: &Group, bytes: u64| {
        let buffer = || rank.arena(bytes).unwrap().buffer(0, bytes).unwrap();
        let call = match rank.rank().0 {
            0 => Call::send(buffer(), DType::U8, GroupRank(1)),
            _ => Call::recv(buffer(), DType::U8, GroupRank(0)),
        };
        Announced { group: world.clone(), calls: vec![CallSignature::of(&call)] }
    };
    let end = Meet::new(3);
    let errors = run(&session, 3, &options(20_000), |rank, world, _| {
        let mut launches = vec![announced(rank, world, 2)];
        if rank.rank().0 < 2 {
            launches.push(ends(rank, world, 8));
        }
        rank.announce(&launches).unwrap();
        let found = if rank.rank().0 < 2 {
            // Behind on one side, before on the other.
            let order = [announced(rank, world, 2), ends(rank, world, 8)];
            let order: Vec<Announced> =
                if rank.rank().0 == 0 { order.into() } else { order.into_iter().rev().collect() };
            rank.announce(&order)
        } else {
            rank.announce(&[announced(rank, world, 2)])
        };
        end.wait();
        found.map_or_else(|error| error.to_string(), |()| String::new())
    });
    let expected = "group world, announce #0: ranks disagree on the order of launches: rank 0 has all_reduce sum f32 x 2 on \
                    world, rank 1 has 8 bytes from group rank 0 to 1 on world";
    assert_eq!(errors[..2], [expected, expected]);
}

#[test]
fn members_that_do_not_mean_the_same_group_are_told() {
    let session = session();
    let errors = run(&session, 2, &options(20_000), |rank, _, _| {
        let members = [GlobalRank(rank.rank().0), GlobalRank(1 - rank.rank().0)];
        let group = rank.new_group("pair", &members).unwrap();
        error(rank, &group, 1)
    });
    for error in errors {
        assert!(error.contains("ranks disagree on the members: ") && error.contains("has [1, 0]"), "{error}");
    }
}

#[test]
fn the_flight_record_says_who_and_what_was_on_the_way() {
    let session = session();
    let folder = folder("flight");
    let end = Meet::new(2);
    let options = NcclOptions { flight_records: Some(folder.clone()), ..options(1000) };
    run(&session, 2, &options, |rank, group, _| {
        for elements in [1, 2, 3] {
            reduce(rank, group, elements).unwrap();
        }
        if rank.rank() == GlobalRank(0) {
            error(rank, group, 7);
        }
        end.wait();
        std::thread::sleep(Duration::from_millis(100));
        assert!(reduce(rank, group, 7).is_err());
    });
    for rank in [0, 1] {
        let record = flight_record(&folder, rank).unwrap();
        assert_eq!(record["culprits"], serde_json::json!([1]), "{record}");
        let why = record["why"].as_str().unwrap();
        assert!(why.ends_with("; rank 1 did not arrive, rank 0 did"), "{why}");
        let states: Vec<&str> =
            record["calls"].as_array().unwrap().iter().map(|c| c["state"].as_str().unwrap()).collect();
        let expected: &[&str] = if rank == 0 { &["done", "done", "done", "failed"] } else { &["done"; 3] };
        assert_eq!(states, expected, "{record}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
