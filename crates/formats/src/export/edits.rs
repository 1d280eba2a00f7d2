//! Replacing parts of a text.

use std::collections::BTreeMap;
use std::ops::Range;

/// Replacements of parts of a text that do not overlap.
#[derive(Debug, Default)]
pub(super) struct Edits(BTreeMap<usize, (usize, String)>);

impl Edits {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn replace(&mut self, range: Range<usize>, with: String) {
        self.0.insert(range.start, (range.end, with));
    }

    /// Forgets what was to be replaced in a part.
    pub fn forget(&mut self, range: Range<usize>) {
        let mut inside = self.0.split_off(&range.start);
        self.0.append(&mut inside.split_off(&range.end));
    }

    /// A part of the text with its replacements, which are then done.
    pub fn apply(&mut self, text: &str, range: Range<usize>) -> String {
        let starts: Vec<usize> = self.0.range(range.clone()).map(|(start, _)| *start).collect();
        let mut out = String::with_capacity(range.len());
        let mut at = range.start;
        for start in starts {
            let Some((end, with)) = self.0.remove(&start) else { continue };
            out.push_str(&text[at..start]);
            out.push_str(&with);
            at = end;
        }
        out.push_str(&text[at..range.end]);
        out
    }
}

/// Where the names of values stand in a part of a text that is JSON: what `name` and `as_name` hold, without quotes.
pub(super) fn names_in(text: &str, range: Range<usize>) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = range.start;
    while let Some(word) = next_string(bytes, at, range.end) {
        at = word.end + 1;
        if !matches!(&bytes[word], b"name" | b"as_name") {
            continue;
        }
        let colon = skip_blanks(bytes, at);
        if bytes.get(colon) != Some(&b':') {
            continue;
        }
        let value = skip_blanks(bytes, colon + 1);
        if bytes.get(value) == Some(&b'"')
            && let Some(value) = next_string(bytes, value, range.end)
        {
            at = value.end + 1;
            found.push(value);
        }
    }
    found
}

fn skip_blanks(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

/// The next string, without its quotes.
fn next_string(bytes: &[u8], at: usize, end: usize) -> Option<Range<usize>> {
    let start = at + memchr::memchr(b'"', bytes.get(at..end)?)? + 1;
    let mut at = start;
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..end)?)?;
        if bytes[at] == b'"' {
            return Some(start..at);
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_where_values_stand() {
        let text =
            r#"[{"as_tensor": {"name": "x"}}, {"as_string": "name"}, {"as_name" : "y\"z"}, {"name": {"name": 3}}]"#;
        let names: Vec<&str> = names_in(text, 0..text.len()).into_iter().map(|range| &text[range]).collect();
        assert_eq!(names, ["x", "y\\\"z"]);
    }

    #[test]
    fn replacements_are_done_once() {
        let mut edits = Edits::default();
        edits.replace(1..2, "bb".into());
        edits.replace(4..4, "x".into());
        assert_eq!(edits.apply("abcdef", 0..3), "abbc");
        assert!(!edits.is_empty());
        edits.replace(0..1, "y".into());
        edits.forget(0..2);
        assert_eq!(edits.apply("abcdef", 0..6), "abcdxef");
        assert!(edits.is_empty());
    }
}
