//! How long each piece of memory lives, by place in the program.

use super::Alive;
use crate::ir::operators::{Alias, element_index};
use crate::ir::{EffectTable, Graph, Memory, NodeId, Op, Type, Variant};
use crate::passes::liveness::value_bytes;

/// Which launches a wait waits for, while the nodes of a graph go by in program order. Launches are numbered so.
pub(in crate::passes) struct Arrivals {
    launches: u32,
    /// By arena index: one more than the launch whose result the value is, or a part of it.
    launch_of: Vec<u32>,
    memory: Memory,
    /// By alias class: one more than the last launch that writes it in place.
    in_place: Vec<u32>,
}

impl Arrivals {
    pub(in crate::passes) fn new(graph: &Graph, effects: &EffectTable) -> Self {
        let launch_of = vec![0; graph.arena_len()];
        let in_place = vec![0; graph.arena_len()];
        Self { launches: 0, launch_of, memory: Memory::of(graph, effects), in_place }
    }

    /// Goes by a launch.
    pub(in crate::passes) fn launch(&mut self, graph: &Graph, effects: &EffectTable, id: NodeId) {
        self.launches += 1;
        self.launch_of[id.index()] = self.launches;
        // What it writes in place may be waited for under any name of that memory.
        for written in effects.get(id).writes.iter().filter_map(|&at| graph.operands(id).get(at as usize)) {
            self.in_place[self.memory.class[written.index()] as usize] = self.launches;
        }
    }

    /// Goes by a call: a part of what a launch makes, or a view of it, is waited for as the launch is.
    pub(in crate::passes) fn call(&mut self, graph: &Graph, id: NodeId) {
        if let Some(first) = graph.operands(id).first() {
            self.launch_of[id.index()] = self.launch_of[first.index()];
        }
    }

    /// The launches that a wait waits for by one of its operands.
    pub(in crate::passes) fn waited_by(&self, operand: NodeId) -> impl Iterator<Item = usize> + use<> {
        let named = self.launch_of[operand.index()];
        let written = self.in_place[self.memory.class[operand.index()] as usize];
        [named, written].into_iter().filter_map(|launch| launch.checked_sub(1)).map(|launch| launch as usize)
    }
}

/// The launches of a graph in program order, each with its first wait.
fn launches(graph: &Graph, effects: &EffectTable) -> Vec<(NodeId, Option<NodeId>)> {
    let mut arrivals = Arrivals::new(graph, effects);
    let mut launches: Vec<(NodeId, Option<NodeId>)> = Vec::new();
    for &id in graph.order() {
        match graph.node(id).op {
            Op::Input | Op::Output => {}
            Op::Collective(_) => {
                arrivals.launch(graph, effects, id);
                launches.push((id, None));
            }
            Op::Wait => {
                for launch in graph.operands(id).iter().flat_map(|&operand| arrivals.waited_by(operand)) {
                    launches[launch].1.get_or_insert(id);
                }
            }
            Op::Call(_) => arrivals.call(graph, id),
        }
    }
    launches
}

/// By arena index: the node that makes a value's memory; `None` for the caller's.
pub(in crate::passes) fn storages(graph: &Graph, effects: &EffectTable) -> Vec<Option<NodeId>> {
    let mut storage: Vec<Option<NodeId>> = vec![None; graph.arena_len()];
    // By arena index: whether the value is a result of several parts that have memory of their own.
    let mut parted = vec![false; graph.arena_len()];
    for &id in graph.order() {
        let operands = graph.operands(id);
        let of = |operand: Option<&NodeId>| operand.and_then(|operand: &NodeId| storage[operand.index()]);
        let (found, apart) = match graph.node(id).op {
            Op::Input | Op::Output => (None, false),
            Op::Wait => (of(operands.first()), operands.first().is_some_and(|list| parted[list.index()])),
            Op::Collective(collective) => match (collective.variant, effects.get(id).alias) {
                (Variant::Functional, _) => (Some(id), collective.coalesced),
                (_, Alias::Of(index)) => (of(operands.get(index as usize)), false),
                _ => (Some(id), true),
            },
            Op::Call(_) => match effects.get(id).alias {
                _ if element_index(graph, id).is_some()
                    && operands.first().is_some_and(|from| parted[from.index()]) =>
                {
                    (Some(id), false)
                }
                Alias::Of(index) => (of(operands.get(index as usize)), false),
                Alias::Fresh | Alias::Any | Alias::Written => (Some(id), !matches!(graph.type_of(id), Type::Tensor(_))),
            },
        };
        storage[id.index()] = found;
        parted[id.index()] = apart;
    }
    storage
}

