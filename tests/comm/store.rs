//! What a store promises, for each kind of store.

use bucketeer::ir::GlobalRank;
use bucketeer_comm::Fate;
use bucketeer_comm::store::{
    JoinOptions, MAX_KEY_BYTES, MAX_KEYS, MAX_VALUE_BYTES, MemoryStore, Secret, ServerOptions, Store, StoreError,
    StoreServer, TcpStore,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(20);

type World = Vec<Box<dyn Store>>;

fn memory(world_size: u32) -> World {
    MemoryStore::world(world_size).into_iter().map(|store| Box::new(store) as Box<dyn Store>).collect()
}

fn options(address: String, world_size: u32, rank: u32) -> JoinOptions {
    JoinOptions { address, rank: GlobalRank(rank), world_size, secret: None, timeout: LONG }
}

/// Joins all ranks at a time.
fn join_all(world: &[JoinOptions]) -> World {
    thread::scope(|scope| {
        let joining: Vec<_> = world.iter().map(|options| scope.spawn(|| TcpStore::join(options).unwrap())).collect();
        joining.into_iter().map(|store| Box::new(store.join().unwrap()) as Box<dyn Store>).collect()
    })
}

fn open(options: ServerOptions) -> (StoreServer, String) {
    let server = StoreServer::open("127.0.0.1:0".parse().unwrap(), options).unwrap();
    let address = server.address().to_string();
    (server, address)
}

/// Runs a check on a world of each kind of store.
fn on_each(world_size: u32, check: impl Fn(World)) {
    check(memory(world_size));
    let (server, address) = open(ServerOptions::new(world_size));
    let world: Vec<_> = (0..world_size).map(|rank| options(address.clone(), world_size, rank)).collect();
    check(join_all(&world));
    assert!(server.wait_until_left(LONG));
    assert_eq!(server.gone().len(), world_size as usize);
    assert_eq!(server.refused(), Vec::<String>::new());
}

fn keys(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[test]
fn a_value_that_one_rank_sets_is_there_for_all() {
    on_each(3, |ranks| {
        for (rank, store) in ranks.iter().enumerate() {
            assert_eq!((store.rank(), store.world_size()), (GlobalRank(rank as u32), 3));
        }
        ranks[2].set("a", b"1").unwrap();
        ranks[0].set("b", b"").unwrap();
        let found = ranks[1].get(&keys(&["b", "c", "a", "b"])).unwrap();
        assert_eq!(found, [Some(vec![]), None, Some(b"1".to_vec()), Some(vec![])]);
        ranks[1].set("a", b"22").unwrap();
        assert_eq!(ranks[0].get(&keys(&["a"])).unwrap(), [Some(b"22".to_vec())]);
        assert_eq!(ranks[0].get(&[]).unwrap(), Vec::<Option<Vec<u8>>>::new());
    });
}

#[test]
fn of_ranks_that_set_a_value_once_the_first_wins() {
    on_each(2, |ranks| {
        assert_eq!(ranks[1].set_once("k", b"mine").unwrap(), b"mine");
        assert_eq!(ranks[0].set_once("k", b"no, mine").unwrap(), b"mine");
        assert!(ranks[0].remove("k").unwrap());
        assert!(!ranks[0].remove("k").unwrap());
        assert_eq!(ranks[0].set_once("k", b"now").unwrap(), b"now");
    });
}

#[test]
fn numbers_are_added_up_from_all_threads() {
    on_each(4, |ranks| {
        thread::scope(|scope| {
            for store in &ranks {
                scope.spawn(|| (0..100).for_each(|_| assert!(store.add("n", 3).unwrap() >= 3)));
            }
        });
        assert_eq!(ranks[0].add("n", -200).unwrap(), 1000);
        assert_eq!(ranks[1].get(&keys(&["n"])).unwrap(), [Some(b"1000".to_vec())]);
    });
}

#[test]
fn what_is_no_number_is_not_added_to() {
    on_each(1, |ranks| {
        ranks[0].set("n", b"12x").unwrap();
        let error = ranks[0].add("n", 1).unwrap_err();
        assert!(error.to_string().ends_with("refuses: the value of `n` is not a number to add to"), "{error}");
        ranks[0].set("n", i64::MAX.to_string().as_bytes()).unwrap();
        let error = ranks[0].add("n", 1).unwrap_err();
        assert!(error.to_string().contains("adding 1 leaves 64 bits"), "{error}");
        assert_eq!(ranks[0].add("n", 0).unwrap(), i64::MAX);
    });
}

#[test]
fn a_wait_ends_when_the_last_of_its_keys_is_set() {
    on_each(2, |ranks| {
        let set = AtomicU32::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for name in ["c", "a", "b"] {
                    thread::sleep(SHORT);
                    set.fetch_add(1, Ordering::SeqCst);
                    ranks[1].set(name, name.as_bytes()).unwrap();
                }
            });
            let values = ranks[0].wait(&keys(&["a", "b", "c", "a"]), LONG).unwrap();
            assert_eq!(set.load(Ordering::SeqCst), 3);
            assert_eq!(values, [b"a", b"b", b"c", b"a"]);
        });
        assert_eq!(ranks[0].wait(&[], Duration::ZERO).unwrap(), Vec::<Vec<u8>>::new());
    });
}

