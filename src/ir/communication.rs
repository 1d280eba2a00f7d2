//! Communication that the graph has no word for.
//!
//! [`Collective`](super::ops::Collective) is what passes merge and the checker follows. A call may communicate without
//! being one: an exchange of DTensor, a kernel that reduces on its way, a send, an all-reduce of HLO with a reducer of its
//! own. Such a call is not understood, but it is never taken for a computation: it keeps its order with the launches
//! around it, and ranks are held to it.
//!
//! FX names the operator; HLO text is read once, and what was found there stands in two arguments of the call:
//! `communication` says what moves, `group` between whom.

use super::args::{Arg, Args, Spacing};
use super::entities::{GroupId, NodeId};
use super::graph::Graph;
use super::ops::{Op, ReduceOp};
use super::types::{Dim, Type};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// The argument of a call of HLO that says what moves.
pub const COMMUNICATION: &str = "communication";

/// The argument of a call of HLO that names the group.
pub const GROUP: &str = "group";

/// What the calls of HLO begin with.
const HLO: &str = "hlo-";

/// A call that communicates, or that may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Communication<'a> {
    /// The operator, or what HLO text says of it: `_dtensor.shard_dim_alltoall`, `all-to-all of 2 tensors`.
    pub kind: &'a str,
    /// The name of the group, if an argument says it.
    pub group: Option<&'a str>,
    /// Who takes part.
    pub reach: Reach,
    /// Whether the program states only data as order, as HLO does, so that calls of known groups may change places as
    /// collectives may.
    pub by_data: bool,
}

/// Who takes part in a call that communicates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reach {
    /// All ranks of a group, each with a call like this one.
    Group,
    /// One rank and another, each with a call of its own: a send and a receive.
    Pair,
    /// The world outside: no rank waits for another.
    Host,
    /// Nobody knows: it may not communicate at all.
    Unknown,
}

impl Communication<'_> {
    /// Whether the call must keep its order with every launch of its rank.
    #[must_use]
    pub fn keeps_order(&self) -> bool {
        !self.by_data || self.group.is_none() || self.reach != Reach::Group
    }
}

/// Namespaces of operators that communicate, whatever they are called.
const NAMESPACES: &[&str] = &[
    "c10d",
    "_c10d_functional",
    "c10d_functional",
    "_c10d_functional_autograd",
    "_dtensor",
    "symm_mem",
    "opaque_comm",
];

/// Operators of those namespaces that only compute, or only look: `_c10d_functional._wrap_tensor_autograd` hands its
/// tensor on, `_dtensor.mesh_get_process_group` looks a group up. `symm_mem.memset32_` is none of them: what it writes is
/// memory that other ranks read, and may wait for.
const LOCAL: &[&str] = &["_wrap_tensor_autograd", "mesh_get_process_group"];

/// Namespaces whose operators do not communicate, though some are named after what stands beside them:
/// `fsdp.all_gather_copy_in` copies.
const COMPUTING: &[&str] = &["aten", "prims", "operator", "math", "inductor", "bucketing", "fsdp", "builtins"];

/// Names that mean a message from one rank to another, in any namespace.
const PAIRS: &[&str] = &["send", "recv", "isend", "irecv", "recv_any_source", "batch_p2p_ops", "batch_isend_irecv"];

/// Names that mean communication in any namespace; the last are methods of DTensors.
const NAMES: &[&str] = &["barrier", "monitored_barrier", "opaque_comm", "redistribute", "full_tensor"];

/// Parts of names that mean communication in namespaces that are not known to compute.
const PARTS: &[&str] = &[
    "all_reduce",
    "allreduce",
    "all_gather",
    "allgather",
    "reduce_scatter",
    "reducescatter",
    "all_to_all",
    "alltoall",
    "all2all",
];

