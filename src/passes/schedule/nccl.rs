//! What NCCL expects a message to take: the formulas of its tuner.
//!
//! Source: `src/graph/tuning.cc` of NCCL, master of June 2026. For each algorithm and protocol the time is a latency plus the
//! bytes over a bandwidth, and the fastest is taken, as NCCL does. Latencies are microseconds, bandwidths GB/s (1e9 bytes).
//! Only sums, products and quotients of floating point are taken, which are the same on every machine.
//!
//! # What the formulas are not told
//!
//! NCCL reads channels and speeds off the machine. Here they are what the links of a node of the architecture carry: so many
//! channels at the highest speed that NCCL's search tries and that fits. Between nodes each rank brings one NIC. Latency of
//! the network's topology is 0, CPUs are Intel's. CollNet, which needs a plugin, is left out; PAT has the bandwidth of a ring.

use super::costs::MessageCost;
use crate::ir::CollectiveKind;

/// A generation of NVIDIA's GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Architecture {
    /// V100.
    Volta,
    /// A100.
    Ampere,
    /// H100, H200.
    Hopper,
    /// B200, GB200.
    Blackwell,
}

/// How a message is cut for the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Protocol {
    Ll,
    Ll128,
    Simple,
}

impl Protocol {
    pub(super) const ALL: [Self; 3] = [Self::Ll, Self::Ll128, Self::Simple];
}

/// By protocol: latency without hops, of tree and ring.
pub(super) const BASE: [[f64; 3]; 2] = [[6.8, 14.0, 8.4], [6.6, 14.0, 8.4]];
/// By protocol: latency of a hop over NVLink, of tree and ring.
pub(super) const NVLINK: [[f64; 3]; 2] = [[0.6, 1.25, 4.0], [0.6, 1.9, 3.4]];
/// By protocol: latency of a hop between nodes, of tree and ring.
pub(super) const NET: [[f64; 3]; 2] = [[5.0, 8.5, 14.0], [2.7, 4.0, 14.0]];
/// Rows of the tables by algorithm.
pub(super) const TREE: usize = 0;
pub(super) const RING: usize = 1;

/// A table by architecture, then by nodes: 1, 2, more.
pub(super) type ByScale = [[f64; 3]; 4];

/// Most that LL carries. With two nodes or more the CPU decides: the first row is of Intel's.
pub(super) const LL_MOST: ByScale = [[39.0, 39.0, 20.4], [87.7, 22.5, 19.0], [141.0, 45.0, 35.0], [282.0, 90.0, 70.0]];
/// Most that a channel of a ring carries with LL128.
pub(super) const RING_LL128: ByScale = [[20.0; 3], [20.0; 3], [36.7; 3], [40.0; 3]];
/// Most that a channel of a tree carries with LL128.
pub(super) const TREE_LL128: ByScale = [[20.0; 3], [20.0; 3], [36.7, 36.7, 29.0], [55.6, 31.67, 20.0]];
/// Most that a channel of a tree carries.
pub(super) const TREE_SIMPLE: ByScale =
    [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [38.7, 41.4, 36.0], [70.0, 42.8, 24.0]];
/// Most that a channel of a tree of NVLink switches carries.
const NVLS_TREE: ByScale = [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [0.0, 57.7, 45.5], [0.0, 96.0, 80.0]];
/// What of a channel's speed an NVLink switch reaches; 0 where there are none that reduce.
const NVLS_EFFICIENCY: [f64; 4] = [0.0, 0.0, 0.85, 0.74];

/// By protocol: what part of its bandwidth a tree reaches, by the logarithm of its bytes over 64.
const TREE_CORRECTION: [[f64; 24]; 3] = [
    [
        1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0,
        1.0, 1.0,
    ],
    [
        1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0,
        1.0, 1.0,
    ],
    [
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9,
        0.9, 0.9,
    ],
];

