//! PyTorch's schemas by name: the lines of `schemas/torch.txt`, sorted, and read only where they are asked for.

use std::ops::ControlFlow;

const TEXT: &str = include_str!("../schemas/torch.txt");

/// All lines.
pub(in crate::check) fn lines() -> impl Iterator<Item = &'static str> {
    TEXT.lines()
}

/// What a line is sorted by: its text.
fn line_at(text: &str, at: usize) -> (usize, &str) {
    let start = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let end = text[start..].find('\n').map_or(text.len(), |end| start + end);
    (start, &text[start..end])
}

/// Visits the lines that begin with a text.
fn beginning_with<'t>(text: &'t str, prefix: &str, visit: &mut dyn FnMut(&'t str) -> ControlFlow<()>) {
    let (mut low, mut high) = (0, text.len());
    while low < high {
        let mut middle = low.midpoint(high);
        while !text.is_char_boundary(middle) {
            middle -= 1;
        }
        let (start, line) = line_at(text, middle);
        if line < prefix {
            low = (start + line.len() + 1).min(text.len());
        } else {
            high = start;
        }
    }
    for line in text[low..].lines() {
        if !line.starts_with(prefix) || visit(line).is_break() {
            return;
        }
    }
}

/// The line of one overload; the default has no name.
pub(super) fn overload(namespace: &str, name: &str, overload: &str) -> Option<&'static str> {
    let dot = if overload.is_empty() || overload == "default" { "" } else { "." };
    let prefix = format!("{namespace}::{name}{dot}{}(", if dot.is_empty() { "" } else { overload });
    let mut found = None;
    beginning_with(TEXT, &prefix, &mut |line| {
        found = Some(line);
        ControlFlow::Break(())
    });
    found
}

/// The lines of all overloads of an operator.
pub(super) fn overloads(namespace: &str, name: &str) -> Vec<&'static str> {
    let mut found = Vec::from_iter(overload(namespace, name, ""));
    beginning_with(TEXT, &format!("{namespace}::{name}."), &mut |line| {
        found.push(line);
        ControlFlow::Continue(())
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_found_by_its_name() {
        let mut last = "";
        for line in lines() {
            assert!(last < line, "not sorted: {line}");
            last = line;
            let (namespace, rest) = line.split_once("::").unwrap();
            let (name, overload_name) = {
                let whole = rest.split('(').next().unwrap();
                whole.split_once('.').unwrap_or((whole, ""))
            };
            assert_eq!(overload(namespace, name, overload_name), Some(line));
            assert!(overloads(namespace, name).contains(&line));
        }
        assert_eq!(overload("aten", "no_such_operator", ""), None);
        assert_eq!(overload("zzz", "", ""), None);
    }
}
