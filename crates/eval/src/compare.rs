//! Whether two graphs compute the same.

use super::output::{Output, OutputTensor, RankOutputs, Sharer};
use super::{EvalError, EvalOptions, Side, evaluate};
use bucketeer::ir::{Graph, Op, Type};
use bucketeer_types::class::{Class, class};
use bucketeer_types::num::{load_float, load_int};
use std::fmt;

/// How two graphs compare.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Ranks that were run.
    pub ranks: usize,
    /// Results that were compared on each.
    pub outputs: usize,
    /// What differs, the first of its kind on the first rank; empty when the graphs compute the same.
    pub differences: Vec<Difference>,
}

impl Comparison {
    /// Whether nothing differs.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.differences.is_empty()
    }
}

/// One difference between two graphs.
#[derive(Clone, Debug, PartialEq)]
pub enum Difference {
    /// The second graph does something that no graph may.
    Faulty(EvalError),
    /// A result, or an input after the run, differs.
    Value {
        /// On which rank.
        rank: u32,
        /// Which: `output 3 (`wait_1`)`, `input `p``.
        what: String,
        /// In what: `element 5`, `dtype`.
        detail: String,
        /// As it was.
        before: String,
        /// As it is.
        after: String,
    },
    /// A result shares memory and did not before.
    Sharing {
        /// The result, by place.
        output: usize,
        /// With what.
        with: Sharer,
    },
    /// What a collective sends is written while it is in flight, and was not before.
    Race {
        /// The collective.
        collective: String,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Faulty(error) => write!(f, "in the graph after: {error}"),
            Self::Value { rank, what, detail, before, after } => {
                write!(f, "{what} differs on rank {rank} in {detail}: {before} before, {after} after")
            }
            Self::Sharing { output, with } => {
                write!(f, "output {output} shares memory with {with}, and did not before")
            }
            Self::Race { collective } => {
                write!(f, "what `{collective}` sends is written while it is in flight, and was not before")
            }
        }
    }
}

/// Runs both graphs on the same inputs: results must be bit-equal on all ranks, inputs changed in the same way, and
/// results share no more memory than before. Graphs with integer inputs are run twice, with small and with large ones:
/// the small ones may be indices, and the large ones show a detour over a narrower dtype.
///
/// # Errors
/// [`EvalError`] when the graphs do not belong together, when the first cannot be evaluated, and when the second needs
/// what is not defined here. That the second does what no graph may is a [`Difference`].
pub fn compare(before: &Graph, after: &Graph, options: &EvalOptions) -> Result<Comparison, EvalError> {
    belong_together(before, after)?;
    let first = compare_once(before, after, options)?;
    let wide = EvalOptions { integers: 1 << 53, ..options.clone() };
    if !first.is_equal() || options.raw_inputs || !has_integers(before) {
        return Ok(first);
    }
    // Large integers may be no indices: then small ones have to do.
    match compare_once(before, after, &wide) {
        Ok(second) => Ok(second),
        Err(_) => Ok(first),
    }
}

fn compare_once(before: &Graph, after: &Graph, options: &EvalOptions) -> Result<Comparison, EvalError> {
    let side = |side| move |error| EvalError::Side { side, error: Box::new(error) };
    let old = evaluate(before, options).map_err(side(Side::Before))?;
    let mut comparison = Comparison { ranks: old.len(), outputs: 0, differences: Vec::new() };
    // Both run in the same world, whatever groups the second still uses.
    let same_world = EvalOptions { ranks: options.ranks.or(contiguous(&old)), ..options.clone() };
    let new = match evaluate(after, &same_world) {
        Ok(new) => new,
        Err(error) if is_fault(&error) => {
            comparison.differences.push(Difference::Faulty(error));
            return Ok(comparison);
        }
        Err(error) => return Err(side(Side::After)(error)),
    };
    comparison.outputs = old.first().map_or(0, |rank| rank.outputs.len());
    let names = output_names(before);
    for old in &old {
        let Some(new) = new.iter().find(|new| new.rank == old.rank) else {
            return Err(EvalError::Unrelated(format!("rank {} is in no group of the second graph", old.rank)));
        };
        compare_rank(old, new, &names, &mut comparison.differences);
        if !comparison.is_equal() {
            break;
        }
    }
    Ok(comparison)
}

/// The number of ranks, if they are the first ones.
fn contiguous(ranks: &[RankOutputs]) -> Option<u32> {
    let count = u32::try_from(ranks.len()).ok()?;
    ranks.iter().enumerate().all(|(at, rank)| rank.rank as usize == at).then_some(count)
}

/// Whether an error says that the graph is wrong, not that it is beyond this evaluator.
fn is_fault(error: &EvalError) -> bool {
    match error {
        EvalError::IllFormed(_)
        | EvalError::ReadsPending { .. }
        | EvalError::WritesPending { .. }
        | EvalError::Type { .. }
        | EvalError::Misfit { .. } => true,
        EvalError::Group { .. }
        | EvalError::TooManyRanks { .. }
        | EvalError::GraphTooLarge { .. }
        | EvalError::TooLarge { .. }
        | EvalError::UnknownType { .. }
        | EvalError::Undefined { .. }
        | EvalError::Unrelated(_)
        | EvalError::Side { .. } => false,
    }
}