/// Channels of rings and trees, and the speed of each inside a node: what the links carry together, from 6 lanes of 20 GB/s,
/// 12 of 20, 18 of 20.6 and 18 of 40.1.
const CHANNELS: [(f64, f64); 4] = [(6.0, 20.0), (12.0, 20.0), (12.0, 30.0), (12.0, 60.0)];
/// The same for NVLink switches that reduce, which take 16 channels.
const NVLS_CHANNELS: [(f64, f64); 4] = [(0.0, 0.0), (0.0, 0.0), (16.0, 20.0), (16.0, 40.0)];
/// GB/s of the NIC of each rank: 100, 200 and 400 Gb/s as NCCL counts them.
const NIC: [f64; 4] = [12.0, 24.0, 48.0, 48.0];

impl Architecture {
    /// Its row in tables.
    pub(super) const fn row(self) -> usize {
        match self {
            Self::Volta => 0,
            Self::Ampere => 1,
            Self::Hopper => 2,
            Self::Blackwell => 3,
        }
    }
}

/// The column of a table by nodes.
pub(super) const fn scale(nodes: u32) -> usize {
    match nodes {
        0 | 1 => 0,
        2 => 1,
        _ => 2,
    }
}

/// What part of its bandwidth a tree reaches with so many bytes.
pub(super) fn tree_correction(protocol: Protocol, bytes: u64) -> f64 {
    let log = (bytes >> 6).checked_ilog2().unwrap_or(0) as usize;
    TREE_CORRECTION[protocol as usize].get(log).copied().unwrap_or(1.0)
}

/// Whole nanoseconds of microseconds, rounded up; what is beyond 64 bits is the most there is.
pub(super) fn whole_ns(us: f64) -> u64 {
    // A share of a billionth is the rounding of the formula itself.
    (us * 1000.0 * (1.0 - 1e-12)).ceil() as u64
}

/// One message that NCCL has to choose for.
#[derive(Clone, Copy)]
struct Message {
    kind: CollectiveKind,
    ranks: u32,
    nodes: u32,
    architecture: Architecture,
    bytes: u64,
}

impl Message {
    fn is_all_reduce(&self) -> bool {
        matches!(self.kind, CollectiveKind::AllReduce { .. })
    }

    fn halves(&self) -> bool {
        matches!(self.kind, CollectiveKind::AllGather { .. } | CollectiveKind::ReduceScatter { .. })
    }

    /// Steps in all, and those between nodes.
    fn steps(&self) -> (f64, f64) {
        let (ranks, nodes) = (f64::from(self.ranks), f64::from(self.nodes));
        let between = |steps: f64| if self.nodes > 1 { steps } else { 0.0 };
        match self.kind {
            CollectiveKind::AllReduce { .. } => (2.0 * (ranks - 1.0), between(2.0 * (nodes - 1.0))),
            CollectiveKind::AllGather { .. } | CollectiveKind::ReduceScatter { .. } => {
                (ranks - 1.0, between(nodes - 1.0))
            }
            _ => (ranks, between(nodes)),
        }
    }

    fn per_node(&self) -> f64 {
        f64::from(self.ranks) / f64::from(self.nodes)
    }

    fn tree_depth(&self) -> f64 {
        f64::from(self.nodes.ilog2())
    }

    /// What all channels carry together.
    fn bus(&self, (channels, speed): (f64, f64)) -> f64 {
        let inside = channels * speed;
        let between = self.per_node() * NIC[self.architecture.row()];
        match self.nodes {
            1 => inside,
            _ => inside.min(between),
        }
    }

    fn table(&self, table: &ByScale) -> f64 {
        table[self.architecture.row()][scale(self.nodes)]
    }

    /// What a hop takes inside a node, and between nodes. With one rank on each node rings take the tree's.
    fn hops(&self, algorithm: usize, protocol: Protocol) -> (f64, f64) {
        let at = protocol as usize;
        let overhead = match (self.nodes, protocol) {
            (1, _) => 0.0,
            (_, Protocol::Simple) => 3.0,
            _ => 1.0,
        };
        let net = if self.nodes == self.ranks { NET[TREE][at] } else { NET[algorithm][at] };
        (NVLINK[algorithm][at].max(overhead), net)
    }

