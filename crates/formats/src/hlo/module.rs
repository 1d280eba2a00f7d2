//! A module as it stands in the text: header, computations, instructions, as ranges of bytes.
//!
//! Nothing is understood here beyond names and brackets, so that whatever XLA prints passes through. Names must be
//! defined above their uses, as XLA's parser wants it: operands and control predecessors in their computation,
//! computations in the module. Calls can therefore not be cyclic.

use super::calls::region_attributes;
use super::error::Fault;
use super::lex::{Cursor, Span};
use bucketeer::ir::{Name, Names};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// `key=value`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attribute {
    pub key: Span,
    pub value: Span,
}

/// An operand: its name in the text, and the instruction of that name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand {
    pub name: Span,
    pub target: u32,
}

/// An instruction. Instructions of a computation follow each other without gaps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instruction {
    /// First byte of the blank lines and comments above it.
    pub lead: u32,
    /// First byte of `ROOT`, or of its name with the `%`.
    pub start: u32,
    /// Its name, without `%`: where it stands, and in [`Module::names`].
    pub name: Span,
    pub id: Name,
    pub shape: Span,
    pub opcode: Span,
    /// What stands between the parentheses.
    pub arguments: Span,
    /// End of its last attribute.
    pub text_end: u32,
    /// End of its line.
    pub end: u32,
    operands: (u32, u32),
    attributes: (u32, u32),
    pub is_root: bool,
}

/// A computation: its instructions, and the one whose value it returns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Computation {
    pub name: Span,
    pub first: u32,
    pub end: u32,
    pub root: u32,
    /// What stands between its braces.
    pub body: Span,
    pub opcodes: Opcodes,
}

/// Which opcodes a computation has that its readers would otherwise look for among all of its instructions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Opcodes {
    /// `domain`.
    pub domain: bool,
    /// `-start` or `-update`.
    pub is_async: bool,
    /// Opcodes whose attributes name regions.
    pub regions: bool,
}

impl Opcodes {
    fn add(&mut self, opcode: &str) {
        self.domain |= opcode == "domain";
        self.is_async |= is_async(opcode);
        self.regions |= !region_attributes(opcode).is_empty();
    }
}

/// Whether an opcode's value is in flight.
pub(super) fn is_async(opcode: &str) -> bool {
    opcode.ends_with("-start") || opcode.ends_with("-update")
}

impl Computation {
    pub(super) fn instructions(&self) -> std::ops::Range<usize> {
        self.first as usize..self.end as usize
    }
}

/// A module.
#[derive(Clone, Debug)]
pub(super) struct Module {
    pub name: Span,
    /// The names of all instructions. The graph takes them over.
    pub names: Names,
    pub header: Vec<Attribute>,
    pub computations: Vec<Computation>,
    /// Index of the entry computation.
    pub entry: usize,
    pub instructions: Vec<Instruction>,
    operands: Vec<Operand>,
    attributes: Vec<Attribute>,
    /// Computations that attributes name, by the first byte of the attribute's value, in the order of the text.
    calls: Vec<(u32, u32)>,
    /// Instructions that `control-predecessors` name, likewise.
    predecessors: Vec<(u32, u32)>,
}

/// Attributes that name computations.
const CALLS: &[&str] = &[
    "to_apply",
    "calls",
    "condition",
    "body",
    "branch_computations",
    "true_computation",
    "false_computation",
    "called_computations",
    "select",
    "scatter",
];

/// Whether an attribute of this name names computations.
pub(super) fn is_call(key: &str) -> bool {
    CALLS.contains(&key)
}

impl Module {
    pub(super) fn operands(&self, instruction: &Instruction) -> &[Operand] {
        &self.operands[instruction.operands.0 as usize..instruction.operands.1 as usize]
    }

    /// How many operands all instructions have.
    pub(super) fn operand_count(&self) -> usize {
        self.operands.len()
    }

    pub(super) fn attributes(&self, instruction: &Instruction) -> &[Attribute] {
        &self.attributes[instruction.attributes.0 as usize..instruction.attributes.1 as usize]
    }

    /// The value of an instruction's attribute.
    pub(super) fn attribute(&self, text: &str, instruction: &Instruction, key: &str) -> Option<Span> {
        let found = self.attributes(instruction).iter().find(|attribute| attribute.key.of(text) == key);
        found.map(|attribute| attribute.value)
    }

