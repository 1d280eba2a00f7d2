//! Who sends a store what makes no sense, or too much, does not hold up the others.

use bucketeer::ir::GlobalRank;
use bucketeer_comm::Fate;
use bucketeer_comm::store::{ServerOptions, Store, TcpStore};
use bucketeer_fuzzing as fuzzing;
use kit::stores::{LONG, SHORT, frame, hello, join_all, open, rank_of, read_to_end, silent_rank, until};
use proptest::prelude::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

#[test]
fn half_a_frame_nothing_and_garbage_do_not_hold_up_the_others() {
    let server = open(ServerOptions { hello_limit: Duration::from_secs(2), ..ServerOptions::new(2) });
    let nothing = TcpStream::connect(server.address()).unwrap();
    let mut half = TcpStream::connect(server.address()).unwrap();
    half.write_all(&hello(1, 0, 2)[..20]).unwrap();
    let mut http = TcpStream::connect(server.address()).unwrap();
    http.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut early = TcpStream::connect(server.address()).unwrap();
    early.write_all(&frame(&[22, 0, 0, 0, 0, 0, 0, 0, 0])).unwrap();
    let ranks = join_all(&server, 2);
    ranks[0].set("k", b"v").unwrap();
    for stream in [nothing, half, http, early] {
        assert_eq!(read_to_end(&stream), b"");
    }
    until(|| server.refused().len() == 2);
    assert_eq!(
        server.refused(),
        [
            "127.0.0.1: what it sent is not from a rank of bucketeer (2 times)",
            "127.0.0.1: did not say who it is within 2s (2 times)"
        ]
    );
    assert_eq!(ranks[1].get(&["k".to_owned()]).unwrap(), [Some(b"v".to_vec())]);
}

#[test]
fn a_flood_of_connections_does_not_keep_ranks_out() {
    let server = open(ServerOptions { max_strangers: 16, hello_limit: LONG, ..ServerOptions::new(2) });
    let flood: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    let ranks = join_all(&server, 2);
    ranks[0].set("k", b"v").unwrap();
    // All but as many as are allowed were closed.
    for stream in &flood[..184] {
        assert_eq!(read_to_end(stream), b"");
    }
}

#[test]
fn a_rank_that_sends_what_cannot_be_read_is_lost() {
    let server = open(ServerOptions::new(2));
    let mut stream = silent_rank(&server, 2, 1);
    let store = TcpStore::join(&rank_of(&server, 2, 0)).unwrap();
    stream.write_all(&u32::MAX.to_le_bytes()).unwrap();
    until(|| !store.gone().is_empty());
    assert_eq!(store.gone(), [(GlobalRank(1), Fate::Lost)]);
    assert_eq!(store.refused(), ["127.0.0.1: rank 1 sent what cannot be read"]);
}

/// A request for a value of 1 MiB, so that the answers are many times as long as the requests.
fn get_large(number: u8) -> Vec<u8> {
    frame(&[&[18, number, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0], &b"large"[..]].concat())
}

#[test]
fn a_rank_that_does_not_read_its_answers_does_not_hold_up_the_others_and_gets_them_later() {
    let server = open(ServerOptions::new(2));
    let mut stream = silent_rank(&server, 2, 1);
    let store = TcpStore::join(&rank_of(&server, 2, 0)).unwrap();
    store.set("large", &vec![7; 1 << 20]).unwrap();
    // At once, so that all are there before the first is answered.
    stream.write_all(&(0..200).flat_map(get_large).collect::<Vec<u8>>()).unwrap();
    for i in 0..100_u8 {
        store.set("k", &[i]).unwrap();
    }
    assert_eq!(store.gone(), []);
    // A welcome, then the answers: each with its number and how many values, one that is there, and its length.
    let mut welcome = [0; 49];
    stream.read_exact(&mut welcome).unwrap();
    let mut answer = vec![0; 4 + 9 + 4 + 5 + (1 << 20)];
    for number in 0..200 {
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[4..6], [17, number]);
    }
}

#[test]
fn a_rank_that_never_reads_its_answers_is_lost_in_time() {
    let silence = Duration::from_secs(2);
    let server = open(ServerOptions { heartbeat: SHORT, silence, ..ServerOptions::new(2) });
    let mut stream = silent_rank(&server, 2, 1);
    let store = TcpStore::join(&rank_of(&server, 2, 0)).unwrap();
    store.set("large", &vec![7; 1 << 20]).unwrap();
    stream.write_all(&(0..200).flat_map(get_large).collect::<Vec<u8>>()).unwrap();
    // It says that it lives, but nobody can tell.
    let ping = frame(&[3]);
    until(|| {
        let _ = stream.write_all(&ping);
        !store.gone().is_empty()
    });
    assert_eq!(store.gone(), [(GlobalRank(1), Fate::Lost)]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_strangers_and_ranks_send_others_go_on(
        garbage in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..6),
        kinds in prop::collection::vec(0_u8..30, 6),
        let_in in any::<bool>(),
    ) {
        let server = open(ServerOptions::new(2));
        let mut stream = silent_rank(&server, 2, 1);
        let store = TcpStore::join(&rank_of(&server, 2, 0)).unwrap();
        for (bytes, kind) in garbage.iter().zip(kinds) {
            let mut body = bytes.clone();
            body.insert(0, kind);
            let sent = if let_in { frame(&body) } else { bytes.clone() };
            let mut stranger = TcpStream::connect(server.address()).unwrap();
            // Either may be closed already.
            let _ = stranger.write_all(&sent);
            let _ = stream.write_all(&sent);
        }
        store.set("k", b"v").unwrap();
        prop_assert_eq!(store.get(&["k".to_owned()]).unwrap(), [Some(b"v".to_vec())]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_bytes_come_the_hub_goes_on(
        parts in prop::collection::vec((0_u8..30, prop::collection::vec(0_u8..12, 0..96), any::<bool>()), 0..8),
        noise in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        // Bodies of requests, most of which are cut off or go on for too long; some fit.
        let mut bytes = Vec::new();
        for (kind, body, whole) in parts {
            bytes.push(kind);
            bytes.extend(body);
            if whole {
                bytes.resize(bytes.len().next_multiple_of(97), 0);
            }
        }
        bytes.extend(noise);
        fuzzing::store_frames(&bytes);
    }
}

#[test]
fn fuzzing_reaches_past_the_reader() {
    let gone = [22, 1, 0, 0, 0, 0, 0, 0, 0];
    assert!(fuzzing::store_frames(&gone));
    assert!(fuzzing::store_frames(&frame(&gone)));
    assert!(!fuzzing::store_frames(&gone[..8]));
}