    /// Microseconds of the rings.
    fn ring(&self, protocol: Protocol) -> f64 {
        let channels = CHANNELS[self.architecture.row()];
        let bus = self.bus(channels);
        let bus = match protocol {
            Protocol::Ll => {
                let row = if self.nodes == 1 { self.architecture.row() } else { 0 };
                (0.5 * bus).min(LL_MOST[row][scale(self.nodes)])
            }
            Protocol::Ll128 => (0.92 * bus).min(channels.0 * self.table(&RING_LL128)),
            Protocol::Simple => bus,
        };
        let (steps, between) = self.steps();
        let (inside_hop, between_hop) = self.hops(RING, protocol);
        let mut latency = BASE[RING][protocol as usize] + (steps - between) * inside_hop + between * between_hop;
        // A long ring with some bytes for each channel and rank.
        let share = self.bytes as f64 / (channels.0 * f64::from(self.ranks));
        if self.is_all_reduce() && protocol == Protocol::Simple && self.nodes > 1 && share >= 64.0 {
            latency *= if self.architecture == Architecture::Volta { 1.9 } else { 1.4 };
        }
        latency + self.over(bus * f64::from(self.ranks) / steps)
    }

    /// Microseconds of the trees.
    fn tree(&self, protocol: Protocol) -> f64 {
        let channels = CHANNELS[self.architecture.row()];
        let bus = self.bus(channels);
        let bus = match protocol {
            Protocol::Ll => {
                let row = if self.nodes == 1 { self.architecture.row() } else { 0 };
                (bus / 3.8).min(LL_MOST[row][scale(self.nodes)])
            }
            Protocol::Ll128 => {
                let part = if self.nodes == 1 { 7.0 / 9.0 } else { 120.0 / 128.0 };
                (bus * part).min(channels.0 * self.table(&TREE_LL128))
            }
            Protocol::Simple => (0.92 * bus).min(channels.0 * self.table(&TREE_SIMPLE)),
        };
        let (inside_hop, between_hop) = self.hops(TREE, protocol);
        let latency = BASE[TREE][protocol as usize]
            + 2.0 * ((self.per_node() - 1.0) * inside_hop + self.tree_depth() * between_hop);
        // A plain tree reaches 0.85 of that; half of it, as each byte goes up and down.
        latency + self.over(bus * 0.85 * 0.5 * tree_correction(protocol, self.bytes))
    }

    /// Microseconds of NVLink switches that reduce, in one node or as a tree of nodes.
    fn switches(&self) -> Option<f64> {
        let row = self.architecture.row();
        let (channels, speed) = NVLS_CHANNELS[row];
        let inside = speed * NVLS_EFFICIENCY[row] * (channels - 1.0) / channels.max(1.0);
        let (steps, _) = self.steps();
        let per_node = self.per_node();
        match self.nodes {
            _ if channels == 0.0 || per_node < 2.0 => None,
            1 if self.is_all_reduce() => {
                Some(25.0 + self.over(2.0 * inside * channels * f64::from(self.ranks) / steps))
            }
            1 if self.halves() => {
                let bus = inside * channels * (per_node - 1.0) / per_node;
                Some(25.0 + self.over(bus * f64::from(self.ranks) / steps))
            }
            1 => None,
            _ if self.is_all_reduce() => {
                let most = self.table(&NVLS_TREE);
                let bus = (2.0 * inside).min(most) * channels;
                let bus = bus.min(per_node * NIC[row]);
                Some(25.0 + 2.0 * self.tree_depth() * 20.9 + self.over(bus * 0.5))
            }
            _ => None,
        }
    }