    /// By computation: whether an attribute names it.
    pub(super) fn is_called(&self) -> Vec<bool> {
        let mut called = vec![false; self.computations.len()];
        self.calls.iter().for_each(|&(_, callee)| called[callee as usize] = true);
        called
    }

    /// The computations that an attribute's value names.
    pub(super) fn called(&self, value: Span) -> impl Iterator<Item = usize> + '_ {
        inside(&self.calls, value)
    }

    /// The instructions that the value of `control-predecessors` names.
    pub(super) fn predecessors(&self, value: Span) -> impl Iterator<Item = usize> + '_ {
        inside(&self.predecessors, value)
    }

    /// Reads a text.
    pub(super) fn read(text: &str) -> Result<Self, Fault> {
        if u32::try_from(text.len()).is_err() {
            return Err(Fault::new(0, "the text is larger than 4 GiB", "a smaller text"));
        }
        Reader::new(text).module()
    }
}

/// The second of each pair whose first is inside of a span.
fn inside(pairs: &[(u32, u32)], span: Span) -> impl Iterator<Item = usize> + '_ {
    let first = pairs.partition_point(|&(at, _)| at < span.start);
    pairs[first..].iter().take_while(move |&&(at, _)| at < span.end).map(|&(_, index)| index as usize)
}

