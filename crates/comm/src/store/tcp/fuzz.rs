//! What a fuzzer checks of the server's state.

use super::message::{Answer, ClientFrame, Hello, PROTOCOL_VERSION, Request, ServerFrame};
use super::peer::PeerId;
use super::secret::{Claim, Side};
use super::server_state::{Rules, ServerState};
use super::wire::Frames;
use std::time::{Duration, Instant};

const WORLD_SIZE: u32 = 3;

/// Bytes that are heard at once.
const PART_BYTES: usize = 97;

/// Most bytes of what the store says at once here.
const MOST_BYTES: usize = 1 << 20;

/// Feeds bytes to a stranger and to a rank, as they are and as bodies of frames; another rank goes on. Returns whether
/// any was understood.
#[must_use]
pub fn fuzz(bytes: &[u8]) -> bool {
    let now = Instant::now();
    let limit = Duration::from_secs(60);
    let rules = Rules {
        world_size: WORLD_SIZE,
        secret: None,
        holder: None,
        heartbeat: limit,
        silence: limit,
        hello_limit: limit,
        max_strangers: 8,
    };
    let mut server = ServerState::new(rules, "fuzz".to_owned());
    let good = let_in(&mut server, 0, now);
    let mut understood = false;
    for framed in [false, true] {
        let bad = let_in(&mut server, 1 + u32::from(framed), now);
        let stranger = server.open("stranger".to_owned(), now);
        let mut fed = 0;
        for part in bytes.chunks(PART_BYTES) {
            let part = if framed { [&(part.len() as u32).to_le_bytes(), part].concat() } else { part.to_vec() };
            fed += part.len();
            for id in [bad, stranger] {
                server.hear(id, &part, now);
                let held = server.peer(id).map_or(0, |peer| peer.frames.held_bytes());
                assert!(held <= 2 * fed + 64, "{held} bytes are held after {fed}");
            }
            understood |= server.peer(bad).is_some_and(|peer| !peer.out.is_empty());
        }
    }
    let answer = ask(&mut server, good, 1, Request::Set("good".to_owned(), b"value".to_vec()), now);
    assert!(matches!(answer, Answer::Done), "{answer:?}");
    let answer = ask(&mut server, good, 2, Request::Get(vec!["good".to_owned()]), now);
    assert_eq!(answer, Answer::Values(vec![Some(b"value".to_vec())]));
    understood
}

fn let_in(server: &mut ServerState, rank: u32, now: Instant) -> PeerId {
    let id = server.open("rank".to_owned(), now);
    let rank_nonce = [7; 32];
    let hello = Hello { version: PROTOCOL_VERSION, rank, world_size: WORLD_SIZE, has_secret: false, nonce: rank_nonce };
    server.hear(id, &ClientFrame::Hello(hello).encode(), now);
    let ServerFrame::Challenge { nonce: store_nonce, .. } = told(server, id) else { panic!("no challenge") };
    let claim = Claim { rank, world_size: WORLD_SIZE, rank_nonce, store_nonce };
    server.hear(id, &ClientFrame::Proof(claim.prove(Side::Rank, None)).encode(), now);
    assert!(matches!(told(server, id), ServerFrame::Welcome { .. }));
    id
}

fn ask(server: &mut ServerState, id: PeerId, number: u64, request: Request, now: Instant) -> Answer {
    server.hear(id, &ClientFrame::Request(number, request).encode(), now);
    let ServerFrame::Answer(answered, answer) = told(server, id) else { panic!("no answer") };
    assert_eq!(answered, number);
    answer
}

/// What the store says to a peer, which is one thing.
fn told(server: &mut ServerState, id: PeerId) -> ServerFrame {
    let peer = server.peer(id).expect("a good peer is not dropped");
    let mut frames = Frames::default();
    frames.feed(peer.out.make_contiguous());
    peer.out.clear();
    let body = frames.next(MOST_BYTES).expect("a frame").expect("a whole frame");
    assert_eq!(frames.next(MOST_BYTES), Ok(None));
    ServerFrame::decode(&body).expect("a message")
}