    /// Microseconds of PAT, for one rank on each node.
    fn pat(&self) -> Option<f64> {
        (self.halves() && self.nodes == self.ranks).then(|| {
            let bus = self.bus(CHANNELS[self.architecture.row()]);
            let (steps, _) = self.steps();
            let latency = 8.0 + self.tree_depth() * 14.0 / 3.5 + 2.8 * f64::from(self.ranks);
            latency + self.over(bus * f64::from(self.ranks) / steps)
        })
    }

    /// Microseconds of its bytes at so many GB/s.
    fn over(&self, gb_per_s: f64) -> f64 {
        self.bytes as f64 / (1000.0 * gb_per_s)
    }

    /// Microseconds of the fastest.
    fn us(&self) -> f64 {
        let rings = Protocol::ALL.into_iter().map(|protocol| self.ring(protocol));
        let trees = Protocol::ALL.into_iter().filter(|_| self.is_all_reduce()).map(|protocol| self.tree(protocol));
        rings.chain(trees).chain(self.switches()).chain(self.pat()).fold(f64::INFINITY, f64::min)
    }
}

/// Nanoseconds that NCCL expects of a message, rounded up. `None` for what its tuner does not time: exchanges and sends, no
/// ranks, or ranks that do not fill their nodes evenly. `bytes` are counted as [`message_bytes`](super::costs::message_bytes).
#[must_use]
pub fn time_ns(kind: CollectiveKind, ranks: u32, nodes: u32, architecture: Architecture, bytes: u64) -> Option<u64> {
    if matches!(kind, CollectiveKind::AllToAll | CollectiveKind::Permute) || nodes == 0 || !ranks.is_multiple_of(nodes)
    {
        return None;
    }
    match ranks {
        0 => None,
        1 => Some(0),
        _ => Some(whole_ns(Message { kind, ranks, nodes, architecture, bytes }.us())),
    }
}

