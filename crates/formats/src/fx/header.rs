//! Where graphs begin: class lines, `def forward`, and the extra lines of joint graphs.

use super::error::Fault;
use super::lex::{is_letter, line_end, skip_blanks, skip_space, string_end, word_end};

/// A span of the text.
pub(super) type Span = (usize, usize);

/// An input as it is declared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Declared {
    pub name: Span,
    /// The text of its annotation, without quotes.
    pub annotation: Option<Annotation>,
}

/// An annotation's text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Annotation {
    pub text: Span,
    pub quoted: bool,
}

/// A header.
#[derive(Debug)]
pub(super) struct Header {
    /// The class's name.
    pub name: String,
    pub inputs: Vec<Declared>,
    /// First byte of its first line, behind blanks.
    pub start: usize,
    /// Blanks before it.
    pub start_indent: usize,
    /// Blanks before `def forward`.
    pub indent: usize,
    /// First byte after the header's last line.
    pub body: usize,
}

/// Most blanks before `def forward` in a class that is not inside of another.
pub(super) const OUTERMOST_INDENT: u32 = 4;

impl Header {
    /// Whether it is not the header of a graph that another one calls.
    pub(super) const fn is_outermost(&self) -> bool {
        self.indent <= OUTERMOST_INDENT as usize
    }
}

/// Finds the next graph from `at`, the start of a line, on. What stands before it may be the rest of a graph that could
/// not be read, and is no fault then.
pub(super) fn next_header(text: &str, mut at: usize, behind_fault: bool) -> Result<Option<Header>, Fault> {
    let bytes = text.as_bytes();
    while at < bytes.len() {
        let start = skip_blanks(bytes, at);
        let end = line_end(bytes, at);
        let line = &text[start..end.max(start)];
        if let Some(name) = class_name(line) {
            let forward = skip_lines(bytes, end);
            if is_forward(&text[forward..]) {
                return read_header(text, name.to_owned(), start, forward).map(Some);
            }
        } else if is_forward(line) {
            return read_header(text, "forward".to_owned(), start, start).map(Some);
        } else if !behind_fault && line.contains(" = torch.ops.") && start < end && is_letter(bytes[start]) {
            let problem = "a statement outside of any graph; is the start of the file missing?".to_owned();
            return Err(Fault::problem(start, 0, problem, "`class GraphModule(torch.nn.Module):`"));
        }
        at = end + 1;
    }
    Ok(None)
}

/// The name in a class line. PyTorch's logs may print the path of the generated code before it.
fn class_name(line: &str) -> Option<&str> {
    let behind_path = || line.split_once(" class ").filter(|(path, _)| !path.contains(' ')).map(|(_, rest)| rest);
    let rest = line.strip_prefix("class ").or_else(behind_path)?.trim_start();
    let end = rest.find(['(', ':'])?;
    let name = rest[..end].trim_end();
    (!name.is_empty() && !name.contains(' ') && rest.contains(':')).then_some(name)
}

fn is_forward(text: &str) -> bool {
    text.strip_prefix("def forward").is_some_and(|rest| rest.trim_start_matches(' ').starts_with('('))
}

/// The first byte of the next line of code: no blank line, comment or docstring.
fn skip_lines(bytes: &[u8], mut at: usize) -> usize {
    loop {
        at = skip_space(bytes, at);
        match docstring_end(bytes, at) {
            Some(end) => at = end,
            None => return at,
        }
    }
}

/// The end of the docstring at `at`, if there is one.
pub(super) fn docstring_end(bytes: &[u8], at: usize) -> Option<usize> {
    let quotes = bytes.get(at..at + 3).filter(|&quotes| quotes == b"\"\"\"" || quotes == b"'''")?;
    memchr::memmem::find(&bytes[at + 3..], quotes).map(|found| at + 3 + found + 3)
}

