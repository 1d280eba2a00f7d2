//! Stage `config`: caps.

use super::{Buckets, rewrite, rewrite_shapes};
use bucketeer::passes::Pipeline;
use bucketeer::passes::bucketing::Reason;
use kit::rewrite::sketch;

#[test]
fn cap_1_no_bucket_is_above_the_cap_unless_it_has_one_member() {
    let done = rewrite_shapes(&sketch("cap-1"), "bucket-all-reduce{cap=25MB,policy=adjacent}", &[&["s2", "s3", "s4"]]);
    let Reason::Oversize { bytes, cap_bytes } = done.reason("s1") else { panic!("{:?}", done.reason("s1")) };
    assert_eq!((*bytes, *cap_bytes), (30_000_000, 25_000_000));
    let done = rewrite_shapes(&sketch("cap-1"), "bucket-all-reduce{cap=25MB}", &[&["s0", "s2", "s3", "s4"]]);
    assert_eq!(done.reason("s1").label(), "oversize");
}

#[test]
fn cap_1_the_cap_itself_still_fits_and_a_byte_less_does_not() {
    // Two members of 32 bytes.
    let text = "x = input f32[8]; y = input f32[8]\ncx = all_reduce(x, sum, G0:2); cy = all_reduce(y, sum, G0:2)\n\
                output(wait(cx), wait(cy))";
    const ONE: Buckets<'_> = &[&["cx", "cy"]];
    for (cap, buckets) in [(31, &[] as Buckets<'_>), (32, &[]), (63, &[]), (64, ONE), (65, ONE)] {
        let done = rewrite(text, &format!("bucket-all-reduce{{cap={cap}}}"), buckets);
        assert_eq!(done.count("all_reduce"), 2 - buckets.len(), "{cap}");
    }
    assert_eq!(rewrite(text, "bucket-all-reduce{cap=32}", &[]).reason("cy").label(), "cap reached");
    assert_eq!(rewrite(text, "bucket-all-reduce{cap=31}", &[]).reason("cy").label(), "oversize");
}

#[test]
fn cap_1_the_first_bucket_may_have_a_cap_of_its_own() {
    let text = sketch("cap-1");
    rewrite_shapes(&text, "bucket-all-reduce{cap=10MB/30MB}", &[&["s2", "s3", "s4"]]);
    rewrite_shapes(&text, "bucket-all-reduce{cap=none,max-members=2}", &[&["s0", "s1"], &["s2", "s3"]]);
}

#[test]
fn cap_2_each_value_of_a_cap_has_a_defined_result_or_one_line_of_error() {
    let parse = |cap: &str| format!("bucket-all-gather{{cap={cap}}}").parse::<Pipeline>();
    for (cap, message) in [
        ("0", "option `cap` of pass `bucket-all-gather`: a cap of zero holds nothing"),
        ("-1", "option `cap` of pass `bucket-all-gather`: `-1` is not a size"),
        ("true", "option `cap` of pass `bucket-all-gather`: `true` is not a size"),
        ("nan", "`nan` is not a size"),
        ("inf", "`inf` is not a size"),
        ("", "`` is not a size"),
        ("1.5", "`1.5` is not a size"),
        ("99999999TiB", "`99999999TiB` is not a size"),
    ] {
        let error = parse(cap).unwrap_err().to_string();
        assert!(error.contains(message) && !error.contains('\n'), "{cap}: {error}");
    }
    let text = "a = input f32[5]; b = input f32[3]; g0 = all_gather(a, G0:2); g1 = all_gather(b, G0:2)\n\
                output(wait(g0), wait(g1))";
    let one: Buckets<'_> = &[&["g0", "g1"]];
    for (cap, buckets) in [("none", one), ("unlimited", one), ("12TiB", one), ("1", &[])] {
        assert!(parse(cap).is_ok(), "{cap}");
        rewrite(text, &format!("bucket-all-gather{{cap={cap}}}"), buckets);
    }
}
