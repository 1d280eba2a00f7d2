//! What goes wrong around a store over TCP: who is not let in, and who goes.

use bucketeer::ir::GlobalRank;
use bucketeer_comm::Fate;
use bucketeer_comm::store::{JoinOptions, Secret, ServerOptions, Store, StoreError, StoreServer, TcpStore};
use kit::stores::{LONG, SHORT, empty_proof, frame, hello, join_all, open, rank_of, read_to_end, silent_rank, until};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Joins a world of two with one good rank, and another that is refused; what the refused one and the good one see.
fn refused(options: ServerOptions, wrong: impl FnOnce(JoinOptions) -> JoinOptions) -> (String, Vec<String>) {
    let good = options.secret.clone();
    let server = open(options);
    let mut join = rank_of(&server, 2, 0);
    join.secret = good;
    thread::scope(|scope| {
        let waiting = scope.spawn(|| TcpStore::join(&JoinOptions { secret: join.secret.clone(), ..join.clone() }));
        until(|| server.here() == [GlobalRank(0)]);
        let error = TcpStore::join(&wrong(JoinOptions { rank: GlobalRank(1), ..join.clone() })).err().unwrap();
        let StoreError::Refused { reason, .. } = error else { panic!("{error}") };
        assert!(!waiting.is_finished());
        // The place of the refused one is free for the right one.
        let right = TcpStore::join(&JoinOptions { rank: GlobalRank(1), ..join.clone() }).unwrap();
        let seen = waiting.join().unwrap().unwrap().refused();
        assert_eq!(seen, right.refused());
        assert_eq!(seen, server.refused());
        (reason, seen)
    })
}

#[test]
fn a_rank_that_comes_twice_is_refused() {
    let (reason, seen) = refused(ServerOptions::new(2), |join| JoinOptions { rank: GlobalRank(0), ..join });
    assert_eq!(reason, "rank 0 is there already; each process needs a rank of its own");
    assert_eq!(seen, ["127.0.0.1: rank 0 is there already; each process needs a rank of its own"]);
}

#[test]
fn a_rank_outside_of_the_world_is_refused() {
    let (reason, _) = refused(ServerOptions::new(2), |join| JoinOptions { rank: GlobalRank(2), ..join });
    assert_eq!(reason, "there is no rank 2: the world has 2, from 0");
}

#[test]
fn a_rank_of_another_world_size_is_refused() {
    let (reason, _) = refused(ServerOptions::new(2), |join| JoinOptions { world_size: 4, ..join });
    assert_eq!(reason, "rank 1 has world size 4, the store 2; they must agree");
}

#[test]
fn a_rank_with_another_secret_or_none_is_refused() {
    let secret = |text: &str| Some(Secret::new(text).unwrap());
    let with = || ServerOptions { secret: secret("right"), ..ServerOptions::new(2) };
    let (reason, _) = refused(with(), |join| JoinOptions { secret: secret("wrong"), ..join });
    assert_eq!(reason, "rank 1 has another secret than the store");
    let (reason, _) = refused(with(), |join| JoinOptions { secret: None, ..join });
    assert_eq!(reason, "rank 1 has no secret, the store has one; set BUCKETEER_SECRET on all ranks");
    let (reason, _) = refused(ServerOptions::new(2), |join| JoinOptions { secret: secret("right"), ..join });
    assert_eq!(reason, "rank 1 has a secret, the store has none; set BUCKETEER_SECRET on all ranks");
}

