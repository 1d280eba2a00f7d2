//! What to do where a file holds graphs, but not what there would be to work on.

use bucketeer::check::ranks::RanksError;
use bucketeer::ir::{Graph, Op, Type};
use bucketeer::passes::TogetherError;
use bucketeer::passes::lowering::LowerError;
use bucketeer::passes::schedule::CostError;
use bucketeer_eval::{EvalError, ShrinkError};
use bucketeer_exec::RunError;
use bucketeer_formats::{Document, Format};

/// Notes on a document, each a line.
pub fn notes(document: &Document) -> Vec<String> {
    if !matches!(document.format(), Format::Fx | Format::Export) {
        return Vec::new();
    }
    let graphs = document.graphs();
    let mut notes: Vec<String> = graphs.iter().filter(|graph| lacks_types(graph)).map(without_types).collect();
    if !graphs.iter().any(has_collectives) {
        let note = if graphs.iter().any(has_dtensors) { DTENSORS } else { OUTSIDE };
        notes.push(note.to_owned());
    }
    notes
}

const DTENSORS: &str = "note: no collectives: this graph works on DTensors, whose collectives PyTorch makes when it traces \
                        on; take the graphs that `TORCH_LOGS=aot_graphs` or `TORCH_LOGS=post_grad_graphs` prints";

const OUTSIDE: &str = "note: no collectives: those of FSDP2 and DDP run outside of the graphs, in hooks and in DDP's reducer. For DDP, set \
     `torch._dynamo.config.optimize_ddp = \"python_reducer\"` and compile the backward pass with compiled autograd; for \
     FSDP, keep parameters as DTensors that the forward pass gathers (SimpleFSDP)";

fn has_collectives(graph: &Graph) -> bool {
    graph.order().iter().any(|&id| graph.collective(id).is_some())
}

/// Whether no value has a type, though there is something to merge.
fn lacks_types(graph: &Graph) -> bool {
    has_collectives(graph) && graph.order().iter().all(|&id| matches!(graph.type_of(id), Type::Unknown))
}

fn without_types(graph: &Graph) -> String {
    format!(
        "note: graph `{}` has no types, as in `gm.code`, so that no size is known; print it with \
         `gm.print_readable(print_output=False, include_stride=True, include_device=True)`",
        graph.name
    )
}

fn has_dtensors(graph: &Graph) -> bool {
    graph.order().iter().any(|&id| {
        let target = graph.target_of(id);
        let method = target.strip_prefix("method.").or_else(|| target.strip_prefix("torch.distributed.tensor."));
        matches!(graph.node(id).op, Op::Call(_))
            && method.is_some_and(|name| {
                let name = name.rsplit('.').next().unwrap_or(name);
                matches!(name, "redistribute" | "to_local" | "from_local" | "full_tensor" | "distribute_tensor")
            })
    })
}

/// Errors of the library that an option of the command line answers.
pub trait Answered: std::fmt::Display {
    /// The option.
    fn option(&self) -> Option<&'static str>;

    /// The error with the option behind it.
    fn advised(&self) -> String {
        self.option().map_or_else(|| self.to_string(), |option| format!("{self} ({option})"))
    }
}

const GROUPS: &str = "--groups FILE";

impl Answered for LowerError {
    fn option(&self) -> Option<&'static str> {
        matches!(self, Self::GroupSize { .. }).then_some(GROUPS)
    }
}

impl Answered for RanksError {
    fn option(&self) -> Option<&'static str> {
        matches!(self, Self::UnknownMembers { .. }).then_some(GROUPS)
    }
}

impl Answered for TogetherError {
    fn option(&self) -> Option<&'static str> {
        matches!(self, Self::UnknownMembers { .. }).then_some(GROUPS)
    }
}

impl Answered for RunError {
    fn option(&self) -> Option<&'static str> {
        matches!(self, Self::Group { .. }).then_some(GROUPS)
    }
}

impl Answered for EvalError {
    fn option(&self) -> Option<&'static str> {
        match self {
            Self::Group { .. } => Some(GROUPS),
            Self::GraphTooLarge { .. } => Some("--shrink"),
            Self::Side { error, .. } => error.option(),
            _ => None,
        }
    }
}

impl Answered for CostError {
    fn option(&self) -> Option<&'static str> {
        match self {
            Self::NoRates { .. } => Some("--times FILE, which scripts/times_with_pytorch.py writes"),
            Self::NoWork { .. } => Some("--times FILE, as docs/planning.md writes it"),
            _ => None,
        }
    }
}

impl Answered for ShrinkError {
    fn option(&self) -> Option<&'static str> {
        if let Self::Eval(error) = self { error.option() } else { None }
    }
}
