//! The profiles that are built in, and where each number comes from.
//!
//! A row is a class of groups, a kind, and straight lines: nanoseconds to start, and nanoseconds for a GiB. The lines were fit
//! to times that others measured, three to a row, by least absolute relative error from 64 KiB on. No size is more than 20 %
//! off where a concave curve can do that which begins no lower than 0.85 of the shortest measured time: `docs/costs.md` lists
//! how far off each row is, and the sizes where noise in the tables keeps it from that.
//!
//! | rows | source |
//! |---|---|
//! | `H100`, `B200`, `GB200` | the table that XLA ships, measured with NCCL: `default_collective_perf_table.txtpb`, 2026 |
//! | `A100` | nccl-tests on one node, as printed in the book "Machine Learning Engineering" (S. Bekman) |
//! | `IB` | all-reduce over InfiniBand by NVLink switches, NVIDIA's talk S62129 of GTC 2024, read off a plot to 5 % |
//! | `EFA` | nccl-tests on four nodes of eight B200, the same book |
//! | `ETHERNET`, `IB56` | constants in the code of MG-WFBP (arXiv 1811.11141), one GPU to a node |
//!
//! Peaks and bandwidths of memory are those of NVIDIA's data sheets, without sparsity. What it takes to launch a copy was not
//! measured.

use super::costs::{CopyCost, Map, MessageCost, Piece};
use super::nccl::Architecture;
use super::profile::{ACHIEVED_PERMILLE, Class, ClassCosts, Profile, Rates};

/// Bytes that slopes are stated for.
const GIB: u64 = 1 << 30;

/// Ranks, nodes, kind, lines: nanoseconds to start, and for a GiB.
type Row = (u32, u32, &'static str, &'static [(u64, u64)]);

const H100: &[Row] = &[
    (2, 1, "all_gather", &[(12_896, 4_774_903), (20_757, 2_534_063), (33_036, 2_032_745)]),
    (2, 1, "reduce_scatter", &[(18_562, 3_236_967), (52_588, 2_829_992), (281_650, 2_475_303)]),
    (2, 1, "all_reduce", &[(14_124, 11_069_405), (26_243, 4_864_465), (76_270, 4_356_241)]),
    (2, 1, "all_to_all", &[(15_664, 81_503_687), (37_882, 2_161_617), (113_877, 1_612_842)]),
    (4, 1, "all_gather", &[(14_995, 6_953_417), (34_340, 2_527_096), (69_607, 2_396_785)]),
    (4, 1, "reduce_scatter", &[(16_058, 59_999_976), (27_198, 3_083_315), (71_404, 2_811_832)]),
    (4, 1, "all_reduce", &[(15_341, 59_999_988), (39_752, 5_684_853), (126_951, 5_288_088)]),
    (4, 1, "all_to_all", &[(31_478, 5_522_917), (54_253, 2_607_735), (72_810, 2_310_839)]),
    (8, 1, "all_gather", &[(22_679, 8_612_381), (38_280, 2_813_458), (105_481, 2_618_940)]),
    (8, 1, "reduce_scatter", &[(25_078, 15_766_429), (31_332, 2_959_088)]),
    (8, 1, "all_reduce", &[(38_478, 11_159_766), (41_472, 8_093_681), (78_839, 4_705_552)]),
    (8, 1, "all_to_all", &[(20_677, 4_698_822), (49_767, 2_837_093), (103_157, 2_714_773)]),
];

const B200: &[Row] = &[
    (2, 1, "all_gather", &[(19_712, 4_090_091), (30_728, 1_310_304), (74_730, 1_177_645)]),
    (2, 1, "reduce_scatter", &[(24_404, 1_578_363), (50_275, 1_211_642), (221_185, 1_033_095)]),
    (2, 1, "all_reduce", &[(22_647, 7_745_885), (47_968, 2_409_047), (139_285, 2_172_822)]),
    (2, 1, "all_to_all", &[(23_381, 53_651_964), (37_604, 2_744_074), (76_819, 1_300_685)]),
    (4, 1, "all_gather", &[(29_871, 2_822_024), (38_912, 1_507_327), (86_993, 1_374_663)]),
    (4, 1, "reduce_scatter", &[(32_089, 1_861_517), (32_435, 1_528_680), (111_680, 1_278_272)]),
    (4, 1, "all_reduce", &[(30_365, 22_590_972), (34_929, 3_897_207), (67_495, 2_855_110)]),
    (4, 1, "all_to_all", &[(29_330, 11_777_594), (38_364, 2_525_428), (63_731, 1_572_566)]),
    (8, 1, "all_gather", &[(33_416, 2_455_532), (38_282, 1_579_458), (132_315, 1_457_987)]),
    (8, 1, "reduce_scatter", &[(37_238, 1_759_568), (49_198, 1_568_200), (160_800, 1_383_552)]),
    (8, 1, "all_reduce", &[(51_551, 6_164_753), (57_152, 4_730_877), (102_579, 3_009_959)]),
    (8, 1, "all_to_all", &[(32_270, 50_633_661), (37_892, 2_413_452), (67_584, 1_564_160)]),
];

