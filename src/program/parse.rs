//! Reads the text form.

mod tokens;

use super::args::{dtype, is_float};
use super::form::MAX_BODIES;
use super::text::KINDS;
use super::{
    Arena, ArenaOffset, Body, Buffer, BufferId, BufferKind, CallForm, Collective, CommOp, Compute, Group, HostId,
    Input, Layout, LayoutId, Made, Moves, Operand, Outputs, Part, Path, Program, ProgramError, Range, Run, Segment,
    Step, StepId, StepKind, Stream, View,
};
use crate::ir::{Arg, Args, DType, ReduceOp};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use tokens::Token;

type Result<T = ()> = std::result::Result<T, ProgramError>;

/// Deepest nesting of lists and tuples.
const MAX_DEPTH: u32 = 64;

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// Start of the token that was read last.
    start: usize,
    program: Program,
    buffers: HashMap<Box<str>, BufferId, FxBuildHasher>,
    hosts: HashMap<Box<str>, HostId, FxBuildHasher>,
    groups: HashMap<Box<str>, u32, FxBuildHasher>,
    layouts: HashMap<Layout, LayoutId, FxBuildHasher>,
    calls: HashMap<CallForm, u32, FxBuildHasher>,
    bodies: HashMap<Box<str>, u32, FxBuildHasher>,
    /// How many programs this one is a body in.
    depth: u32,
}

/// Reads an argument list on its own.
#[cfg(feature = "serde")]
pub(super) fn arguments(text: &str) -> Result<Args> {
    let mut parser = Parser::new(text);
    let args = parser.args(Token::End, 0)?;
    Ok(args)
}

