//! Statements that change a value where it stands, as FX prints what Dynamo captured.
//!
//! FX prints a call of `operator.iadd` or `operator.setitem` as Python's own statement, and binds the call's name to
//! the value behind it: `x += y;  iadd = x` and `x[i] = v;  setitem = x`. The graph knows both as calls. After `x += y`
//! Python's `x` is the result, whether the value was changed where it stands (a tensor) or not (a number), so that later
//! uses of `x` are uses of the call.

use super::emit::write_args;
use super::error::{Fault, FxPrintError};
use super::header::{Annotation, Span, optional_annotation};
use super::lex::{is_letter, skip_blanks, word_end};
use bucketeer::ir::{Arg, Args, Graph, NodeId, Op};

/// Python's augmented assignments and what the `operator` module calls them; longer ones first.
const AUGMENTED: &[(&str, &str)] = &[
    ("**=", "ipow"),
    ("//=", "ifloordiv"),
    ("<<=", "ilshift"),
    (">>=", "irshift"),
    ("+=", "iadd"),
    ("-=", "isub"),
    ("*=", "imul"),
    ("/=", "itruediv"),
    ("%=", "imod"),
    ("@=", "imatmul"),
    ("&=", "iand"),
    ("|=", "ior"),
    ("^=", "ixor"),
];

/// Which of `operator`'s functions an augmented assignment is, by the sign at the start of `text`; and the sign.
pub(super) fn augmented(text: &str) -> Option<(&'static str, &'static str)> {
    AUGMENTED.iter().copied().find(|(sign, _)| text.starts_with(sign))
}

/// Whether the word that ends at `end` is what a statement changes: an augmented assignment or a subscript follows.
pub(super) fn changes_a_value(text: &str, end: usize) -> bool {
    let at = skip_blanks(text.as_bytes(), end);
    text.as_bytes().get(end) == Some(&b'[') || text.get(at..).is_some_and(|rest| augmented(rest).is_some())
}

/// The `;  name: "type" = x` that binds the call's name to the changed value.
pub(super) struct Binding {
    pub name: Span,
    pub annotation: Option<Annotation>,
    /// Behind it.
    pub end: usize,
}

/// Reads the binding that stands behind a statement that changes the value `changed`.
pub(super) fn binding(text: &str, at: usize, changed: &str) -> Result<Binding, Fault> {
    let bytes = text.as_bytes();
    let expected = || format!("`;  name = {changed}`, the name that FX gives to a statement which changes a value");
    let semicolon = skip_blanks(bytes, at);
    let start = skip_blanks(bytes, (semicolon + 1).min(bytes.len()));
    if bytes.get(semicolon) != Some(&b';') || !bytes.get(start).copied().is_some_and(is_letter) {
        return Err(Fault::expected(semicolon, expected()));
    }
    let name = (start, word_end(bytes, start));
    let (annotation, equals) = optional_annotation(text, name.1, b"=")?;
    let equals = skip_blanks(bytes, equals);
    let right = skip_blanks(bytes, (equals + 1).min(bytes.len()));
    let end = word_end(bytes, right);
    if bytes.get(equals) != Some(&b'=') || &text[right..end] != changed {
        return Err(Fault::expected(start, expected()));
    }
    Ok(Binding { name, annotation, end })
}

/// Appends the statement of a node that was read as one: `x += y;  iadd` up to the annotation. Gives `false`, having
/// appended nothing, if the node no longer is such a call.
pub(super) fn write_change(out: &mut String, graph: &Graph, id: NodeId) -> Result<bool, FxPrintError> {
    let Op::Call(target) = graph.node(id).op else { return Ok(false) };
    let args = graph.args_of(id);
    let name = graph.text(target).strip_prefix("operator.").unwrap_or_default();
    let one = |arg: &Arg| Args::positional(vec![arg.clone()]);
    match (&args.positional[..], AUGMENTED.iter().find(|(_, known)| *known == name)) {
        _ if !args.keyword.is_empty() => return Ok(false),
        ([value @ Arg::Operand(_), other], Some((sign, _))) => {
            write_args(out, graph, id, &one(value))?;
            out.push_str(&format!(" {sign} "));
            write_args(out, graph, id, &one(other))?;
        }
        ([value @ Arg::Operand(_), index, other], None) if name == "setitem" => {
            write_args(out, graph, id, &one(value))?;
            out.push('[');
            write_args(out, graph, id, &one(index))?;
            out.push_str("] = ");
            write_args(out, graph, id, &one(other))?;
        }
        _ => return Ok(false),
    }
    out.push_str(";  ");
    out.push_str(graph.name_of(id));
    Ok(true)
}
