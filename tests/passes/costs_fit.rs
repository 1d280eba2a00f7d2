//! Profiles that are built in, held against what others measured.

use bucketeer::ir::{CollectiveKind, ReduceOp};
use bucketeer::passes::schedule::Profile;
use bucketeer::passes::schedule::profile::Class;

const GATHER: CollectiveKind = CollectiveKind::AllGather { dim: 0 };
const SCATTER: CollectiveKind = CollectiveKind::ReduceScatter { op: ReduceOp::Sum, dim: 0 };
const REDUCE: CollectiveKind = CollectiveKind::AllReduce { op: ReduceOp::Sum };
const MIB: u64 = 1 << 20;

/// Relative errors, in thousandths, of the times of a profile at points of bytes and microseconds.
fn errors(profile: &str, ranks: u32, kind: CollectiveKind, points: &[(u64, f64)]) -> Vec<u64> {
    let profile = Profile::named(profile).unwrap();
    let nodes = ranks.div_ceil(profile.gpus_per_node);
    let cost = profile.message(Class { ranks, nodes }, kind).unwrap();
    let error = |&(bytes, us): &(u64, f64)| ((cost.ns(bytes) as f64 / (us * 1000.0) - 1.0).abs() * 1000.0) as u64;
    let mut errors: Vec<u64> = points.iter().map(error).collect();
    errors.sort_unstable();
    errors
}

/// Holds the median to 10 % and the worst to 20 %.
#[track_caller]
fn hold(profile: &str, ranks: u32, kind: CollectiveKind, points: &[(u64, f64)]) {
    let errors = errors(profile, ranks, kind, points);
    let (median, worst) = (errors[errors.len() / 2], errors[errors.len() - 1]);
    assert!(median <= 100 && worst <= 200, "{profile} {ranks} {kind:?}: {errors:?} in thousandths");
}

/// Microseconds of an all-reduce by its bus bandwidth in GB/s.
fn reduce_us(ranks: u32, bytes: u64, bus_gb_per_s: f64) -> f64 {
    let share = 2.0 * f64::from(ranks - 1) / f64::from(ranks);
    bytes as f64 * share / (bus_gb_per_s * 1000.0)
}

fn curve(ranks: u32, points: &[(u64, f64)]) -> Vec<(u64, f64)> {
    points.iter().map(|&(mib, bus)| (mib * MIB, reduce_us(ranks, mib * MIB, bus))).collect()
}

#[test]
fn h100_has_the_times_of_xlas_table() {
    // Microseconds at 1, 16 and 256 MiB among eight.
    for (kind, us) in [(GATHER, [31.1, 82.2, 729.3]), (REDUCE, [52.0, 145.0, 1262.0])] {
        let points = [MIB, 16 * MIB, 256 * MIB].into_iter().zip(us).collect::<Vec<_>>();
        hold("h100", 8, kind, &points);
    }
    // Bytes a nanosecond at 2 GiB, among two, four and eight.
    for (kind, speeds) in
        [(GATHER, [550.0, 443.0, 402.0]), (SCATTER, [410.0, 383.0, 376.0]), (REDUCE, [250.0, 202.0, 230.0])]
    {
        for (ranks, speed) in [2, 4, 8].into_iter().zip(speeds) {
            let bytes = 2048 * MIB;
            hold("h100", ranks, kind, &[(bytes, bytes as f64 / speed / 1000.0)]);
        }
    }
}

/// The table has 41 us at 512 KiB, 20 us at 1 MiB and 34 us at 2 MiB: no curve that rises meets all of them.
#[test]
fn one_point_of_h100s_scatters_is_two_thirds_off_and_named() {
    hold("h100", 8, SCATTER, &[(16 * MIB, 87.0), (256 * MIB, 771.0), (2048 * MIB, 5711.0)]);
    let off = errors("h100", 8, SCATTER, &[(MIB, 20.4)]);
    assert!((600..=700).contains(&off[0]), "{off:?}");
}

#[test]
fn b200_and_gb200_reach_the_speed_of_xlas_table() {
    for (kind, speed) in [(GATHER, 704.0), (SCATTER, 733.0), (REDUCE, 351.0)] {
        let bytes = 2048 * MIB;
        hold("b200", 8, kind, &[(bytes, bytes as f64 / speed / 1000.0)]);
    }
    // Fits of one line to the table: microseconds, and for each MiB. They miss single points by up to half, and the all-reduce
    // of 72 by 30 % at 128 MiB, so only large sizes are held.
    for (profile, ranks, kind, alpha, beta) in [
        ("b200", 8, GATHER, 36.0, 1.56),
        ("b200", 8, SCATTER, 37.0, 1.55),
        ("b200", 8, REDUCE, 57.0, 3.22),
        ("gb200-nvl72", 72, GATHER, 110.0, 1.59),
        ("gb200-nvl72", 72, SCATTER, 114.0, 1.54),
        ("gb200-nvl72", 72, REDUCE, 71.0, 2.76),
    ] {
        let sizes: &[u64] = if (ranks, kind) == (72, REDUCE) { &[1024] } else { &[128, 256, 1024] };
        let points: Vec<(u64, f64)> = sizes.iter().map(|&mib| (mib * MIB, alpha + beta * mib as f64)).collect();
        hold(profile, ranks, kind, &points);
    }
}