/// The formulas as a cost. Trees are slower at some sizes than a concave curve allows, so this is the least concave curve
/// that is not below [`time_ns`] at sixteen sizes of each octave, from 64 bytes to 16 GiB; `None` where that is.
#[must_use]
pub fn cost(kind: CollectiveKind, ranks: u32, nodes: u32, architecture: Architecture) -> Option<MessageCost> {
    let octave = |power: u32| (0..16).map(move |part| (64 + 4 * part) << power).chain([(128u64 << power) - 1]);
    let sizes = std::iter::once(0).chain((0..28).flat_map(octave));
    let points = sizes.map(|bytes| Some((bytes, time_ns(kind, ranks, nodes, architecture, bytes)?)));
    points.collect::<Option<Vec<_>>>().map(|points| MessageCost::over(&points))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ReduceOp;

    const REDUCE: CollectiveKind = CollectiveKind::AllReduce { op: ReduceOp::Sum };
    const GATHER: CollectiveKind = CollectiveKind::AllGather { dim: 0 };
    const SCATTER: CollectiveKind = CollectiveKind::ReduceScatter { op: ReduceOp::Sum, dim: 0 };
    const BROADCAST: CollectiveKind = CollectiveKind::Broadcast { root: 0 };
    const MIB: u64 = 1 << 20;

    #[test]
    fn latencies_are_those_of_the_tables() {
        // Ring, LL: 6.6 + 7 * 0.6; with 14 steps 6.6 + 14 * 0.6.
        assert_eq!(time_ns(GATHER, 8, 1, Architecture::Hopper, 0), Some(10_800));
        assert_eq!(time_ns(SCATTER, 8, 1, Architecture::Hopper, 0), Some(10_800));
        assert_eq!(time_ns(REDUCE, 8, 1, Architecture::Hopper, 0), Some(15_000));
        assert_eq!(time_ns(BROADCAST, 8, 1, Architecture::Hopper, 0), Some(11_400));
        // Tree, LL, over 8 nodes: 6.8 + 2 * (7 * 1 + 3 * 5).
        assert_eq!(time_ns(REDUCE, 64, 8, Architecture::Hopper, 0), Some(50_800));
        // One rank on each of 8: the tree again, without hops inside, and PAT: 8 + 3 * 14 / 3.5 + 2.8 * 8.
        assert_eq!(time_ns(REDUCE, 8, 8, Architecture::Hopper, 0), Some(36_800));
        assert_eq!(time_ns(GATHER, 8, 8, Architecture::Hopper, 0), Some(41_600));
    }

    #[test]
    fn large_messages_run_at_the_bandwidth_of_the_fastest_algorithm() {
        // Rings of 360 GB/s, 8 ranks in 7 steps; switches of 2 * 16 * 20 * 0.85 * 15 / 16, 8 ranks in 14 steps.
        let (gather, reduce) = (360.0 * 8.0 / 7.0, 2.0 * 16.0 * 20.0 * 0.85 * 15.0 / 16.0 * 8.0 / 14.0);
        let bytes = 1u64 << 40;
        for (kind, gb_per_s) in [(GATHER, gather), (REDUCE, reduce)] {
            let found = time_ns(kind, 8, 1, Architecture::Hopper, bytes).unwrap();
            let expected = bytes as f64 / gb_per_s;
            assert!((found as f64 / expected - 1.0).abs() < 1e-4, "{kind:?}: {found}, expected {expected}");
        }
        let older = time_ns(REDUCE, 8, 1, Architecture::Ampere, bytes).unwrap();
        assert!((older as f64 / (bytes as f64 / (240.0 * 8.0 / 14.0)) - 1.0).abs() < 1e-4, "{older}");
    }

    #[test]
    fn a_tree_is_corrected_by_its_bytes() {
        assert_eq!(tree_correction(Protocol::Simple, 0), 0.9);
        assert_eq!(tree_correction(Protocol::Simple, 64 << 11), 0.5);
        assert_eq!(tree_correction(Protocol::Ll, (64 << 12) - 1), 0.5);
        assert_eq!(tree_correction(Protocol::Ll, 64 << 12), 0.4);
        assert_eq!(tree_correction(Protocol::Ll128, 64 << 24), 1.0);
    }

    #[test]
    fn what_the_tuner_does_not_time_has_no_time() {
        for kind in [CollectiveKind::AllToAll, CollectiveKind::Permute] {
            assert_eq!(time_ns(kind, 8, 1, Architecture::Hopper, MIB), None);
            assert_eq!(cost(kind, 8, 1, Architecture::Hopper), None);
        }
        assert_eq!(time_ns(GATHER, 12, 8, Architecture::Hopper, MIB), None);
        assert_eq!(time_ns(GATHER, 0, 1, Architecture::Hopper, MIB), None);
        assert_eq!(time_ns(GATHER, 8, 0, Architecture::Hopper, MIB), None);
        assert_eq!(time_ns(GATHER, 1, 1, Architecture::Hopper, MIB), Some(0));
    }

    #[test]
    fn a_hull_is_not_below_the_formulas_and_close_above() {
        for architecture in [Architecture::Volta, Architecture::Ampere, Architecture::Hopper, Architecture::Blackwell] {
            for (ranks, nodes) in [(2, 1), (8, 1), (8, 8), (16, 2), (64, 8), (512, 64), (64, 64)] {
                for kind in [REDUCE, GATHER, BROADCAST] {
                    let cost = cost(kind, ranks, nodes, architecture).unwrap();
                    let mut worst = 1.0f64;
                    for power in 0..28 {
                        for bytes in [64u64 << power, (64 << power) + (32 << power), (128 << power) - 1] {
                            let (found, formula) =
                                (cost.ns(bytes), time_ns(kind, ranks, nodes, architecture, bytes).unwrap());
                            assert!(
                                found + 1 + formula / 500 >= formula,
                                "{kind:?} {ranks}/{nodes} {bytes}: {found} < {formula}"
                            );
                            worst = worst.max(found as f64 / formula as f64);
                        }
                    }
                    assert!(worst < 1.45, "{architecture:?} {kind:?} {ranks}/{nodes}: {worst}");
                }
            }
        }
    }
}
