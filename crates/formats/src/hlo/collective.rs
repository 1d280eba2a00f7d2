//! Collectives of HLO as collectives of the graph.

use super::attributes::{entry, first_number, is_pipelined};
use super::calls;
use super::error::Fault;
use super::groups::{self, Lists, MAX_DEVICES};
use super::lex::Span;
use super::module::{Instruction, Module};
use super::opcodes::{Doing, doing};
use super::reducers::{self, Reducer};
use bucketeer::ir::{Arg, Collective, CollectiveKind, DType, GlobalRank, Graph, GroupId, Meta, Type, Variant};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Most device numbers that the groups of a module may have together, once they are written out.
const MAX_LISTED: usize = 1 << 24;

/// Most groups of a module that differ.
const MAX_GROUPS: usize = 4096;

/// What the numbers in `replica_groups` count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Mode {
    /// Replicas; each partition by itself.
    Replicas,
    /// Partitions; each replica by itself.
    Partitions,
    /// Replicas, with all their partitions.
    Rows,
    /// Devices: a replica's partitions stand side by side.
    Devices,
}

/// An opcode that moves data between devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Opcode {
    AllReduce,
    AllGather,
    ReduceScatter,
    Permute,
    AllToAll,
}

impl Opcode {
    fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "all-reduce" => Self::AllReduce,
            "all-gather" => Self::AllGather,
            "reduce-scatter" => Self::ReduceScatter,
            "collective-permute" => Self::Permute,
            "all-to-all" => Self::AllToAll,
            _ => return None,
        })
    }
}

/// Whether an instruction of this opcode may be a collective.
pub(super) fn is_candidate(word: &str) -> bool {
    word == "async-start" || Opcode::from_word(word.strip_suffix("-start").unwrap_or(word)).is_some()
}

/// A collective as the graph has it.
pub(super) struct Decoded {
    pub op: Collective,
    /// Arguments behind the tensors.
    pub positional: Vec<Arg>,
    pub keyword: Vec<(Box<str>, Arg)>,
    pub meta: Meta,
    pub result: Type,
    /// Whether a `-done` ends it; else its result is there at once.
    pub starts: bool,
}

/// What collectives of one module have in common.
pub(super) struct Collectives<'t> {
    text: &'t str,
    /// `replica_count` and `num_partitions`, if the header states either.
    devices: Option<(u64, u64)>,
    groups: HashMap<(Mode, &'t str), GroupId, FxBuildHasher>,
    /// The same by the devices they stand for.
    by_members: HashMap<Lists, GroupId, FxBuildHasher>,
    listed: usize,
    reductions: HashMap<usize, Option<Reducer>, FxBuildHasher>,
}

impl<'t> Collectives<'t> {
    pub(super) fn new(text: &'t str, module: &Module) -> Result<Self, Fault> {
        let count = |key: &str| {
            let Some(attribute) = module.header.iter().find(|attribute| attribute.key.of(text) == key) else {
                return Ok(None);
            };
            let value = attribute.value;
            let count = value.of(text).parse::<u64>().ok().filter(|count| (1..=MAX_DEVICES).contains(count));
            let fault =
                || Fault::new(value.at(), format!("`{}` is not a {key}", value.of(text)), "at least 1, at most 2^20");
            count.map(|count| Some((count, value.at()))).ok_or_else(fault)
        };
        let (replicas, partitions) = (count("replica_count")?, count("num_partitions")?);
        let devices = replicas.or(partitions).map(|(_, at)| {
            let (replicas, partitions) = (replicas.map_or(1, |r| r.0), partitions.map_or(1, |p| p.0));
            let fits = replicas * partitions <= MAX_DEVICES;
            let problem = || format!("{replicas} replicas of {partitions} partitions are too many devices");
            if fits { Ok((replicas, partitions)) } else { Err(Fault::new(at, problem(), "at most 2^20 in all")) }
        });
        Ok(Self {
            text,
            devices: devices.transpose()?,
            groups: HashMap::default(),
            by_members: HashMap::default(),
            listed: 0,
            reductions: HashMap::default(),
        })
    }

