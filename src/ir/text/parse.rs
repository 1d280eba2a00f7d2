//! Statements: groups, hints, regions, order edges, definitions and their trailing clauses.

use super::call::Draft;
use super::lex::{Lexer, Token, is_name, unquote};
use super::normal::{SAID, renumber};
use super::{MAX_DEPTH, TextError};
use crate::ir::args::Arg;
use crate::ir::entities::{GroupId, NodeId, RegionId};
use crate::ir::graph::{ControlEdge, Graph, Region, RegionKind, Strength};
use crate::ir::operators::infer_type;
use crate::ir::ops::{GlobalRank, Op};
use crate::ir::symexpr::SymExpr;
use crate::ir::types::Type;
use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;

type Result<T> = std::result::Result<T, TextError>;

/// Reads a graph from its native text.
///
/// # Errors
/// [`TextError`] at the first mistake.
pub fn parse(text: &str) -> Result<Graph> {
    let mut parser = Parser::new(text);
    parser.skip_separators()?;
    let mut ahead = parser.lex;
    let wrapped = ahead.next()? == Token::Word("graph") && matches!(ahead.next()?, Token::Word(_) | Token::Str(_));
    if wrapped {
        parser.lex.next()?;
        parser.graph.name = parser.word_or_string("a name")?;
        parser.expect('{')?;
        parser.block(0)?;
        parser.skip_separators()?;
    } else {
        parser.statements(0)?;
    }
    match parser.lex.peek()? {
        Token::End => Ok(parser.graph),
        _ => Err(parser.unexpected(if wrapped { "nothing after the graph" } else { "a statement" })),
    }
}

/// A reader at work: its place in the text, and the graph so far.
pub(in crate::ir) struct Parser<'a> {
    pub(super) lex: Lexer<'a>,
    pub(in crate::ir) graph: Graph,
    /// By index of the name: the node that bears it, and where it was defined.
    values: Vec<Option<(NodeId, usize)>>,
    groups: HashMap<Box<str>, Vec<GroupId>, FxBuildHasher>,
    region: RegionId,
    /// Names the text defines itself, found when the first fresh name is needed.
    taken: Option<HashSet<&'a str, FxBuildHasher>>,
    next_fresh: HashMap<String, u32, FxBuildHasher>,
}

impl<'a> Parser<'a> {
    pub(in crate::ir) fn new(text: &'a str) -> Self {
        Self {
            lex: Lexer::new(text),
            graph: Graph::default(),
            values: Vec::new(),
            groups: HashMap::default(),
            region: RegionId::ROOT,
            taken: None,
            next_fresh: HashMap::default(),
        }
    }

    // Errors and small steps.

    pub(super) fn error(&self, at: usize, found: impl Into<String>, expected: impl Into<String>) -> TextError {
        TextError::new(self.lex.text(), at, found.into(), expected)
    }

    /// The next token is not `expected`.
    pub(super) fn unexpected(&mut self, expected: impl Into<String>) -> TextError {
        let at = self.lex.position();
        match self.lex.peek() {
            Ok(token) => self.error(at, token.describe(), expected),
            Err(error) => error,
        }
    }

    pub(super) fn expect(&mut self, mark: char) -> Result<()> {
        if self.eat(mark)? { Ok(()) } else { Err(self.unexpected(format!("`{mark}`"))) }
    }

    pub(super) fn eat(&mut self, mark: char) -> Result<bool> {
        let found = self.lex.peek()? == Token::Mark(mark);
        if found {
            self.lex.next()?;
        }
        Ok(found)
    }

