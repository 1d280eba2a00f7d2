//! Keys of right sides: from text with holes to a target and arguments.
//!
//! A right side is a call (`torch.ops.aten.mm.default(a, b)`), a method call (`x.view(4)`), an attribute (`x.shape`,
//! `self.weight`), a subscript (`x[3]`), one Python operator between two values (`a + 8`), or another name (`x`).
//! Whatever it is, the graph knows it as a call: of `aten.mm.default`, `method.view`, `getattr.shape`, `self.weight`,
//! `operator.getitem`, `operator.add`, `alias`.

mod change;

pub(super) use change::parse_change;

use super::lex::{HOLE, dotted_end, is_keyword, is_letter, repr_end, skip_space, string_end, word_end};
use bucketeer::ir::{Arg, Args, DType};

/// Brackets may be nested this deep.
const DEPTH_LIMIT: u32 = 200;

/// Namespaces that stand in Python as they are; all others are below `torch.ops`.
pub(super) const PYTHON: &[&str] =
    &["torch", "math", "operator", "_operator", "builtins", "self", "pytree", "fx_pytree", "einops", "numpy"];

/// Words without a dot that are values.
const WORDS: &[&str] = &[
    "inf",
    "nan",
    "Ellipsis",
    "NotImplemented",
    "int",
    "float",
    "bool",
    "complex",
    "str",
    "list",
    "tuple",
    "dict",
    "set",
    "object",
    "type",
    "bytes",
    "slice",
    "range",
    "device",
    "torch",
    "self",
];

/// Python's binary operators and what the `operator` module calls them; longer ones first.
pub(super) const BINARY: &[(&str, &str)] = &[
    ("**", "pow"),
    ("//", "floordiv"),
    ("<<", "lshift"),
    (">>", "rshift"),
    ("==", "eq"),
    ("!=", "ne"),
    ("<=", "le"),
    (">=", "ge"),
    ("<", "lt"),
    (">", "gt"),
    ("+", "add"),
    ("-", "sub"),
    ("*", "mul"),
    ("/", "truediv"),
    ("%", "mod"),
    ("&", "and_"),
    ("|", "or_"),
    ("^", "xor"),
    ("@", "matmul"),
];

/// Python's unary operators.
pub(super) const UNARY: &[(&str, &str)] = &[("-", "neg"), ("~", "invert"), ("+", "pos"), ("not ", "not_")];

/// What a right side does, and to what.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RightSide {
    pub target: String,
    pub args: Args,
}

/// A fault in a key, at a byte of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KeyFault {
    pub at: usize,
    pub expected: String,
    /// The word there is not defined.
    pub undefined: Option<String>,
}

type Parsed<T> = Result<T, KeyFault>;

/// Reads the right side of an assignment.
pub(super) fn parse_right_side(key: &str) -> Parsed<RightSide> {
    let mut parser = Parser { text: key, at: 0, operands: 0, depth: 0 };
    let right = parser.right_side()?;
    parser.end()?;
    Ok(right)
}

/// Reads what stands after `return`. A tuple is its elements; so is the list in a `pytree.tree_unflatten` call.
pub(super) fn parse_return(key: &str) -> Parsed<Args> {
    let mut parser = Parser { text: key, at: 0, operands: 0, depth: 0 };
    parser.space();
    if parser.at == key.len() {
        return Ok(Args::default());
    }
    let value = parser.value()?;
    parser.end()?;
    Ok(Args::positional(match value {
        Arg::Tuple(items) => items,
        Arg::Apply(name, mut args) if &*name == UNFLATTEN && only_first_has_operands(&args) => {
            match args.positional.swap_remove(0) {
                Arg::List(items) | Arg::Tuple(items) => items,
                value => vec![value],
            }
        }
        value => vec![value],
    }))
}

/// Whether there is a first argument, and no operand in any other.
fn only_first_has_operands(args: &Args) -> bool {
    let mut others = 0;
    let keyword = args.keyword.iter().map(|(_, arg)| arg);
    args.positional.iter().skip(1).chain(keyword).for_each(|arg| arg.for_each_operand(&mut |_| others += 1));
    others == 0 && !args.positional.is_empty()
}

