//! Calls and their arguments, operators and collectives.

#[cfg(feature = "serde")]
use super::lex::Lexer;
use super::lex::{Token, is_name, unquote};
use super::normal::SAID;
#[cfg(feature = "serde")]
use super::normal::renumber;
use super::parse::Parser;
use super::{MAX_DEPTH, TextError};
use crate::ir::args::{Arg, Args};
use crate::ir::entities::NodeId;
use crate::ir::graph::Meta;
use crate::ir::operators::split_target;
use crate::ir::ops::{Collective, CollectiveKind, Op, ReduceOp, Variant};
use crate::ir::types::{DType, Type};

/// Arguments with a name.
type Keyword = Vec<(Box<str>, Arg)>;
type Result<T> = std::result::Result<T, TextError>;

/// A node under construction. Holes in `args` index `operands`, in the order read, which is not yet that of
/// appearance.
pub(super) struct Draft {
    pub(super) op: Op,
    pub(super) stem: String,
    pub(super) args: Args,
    pub(super) operands: Vec<NodeId>,
    pub(super) ty: Option<Type>,
    pub(super) meta: Meta,
    pub(super) at: usize,
}

impl Draft {
    pub(super) fn new(op: Op, stem: &str, at: usize) -> Self {
        Self {
            op,
            stem: if is_name(stem) { stem } else { "call" }.to_owned(),
            args: Args::default(),
            operands: Vec::new(),
            ty: None,
            meta: Meta::default(),
            at,
        }
    }
}

/// A positional argument before it is known whether the call is a collective, where a word may name a group.
pub(super) enum Item {
    Arg(Arg),
    /// A word or string that may be followed by a group's size.
    Word {
        text: String,
        quoted: bool,
        size: Option<Option<u32>>,
        at: usize,
    },
}

/// A collective's name taken apart.
struct Form {
    kind: &'static str,
    variant: Variant,
    coalesced: bool,
}

const KINDS: [&str; 7] = ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all", "permute"];

fn form_of(word: &str) -> Option<Form> {
    let (rest, variant) = match (word.strip_suffix("_out"), word.strip_suffix('_')) {
        (Some(rest), _) => (rest, Variant::Out),
        (None, Some(rest)) => (rest, Variant::InPlace),
        (None, None) => (word, Variant::Functional),
    };
    let (rest, coalesced) = rest.strip_suffix("_coalesced").map_or((rest, false), |rest| (rest, true));
    KINDS.iter().find(|kind| **kind == rest).map(|kind| Form { kind, variant, coalesced })
}

/// What is expected where a word names no value.
const UNDEFINED: &str = "a value defined before";

/// Whether a word may stand for itself among positional arguments: dotted words (`torch.strided`) and odd numbers can be
/// no values, so they are not slips of the pen.
pub(super) fn stands_alone(word: &str) -> bool {
    word.contains('.') || matches!(word.trim_start_matches('-'), "inf" | "nan")
}

/// Whether a call of that name may be something else than [`Op::Call`].
pub(super) fn is_reserved(word: &str) -> bool {
    matches!(word, "input" | "output" | "wait") || form_of(word).is_some()
}

/// What a word says that names no value.
pub(super) fn constant(word: &str) -> Option<Arg> {
    match word {
        "True" => Some(Arg::Bool(true)),
        "False" => Some(Arg::Bool(false)),
        "None" => Some(Arg::None),
        _ => DType::from_name(word.strip_prefix("torch.").unwrap_or(word)).map(Arg::DType),
    }
}

