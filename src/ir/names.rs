//! Interned strings: each distinct text is stored once, in one buffer, and named by a [`Name`].

use super::entities::Name;
use hashbrown::HashTable;
use rustc_hash::FxHasher;
use std::hash::Hasher;

fn hash(text: &str) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(text.as_bytes());
    hasher.finish()
}

/// A set of strings. Names are handed out in order of first use, so equal inputs give equal names.
#[derive(Clone, Default)]
pub struct Names {
    text: String,
    /// End of each string in `text`; it starts where the one before it ends.
    ends: Vec<usize>,
    table: HashTable<Name>,
}

impl Names {
    /// The name of `text`, new if it was not seen before.
    pub fn intern(&mut self, text: &str) -> Name {
        let hash_value = hash(text);
        if let Some(&name) = self.table.find(hash_value, |&name| self.get(name) == text) {
            return name;
        }
        let name = Name::from_index(self.ends.len());
        self.text.push_str(text);
        self.ends.push(self.text.len());
        let Self { text, ends, table } = self;
        table.insert_unique(hash_value, name, |&name| hash(slice(text, ends, name)));
        name
    }

    /// The name of `text` if it has one.
    #[must_use]
    pub fn find(&self, text: &str) -> Option<Name> {
        self.table.find(hash(text), |&name| self.get(name) == text).copied()
    }

    /// The text of `name`.
    #[must_use]
    pub fn get(&self, name: Name) -> &str {
        slice(&self.text, &self.ends, name)
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