struct Reader<'a> {
    cursor: Cursor<'a>,
    module: Module,
    /// Computations by name.
    computations: HashMap<&'a str, u32, FxBuildHasher>,
    /// By name: the last instruction that has it. Those before `first` are in other computations.
    latest: Vec<u32>,
    first: u32,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        let lines = text.len() / 96;
        let module = Module {
            name: Span::default(),
            names: Names::default(),
            header: Vec::new(),
            computations: Vec::new(),
            entry: 0,
            instructions: Vec::with_capacity(lines),
            operands: Vec::with_capacity(2 * lines),
            attributes: Vec::with_capacity(2 * lines),
            calls: Vec::new(),
            predecessors: Vec::new(),
        };
        Self { cursor: Cursor::new(text), module, computations: HashMap::default(), latest: Vec::new(), first: 0 }
    }

    fn module(mut self) -> Result<Module, Fault> {
        self.cursor.skip_blank()?;
        if !self.cursor.take_word("HloModule") {
            return Err(self.cursor.expected("`HloModule`"));
        }
        self.cursor.skip_spaces()?;
        self.module.name = self.cursor.name("the module's name")?;
        let mut header = Vec::new();
        self.attributes(&mut header)?;
        self.module.header = header;
        self.tables()?;
        let mut entry = None;
        self.cursor.skip_blank()?;
        while self.cursor.peek().is_some() {
            let start = self.cursor.at;
            if self.cursor.take_word("ENTRY") {
                self.cursor.skip_blank()?;
                if entry.replace(self.module.computations.len()).is_some() {
                    return Err(Fault::new(start, "there is a second ENTRY computation", "one"));
                }
            }
            self.computation()?;
            self.cursor.skip_blank()?;
        }
        if self.module.computations.is_empty() {
            return Err(self.cursor.expected("a computation, such as `ENTRY %main (p: f32[8]) -> f32[8] {`"));
        }
        // XLA takes the last computation where none is marked.
        self.module.entry = entry.unwrap_or(self.module.computations.len() - 1);
        Ok(self.module)
    }

    /// Goes over the tables of source places: a word on a line of its own, then lines that begin with a number.
    fn tables(&mut self) -> Result<(), Fault> {
        self.cursor.skip_blank()?;
        let words = ["FileNames", "FunctionNames", "FileLocations", "StackFrames"];
        while words.into_iter().any(|word| self.cursor.take_word(word)) {
            self.cursor.skip_blank()?;
            while self.cursor.peek().is_some_and(|byte| byte.is_ascii_digit()) {
                let rest = self.cursor.rest();
                self.cursor.at += memchr::memchr(b'\n', rest).unwrap_or(rest.len());
                self.cursor.skip_blank()?;
            }
        }
        Ok(())
    }

    fn computation(&mut self) -> Result<(), Fault> {
        let name = self.cursor.name("a computation, such as `%add (a: f32[], b: f32[]) -> f32[] {`")?;
        self.cursor.skip_blank()?;
        if self.cursor.peek() == Some(b'(') {
            self.cursor.brackets()?;
            self.cursor.skip_blank()?;
            if !self.cursor.rest().starts_with(b"->") {
                return Err(self.cursor.expected("`->` and the shape of the result"));
            }
            self.cursor.at += 2;
            self.cursor.skip_blank()?;
            self.cursor.shape()?;
            self.cursor.skip_blank()?;
        }
        self.cursor.expect(b'{', "`{`")?;
        // The line end behind the brace belongs to no instruction, so that any may come first.
        self.cursor.skip_spaces()?;
        self.cursor.take(b'\n');
        let first = self.module.instructions.len();
        self.first = first as u32;
        let body = self.cursor.at;
        let mut root = None;
        let mut opcodes = Opcodes::default();
        loop {
            let lead = self.cursor.at;
            self.cursor.skip_blank()?;
            if self.cursor.peek() == Some(b'}') {
                break;
            }
            self.instruction(lead)?;
            let index = self.module.instructions.len() - 1;
            let instruction = &self.module.instructions[index];
            opcodes.add(instruction.opcode.of(self.cursor.text));
            if instruction.is_root && root.replace(index).is_some() {
                let text = instruction.name.of(self.cursor.text);
                let problem = format!("`{text}` is a second ROOT of its computation");
                return Err(Fault::new(instruction.start as usize, problem, "one ROOT"));
            }
        }
        let end = self.module.instructions.len();
        if end == first {
            return Err(self.cursor.expected("an instruction"));
        }
        let body = Span::new(body, self.cursor.at);
        self.cursor.at += 1;
        // Behind the brace: `, execution_thread="x"`.
        self.attributes(&mut Vec::new())?;
        let index = self.module.computations.len() as u32;
        let root = root.unwrap_or(end - 1) as u32;
        let (first, end) = (first as u32, end as u32);
        self.module.computations.push(Computation { name, first, end, root, body, opcodes });
        let text = name.of(self.cursor.text);
        match self.computations.insert(text, index) {
            Some(_) => Err(Fault::new(name.at(), format!("computation `{text}` is there already"), "another name")),
            None => Ok(()),
        }
    }

    fn instruction(&mut self, lead: usize) -> Result<(), Fault> {
        let cursor = &mut self.cursor;
        let start = cursor.at;
        let is_root = cursor.take_word("ROOT");
        cursor.skip_blank()?;
        let name = cursor.name("an instruction, such as `%c = f32[] add(%a, %b)`, or `}`")?;
        cursor.skip_blank()?;
        cursor.expect(b'=', "`=`")?;
        cursor.skip_blank()?;
        let shape = cursor.shape()?;
        cursor.skip_blank()?;
        if cursor.peek() == Some(b'%') {
            return Err(cursor.expected("an opcode, such as `add`"));
        }
        let opcode = cursor.name("an opcode, such as `add`")?;
        cursor.skip_blank()?;
        cursor.expect(b'(', "`(`")?;
        let first_operand = self.module.operands.len() as u32;
        let inside = cursor.at;
        if matches!(opcode.of(cursor.text), "parameter" | "constant") {
            cursor.inside()?;
        } else {
            self.operands()?;
        }
        let arguments = Span::new(inside, self.cursor.at);
        self.cursor.expect(b')', "`)`")?;
        let first_attribute = self.module.attributes.len();
        let mut attributes = std::mem::take(&mut self.module.attributes);
        let text_end = self.attributes(&mut attributes)?;
        self.module.attributes = attributes;
        for at in first_attribute..self.module.attributes.len() {
            self.names_in(self.module.attributes[at])?;
        }
        if self.cursor.peek() == Some(b'\n') {
            self.cursor.at += 1;
        }
        let index = self.module.instructions.len() as u32;
        let id = self.define(name, index)?;
        self.module.instructions.push(Instruction {
            lead: lead as u32,
            start: start as u32,
            name,
            id,
            shape,
            opcode,
            arguments,
            text_end: text_end as u32,
            end: self.cursor.at as u32,
            operands: (first_operand, self.module.operands.len() as u32),
            attributes: (first_attribute as u32, self.module.attributes.len() as u32),
            is_root,
        });
        Ok(())
    }

    /// Gives an instruction its name, which no other of its computation may have.
    fn define(&mut self, name: Span, index: u32) -> Result<Name, Fault> {
        let text = name.of(self.cursor.text);
        let id = self.module.names.intern(text);
        match self.latest.get_mut(id.index()) {
            Some(latest) if *latest >= self.first => {
                return Err(Fault::new(name.at(), format!("`{text}` is defined above already"), "another name"));
            }
            Some(latest) => *latest = index,
            None => self.latest.push(index),
        }
        if self.latest.len() == 4096 {
            // Growing a large table looks at all names again. The rest may be as dense as the text was so far.
            self.module.names.reserve(self.cursor.rest().len() / (self.cursor.at / 4096).max(16));
        }
        Ok(id)
    }

    /// Names between parentheses, each with or without its shape before it. The closing one is not taken.
    fn operands(&mut self) -> Result<(), Fault> {
        loop {
            self.cursor.skip_blank()?;
            if self.cursor.peek() == Some(b')') {
                return Ok(());
            }
            let start = self.cursor.at;
            if self.cursor.peek() == Some(b'(') {
                self.cursor.shape()?;
                self.cursor.skip_blank()?;
            }
            let mut name = self.cursor.name("an operand's name")?;
            if self.cursor.peek() == Some(b'[') {
                self.cursor.at = start;
                self.cursor.shape()?;
                self.cursor.skip_blank()?;
                name = self.cursor.name("an operand's name")?;
            }
            let target = self.defined(name)?;
            self.module.operands.push(Operand { name, target });
            self.cursor.skip_blank()?;
            if !self.cursor.take(b',') && self.cursor.peek() != Some(b')') {
                return Err(self.cursor.expected("`,` or `)`"));
            }
        }
    }

    fn defined(&self, name: Span) -> Result<u32, Fault> {
        let text = name.of(self.cursor.text);
        let latest = self.module.names.find(text).map(|id| self.latest[id.index()]);
        latest.filter(|&latest| latest >= self.first).ok_or_else(|| {
            Fault::new(
                name.at(),
                format!("`{text}` is not defined"),
                "a name that is defined above, in this computation",
            )
        })
    }

    /// `, key=value` as often as it stands there, up to the end of the line. Gives the end of the last one.
    fn attributes(&mut self, into: &mut Vec<Attribute>) -> Result<usize, Fault> {
        let cursor = &mut self.cursor;
        let mut end = cursor.at;
        loop {
            cursor.skip_spaces()?;
            if !cursor.take(b',') {
                return Ok(end);
            }
            cursor.skip_blank()?;
            let key = cursor.name("an attribute, such as `dimensions={0}`")?;
            cursor.skip_spaces()?;
            cursor.expect(b'=', "`=` and the attribute's value")?;
            cursor.skip_spaces()?;
            let value = cursor.value()?;
            end = value.end as usize;
            match into.last_mut() {
                // `mesh['x'=2], device_ids=([2]T(0)) {'x'}` is one value.
                Some(last)
                    if key.of(cursor.text) == "device_ids" && last.value.of(cursor.text).starts_with("mesh[") =>
                {
                    last.value.end = value.end;
                }
                _ => into.push(Attribute { key, value }),
            }
        }
    }

    /// Looks up what an attribute names: computations, or instructions that run before.
    fn names_in(&mut self, attribute: Attribute) -> Result<(), Fault> {
        let text = self.cursor.text;
        let key = attribute.key.of(text);
        let is_call = is_call(key);
        if !is_call && key != "control-predecessors" {
            return Ok(());
        }
        for name in names_of(text, attribute.value)? {
            if is_call {
                let index = self.computation_named(name)?;
                self.module.calls.push((name.start, index));
            } else {
                let index = self.defined(name)?;
                self.module.predecessors.push((name.start, index));
            }
        }
        Ok(())
    }

    fn computation_named(&self, name: Span) -> Result<u32, Fault> {
        let text = name.of(self.cursor.text);
        self.computations.get(text).copied().ok_or_else(|| {
            let problem = format!("computation `{text}` is not defined above");
            Fault::new(name.at(), problem, "computations above those that call them, so that calls are not cyclic")
        })
    }
}

/// Names in an attribute's value: one, or several in braces.
fn names_of(text: &str, value: Span) -> Result<Vec<Span>, Fault> {
    let mut cursor = Cursor::new(&text[..value.end as usize]);
    cursor.at = value.at();
    let mut names = Vec::new();
    if !cursor.take(b'{') {
        names.push(cursor.name("a name")?);
        return Ok(names);
    }
    loop {
        cursor.skip_blank()?;
        if cursor.take(b'}') {
            return Ok(names);
        }
        names.push(cursor.name("a name or `}`")?);
        cursor.skip_blank()?;
        if !cursor.take(b',') && cursor.peek() != Some(b'}') {
            return Err(cursor.expected("`,` or `}`"));
        }
    }
}