impl<'a> Parser<'a> {
    /// Reads an argument list without its parentheses. For other formats that hold argument lists as text.
    #[cfg(feature = "serde")]
    pub(in crate::ir) fn read_args(&mut self, text: &'a str) -> Result<(Args, Vec<NodeId>)> {
        self.lex = Lexer::new(text);
        self.lex.nested = 1;
        let before = self.graph.order().len();
        let mut operands = Vec::new();
        let (items, keyword) = self.argument_list(Token::End, &mut operands, 0)?;
        if self.lex.peek()? != Token::End {
            return Err(self.unexpected("`,` or the end"));
        }
        if self.graph.order().len() != before {
            return Err(self.error(0, "a call", "arguments without calls"));
        }
        let positional = items.into_iter().map(|item| self.plain(item, &mut operands)).collect::<Result<_>>()?;
        let mut args = Args { positional, keyword };
        let operands = renumber(&mut args, &operands);
        Ok((args, operands))
    }

    fn check_depth(&mut self, depth: u32) -> Result<()> {
        if depth < MAX_DEPTH { Ok(()) } else { Err(self.unexpected(format!("at most {MAX_DEPTH} nested levels"))) }
    }

    /// `word(arguments)`.
    pub(super) fn call(&mut self, depth: u32) -> Result<Draft> {
        let at = self.lex.position();
        let word = self.word("an operator")?;
        let mut operands = Vec::new();
        let (items, keyword) = self.arguments(&mut operands, depth)?;
        if let Some(form) = form_of(word) {
            let named = |item: &Item| match item {
                Item::Word { size: Some(_), .. } => true,
                Item::Word { text, .. } => self.knows_group(text),
                Item::Arg(_) => false,
            };
            // `permute` is a view and `reduce` a reduction, too; a collective names its group.
            if !matches!(form.kind, "permute" | "reduce") || items.last().is_some_and(named) {
                return self.collective(&form, items, keyword, operands, at);
            }
        }
        let op = match word {
            "input" => Op::Input,
            "output" => Op::Output,
            "wait" => Op::Wait,
            _ => Op::Call(self.graph.intern(word)),
        };
        self.call_draft(op, stem_of(word), items, keyword, operands, at)
    }

    /// `word(arguments)` after another word: `opaque_comm send(x)`.
    pub(super) fn spaced_call(&mut self, before: &str) -> Result<Draft> {
        let at = self.lex.position();
        let word = self.word("an operator")?;
        let mut operands = Vec::new();
        let (items, keyword) = self.arguments(&mut operands, 0)?;
        let op = Op::Call(self.graph.intern(&format!("{before}.{word}")));
        // Opaque operators take words of their own, such as the name of a peer.
        let items =
            items.into_iter().map(|item| self.lenient(item, &mut operands).map(Item::Arg)).collect::<Result<_>>()?;
        self.call_draft(op, stem_of(word), items, keyword, operands, at)
    }

    /// `@target(arguments)`: always a plain call.
    pub(super) fn escaped_call(&mut self, depth: u32) -> Result<Draft> {
        let at = self.lex.position();
        self.expect('@')?;
        let target = self.escaped_word()?;
        let op = Op::Call(self.graph.intern(&target));
        let mut operands = Vec::new();
        let (items, keyword) = self.arguments(&mut operands, depth)?;
        self.call_draft(op, "call", items, keyword, operands, at)
    }

    fn escaped_word(&mut self) -> Result<String> {
        match self.lex.peek()? {
            Token::Str(raw) => self.lex.next().map(|_| unquote(raw)),
            _ => self.word("a word or string after `@`").map(str::to_owned),
        }
    }

    fn call_draft(
        &mut self,
        op: Op,
        stem: &str,
        items: Vec<Item>,
        keyword: Keyword,
        mut operands: Vec<NodeId>,
        at: usize,
    ) -> Result<Draft> {
        let mut draft = Draft::new(op, stem, at);
        draft.args.positional = items.into_iter().map(|item| self.plain(item, &mut operands)).collect::<Result<_>>()?;
        draft.args.keyword = keyword;
        draft.operands = operands;
        Ok(draft)
    }

