//! Argument lists as text: `$0` is operand 0, strings are quoted as in JSON.

pub(super) use super::quoted::quote;
use crate::ir::{Arg, Args, DType};
use std::fmt::Write as _;

/// The list without its parentheses.
pub(super) fn print(args: &Args) -> String {
    let mut out = String::new();
    list(&mut out, args);
    out
}

fn list(out: &mut String, args: &Args) {
    for (index, arg) in args.positional.iter().enumerate() {
        out.push_str(if index > 0 { ", " } else { "" });
        print_arg(out, arg);
    }
    for (index, (key, arg)) in args.keyword.iter().enumerate() {
        out.push_str(if index > 0 || !args.positional.is_empty() { ", " } else { "" });
        let _ = write!(out, "{}=", name(key));
        print_arg(out, arg);
    }
}

fn print_arg(out: &mut String, arg: &Arg) {
    let _ = match arg {
        Arg::Operand(index) => write!(out, "${index}"),
        Arg::Int(value) => write!(out, "{value}"),
        Arg::Float(text) if is_float(text) => write!(out, "{text}"),
        Arg::Float(text) => write!(out, "float {}", quote(text)),
        Arg::Str(text) => write!(out, "{}", quote(text)),
        Arg::Bool(value) => write!(out, "{}", if *value { "True" } else { "False" }),
        Arg::None => write!(out, "None"),
        Arg::DType(dtype) => write!(out, "torch.{}", dtype.torch_name()),
        Arg::Word(text) if stands_alone(text) => write!(out, "{text}"),
        Arg::Word(text) => write!(out, "word {}", quote(text)),
        Arg::List(items) => {
            bracketed(out, "[", items, "]");
            Ok(())
        }
        Arg::Tuple(items) => {
            bracketed(out, "(", items, ")");
            Ok(())
        }
        Arg::Apply(target, args) => {
            let target = if stands_alone(target) { target.to_string() } else { format!("@{}", quote(target)) };
            let _ = write!(out, "{target}(");
            list(out, args);
            write!(out, ")")
        }
    };
}

fn bracketed(out: &mut String, open: &str, items: &[Arg], close: &str) {
    out.push_str(open);
    for (index, item) in items.iter().enumerate() {
        out.push_str(if index > 0 { ", " } else { "" });
        print_arg(out, item);
    }
    out.push_str(close);
}

/// A name as it is where it is of letters, digits, `_` and `.`, else quoted behind an `@`.
pub(super) fn name(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
    if !text.is_empty() && text.bytes().all(plain) { text.to_owned() } else { format!("@{}", quote(text)) }
}

/// Letters, digits, `_` and `.`, not starting with a digit.
fn is_word(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.'))
        && !text.is_empty()
        && !text.starts_with(|first: char| first.is_ascii_digit())
}

/// Whether a word is read back as itself.
fn stands_alone(text: &str) -> bool {
    is_word(text) && !matches!(text, "True" | "False" | "None" | "float" | "word") && dtype(text).is_none()
}

/// `torch.float32`.
pub(super) fn dtype(text: &str) -> Option<DType> {
    let name = text.strip_prefix("torch.")?;
    DType::ALL.iter().copied().find(|dtype| dtype.torch_name() == name)
}

/// Whether a number's text is read as a float.
pub(super) fn is_float(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
    let bytes = digits.as_bytes();
    let sign_follows_e = |at: usize| matches!(bytes[at], b'-' | b'+') && matches!(bytes[at - 1], b'e' | b'E');
    digits.starts_with(|first: char| first.is_ascii_digit())
        && digits.bytes().any(|byte| !byte.is_ascii_digit())
        && (1..bytes.len()).all(|at| plain(bytes[at]) || sign_follows_e(at))
}
