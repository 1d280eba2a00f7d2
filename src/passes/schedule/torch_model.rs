//! What PyTorch expects a message to take: the model that Inductor plans with.
//!
//! Source: `torch/_inductor/comm_analysis.py` of PyTorch 2.15, `estimate_nccl_collective_runtime_impl`, with nodes of eight
//! GPUs over NVLink, as it takes them to be where it sees none. It is NCCL's tuner (see [`super::nccl`]) with trees and rings
//! alone, and these differences: bandwidths are one number for all channels; between nodes there is the NIC of one rank, which
//! is reached in part, by nodes and bytes; LL128 does not run between nodes.
//!
//! Held against what NVIDIA measured on InfiniBand it is four to five times too slow; it is here to compare plans with
//! Inductor's.

use super::nccl::{
    Architecture, BASE, LL_MOST, NET, NVLINK, Protocol, RING, RING_LL128, TREE, TREE_LL128, TREE_SIMPLE, scale,
    tree_correction, whole_ns,
};
use crate::ir::CollectiveKind;

const GPUS_PER_NODE: u32 = 8;
/// GB/s of all links of a GPU inside a node.
const INSIDE: [f64; 4] = [120.0, 240.0, 370.0, 720.0];
/// GB/s of a GPU's NIC.
const BETWEEN: [f64; 4] = [12.0, 25.0, 50.0, 50.0];
/// Channels, which the caps of single channels are multiplied with.
const CHANNELS: [f64; 4] = [2.0, 8.0, 16.0, 32.0];
/// From so many bytes on more NICs of a node take part.
const ONE_RAIL_BYTES: u64 = 50_000_000;

/// `x` to the power 0.17. A product of square roots, which are the same on every machine; powers of a library are not.
fn to_the_rails(x: f64) -> f64 {
    let (mut left, mut root, mut product) = (0.17f64, x, 1.0f64);
    while left > 0.0 {
        root = root.sqrt();
        left *= 2.0;
        if left >= 1.0 {
            left -= 1.0;
            product *= root;
        }
    }
    product
}

struct Message {
    all_reduce: bool,
    steps: u32,
    ranks: u32,
    nodes: u32,
    row: usize,
    bytes: u64,
}

impl Message {
    fn bus(&self) -> f64 {
        if self.nodes == 1 {
            return INSIDE[self.row];
        }
        let far = (f64::from(self.nodes - 1) / 7.0).min(1.0);
        let one_rail = BETWEEN[self.row] * (0.77 + 0.23 * far);
        if self.nodes == 2 {
            return one_rail;
        }
        one_rail * to_the_rails(self.bytes.max(ONE_RAIL_BYTES) as f64 / ONE_RAIL_BYTES as f64)
    }

    /// Microseconds of an algorithm and a protocol; `None` if it does not run here.
    fn us(&self, algorithm: usize, protocol: Protocol) -> Option<f64> {
        if protocol == Protocol::Ll128 && self.nodes > 1 {
            return None;
        }
        let (at, column, bus) = (protocol as usize, scale(self.nodes), self.bus());
        let most = LL_MOST[if self.nodes == 1 { self.row } else { 0 }][column];
        let channels = CHANNELS[self.row];
        let bus = match (algorithm, protocol) {
            (RING, Protocol::Ll) => most.min(bus * 0.5),
            (RING, Protocol::Ll128) => (bus * (120.0 / 128.0)).min(channels * RING_LL128[self.row][column]),
            (RING, Protocol::Simple) => bus,
            (_, Protocol::Ll) => (bus * (1.0 / 3.8)).min(most),
            (_, Protocol::Ll128) => (bus * (7.0 / 9.0)).min(channels * TREE_LL128[self.row][column]),
            (_, Protocol::Simple) => (bus * 0.92).min(channels * TREE_SIMPLE[self.row][column]),
        };
        let overhead = match (self.nodes, protocol) {
            (1, _) => 0.0,
            (_, Protocol::Simple) => 3.0,
            _ => 1.0,
        };
        let (inside, between) = (NVLINK[algorithm][at].max(overhead), NET[algorithm][at]);
        let (hops, gb_per_s) = if algorithm == RING {
            let far = if self.all_reduce { 2 * (self.nodes - 1) } else { self.nodes - 1 };
            let near = f64::from(self.steps) - f64::from(far);
            (near * inside + f64::from(far) * between, bus * f64::from(self.ranks) / f64::from(self.steps))
        } else {
            let near = f64::from(self.ranks / self.nodes) - 1.0;
            let hops = 2.0 * (near * inside + f64::from(self.nodes.ilog2()) * between);
            (hops, bus * 0.5 * tree_correction(protocol, self.bytes))
        };
        Some(BASE[algorithm][at] + hops + self.bytes as f64 / (1000.0 * gb_per_s))
    }
}