impl Program {
    /// Reads the text form, and checks that all it refers to is there.
    ///
    /// # Errors
    /// [`ProgramError`], with the place.
    pub fn parse(text: &str) -> Result<Self> {
        let mut parser = Parser::new(text);
        parser.program()?;
        match parser.token()? {
            Token::End => {}
            token => return parser.unexpected(&token, "the end"),
        }
        parser.program.check_form()?;
        Ok(parser.program)
    }
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            start: 0,
            program: Program::default(),
            buffers: HashMap::default(),
            hosts: HashMap::default(),
            groups: HashMap::default(),
            layouts: HashMap::default(),
            calls: HashMap::default(),
            bodies: HashMap::default(),
            depth: 0,
        }
    }

    fn find<T: Copy>(&self, table: &HashMap<Box<str>, T, FxBuildHasher>, name: &str, what: &str) -> Result<T> {
        match table.get(name) {
            Some(found) => Ok(*found),
            None => self.expected(&format!("`{name}`"), &format!("a {what} that is stated above")),
        }
    }

    // Statements.

    fn program(&mut self) -> Result {
        self.keyword("program")?;
        self.program.name = self.name()?.into();
        self.keyword("align")?;
        self.program.align_bytes = self.number()?;
        self.mark('{')?;
        loop {
            let word = self.word("a statement, or the output")?;
            match word.as_str() {
                "symbol" => {
                    let name = self.name()?;
                    self.mark('=')?;
                    let value = self.number()?;
                    self.program.symbols.insert(name, value);
                }
                "group" => self.group()?,
                "arena" => self.arena()?,
                "body" => self.body()?,
                "buffer" => self.buffer()?,
                "host" => {
                    let name = self.name()?;
                    self.hosts.insert(name.clone(), HostId(self.program.hosts.len() as u32));
                    self.program.hosts.push(name);
                }
                "input" => {
                    let name = self.name()?;
                    self.mark('=')?;
                    let value = self.operand(0)?;
                    self.program.inputs.push(Input { name, value });
                }
                "output" => {
                    self.mark('(')?;
                    let args = self.args(Token::Mark(')'), 0)?;
                    let values = self.operands(0)?;
                    self.program.outputs = Outputs { args, values };
                    return self.mark('}');
                }
                _ => self.step(&word)?,
            }
        }
    }

    fn group(&mut self) -> Result {
        let name = self.name()?;
        self.mark(':')?;
        let size = self.number()?;
        let members = if self.eat(&Token::Mark('='))? { self.list(|p| p.list(Self::number))? } else { Vec::new() };
        self.groups.insert(name.clone(), self.program.groups.len() as u32);
        self.program.groups.push(Group { name, size, members });
        Ok(())
    }

    fn kind(&mut self) -> Result<BufferKind> {
        let word = self.word("a kind of buffer")?;
        match KINDS.iter().find(|(_, known)| *known == word) {
            Some((kind, _)) => Ok(*kind),
            None => self.expected(&format!("`{word}`"), "input, output, device, comm or constant"),
        }
    }

    fn device(&mut self) -> Result<Option<Box<str>>> {
        if !self.eat_word("on")? {
            return Ok(None);
        }
        match self.token()? {
            Token::Str(text) => Ok(Some(text.into())),
            token => self.unexpected(&token, "a device in quotes"),
        }
    }

    fn arena(&mut self) -> Result {
        let kind = self.kind()?;
        let bytes = self.number()?;
        self.keyword("live")?;
        let live_bytes = self.number()?;
        let device = self.device()?;
        self.program.arenas.push(Arena { kind, device, bytes, live_bytes });
        Ok(())
    }

    fn buffer(&mut self) -> Result {
        let name = self.name()?;
        self.mark(':')?;
        let (kind, bytes) = (self.kind()?, self.number()?);
        self.keyword("align")?;
        let align = self.number()?;
        let mut place = None;
        if self.eat_word("at")? {
            let arena = self.number()?;
            self.mark(':')?;
            place = Some(ArenaOffset { arena, offset: self.number()? });
        }
        let mut group = None;
        if self.eat_word("ranks")? {
            let name = self.name()?;
            group = Some(self.find(&self.groups, &name, "group")?);
        }
        let device = self.device()?;
        let id = BufferId(self.program.buffers.len() as u32);
        if self.buffers.insert(name.clone(), id).is_some() {
            return self.expected(&format!("a second buffer `{name}`"), "one buffer of a name");
        }
        self.program.buffers.push(Buffer { name, bytes, align, kind, device, group, place });
        Ok(())
    }

    /// A program within this one.
    fn body(&mut self) -> Result {
        let target = self.name()?;
        if self.depth >= MAX_BODIES {
            return self.expected("a body within too many others", "fewer");
        }
        let mut inner = Self { at: self.at, start: self.start, depth: self.depth + 1, ..Self::new(self.text) };
        inner.program()?;
        (self.at, self.start) = (inner.at, inner.start);
        if self.bodies.insert(target.clone(), self.program.bodies.len() as u32).is_some() {
            return self.expected(&format!("a second body `{target}`"), "one body of a name");
        }
        self.program.bodies.push(Body { target, program: inner.program });
        Ok(())
    }

    fn step_id(&mut self) -> Result<StepId> {
        let word = self.word("a step")?;
        match word.strip_prefix('s').and_then(|number| number.parse().ok()) {
            Some(number) => Ok(StepId(number)),
            None => self.expected(&format!("`{word}`"), "a step, as in s3"),
        }
    }

    fn step(&mut self, label: &str) -> Result {
        let index = self.program.steps.len();
        if label != format!("s{index}") {
            return self.expected(&format!("`{label}`"), &format!("step s{index}, or a statement"));
        }
        let node = self.name()?;
        let mut stream = Stream::Compute;
        if self.eat_word("on")? {
            let name = self.name()?;
            stream = Stream::Comm(self.find(&self.groups, &name, "group")?);
        }
        let mut after = crate::ir::Short::new();
        if self.eat_word("after")? {
            while self.peek()? != Token::Mark(':') {
                after.push(self.step_id()?);
            }
        }
        self.mark(':')?;
        let word = self.word("what the step does")?;
        let kind = match word.as_str() {
            "pack" => StepKind::Pack(self.moves()?),
            "unpack" => StepKind::Unpack(self.moves()?),
            "copy" => StepKind::Copy(self.segment()?),
            "wait" => StepKind::Wait(self.step_id()?),
            "compute" => StepKind::Compute(self.compute()?),
            "run" => StepKind::Run(self.run()?),
            _ => StepKind::Collective(self.collective(&word)?),
        };
        self.program.steps.push(Step { node, stream, after, kind });
        Ok(())
    }

    // Parts of steps.

    fn place(&mut self) -> Result<(BufferId, u64, u64)> {
        let name = self.name()?;
        let buffer = self.find(&self.buffers, &name, "buffer")?;
        let (mut offset, mut rank_bytes) = (0, 0);
        while self.eat(&Token::Mark('+'))? {
            if self.eat_word("rank")? {
                self.mark('*')?;
                rank_bytes = self.number()?;
            } else {
                offset = self.number()?;
            }
        }
        Ok((buffer, offset, rank_bytes))
    }

    fn range(&mut self) -> Result<Range> {
        let (buffer, offset, rank_bytes) = self.place()?;
        self.keyword("for")?;
        Ok(Range { buffer, offset, bytes: self.number()?, rank_bytes })
    }

    fn dtype(&mut self) -> Result<DType> {
        let word = self.word("a dtype")?;
        match DType::from_name(&word) {
            Some(dtype) => Ok(dtype),
            None => self.expected(&format!("`{word}`"), "a dtype"),
        }
    }

    fn view(&mut self) -> Result<View> {
        let dtype = self.dtype()?;
        let shape = self.list(Self::number)?;
        let layout = if self.peek()? == Token::Mark('[') {
            let strides = self.list(Self::number)?;
            Layout { dtype, shape: shape.into(), strides: strides.into() }
        } else {
            match Layout::dense(dtype, &shape) {
                Some(layout) => layout,
                None => return self.expected("a shape of more than 2^64 elements", "one that fits"),
            }
        };
        let Self { layouts, program, .. } = self;
        let layout = *layouts.entry(layout).or_insert_with_key(|layout| {
            program.layouts.push(layout.clone());
            LayoutId(program.layouts.len() as u32 - 1)
        });
        let (buffer, offset, rank_bytes) = self.place()?;
        Ok(View { buffer, layout, offset, rank_bytes })
    }

    fn segment(&mut self) -> Result<Segment> {
        let from = self.view()?;
        self.arrow()?;
        Ok(Segment { from, to: self.view()? })
    }

    fn arrow(&mut self) -> Result {
        match self.token()? {
            Token::Arrow => Ok(()),
            token => self.unexpected(&token, "`->`"),
        }
    }

    fn moves(&mut self) -> Result<Moves> {
        self.mark('{')?;
        let mut moves = Moves::default();
        while !self.eat(&Token::Mark('}'))? {
            if self.eat_word("zero")? {
                moves.zeros.push(self.range()?);
            } else {
                moves.segments.push(self.segment()?);
            }
        }
        Ok(moves)
    }

    fn reduce_op(&mut self) -> Result<ReduceOp> {
        let word = self.word("a reduce op")?;
        match ReduceOp::from_name(&word) {
            Some(op) => Ok(op),
            None => self.expected(&format!("`{word}`"), "a reduce op"),
        }
    }

    fn after_word<T: std::str::FromStr>(&mut self, word: &str) -> Result<T> {
        self.keyword(word)?;
        self.number()
    }

    fn collective(&mut self, word: &str) -> Result<Collective> {
        let op = match word {
            "all_gather" => CommOp::AllGather,
            "reduce_scatter" => CommOp::ReduceScatter(self.reduce_op()?),
            "all_reduce" => CommOp::AllReduce(self.reduce_op()?),
            "broadcast" => CommOp::Broadcast { root: self.after_word("root")? },
            "reduce" => CommOp::Reduce { op: self.reduce_op()?, root: self.after_word("root")? },
            "all_to_all" => {
                let send_counts = self.list(Self::number)?;
                CommOp::AllToAll { send_counts, recv_counts: self.list(Self::number)? }
            }
            "permute" => CommOp::Permute { pairs: self.list(Self::pair)? },
            "send" => CommOp::Send { peer: self.after_word("peer")? },
            "recv" => CommOp::Recv { peer: self.after_word("peer")? },
            "barrier" => CommOp::Barrier,
            _ => return self.expected(&format!("`{word}`"), "pack, unpack, copy, wait, compute, run or a collective"),
        };
        self.keyword("group")?;
        let name = self.name()?;
        let group = self.find(&self.groups, &name, "group")?;
        let dtype = self.dtype()?;
        let path = if self.eat_word("one_shot")? {
            Path::OneShot
        } else {
            self.keyword("normal")?;
            Path::Normal
        };
        let members = if self.eat_word("of")? { self.list(Self::name)? } else { Vec::new() };
        self.mark('{')?;
        let mut parts = Vec::new();
        while !self.eat(&Token::Mark('}'))? {
            let count = self.number()?;
            let send = self.range()?;
            self.arrow()?;
            parts.push(Part { count, send, recv: self.range()? });
        }
        Ok(Collective { op, group, dtype, path, members, parts })
    }

    fn pair(&mut self) -> Result<(u32, u32)> {
        let pair: Vec<u32> = self.list(Self::number)?;
        match pair.as_slice() {
            &[from, to] => Ok((from, to)),
            _ => self.expected("a list of another length", "a pair"),
        }
    }

    fn compute(&mut self) -> Result<Compute> {
        let target = self.name()?;
        self.mark('(')?;
        let args = self.args(Token::Mark(')'), 0)?;
        let operands = self.operands(0)?.into();
        let writes = if self.eat_word("writes")? { self.list(Self::number)?.into() } else { Default::default() };
        self.arrow()?;
        let made = self.made(0)?;
        let Self { calls, program, .. } = self;
        let call = *calls.entry(CallForm { target, args }).or_insert_with_key(|form| {
            program.calls.push(form.clone());
            program.calls.len() as u32 - 1
        });
        Ok(Compute { call, operands, writes, made })
    }

    fn run(&mut self) -> Result<Run> {
        let bodies = self.list(|parser| {
            let name = parser.name()?;
            parser.find(&parser.bodies, &name, "body")
        })?;
        let pick = if self.eat_word("by")? { Some(self.operand(0)?) } else { None };
        let given = self.operands(0)?;
        self.arrow()?;
        Ok(Run { bodies: bodies.into(), pick, given, made: self.made(0)? })
    }

    fn deeper(&self, depth: u32) -> Result<u32> {
        if depth >= MAX_DEPTH { self.expected("a list within too many others", "fewer") } else { Ok(depth + 1) }
    }

    fn operands(&mut self, depth: u32) -> Result<Vec<Operand>> {
        self.sequence(|parser| parser.operand(depth))
    }

    fn host(&mut self) -> Result<HostId> {
        let name = self.name()?;
        self.find(&self.hosts, &name, "host value")
    }

    fn operand(&mut self, depth: u32) -> Result<Operand> {
        match self.peek()? {
            Token::Mark('(') => {
                let depth = self.deeper(depth)?;
                Ok(Operand::Tuple(self.operands(depth)?))
            }
            Token::Word(word) if word == "host" => {
                self.token()?;
                Ok(Operand::Host(self.host()?))
            }
            Token::Word(word) if word.starts_with(|first: char| first.is_ascii_digit() || first == '-') => {
                Ok(Operand::Int(self.number()?))
            }
            _ => Ok(Operand::Tensor(self.view()?)),
        }
    }

    fn made(&mut self, depth: u32) -> Result<Made> {
        match self.peek()? {
            Token::Mark('(') => {
                let depth = self.deeper(depth)?;
                Ok(Made::Tuple(self.sequence(|parser| parser.made(depth))?))
            }
            Token::Word(word) if word == "host" => {
                self.token()?;
                Ok(Made::Host(self.host()?))
            }
            Token::Word(word) if word == "nothing" => {
                self.token()?;
                Ok(Made::Nothing)
            }
            _ => Ok(Made::Tensor(self.view()?)),
        }
    }

    // Arguments.

    fn args(&mut self, close: Token, depth: u32) -> Result<Args> {
        let mut args = Args::default();
        let mut first = true;
        while !self.eat(&close)? {
            if !first {
                self.mark(',')?;
            }
            first = false;
            let (at, start) = (self.at, self.start);
            if matches!(self.peek()?, Token::Word(_) | Token::Mark('@')) {
                let key = self.name()?;
                if self.eat(&Token::Mark('='))? {
                    args.keyword.push((key, self.arg(depth)?));
                    continue;
                }
                (self.at, self.start) = (at, start);
            }
            args.positional.push(self.arg(depth)?);
        }
        Ok(args)
    }

    fn items(&mut self, close: char, depth: u32) -> Result<Vec<Arg>> {
        let depth = self.deeper(depth)?;
        let mut items = Vec::new();
        while !self.eat(&Token::Mark(close))? {
            if !items.is_empty() {
                self.mark(',')?;
            }
            items.push(self.arg(depth)?);
        }
        Ok(items)
    }

    fn quoted(&mut self) -> Result<Box<str>> {
        match self.token()? {
            Token::Str(text) => Ok(text.into()),
            token => self.unexpected(&token, "a string"),
        }
    }

    fn arg(&mut self, depth: u32) -> Result<Arg> {
        match self.token()? {
            Token::Str(text) => Ok(Arg::Str(text.into())),
            Token::Mark('$') => Ok(Arg::Operand(self.number()?)),
            Token::Mark('[') => Ok(Arg::List(self.items(']', depth)?)),
            Token::Mark('(') => Ok(Arg::Tuple(self.items(')', depth)?)),
            Token::Mark('@') => {
                let name = self.quoted()?;
                self.mark('(')?;
                let depth = self.deeper(depth)?;
                Ok(Arg::Apply(name, self.args(Token::Mark(')'), depth)?))
            }
            Token::Word(word) => self.word_arg(word, depth),
            token => self.unexpected(&token, "an argument"),
        }
    }

    fn word_arg(&mut self, word: String, depth: u32) -> Result<Arg> {
        if word.starts_with(|first: char| first.is_ascii_digit() || first == '-') {
            return match word.parse() {
                Ok(value) => Ok(Arg::Int(value)),
                Err(_) if is_float(&word) => Ok(Arg::Float(word.into())),
                Err(_) => self.expected(&format!("`{word}`"), "a number"),
            };
        }
        if self.eat(&Token::Mark('('))? {
            let depth = self.deeper(depth)?;
            return Ok(Arg::Apply(word.into(), self.args(Token::Mark(')'), depth)?));
        }
        Ok(match word.as_str() {
            "True" => Arg::Bool(true),
            "False" => Arg::Bool(false),
            "None" => Arg::None,
            "float" => Arg::Float(self.quoted()?),
            "word" => Arg::Word(self.quoted()?),
            _ => dtype(&word).map_or_else(|| Arg::Word(word.into()), Arg::DType),
        })
    }
}
