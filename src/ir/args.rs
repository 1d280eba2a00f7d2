//! Arguments of a node, kept as they were written, with a hole for each operand.
//!
//! Real graphs repeat a few argument lists a hundred thousand times (`(x, [1, 0])`), so lists are interned: a node
//! holds an id, and the list is parsed once.

use super::entities::ArgsId;
use super::types::DType;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::fmt;

/// One argument.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Arg {
    /// The node's operand with this index, counted in order of appearance.
    Operand(u32),
    /// An integer.
    Int(i64),
    /// A number with a point or exponent, as written.
    Float(Box<str>),
    /// A string: the text between its quotes, escapes as written.
    Str(Box<str>),
    /// `True` or `False`.
    Bool(bool),
    /// `None`.
    None,
    /// `torch.float32`.
    DType(DType),
    /// Any other dotted word, as written: `torch.strided`, `inf`.
    Word(Box<str>),
    /// `[a, b]`.
    List(Vec<Arg>),
    /// `(a, b)`.
    Tuple(Vec<Arg>),
    /// A call inside an argument: `device(type='cuda', index=0)`, `slice(None, n, None)`.
    Apply(Box<str>, Args),
}

/// Positional and keyword arguments, in the order written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Args {
    /// Arguments without a name.
    pub positional: Vec<Arg>,
    /// Arguments with a name, after the others.
    pub keyword: Vec<(Box<str>, Arg)>,
}

/// How keyword arguments are spaced: PyTorch FX writes `k = v` at the outer level, and `k=v` inside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spacing {
    /// `k=v`.
    Tight,
    /// `k = v`.
    Wide,
}

impl Arg {
    /// The integer, if it is one.
    #[must_use]
    pub const fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// The string, if it is one.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    /// Calls `visit` with every operand index inside, in order.
    pub fn for_each_operand(&self, visit: &mut impl FnMut(u32)) {
        match self {
            Self::Operand(index) => visit(*index),
            Self::List(items) | Self::Tuple(items) => items.iter().for_each(|item| item.for_each_operand(visit)),
            Self::Apply(_, args) => args.for_each_operand(visit),
            _ => {}
        }
    }

    fn for_each_word<'a>(&'a self, visit: &mut impl FnMut(&'a str)) {
        match self {
            Self::Word(word) => visit(word),
            Self::List(items) | Self::Tuple(items) => items.iter().for_each(|item| item.for_each_word(visit)),
            Self::Apply(target, args) => {
                visit(target);
                args.for_each_word(visit);
            }
            _ => {}
        }
    }

    fn write(&self, f: &mut dyn fmt::Write, operand: &dyn Fn(u32) -> String) -> fmt::Result {
        match self {
            Self::Operand(index) => f.write_str(&operand(*index)),
            Self::Int(value) => write!(f, "{value}"),
            Self::Float(text) | Self::Word(text) => f.write_str(text),
            Self::Str(text) if text.contains('\'') && !text.contains('"') && !text.contains('\\') => {
                write!(f, "\"{text}\"")
            }
            Self::Str(text) => write!(f, "'{text}'"),
            Self::Bool(value) => f.write_str(if *value { "True" } else { "False" }),
            Self::None => f.write_str("None"),
            Self::DType(dtype) => write!(f, "torch.{}", dtype.torch_name()),
            Self::List(items) => write_items(f, '[', items, ']', operand),
            Self::Tuple(items) => {
                write_items(f, '(', items, if items.len() == 1 { ',' } else { ')' }, operand)?;
                f.write_str(if items.len() == 1 { ")" } else { "" })
            }
            Self::Apply(name, args) => {
                f.write_str(name)?;
                f.write_char('(')?;
                args.write(f, Spacing::Tight, operand)?;
                f.write_char(')')
            }
        }
    }
}

fn write_items(
    f: &mut dyn fmt::Write,
    open: char,
    items: &[Arg],
    close: char,
    operand: &dyn Fn(u32) -> String,
) -> fmt::Result {
    f.write_char(open)?;
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            f.write_str(", ")?;
        }
        item.write(f, operand)?;
    }
    f.write_char(close)
}

