//! Graphs as JSON, for machines. `from_json(&to_json(g)) == g` for every well-formed graph.
//!
//! Types and argument lists are texts, as the native form has them; operands are named in the arguments. A version
//! or field that is not known is an error, so that nothing is dropped in silence.

use super::entities::{GroupId, NodeId, RegionId};
use super::graph::{ControlEdge, Graph, Meta, ProcessGroup, Region, RegionKind, Strength};
use super::ops::{Collective, CollectiveKind, GlobalRank, Op, ReduceOp, Variant};
use super::text::{Parser, Printer, TextError, is_name};
use super::types::{Type, TypeError};
use serde::{Deserialize, Serialize};

const FORMAT: &str = "bucketeer-graph";
const VERSION: u32 = 1;

/// Why a text is not a graph in JSON.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field holds")]
#[non_exhaustive]
pub enum JsonError {
    /// Not JSON, or not of this shape.
    #[error("the JSON does not hold a graph: {0}")]
    Shape(#[from] serde_json::Error),
    #[error("found format `{found}`, expected `{FORMAT}`")]
    Format { found: String },
    #[error("found version {found}, expected {VERSION}")]
    Version { found: u32 },
    #[error("found the name `{name}`, expected letters, digits and `_`")]
    Name { name: String },
    #[error("two nodes are named `{name}`; expected a name for each")]
    NameTwice { name: String },
    #[error("{whose}: found {what} {index}, expected one below {count}")]
    Index { whose: String, what: &'static str, index: usize, count: usize },
    #[error("region {index} stands in {parent}, expected a region before it")]
    RegionParent { index: usize, parent: usize },
    #[error("an order edge names `{name}`, expected a node")]
    NoNode { name: String },
    #[error("`{node}`: {error}")]
    Type { node: String, error: TypeError },
    #[error("arguments of `{node}`: {error}")]
    Args { node: String, error: TextError },
    #[error("group `{group}` is stated twice, expected once for each size")]
    GroupTwice { group: String },
    #[error("`{node}` works with `{found}`, expected a reduction: sum, avg, product, min, max, band, bor or bxor")]
    ReduceOp { node: String, found: String },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    version: u32,
    name: String,
    groups: Vec<GroupRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    hints: Vec<HintRecord>,
    /// Without the root, which is region 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    regions: Vec<RegionRecord>,
    nodes: Vec<NodeRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    order_edges: Vec<EdgeRecord>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HintRecord {
    symbol: Box<str>,
    value: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupRecord {
    name: Box<str>,
    size: Option<u32>,
    members: Vec<Vec<u32>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RegionRecord {
    parent: usize,
    kind: RegionWord,
    label: Box<str>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RegionWord {
    Loop,
    Branch,
    Called,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeRecord {
    name: String,
    op: OpRecord,
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    ty: Option<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    args: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    region: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    sources: Vec<Box<str>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    members: Vec<Box<str>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pending: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields so")]
const fn is_zero(value: &usize) -> bool {
    *value == 0
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OpRecord {
    Input,
    Output,
    Wait,
    Call(String),
    Collective(CollectiveRecord),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CollectiveRecord {
    kind: KindRecord,
    group: usize,
    #[serde(default, skip_serializing_if = "VariantWord::is_functional")]
    variant: VariantWord,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    coalesced: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum KindRecord {
    AllGather { dim: u32 },
    ReduceScatter { op: String, dim: u32 },
    AllReduce { op: String },
    Broadcast { root: u32 },
    Reduce { op: String, root: u32 },
    AllToAll,
    Permute,
}

#[derive(Serialize, Deserialize, Default, PartialEq)]
#[serde(rename_all = "snake_case")]
enum VariantWord {
    #[default]
    Functional,
    InPlace,
    Out,
}

impl VariantWord {
    fn is_functional(&self) -> bool {
        *self == Self::Functional
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EdgeRecord {
    before: String,
    after: String,
    soft: bool,
}

/// The JSON form of a graph.
#[must_use]
pub fn to_json(graph: &Graph) -> String {
    let mut printer = Printer::new(graph);
    let name = |id| graph.name_of(id).to_owned();
    let document = Document {
        format: FORMAT.to_owned(),
        version: VERSION,
        name: graph.name.clone(),
        groups: graph.groups().iter().map(group_record).collect(),
        hints: graph.hints.iter().map(|(symbol, &value)| HintRecord { symbol: symbol.clone(), value }).collect(),
        regions: graph.regions().iter().skip(1).map(region_record).collect(),
        nodes: graph.order().iter().map(|&id| node_record(graph, &mut printer, id)).collect(),
        order_edges: graph
            .control
            .iter()
            .map(|e| EdgeRecord { before: name(e.before), after: name(e.after), soft: e.strength == Strength::Soft })
            .collect(),
    };
    let mut text = serde_json::to_string_pretty(&document).expect("strings and numbers always serialize");
    text.push('\n');
    text
}

fn group_record(group: &ProcessGroup) -> GroupRecord {
    let members = group.members.iter().map(|list| list.iter().map(|rank| rank.0).collect()).collect();
    GroupRecord { name: group.name.clone(), size: group.size, members }
}

fn region_record(region: &Region) -> RegionRecord {
    let kind = match region.kind {
        RegionKind::Loop => RegionWord::Loop,
        RegionKind::Branch => RegionWord::Branch,
        RegionKind::Called | RegionKind::Root => RegionWord::Called,
    };
    RegionRecord { parent: region.parent.index(), kind, label: region.label.clone() }
}

fn node_record(graph: &Graph, printer: &mut Printer<'_>, id: NodeId) -> NodeRecord {
    let op = match graph.node(id).op {
        Op::Input => OpRecord::Input,
        Op::Output => OpRecord::Output,
        Op::Wait => OpRecord::Wait,
        Op::Call(target) => OpRecord::Call(graph.text(target).to_owned()),
        Op::Collective(collective) => OpRecord::Collective(collective_record(collective)),
    };
    let ty = graph.type_of(id);
    let meta = graph.meta_of(id).clone();
    NodeRecord {
        name: graph.name_of(id).to_owned(),
        op,
        ty: (*ty != Type::Unknown).then(|| ty.to_string()),
        args: printer.args_text(id),
        region: graph.node(id).region.index(),
        key: meta.key,
        sources: meta.sources,
        members: meta.members,
        pending: meta.pending,
    }
}

fn collective_record(collective: Collective) -> CollectiveRecord {
    let word = |op: ReduceOp| op.name().to_owned();
    CollectiveRecord {
        kind: match collective.kind {
            CollectiveKind::AllGather { dim } => KindRecord::AllGather { dim },
            CollectiveKind::ReduceScatter { op, dim } => KindRecord::ReduceScatter { op: word(op), dim },
            CollectiveKind::AllReduce { op } => KindRecord::AllReduce { op: word(op) },
            CollectiveKind::Broadcast { root } => KindRecord::Broadcast { root },
            CollectiveKind::Reduce { op, root } => KindRecord::Reduce { op: word(op), root },
            CollectiveKind::AllToAll => KindRecord::AllToAll,
            CollectiveKind::Permute => KindRecord::Permute,
        },
        group: collective.group.index(),
        variant: match collective.variant {
            Variant::Functional => VariantWord::Functional,
            Variant::InPlace => VariantWord::InPlace,
            Variant::Out => VariantWord::Out,
        },
        coalesced: collective.coalesced,
    }
}

/// Reads a graph from JSON.
///
/// # Errors
/// [`JsonError`] at the first mistake.
pub fn from_json(text: &str) -> Result<Graph, JsonError> {
    let document: Document = serde_json::from_str(text)?;
    if document.format != FORMAT {
        return Err(JsonError::Format { found: document.format });
    }
    if document.version != VERSION {
        return Err(JsonError::Version { found: document.version });
    }
    let mut parser = Parser::new("");
    let graph = &mut parser.graph;
    graph.name.clone_from(&document.name);
    graph.hints.extend(document.hints.iter().map(|hint| (hint.symbol.clone(), hint.value)));
    for group in &document.groups {
        read_group(graph, group)?;
    }
    for region in &document.regions {
        let (index, parent) = (graph.regions().len(), region.parent);
        if parent >= index {
            return Err(JsonError::RegionParent { index, parent });
        }
        let kind = match region.kind {
            RegionWord::Loop => RegionKind::Loop,
            RegionWord::Branch => RegionKind::Branch,
            RegionWord::Called => RegionKind::Called,
        };
        graph.add_region(Region { parent: RegionId::from_index(parent), kind, label: region.label.clone() });
    }
    for node in &document.nodes {
        read_node(&mut parser, node)?;
    }
    for edge in &document.order_edges {
        let find = |name: &String| parser.find(name).ok_or_else(|| JsonError::NoNode { name: name.clone() });
        let (before, after) = (find(&edge.before)?, find(&edge.after)?);
        let strength = if edge.soft { Strength::Soft } else { Strength::Hard };
        parser.graph.control.push(ControlEdge { before, after, strength });
    }
    Ok(parser.graph)
}

fn read_group(graph: &mut Graph, group: &GroupRecord) -> Result<(), JsonError> {
    let before = graph.groups().len();
    let id = graph.intern_group(&group.name, group.size);
    if id.index() < before {
        return Err(JsonError::GroupTwice { group: group.name.to_string() });
    }
    let members = group.members.iter().map(|list| list.iter().copied().map(GlobalRank).collect());
    graph.group_mut(id).members = members.collect();
    Ok(())
}

fn read_node<'a>(parser: &mut Parser<'a>, record: &'a NodeRecord) -> Result<(), JsonError> {
    let node = || record.name.clone();
    if !is_name(&record.name) {
        return Err(JsonError::Name { name: node() });
    }
    if parser.find(&record.name).is_some() {
        return Err(JsonError::NameTwice { name: node() });
    }
    let (args, operands) = parser.read_args(&record.args).map_err(|error| JsonError::Args { node: node(), error })?;
    let graph = &mut parser.graph;
    let op = read_op(graph, record)?;
    let ty = record.ty.as_deref().map_or(Ok(Type::Unknown), Type::parse);
    let ty = ty.map_err(|error| JsonError::Type { node: node(), error })?;
    if record.region >= graph.regions().len() {
        let (index, count) = (record.region, graph.regions().len());
        return Err(JsonError::Index { whose: node(), what: "region", index, count });
    }
    let (name, ty, args) = (graph.intern(&record.name), graph.intern_type(ty), graph.intern_args(args));
    let id = graph.push(op, name, ty, args, &operands);
    graph.node_mut(id).region = RegionId::from_index(record.region);
    let meta = Meta {
        key: record.key.clone(),
        sources: record.sources.clone(),
        members: record.members.clone(),
        pending: record.pending,
        // A mark of XLA for its own combiners, which read HLO text.
        sync: false,
    };
    graph.set_meta(id, meta);
    parser.define(id, 0);
    Ok(())
}

fn read_op(graph: &mut Graph, record: &NodeRecord) -> Result<Op, JsonError> {
    let reduce = |found: &String| {
        ReduceOp::from_name(found)
            .ok_or_else(|| JsonError::ReduceOp { node: record.name.clone(), found: found.clone() })
    };
    Ok(match &record.op {
        OpRecord::Input => Op::Input,
        OpRecord::Output => Op::Output,
        OpRecord::Wait => Op::Wait,
        OpRecord::Call(target) => Op::Call(graph.intern(target)),
        OpRecord::Collective(collective) => {
            let (index, count) = (collective.group, graph.groups().len());
            if index >= count {
                return Err(JsonError::Index { whose: record.name.clone(), what: "group", index, count });
            }
            let kind = match &collective.kind {
                KindRecord::AllGather { dim } => CollectiveKind::AllGather { dim: *dim },
                KindRecord::ReduceScatter { op, dim } => CollectiveKind::ReduceScatter { op: reduce(op)?, dim: *dim },
                KindRecord::AllReduce { op } => CollectiveKind::AllReduce { op: reduce(op)? },
                KindRecord::Broadcast { root } => CollectiveKind::Broadcast { root: *root },
                KindRecord::Reduce { op, root } => CollectiveKind::Reduce { op: reduce(op)?, root: *root },
                KindRecord::AllToAll => CollectiveKind::AllToAll,
                KindRecord::Permute => CollectiveKind::Permute,
            };
            let variant = match collective.variant {
                VariantWord::Functional => Variant::Functional,
                VariantWord::InPlace => Variant::InPlace,
                VariantWord::Out => Variant::Out,
            };
            Op::Collective(Collective {
                kind,
                group: GroupId::from_index(index),
                variant,
                coalesced: collective.coalesced,
            })
        }
    })
}