    pub(super) fn word(&mut self, expected: &str) -> Result<&'a str> {
        match self.lex.peek()? {
            Token::Word(word) if !word.starts_with('-') => self.lex.next().map(|_| word),
            _ => Err(self.unexpected(expected)),
        }
    }

    fn word_or_string(&mut self, expected: &str) -> Result<String> {
        let text = match self.lex.peek()? {
            Token::Word(word) => word.to_owned(),
            Token::Str(raw) => unquote(raw),
            _ => return Err(self.unexpected(expected)),
        };
        self.lex.next()?;
        Ok(text)
    }

    fn string(&mut self) -> Result<String> {
        match self.lex.peek()? {
            Token::Str(raw) => self.lex.next().map(|_| unquote(raw)),
            _ => Err(self.unexpected("a string")),
        }
    }

    pub(super) fn integer<T: std::str::FromStr>(&mut self, expected: &str) -> Result<T> {
        let at = self.lex.position();
        match self.lex.peek()? {
            Token::Int(text) => {
                self.lex.next()?;
                text.parse().map_err(|_| self.error(at, format!("`{text}`"), expected))
            }
            _ => Err(self.unexpected(expected)),
        }
    }

    fn skip_separators(&mut self) -> Result<()> {
        while self.lex.peek()? == Token::Separator {
            self.lex.next()?;
        }
        Ok(())
    }

    // Blocks and statements.

    /// The rest of a block after its `{`, with the `}`.
    fn block(&mut self, depth: u32) -> Result<()> {
        self.statements(depth)?;
        self.expect('}')
    }

    fn statements(&mut self, depth: u32) -> Result<()> {
        loop {
            self.skip_separators()?;
            if matches!(self.lex.peek()?, Token::End | Token::Mark('}')) {
                return Ok(());
            }
            self.statement(depth)?;
            if !matches!(self.lex.peek()?, Token::Separator | Token::End | Token::Mark('}')) {
                return Err(self.unexpected("the end of the statement"));
            }
        }
    }

    fn statement(&mut self, depth: u32) -> Result<()> {
        let at = self.lex.position();
        if self.lex.peek()? == Token::Mark('@') {
            return self.definition(None);
        }
        let first = self.word("a statement")?;
        match (first, self.lex.peek()?) {
            ("group", Token::Word(_) | Token::Str(_)) => self.group(),
            ("hint", Token::Word(_) | Token::Str(_)) => self.hint(),
            ("region", Token::Word(_) | Token::Str(_) | Token::Mark('@')) => self.nested_region(depth),
            ("after", Token::Mark('(')) => self.order_edge(Strength::Hard),
            ("soft_after", Token::Mark('(')) => self.order_edge(Strength::Soft),
            (_, Token::Mark('=')) => {
                self.lex.next()?;
                self.definition(Some((first, at)))
            }
            _ => {
                self.lex.jump(at);
                self.definition(None)
            }
        }
    }

    fn group(&mut self) -> Result<()> {
        let at = self.lex.position();
        let name = self.word_or_string("a group's name")?;
        let mut size = if self.eat(':')? { self.group_size()? } else { None };
        let members = if self.eat('=')? { self.members()? } else { Vec::new() };
        size = size.or_else(|| members.first().and_then(|list: &Vec<_>| u32::try_from(list.len()).ok()));
        let known = self.groups.get(&*name).into_iter().flatten();
        if known.into_iter().any(|&id| self.graph.group(id).size == size) {
            return Err(self.error(at, format!("a second statement of group `{name}`"), "one, before its first use"));
        }
        let id = self.graph.intern_group(&name, size);
        self.graph.group_mut(id).members = members;
        let ids = self.groups.entry(name.into()).or_default();
        if !ids.contains(&id) {
            ids.push(id);
        }
        Ok(())
    }

    /// A size after `:`; `?` when it is not known.
    pub(super) fn group_size(&mut self) -> Result<Option<u32>> {
        if self.eat('?')? {
            return Ok(None);
        }
        let at = self.lex.position();
        let size: u32 = self.integer("a number of ranks, or `?`")?;
        if size == 0 { Err(self.error(at, "`0`", "a group of one rank or more")) } else { Ok(Some(size)) }
    }

    fn members(&mut self) -> Result<Vec<Vec<GlobalRank>>> {
        self.list(|parser| parser.list(|parser| parser.integer("a global rank").map(GlobalRank)))
    }

    /// `[item, item]`.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        self.expect('[')?;
        self.lex.nested += 1;
        let mut items = Vec::new();
        while self.lex.peek()? != Token::Mark(']') {
            items.push(item(self)?);
            if !self.eat(',')? {
                break;
            }
        }
        self.lex.nested -= 1;
        self.expect(']')?;
        Ok(items)
    }

    /// The group of that name; a size that was stated before must be the same.
    pub(super) fn group_of(&mut self, name: &str, size: Option<u32>, at: usize) -> Result<GroupId> {
        let known = self.groups.get(name).map_or(&[][..], Vec::as_slice);
        let sizes = |id: &GroupId| self.graph.group(*id).size;
        let exact = known.iter().copied().find(|id| size.is_none() || sizes(id) == size);
        if let Some(id) = exact {
            return Ok(id);
        }
        if let Some(stated) = known.iter().find_map(sizes) {
            let found = format!("`{name}:{}`", size.unwrap_or(0));
            return Err(self.error(at, found, format!("`{name}:{stated}`, as stated before")));
        }
        let id = self.graph.intern_group(name, size);
        let ids = self.groups.entry(name.into()).or_default();
        if !ids.contains(&id) {
            ids.push(id);
        }
        Ok(id)
    }

    /// Whether a group of that name was stated or used.
    pub(super) fn knows_group(&self, name: &str) -> bool {
        self.groups.contains_key(name)
    }

    fn hint(&mut self) -> Result<()> {
        let symbol = self.word_or_string("a symbol")?;
        self.expect('=')?;
        let value = self.integer("a size")?;
        self.graph.hints.insert(symbol.into(), value);
        Ok(())
    }

    fn nested_region(&mut self, depth: u32) -> Result<()> {
        let at = self.lex.position();
        if depth >= MAX_DEPTH {
            return Err(self.error(at, "a region inside too many others", format!("at most {MAX_DEPTH} levels")));
        }
        let stated = if self.eat('@')? { Some(self.region_kind()?) } else { None };
        let label = match self.lex.peek()? {
            Token::Str(raw) => self.lex.next().map(|_| unquote(raw))?,
            _ => self.lex.label_text().to_owned(),
        };
        let kind = stated.unwrap_or_else(|| kind_of_label(&label));
        self.expect('{')?;
        let parent = self.region;
        self.region = self.graph.add_region(Region { parent, kind, label: label.into() });
        self.block(depth + 1)?;
        self.region = parent;
        Ok(())
    }

    fn region_kind(&mut self) -> Result<RegionKind> {
        let expected = "`loop`, `branch` or `called`";
        let at = self.lex.position();
        let word = self.word(expected)?;
        match word {
            "loop" => Ok(RegionKind::Loop),
            "branch" => Ok(RegionKind::Branch),
            "called" => Ok(RegionKind::Called),
            _ => Err(self.error(at, format!("`{word}`"), expected)),
        }
    }

    fn order_edge(&mut self, strength: Strength) -> Result<()> {
        self.expect('(')?;
        let after = self.value()?;
        self.expect(',')?;
        let before = self.value()?;
        self.expect(')')?;
        self.graph.control.push(ControlEdge { before, after, strength });
        Ok(())
    }

    fn value(&mut self) -> Result<NodeId> {
        let at = self.lex.position();
        let word = self.word("a value")?;
        self.find(word).ok_or_else(|| self.error(at, format!("`{word}`"), "a value defined before"))
    }

    /// The node that bears the name.
    pub(in crate::ir) fn find(&self, word: &str) -> Option<NodeId> {
        let name = self.graph.names().find(word)?;
        self.values.get(name.index()).copied().flatten().map(|(id, _)| id)
    }

    // Definitions.

    fn definition(&mut self, name: Option<(&'a str, usize)>) -> Result<()> {
        let mut draft = self.right_side(name.map(|(name, _)| name))?;
        while self.clause(&mut draft)? {}
        let name = match name {
            Some((name, at)) => {
                self.check_new(name, at)?;
                name.to_owned()
            }
            // Printed texts leave this name out, so it must not depend on what else the text says.
            None if draft.op == Op::Output && self.find("output").is_none() => "output".to_owned(),
            None => self.fresh_name(&draft.stem),
        };
        self.finish(draft, &name);
        Ok(())
    }

    fn check_new(&self, name: &str, at: usize) -> Result<()> {
        if !is_name(name) {
            return Err(self.error(at, format!("`{name}`"), "a name: letters, digits and `_`"));
        }
        let known = self.graph.names().find(name).and_then(|name| self.values.get(name.index()).copied().flatten());
        match known {
            Some((_, first)) => {
                let line = TextError::new(self.lex.text(), first, String::new(), "").line;
                Err(self.error(at, format!("`{name}`, which line {line} defines"), "a new name"))
            }
            None => Ok(()),
        }
    }

    /// A name that the text does not define itself.
    fn fresh_name(&mut self, stem: &str) -> String {
        if self.taken.is_none() {
            self.taken = Some(defined_words(self.lex.text()));
        }
        let mut next = self.next_fresh.get(stem).copied().unwrap_or(0);
        loop {
            let candidate = if next == 0 { stem.to_owned() } else { format!("{stem}_{next}") };
            next += 1;
            let taken = self.taken.as_ref().is_some_and(|taken| taken.contains(&*candidate));
            if !taken && self.find(&candidate).is_none() {
                self.next_fresh.insert(stem.to_owned(), next);
                return candidate;
            }
        }
    }

    /// Puts a nested call into the graph under a fresh name.
    pub(super) fn finish_nested(&mut self, draft: Draft) -> NodeId {
        let name = self.fresh_name(&draft.stem);
        self.finish(draft, &name)
    }

    fn finish(&mut self, mut draft: Draft, name: &str) -> NodeId {
        let operands = renumber(&mut draft.args, &draft.operands);
        let op = draft.op;
        let ty = draft.ty.unwrap_or_else(|| infer_type(&self.graph, op, &draft.args, &operands));
        let (ty, args) = (self.graph.intern_type(ty), self.graph.intern_args(draft.args));
        let name = self.graph.intern(name);
        let id = self.graph.push(op, name, ty, args, &operands);
        self.graph.node_mut(id).region = self.region;
        self.graph.set_meta(id, draft.meta);
        self.define(id, draft.at);
        id
    }

    /// Makes the name of a node known.
    pub(in crate::ir) fn define(&mut self, id: NodeId, at: usize) {
        let name = self.graph.node(id).name;
        if self.values.len() <= name.index() {
            self.values.resize(name.index() + 1, None);
        }
        self.values[name.index()] = Some((id, at));
    }

    /// What stands after `=`, or a call alone.
    fn right_side(&mut self, name: Option<&'a str>) -> Result<Draft> {
        let at = self.lex.position();
        let mut ahead = self.lex;
        let first = ahead.next()?;
        let second = ahead.peek()?;
        match (first, second) {
            (Token::Mark('@'), _) => self.escaped_call(0),
            (Token::Word(_), Token::Mark('(')) => self.call(0),
            (Token::Word("symbol"), _) if name.is_some() => self.symbol(name.unwrap_or("symbol"), at),
            (Token::Word("input"), _) => {
                self.lex.next()?;
                let mut draft = Draft::new(Op::Input, "input", at);
                // Marks that a type may start with; a word may be a trailing clause instead.
                let typed = match second {
                    Token::Mark(mark) => matches!(mark, '?' | '('),
                    Token::Word(word) => !matches!(word, "on" | "strides" | "pending" | "key" | "src" | "members"),
                    _ => false,
                };
                if typed {
                    draft.ty = Some(self.type_here()?);
                }
                Ok(draft)
            }
            (Token::Word(word), Token::Word(follow)) => {
                ahead.next()?;
                if ahead.peek()? == Token::Mark('(') && follow != "Sym" {
                    self.lex.next()?;
                    return self.spaced_call(word);
                }
                self.lex.next()?;
                let op = Op::Call(self.graph.intern(word));
                let mut draft = Draft::new(op, word, at);
                draft.ty = Some(self.type_here()?);
                Ok(draft)
            }
            (Token::Word(_), _) => {
                self.lex.next()?;
                Err(self.unexpected("`(`"))
            }
            _ => Err(self.unexpected("an operation")),
        }
    }

    fn symbol(&mut self, name: &str, at: usize) -> Result<Draft> {
        self.lex.next()?;
        if self.lex.peek()? == Token::Word("hint") {
            self.lex.next()?;
            self.expect('=')?;
            let value = self.integer("a size")?;
            self.graph.hints.insert(name.into(), value);
        }
        let mut draft = Draft::new(Op::Input, "symbol", at);
        draft.ty = Some(Type::SymInt(SymExpr::atom(name)));
        Ok(draft)
    }

    pub(super) fn type_here(&mut self) -> Result<Type> {
        let at = self.lex.position();
        let text = self.lex.type_text();
        if text.is_empty() {
            return Err(self.unexpected("a type"));
        }
        Type::parse(text).map_err(|error| self.error(at, format!("`{text}`"), format!("a type ({error})")))
    }

    /// One trailing clause, if there is one.
    fn clause(&mut self, draft: &mut Draft) -> Result<bool> {
        let at = self.lex.position();
        if self.eat(':')? {
            draft.ty = Some(self.type_here()?);
            return Ok(true);
        }
        let mut ahead = self.lex;
        let Token::Word(word) = ahead.next()? else { return Ok(false) };
        if !matches!(word, "pending" | "on" | "strides") && ahead.peek()? != Token::Mark('=') {
            return Ok(false);
        }
        self.lex = ahead;
        match word {
            "pending" => draft.meta.pending = true,
            "on" => {
                let device = self.lex.device_text();
                if device.is_empty() {
                    return Err(self.unexpected("a device such as cpu or cuda:0"));
                }
                self.tensor_clause(draft, at)?.device = Some(device.into());
            }
            "strides" => {
                let start = self.lex.position();
                let end = self.list(|parser| parser.integer::<u64>("a stride").map(|_| ())).map(|_| self.lex.end())?;
                let text = format!("f32{0}{0}", &self.lex.text()[start..end]);
                let strides = Type::parse(&text).ok().and_then(|ty| ty.as_tensor().and_then(|t| t.strides.clone()));
                let rank = self.tensor_clause(draft, at)?.shape.len();
                if strides.as_ref().map(|s| s.len()) != Some(rank) {
                    return Err(self.error(
                        start,
                        format!("`{}`", &text[3..text.len() / 2 + 2]),
                        "one stride for each size",
                    ));
                }
                self.tensor_clause(draft, at)?.strides = strides;
            }
            _ => {
                self.expect('=')?;
                self.assignment(draft, word, at)?;
            }
        }
        Ok(true)
    }

    /// The tensor type of the draft, to change.
    fn tensor_clause<'d>(&self, draft: &'d mut Draft, at: usize) -> Result<&'d mut crate::ir::TensorType> {
        if draft.ty.is_none() {
            let mut args = draft.args.clone();
            let operands = renumber(&mut args, &draft.operands);
            draft.ty = Some(infer_type(&self.graph, draft.op, &args, &operands));
        }
        match &mut draft.ty {
            Some(Type::Tensor(tensor)) => Ok(tensor),
            _ => Err(self.error(at, "a clause for tensors", "a tensor type before it")),
        }
    }

    fn assignment(&mut self, draft: &mut Draft, word: &'a str, at: usize) -> Result<()> {
        match word {
            "key" => draft.meta.key = Some(self.string()?.into()),
            "src" => {
                let source = self.string()?;
                draft.meta.sources.push(source.into());
            }
            "members" => {
                let names = self.list(|parser| parser.word_or_string("a name").map(String::into_boxed_str))?;
                draft.meta.members.extend(names);
            }
            _ if matches!(draft.op, Op::Collective(_)) && !SAID.contains(&word) => {
                let arg = self.argument(draft, 0)?;
                if draft.args.get(word).is_some() {
                    return Err(self.error(at, format!("a second `{word}`"), "each attribute once"));
                }
                draft.args.keyword.push((word.into(), arg));
            }
            _ => {
                return Err(self.error(
                    at,
                    format!("`{word}=`"),
                    "`key=`, `src=`, `members=` or the end of the statement",
                ));
            }
        }
        Ok(())
    }

    /// An argument of a draft under construction.
    pub(super) fn argument(&mut self, draft: &mut Draft, depth: u32) -> Result<Arg> {
        let item = self.item(&mut draft.operands, depth)?;
        self.lenient(item, &mut draft.operands)
    }
}

/// The kind that a region's label says by its first word.
pub(super) fn kind_of_label(label: &str) -> RegionKind {
    let end = label.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(label.len());
    match &label[..end] {
        "loop" => RegionKind::Loop,
        "if" => RegionKind::Branch,
        _ => RegionKind::Called,
    }
}

/// All words that `=` follows: what a text defines, and perhaps some more.
fn defined_words(text: &str) -> HashSet<&str, FxBuildHasher> {
    let mut words = HashSet::default();
    let mut lexer = Lexer::new(text);
    let mut last = Token::Separator;
    // A text that breaks off has its error reported where the parser meets it.
    while let Ok(token) = lexer.next() {
        match (last, token) {
            (_, Token::End) => break,
            (Token::Word(word), Token::Mark('=')) => {
                words.insert(word);
            }
            _ => {}
        }
        last = token;
    }
    words
}
