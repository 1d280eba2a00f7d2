//! Where the ranks of a communicator meet, in threads or processes: a folder in shared memory (`/dev/shm`, or
//! `FAKEGPU_NCCL_DIR`), named by the unique id. A message is a file that appears whole: a header of 64 bytes, then
//! data.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

const HEADER_BYTES: usize = 64;
const MAGIC: u32 = 0x4c43_434e;
const LAYOUT: u32 = 1;

/// What a message says before its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    pub kind: u32,
    pub dtype: i32,
    pub op: i32,
    pub root: i32,
    pub rank: u32,
    pub size: u32,
    pub count: u64,
    /// A factor's bytes, or what else all must agree on.
    pub extra: u64,
    pub pid: u32,
}

impl Header {
    fn to_bytes(self, data: usize) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let (dtype, op, root) = (self.dtype as u32, self.op as u32, self.root as u32);
        let words = [MAGIC, LAYOUT, self.kind, dtype, op, root, self.rank, self.size, self.pid];
        words.iter().enumerate().for_each(|(at, word)| bytes[4 * at..][..4].copy_from_slice(&word.to_le_bytes()));
        let longs = [self.count, self.extra, data as u64];
        longs.iter().enumerate().for_each(|(at, long)| bytes[40 + 8 * at..][..8].copy_from_slice(&long.to_le_bytes()));
        bytes
    }

    /// The header of a whole message.
    fn of(message: &[u8]) -> Option<Self> {
        let header = message.get(..HEADER_BYTES)?;
        let word = |at: usize| u32::from_le_bytes(header[4 * at..][..4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(header[40 + 8 * at..][..8].try_into().expect("8 bytes"));
        let is_whole = word(0) == MAGIC && word(1) == LAYOUT && long(2) == (message.len() - HEADER_BYTES) as u64;
        is_whole.then(|| Self {
            kind: word(2),
            dtype: word(3) as i32,
            op: word(4) as i32,
            root: word(5) as i32,
            rank: word(6),
            size: word(7),
            pid: word(8),
            count: long(0),
            extra: long(1),
        })
    }
}

/// A folder where ranks meet.
pub struct Room(PathBuf);

impl Room {
    /// The folder of a name; made if there is none yet.
    pub fn enter(name: &str) -> Result<Self, String> {
        let shared = Path::new("/dev/shm");
        let base = match std::env::var_os("FAKEGPU_NCCL_DIR") {
            Some(base) => base.into(),
            None if shared.is_dir() => shared.to_owned(),
            None => std::env::temp_dir(),
        };
        let folder = base.join(format!("fakegpu-nccl-{name}"));
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Self(folder))
    }

    /// Leaves a message; whether there was none of this name.
    pub fn post(&self, name: &str, header: Header, data: &[u8]) -> Result<bool, String> {
        let thread = std::thread::current().id();
        let draft = self.0.join(format!("draft.{}.{thread:?}.{name}", std::process::id()));
        let write = || {
            let mut file = fs::File::create(&draft)?;
            file.write_all(&header.to_bytes(data.len()))?;
            file.write_all(data)?;
            drop(file);
            // A link does not replace what is there, as a rename would.
            let linked = fs::hard_link(&draft, self.0.join(name));
            fs::remove_file(&draft)?;
            linked
        };
        match write() {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(format!("{}: {error}", draft.display())),
        }
    }

    /// The message of a name, when it is there.
    pub fn read(&self, name: &str) -> Result<Option<(Header, Vec<u8>)>, String> {
        let path = self.0.join(name);
        let mut message = match fs::read(&path) {
            Ok(message) => message,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        let header = Header::of(&message).ok_or_else(|| format!("{} is not a message", path.display()))?;
        message.drain(..HEADER_BYTES);
        Ok(Some((header, message)))
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.join(name).exists()
    }

    pub fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.0.join(name));
    }

    /// Notes that a rank is gone; the last one takes the folder away.
    pub fn leave(&self, rank: u32, size: u32) {
        let _ = self.post(&format!("gone.{rank}"), Header::default(), &[]);
        if (0..size).all(|rank| self.has(&format!("gone.{rank}"))) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_posted_once() {
        let room = Room::enter(&format!("test-{}", std::process::id())).unwrap();
        let header = Header { kind: 3, dtype: -1, op: 4, root: 5, rank: 6, size: 7, count: 8, extra: u64::MAX, pid: 9 };
        assert_eq!(room.read("a").unwrap(), None);
        assert!(room.post("a", header, b"data").unwrap());
        assert!(!room.post("a", header, b"more").unwrap(), "there is one");
        assert_eq!(room.read("a").unwrap(), Some((header, b"data".to_vec())));
        room.leave(0, 1);
        assert!(!room.has("a"));
    }

    #[test]
    fn what_is_cut_short_is_no_message() {
        let whole = Header::default().to_bytes(0).to_vec();
        assert!(Header::of(&whole).is_some());
        assert!(Header::of(&whole[..63]).is_none() && Header::of(&[&whole[..], &[0]].concat()).is_none());
        assert!(Header::of(&[1; 64]).is_none());
    }
}
