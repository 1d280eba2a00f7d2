//! Texts in quotes, with the escapes of JSON.

/// A text in quotes.
pub(super) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\u{1f}' => out.push_str(&format!("\\u{:04x}", letter as u32)),
            _ => out.push(letter),
        }
    }
    out.push('"');
    out
}

/// The text that stands in quotes, quotes included; `None` where it breaks the rules of JSON.
pub(super) fn unquote(quoted: &str) -> Option<String> {
    let inner = quoted.strip_prefix('"')?.strip_suffix('"')?;
    let mut out = String::with_capacity(inner.len());
    let mut letters = inner.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' | '\0'..='\u{1f}' => return None,
            '\\' => out.push(match letters.next()? {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'u' => escaped(&mut letters)?,
                same @ ('"' | '\\' | '/') => same,
                _ => return None,
            }),
            _ => out.push(letter),
        }
    }
    Some(out)
}

/// The letter of `\uXXXX`, or of two of these that stand for one.
fn escaped(letters: &mut std::str::Chars<'_>) -> Option<char> {
    let first = hex(letters)?;
    if !(0xd800..0xdc00).contains(&first) {
        return char::from_u32(first);
    }
    if (letters.next()?, letters.next()?) != ('\\', 'u') {
        return None;
    }
    let second = hex(letters)?.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
    char::from_u32(0x10000 + ((first - 0xd800) << 10) + second)
}

fn hex(letters: &mut std::str::Chars<'_>) -> Option<u32> {
    (0..4).try_fold(0, |number, _| Some(number * 16 + letters.next()?.to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_breaks_the_rules_is_not_read() {
        for text in [
            "",
            "\"",
            "a",
            "\"a",
            "\"\\\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\ud800\"",
            "\"\\ud800\\u0041\"",
            "\"\n\"",
            "\"a\"b\"",
        ] {
            assert_eq!(unquote(text), None, "{text:?}");
            #[cfg(feature = "serde")]
            assert!(serde_json::from_str::<String>(text).is_err(), "{text:?}");
        }
        assert_eq!(unquote("\"\\ud83d\\ude00\\/\"").as_deref(), Some("\u{1f600}/"));
    }

    proptest! {
        #[test]
        fn a_quoted_text_is_read_back_and_is_that_of_json(text in any::<String>(), tail in "[\\\\\"u0-9a-fdD/nrtbx\n]{0,12}") {
            let quoted = quote(&text);
            prop_assert_eq!(unquote(&quoted), Some(text.clone()));
            #[cfg(feature = "serde")]
            {
                prop_assert_eq!(&quoted, &serde_json::to_string(&text).unwrap());
                let odd = format!("\"{tail}\"");
                prop_assert_eq!(unquote(&odd), serde_json::from_str::<String>(&odd).ok(), "{}", odd);
            }
            #[cfg(not(feature = "serde"))]
            let _ = tail;
        }
    }
}
