//! Large graphs scaled down, so that they can be evaluated.
//!
//! [`shrink`] follows the sizes of all dimensions through the graphs, with the meaning of the operators that the evaluator
//! knows: which are equal, which are products of others (views, gathers) and which are sums (packs, splits, pads). What is
//! left are few sizes that nothing else decides; they become small, all others follow. So what was divided by the ranks
//! of a group still is, members of a bucket lie where they lay among each other, a padded member is padded, and an offset
//! that is one too large is one too large. Sizes of operators of unknown meaning are those that the graph states.
//!
//! The graphs given together share their inputs, so they get the same sizes. Sizes that come out of data, and those that
//! an operator uses in a way not understood here, stay as they are.

mod cut;
mod extents;
mod node;
mod rebuild;
mod rules;
mod solve;
mod trace;
mod unify;

use super::machine::stated_bytes;
use super::symbols::Symbols;
use super::world::World;
use super::{EvalError, EvalOptions, well_formed};
use bucketeer::ir::bodies::called_graphs;
use bucketeer::ir::{Graph, Op};
use rebuild::Scale;
use trace::{Keeps, Traced, Tracer};

/// What sizes that nothing else decides become, the first that suffices.
const SMALL: [u64; 2] = [4, 2];

/// Graphs much smaller than they may be are evaluated in no time; so this part of the bytes allowed is aimed at.
const ROOM: u64 = 8;

/// Graphs that can be evaluated.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The graphs, in the order given.
    pub graphs: Vec<Graph>,
    /// What was scaled; nothing, if the graphs were small enough.
    pub scaling: Option<Scaling>,
}

/// How graphs were scaled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scaling {
    /// Bytes of the largest graph's tensors on all ranks.
    pub bytes_before: u64,
    /// The same at the new sizes.
    pub bytes_after: u64,
    /// Sizes of dimensions before and after, each pair once, the largest first.
    pub sizes: Vec<(u64, u64)>,
    /// The first view, with its operator, whose sizes were guessed: it sees elements in an order that does not follow from
    /// how they came about, and may see them in another one at other sizes. A difference found then may be due to that.
    pub guessed: Option<String>,
}

/// Why graphs cannot be scaled down.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShrinkError {
    /// They could not be evaluated at any size.
    #[error(transparent)]
    Eval(#[from] EvalError),
    /// What can be scaled does not suffice.
    #[error(
        "the graph's tensors have {bytes} bytes on all ranks and still {scaled} when scaled down, more than the {most} \
         allowed{}",
        .keeps.as_ref().map_or(String::new(), |keeps| format!("; {keeps}"))
    )]
    TooLarge {
        /// Bytes before.
        bytes: u64,
        /// Bytes after.
        scaled: u64,
        /// How many may be.
        most: u64,
        /// Which node keeps a size as it is, if one does.
        keeps: Option<String>,
    },
    /// It calls graphs, and those are not scaled.
    #[error("{node} calls graphs, whose sizes are not scaled with those of their caller; allow for more bytes")]
    Calls {
        /// The call, with its operator.
        node: String,
    },
    /// Sizes depend on each other in ways that cannot be followed.
    #[error("{node} asks for sizes that cannot be scaled together")]
    Entangled {
        /// Where that was found, with its operator.
        node: String,
    },
}

/// Scales graphs down if their tensors have more bytes than the options allow. Graphs that are small enough come back as
/// they are. All get the same sizes: a graph and what it was rewritten to can be compared afterwards.
///
/// # Errors
/// [`ShrinkError`], naming the node that stands in the way.
///
/// ```
/// use bucketeer_eval::{EvalOptions, compare, shrink};
/// use bucketeer::ir::text::parse;
///
/// let text = "x = input f32[40960, 4096]\ng = all_gather(x, G0:8)\noutput(wait(g))";
/// let graph = parse(text).unwrap();
/// let options = EvalOptions::default();
/// assert!(compare(&graph, &graph, &options).is_err());
/// let small = shrink(&[&graph], &options).unwrap().graphs.remove(0);
/// assert!(compare(&small, &small, &options).unwrap().is_equal());
/// ```
pub fn shrink(graphs: &[&Graph], options: &EvalOptions) -> Result<Shrunk, ShrinkError> {
    graphs.iter().try_for_each(|graph| well_formed(graph))?;
    let Some(first) = graphs.first() else { return Ok(Shrunk { graphs: Vec::new(), scaling: None }) };
    let ranks = World::of(first, options)?.ranks.len();
    let symbols: Vec<Symbols> = graphs.iter().map(|graph| Symbols::of(graph, options)).collect();
    let bytes_before = largest(graphs.iter().copied(), &symbols, ranks);
    if bytes_before <= options.max_bytes {
        return Ok(Shrunk { graphs: graphs.iter().map(|&graph| graph.clone()).collect(), scaling: None });
    }
    for graph in graphs {
        if let Some(&call) = graph.order().iter().find(|&&id| called_graphs(graph, id).is_some()) {
            let node = format!("`{}` ({})", graph.name_of(call), graph.target_of(call));
            return Err(ShrinkError::Calls { node });
        }
    }
    let job = Job { graphs, symbols: &symbols, options, ranks, bytes_before };
    match job.run(false) {
        // What cannot be followed may be guessed, rather than given up.
        Err(refused @ ShrinkError::TooLarge { .. }) => job.run(true).map_err(|_| refused),
        done => done,
    }
}

