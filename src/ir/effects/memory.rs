//! Effects of all nodes of a graph, and which values may share storage.

use crate::ir::entities::{Name, NodeId};
use crate::ir::graph::Graph;
use crate::ir::operators::Lookup;
use crate::ir::operators::{self, Alias, Effects, Fence, Placement};
use crate::ir::ops::{Op, Variant};

/// Which values may share storage, and what happens to it.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Alias class of each node, by arena index: the arena index of one of its nodes.
    pub class: Vec<u32>,
    /// Whether anything writes the class.
    pub written: Vec<bool>,
    /// Whether the class is returned, or handed to an operator that may keep it, or that sees how it lies.
    pub escapes: Vec<bool>,
    /// Whether an operator sees where in memory a value of the class begins, or more of its memory than it shows.
    pub seen: Vec<bool>,
    /// Whether the sizes or strides of a value of the class change in place, so that its type does not hold throughout.
    pub restated: Vec<bool>,
}

/// Effects of every node in order, computed once per distinct kind of call.
pub(crate) struct EffectTable {
    /// Index into `distinct`, by arena index.
    index: Vec<u32>,
    distinct: Vec<Effects>,
}

impl EffectTable {
    pub fn of(graph: &Graph) -> Self {
        let mut known = hashbrown::HashMap::<_, u32, rustc_hash::FxBuildHasher>::default();
        let mut table = Self { index: vec![0; graph.arena_len()], distinct: Vec::new() };
        let mut alone = Vec::new();
        let lookup = Lookup::new(&graph.operators);
        for &id in graph.order() {
            let node = graph.node(id);
            let key = (node.op, node.args, operators::converts(graph, id));
            let index = known.get(&key).copied().unwrap_or_else(|| {
                let effects = operators::effects_with(&lookup, graph, id);
                let index = table.distinct.len() as u32;
                // What is assumed of a call depends on the types of its operands.
                if effects.assumed && graph.operands(id).is_empty() {
                    alone.push(id);
                } else if !effects.assumed {
                    known.insert(key, index);
                }
                table.distinct.push(effects);
                index
            });
            table.index[id.index()] = index;
        }
        table.fence(graph, &alone);
        table
    }

    /// An unknown call that takes nothing and that nothing reads can only be there for what it does to the world.
    fn fence(&mut self, graph: &Graph, alone: &[NodeId]) {
        if alone.is_empty() {
            return;
        }
        let mut is_read = vec![false; graph.arena_len()];
        for &id in graph.order() {
            graph.operands(id).iter().for_each(|operand| is_read[operand.index()] = true);
        }
        for &id in alone.iter().filter(|id| !is_read[id.index()]) {
            let effects = &mut self.distinct[self.index[id.index()] as usize];
            (effects.fence, effects.sets_mode) = (Fence::Full, true);
        }
    }

    /// By arena index: whether the effects are assumed; empty if none are.
    pub(super) fn assumed(&self, graph: &Graph) -> Vec<bool> {
        if !self.any(|effects| effects.assumed) {
            return Vec::new();
        }
        let mut assumed = vec![false; graph.arena_len()];
        graph.order().iter().for_each(|&id| assumed[id.index()] = self.get(id).assumed);
        assumed
    }

    /// Whether that is true of any node's effects.
    pub(super) fn any(&self, is: impl Fn(&Effects) -> bool) -> bool {
        self.distinct.iter().any(is)
    }

    pub fn get(&self, id: NodeId) -> &Effects {
        &self.distinct[self.index[id.index()] as usize]
    }
}

/// Union-find over arena indices, for alias classes.
fn find(parent: &mut [u32], mut at: u32) -> u32 {
    while parent[at as usize] != at {
        parent[at as usize] = parent[parent[at as usize] as usize];
        at = parent[at as usize];
    }
    at
}