/// Whether the first argument is a list or tuple.
pub(super) fn starts_with_list(args: &Args) -> bool {
    matches!(args.positional.first(), Some(Arg::List(_) | Arg::Tuple(_)))
}

impl Args {
    /// Positional arguments only.
    #[must_use]
    pub const fn positional(positional: Vec<Arg>) -> Self {
        Self { positional, keyword: Vec::new() }
    }

    /// The keyword argument `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arg> {
        self.keyword.iter().find(|(key, _)| &**key == name).map(|(_, arg)| arg)
    }

    /// The argument at `position`, or the keyword argument `name`.
    #[must_use]
    pub fn at(&self, position: usize, name: &str) -> Option<&Arg> {
        self.positional.get(position).or_else(|| self.get(name))
    }

    /// Calls `visit` with every operand index, in order of appearance.
    pub fn for_each_operand(&self, visit: &mut impl FnMut(u32)) {
        let keyword = self.keyword.iter().map(|(_, arg)| arg);
        self.positional.iter().chain(keyword).for_each(|arg| arg.for_each_operand(visit));
    }

    /// Calls `visit` with every word that is not an operand, and with what inner calls call.
    pub fn for_each_word<'a>(&'a self, visit: &mut impl FnMut(&'a str)) {
        let keyword = self.keyword.iter().map(|(_, arg)| arg);
        self.positional.iter().chain(keyword).for_each(|arg| arg.for_each_word(visit));
    }

    /// Writes the list without its parentheses; `operand` names the operands.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn write(&self, f: &mut dyn fmt::Write, spacing: Spacing, operand: &dyn Fn(u32) -> String) -> fmt::Result {
        let equals = if spacing == Spacing::Wide { " = " } else { "=" };
        for (index, arg) in self.positional.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            arg.write(f, operand)?;
        }
        for (index, (key, arg)) in self.keyword.iter().enumerate() {
            if index > 0 || !self.positional.is_empty() {
                f.write_str(", ")?;
            }
            write!(f, "{key}{equals}")?;
            arg.write(f, operand)?;
        }
        Ok(())
    }
}

/// Interned argument lists: equal lists have equal ids.
#[derive(Clone, Debug)]
pub struct ArgsTable {
    lists: Vec<Args>,
    ids: HashMap<Args, ArgsId, FxBuildHasher>,
}

impl Default for ArgsTable {
    fn default() -> Self {
        let mut table = Self { lists: Vec::new(), ids: HashMap::default() };
        let empty = table.intern(Args::default());
        debug_assert_eq!(empty, ArgsId::EMPTY);
        table
    }
}

impl ArgsTable {
    /// The id of a list, new if it was not seen before.
    pub fn intern(&mut self, args: Args) -> ArgsId {
        if let Some(&id) = self.ids.get(&args) {
            return id;
        }
        let id = ArgsId::from_index(self.lists.len());
        self.lists.push(args.clone());
        self.ids.insert(args, id);
        id
    }

    /// The list of an id.
    #[must_use]
    pub fn get(&self, id: ArgsId) -> &Args {
        &self.lists[id.index()]
    }

    /// How many distinct lists there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lists.len()
    }

    /// Never: the empty list is always there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_print_as_python_writes_them() {
        let args = Args {
            positional: vec![
                Arg::List(vec![Arg::Operand(0), Arg::None]),
                Arg::Tuple(vec![Arg::Int(-1)]),
                Arg::Str("it's".into()),
                Arg::Tuple(vec![]),
            ],
            keyword: vec![
                ("dtype".into(), Arg::DType(DType::Bf16)),
                (
                    "device".into(),
                    Arg::Apply(
                        "device".into(),
                        Args {
                            positional: vec![],
                            keyword: vec![("type".into(), Arg::Str("cuda".into())), ("index".into(), Arg::Int(0))],
                        },
                    ),
                ),
            ],
        };
        let mut text = String::new();
        args.write(&mut text, Spacing::Wide, &|index| format!("x{index}")).unwrap();
        assert_eq!(
            text,
            "[x0, None], (-1,), \"it's\", (), dtype = torch.bfloat16, device = device(type='cuda', index=0)"
        );
    }
}