/// Nanoseconds that PyTorch expects of a message, rounded up; 0 for a broadcast, a reduce and a group of one.
///
/// `bytes` are what PyTorch counts: its pass over FX graphs adds what goes in and what comes out, that over its own IR counts
/// what goes in.
#[must_use]
pub fn time_ns(kind: CollectiveKind, ranks: u32, architecture: Architecture, bytes: u64) -> u64 {
    let steps = match kind {
        _ if ranks < 2 => return 0,
        CollectiveKind::AllReduce { .. } | CollectiveKind::AllToAll => 2 * (ranks - 1),
        CollectiveKind::AllGather { .. } | CollectiveKind::ReduceScatter { .. } => ranks - 1,
        CollectiveKind::Permute => 1,
        CollectiveKind::Broadcast { .. } | CollectiveKind::Reduce { .. } => return 0,
    };
    let all_reduce = matches!(kind, CollectiveKind::AllReduce { .. });
    let nodes = ranks.div_ceil(GPUS_PER_NODE);
    let message = Message { all_reduce, steps, ranks, nodes, row: architecture.row(), bytes };
    let algorithms: &[usize] = if all_reduce { &[TREE, RING] } else { &[RING] };
    let times = algorithms.iter().flat_map(|&algorithm| {
        let message = &message;
        Protocol::ALL.into_iter().filter_map(move |protocol| message.us(algorithm, protocol))
    });
    // A time below 0 is left out, as PyTorch does: a sent message has fewer steps than nodes.
    whole_ns(times.filter(|&us| us >= 0.0).fold(f64::INFINITY, f64::min))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ReduceOp;

    const REDUCE: CollectiveKind = CollectiveKind::AllReduce { op: ReduceOp::Sum };
    const GATHER: CollectiveKind = CollectiveKind::AllGather { dim: 0 };
    const SCATTER: CollectiveKind = CollectiveKind::ReduceScatter { op: ReduceOp::Sum, dim: 0 };

    /// Sizes of the columns below.
    const BYTES: [u64; 6] = [0, 1 << 16, 1 << 20, 1 << 24, 1 << 27, 1 << 30];

    #[test]
    fn hopper_has_the_times_that_pytorch_prints() {
        // Tenths of a microsecond, of PyTorch 2.15.
        for (kind, ranks, expected) in [
            (GATHER, 8, [108, 112, 173, 696, 3496, 25_715]),
            (SCATTER, 8, [108, 112, 173, 696, 3496, 25_715]),
            (GATHER, 16, [233, 264, 723, 4618, 32_045, 251_463]),
            (GATHER, 64, [815, 847, 1321, 6271, 25_309, 128_473]),
            (GATHER, 512, [6247, 6279, 6760, 14_455, 46_787, 151_385]),
            (REDUCE, 8, [150, 158, 280, 1252, 6908, 51_345]),
            (REDUCE, 64, [508, 674, 2396, 11_905, 50_533, 256_863]),
            (REDUCE, 512, [808, 974, 3236, 12_745, 57_144, 279_493]),
        ] {
            for (bytes, expected) in BYTES.into_iter().zip(expected) {
                let found = time_ns(kind, ranks, Architecture::Hopper, bytes);
                assert!(found.abs_diff(expected * 100) <= 51, "{kind:?} {ranks} {bytes}: {found}, {expected}");
            }
        }
    }

    /// By ranks 2, 8, 16, 64 and 512.
    type Times = [[u64; 6]; 5];

    fn hold(architecture: Architecture, kind: CollectiveKind, expected: &Times) {
        for (ranks, expected) in [2, 8, 16, 64, 512].into_iter().zip(expected) {
            for (bytes, &expected) in BYTES.into_iter().zip(expected) {
                let found = time_ns(kind, ranks, architecture, bytes);
                // Those are rounded to the nearest.
                assert!(
                    found.abs_diff(expected) <= 1,
                    "{architecture:?} {kind:?} {ranks} {bytes}: {found}, {expected}"
                );
            }
        }
    }

    #[test]
    fn every_kind_and_architecture_has_the_times_of_pytorch() {
        // Nanoseconds of `_nccl_best_algo_time` of PyTorch 2.15, rounded.
        hold(
            Architecture::Volta,
            REDUCE,
            &[
                [7800, 9480, 23_938, 155_010, 1_133_681, 8_963_049],
                [15_000, 17_941, 62_051, 300_668, 2_013_342, 15_714_735],
                [30_800, 65_509, 335_671, 3_396_739, 26_252_710, 209_100_483],
                [50_800, 119_977, 500_464, 3_337_712, 19_202_488, 105_173_022],
                [80_800, 149_977, 612_319, 4_574_330, 23_073_947, 110_859_230],
            ],
        );
        hold(
            Architecture::Ampere,
            REDUCE,
            &[
                [7800, 8547, 19_569, 85_105, 574_441, 4_489_124],
                [15_000, 16_308, 35_924, 178_334, 1_034_671, 7_885_367],
                [30_800, 52_244, 229_554, 1_698_867, 12_669_733, 100_436_664],
                [50_800, 84_005, 321_551, 1_906_406, 9_521_498, 50_787_354],
                [80_800, 114_005, 414_761, 2_316_526, 11_196_343, 55_666_111],
            ],
        );
        hold(
            Architecture::Ampere,
            GATHER,
            &[
                [7200, 7574, 13_178, 46_753, 291_420, 2_248_762],
                [10_800, 11_454, 21_262, 93_367, 521_535, 3_946_884],
                [23_300, 29_422, 118_977, 853_633, 6_339_066, 50_222_532],
                [81_500, 86_661, 164_075, 957_403, 4_764_949, 25_397_877],
                [624_700, 629_933, 708_422, 1_964_256, 6_943_807, 27_863_303],
            ],
        );
        hold(
            Architecture::Hopper,
            CollectiveKind::AllToAll,
            &[
                [7800, 8265, 15_237, 60_544, 377_951, 2_917_205],
                [15_000, 15_813, 28_014, 125_242, 690_814, 5_134_509],
                [38_300, 44_422, 136_254, 904_633, 6_390_066, 50_273_532],
                [144_500, 150_825, 245_695, 1_171_603, 4_979_149, 25_612_077],
                [1_135_700, 1_142_113, 1_238_301, 2_777_313, 8_681_207, 29_600_703],
            ],
        );
        hold(
            Architecture::Hopper,
            CollectiveKind::Permute,
            &[
                [7200, 7432, 10_918, 34_472, 193_175, 1_462_802],
                [7200, 7258, 8130, 17_468, 57_144, 374_551],
                [9300, 9504, 12_565, 48_521, 231_369, 1_694_151],
                [19_500, 19_550, 20_303, 32_350, 121_462, 285_215],
                [114_700, 114_706, 114_800, 116_306, 127_550, 217_502],
            ],
        );
        hold(
            Architecture::Blackwell,
            REDUCE,
            &[
                [7800, 8032, 11_518, 38_502, 201_614, 1_506_508],
                [15_000, 15_407, 21_507, 84_096, 382_224, 2_665_789],
                [30_800, 46_122, 137_954, 915_233, 6_400_666, 50_284_132],
                [50_800, 67_402, 239_581, 1_190_463, 5_053_349, 25_686_277],
                [80_800, 97_402, 323_581, 1_274_463, 5_714_371, 27_949_255],
            ],
        );
        hold(
            Architecture::Blackwell,
            GATHER,
            &[
                [7200, 7316, 9059, 23_451, 105_007, 757_454],
                [10_800, 11_003, 14_054, 49_048, 195_312, 1_337_095],
                [23_300, 26_361, 72_277, 461_817, 3_204_533, 25_146_266],
                [81_500, 84_662, 132_098, 627_101, 2_530_875, 12_847_339],
                [624_700, 627_906, 676_000, 1_445_506, 4_678_703, 15_138_452],
            ],
        );
    }

    #[test]
    fn what_pytorch_does_not_time_takes_nothing() {
        assert_eq!(time_ns(CollectiveKind::Broadcast { root: 0 }, 8, Architecture::Hopper, 1 << 20), 0);
        assert_eq!(time_ns(CollectiveKind::Reduce { op: ReduceOp::Sum, root: 0 }, 8, Architecture::Hopper, 1), 0);
        assert_eq!(time_ns(REDUCE, 1, Architecture::Hopper, 1 << 20), 0);
    }

    #[test]
    fn roots_multiply_to_powers() {
        for x in [1.0f64, 1.5, 2.0, 21.474_836_48, 1e6] {
            assert!((to_the_rails(x) / x.powf(0.17) - 1.0).abs() < 1e-12, "{x}");
        }
    }
}
