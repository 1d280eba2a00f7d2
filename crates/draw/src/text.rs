//! Names and sizes as a picture shows them.

/// A text on one line: what cannot be seen, or may not stand in XML, is written as an escape.
pub(super) fn visible(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{fffe}' | '\u{ffff}')
    };
    if !text.contains(hidden) {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if hidden(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// A text in at most so many columns, with its middle left out: numbers at the end tell names apart.
pub(super) fn cut(text: &str, columns: usize) -> String {
    let wide = |c: char| if c.is_ascii() { 1 } else { 2 };
    if text.chars().map(wide).sum::<usize>() <= columns {
        return text.to_owned();
    }
    let room = columns.saturating_sub(2);
    let take = |chars: &mut dyn Iterator<Item = char>, room: usize| {
        let mut used = 0;
        chars
            .take_while(|&c| {
                used += wide(c);
                used <= room
            })
            .collect::<Vec<char>>()
    };
    let tail = take(&mut text.chars().rev(), room / 2);
    let head = take(&mut text.chars(), room - room / 2);
    head.into_iter().chain(['.', '.']).chain(tail.into_iter().rev()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_lose_their_middle_and_keep_their_number() {
        assert_eq!(cut("short", 5), "short");
        assert_eq!(cut("all_gather_into_tensor_117", 16), "all_gat..sor_117");
        assert_eq!(cut("äöüäöüäöü", 10), "äö..öü");
    }

    #[test]
    fn what_cannot_be_seen_is_escaped() {
        assert_eq!(visible("a\nb\u{1b}[31m"), "a\\nb\\u{1b}[31m");
        assert_eq!(visible("größe ∂L/∂w"), "größe ∂L/∂w");
    }
}
