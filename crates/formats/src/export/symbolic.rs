//! Symbolic sizes as SymPy's `srepr` writes them: `Mul(Integer(4), Symbol('s77', positive=True, integer=True))`.

use std::fmt::Write;

/// Deepest nesting that is followed.
const MAX_DEPTH: u32 = 64;

/// A size as people write it, `4*s77`, of SymPy's text. `None` if it is no such text.
pub(super) fn infix(srepr: &str) -> Option<String> {
    let mut reader = Reader { text: srepr, at: 0 };
    let text = reader.expression(0)?;
    reader.skip_blanks();
    (reader.at == srepr.len()).then_some(text)
}

/// The symbol that SymPy's text is, if it is only that.
pub(super) fn symbol(srepr: &str) -> Option<&str> {
    let name = srepr.strip_prefix("Symbol('")?;
    let (name, rest) = name.split_once('\'')?;
    (!rest.contains('(') && rest.ends_with(')')).then_some(name)
}

/// The texts of all symbols in SymPy's text, by name.
pub(super) fn symbols(srepr: &str) -> impl Iterator<Item = (&str, &str)> {
    srepr.match_indices("Symbol('").filter_map(move |(at, _)| {
        let end = at + srepr[at..].find(')')? + 1;
        symbol(&srepr[at..end]).map(|name| (name, &srepr[at..end]))
    })
}

/// SymPy's text of a size as people write it; `symbol` gives the texts of symbols. `None` for what has no such text.
pub(super) fn srepr(infix: &str, symbol: &dyn Fn(&str) -> String) -> Option<String> {
    let mut reader = Reader { text: infix, at: 0 };
    let text = reader.sum(symbol, 0)?;
    reader.skip_blanks();
    (reader.at == infix.len()).then_some(text)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn skip_blanks(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    fn eat(&mut self, word: &str) -> bool {
        self.skip_blanks();
        let found = self.text[self.at..].starts_with(word);
        if found {
            self.at += word.len();
        }
        found
    }

    fn word(&mut self) -> Option<&'a str> {
        self.skip_blanks();
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "_.".contains(c))).unwrap_or(rest.len());
        self.at += end;
        (end > 0).then(|| &rest[..end])
    }

    /// An expression of `srepr`.
    fn expression(&mut self, depth: u32) -> Option<String> {
        let minus = if self.eat("-") { "-" } else { "" };
        let head = self.word()?;
        if depth > MAX_DEPTH {
            return None;
        }
        if !self.eat("(") {
            return Some(format!("{minus}{head}"));
        }
        if head == "Symbol" || head == "Integer" {
            let quoted = self.eat("'");
            let minus = if self.eat("-") { "-" } else { "" };
            let value = self.word()?;
            if quoted && !self.eat("'") {
                return None;
            }
            // What is assumed of a symbol.
            while self.eat(",") {
                self.word()?;
                (self.eat("=") && self.word().is_some()).then_some(())?;
            }
            return self.eat(")").then(|| format!("{minus}{value}"));
        }
        let mut parts = Vec::new();
        while !self.eat(")") {
            parts.push(self.expression(depth + 1)?);
            if !self.eat(",") {
                self.eat(")").then_some(())?;
                break;
            }
        }
        join(head, &parts)
    }

    fn sum(&mut self, symbol: &dyn Fn(&str) -> String, depth: u32) -> Option<String> {
        let mut terms = Vec::new();
        let mut minus = self.eat("-");
        loop {
            let term = self.product(symbol, depth)?;
            terms.push(if minus { negated(&term) } else { term });
            if self.eat("+") {
                minus = false;
            } else if self.eat("-") {
                minus = true;
            } else {
                return Some(call("Add", terms));
            }
        }
    }

    fn product(&mut self, symbol: &dyn Fn(&str) -> String, depth: u32) -> Option<String> {
        let mut factors = vec![self.power(symbol, depth)?];
        loop {
            if self.eat("//") {
                let by = self.power(symbol, depth)?;
                factors = vec![format!("FloorDiv({}, {by})", call("Mul", factors))];
            } else if self.eat("*") {
                factors.push(self.power(symbol, depth)?);
            } else {
                return Some(call("Mul", factors));
            }
        }
    }

    fn power(&mut self, symbol: &dyn Fn(&str) -> String, depth: u32) -> Option<String> {
        let base = self.atom(symbol, depth)?;
        if !self.eat("**") {
            return Some(base);
        }
        let power: u32 = self.word()?.parse().ok()?;
        Some(format!("Pow({base}, Integer({power}))"))
    }

    fn atom(&mut self, symbol: &dyn Fn(&str) -> String, depth: u32) -> Option<String> {
        if depth > MAX_DEPTH {
            return None;
        }
        if self.eat("(") {
            let inner = self.sum(symbol, depth + 1)?;
            return self.eat(")").then_some(inner);
        }
        let word = self.word()?;
        if word.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(format!("Integer({word})"));
        }
        if !self.eat("(") {
            return Some(symbol(word));
        }
        let mut parts = Vec::new();
        while !self.eat(")") {
            parts.push(self.sum(symbol, depth + 1)?);
            if !self.eat(",") {
                self.eat(")").then_some(())?;
                break;
            }
        }
        Some(format!("{word}({})", parts.join(", ")))
    }
}