#[test]
fn a_rank_of_another_version_is_refused_in_words_that_it_can_read() {
    let server = open(ServerOptions::new(1));
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(&hello(7, 0, 1)).unwrap();
    let reply = read_to_end(&stream);
    let text = "rank 0 speaks version 7 of the protocol, the store version 1; use the same bucketeer on all ranks";
    assert_eq!(reply, frame(&[&[3], &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()));
    assert_eq!(server.refused(), [format!("127.0.0.1: {text}")]);
    TcpStore::join(&rank_of(&server, 1, 0)).unwrap();
}

#[test]
fn a_wrong_proof_is_refused_and_the_secret_is_not_sent() {
    let secret = Some(Secret::new("never on the wire").unwrap());
    let server = open(ServerOptions { secret, ..ServerOptions::new(1) });
    let mut stream = TcpStream::connect(server.address()).unwrap();
    let mut with_secret = hello(1, 0, 1);
    with_secret[21] = 1;
    stream.write_all(&with_secret).unwrap();
    stream.write_all(&frame(&[&[2], &[0; 32][..]].concat())).unwrap();
    let reply = read_to_end(&stream);
    // A challenge of 32 random bytes, then the refusal.
    assert_eq!(reply[4..6], [1, 1]);
    assert!(reply.ends_with(b"rank 0 has another secret than the store"));
    assert!(!reply.windows(17).any(|part| part == b"never on the wire"));
}

#[test]
fn joining_ends_with_the_ranks_that_are_missing_and_who_was_refused() {
    let server = open(ServerOptions::new(4));
    assert!(TcpStore::join(&JoinOptions { world_size: 2, ..rank_of(&server, 4, 3) }).is_err());
    thread::scope(|scope| {
        let join = |rank| {
            let server = &server;
            scope.spawn(move || {
                TcpStore::join(&JoinOptions { timeout: Duration::from_secs(3), ..rank_of(server, 4, rank) })
            })
        };
        for joining in [join(0), join(2)] {
            let error = joining.join().unwrap().err().unwrap();
            let StoreError::Absent { ref gone, .. } = error else { panic!("{error}") };
            if gone.is_empty() {
                assert_eq!(
                    error.to_string(),
                    "after 3s not all of 4 ranks are there; missing: ranks 1 and 3; \
                     refused: 127.0.0.1: rank 3 has world size 2, the store 4; they must agree"
                );
            }
        }
    });
}

#[test]
fn a_rank_that_goes_before_all_are_there_ends_the_wait_of_the_others() {
    let server = open(ServerOptions::new(3));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| TcpStore::join(&rank_of(&server, 3, 2)));
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(&hello(1, 0, 3)).unwrap();
        stream.write_all(&empty_proof(&mut stream.try_clone().unwrap(), 0, 3)).unwrap();
        until(|| server.here() == [GlobalRank(0), GlobalRank(2)]);
        drop(stream);
        let error = waiting.join().unwrap().err().unwrap();
        assert_eq!(error.to_string(), "not all of 3 ranks can be there; rank 0 went without a word; missing: rank 1");
    });
    let server = open(ServerOptions::new(2));
    server.ended(GlobalRank(1), Fate::Killed);
    let error = TcpStore::join(&rank_of(&server, 2, 0)).err().unwrap();
    assert_eq!(error.to_string(), "not all of 2 ranks can be there; rank 1 was killed");
}

#[test]
fn a_connection_that_ends_without_a_goodbye_is_a_rank_that_is_lost() {
    let server = open(ServerOptions::new(2));
    let stream = silent_rank(&server, 2, 1);
    let store = TcpStore::join(&rank_of(&server, 2, 0)).unwrap();
    assert_eq!(store.gone(), []);
    drop(stream);
    until(|| !store.gone().is_empty());
    assert_eq!(store.gone(), [(GlobalRank(1), Fate::Lost)]);
    let error = TcpStore::join(&rank_of(&server, 2, 1)).err().unwrap();
    assert!(
        error.to_string().ends_with("rank 1 was there and went without a word; a rank cannot come back"),
        "{error}"
    );
}

#[test]
fn a_rank_whose_machine_vanishes_is_noticed_and_others_are_not_taken_for_it() {
    let silence = Duration::from_secs(3);
    let server = open(ServerOptions { heartbeat: SHORT, silence, ..ServerOptions::new(2) });
    let _stream = silent_rank(&server, 2, 1);
    let start = Instant::now();
    let store = TcpStore::join(&rank_of(&server, 2, 0)).unwrap();
    until(|| !store.gone().is_empty());
    assert!(start.elapsed() >= silence - SHORT);
    assert_eq!(store.gone(), [(GlobalRank(1), Fate::Lost)]);
    store.set("k", b"still here").unwrap();
}