/// The communication of a call, by its target and arguments; `None` for a call that is known to compute, or of which
/// nothing says that it communicates.
#[must_use]
pub fn of_call<'a>(target: &'a str, args: &'a Args) -> Option<Communication<'a>> {
    if target.starts_with(HLO) {
        return of_hlo(args);
    }
    let distributed = target.strip_prefix("torch.distributed.");
    let (namespace, rest) = target.split_once('.').unwrap_or(("", target));
    let base = match distributed {
        Some(rest) => rest.rsplit('.').next().unwrap_or(rest),
        None => rest.split('.').next().unwrap_or(rest),
    };
    let named = |list: &[&str]| list.contains(&base);
    let part = || PARTS.iter().any(|part| base.contains(part));
    let in_namespace = distributed.is_some() || NAMESPACES.contains(&namespace);
    let communicates = match namespace {
        _ if named(PAIRS) || named(NAMES) => true,
        _ if in_namespace => !named(LOCAL),
        // Native text calls its own collectives by such names; those are not calls.
        "" => false,
        _ => !COMPUTING.contains(&namespace) && part(),
    };
    let reach = if named(PAIRS) { Reach::Pair } else { Reach::Group };
    let kind = target.strip_suffix(".default").unwrap_or(target);
    // The older operators name a group by a tag and its ranks; as calls they are not understood.
    let group = group_name(args).filter(|_| namespace != "c10d_functional");
    communicates.then_some(Communication { kind, group, reach, by_data: false })
}

/// What the reader of HLO text found.
fn of_hlo(args: &Args) -> Option<Communication<'_>> {
    let group = args.get(GROUP).and_then(Arg::as_str);
    let kind = args.get(COMMUNICATION).and_then(Arg::as_str)?;
    let begins = |words: &[&str]| words.iter().any(|word| kind.starts_with(word));
    let reach = match group {
        _ if begins(&["send", "recv"]) => Reach::Pair,
        _ if begins(&["infeed", "outfeed", "host"]) => Reach::Host,
        Some(_) => Reach::Group,
        None => Reach::Unknown,
    };
    Some(Communication { kind, group, reach, by_data: true })
}

/// The communication of a node that is a call.
#[must_use]
pub fn of(graph: &Graph, id: NodeId) -> Option<Communication<'_>> {
    match graph.node(id).op {
        Op::Call(target) => of_call(graph.text(target), graph.args_of(id)),
        Op::Input | Op::Output | Op::Collective(_) | Op::Wait => None,
    }
}

/// The name of a group among arguments: what a keyword calls so, or the last text that names no reduction.
fn group_name(args: &Args) -> Option<&str> {
    let keyword = ["group_name", "group"].into_iter().find_map(|key| args.get(key)?.as_str());
    let last = || {
        let mut texts = args.positional.iter().filter_map(Arg::as_str);
        texts.rfind(|text| ReduceOp::from_name(text).is_none())
    };
    keyword.or_else(last)
}

/// What a node does that other ranks must meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Launch<'a> {
    /// Each rank of a group calls it.
    In(GroupId),
    /// It is not known who takes part.
    Unknown(Communication<'a>),
}

/// The launches of one graph: its collectives, and the calls that communicate.
pub struct Launches<'g> {
    graph: &'g Graph,
    by_name: HashMap<&'g str, GroupId, FxBuildHasher>,
}

impl<'g> Launches<'g> {
    /// Looks groups up by name; of two with one name, the first.
    #[must_use]
    pub fn of(graph: &'g Graph) -> Self {
        let mut by_name = HashMap::default();
        for (index, group) in graph.groups().iter().enumerate() {
            by_name.entry(&*group.name).or_insert(GroupId::from_index(index));
        }
        Self { graph, by_name }
    }

    /// What a node launches, if anything that another rank waits for.
    #[must_use]
    pub fn get(&self, id: NodeId) -> Option<Launch<'g>> {
        if let Some(collective) = self.graph.collective(id) {
            return Some(Launch::In(collective.group));
        }
        if super::bodies::communicating(self.graph, id).is_some() {
            // Of a branch nobody knows whether it runs, and ranks may run different ones.
            let kind = self.graph.target_of(id);
            let by_data = false;
            return Some(Launch::Unknown(Communication { kind, group: None, reach: Reach::Unknown, by_data }));
        }
        let communication = of(self.graph, id)?;
        match communication.reach {
            Reach::Host => None,
            Reach::Group => {
                let group = communication.group.and_then(|name| self.by_name.get(name));
                Some(group.map_or(Launch::Unknown(communication), |&group| Launch::In(group)))
            }
            Reach::Pair | Reach::Unknown => Some(Launch::Unknown(communication)),
        }
    }
}