fn negated(term: &str) -> String {
    match term.strip_prefix("Integer(").and_then(|rest| rest.strip_suffix(')')) {
        Some(value) => format!("Integer(-{value})"),
        None => format!("Mul(Integer(-1), {term})"),
    }
}

/// A call of parts, or the part if it is only one.
fn call(name: &str, mut parts: Vec<String>) -> String {
    match parts.len() {
        1 => parts.remove(0),
        _ => format!("{name}({})", parts.join(", ")),
    }
}

/// A call of SymPy as people write it.
fn join(head: &str, parts: &[String]) -> Option<String> {
    let is_simple = |part: &str| part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let wrap = |part: &String| if is_simple(part) { part.clone() } else { format!("({part})") };
    let wrapped = || parts.iter().map(wrap).collect::<Vec<_>>();
    Some(match (head, parts) {
        ("Add", [_, ..]) => parts.join(" + ").replace("+ -", "- "),
        ("Mul", [_, ..]) => wrapped().join("*"),
        ("Pow", [_, power]) if power.bytes().all(|byte| byte.is_ascii_digit()) => wrapped().join("**"),
        ("FloorDiv" | "CleanDiv", [_, _]) => wrapped().join("//"),
        _ => {
            let mut text = String::new();
            write!(text, "{head}({})", parts.join(", ")).ok()?;
            text
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_from_sympys_texts_and_written_back() {
        let symbol = |name: &str| format!("Symbol('{name}', positive=True, integer=True)");
        let s = symbol("s0");
        for (text, plain) in [
            (s.clone(), "s0"),
            ("Integer(-4)".into(), "-4"),
            (format!("Mul(Integer(4), {s})"), "4*s0"),
            (format!("Add({s}, Integer(-1))"), "s0 - 1"),
            (format!("Pow({s}, Integer(2))"), "s0**2"),
            (format!("FloorDiv(Add({s}, Integer(7)), Integer(8))"), "(s0 + 7)//8"),
            (format!("Max(Integer(1), {s})"), "Max(1, s0)"),
        ] {
            assert_eq!(infix(&text).as_deref(), Some(plain));
            assert_eq!(srepr(plain, &symbol).as_deref(), Some(&*text));
        }
        assert_eq!(symbols(&format!("Add({s}, {s})")).count(), 2);
    }

    #[test]
    fn what_is_no_size_is_told() {
        for text in ["", "Symbol('s0'", "Symbol('s0)", "Add(", "Mul(Integer(4)", "Integer(4) x", "Symbol('s', a)"] {
            assert_eq!(infix(text), None, "{text}");
        }
        assert_eq!(infix(&"Add(".repeat(100_000)), None);
        for text in ["", "4*", "(s0", "f(s0", "s0 s1", "s0**s1"] {
            assert_eq!(srepr(text, &str::to_owned), None, "{text}");
        }
        assert_eq!(srepr(&"(".repeat(100_000), &str::to_owned), None);
    }
}