/// Graphs to scale, and how small they must be.
struct Job<'a> {
    graphs: &'a [&'a Graph],
    symbols: &'a [Symbols],
    options: &'a EvalOptions,
    ranks: usize,
    bytes_before: u64,
}

impl Job<'_> {
    fn run(&self, may_guess: bool) -> Result<Shrunk, ShrinkError> {
        let nodes: usize = self.graphs.iter().map(|graph| graph.order().len()).sum();
        let mut tracer = Tracer::new((1 << 14) + 64 * nodes, &self.options.groups);
        tracer.may_guess = may_guess;
        let graphs = self.graphs.iter().zip(self.symbols).enumerate();
        let traced: Vec<Traced> = graphs.map(|(side, (graph, symbols))| tracer.trace(side, graph, symbols)).collect();
        if tracer.extents.is_full() {
            return Err(self.entangled(tracer.extents.place));
        }
        let (mut scaled, mut bytes_after) = (Vec::new(), u64::MAX);
        for small in SMALL {
            if bytes_after <= self.options.max_bytes / ROOM {
                break;
            }
            let solved = solve::solve(&mut tracer.extents, small);
            let mut sizes = solved.map_err(|equation| self.entangled(equation.place))?;
            scaled.clear();
            for ((graph, symbols), traced) in self.graphs.iter().zip(self.symbols).zip(&traced) {
                let mut scale = Scale { extents: &tracer.extents, sizes: &mut sizes, symbols };
                scaled.push(scale.graph(graph, traced));
            }
            bytes_after = largest(scaled.iter(), self.symbols, self.ranks);
        }
        if bytes_after > self.options.max_bytes {
            return Err(self.too_large(&tracer, bytes_after));
        }
        let scaling = Scaling {
            bytes_before: self.bytes_before,
            bytes_after,
            sizes: changed(self.graphs[0], &scaled[0], &self.symbols[0]),
            guessed: tracer.guessed.map(|place| self.say(place)),
        };
        Ok(Shrunk { graphs: scaled, scaling: Some(scaling) })
    }

    fn too_large(&self, tracer: &Tracer, scaled: u64) -> ShrinkError {
        let extents = &tracer.extents;
        let unsolved = extents.unsolved.iter();
        let unsolved = unsolved.map(|equation| Keeps { size: extents.size(equation.left), place: equation.place });
        let keeps = unsolved.chain(tracer.keeps).max_by_key(|keeps| keeps.size);
        ShrinkError::TooLarge {
            bytes: self.bytes_before,
            scaled,
            most: self.options.max_bytes,
            keeps: keeps.map(|keeps| format!("{} keeps size {}", self.say(keeps.place), keeps.size)),
        }
    }

    fn entangled(&self, place: (usize, usize)) -> ShrinkError {
        ShrinkError::Entangled { node: self.say(place) }
    }

    /// A node, as people read it.
    fn say(&self, (side, position): (usize, usize)) -> String {
        let (graph, id) = (self.graphs[side], self.graphs[side].order()[position]);
        format!("`{}` ({})", graph.name_of(id), graph.target_of(id))
    }
}

/// Bytes of the largest graph's tensors on all ranks.
fn largest<'a>(graphs: impl Iterator<Item = &'a Graph>, symbols: &[Symbols], ranks: usize) -> u64 {
    graphs.zip(symbols).map(|(graph, symbols)| stated_bytes(graph, symbols, ranks)).max().unwrap_or(0)
}

/// The sizes of inputs that differ, each pair once.
fn changed(before: &Graph, after: &Graph, symbols: &Symbols) -> Vec<(u64, u64)> {
    let mut pairs = Vec::new();
    for &id in before.order().iter().filter(|&&id| before.node(id).op == Op::Input) {
        let sizes =
            |graph: &Graph| graph.tensor(id).and_then(|tensor| symbols.sizes(&tensor.shape)).unwrap_or_default();
        let (old, new) = (sizes(before), sizes(after));
        pairs.extend(
            old.into_iter().zip(new).filter(|(old, new)| old != new).map(|(old, new)| (old as u64, new as u64)),
        );
    }
    pairs.sort_unstable_by(|a, b| b.cmp(a));
    pairs.dedup();
    pairs
}