fn read_header(text: &str, name: String, start: usize, forward: usize) -> Result<Header, Fault> {
    let bytes = text.as_bytes();
    let open = memchr::memchr(b'(', &bytes[forward..]).map_or(forward, |found| forward + found);
    let (mut inputs, close) = parameters(text, open + 1)?;
    let colon = after_result(bytes, close + 1)?;
    let mut body = end_of_line(bytes, colon + 1)?;
    if let Some(joint) = joint_lines(text, body)? {
        (inputs, body) = joint;
    }
    let indent_of = |at: usize| at - memchr::memrchr(b'\n', &bytes[..at]).map_or(0, |found| found + 1);
    Ok(Header { name, inputs, start, start_indent: indent_of(start), indent: indent_of(forward), body })
}

/// The parameters of `forward` from behind its bracket, and where the bracket closes.
fn parameters(text: &str, mut at: usize) -> Result<(Vec<Declared>, usize), Fault> {
    let bytes = text.as_bytes();
    let mut inputs = Vec::new();
    let mut is_first = true;
    loop {
        at = skip_space(bytes, at);
        match bytes.get(at) {
            Some(b')') => return Ok((inputs, at)),
            Some(b'/') => at += 1,
            _ => {
                let stars = bytes[at..].iter().take(2).take_while(|&&byte| byte == b'*').count();
                at += stars;
                let end = word_end(bytes, at);
                let name = (at, end);
                if end == at && stars == 0 || bytes.get(at).is_some_and(u8::is_ascii_digit) {
                    return Err(Fault::expected(at, "the name of a parameter"));
                }
                let annotation;
                (annotation, at) = optional_annotation(text, end, b",)=")?;
                at = skip_default(bytes, at)?;
                let is_self = is_first && &text[name.0..name.1] == "self";
                if !is_self && end > name.0 {
                    inputs.push(Declared { name, annotation });
                }
            }
        }
        is_first = false;
        at = skip_space(bytes, at);
        match bytes.get(at) {
            Some(b',') => at += 1,
            Some(b')') => {}
            _ => return Err(Fault::expected(at.min(bytes.len()), "`,` or `)` after a parameter")),
        }
    }
}

/// The annotation at `at`, if there is one, and where it ends. Without quotes, one of `ends` ends it.
pub(super) fn optional_annotation(text: &str, at: usize, ends: &[u8]) -> Result<(Option<Annotation>, usize), Fault> {
    let bytes = text.as_bytes();
    let colon = skip_blanks(bytes, at);
    if bytes.get(colon) != Some(&b':') {
        return Ok((None, colon));
    }
    let start = skip_blanks(bytes, colon + 1);
    match bytes.get(start) {
        Some(b'"' | b'\'') => {
            let end = string_end(bytes, start)?;
            Ok((Some(Annotation { text: (start + 1, end - 1), quoted: true }), end))
        }
        _ => {
            let end = annotation_end(bytes, start, ends)?;
            if let Some(quote) = bytes[start..end].iter().position(|&byte| byte == b'"')
                && bytes[start..end].iter().filter(|&&byte| byte == b'"').count() % 2 == 1
            {
                return Err(Fault::expected(start + quote, "an annotation with both its quotes"));
            }
            Ok((Some(Annotation { text: (start, end), quoted: false }), end))
        }
    }
}

fn annotation_end(bytes: &[u8], start: usize, ends: &[u8]) -> Result<usize, Fault> {
    let (mut at, mut depth) = (start, 0usize);
    loop {
        match bytes.get(at) {
            Some(byte) if depth == 0 && ends.contains(byte) => break,
            Some(b'(' | b'[' | b'{') => depth += 1,
            Some(b')' | b']' | b'}') => depth = depth.saturating_sub(1),
            Some(b'\n') | None => break,
            Some(_) => {}
        }
        at += 1;
    }
    if at == start { Err(Fault::expected(at.min(bytes.len()), "an annotation")) } else { Ok(at) }
}

/// Skips ` = value`.
fn skip_default(bytes: &[u8], at: usize) -> Result<usize, Fault> {
    let equals = skip_space(bytes, at);
    if bytes.get(equals) != Some(&b'=') {
        return Ok(at);
    }
    let start = skip_blanks(bytes, equals + 1);
    if matches!(bytes.get(start), Some(b'"' | b'\'')) {
        return string_end(bytes, start);
    }
    annotation_end(bytes, start, b",)")
}