/// By arena index: whether a node makes a list of tensors with memory of their own, or waits for one, and only single
/// elements are taken of it. Empty if none does.
fn parted(graph: &Graph) -> Vec<bool> {
    let is_list = |id: NodeId| {
        graph.waits_for_list(id)
            || graph.collective(id).is_some_and(|c| c.coalesced && c.variant == Variant::Functional)
    };
    let mut parted = Vec::new();
    if !graph.order().iter().any(|&id| is_list(id)) {
        return parted;
    }
    parted.resize(graph.arena_len(), false);
    for &id in graph.order() {
        parted[id.index()] = is_list(id);
        if operators::element_index(graph, id).is_none() {
            graph.operands(id).iter().for_each(|operand| parted[operand.index()] = false);
        }
    }
    parted
}

impl Memory {
    pub fn of(graph: &Graph, effects: &EffectTable) -> Self {
        Self::classes(graph, effects, &parted(graph))
    }

    /// With all tensors of a coalesced result in one class, as what one launch makes and one wait makes valid.
    pub fn with_whole_lists(graph: &Graph, effects: &EffectTable) -> Self {
        Self::classes(graph, effects, &[])
    }

    fn classes(graph: &Graph, effects: &EffectTable, parted: &[bool]) -> Self {
        let mut class: Vec<u32> = (0..graph.arena_len() as u32).collect();
        let mut elements = hashbrown::HashMap::<(NodeId, u32), NodeId, rustc_hash::FxBuildHasher>::default();
        let mut attributes = hashbrown::HashMap::<Name, NodeId, rustc_hash::FxBuildHasher>::default();
        for &id in graph.order() {
            let operands = graph.operands(id);
            // Tensors of a list are apart.
            let list = operands.first().copied().filter(|list| parted.get(list.index()) == Some(&true));
            if let (Some(list), Some(index)) = (list, operators::element_index(graph, id)) {
                // What was waited for in a list is what it was.
                let waited = graph.operands(list).get(index as usize).filter(|_| graph.waits_for_list(list));
                let first = *elements.entry((list, index)).or_insert(waited.copied().unwrap_or(id));
                class[id.index()] = find(&mut class, first.index() as u32);
                continue;
            }
            if parted.get(id.index()) == Some(&true) {
                continue;
            }
            let effect = effects.get(id);
            let mut share = |operand: NodeId, with: NodeId| {
                let (a, b) = (find(&mut class, operand.index() as u32), find(&mut class, with.index() as u32));
                class[a.max(b) as usize] = a.min(b);
            };
            match effect.alias {
                Alias::Fresh => {}
                Alias::Of(index) => operands.get(index as usize).into_iter().for_each(|&operand| share(operand, id)),
                Alias::Written => {
                    let written = effect.writes.iter().filter_map(|&index| operands.get(index as usize));
                    written.for_each(|&operand| share(operand, id));
                }
                Alias::Any if effect.assumed => {
                    let given = effect.writes.iter().filter_map(|&index| operands.get(index as usize));
                    given.for_each(|&operand| share(operand, id));
                }
                Alias::Any => operands.iter().for_each(|&operand| share(operand, id)),
            }
            // An attribute of the module is one memory, however often it is named.
            if let Op::Call(target) = graph.node(id).op
                && operands.is_empty()
                && graph.text(target).starts_with("self.")
            {
                share(*attributes.entry(target).or_insert(id), id);
            }
        }
        for index in 0..class.len() as u32 {
            class[index as usize] = find(&mut class, index);
        }
        let mut memory = Self {
            written: vec![false; class.len()],
            escapes: vec![false; class.len()],
            seen: vec![false; class.len()],
            restated: vec![false; class.len()],
            class,
        };
        for &id in graph.order() {
            let effect = effects.get(id);
            let operands = graph.operands(id);
            for &index in &effect.writes {
                if let Some(&operand) = operands.get(index as usize) {
                    memory.written[memory.class[operand.index()] as usize] = true;
                    memory.restated[memory.class[operand.index()] as usize] |= effect.restates;
                }
            }
            if graph.node(id).op == Op::Output || effect.fence == Fence::Full || effect.sees > Placement::Nothing {
                for &operand in operands {
                    let class = memory.class[operand.index()] as usize;
                    memory.escapes[class] = true;
                    memory.seen[class] |= effect.sees == Placement::Storage;
                }
            }
        }
        memory
    }
}