    /// The collective that an instruction starts; `None` if it starts none, or one that the graph has no word for: over
    /// a reduction of its own, over tensors of a type that the graph lacks, an all-to-all that is not along dimension 0.
    pub(super) fn decode(
        &mut self,
        graph: &mut Graph,
        module: &Module,
        instruction: &Instruction,
        ty: &Type,
        domain: &str,
    ) -> Result<Option<Decoded>, Fault> {
        let text = self.text;
        let word = instruction.opcode.of(text);
        let bare = word.strip_suffix("-start").unwrap_or(word);
        // The instruction that has the attributes.
        let (from, opcode) = if word == "async-start" {
            let callee = module.attribute(text, instruction, "calls").and_then(|value| module.called(value).next());
            let Some(inner) = callee.and_then(|callee| calls::wrapped(text, module, callee)) else { return Ok(None) };
            (inner, Opcode::from_word(inner.opcode.of(text)))
        } else {
            (instruction, Opcode::from_word(bare))
        };
        let (Some(opcode), inputs) = (opcode, module.operands(instruction).len()) else { return Ok(None) };
        let starts = bare.len() != word.len();
        let result = match (ty, opcode) {
            // Of an all-reduce, the start's value is the result alone.
            (ty, Opcode::AllReduce) if word != "async-start" => ty.clone(),
            (Type::Tuple(parts), _) if starts => parts.get(1).cloned().unwrap_or(Type::Unknown),
            (ty, _) => ty.clone(),
        };
        let is_plain = match &result {
            Type::Tensor(_) => inputs == 1,
            Type::Tuple(parts) => parts.len() == inputs && parts.iter().all(|part| part.as_tensor().is_some()),
            _ => false,
        };
        if inputs == 0 || !is_plain {
            return Ok(None);
        }
        let attribute = |key: &str| module.attribute(text, from, key);
        let dim = attribute("dimensions").and_then(|value| first_number(value.of(text)));
        let reducer = attribute("to_apply").and_then(|value| self.reducer(module, module.called(value).next()?));
        let inputs = dtypes(&result);
        let noted = reducer.and_then(|reducer| reducer.noted(inputs.iter().copied()));
        let reduction = reducer.map(|reducer| reducer.op).filter(|_| noted.is_some());
        let coalesced = matches!(result, Type::Tuple(_));
        let mut positional = Vec::new();
        let kind = match (opcode, reduction, dim) {
            (Opcode::AllReduce, Some(op), _) => CollectiveKind::AllReduce { op },
            (Opcode::ReduceScatter, Some(op), Some(dim)) => CollectiveKind::ReduceScatter { op, dim },
            (Opcode::AllGather, _, Some(dim)) => CollectiveKind::AllGather { dim },
            (Opcode::Permute, ..) => CollectiveKind::Permute,
            (Opcode::AllToAll, _, Some(0)) if !coalesced => {
                positional = vec![Arg::List(Vec::new()), Arg::List(Vec::new())];
                CollectiveKind::AllToAll
            }
            _ => return Ok(None),
        };
        let (mode, channel, global) = self.mode(module, from);
        let listed = match opcode {
            Opcode::Permute => {
                let Some(value) = attribute("source_target_pairs") else { return Ok(None) };
                positional.push(self.pairs(value, mode)?);
                None
            }
            _ => attribute("replica_groups"),
        };
        let group = self.group(graph, mode, listed)?;
        let mut keyword: Vec<(Box<str>, Arg)> = Vec::new();
        let mut say = |key: &str, arg| keyword.push((key.into(), arg));
        if listed.is_some_and(|value| value.of(text) == "{}") {
            say("replica_groups", Arg::Str("{}".into()));
        }
        if channel {
            say("channel", Arg::Bool(true));
        }
        if global {
            say("global_ids", Arg::Bool(true));
        }
        if attribute("backend_config").is_some_and(|value| is_pipelined(value.of(text))) {
            say("pipelined", Arg::Bool(true));
        }
        if attribute("constrain_layout").is_some_and(|value| value.of(text) == "true") {
            say("constrain_layout", Arg::Str(instruction.shape.of(text).into()));
        }
        if starts {
            say("split", Arg::Bool(true));
        }
        let frontend = attribute("frontend_attributes").map_or("", |value| value.of(text));
        if let Some(group) = entry(frontend, "_scheduling_group_id") {
            // XLA refuses a module in which one instruction stands in two groups.
            say("scheduling_group", Arg::Str(group.into()));
        }
        if let Some(note) = noted.flatten() {
            say("reducer", Arg::Str(note.into()));
        }
        if !domain.is_empty() {
            say("domain", Arg::Str(domain.into()));
        }
        let op = Collective { kind, group, variant: Variant::Functional, coalesced };
        let meta = self.meta(module, instruction, from);
        Ok(Some(Decoded { op, positional, keyword, meta, result, starts }))
    }

    /// The boundary that a user set, and where the collective comes from.
    fn meta(&self, module: &Module, instruction: &Instruction, from: &Instruction) -> Meta {
        let text = self.text;
        let find = |key: &str| {
            let value = module.attribute(text, from, key).or_else(|| module.attribute(text, instruction, key));
            value.map_or("", |value| value.of(text))
        };
        let frontend = find("frontend_attributes");
        let boundary = |key: &str| entry(frontend, key).map(|value| format!("{key}={value}"));
        let key: Vec<String> = ["combiner_key", "collective_group_key"].into_iter().filter_map(boundary).collect();
        let source = entry(find("metadata"), "op_name").map(Into::into);
        Meta {
            key: (!key.is_empty()).then(|| key.join(", ").into()),
            sources: source.into_iter().collect(),
            sync: entry(frontend, "sync_collective") == Some("true"),
            ..Meta::default()
        }
    }