#[test]
fn a_key_that_is_removed_while_another_is_waited_for_is_waited_for_again() {
    on_each(2, |ranks| {
        ranks[0].set("a", b"old").unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| ranks[0].wait(&keys(&["a", "b"]), LONG));
            thread::sleep(SHORT);
            assert!(ranks[1].remove("a").unwrap());
            ranks[1].set("b", b"b").unwrap();
            thread::sleep(SHORT);
            assert!(!waiter.is_finished());
            ranks[1].set("a", b"new").unwrap();
            assert_eq!(waiter.join().unwrap().unwrap(), [b"new".to_vec(), b"b".to_vec()]);
        });
    });
}

#[test]
fn a_wait_that_ends_too_early_names_the_keys_that_are_missing() {
    on_each(1, |ranks| {
        ranks[0].set("here", b"").unwrap();
        let start = Instant::now();
        let error = ranks[0].wait(&keys(&["x/0", "here", "x/1"]), SHORT).unwrap_err();
        assert!(start.elapsed() >= SHORT);
        let StoreError::Timeout { keys: missing, waited } = &error else { panic!("{error}") };
        assert_eq!(*missing, keys(&["x/0", "x/1"]));
        assert!(*waited >= SHORT);
        assert!(error.to_string().ends_with("the store has no x/0, x/1"), "{error}");
        let many: Vec<String> = (0..100).map(|i| format!("k{i}")).collect();
        let Err(StoreError::Timeout { keys: missing, .. }) = ranks[0].wait(&many, Duration::ZERO) else { panic!() };
        assert_eq!(missing, many[..16]);
    });
}

#[test]
fn a_request_that_waits_does_not_hold_up_others_of_the_same_handle() {
    on_each(1, |ranks| {
        thread::scope(|scope| {
            let waiters: Vec<_> = (0..8).map(|_| scope.spawn(|| ranks[0].wait(&keys(&["late"]), LONG))).collect();
            for i in 0..100 {
                ranks[0].set("other", &[i]).unwrap();
            }
            assert!(ranks[0].wait(&keys(&["never"]), SHORT).is_err());
            ranks[0].set("late", b"!").unwrap();
            for waiter in waiters {
                assert_eq!(waiter.join().unwrap().unwrap(), [b"!"]);
            }
        });
    });
}

#[test]
fn what_is_too_large_is_not_sent() {
    on_each(1, |ranks| {
        let store = &ranks[0];
        let (longest, longer) = ("k".repeat(MAX_KEY_BYTES), "k".repeat(MAX_KEY_BYTES + 1));
        store.set(&longest, &vec![7; MAX_VALUE_BYTES]).unwrap();
        assert_eq!(store.get(&[longest]).unwrap()[0].as_ref().unwrap().len(), MAX_VALUE_BYTES);
        let too_large = |result: Result<(), StoreError>| {
            let error = result.unwrap_err();
            assert!(matches!(error, StoreError::TooLarge { .. }), "{error}");
            error.to_string()
        };
        let text = too_large(store.set("k", &vec![7; MAX_VALUE_BYTES + 1]));
        assert_eq!(text, "a store takes 1048576 bytes for a value at most, not 1048577");
        assert_eq!(too_large(store.set(&longer, b"")), "a store takes 512 bytes for a key at most, not 513");
        too_large(store.set_once(&longer, b"").map(drop));
        too_large(store.add(&longer, 1).map(drop));
        too_large(store.remove(&longer).map(drop));
        too_large(store.get(std::slice::from_ref(&longer)).map(drop));
        too_large(store.wait(std::slice::from_ref(&longer), LONG).map(drop));
        let most = vec![String::new(); MAX_KEYS];
        assert_eq!(store.get(&most).unwrap().len(), MAX_KEYS);
        let text = too_large(store.get(&vec![String::new(); MAX_KEYS + 1]).map(drop));
        assert_eq!(text, "a store takes 65536 keys in a request at most, not 65537");
        let heavy = vec!["k".repeat(MAX_KEY_BYTES); 20_000];
        let text = too_large(store.get(&heavy).map(drop));
        assert!(text.starts_with("a store takes 8388608 bytes for the keys of a request at most"), "{text}");
        // Nothing of this did any harm.
        store.set("k", b"fine").unwrap();
    });
}

#[test]
fn a_reply_that_is_too_large_is_an_error() {
    on_each(1, |ranks| {
        ranks[0].set("k", &vec![7; MAX_VALUE_BYTES]).unwrap();
        assert_eq!(ranks[0].get(&vec!["k".to_owned(); 16]).unwrap().len(), 16);
        let error = ranks[0].get(&vec!["k".to_owned(); 17]).unwrap_err();
        let text = "a store takes 16777216 bytes for the values of a reply at most, not 17825792";
        assert_eq!(error.to_string(), text);
        assert_eq!(ranks[0].wait(&vec!["k".to_owned(); 17], LONG).unwrap_err(), error);
    });
}

