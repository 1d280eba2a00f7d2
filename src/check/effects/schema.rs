//! One operator's schema, as PyTorch prints it.
//!
//! ```text
//! line   = namespace::name[.overload](params) -> returns [TAB tags]       a declared line has ` tags: ` for the tab
//! param  = type name [= default]     `*` parts those that are given by name alone; `...` stands for anything
//! type   = words and brackets, with an annotation such as `(a!)`: the names of sets of memory, `!` where it is written,
//!          `->` what it is part of afterwards, `*` for any memory
//! ```

/// Memory that a parameter or result is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::check) struct AliasMark {
    /// A bit for each set, by its letter.
    pub sets: u32,
    /// Whether it is written.
    pub written: bool,
}

/// Stands for any memory, among the bits of the sets.
pub(in crate::check) const ANYWHERE: u32 = 1 << 31;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::check) struct Param<'a> {
    pub name: &'a str,
    pub ty: &'a str,
    pub memory: AliasMark,
    /// Whether it is given by name alone.
    pub named: bool,
    pub default: Option<&'a str>,
}

/// Whether a type is that of a tensor, or may hold some: it may be a variable, as TorchScript's lists have.
pub(in crate::check) fn may_hold_tensors(ty: &str) -> bool {
    let mut words = ty.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.any(|word| matches!(word, "Tensor" | "Any" | "t" | "tVal" | "t1" | "t2"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::check) struct Return<'a> {
    pub ty: &'a str,
    pub memory: AliasMark,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::check) struct Schema<'a> {
    /// `aten::add_.Tensor`.
    pub name: &'a str,
    pub params: Vec<Param<'a>>,
    pub returns: Vec<Return<'a>>,
    /// Whether it takes or makes anything beside these: `...`.
    pub open: bool,
    tags: &'a str,
}

impl<'a> Schema<'a> {
    /// Reads a line; `None` if it is not a schema.
    pub fn read(line: &'a str) -> Option<Self> {
        let (text, tags) = line.split_once('\t').or_else(|| line.split_once(" tags: ")).unwrap_or((line, ""));
        let open = text.find('(')?;
        let close = open + closing(&text[open..])?;
        let returns = text[close + 1..].trim().strip_prefix("->")?.trim();
        let mut schema = Self { name: text[..open].trim(), params: Vec::new(), returns: Vec::new(), open: false, tags };
        let mut named = false;
        for part in items(&text[open + 1..close]) {
            match part {
                "*" => named = true,
                "..." => schema.open = true,
                _ => schema.params.push(param(part, named)?),
            }
        }
        let list = match returns.strip_prefix('(') {
            Some(_) if closing(returns) == Some(returns.len() - 1) => &returns[1..returns.len() - 1],
            _ => returns,
        };
        for part in items(list) {
            schema.open |= part == "...";
            // A result may have a name behind its type.
            let ty = match part.rsplit_once(' ') {
                Some((ty, name)) if name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_') => ty,
                _ => part,
            };
            schema.returns.push(Return { ty, memory: memory(ty) });
        }
        Some(schema)
    }

    pub fn has_tag(&self, tag: &str) -> bool {
        self.tags.split([' ', ',']).any(|word| word == tag)
    }

    /// Whether it takes or makes tensors.
    pub fn has_tensors(&self) -> bool {
        let mut types = self.params.iter().map(|param| param.ty).chain(self.returns.iter().map(|result| result.ty));
        types.any(|ty| ty.contains("Tensor"))
    }

    /// The place of a parameter.
    pub fn place(&self, name: &str) -> Option<usize> {
        self.params.iter().position(|param| param.name == name)
    }
}

fn param(text: &str, named: bool) -> Option<Param<'_>> {
    let (text, default) = match text.split_once('=') {
        Some((text, default)) => (text.trim(), Some(default.trim())),
        None => (text, None),
    };
    let (ty, name) = text.rsplit_once(' ')?;
    Some(Param { name, ty, memory: memory(ty), named, default })
}

/// The annotation in a type: the one pair of brackets that holds nothing but sets.
fn memory(ty: &str) -> AliasMark {
    let mut found = AliasMark::default();
    for (at, _) in ty.match_indices('(') {
        let Some(end) = closing(&ty[at..]) else { continue };
        let inside = &ty[at + 1..at + end];
        let mut written = false;
        let mut sets = 0;
        let only_sets = inside.split([' ', '|', '!']).all(|word| match word.as_bytes() {
            b"" | b"->" => true,
            b"*" => {
                sets |= ANYWHERE;
                true
            }
            &[letter @ b'a'..=b'z'] => {
                sets |= 1 << (letter - b'a');
                true
            }
            _ => false,
        });
        written |= inside.contains('!');
        if only_sets && sets != 0 {
            found.sets |= sets;
            found.written |= written;
        }
    }
    found
}

/// Whether a text, read on, is inside quotes.
#[derive(Default)]
struct Quote {
    open: Option<u8>,
    escaped: bool,
}

impl Quote {
    /// Whether this byte is of a quoted text, or one of its quotes.
    fn holds(&mut self, c: u8) -> bool {
        match self.open {
            Some(_) if self.escaped => self.escaped = false,
            Some(_) if c == b'\\' => self.escaped = true,
            Some(open) if c == open => self.open = None,
            Some(_) => {}
            None if matches!(c, b'"' | b'\'') => self.open = Some(c),
            None => return false,
        }
        true
    }
}

/// Where the bracket that begins a text is closed.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0usize, Quote::default());
    for (at, c) in text.bytes().enumerate() {
        match c {
            _ if quote.holds(c) => {}
            b'(' | b'[' => depth += 1,
            b')' | b']' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// The parts of a list, between commas outside brackets and quotes.
fn items(text: &str) -> impl Iterator<Item = &str> {
    let mut parts = Vec::new();
    let (mut depth, mut quote, mut start) = (0i32, Quote::default(), 0);
    for (at, c) in text.bytes().enumerate() {
        match c {
            _ if quote.holds(c) => {}
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.into_iter().filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_says_what_is_written_and_what_is_handed_on() {
        let add =
            Schema::read("aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)\tcore");
        let add = add.unwrap();
        assert_eq!((add.name, add.params.len(), add.has_tag("core")), ("aten::add_.Tensor", 3, true));
        assert_eq!(add.params[0].memory, AliasMark { sets: 1, written: true });
        assert_eq!((add.params[2].named, add.params[2].default), (true, Some("1")));
        assert_eq!(add.returns[0].memory, add.params[0].memory);
        let split =
            Schema::read("aten::split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]");
        assert_eq!(split.unwrap().returns[0].memory, AliasMark { sets: 1, written: false });
        let named = Schema::read("x::y(Dict(str, t) d, str s=\"a, (b\", *, Tensor(b!)[] out) -> (Tensor(b!) v, int n)")
            .unwrap();
        assert_eq!(named.params.iter().map(|param| param.name).collect::<Vec<_>>(), ["d", "s", "out"]);
        assert_eq!((named.returns.len(), named.returns[0].memory.written), (2, true));
        assert!(Schema::read("prim::BailOut(...) -> Tensor(a)").unwrap().open);
        assert_eq!(Schema::read("no schema"), None);
    }

    #[test]
    fn every_line_of_pytorch_is_a_schema() {
        let lines: Vec<&str> = super::super::table::lines().collect();
        assert!(lines.len() > 4000);
        for line in lines {
            let schema = Schema::read(line);
            assert!(schema.is_some_and(|schema| schema.name == line.split('(').next().unwrap()), "{line}");
        }
    }
}