    /// An argument list in parentheses.
    fn arguments(&mut self, operands: &mut Vec<NodeId>, depth: u32) -> Result<(Vec<Item>, Keyword)> {
        self.expect('(')?;
        self.lex.nested += 1;
        let lists = self.argument_list(Token::Mark(')'), operands, depth)?;
        self.lex.nested -= 1;
        self.expect(')')?;
        Ok(lists)
    }

    /// Positional items and keyword arguments up to `close`; they may come mixed.
    fn argument_list(
        &mut self,
        close: Token<'_>,
        operands: &mut Vec<NodeId>,
        depth: u32,
    ) -> Result<(Vec<Item>, Keyword)> {
        self.check_depth(depth)?;
        let (mut items, mut keyword) = (Vec::new(), Keyword::new());
        while self.lex.peek()? != close {
            match self.keyword()? {
                Some((key, at)) => {
                    if keyword.iter().any(|(known, _)| **known == *key) {
                        return Err(self.error(at, format!("a second `{key}`"), "each keyword once"));
                    }
                    let item = self.item(operands, depth + 1)?;
                    keyword.push((key.into(), self.lenient(item, operands)?));
                }
                None => items.push(self.item(operands, depth + 1)?),
            }
            if !self.eat(',')? {
                break;
            }
        }
        Ok((items, keyword))
    }

    /// `key =`, if it stands here.
    fn keyword(&mut self) -> Result<Option<(String, usize)>> {
        let at = self.lex.position();
        let mut ahead = self.lex;
        let (Token::Word(word), Token::Mark('=')) = (ahead.next()?, ahead.peek()?) else { return Ok(None) };
        ahead.next()?;
        self.lex = ahead;
        Ok(Some((word.to_owned(), at)))
    }

    /// One argument. Values it names, or makes by a nested call, are added to `operands`.
    pub(super) fn item(&mut self, operands: &mut Vec<NodeId>, depth: u32) -> Result<Item> {
        self.check_depth(depth)?;
        let at = self.lex.position();
        let token = self.lex.peek()?;
        let arg = match token {
            Token::Mark('[') => Arg::List(self.sequence(']', operands, depth)?.0),
            Token::Mark('(') => {
                let (mut items, comma) = self.sequence(')', operands, depth)?;
                match items.pop() {
                    Some(only) if items.is_empty() && !comma => only,
                    last => {
                        items.extend(last);
                        Arg::Tuple(items)
                    }
                }
            }
            Token::Mark('@') => self.escaped(operands, depth)?,
            Token::Int(_) => Arg::Int(self.integer("an integer of 64 bits")?),
            Token::Float(text) => {
                self.lex.next()?;
                Arg::Float(text.into())
            }
            Token::Str(_) | Token::Word(_) => return self.word_item(operands, depth, at),
            _ => return Err(self.unexpected("an argument")),
        };
        Ok(Item::Arg(arg))
    }

    fn word_item(&mut self, operands: &mut Vec<NodeId>, depth: u32, at: usize) -> Result<Item> {
        let mut ahead = self.lex;
        let token = ahead.next()?;
        let (text, quoted) = match token {
            Token::Word(_) if ahead.peek()? == Token::Mark('(') => {
                let draft = self.call(depth)?;
                let node = self.finish_nested(draft);
                return Ok(Item::Arg(self.operand(node, operands)));
            }
            Token::Word(word) => (word, false),
            Token::Str(raw) => (raw, true),
            _ => return Err(self.unexpected("an argument")),
        };
        self.lex = ahead;
        let size = if self.eat(':')? { Some(self.group_size()?) } else { None };
        Ok(Item::Word { text: text.to_owned(), quoted, size, at })
    }

    fn operand(&self, node: NodeId, operands: &mut Vec<NodeId>) -> Arg {
        operands.push(node);
        Arg::Operand(operands.len() as u32 - 1)
    }