const GB200: &[Row] = &[
    (4, 1, "all_gather", &[(17_398, 3_588_982), (37_173, 1_339_003), (169_915, 1_254_227)]),
    (4, 1, "reduce_scatter", &[(17_601, 4_068_196), (39_175, 1_306_770), (114_434, 1_204_887)]),
    (4, 1, "all_reduce", &[(18_161, 5_779_230), (28_747, 3_370_031), (49_188, 2_400_731)]),
    (4, 1, "all_to_all", &[(21_867, 22_487_153), (24_733, 1_619_450), (101_399, 1_295_201)]),
    (8, 1, "all_gather", &[(19_190, 2_396_996), (26_254, 1_492_874), (115_330, 1_394_803)]),
    (8, 1, "reduce_scatter", &[(18_854, 3_448_763), (27_738, 1_482_084), (104_887, 1_350_935)]),
    (8, 1, "all_reduce", &[(28_436, 6_497_999), (47_793, 3_792_340), (149_779, 2_231_601)]),
    (8, 1, "all_to_all", &[(12_230, 5_914_251), (24_983, 1_660_632), (136_997, 1_397_745)]),
    (16, 1, "all_gather", &[(29_893, 3_233_496), (69_512, 1_492_786), (218_022, 1_460_027)]),
    (16, 1, "reduce_scatter", &[(29_642, 3_657_980), (81_190, 1_439_930), (151_817, 1_420_280)]),
    (16, 1, "all_reduce", &[(43_109, 4_798_870), (98_704, 2_792_593), (416_424, 2_197_040)]),
    (16, 1, "all_to_all", &[(12_006, 6_269_051), (29_695, 1_740_057), (44_202, 1_546_844)]),
    (32, 1, "all_gather", &[(43_205, 3_216_397), (93_319, 2_190_021), (173_780, 1_492_829)]),
    (32, 1, "reduce_scatter", &[(58_171, 3_237_960), (102_411, 2_364_971), (218_822, 1_438_809)]),
    (32, 1, "all_reduce", &[(54_421, 5_338_938), (138_049, 3_115_208), (492_310, 2_226_036)]),
    (32, 1, "all_to_all", &[(19_423, 4_591_722), (42_930, 1_582_846), (669_665, 1_543_496)]),
    (64, 1, "all_gather", &[(92_266, 22_230_692), (97_266, 1_673_603), (149_550, 1_527_424)]),
    (64, 1, "reduce_scatter", &[(97_454, 2_953_952), (144_645, 1_443_305)]),
    (64, 1, "all_reduce", &[(59_466, 5_225_900), (145_305, 3_148_087), (491_825, 2_266_268)]),
    (64, 1, "all_to_all", &[(52_704, 2_959_609), (73_622, 1_620_868), (209_705, 1_603_858)]),
    (72, 1, "all_gather", &[(103_799, 22_230_655), (108_543, 1_707_111), (162_803, 1_583_501)]),
    (72, 1, "reduce_scatter", &[(104_478, 34_581_057), (109_115, 3_039_755), (165_219, 1_443_911)]),
    (72, 1, "all_reduce", &[(61_602, 5_145_309), (160_554, 3_110_627), (490_225, 2_347_442)]),
    (72, 1, "all_to_all", &[(61_456, 2_742_720), (80_452, 2_028_604), (497_945, 1_648_408)]),
];

/// Below 1 MiB the book has one time, 44 us at 32 KiB.
const A100: &[Row] = &[(8, 1, "all_reduce", &[(42_169, 59_999_998), (126_978, 9_600_262), (493_454, 7_711_997)])];