/// How long a piece of memory lives: places in the program, both ends included. `order().len()` is behind the last node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::passes) struct Life {
    pub(in crate::passes) bytes: u64,
    pub(in crate::passes) from: u32,
    pub(in crate::passes) last: u32,
    /// The last place at which something other than a launch uses it; that of `from` if nothing does.
    pub(in crate::passes) last_besides_launches: u32,
}

/// The memory of a graph.
pub(in crate::passes) struct Lives {
    /// By arena index: the node that makes a value's memory; `None` for the caller's.
    pub(in crate::passes) storage: Vec<Option<NodeId>>,
    /// By arena index of the node that makes it.
    pub(in crate::passes) life: Vec<Life>,
    /// Pieces whose size is not known; they count as nothing.
    pub(in crate::passes) unknown: usize,
    /// How many nodes the program has.
    pub(in crate::passes) places: usize,
}

impl Lives {
    pub(in crate::passes) fn of(graph: &Graph) -> Self {
        let effects = EffectTable::of(graph);
        let launches = launches(graph, &effects);
        Self::with(graph, &effects, launches.into_iter())
    }

    /// The memory of a graph whose launches, each with its first wait, are known.
    pub(in crate::passes) fn with(
        graph: &Graph,
        effects: &EffectTable,
        launches: impl Iterator<Item = (NodeId, Option<NodeId>)>,
    ) -> Self {
        let order = graph.order();
        let positions = graph.positions();
        let mut lives = Self {
            storage: storages(graph, effects),
            life: vec![Life::default(); graph.arena_len()],
            unknown: 0,
            places: order.len(),
        };
        for (at, &id) in order.iter().enumerate() {
            lives.touch(id, at as u32, true);
            // Outputs live to the end.
            let until = if graph.node(id).op == Op::Output { order.len() } else { at };
            let launches = matches!(graph.node(id).op, Op::Collective(_));
            graph.operands(id).iter().for_each(|&operand| lives.touch(operand, until as u32, !launches));
        }
        for (id, wait) in launches {
            let until = wait.map_or(order.len() as u32, |wait| positions[wait.index()]);
            lives.touch(id, until, false);
            graph.operands(id).iter().for_each(|&operand| lives.touch(operand, until, false));
        }
        for (at, &id) in order.iter().enumerate() {
            if lives.storage[id.index()] != Some(id) {
                continue;
            }
            let bytes = match graph.type_of(id) {
                // What is taken out of it has memory of its own.
                Type::Tuple(_) => Some(0),
                _ => value_bytes(graph, id),
            };
            lives.unknown += usize::from(bytes.is_none());
            let from = match element_index(graph, id) {
                Some(_) => graph.operands(id).first().map_or(at as u32, |whole| positions[whole.index()]),
                None => at as u32,
            };
            let life = &mut lives.life[id.index()];
            (life.bytes, life.from) = (bytes.unwrap_or(0), from);
        }
        lives
    }

    fn touch(&mut self, id: NodeId, at: u32, counts_besides_launches: bool) {
        if let Some(owner) = self.storage[id.index()] {
            let life = &mut self.life[owner.index()];
            life.last = at.max(life.last);
            if counts_besides_launches {
                life.last_besides_launches = at.max(life.last_besides_launches);
            }
        }
    }

    /// The life of a value's memory; `None` for the caller's.
    pub(in crate::passes) fn of_value(&self, id: NodeId) -> Option<Life> {
        self.storage[id.index()].map(|owner| self.life[owner.index()])
    }

    /// By place, and one more: the bytes that are alive there.
    pub(in crate::passes) fn by_place(&self, graph: &Graph) -> Vec<i128> {
        let mut alive = vec![0i128; self.places + 2];
        for &id in graph.order().iter().filter(|id| self.storage[id.index()] == Some(**id)) {
            let Life { bytes, from, last, .. } = self.life[id.index()];
            alive[from as usize] += i128::from(bytes);
            alive[last as usize + 1] -= i128::from(bytes);
        }
        let mut sum = 0;
        for place in &mut alive {
            sum += *place;
            *place = sum;
        }
        alive.truncate(self.places + 1);
        alive
    }

    pub(in crate::passes) fn peak(&self, graph: &Graph) -> Alive {
        let (mut most, mut place) = (0, None);
        for (at, bytes) in self.by_place(graph).into_iter().enumerate() {
            if bytes > most {
                (most, place) = (bytes, graph.order().get(at).copied());
            }
        }
        Alive { peak_bytes: u64::try_from(most).unwrap_or(u64::MAX), peak_at: place, unknown: self.unknown }
    }
}
