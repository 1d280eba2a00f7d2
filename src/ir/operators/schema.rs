//! Schemas as PyTorch writes them: `ns::name.overload(Tensor(a!) self, *, int n=1) -> Tensor(a!)`.
//!
//! Grammar, from `torch/csrc/jit/frontend/function_schema_parser.cpp`, as far as effects need it:
//!
//! ```text
//! schema   = [ name "::" ] name [ "." overload ] "(" [ argument { "," argument } ] ")" "->" returns [ "tags:" words ]
//! argument = "*" | type name [ "=" default ]
//! returns  = type [ name ] | "(" [ type [ name ] { "," type [ name ] } ] ")"
//! type     = word [ "(" type { "," type } ")" ] { alias | "[" [ n ] "]" | "?" }
//! alias    = "(" set { "|" set } [ "!" ] [ "->" set { "|" set } ] ")"
//! ```

use smallvec::SmallVec;

/// An operator's arguments and results, as far as effects need them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Signature {
    pub parameters: Vec<Parameter>,
    pub returns: SmallVec<[Return; 2]>,
    pub flags: Flags,
}

/// One argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameter {
    pub name: Box<str>,
    /// Whether it has to be named.
    pub keyword_only: bool,
    /// Whether it may hold tensors or their storage.
    pub tensors: bool,
    /// Its alias set, if it is in one.
    pub alias: Option<AliasSet>,
}

/// Values that may share memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AliasSet {
    /// Empty for lists whose elements have none of their own.
    pub name: Box<str>,
    pub written: bool,
}

/// One result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Return {
    /// A tensor, or several, with memory of their own.
    Fresh,
    /// No tensor.
    Other,
    /// In an alias set.
    In(AliasSet),
}

/// What else is said of an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    /// Draws from a generator.
    pub random: bool,
    /// May alias or write what its schema does not say.
    pub maybe: bool,
    /// Changes sizes or strides of what it writes.
    pub inplace_view: bool,
    /// Talks to other ranks.
    pub communicates: bool,
}

/// A fault, at a byte of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SchemaError {
    pub at: usize,
    pub expected: &'static str,
}

type Parsed<T> = Result<T, SchemaError>;

/// The target (`ns.name.overload`) and signature of a schema.
pub(super) fn parse(text: &str) -> Parsed<(String, Signature)> {
    let mut parser = Parser { text, at: 0 };
    let target = parser.target()?;
    let mut signature = Signature { parameters: parser.parameters()?, ..Signature::default() };
    parser.expect("->", "`->` and what the operator returns")?;
    signature.returns = parser.returns()?;
    parser.space();
    if parser.eat("tags:") {
        signature.flags = parser.tags()?;
    }
    parser.space();
    if parser.at < text.len() {
        return parser.fail("the end of the schema, or `tags: ` and tags");
    }
    Ok((target, signature))
}

/// Nested types may be this deep.
const DEPTH_LIMIT: usize = 50;

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

/// A type, as far as it matters.
struct TypeText {
    tensors: bool,
    alias: Option<AliasSet>,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn fail<T>(&self, expected: &'static str) -> Parsed<T> {
        Err(SchemaError { at: self.at, expected })
    }

    fn eat(&mut self, text: &str) -> bool {
        self.space();
        let found = self.rest().starts_with(text);
        self.at += if found { text.len() } else { 0 };
        found
    }

    fn expect(&mut self, text: &str, expected: &'static str) -> Parsed<()> {
        if self.eat(text) { Ok(()) } else { self.fail(expected) }
    }

