//! Patterns of names: `*` is any text, `?` any character, `[a-z0-9]` one of these and `[!0-9]` none of these.
//!
//! A match that fails goes back to the last `*` alone, so that it takes the product of both lengths at most.

/// One part of a pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    /// This character.
    Exactly(char),
    /// Any character.
    One,
    /// Any text, none too.
    Many,
    /// A character within one of these ranges, or, if the word is `true`, within none.
    Within(Vec<(char, char)>, bool),
}

/// A pattern that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Glob {
    parts: Vec<Part>,
    /// The fewest characters that it matches.
    least: usize,
}

impl Glob {
    /// Reads a pattern, or says what is wrong with it.
    pub fn new(text: &str) -> Result<Self, &'static str> {
        let mut parts = Vec::new();
        let mut chars = text.chars();
        while let Some(found) = chars.next() {
            let part = match found {
                '*' if parts.last() == Some(&Part::Many) => continue,
                '*' => Part::Many,
                '?' => Part::One,
                '[' => within(&mut chars)?,
                other => Part::Exactly(other),
            };
            parts.push(part);
        }
        if parts.is_empty() {
            return Err("is empty");
        }
        let least = parts.iter().filter(|part| **part != Part::Many).count();
        Ok(Self { parts, least })
    }

    /// The only text that it matches, if it is one.
    pub fn literal(&self) -> Option<String> {
        self.parts.iter().map(|part| if let Part::Exactly(found) = part { Some(*found) } else { None }).collect()
    }

    /// Whether it matches a whole text.
    pub fn matches(&self, text: &str) -> bool {
        if text.len() < self.least {
            return false;
        }
        let (mut at, mut rest) = (0, text.chars());
        // Behind the last `*`: the part, and what of the text is left after what that `*` takes.
        let mut back: Option<(usize, std::str::Chars<'_>)> = None;
        loop {
            if self.parts.get(at) == Some(&Part::Many) {
                at += 1;
                back = Some((at, rest.clone()));
                continue;
            }
            let mut further = rest.clone();
            match (self.parts.get(at), further.next()) {
                (None, None) => return true,
                (Some(part), Some(found)) if part.takes(found) => {
                    (at, rest) = (at + 1, further);
                    continue;
                }
                // Nothing is left for the parts that are.
                (Some(_), None) => return false,
                _ => {}
            }
            let Some((part, from)) = &mut back else { return false };
            if from.next().is_none() {
                return false;
            }
            (at, rest) = (*part, from.clone());
        }
    }
}

impl Part {
    fn takes(&self, found: char) -> bool {
        match self {
            Self::Exactly(wanted) => *wanted == found,
            Self::One => true,
            Self::Many => false,
            Self::Within(ranges, but) => ranges.iter().any(|&(low, high)| (low..=high).contains(&found)) != *but,
        }
    }
}

/// The rest of `[a-z]`, behind the bracket that opens it.
fn within(chars: &mut std::str::Chars<'_>) -> Result<Part, &'static str> {
    let mut ranges = Vec::new();
    let mut inside = chars.as_str().chars();
    let but = inside.as_str().starts_with('!');
    if but {
        inside.next();
    }
    loop {
        let low = inside.next().ok_or("has a `[` without its `]`")?;
        // A bracket that stands first is meant itself.
        if low == ']' && !ranges.is_empty() {
            break;
        }
        let mut ahead = inside.clone();
        let high = match (ahead.next(), ahead.next()) {
            (Some('-'), Some(high)) if high != ']' => {
                inside = ahead;
                high
            }
            _ => low,
        };
        if high < low {
            return Err("has a range whose end comes before its start");
        }
        ranges.push((low, high));
    }
    *chars = inside;
    Ok(Part::Within(ranges, but))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, text: &str) -> bool {
        Glob::new(pattern).unwrap().matches(text)
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, yes, no) in [
            ("mm", "mm", "mm_1"),
            ("mm_?", "mm_1", "mm_12"),
            ("mm*", "mm", "m"),
            ("*_1*", "gather_12", "gather_2"),
            ("l[0-37]_*", "l7_wq", "l4_wq"),
            ("l[!0-3]_*", "l4_wq", "l2_wq"),
            ("a[]]b", "a]b", "ab"),
            ("a[-x]b", "a-b", "axxb"),
            ("a*b*c", "a_b_b_c", "a_c_b"),
            ("*", "", "\u{0}never"),
            ("größe_?", "größe_ä", "größe_"),
        ] {
            assert!(matches(pattern, yes), "{pattern} {yes}");
            assert!(pattern == "*" || !matches(pattern, no), "{pattern} {no}");
        }
    }

    #[test]
    fn patterns_that_cannot_be_read_say_why() {
        for (pattern, why) in [("", "is empty"), ("l[0-9", "`]`"), ("l[9-0]", "range"), ("[]", "`]`"), ("[!", "`]`")] {
            let error = Glob::new(pattern).unwrap_err();
            assert!(error.contains(why), "{pattern}: {error}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_takes_no_longer_than_its_length_times_the_name() {
        let glob = Glob::new(&"*a".repeat(20_000)).unwrap();
        let start = std::time::Instant::now();
        assert!(!glob.matches(&("a".repeat(25_000) + "b")));
        assert!(start.elapsed().as_secs() < 20);
    }

    /// By definition.
    fn slowly(parts: &[Part], text: &[char]) -> bool {
        match parts.split_first() {
            None => text.is_empty(),
            Some((Part::Many, rest)) => (0..=text.len()).any(|from| slowly(rest, &text[from..])),
            Some((part, rest)) => {
                text.split_first().is_some_and(|(&first, left)| part.takes(first) && slowly(rest, left))
            }
        }
    }

    proptest! {
        #[test]
        fn a_match_is_what_its_definition_says(pattern in "[ab*?]{1,8}", text in "[abc]{0,8}") {
            let glob = Glob::new(&pattern).unwrap();
            let chars: Vec<char> = text.chars().collect();
            prop_assert_eq!(glob.matches(&text), slowly(&glob.parts, &chars));
        }

        #[test]
        fn no_pattern_panics(pattern in any::<String>(), text in any::<String>()) {
            if let Ok(glob) = Glob::new(&pattern) {
                glob.matches(&text);
            }
        }
    }
}