#[test]
fn requests_in_flight_fail_at_once_when_the_store_goes_and_name_who_held_it() {
    let server = open(ServerOptions { holder: Some(GlobalRank(1)), ..ServerOptions::new(2) });
    let ranks = join_all(&server, 2);
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..4).map(|_| scope.spawn(|| ranks[0].wait(&["never".to_owned()], LONG * 10))).collect();
        thread::sleep(SHORT);
        let start = Instant::now();
        server.close(Fate::Panicked);
        for waiting in waiting {
            let error = waiting.join().unwrap().unwrap_err();
            assert!(matches!(error, StoreError::Lost { .. }), "{error}");
            assert!(error.to_string().ends_with("cannot be reached: it was closed (rank 1 held it)"), "{error}");
        }
        assert!(start.elapsed() < LONG);
    });
    assert!(matches!(ranks[0].set("k", b""), Err(StoreError::Lost { .. })));
    assert_eq!(ranks[0].gone(), [(GlobalRank(1), Fate::Panicked)]);
    assert_eq!(ranks[0].refused(), Vec::<String>::new());
}

#[test]
fn a_store_that_vanishes_is_noticed_by_its_ranks() {
    // Says what a store says until a rank is in, and then nothing more.
    let (real, fake) = (open(ServerOptions::new(1)), TcpListener::bind("127.0.0.1:0").unwrap());
    let address = fake.local_addr().unwrap().to_string();
    let options = JoinOptions { address, timeout: LONG, ..rank_of(&real, 1, 0) };
    let joining = thread::spawn(move || TcpStore::join(&options).map(drop));
    let (mut stream, _) = fake.accept().unwrap();
    let mut upstream = TcpStream::connect(real.address()).unwrap();
    pass(&mut stream, &mut upstream, 54);
    pass(&mut upstream, &mut stream, 38);
    pass(&mut stream, &mut upstream, 37);
    let mut welcome = [0; 49];
    upstream.read_exact(&mut welcome).unwrap();
    // A heartbeat of 50 ms, and 200 ms of silence.
    welcome[37..45].copy_from_slice(&[50, 0, 0, 0, 200, 0, 0, 0]);
    stream.write_all(&welcome).unwrap();
    let error = joining.join().unwrap().err().unwrap();
    assert!(error.to_string().ends_with("nothing was heard of it for 200ms"), "{error}");
}

fn pass(from: &mut TcpStream, to: &mut TcpStream, len: usize) {
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes).unwrap();
    to.write_all(&bytes).unwrap();
}

#[test]
fn what_listens_there_but_is_no_store_is_said() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let join = |timeout| {
        let address = address.clone();
        TcpStore::join(&JoinOptions { address, rank: GlobalRank(0), world_size: 1, secret: None, timeout })
            .err()
            .unwrap()
    };
    let error = join(SHORT * 20);
    assert!(error.to_string().ends_with("tried for 1s; what listens there does not answer"), "{error}");
    let answering = thread::spawn(move || {
        while let Ok((mut stream, _)) = other.accept() {
            let mut byte = [0];
            if stream.read_exact(&mut byte).is_err() || byte[0] == b'!' {
                return;
            }
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let error = join(SHORT * 6);
    assert!(error.to_string().contains("not a bucketeer store"), "{error}");
    TcpStream::connect(&address).unwrap().write_all(b"!").unwrap();
    answering.join().unwrap();
    let error = join(SHORT);
    assert!(matches!(error, StoreError::Lost { .. }), "{error}");
}

#[test]
fn an_address_in_use_is_said_with_a_way_out() {
    let server = open(ServerOptions::new(1));
    let error = StoreServer::open(server.address(), ServerOptions::new(1)).err().unwrap();
    let text = "another process listens there; end it, or choose another port (BUCKETEER_STORE_PORT)";
    assert_eq!(error.to_string(), format!("no store can be opened at {}: {text}", server.address()));
    let elsewhere: SocketAddr = "192.0.2.1:0".parse().unwrap();
    let error = StoreServer::open(elsewhere, ServerOptions::new(1)).err().unwrap();
    assert!(error.to_string().ends_with("this machine does not have the address"), "{error}");
    let error = StoreServer::open(server.address(), ServerOptions::new(0)).err().unwrap();
    assert!(error.to_string().ends_with("a world has 1 to 65536 ranks, not 0"), "{error}");
}