    fn word(&mut self, more: &[char], expected: &'static str) -> Parsed<&'a str> {
        self.space();
        let is_part = |c: char| c.is_alphanumeric() || c == '_' || more.contains(&c);
        let word = &self.rest()[..self.rest().find(|c| !is_part(c)).unwrap_or(self.rest().len())];
        if word.is_empty() {
            return self.fail(expected);
        }
        self.at += word.len();
        Ok(word)
    }

    /// An operator without a namespace is one of our own text.
    fn target(&mut self) -> Parsed<String> {
        let first = self.word(&[], "an operator, such as `mylib::scale_by(Tensor x) -> Tensor`")?;
        let name = if self.eat("::") {
            format!("{first}.{}", self.word(&[], "the name of an operator")?)
        } else {
            first.to_owned()
        };
        if !self.rest().starts_with('.') {
            return Ok(format!("{name}.default"));
        }
        self.at += 1;
        Ok(format!("{name}.{}", self.word(&[], "the name of an overload")?))
    }

    fn parameters(&mut self) -> Parsed<Vec<Parameter>> {
        self.expect("(", "`(` and arguments")?;
        let (mut parameters, mut keyword_only) = (Vec::new(), false);
        if self.eat(")") {
            return Ok(parameters);
        }
        loop {
            if self.eat("*") {
                keyword_only = true;
            } else {
                let TypeText { tensors, alias } = self.ty(0)?;
                let name = self.word(&[], "the name of an argument")?.into();
                if self.eat("=") {
                    self.default()?;
                }
                parameters.push(Parameter { name, keyword_only, tensors, alias });
            }
            if self.eat(")") {
                return Ok(parameters);
            }
            self.expect(",", "`,` or `)`")?;
        }
    }

    /// Skips a default: up to a comma or bracket outside of brackets and quotes.
    fn default(&mut self) -> Parsed<()> {
        self.space();
        let (mut depth, mut quote) = (0usize, None);
        let mut escaped = false;
        for (at, c) in self.rest().char_indices() {
            match (quote, c) {
                (Some(_), _) if escaped => escaped = false,
                (Some(_), '\\') => escaped = true,
                (Some(open), _) if c == open => quote = None,
                (Some(_), _) => {}
                (None, '\'' | '"') => quote = Some(c),
                (None, '[' | '(') => depth += 1,
                (None, ',' | ')') if depth == 0 => {
                    if at == 0 {
                        return self.fail("a default");
                    }
                    self.at += at;
                    return Ok(());
                }
                (None, ']' | ')') => depth = depth.saturating_sub(1),
                (None, _) => {}
            }
        }
        self.at = self.text.len();
        self.fail("`,` or `)`")
    }

    fn ty(&mut self, depth: usize) -> Parsed<TypeText> {
        if depth > DEPTH_LIMIT {
            return self.fail("a type that is nested less deeply");
        }
        let mut tensors = false;
        let mut alias = None;
        if self.eat("(") {
            // A tuple.
            while !self.eat(")") {
                tensors |= self.ty(depth + 1)?.tensors;
                if !self.eat(",") {
                    self.expect(")", "`,` or `)`")?;
                    break;
                }
            }
        } else {
            let word = self.word(&['.'], "a type, such as `Tensor`")?;
            let is_generic =
                matches!(word, "Dict" | "Future" | "RRef" | "Await" | "List" | "Optional" | "Union" | "Tuple");
            // Plain types that hold no tensor; anything else may.
            tensors = !matches!(
                word,
                "int"
                    | "float"
                    | "bool"
                    | "complex"
                    | "str"
                    | "number"
                    | "Scalar"
                    | "SymInt"
                    | "SymFloat"
                    | "SymBool"
                    | "Device"
                    | "DeviceObjType"
                    | "Layout"
                    | "MemoryFormat"
                    | "ScalarType"
                    | "Dimname"
                    | "QScheme"
                    | "Generator"
                    | "Stream"
                    | "None"
                    | "NoneType"
            ) && !is_generic;
            if is_generic && self.rest().starts_with('(') {
                self.at += 1;
                loop {
                    tensors |= self.ty(depth + 1)?.tensors;
                    if !self.eat(",") {
                        break;
                    }
                }
                self.expect(")", "`)`")?;
            } else if is_generic {
                tensors = true;
            }
        }
        loop {
            if self.rest().starts_with('(') {
                let found = self.alias()?;
                let before = alias.get_or_insert_with(|| found.clone());
                before.written |= found.written;
            } else if self.rest().starts_with('[') {
                self.at += 1;
                self.space();
                let digits = self.rest().len() - self.rest().trim_start_matches(|c: char| c.is_ascii_digit()).len();
                self.at += digits;
                self.expect("]", "`]`")?;
            } else if self.rest().starts_with('?') {
                self.at += 1;
            } else {
                return Ok(TypeText { tensors, alias });
            }
        }
    }

    /// `(a!)`, `(a -> *)`, `(a|b)`, `(!)`.
    fn alias(&mut self) -> Parsed<AliasSet> {
        self.at += 1;
        let is_set = |c: char| c.is_alphanumeric() || matches!(c, '_' | '*' | '|' | ' ');
        let end = self.rest().find(|c| !is_set(c)).unwrap_or(self.rest().len());
        let name: Box<str> = self.rest()[..end].trim().into();
        self.at += end;
        let written = self.eat("!");
        if self.eat("->") {
            let end = self.rest().find(|c| !is_set(c)).unwrap_or(self.rest().len());
            self.at += end;
        }
        self.expect(")", "`)` after an alias set, such as `(a!)`")?;
        Ok(AliasSet { name, written })
    }

    fn returns(&mut self) -> Parsed<SmallVec<[Return; 2]>> {
        let mut returns = SmallVec::new();
        self.space();
        if !self.rest().starts_with('(') {
            returns.push(self.result()?);
            return Ok(returns);
        }
        self.at += 1;
        if self.eat(")") {
            return Ok(returns);
        }
        loop {
            returns.push(self.result()?);
            if self.eat(")") {
                return Ok(returns);
            }
            self.expect(",", "`,` or `)`")?;
        }
    }

    fn result(&mut self) -> Parsed<Return> {
        if self.eat("...") {
            return Ok(Return::Fresh);
        }
        let ty = self.ty(0)?;
        self.space();
        if self.rest().starts_with(|c: char| c.is_alphabetic() || c == '_') && !self.rest().starts_with("tags:") {
            self.word(&[], "the name of a result")?;
        }
        Ok(match ty.alias {
            Some(alias) => Return::In(alias),
            None if ty.tensors => Return::Fresh,
            None => Return::Other,
        })
    }

    fn tags(&mut self) -> Parsed<Flags> {
        let mut flags = Flags::default();
        loop {
            self.space();
            if self.at == self.text.len() {
                return Ok(flags);
            }
            match self.word(&[], "a tag of PyTorch, such as `nondeterministic_seeded`, or `communicates`")? {
                "nondeterministic_seeded" => flags.random = true,
                "maybe_aliasing_or_mutating" => flags.maybe = true,
                "inplace_view" => flags.inplace_view = true,
                "communicates" => flags.communicates = true,
                _ => {}
            }
            let _ = self.eat(",");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(text: &str) -> Signature {
        parse(text).unwrap_or_else(|error| panic!("{text}: {error:?}")).1
    }

    #[test]
    fn marks_of_arguments_and_results_are_read() {
        let (target, found) =
            parse("mylib::scale_by.out(Tensor(a!) g, Tensor[] xs, float[2] f=[1., 2.], *, str mode='a,)', Tensor(b -> *)? y=None) -> (Tensor(a!), int n)").unwrap();
        assert_eq!(target, "mylib.scale_by.out");
        let names: Vec<_> = found.parameters.iter().map(|p| (&*p.name, p.keyword_only, p.tensors)).collect();
        assert_eq!(
            names,
            [("g", false, true), ("xs", false, true), ("f", false, false), ("mode", true, false), ("y", true, true)]
        );
        assert_eq!(found.parameters[0].alias, Some(AliasSet { name: "a".into(), written: true }));
        assert_eq!(found.parameters[4].alias, Some(AliasSet { name: "b".into(), written: false }));
        assert_eq!(found.returns.as_slice(), [Return::In(AliasSet { name: "a".into(), written: true }), Return::Other]);
    }

    #[test]
    fn tags_say_what_schemas_do_not() {
        let found = signature("mylib::noise(Tensor x) -> Tensor tags: nondeterministic_seeded communicates");
        assert!(found.flags.random && found.flags.communicates && !found.flags.maybe);
        assert_eq!(found.returns.as_slice(), [Return::Fresh]);
        assert!(signature("mylib::log(Tensor x) -> ()").returns.is_empty());
    }

    #[test]
    fn what_is_not_a_schema_is_refused_with_its_place() {
        for (text, at) in [
            ("", 0),
            ("scale_by(Tensor x)", 18),
            ("a::b(Tensor x", 13),
            ("a::b(Tensor x) Tensor", 15),
            ("a::b(x) -> Tensor", 6),
        ] {
            assert_eq!(parse(text).unwrap_err().at, at, "{text}");
        }
    }
}