    /// What the numbers of an instruction's groups count, and whether it has a channel and names all devices.
    fn mode(&self, module: &Module, from: &Instruction) -> (Mode, bool, bool) {
        let text = self.text;
        let attribute = |key: &str| module.attribute(text, from, key).map_or("", |value| value.of(text));
        // XLA takes 0 as none.
        let channel = !matches!(attribute("channel_id"), "" | "0");
        let global = attribute("use_global_device_ids") == "true";
        let opcode = from.opcode.of(text);
        let by_partition = ["collective-permute", "all-to-all", "collective-broadcast", "ragged-all-to-all"];
        let by_partition = by_partition.contains(&opcode.strip_suffix("-start").unwrap_or(opcode));
        let mode = match (channel, global) {
            (false, _) => Mode::Replicas,
            (true, true) => Mode::Devices,
            (true, false) if by_partition => Mode::Partitions,
            (true, false) => Mode::Rows,
        };
        (mode, channel, global)
    }

    /// The reduction that a computation is.
    fn reducer(&mut self, module: &Module, computation: usize) -> Option<Reducer> {
        let text = self.text;
        *self.reductions.entry(computation).or_insert_with(|| reducers::reducer(text, module, computation))
    }

    /// What an instruction that became no collective of the graph moves between devices, in words, and in which group if
    /// that is known. `hidden` is an instruction inside of it that communicates.
    pub(super) fn communication(
        &mut self,
        graph: &mut Graph,
        module: &Module,
        instruction: &Instruction,
        hidden: Option<&Instruction>,
    ) -> Result<Option<(String, Option<GroupId>)>, Fault> {
        let text = self.text;
        let opcode = instruction.opcode.of(text);
        let value = |of: &Instruction, key: &str| module.attribute(text, of, key).map_or("", |value| value.of(text));
        let of_host = value(instruction, "is_host_transfer") == "true";
        let what = match (doing(opcode), hidden) {
            (Doing::Collective, _) => {
                return self
                    .group_of(graph, module, instruction)
                    .map(|group| Some((self.words(module, instruction), group)));
            }
            (_, Some(inner)) => {
                let known = doing(inner.opcode.of(text)) == Doing::Collective;
                let inside = if known { self.words(module, inner) } else { format!("`{}`", inner.opcode.of(text)) };
                let what = format!("{opcode} with {inside} inside");
                let group = if known { self.group_of(graph, module, inner)? } else { None };
                return Ok(Some((what, group)));
            }
            (Doing::Talks, None) if of_host => format!("host {opcode}"),
            (Doing::Talks, None) => opcode.to_owned(),
            (Doing::Unknown, None) => format!("`{opcode}`, which is not known"),
            (Doing::Computes, None) if value(instruction, "custom_call_has_side_effect") == "true" => {
                format!("custom-call of {} with side effects", value(instruction, "custom_call_target"))
            }
            (Doing::Computes, None) => return Ok(None),
        };
        Ok(Some((what, None)))
    }

    /// A collective that the graph has no word for, in words.
    fn words(&mut self, module: &Module, instruction: &Instruction) -> String {
        let text = self.text;
        let opcode = instruction.opcode.of(text);
        let dim = module.attribute(text, instruction, "dimensions").and_then(|value| first_number(value.of(text)));
        match (opcode, module.operands(instruction).len(), dim) {
            ("all-to-all", inputs, None) => format!("all-to-all of {inputs} tensors"),
            ("all-to-all", _, Some(dim)) => format!("all-to-all along dimension {dim}"),
            _ => {
                let callee =
                    module.attribute(text, instruction, "to_apply").and_then(|value| module.called(value).next());
                let unknown = callee.is_some_and(|callee| self.reducer(module, callee).is_none());
                if unknown { format!("{opcode} with a reducer of its own") } else { opcode.to_owned() }
            }
        }
    }

    /// The group of an instruction that moves data. A permute without pairs that can be read is among all.
    fn group_of(
        &mut self,
        graph: &mut Graph,
        module: &Module,
        instruction: &Instruction,
    ) -> Result<Option<GroupId>, Fault> {
        let (mode, ..) = self.mode(module, instruction);
        let listed = module.attribute(self.text, instruction, "replica_groups");
        self.group(graph, mode, listed).map(Some)
    }

