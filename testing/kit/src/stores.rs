//! Stores over TCP and their ranks, good and bad ones.
use bucketeer::ir::GlobalRank;
use bucketeer_comm::store::{JoinOptions, ServerOptions, StoreServer, TcpStore};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything here takes.
pub const LONG: Duration = Duration::from_secs(60);
/// Long enough to see that something does not come.
pub const SHORT: Duration = Duration::from_millis(50);

/// A store on a port of its own.
pub fn open(options: ServerOptions) -> StoreServer {
    StoreServer::open("127.0.0.1:0".parse().unwrap(), options).unwrap()
}

/// How a rank joins a store.
pub fn rank_of(server: &StoreServer, world_size: u32, rank: u32) -> JoinOptions {
    let address = server.address().to_string();
    JoinOptions { address, rank: GlobalRank(rank), world_size, secret: None, timeout: LONG }
}

/// All ranks of a world, joined at once.
pub fn join_all(server: &StoreServer, world_size: u32) -> Vec<TcpStore> {
    thread::scope(|scope| {
        let join = |rank| TcpStore::join(&rank_of(server, world_size, rank)).unwrap();
        let joining: Vec<_> = (0..world_size).map(|rank| scope.spawn(move || join(rank))).collect();
        joining.into_iter().map(|store| store.join().unwrap()).collect()
    })
}

/// Waits until something is so.
#[track_caller]
pub fn until(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LONG, "not so after {LONG:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A frame with this body.
pub fn frame(body: &[u8]) -> Vec<u8> {
    [&u32::try_from(body.len()).unwrap().to_le_bytes(), body].concat()
}

/// A hello without a secret, as `docs/launch.md` describes it.
pub fn hello(version: u32, rank: u32, world_size: u32) -> Vec<u8> {
    let numbers = [version, rank, world_size].map(u32::to_le_bytes).concat();
    frame(&[&[1], &b"BKTR"[..], &numbers, &[0], &[9; 32]].concat())
}

/// All that comes until the other side closes.
pub fn read_to_end(mut stream: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.set_read_timeout(Some(LONG)).unwrap();
    // A connection that is reset ends, too.
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

/// Answers the challenge of a store without a secret, by a proof with an empty one.
pub fn empty_proof(stream: &mut TcpStream, rank: u32, world_size: u32) -> Vec<u8> {
    use hmac::{Hmac, KeyInit, Mac};
    let mut challenge = [0; 38];
    stream.read_exact(&mut challenge).unwrap();
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(b"").unwrap();
    for part in [b"bucketeer store: rank", &rank.to_le_bytes()[..], &world_size.to_le_bytes(), &[9; 32]] {
        mac.update(part);
    }
    mac.update(&challenge[6..]);
    frame(&[&[2], &mac.finalize().into_bytes()[..]].concat())
}

/// A rank that says nothing more after it was let in.
pub fn silent_rank(server: &StoreServer, world_size: u32, rank: u32) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(&hello(1, rank, world_size)).unwrap();
    let proof = empty_proof(&mut stream, rank, world_size);
    stream.write_all(&proof).unwrap();
    stream
}