#[test]
fn h100_over_infiniband_has_nvidias_curve() {
    for (ranks, bus) in [
        (32, [126.0, 230.0, 278.0, 314.0, 338.0, 351.0, 361.0, 366.0]),
        (64, [81.0, 190.0, 258.0, 309.0, 341.0, 348.0, 366.0, 371.0]),
        (128, [71.0, 176.0, 243.0, 297.0, 330.0, 349.0, 366.0, 372.0]),
        (256, [66.0, 166.0, 225.0, 275.0, 319.0, 344.0, 360.0, 368.0]),
        (512, [57.0, 150.0, 212.0, 266.0, 309.0, 340.0, 358.0, 368.0]),
        (1024, [47.0, 125.0, 181.0, 255.0, 300.0, 332.0, 348.0, 366.0]),
        (8192, [32.0, 107.0, 158.0, 217.0, 268.0, 307.0, 328.0, 365.0]),
    ] {
        let sizes = [16, 64, 128, 256, 512, 1024, 2048, 8192];
        let points: Vec<(u64, f64)> = sizes.into_iter().zip(bus).collect();
        let points = curve(ranks, &points);
        let errors = errors("h100-ib", ranks, REDUCE, &points);
        assert!(errors.iter().all(|&error| error <= 50), "{ranks}: {errors:?} in thousandths");
        // A gather takes half as long.
        let halves: Vec<(u64, f64)> = points.iter().map(|&(bytes, us)| (bytes, us / 2.0)).collect();
        hold("h100-ib", ranks, GATHER, &halves);
    }
}

#[test]
fn classes_between_those_of_the_curve_are_between() {
    let profile = Profile::named("h100-ib").unwrap();
    let ns = |ranks: u32| profile.message(Class { ranks, nodes: ranks / 8 }, REDUCE).unwrap().ns(64 * MIB);
    let times = [16, 32, 48, 64, 96, 128, 1024, 2048, 4096, 8192].map(ns);
    assert_eq!(times[0], times[1]);
    assert!(times[1..].windows(2).all(|pair| pair[0] < pair[1]), "{times:?}");
}

#[test]
fn a100_and_efa_have_the_curves_of_the_book() {
    let a100 =
        [(1, 18.0), (16, 106.0), (64, 172.0), (128, 177.0), (256, 194.0), (512, 223.0), (1024, 229.0), (16_384, 235.0)];
    hold("a100", 8, REDUCE, &curve(8, &a100));
    let efa = [(1, 5.0), (16, 64.0), (128, 198.0), (512, 327.0), (1024, 362.0), (16_384, 382.0)];
    hold("b200-efa", 32, REDUCE, &curve(32, &efa));
}

#[test]
fn ethernet_and_older_infiniband_have_the_constants_of_mg_wfbp() {
    for (profile, ranks, alpha_s, s_per_byte) in [
        ("10gbe", 8, 5.23e-4, 8.57e-10),
        ("10gbe", 16, 9.08e-4, 7.40e-10),
        ("56g-ib", 2, 2.55e-6, 9.84e-11),
        ("56g-ib", 4, 4.20e-5, 2.06e-10),
        ("56g-ib", 8, 9.75e-5, 3.06e-10),
        ("56g-ib", 16, 2.36e-4, 4.06e-10),
    ] {
        let points =
            [MIB / 16, MIB, 64 * MIB, 1024 * MIB].map(|bytes| (bytes, 1e6 * (alpha_s + s_per_byte * bytes as f64)));
        let errors = errors(profile, ranks, REDUCE, &points);
        assert!(errors.iter().all(|&error| error == 0), "{profile} {ranks}: {errors:?}");
    }
}

#[test]
fn every_profile_is_found_by_its_name_and_has_a_source_and_rows() {
    let names: Vec<&str> = Profile::names().collect();
    assert_eq!(names, ["h100", "b200", "gb200-nvl72", "a100", "h100-ib", "b200-efa", "10gbe", "56g-ib"]);
    for name in names {
        let profile = Profile::named(name).unwrap();
        assert!(!profile.source.is_empty() && !profile.label.is_empty() && !profile.classes.is_empty(), "{name}");
        for row in &profile.classes {
            for kind in ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"] {
                let cost = &row.costs[kind];
                let times: Vec<u64> = (0..36).map(|power| cost.ns(1 << power)).collect();
                assert!(times.windows(2).all(|pair| pair[0] <= pair[1]), "{name} {} {kind}: {times:?}", row.class);
                assert!(cost.alpha_ns() > 0 && cost.pieces().len() <= 4, "{name} {} {kind}", row.class);
            }
        }
    }
    assert_eq!(Profile::named("h1000"), None);
}