    fn pairs(&self, value: Span, mode: Mode) -> Result<Arg, Fault> {
        let pairs = groups::pairs(value.of(self.text)).map_err(|fault| fault.shifted(value.at()))?;
        self.in_reach(value, mode, pairs.iter().flat_map(|&(a, b)| [a, b]))?;
        let pair = |&(from, to): &(u32, u32)| Arg::List(vec![Arg::Int(from.into()), Arg::Int(to.into())]);
        Ok(Arg::List(pairs.iter().map(pair).collect()))
    }

    /// Refuses numbers that the header leaves no room for.
    fn in_reach(&self, value: Span, mode: Mode, ids: impl Iterator<Item = u32>) -> Result<(), Fault> {
        let Some((replicas, partitions)) = self.devices else { return Ok(()) };
        let (count, what) = match mode {
            Mode::Replicas | Mode::Rows => (replicas, "replicas"),
            Mode::Partitions => (partitions, "partitions"),
            Mode::Devices => (replicas * partitions, "devices"),
        };
        match ids.max().filter(|&id| u64::from(id) >= count) {
            None => Ok(()),
            Some(id) => {
                let problem = format!("{id} is named here, but the module has {count} {what}");
                Err(Fault::new(value.at(), problem, format!("numbers below {count}")))
            }
        }
    }

    /// The group that `replica_groups` says; the same for all spellings of the same devices.
    fn group(&mut self, graph: &mut Graph, mode: Mode, value: Option<Span>) -> Result<GroupId, Fault> {
        let text: &'t str = self.text;
        let written = value.map_or("{}", |value| value.of(text));
        if let Some(&known) = self.groups.get(&(mode, written)) {
            return Ok(known);
        }
        let at = value.unwrap_or_default();
        let lists = groups::replica_groups(written).map_err(|fault| fault.shifted(at.at()))?;
        self.in_reach(at, mode, lists.iter().flatten().copied())?;
        let lists = self.devices_of(lists, mode);
        self.listed += lists.iter().map(Vec::len).sum::<usize>();
        if self.listed > MAX_LISTED {
            let problem = format!("the module's groups name more than {MAX_LISTED} devices in all");
            return Err(Fault::new(at.at(), problem, "fewer groups"));
        }
        let next = self.by_members.len();
        if next == MAX_GROUPS {
            let problem = format!("the module has more than {MAX_GROUPS} different groups");
            return Err(Fault::new(at.at(), problem, "fewer"));
        }
        let group = match self.by_members.get(&lists) {
            Some(&known) => known,
            None => {
                let name = if written == "{}" { "all" } else { written };
                let taken = graph.groups().iter().any(|group| &*group.name == name);
                let name = if taken { format!("{name} #{next}") } else { name.to_owned() };
                let size = lists.first().map(|first| first.len() as u32);
                let size = size.filter(|&size| lists.iter().all(|list| list.len() == size as usize));
                let id = graph.intern_group(&name, size);
                let ranks = |list: &Vec<u32>| list.iter().map(|&id| GlobalRank(id)).collect();
                graph.group_mut(id).members = lists.iter().map(ranks).collect();
                self.by_members.insert(lists, id);
                id
            }
        };
        self.groups.insert((mode, written), group);
        Ok(group)
    }

    /// Groups of devices, for groups of what the mode counts. Empty stays empty where the header says no counts.
    fn devices_of(&self, lists: Lists, mode: Mode) -> Lists {
        let Some((replicas, partitions)) = self.devices else { return lists };
        let (replicas, partitions) = (replicas as u32, partitions as u32);
        let lists = match (mode, lists.is_empty()) {
            (_, false) => lists,
            (Mode::Replicas | Mode::Rows, true) => vec![(0..replicas).collect()],
            (Mode::Partitions, true) => vec![(0..partitions).collect()],
            (Mode::Devices, true) => vec![(0..replicas * partitions).collect()],
        };
        let each = |list: &Vec<u32>, id: &dyn Fn(u32) -> u32| list.iter().map(|&of| id(of)).collect::<Vec<u32>>();
        match mode {
            Mode::Devices => lists,
            Mode::Replicas => (0..partitions)
                .flat_map(|p| lists.iter().map(move |list| (list, p)))
                .map(|(list, p)| each(list, &|of| of * partitions + p))
                .collect(),
            Mode::Partitions => (0..replicas)
                .flat_map(|r| lists.iter().map(move |list| (list, r)))
                .map(|(list, r)| each(list, &|of| r * partitions + of))
                .collect(),
            Mode::Rows => lists
                .iter()
                .map(|list| list.iter().flat_map(|&of| (0..partitions).map(move |p| of * partitions + p)).collect())
                .collect(),
        }
    }
}

/// The dtypes of a result's tensors.
fn dtypes(ty: &Type) -> Vec<DType> {
    match ty {
        Type::Tensor(tensor) => vec![tensor.dtype],
        Type::Tuple(parts) => parts.iter().flat_map(dtypes).collect(),
        _ => Vec::new(),
    }
}