/// The first line of each row leads from what NCCL's tuner expects of a tree without bytes to 16 MiB, the first point.
const IB: &[Row] = &[
    (32, 4, "all_reduce", &[(40_800, 13_899_735), (155_543, 6_556_183), (214_340, 5_768_034), (252_230, 5_650_495)]),
    (64, 8, "all_reduce", &[(50_800, 22_846_715), (319_280, 5_663_995), (322_368, 5_614_579)]),
    (128, 16, "all_reduce", &[(60_800, 26_118_750), (377_296, 5_863_006), (388_790, 5_679_107)]),
    (256, 32, "all_reduce", &[(70_800, 27_879_352), (406_759, 6_377_976), (432_140, 6_049_966), (520_076, 5_698_224)]),
    (512, 64, "all_reduce", &[(80_800, 32_430_373), (485_687, 6_517_605), (519_260, 5_980_440), (632_419, 5_671_373)]),
    (1024, 128, "all_reduce", &[(90_800, 39_835_336), (593_405, 7_668_616), (711_898, 5_772_724)]),
    (
        8192,
        1024,
        "all_reduce",
        &[(120_800, 57_920_051), (929_665, 6_152_691), (977_076, 6_057_869), (1_769_622, 5_661_596)],
    ),
];

const EFA: &[Row] = &[(32, 4, "all_reduce", &[(399_181, 7_313_494), (680_007, 5_066_884)])];

/// For two and four nodes the code repeats what it has for InfiniBand; these are left out.
const ETHERNET: &[Row] =
    &[(8, 8, "all_reduce", &[(523_000, 920_196_743)]), (16, 16, "all_reduce", &[(908_000, 794_568_950)])];

const IB56: &[Row] = &[
    (2, 2, "all_reduce", &[(2_550, 105_656_196)]),
    (4, 4, "all_reduce", &[(42_000, 221_190_816)]),
    (8, 8, "all_reduce", &[(97_500, 328_564_998)]),
    (16, 16, "all_reduce", &[(236_000, 435_939_180)]),
];

const TERA: u64 = 1_000_000_000_000;

/// Of tenths of a TFLOP/s, by `f64`, `f32`, `f16`, `f8` and integers.
const fn rates(tenths: [u64; 5], memory_bytes_per_s: u64) -> Rates {
    Rates {
        f64_flops_per_s: tenths[0] * TERA / 10,
        f32_flops_per_s: tenths[1] * TERA / 10,
        f16_flops_per_s: tenths[2] * TERA / 10,
        f8_flops_per_s: tenths[3] * TERA / 10,
        int_flops_per_s: tenths[4] * TERA / 10,
        achieved_permille: ACHIEVED_PERMILLE,
        memory_bytes_per_s,
    }
}

/// V100 SXM2; types of 8 bits run as wider ones.
const V100_RATES: Rates = rates([78, 157, 1250, 1250, 157], 900_000_000_000);
/// A100 SXM 80 GB; 8 bits with a point run as 16.
const A100_RATES: Rates = rates([195, 195, 3120, 3120, 6240], 2_039_000_000_000);
/// H100 SXM.
const H100_RATES: Rates = rates([670, 670, 9894, 19_789, 19_789], 3_352_000_000_000);
/// B200 in an HGX of eight.
const B200_RATES: Rates = rates([370, 750, 22_500, 45_000, 45_000], 7_672_000_000_000);
/// B200 in an NVL72.
const GB200_RATES: Rates = rates([400, 800, 25_000, 50_000, 50_000], 8_000_000_000_000);

/// What a rank sends over its own NIC in an exchange between nodes, in bytes a nanosecond: the plateau of the all-reduce, 370
/// and 382 GB/s, over the eight NICs of a node.
const IB_NIC: u64 = 46;
const EFA_NIC: u64 = 47;

/// Nanoseconds to launch a pack or unpack; not measured.
const COPY_FIXED_NS: u64 = 3_000;

struct BuiltIn {
    name: &'static str,
    label: &'static str,
    source: &'static str,
    gpus_per_node: u32,
    rates: Rates,
    nccl: Option<Architecture>,
    /// As they are.
    rows: &'static [Row],
    /// All-reduces, half of whose time a gather and a scatter take: they are the two halves of a ring.
    halved: &'static [Row],
    /// Bytes a nanosecond of the NIC that each rank of `halved` exchanges over; 0 for one rank to a node and for one node,
    /// where an exchange sends as much as a gather.
    nic: u64,
}

const XLA: &str = "measured with NCCL, XLA's default_collective_perf_table.txtpb (2026)";
const BOOK: &str = "nccl-tests, \"Machine Learning Engineering\" (S. Bekman); gathers and scatters half of all-reduces";
const MG_WFBP: &str = "MG-WFBP's constants (arXiv 1811.11141); computation as of V100, of which they say nothing";

const NONE: BuiltIn = BuiltIn {
    name: "",
    label: "",
    source: "",
    gpus_per_node: 8,
    rates: H100_RATES,
    nccl: None,
    rows: &[],
    halved: &[],
    nic: 0,
};