/// The colon at the end of a `def`, perhaps behind ` -> type`.
fn after_result(bytes: &[u8], at: usize) -> Result<usize, Fault> {
    let mut at = skip_blanks(bytes, at);
    if bytes.get(at..at + 2) == Some(b"->") {
        at = annotation_end(bytes, at + 2, b":")?;
    }
    if bytes.get(at) == Some(&b':') { Ok(at) } else { Err(Fault::expected(at, "`:` after the parameters")) }
}

/// The start of the line after the one of `at`, on which only a comment may be left.
pub(super) fn end_of_line(bytes: &[u8], at: usize) -> Result<usize, Fault> {
    let at = skip_blanks(bytes, at);
    match bytes.get(at) {
        None => Ok(at),
        Some(b'\n') => Ok(at + 1),
        Some(b'#') => Ok((line_end(bytes, at) + 1).min(bytes.len())),
        Some(_) => Err(Fault::expected(at, "the end of the line")),
    }
}

/// The lines that unpack the arguments of a joint graph, if they are next: declarations (`a: "f32[4]"; b: "i64[]"`)
/// and `a, b, = fx_pytree.tree_flatten_spec(..)`. Gives the flat inputs, and where the lines end.
fn joint_lines(text: &str, body: usize) -> Result<Option<(Vec<Declared>, usize)>, Fault> {
    let bytes = text.as_bytes();
    let mut at = skip_lines(bytes, body);
    let mut declared = Vec::new();
    if let Some(end) = declarations(text, at, &mut declared)? {
        at = skip_lines(bytes, end);
    }
    let mut names = Vec::new();
    let start = at;
    loop {
        let end = word_end(bytes, at);
        let comma = skip_blanks(bytes, end);
        if end == at || bytes.get(comma) != Some(&b',') {
            break;
        }
        names.push((at, end));
        at = skip_blanks(bytes, comma + 1);
    }
    if names.is_empty() {
        if declared.is_empty() {
            return Ok(None);
        }
        return Err(Fault::expected(start, "`a, b, = fx_pytree.tree_flatten_spec(..)` after the declarations"));
    }
    let right = skip_blanks(bytes, at + 1);
    if bytes.get(at) != Some(&b'=') || !text[right.min(text.len())..].starts_with("fx_pytree.tree_flatten_spec(") {
        return Err(Fault::expected(at, "`= fx_pytree.tree_flatten_spec(..)`"));
    }
    let right_end = super::lex::scan_right_side(text, right, &mut Vec::new(), |_, _| false)?;
    let end = end_of_line(bytes, right_end)?;
    declared.sort_by_key(|input| &text[input.name.0..input.name.1]);
    let find = |name: Span| {
        let key = &text[name.0..name.1];
        let found = declared.binary_search_by_key(&key, |input| &text[input.name.0..input.name.1]);
        found.ok().and_then(|index| declared[index].annotation)
    };
    let inputs = names.into_iter().map(|name| Declared { name, annotation: find(name) }).collect();
    Ok(Some((inputs, end)))
}

/// Reads lines of declarations, if there are any; gives their end. FX prints all in one line, or one a line with a comment
/// behind each.
fn declarations(text: &str, start: usize, declared: &mut Vec<Declared>) -> Result<Option<usize>, Fault> {
    let bytes = text.as_bytes();
    let (mut at, mut is_line_done) = (start, false);
    loop {
        let end = word_end(bytes, at);
        if end == at || bytes.get(skip_blanks(bytes, end)) != Some(&b':') {
            break;
        }
        let (annotation, after) = optional_annotation(text, end, b";=")?;
        let after = skip_blanks(bytes, after);
        if bytes.get(after) == Some(&b'=') {
            // An annotated assignment: the first statement.
            declared.clear();
            return Ok(None);
        }
        declared.push(Declared { name: (at, end), annotation });
        is_line_done = bytes.get(after) != Some(&b';');
        at = if is_line_done { end_of_line(bytes, after)? } else { after + 1 };
        at = if is_line_done { skip_lines(bytes, at) } else { skip_blanks(bytes, at) };
    }
    match is_line_done {
        _ if declared.is_empty() => Ok(None),
        true => Ok(Some(at)),
        false => end_of_line(bytes, at).map(Some),
    }
}
