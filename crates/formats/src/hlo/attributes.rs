//! What is inside an attribute's value.

use super::lex::Cursor;

/// The value of a key in `{key="value",other=1}`, without its quotes.
pub(super) fn entry<'a>(value: &'a str, key: &str) -> Option<&'a str> {
    entries(value).find(|(name, _)| *name == key).map(|(_, found)| found)
}

/// The keys and values in `{key="value",other=1}`, the values without their quotes. Commas or blanks separate them. Ends
/// where the form is another.
pub(super) fn entries(value: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut cursor = Cursor::new(value);
    let mut more = cursor.take(b'{');
    std::iter::from_fn(move || {
        let next = if more { next_entry(&mut cursor) } else { None };
        more = next.is_some();
        next
    })
}

fn next_entry<'a>(cursor: &mut Cursor<'a>) -> Option<(&'a str, &'a str)> {
    cursor.skip_blank().ok()?;
    let name = cursor.name("").ok()?.of(cursor.text);
    cursor.skip_blank().ok()?;
    cursor.expect(b'=', "").ok()?;
    let start = cursor.at;
    cursor.entry().ok()?;
    let found = &cursor.text[start..cursor.at];
    cursor.skip_blank().ok()?;
    cursor.take(b',');
    Some((name, found.strip_prefix('"').and_then(|inner| inner.strip_suffix('"')).unwrap_or(found)))
}

/// The first number in `{1,0}`, or the number itself.
pub(super) fn first_number(value: &str) -> Option<u32> {
    let inner = value.trim().trim_start_matches('{').trim_start();
    let end = inner.find(|c: char| !c.is_ascii_digit()).unwrap_or(inner.len());
    inner[..end].parse().ok()
}

/// The numbers in `{1,0}`.
pub(super) fn numbers(value: &str) -> Option<Vec<u32>> {
    let inner = value.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
    if inner.is_empty() {
        return Some(Vec::new());
    }
    inner.split(',').map(|number| number.trim().parse().ok()).collect()
}

/// Whether a backend's config, as JSON or as an escaped string of JSON, says that the loop pipeliner moved the
/// instruction.
pub(super) fn is_pipelined(config: &str) -> bool {
    states(config, "is_pipelined")
}

/// Whether it says that both halves of the instruction run as one.
pub(super) fn is_sync(config: &str) -> bool {
    states(config, "is_sync")
}

fn states(config: &str, key: &str) -> bool {
    let after = config.split_once(key).map_or("", |(_, after)| after);
    after.trim_start_matches(['\\', '"', ':', ' ']).starts_with("true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_key() {
        let value = r#"{op_type="psum" op_name="a, {b=\"c\"}" deep={x="1"},stack_frame_id=4, last="}"}"#;
        assert_eq!(entry(value, "op_type"), Some("psum"));
        assert_eq!(entry(value, "op_name"), Some(r#"a, {b=\"c\"}"#));
        assert_eq!(entry(value, "stack_frame_id"), Some("4"));
        assert_eq!(entry(value, "last"), Some("}"));
        assert_eq!(entry(value, "x"), None);
        assert_eq!(entry("\"opaque\"", "x"), None);
    }

    #[test]
    fn pipelined_is_read_from_both_forms_of_config() {
        assert!(is_pipelined(r#"{"collective_backend_config":{"is_sync":false,"is_pipelined":true}}"#));
        assert!(is_pipelined(r#""{\"is_pipelined\":true}""#));
        assert!(!is_pipelined(r#"{"is_pipelined":false,"x":true}"#));
        assert!(!is_pipelined("{}"));
    }
}