fn output_names(graph: &Graph) -> Vec<String> {
    let output = graph.order().iter().rfind(|&&id| graph.node(id).op == Op::Output);
    let operands = output.map_or(&[][..], |&id| graph.operands(id));
    operands.iter().enumerate().map(|(place, &id)| format!("output {place} (`{}`)", graph.name_of(id))).collect()
}

fn has_integers(graph: &Graph) -> bool {
    let holds = |ty: &Type| ty.as_tensor().is_some_and(|tensor| class(tensor.dtype) == Class::Int);
    graph.order().iter().any(|&id| graph.node(id).op == Op::Input && holds(graph.type_of(id)))
}

/// Two graphs belong together when they have the same inputs, by name and type, and as many outputs.
fn belong_together(before: &Graph, after: &Graph) -> Result<(), EvalError> {
    let inputs = |graph: &Graph| {
        let all = graph.order().iter().filter(|&&id| graph.node(id).op == Op::Input);
        let mut list: Vec<(String, Type)> =
            all.map(|&id| (graph.name_of(id).to_owned(), graph.type_of(id).clone())).collect();
        list.sort();
        list
    };
    let (old, new) = (inputs(before), inputs(after));
    let only = |a: &[(String, Type)], b: &[(String, Type)]| a.iter().find(|input| !b.contains(input)).cloned();
    if let Some((name, ty)) = only(&old, &new) {
        return Err(EvalError::Unrelated(format!("the first has an input `{name}`: {ty}, the second has not")));
    }
    if let Some((name, ty)) = only(&new, &old) {
        return Err(EvalError::Unrelated(format!("the second has an input `{name}`: {ty}, the first has not")));
    }
    let (a, b) = (output_names(before).len(), output_names(after).len());
    if a != b {
        return Err(EvalError::Unrelated(format!("the first has {a} outputs, the second {b}")));
    }
    Ok(())
}

fn compare_rank(old: &RankOutputs, new: &RankOutputs, names: &[String], differences: &mut Vec<Difference>) {
    let outputs = old.outputs.iter().zip(&new.outputs).zip(names);
    for ((old_output, new_output), name) in outputs {
        differences.extend(value_difference(old.rank, name, old_output, new_output));
    }
    for (name, old_input) in &old.inputs {
        if let Some((_, new_input)) = new.inputs.iter().find(|(known, _)| known == name) {
            let what = format!("input `{name}` after the run");
            differences.extend(value_difference(old.rank, &what, old_input, new_input));
        }
    }
    let more = new.shared.iter().find(|pair| !old.shared.contains(pair));
    differences.extend(more.map(|(output, with)| Difference::Sharing { output: *output, with: with.clone() }));
    if old.races.is_empty() {
        differences.extend(new.races.first().map(|name| Difference::Race { collective: name.to_string() }));
    }
}

fn value_difference(rank: u32, what: &str, old: &Output, new: &Output) -> Option<Difference> {
    let differs = |detail: String, before: String, after: String| {
        Some(Difference::Value { rank, what: what.to_owned(), detail, before, after })
    };
    match (old, new) {
        (Output::Tensor(a), Output::Tensor(b)) => {
            let (detail, before, after) = tensor_difference(a, b)?;
            differs(detail, before, after)
        }
        (Output::Tuple(a), Output::Tuple(b)) if a.len() == b.len() => a
            .iter()
            .zip(b)
            .enumerate()
            .find_map(|(nth, (a, b))| value_difference(rank, &format!("{what}[{nth}]"), a, b)),
        (a, b) if a == b => None,
        (a, b) => differs("kind".to_owned(), format!("{a:?}"), format!("{b:?}")),
    }
}

fn tensor_difference(a: &OutputTensor, b: &OutputTensor) -> Option<(String, String, String)> {
    let differs = |detail: &str, before: String, after: String| Some((detail.to_owned(), before, after));
    if a.dtype != b.dtype {
        return differs("dtype", a.dtype.short_name().to_owned(), b.dtype.short_name().to_owned());
    }
    if a.sizes != b.sizes {
        return differs("sizes", format!("{:?}", a.sizes), format!("{:?}", b.sizes));
    }
    if let (Some(x), Some(y)) = (&a.device, &b.device)
        && x != y
    {
        return differs("device", x.to_string(), y.to_string());
    }
    if b.pending && !a.pending {
        return differs("readiness", "waited for".to_owned(), "in flight".to_owned());
    }
    let width = a.dtype.bytes() as usize;
    let element = (0..a.bytes.len() / width).find(|at| {
        let range = at * width..(at + 1) * width;
        a.bytes[range.clone()] != b.bytes[range]
    })?;
    let say = |tensor: &OutputTensor| {
        let bytes = &tensor.bytes[element * width..(element + 1) * width];
        match class(tensor.dtype) {
            Class::Float => load_float(tensor.dtype, bytes).to_string(),
            _ => load_int(tensor.dtype, bytes).to_string(),
        }
    };
    Some((format!("element {element}"), say(a), say(b)))
}