/// What rebuilds the nested results of a joint graph.
pub(super) const UNFLATTEN: &str = "pytree.tree_unflatten";

struct Parser<'a> {
    text: &'a str,
    at: usize,
    operands: u32,
    depth: u32,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        self.at = skip_space(self.text.as_bytes(), self.at);
    }

    fn fail<T>(&self, expected: impl Into<String>) -> Parsed<T> {
        Err(KeyFault { at: self.at, expected: expected.into(), undefined: None })
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.text.as_bytes()[self.at..].starts_with(text.as_bytes());
        self.at += if found { text.len() } else { 0 };
        found
    }

    fn expect(&mut self, text: &str) -> Parsed<()> {
        if self.eat(text) { Ok(()) } else { self.fail(format!("`{text}`")) }
    }

    fn end(&mut self) -> Parsed<()> {
        self.space();
        if self.at == self.text.len() { Ok(()) } else { self.fail("the end of the statement") }
    }

    fn slice(&self, start: usize) -> &'a str {
        self.text.get(start..self.at).unwrap_or_default()
    }

    /// Names with points between them.
    fn dotted(&mut self) -> Parsed<&'a str> {
        let start = self.at;
        self.at = dotted_end(self.text.as_bytes(), start);
        let name = self.slice(start);
        if name.split('.').any(str::is_empty) {
            self.at = start;
            return self.fail("a name");
        }
        Ok(name)
    }

    fn hole(&mut self) -> Arg {
        self.at += 1;
        self.operands += 1;
        Arg::Operand(self.operands - 1)
    }

    fn right_side(&mut self) -> Parsed<RightSide> {
        self.space();
        for (sign, name) in UNARY {
            let rest = &self.text.as_bytes()[self.at..];
            if rest.starts_with(sign.as_bytes()) && rest.get(sign.len()) == Some(&HOLE) {
                self.at += sign.len();
                let operand = self.hole();
                return Ok(call(format!("operator.{name}"), vec![operand]));
            }
        }
        match self.peek() {
            Some(HOLE) => {
                let operand = self.hole();
                match self.peek() {
                    Some(b'[') => self.subscript(operand),
                    Some(b'.') => self.method(operand),
                    _ => self.infix(operand),
                }
            }
            Some(byte) if is_letter(byte) => self.call_or_attribute(),
            Some(_) => {
                let left = self.value()?;
                self.infix(left)
            }
            None => self.fail("an expression"),
        }
    }

    fn infix(&mut self, left: Arg) -> Parsed<RightSide> {
        self.space();
        if self.at == self.text.len() && matches!(left, Arg::Operand(_)) {
            return Ok(call(ALIAS.into(), vec![left]));
        }
        let Some((_, name)) = BINARY.iter().find(|(sign, _)| self.eat(sign)) else {
            return self.fail("an operator such as `+`, a call, or a subscript");
        };
        self.space();
        let right = self.value()?;
        Ok(call(format!("operator.{name}"), vec![left, right]))
    }

    fn method(&mut self, operand: Arg) -> Parsed<RightSide> {
        self.at += 1;
        let start = self.at;
        self.at = word_end(self.text.as_bytes(), start);
        let name = self.slice(start);
        if name.is_empty() {
            return self.fail("the name of a method or attribute");
        }
        if self.peek() != Some(b'(') {
            return Ok(call(format!("getattr.{name}"), vec![operand]));
        }
        let mut args = self.arguments()?;
        args.positional.insert(0, operand);
        Ok(RightSide { target: format!("method.{name}"), args })
    }

    fn subscript(&mut self, operand: Arg) -> Parsed<RightSide> {
        self.at += 1;
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            self.space();
            if self.peek() == Some(b']') && !items.is_empty() {
                break;
            }
            items.push(self.subscript_item()?);
            self.space();
            if !self.eat(",") {
                break;
            }
            is_tuple = true;
        }
        self.expect("]")?;
        let index = match items.pop() {
            Some(index) if !is_tuple => index,
            Some(last) => {
                items.push(last);
                Arg::Tuple(items)
            }
            None => return self.fail("an index"),
        };
        Ok(call("operator.getitem".into(), vec![operand, index]))
    }

    /// One value, or `a:b:c`, which is `slice(a, b, c)`.
    fn subscript_item(&mut self) -> Parsed<Arg> {
        let mut bounds = Vec::new();
        let mut colons = 0;
        loop {
            self.space();
            let bound = match self.peek() {
                Some(b':' | b',' | b']') if colons > 0 || self.peek() == Some(b':') => Arg::None,
                _ => self.value()?,
            };
            bounds.push(bound);
            self.space();
            if colons == 2 || !self.eat(":") {
                break;
            }
            colons += 1;
        }
        if colons == 0 {
            return Ok(bounds.swap_remove(0));
        }
        bounds.resize(3, Arg::None);
        Ok(Arg::Apply("slice".into(), Args::positional(bounds)))
    }

    fn call_or_attribute(&mut self) -> Parsed<RightSide> {
        let start = self.at;
        let of_self = self.text[start..].trim_start_matches(GETATTR);
        let is_path = self.text[start..].starts_with(GETATTR) && of_self.starts_with("self");
        let mut target = if is_path { self.attribute_path()? } else { self.dotted()?.to_owned() };
        if self.peek() == Some(b'(') {
            let args = self.arguments()?;
            let is_module = target.starts_with("self.");
            if is_module && args == Args::default() && !target.ends_with(MODULE_CALL) {
                target.push_str(MODULE_CALL);
            }
            let operator = target.strip_prefix("torch.ops.");
            // Only what the writer puts below `torch.ops` again.
            let operator =
                operator.filter(|name| name.split_once('.').is_some_and(|(head, _)| !PYTHON.contains(&head)));
            let target = operator.map(str::to_owned).unwrap_or(target);
            return Ok(RightSide { target, args });
        }
        if target.len() > 5 && target.starts_with("self.") {
            return Ok(call(target, Vec::new()));
        }
        if let Some(fault) = self.undefined(start, &target) {
            return Err(fault);
        }
        self.at = start;
        let left = self.value()?;
        self.infix(left)
    }

    /// `getattr(self.a, "0").b`, which FX prints for names that are not identifiers, as `self.a.0.b`.
    fn attribute_path(&mut self) -> Parsed<String> {
        let mut nested = 0;
        while self.eat(GETATTR) {
            nested += 1;
        }
        let mut path = self.dotted()?.to_owned();
        for _ in 0..nested {
            self.expect(",")?;
            self.space();
            let quote = self.at;
            match self.peek() {
                Some(b'"' | b'\'') => self.at = self.quoted_end()?,
                _ => return self.fail("an attribute's name in quotes"),
            }
            let name = self.text.get(quote + 1..self.at - 1).unwrap_or_default();
            if name.is_empty() || word_end(name.as_bytes(), 0) < name.len() {
                self.at = quote;
                return self.fail("an attribute's name in quotes");
            }
            path.push('.');
            path.push_str(name);
            self.expect(")")?;
            if self.peek() == Some(b'.') {
                self.at += 1;
                path.push('.');
                path.push_str(self.dotted()?);
            }
        }
        Ok(path)
    }

    fn quoted_end(&mut self) -> Parsed<usize> {
        string_end(self.text.as_bytes(), self.at).or_else(|_| self.fail("a string"))
    }

    /// `(a, b, k = c)`.
    fn arguments(&mut self) -> Parsed<Args> {
        self.enter()?;
        self.at += 1;
        let mut args = Args::default();
        loop {
            self.space();
            if self.eat(")") {
                break;
            }
            match self.keyword() {
                Some(name) => {
                    let value = self.value()?;
                    args.keyword.push((name.into(), value));
                }
                None if !args.keyword.is_empty() => {
                    return self.fail("a keyword argument, for those without a keyword come first");
                }
                None => args.positional.push(self.value()?),
            }
            self.space();
            if !self.eat(",") {
                self.expect(")").or_else(|_| self.fail("`,` or `)`"))?;
                break;
            }
        }
        self.depth -= 1;
        Ok(args)
    }

    /// The `k = ` of a keyword argument, if that is next.
    fn keyword(&mut self) -> Option<&'a str> {
        let start = self.at;
        if !is_letter(self.peek()?) {
            return None;
        }
        self.at = word_end(self.text.as_bytes(), start);
        let name = self.slice(start);
        self.space();
        let is_keyword = self.peek() == Some(b'=') && self.text.as_bytes().get(self.at + 1) != Some(&b'=');
        if !is_keyword {
            self.at = start;
            return None;
        }
        self.at += 1;
        self.space();
        Some(name)
    }

    fn enter(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > DEPTH_LIMIT {
            return self.fail(format!("at most {DEPTH_LIMIT} nested brackets"));
        }
        Ok(())
    }

    fn value(&mut self) -> Parsed<Arg> {
        match self.peek() {
            Some(HOLE) => {
                let operand = self.hole();
                if matches!(self.peek(), Some(b'.' | b'[' | b'(')) {
                    return self.fail("a plain value");
                }
                Ok(operand)
            }
            Some(b'[') => Ok(Arg::List(self.items("]")?.0)),
            Some(b'(') => {
                if let Some(number) = self.complex() {
                    return Ok(number);
                }
                let (mut items, comma) = self.items(")")?;
                match items.pop() {
                    Some(only) if items.is_empty() && !comma => Ok(only),
                    last => {
                        items.extend(last);
                        Ok(Arg::Tuple(items))
                    }
                }
            }
            Some(b'{') => self.dict(),
            Some(b'\'' | b'"') => {
                let start = self.at;
                self.at = self.quoted_end()?;
                Ok(Arg::Str(self.text.get(start + 1..self.at - 1).unwrap_or_default().into()))
            }
            Some(b'<') => {
                let start = self.at;
                self.at = repr_end(self.text.as_bytes(), start);
                if self.at == start + 1 { self.fail("a value") } else { Ok(Arg::Word(self.slice(start).into())) }
            }
            Some(b'.') if self.eat("...") => Ok(Arg::Word("...".into())),
            Some(b'-' | b'+' | b'.' | b'0'..=b'9') => self.number(),
            Some(byte) if is_letter(byte) => self.word(),
            _ => self.fail("a value"),
        }
    }

    /// The elements of a list or tuple, and whether a comma stands last.
    fn items(&mut self, close: &str) -> Parsed<(Vec<Arg>, bool)> {
        self.enter()?;
        self.at += 1;
        let (mut items, mut comma) = (Vec::new(), false);
        loop {
            self.space();
            if self.eat(close) {
                break;
            }
            items.push(self.value()?);
            self.space();
            comma = self.eat(",");
            if !comma {
                self.expect(close).or_else(|_| self.fail(format!("`,` or `{close}`")))?;
                break;
            }
        }
        self.depth -= 1;
        Ok((items, comma))
    }

    /// `{'k': v}`, kept as `dict(k=v)`, or `dict([(k, v)])` when a key is not an identifier in quotes.
    fn dict(&mut self) -> Parsed<Arg> {
        self.enter()?;
        self.at += 1;
        let mut pairs = Vec::new();
        loop {
            self.space();
            if self.eat("}") {
                break;
            }
            let key = self.value()?;
            self.space();
            self.expect(":")?;
            self.space();
            pairs.push((key, self.value()?));
            self.space();
            if !self.eat(",") {
                self.expect("}").or_else(|_| self.fail("`,` or `}`"))?;
                break;
            }
        }
        self.depth -= 1;
        let names = pairs.iter().all(|(key, _)| key.as_str().is_some_and(is_identifier));
        let mut args = Args::default();
        if names {
            let named = |(key, value): (Arg, Arg)| key.as_str().map(|name| (name.into(), value));
            args.keyword = pairs.into_iter().filter_map(named).collect();
        } else {
            let tuples = pairs.into_iter().map(|(key, value)| Arg::Tuple(vec![key, value])).collect();
            args.positional.push(Arg::List(tuples));
        }
        Ok(Arg::Apply("dict".into(), args))
    }

    /// A complex number as Python prints it: `(3+4.5j)`.
    fn complex(&mut self) -> Option<Arg> {
        let rest = self.text.get(self.at..)?;
        let text = &rest[..=rest.find(')')?];
        let inner = text.strip_prefix('(')?.strip_suffix("j)")?;
        let is_number = |text: &str| {
            text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'+' | b'-' | b'e'))
                && text.parse::<f64>().is_ok()
        };
        let mut signs = inner.char_indices().filter(|&(at, c)| at > 0 && matches!(c, '+' | '-'));
        let (real, imaginary) =
            signs.rfind(|&(at, _)| !inner[..at].ends_with('e')).map(|(at, _)| inner.split_at(at))?;
        if !is_number(real) || !is_number(imaginary) {
            return None;
        }
        self.at += text.len();
        Some(Arg::Word(text.into()))
    }

    fn number(&mut self) -> Parsed<Arg> {
        let start = self.at;
        let bytes = self.text.as_bytes();
        if matches!(self.peek(), Some(b'-' | b'+')) {
            self.at += 1;
        }
        if self.peek().is_some_and(is_letter) {
            let word = self.dotted()?;
            if matches!(word, "inf" | "nan" | "math.inf" | "torch.inf" | "math.nan" | "torch.nan") {
                return Ok(Arg::Word(self.slice(start).into()));
            }
            self.at = start;
            return self.fail("a number");
        }
        self.at = dotted_end(bytes, self.at);
        let exponent = bytes[start..self.at].last().is_some_and(|byte| matches!(byte, b'e' | b'E'));
        if exponent && matches!(self.peek(), Some(b'-' | b'+')) {
            self.at = dotted_end(bytes, self.at + 1);
        }
        let text = self.slice(start);
        let digits = text.trim_start_matches(['-', '+']);
        if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return match text.parse() {
                Ok(value) => Ok(Arg::Int(value)),
                Err(_) => {
                    self.at = start;
                    self.fail("an integer that fits in 64 bits")
                }
            };
        }
        let plain = digits.strip_suffix('j').unwrap_or(digits);
        if plain.starts_with(|c: char| c.is_ascii_digit() || c == '.') && plain.parse::<f64>().is_ok() {
            return Ok(Arg::Float(text.into()));
        }
        self.at = start;
        self.fail("a number")
    }

    fn word(&mut self) -> Parsed<Arg> {
        let start = self.at;
        let word = self.dotted()?;
        if self.peek() == Some(b'(') {
            return Ok(Arg::Apply(word.into(), self.arguments()?));
        }
        if let Some(fault) = self.undefined(start, word) {
            return Err(fault);
        }
        Ok(match word {
            "True" => Arg::Bool(true),
            "False" => Arg::Bool(false),
            "None" => Arg::None,
            _ => match word.strip_prefix("torch.").and_then(DType::from_name) {
                Some(dtype) => Arg::DType(dtype),
                None => Arg::Word(word.into()),
            },
        })
    }

    /// The fault of using a word that is neither dotted nor one of Python's.
    fn undefined(&self, start: usize, word: &str) -> Option<KeyFault> {
        let known = word.contains('.') || matches!(word, "True" | "False" | "None") || WORDS.contains(&word);
        (!known).then(|| KeyFault {
            at: start,
            expected: "a name that is defined before this line".into(),
            undefined: Some(word.to_owned()),
        })
    }
}

/// The target of `a = b`, which FX prints for inputs that Dynamo renamed.
pub(super) const ALIAS: &str = "alias";

/// Begins the attribute path of a name that is not an identifier.
const GETATTR: &str = "getattr(";

/// Tells a module's call without arguments from an attribute.
pub(super) const MODULE_CALL: &str = ".__call__";

fn call(target: String, positional: Vec<Arg>) -> RightSide {
    RightSide { target, args: Args::positional(positional) }
}

/// Whether a text can be a name in Python.
pub(super) fn is_identifier(text: &str) -> bool {
    !is_keyword(text) && text.bytes().next().is_some_and(is_letter) && word_end(text.as_bytes(), 0) == text.len()
}

#[cfg(test)]
mod tests;
