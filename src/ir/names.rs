//! Interned strings: each distinct text is stored once, in one buffer, and named by a [`Name`].

use super::entities::Name;
use super::operators::{Operator, Resolved};
use hashbrown::HashTable;
use rustc_hash::FxHasher;
use std::hash::Hasher;

/// 32 bits are kept beside each name: 25 of the text up to its last byte, and 7 of that byte.
fn hash(text: &str) -> u32 {
    let (last, stem) = text.as_bytes().split_last().unwrap_or((&0, &[]));
    let mut hasher = FxHasher::default();
    hasher.write(stem);
    let hash = hasher.finish();
    ((hash ^ (hash >> 32)) as u32) << 7 | u32::from(last & 0x7f)
}

/// The hash as the table wants it: names are looked for from a place that the lower bits choose, and told apart by the
/// upper 7, to which the last byte is added. So `add.10` to `add.19` stand side by side, and one that follows another
/// finds its place in the cache.
fn spread(hash: u32) -> u64 {
    let place = u64::from(hash >> 7).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    place >> 7 | (place >> 57 ^ u64::from(hash)) << 57
}

/// A set of strings. Names are handed out in order of first use, so equal inputs give equal names.
#[derive(Clone, Default)]
pub struct Names {
    text: String,
    /// End of each string in `text`; it starts where the one before it ends.
    ends: Vec<usize>,
    /// Each name with its hash, so that most comparisons, and growing, need not look at the text.
    table: HashTable<(Name, u32)>,
    /// What each string calls as a target.
    operators: Resolved,
}

impl Names {
    /// Makes room for so many more names.
    pub fn reserve(&mut self, more: usize) {
        self.ends.reserve(more);
        self.operators.reserve(more);
        self.table.reserve(more, |&(_, hash)| spread(hash));
    }

    /// The name of `text`, new if it was not seen before.
    pub fn intern(&mut self, text: &str) -> Name {
        let hash = hash(text);
        self.lookup(hash, text).unwrap_or_else(|| self.add(hash, text))
    }

    /// A name for `text`, if it has none yet.
    pub fn intern_new(&mut self, text: &str) -> Option<Name> {
        let hash = hash(text);
        self.lookup(hash, text).is_none().then(|| self.add(hash, text))
    }

    /// The name of `text` if it has one.
    #[must_use]
    pub fn find(&self, text: &str) -> Option<Name> {
        self.lookup(hash(text), text)
    }

    fn lookup(&self, hash: u32, text: &str) -> Option<Name> {
        let same = |&(name, known): &(Name, u32)| known == hash && self.get(name) == text;
        self.table.find(spread(hash), same).map(|&(name, _)| name)
    }

    fn add(&mut self, hash: u32, text: &str) -> Name {
        let name = Name::from_index(self.ends.len());
        self.text.push_str(text);
        self.ends.push(self.text.len());
        self.operators.push();
        self.table.insert_unique(spread(hash), (name, hash), |&(_, hash)| spread(hash));
        name
    }

    /// The text of `name`.
    #[must_use]
    pub fn get(&self, name: Name) -> &str {
        slice(&self.text, &self.ends, name)
    }

    /// What `name` calls as a target.
    #[must_use]
    pub fn operator(&self, name: Name) -> Operator<'_> {
        self.operators.operator(name.index(), self.get(name))
    }

    /// How many distinct strings there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether nothing was interned yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

fn slice<'a>(text: &'a str, ends: &[usize], name: Name) -> &'a str {
    let index = name.index();
    let start = if index == 0 { 0 } else { ends[index - 1] };
    &text[start..ends[index]]
}

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Names({})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_share_a_place_are_told_apart() {
        // Stems that end alike, and all last bytes behind one stem, with some outside of ASCII.
        let numbered = (0..3000).flat_map(|nth| [format!("add.{nth}"), format!("add.{nth}.wait"), format!("{nth}")]);
        let last = (0..512).filter_map(char::from_u32).map(|last| format!("stem{last}"));
        let texts: Vec<String> = numbered.chain(last).chain([String::new()]).collect();
        let mut names = Names::default();
        let made: Vec<Name> = texts.iter().map(|text| names.intern(text)).collect();
        assert_eq!(names.len(), texts.len());
        for (text, &name) in texts.iter().zip(&made) {
            assert_eq!((names.get(name), names.find(text)), (text.as_str(), Some(name)));
            assert_eq!((names.intern(text), names.intern_new(text)), (name, None));
            assert_eq!(names.find(&format!("{text}!")), None);
        }
    }
}
