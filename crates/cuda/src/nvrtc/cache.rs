//! Compiled images on disk.
//!
//! An entry is a file named by a hash of its key. It holds the key itself, so two keys of one hash cannot be mixed up,
//! and a checksum at its end, so a damaged entry is compiled again. Entries are written beside and renamed: a reader
//! sees a whole one or none, also when several processes write it at once. The cache may be deleted at any time;
//! whatever cannot be read or written is as if there were no cache.
//!
//! ```text
//! bucketeer-cache 1\n KEY_LEN LOG_LEN IMAGE_LEN (8 bytes each, little-endian) KEY LOG IMAGE CHECKSUM (16 bytes)
//! ```

use super::Compiled;
use crate::{Image, ImageKind};
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: &[u8] = b"bucketeer-cache 1\n";
const CHECKSUM_BYTES: usize = 16;
/// An entry that claims to be longer is not read.
const MOST_BYTES: u64 = 256 << 20;

/// A folder of compiled images. Who can write there decides what runs on the GPU: it is made for its user alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// A cache in a folder, which is made when it is first written to.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The folder in `BUCKETEER_CACHE`, where an empty one means no cache; else `bucketeer` in `XDG_CACHE_HOME`; else
    /// `.cache/bucketeer` in `HOME`; else no cache.
    #[must_use]
    pub fn from_env() -> Option<Self> {
        folder(&|name| std::env::var_os(name)).map(Self::new)
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{:032x}", hash(key.as_bytes())))
    }

    /// The entry of a key, if it is there and whole.
    pub(super) fn get(&self, key: &str, kind: ImageKind) -> Option<Compiled> {
        let path = self.path(key);
        if std::fs::metadata(&path).ok()?.len() > MOST_BYTES {
            return None;
        }
        let compiled = decode(&std::fs::read(&path).ok()?, key)?;
        (compiled.image.kind() == kind).then_some(compiled)
    }

    /// Writes an entry, if it can.
    pub(super) fn put(&self, key: &str, compiled: &Compiled) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let path = self.path(key);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let beside = path.with_extension(format!("{}.{nth}.tmp", std::process::id()));
        let write = || {
            make_folder(&self.folder)?;
            let mut file = std::fs::File::create_new(&beside)?;
            file.write_all(&encode(key, compiled))?;
            std::fs::rename(&beside, &path)
        };
        if write().is_err() {
            let _ = std::fs::remove_file(&beside);
        }
    }
}

#[cfg(unix)]
fn make_folder(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(not(unix))]
fn make_folder(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)
}

fn folder(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(folder) = variable("BUCKETEER_CACHE") {
        return (!folder.is_empty()).then(|| folder.into());
    }
    let set = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(caches.join("bucketeer"))
}

fn encode(key: &str, compiled: &Compiled) -> Vec<u8> {
    let parts = [key.as_bytes(), compiled.log.as_bytes(), compiled.image.bytes()];
    let mut bytes = MAGIC.to_vec();
    bytes.extend(parts.iter().flat_map(|part| (part.len() as u64).to_le_bytes()));
    bytes.extend(parts.concat());
    bytes.extend(hash(&bytes).to_le_bytes());
    bytes
}

fn decode(bytes: &[u8], key: &str) -> Option<Compiled> {
    let (content, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>()?;
    if hash(content) != u128::from_le_bytes(*checksum) {
        return None;
    }
    let mut rest = content.strip_prefix(MAGIC)?;
    let mut lens = [0; 3];
    for len in &mut lens {
        let (number, after) = rest.split_first_chunk::<8>()?;
        *len = usize::try_from(u64::from_le_bytes(*number)).ok()?;
        rest = after;
    }
    let (found, rest) = rest.split_at_checked(lens[0])?;
    let (log, image) = rest.split_at_checked(lens[1])?;
    if found != key.as_bytes() || image.len() != lens[2] {
        return None;
    }
    let image = Image::new(image.to_vec()).ok()?;
    Some(Compiled { image, log: String::from_utf8(log.to_vec()).ok()?, cached: true })
}

/// FNV-1a of 128 bits on little-endian words of 8 bytes instead of bytes, which is eight times as fast, then on the
/// length. It is the same on every machine and in every build. Each step is one to one, so a change within one word is
/// always noticed. It finds accidents, not attacks: these the folder's permissions are for.
fn hash(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.chain([bytes.len() as u64]).fold(BASIS, |hash, word| (hash ^ u128::from(word)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Compiled {
        let image = Image::new(b".version 8.1\n".to_vec()).unwrap();
        Compiled { image, log: "a warning".to_owned(), cached: false }
    }

    #[test]
    fn an_entry_reads_back_under_its_own_key_alone() {
        let bytes = encode("key", &entry());
        let back = decode(&bytes, "key").unwrap();
        assert_eq!(back, Compiled { cached: true, ..entry() });
        assert_eq!(decode(&bytes, "another"), None);
    }

    #[test]
    fn every_byte_that_is_changed_or_missing_is_noticed() {
        let bytes = encode("key", &entry());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert_eq!(decode(&damaged, "key"), None, "byte {at} changed");
            assert_eq!(decode(&bytes[..at], "key"), None, "cut at {at}");
        }
    }

    #[test]
    fn the_hash_never_changes() {
        // Worked out apart; an entry of an earlier build would be lost else.
        assert_eq!(hash(b""), 0xd228_cb69_101a_8caf_7891_2b70_4e4a_147f);
        assert_eq!(hash(b"a"), 0x0880_9545_1aab_1be9_5aa0_7330_55b7_0f47);
        assert_eq!(hash(b"123456789"), 0x6c23_1ff2_0e7c_2443_679a_c483_e2c1_b112);
    }

    #[test]
    fn the_folder_is_where_the_variables_say() {
        let at = |variables: &[(&str, &str)]| {
            folder(&|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
        };
        let home = ("HOME", "/home/me");
        assert_eq!(at(&[home]), Some("/home/me/.cache/bucketeer".into()));
        assert_eq!(at(&[home, ("XDG_CACHE_HOME", "/cache")]), Some("/cache/bucketeer".into()));
        assert_eq!(at(&[home, ("BUCKETEER_CACHE", "/mine")]), Some("/mine".into()));
        assert_eq!(at(&[home, ("BUCKETEER_CACHE", "")]), None);
        assert_eq!(at(&[("XDG_CACHE_HOME", "not/absolute")]), None);
        assert_eq!(at(&[]), None);
    }
}