const BUILT_IN: [BuiltIn; 8] = [
    BuiltIn { name: "h100", label: "8 H100 SXM, NVLink 4", source: XLA, rows: H100, ..NONE },
    BuiltIn { name: "b200", label: "8 B200, NVLink 5", source: XLA, rates: B200_RATES, rows: B200, ..NONE },
    BuiltIn {
        name: "gb200-nvl72",
        label: "72 B200 in one NVLink domain",
        source: XLA,
        gpus_per_node: 72,
        rates: GB200_RATES,
        rows: GB200,
        ..NONE
    },
    BuiltIn {
        name: "a100",
        label: "8 A100 SXM 80 GB, NVLink 3",
        source: BOOK,
        rates: A100_RATES,
        halved: A100,
        ..NONE
    },
    BuiltIn {
        name: "h100-ib",
        label: "nodes of 8 H100, 8 NICs of 400 Gb/s InfiniBand",
        source: "inside a node as h100; between nodes NVIDIA S62129 (GTC 2024), gathers and scatters half of all-reduces; \
                 all else NCCL's tuner",
        nccl: Some(Architecture::Hopper),
        rows: H100,
        halved: IB,
        nic: IB_NIC,
        ..NONE
    },
    BuiltIn {
        name: "b200-efa",
        label: "4 nodes of 8 B200, EFA",
        source: "inside a node as b200; between nodes nccl-tests, \"Machine Learning Engineering\" (S. Bekman), gathers and \
                 scatters half of all-reduces",
        rates: B200_RATES,
        rows: B200,
        halved: EFA,
        nic: EFA_NIC,
        ..NONE
    },
    BuiltIn {
        name: "10gbe",
        label: "nodes of one GPU, 10 Gb/s Ethernet",
        source: MG_WFBP,
        gpus_per_node: 1,
        rates: V100_RATES,
        halved: ETHERNET,
        ..NONE
    },
    BuiltIn {
        name: "56g-ib",
        label: "nodes of one GPU, 56 Gb/s InfiniBand",
        source: MG_WFBP,
        gpus_per_node: 1,
        rates: V100_RATES,
        halved: IB56,
        ..NONE
    },
];

fn cost(lines: impl IntoIterator<Item = (u64, u64)>) -> MessageCost {
    let line = |(alpha_ns, ns_per_byte_num)| Piece { alpha_ns, ns_per_byte_num, ns_per_byte_den: GIB };
    MessageCost::least_of(lines.into_iter().map(line))
}

impl BuiltIn {
    fn profile(&self) -> Profile {
        let mut classes: Map<ClassCosts> = Map::default();
        let mut add = |ranks: u32, nodes: u32, kind: &str, cost: MessageCost| {
            let class = Class { ranks, nodes };
            let row = classes.entry(class.to_string().into());
            let row = row.or_insert_with(|| ClassCosts { class, costs: Map::default() });
            row.costs.insert(kind.into(), cost);
        };
        for &(ranks, nodes, kind, lines) in self.rows {
            add(ranks, nodes, kind, cost(lines.iter().copied()));
        }
        for &(ranks, nodes, kind, lines) in self.halved {
            let half = cost(lines.iter().map(|&(alpha, slope)| (alpha / 2, slope / 2)));
            let exchange = match self.nic {
                0 => half.clone(),
                // All but what stays in the node.
                nic => cost([(half.alpha_ns(), GIB * u64::from(nodes - 1) / (u64::from(nodes) * nic))]),
            };
            add(ranks, nodes, "all_gather", half.clone());
            add(ranks, nodes, "reduce_scatter", half);
            add(ranks, nodes, kind, cost(lines.iter().copied()));
            add(ranks, nodes, "all_to_all", exchange);
        }
        Profile {
            name: self.name.into(),
            label: self.label.into(),
            source: self.source.into(),
            gpus_per_node: self.gpus_per_node,
            // What is copied is read and written.
            copy: CopyCost {
                fixed_ns: COPY_FIXED_NS,
                ns_per_byte_num: 2,
                ns_per_byte_den: self.rates.memory_bytes_per_s / 1_000_000_000,
            },
            rates: Some(self.rates),
            nccl: self.nccl,
            classes: classes.into_values().collect(),
        }
    }
}

impl Profile {
    /// The names of all profiles that are built in.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|built_in| built_in.name)
    }

    /// The profile of this name that is built in.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        BUILT_IN.iter().find(|built_in| built_in.name == name).map(BuiltIn::profile)
    }
}