    /// Items up to `close`, and whether a comma stands after the last.
    fn sequence(&mut self, close: char, operands: &mut Vec<NodeId>, depth: u32) -> Result<(Vec<Arg>, bool)> {
        self.lex.next()?;
        self.lex.nested += 1;
        let (mut items, mut comma) = (Vec::new(), false);
        while self.lex.peek()? != Token::Mark(close) {
            let item = self.item(operands, depth + 1)?;
            items.push(self.plain(item, operands)?);
            comma = self.eat(',')?;
            if !comma {
                break;
            }
        }
        self.lex.nested -= 1;
        self.expect(close)?;
        Ok((items, comma))
    }

    /// `@name(..)`, `@'word'` or `@@'number'`.
    fn escaped(&mut self, operands: &mut Vec<NodeId>, depth: u32) -> Result<Arg> {
        self.expect('@')?;
        if self.eat('@')? {
            return self.escaped_word().map(|text| Arg::Float(text.into()));
        }
        let word = self.escaped_word()?;
        if self.lex.peek()? != Token::Mark('(') {
            return Ok(Arg::Word(word.into()));
        }
        let (items, keyword) = self.arguments(operands, depth + 1)?;
        let positional = items.into_iter().map(|item| self.plain(item, operands)).collect::<Result<_>>()?;
        Ok(Arg::Apply(word.into(), Args { positional, keyword }))
    }

    /// The argument that an item is where no group is looked for.
    pub(super) fn plain(&self, item: Item, operands: &mut Vec<NodeId>) -> Result<Arg> {
        match item {
            Item::Arg(arg) => Ok(arg),
            Item::Word { size: Some(_), text, at, .. } => {
                Err(self.error(at, format!("group `{text}`"), "a value; only collectives take a group, last"))
            }
            Item::Word { text, quoted: true, .. } => Ok(Arg::Str(text.into())),
            Item::Word { text, at, .. } => match self.find(&text) {
                Some(node) => Ok(self.operand(node, operands)),
                None => match constant(&text) {
                    Some(constant) => Ok(constant),
                    None if stands_alone(&text) => Ok(Arg::Word(text.into())),
                    None => Err(self.error(at, format!("`{text}`"), UNDEFINED)),
                },
            },
        }
    }

    /// As [`Parser::plain`], but a word that names no value is a word.
    pub(super) fn lenient(&self, item: Item, operands: &mut Vec<NodeId>) -> Result<Arg> {
        match item {
            Item::Word { quoted: false, size: None, ref text, .. }
                if self.find(text).is_none() && constant(text).is_none() =>
            {
                Ok(Arg::Word(text.as_str().into()))
            }
            item => self.plain(item, operands),
        }
    }

    fn collective(
        &mut self,
        form: &Form,
        mut items: Vec<Item>,
        mut keyword: Keyword,
        mut operands: Vec<NodeId>,
        at: usize,
    ) -> Result<Draft> {
        let group = match items.pop() {
            Some(Item::Word { text, quoted, size, at }) => {
                let name = if quoted { unquote(&text) } else { text };
                self.group_of(&name, size.flatten(), at)?
            }
            _ => return Err(self.error(at, format!("`{}` without a group", form.kind), "a group last, as in G0:8")),
        };
        let mut items = items.into_iter();
        let inputs = self.inputs(form, items.next(), &mut operands, at)?;
        let kind = self.kind(form.kind, &mut items, &mut keyword, at)?;
        let mut positional = vec![inputs];
        for item in items {
            positional.push(self.plain(item, &mut operands)?);
        }
        let lists = match kind {
            CollectiveKind::AllToAll => 2,
            CollectiveKind::Permute => 1,
            _ => 0,
        };
        let listed = |arg: &Arg| matches!(arg, Arg::List(_) | Arg::Tuple(_) | Arg::None);
        if positional.len() > 1 + lists || !positional[1..].iter().all(listed) {
            let expected = format!("its inputs, what its kind needs, at most {lists} lists and a group");
            return Err(self.error(at, format!("other arguments of `{}`", form.kind), expected));
        }
        if let Some((key, _)) = keyword.iter().find(|(key, _)| SAID.contains(&&**key)) {
            return Err(self.error(at, format!("`{key}=` of `{}`", form.kind), "another attribute, or none"));
        }
        let out = form.variant == Variant::Functional && keyword.iter().any(|(key, _)| &**key == "out");
        let variant = if out { Variant::Out } else { form.variant };
        let op = Op::Collective(Collective { kind, group, variant, coalesced: form.coalesced });
        let mut draft = Draft::new(op, form.kind, at);
        draft.args = Args { positional, keyword };
        draft.operands = operands;
        Ok(draft)
    }