/// A call that communicates as all ranks that take part must have it: the operator, its arguments, and of tensors dtype
/// and number of elements.
#[must_use]
pub fn describe(graph: &Graph, id: NodeId) -> String {
    let Some(known) = of(graph, id) else { return String::new() };
    let mut args = graph.args_of(id).clone();
    args.keyword.retain(|(key, _)| !matches!(&**key, COMMUNICATION | "effects") && (!known.by_data || &**key != GROUP));
    let operand = |index: u32| graph.operands(id).get(index as usize).map_or_else(String::new, |&id| amount(graph, id));
    let mut text = format!("{}(", known.kind);
    args.write(&mut text, Spacing::Tight, &operand).expect("text can be written to a string");
    text.push(')');
    text
}

/// How much a value holds: `f32 x 8`.
#[must_use]
pub fn amount(graph: &Graph, id: NodeId) -> String {
    fn of_type(ty: &Type) -> String {
        match ty {
            Type::Tensor(tensor) => match tensor.elements() {
                Some(Dim::Const(elements)) => format!("{} x {elements}", tensor.dtype.short_name()),
                _ => format!("{} x ?", tensor.dtype.short_name()),
            },
            Type::Tuple(parts) => format!("({})", parts.iter().map(of_type).collect::<Vec<_>>().join(", ")),
            _ => "?".to_owned(),
        }
    }
    of_type(graph.type_of(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Arg {
        Arg::Str(text.into())
    }

    fn args(positional: Vec<Arg>) -> Args {
        Args::positional(positional)
    }

    #[test]
    fn operators_that_communicate_are_known_by_namespace_and_by_name() {
        for target in [
            "_dtensor.shard_dim_alltoall.default",
            "_c10d_functional_autograd.all_to_all_single.default",
            "symm_mem.fused_all_gather_matmul.default",
            "symm_mem.memset32_.default",
            "symm_mem.stream_write_value32_.default",
            "c10d.allreduce_.default",
            "torch.distributed.all_reduce",
            "torch.distributed.distributed_c10d.barrier",
            "vllm.all_reduce.default",
            "mylib.fused_allgather_gemm.default",
            "mylib.isend.default",
            "mylib.barrier",
        ] {
            assert!(of_call(target, &Args::default()).is_some(), "{target}");
        }
        for target in [
            "aten.add.Tensor",
            "fsdp.all_gather_copy_in.default",
            "bucketing._pre_bucket_all_gather.default",
            "operator.getitem",
            "mylib.kernel.default",
            "torch.nn.functional.relu",
            "all_gather",
        ] {
            assert!(of_call(target, &Args::default()).is_none(), "{target}");
        }
    }

    #[test]
    fn the_group_is_the_text_that_names_no_reduction() {
        let exchange = args(vec![Arg::Operand(0), Arg::Int(1), Arg::Int(0), text("tp")]);
        assert_eq!(of_call("_dtensor.shard_dim_alltoall.default", &exchange).unwrap().group, Some("tp"));
        let matmul = args(vec![Arg::Operand(0), Arg::Operand(1), text("sum"), Arg::Int(0), text("0")]);
        assert_eq!(of_call("symm_mem.fused_matmul_reduce_scatter.default", &matmul).unwrap().group, Some("0"));
        let unnamed = args(vec![Arg::Operand(0), text("avg")]);
        assert_eq!(of_call("c10d.allreduce_.default", &unnamed).unwrap().group, None);
        let keyword = Args { positional: vec![], keyword: vec![("group_name".into(), text("dp"))] };
        assert_eq!(of_call("mylib.all_reduce.default", &keyword).unwrap().group, Some("dp"));
    }

    #[test]
    fn a_send_is_between_two_ranks() {
        assert_eq!(of_call("c10d.isend.default", &Args::default()).unwrap().reach, Reach::Pair);
        assert_eq!(of_call("c10d.barrier.default", &Args::default()).unwrap().reach, Reach::Group);
    }
}