#[test]
fn a_store_holds_no_more_than_its_limit() {
    on_each(1, |ranks| {
        let value = vec![7; MAX_VALUE_BYTES];
        let error = (0..256).find_map(|i| ranks[0].set(&format!("k{i}"), &value).err()).unwrap();
        assert!(matches!(error, StoreError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("and 268435456 are allowed"), "{error}");
        ranks[0].set("k0", b"smaller").unwrap();
        ranks[0].set("k255", &value).unwrap();
    });
}

#[test]
fn a_rank_that_drops_its_handle_has_left() {
    on_each(3, |mut ranks| {
        assert_eq!(ranks[0].gone(), []);
        drop(ranks.pop());
        assert_eq!(ranks[0].gone(), [(GlobalRank(2), Fate::Left)]);
        let store = ranks.pop().unwrap();
        let panicked = thread::spawn(move || {
            let _store = store;
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(panicked.join().is_err());
        assert_eq!(ranks[0].gone(), [(GlobalRank(1), Fate::Panicked), (GlobalRank(2), Fate::Left)]);
        assert_eq!(ranks[0].refused(), Vec::<String>::new());
    });
}

#[test]
fn a_rank_in_memory_that_is_lost_can_ask_nothing_more() {
    let ranks = MemoryStore::world(2);
    ranks[1].lose();
    assert_eq!(ranks[0].gone(), [(GlobalRank(1), Fate::Lost)]);
    let error = ranks[1].set("k", b"").unwrap_err();
    assert_eq!(error.to_string(), "the store at memory cannot be reached: rank 1 was let go");
    drop(ranks);
}

#[test]
fn ranks_with_the_secret_of_the_world_are_let_in() {
    let secret = Some(Secret::new("not told to anyone").unwrap());
    let (_server, address) = open(ServerOptions { secret: secret.clone(), ..ServerOptions::new(2) });
    let join = |rank| JoinOptions { secret: secret.clone(), ..options(address.clone(), 2, rank) };
    let ranks = join_all(&[join(0), join(1)]);
    ranks[0].set("k", b"v").unwrap();
    assert_eq!(ranks[1].get(&keys(&["k"])).unwrap(), [Some(b"v".to_vec())]);
}

#[test]
fn ranks_may_come_before_the_store_is_there() {
    let (server, address) = open(ServerOptions::new(1));
    let port = server.address();
    drop(server);
    let early = options(address, 1, 0);
    let joining = thread::spawn(move || TcpStore::join(&early).unwrap());
    thread::sleep(SHORT);
    let _server = StoreServer::open(port, ServerOptions::new(1)).unwrap();
    joining.join().unwrap().set("k", b"").unwrap();
}

#[test]
fn the_rank_that_holds_the_store_closes_it_after_the_others_have_left() {
    let (server, address) = open(ServerOptions { holder: Some(GlobalRank(0)), ..ServerOptions::new(2) });
    let other = options(address.clone(), 2, 1);
    let joining = thread::spawn(move || TcpStore::join(&other).unwrap());
    let own = TcpStore::join_own(server, &options(address, 2, 0)).unwrap();
    let other = joining.join().unwrap();
    thread::scope(|scope| {
        let leaving = scope.spawn(move || drop(own));
        while other.gone().is_empty() {
            thread::yield_now();
        }
        // The first rank has left, and the store is there all the same.
        other.set("k", b"v").unwrap();
        assert_eq!(other.gone(), [(GlobalRank(0), Fate::Left)]);
        assert!(!leaving.is_finished());
        drop(other);
    });
}

/// `cargo test --release --test comm store:: -- --ignored --nocapture`, with `ulimit -n 4096`.
#[test]
#[ignore = "needs 4,000 threads and 2,100 file descriptors"]
fn a_thousand_ranks_meet() {
    const RANKS: u32 = 1024;
    let (server, address) = open(ServerOptions::new(RANKS));
    let world: Vec<_> = (0..RANKS).map(|rank| options(address.clone(), RANKS, rank)).collect();
    let start = Instant::now();
    let ranks = join_all(&world);
    println!("{RANKS} ranks joined after {:?}", start.elapsed());
    let start = Instant::now();
    let all: Vec<String> = (0..RANKS).map(|rank| format!("rank/{rank}")).collect();
    thread::scope(|scope| {
        for (store, key) in ranks.iter().zip(&all) {
            scope.spawn(|| {
                store.set(key, &[7; 128]).unwrap();
                assert_eq!(store.wait(&all, LONG).unwrap().len(), RANKS as usize);
            });
        }
    });
    println!("all told 128 bytes to all after {:?}", start.elapsed());
    let start = Instant::now();
    thread::scope(|scope| ranks.into_iter().for_each(|store| drop(scope.spawn(move || drop(store)))));
    assert!(server.wait_until_left(LONG));
    println!("all left after {:?}", start.elapsed());
}