    /// The first argument: a value, or a list of values for a coalesced form.
    fn inputs(&self, form: &Form, item: Option<Item>, operands: &mut Vec<NodeId>, at: usize) -> Result<Arg> {
        let at = if let Some(Item::Word { at, .. }) = &item { *at } else { at };
        let arg = item.map(|item| self.plain(item, operands)).transpose()?;
        let value = |arg: &Arg| matches!(arg, Arg::Operand(_));
        match arg {
            Some(arg @ Arg::Operand(_)) if !form.coalesced => Ok(arg),
            Some(Arg::List(items)) if form.coalesced && items.iter().all(value) => Ok(Arg::List(items)),
            Some(Arg::Word(word)) => Err(self.error(at, format!("`{word}`"), "a value defined before")),
            _ if form.coalesced => Err(self.error(at, "another first argument", "a list of values: [a, b]")),
            _ => Err(self.error(at, "another first argument", "a value")),
        }
    }

    fn kind(
        &self,
        word: &str,
        items: &mut impl Iterator<Item = Item>,
        keyword: &mut Keyword,
        at: usize,
    ) -> Result<CollectiveKind> {
        Ok(match word {
            "all_gather" => CollectiveKind::AllGather { dim: self.dim(keyword, at)? },
            "reduce_scatter" => {
                CollectiveKind::ReduceScatter { op: self.reduce_op(items.next(), at)?, dim: self.dim(keyword, at)? }
            }
            "all_reduce" => CollectiveKind::AllReduce { op: self.reduce_op(items.next(), at)? },
            "broadcast" => CollectiveKind::Broadcast { root: self.root(items.next(), at)? },
            "reduce" => {
                CollectiveKind::Reduce { op: self.reduce_op(items.next(), at)?, root: self.root(items.next(), at)? }
            }
            "all_to_all" => CollectiveKind::AllToAll,
            _ => CollectiveKind::Permute,
        })
    }

    fn dim(&self, keyword: &mut Keyword, at: usize) -> Result<u32> {
        let Some(place) = keyword.iter().position(|(key, _)| &**key == "dim") else { return Ok(0) };
        let (_, arg) = keyword.remove(place);
        let dim = arg.as_int().and_then(|dim| u32::try_from(dim).ok());
        dim.ok_or_else(|| self.error(at, "another `dim`", "a dimension counted from 0, the outermost"))
    }

    fn reduce_op(&self, item: Option<Item>, at: usize) -> Result<ReduceOp> {
        let expected = "a reduction: sum, avg, product, min, max, band, bor or bxor";
        match item {
            Some(Item::Word { text, at, .. }) => {
                ReduceOp::from_name(&text).ok_or_else(|| self.error(at, format!("`{text}`"), expected))
            }
            _ => Err(self.error(at, "a collective without its reduction", expected)),
        }
    }

    fn root(&self, item: Option<Item>, at: usize) -> Result<u32> {
        match item {
            Some(Item::Arg(Arg::Int(root))) if u32::try_from(root).is_ok() => Ok(root as u32),
            _ => Err(self.error(at, "a collective without its root", "a rank, counted from 0")),
        }
    }
}

/// What fresh names of a call are made from.
fn stem_of(target: &str) -> &str {
    let (_, base, _) = split_target(target);
    base
}
