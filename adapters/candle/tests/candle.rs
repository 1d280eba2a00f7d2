//! Ranks as threads: gradients are those of one rank with all samples, and what cannot be right is an error that says where.

use bucketeer_candle::{Error, Reducer, chrome_trace};
use bucketeer_comm::local::{LocalOptions, LocalRank, run};
use bucketeer_comm::{Backend, Group};
use bucketeer_reducer::{Caps, ReducerError, ReducerOptions, Scale, Unused};
use bucketeer_types::GlobalRank;
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Module, VarBuilder, VarMap};
use std::sync::Arc;
use std::time::Duration;

/// Runs a body on ranks that share a group.
fn on_ranks<T: Send>(count: u32, body: impl Fn(Arc<LocalRank>, Group) -> T + Sync) -> Vec<T> {
    let options = LocalOptions { timeout: Duration::from_secs(20), pin: false, ..LocalOptions::default() };
    let results = run(count, options, |rank| {
        let members: Vec<GlobalRank> = (0..count).map(GlobalRank).collect();
        let group = rank.new_group("gradients", &members).unwrap();
        body(Arc::new(rank), group)
    });
    results.unwrap().into_iter().map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
}

/// Values that look random, the same everywhere.
fn values(shape: &[usize], seed: u64, dtype: DType) -> Tensor {
    let mut state = seed.wrapping_mul(2_654_435_769).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

/// Variables of these names and shapes.
fn variables(of: &[(&str, &[usize])], dtype: DType) -> VarMap {
    let map = VarMap::new();
    for (seed, (name, shape)) in of.iter().enumerate() {
        let var = Var::from_tensor(&values(shape, seed as u64 + 1, dtype)).unwrap();
        map.data().lock().unwrap().insert((*name).to_owned(), var);
    }
    map
}

fn var(map: &VarMap, name: &str) -> Tensor {
    map.data().lock().unwrap()[name].as_tensor().clone()
}

const MLP: [(&str, &[usize]); 4] =
    [("in.weight", &[5, 7]), ("in.bias", &[7]), ("out.weight", &[7, 3]), ("out.bias", &[3])];

/// The mean over samples of what a small model is off.
fn loss(get: impl Fn(&str) -> Tensor, input: &Tensor) -> Tensor {
    let dense = |x: &Tensor, of: &str| {
        let product = x.matmul(&get(&format!("{of}.weight"))).unwrap();
        product.broadcast_add(&get(&format!("{of}.bias"))).unwrap()
    };
    dense(&dense(input, "in").tanh().unwrap(), "out").sqr().unwrap().sum(1).unwrap().mean(0).unwrap()
}

/// Reads a gradient as f64.
fn numbers(gradients: &GradStore, map: &VarMap, name: &str) -> Option<Vec<f64>> {
    let gradient = gradients.get(&var(map, name))?;
    Some(gradient.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap())
}

#[track_caller]
fn assert_near(found: &[f64], wanted: &[f64], rounding: f64) {
    assert_eq!(found.len(), wanted.len());
    let largest = wanted.iter().fold(0f64, |largest, value| largest.max(value.abs()));
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((found - wanted).abs() <= rounding * largest, "{found} is not {wanted} within {rounding} of {largest}");
    }
}

fn text<T>(result: Result<T, Error>) -> String {
    result.err().expect("it fails").to_string()
}

/// Whether gradients come by marks or after backward.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Marks,
    Bulk,
}

fn gradients(reducer: &mut Reducer, map: &VarMap, way: Way, input: &Tensor) -> Result<GradStore, Error> {
    match way {
        Way::Marks => {
            let step = reducer.step()?;
            let params = step.params();
            step.backward(&loss(|name| params.get(name).unwrap(), input))
        }
        Way::Bulk => {
            let mut gradients = loss(|name| var(map, name), input).backward()?;
            reducer.reduce(&mut gradients)?;
            Ok(gradients)
        }
    }
}

#[test]
fn gradients_are_those_of_one_rank_with_the_whole_batch() {
    for (dtype, rounding) in [(DType::F64, 1e-14), (DType::F32, 1e-6), (DType::BF16, 0.05), (DType::F16, 0.01)] {
        let batch = values(&[8, 5], 99, dtype);
        let map = variables(&MLP, dtype);
        let whole = loss(|name| var(&map, name), &batch).backward().unwrap();
        let whole = MLP.map(|(name, _)| numbers(&whole, &map, name).unwrap());
        for (ranks, way) in [(2, Way::Marks), (4, Way::Marks), (2, Way::Bulk), (4, Way::Bulk)] {
            on_ranks(ranks, |rank, group| {
                let map = variables(&MLP, dtype);
                let own = 8 / ranks as usize;
                let input = batch.narrow(0, rank.rank().0 as usize * own, own).unwrap();
                let options = ReducerOptions { caps: Caps::List(vec![16]), ..ReducerOptions::default() };
                let mut reducer = Reducer::new(rank, &group, &map, options).unwrap();
                // The buckets are made again after the first step.
                for _ in 0..3 {
                    let found = gradients(&mut reducer, &map, way, &input).unwrap();
                    for ((name, _), wanted) in MLP.iter().zip(&whole) {
                        assert_near(&numbers(&found, &map, name).unwrap(), wanted, rounding);
                    }
                }
                assert!(reducer.buckets().len() > 1);
            });
        }
    }
}

#[test]
fn a_parameter_that_is_used_twice_is_marked_once_with_the_whole_gradient() {
    on_ranks(2, |rank, group| {
        let map = variables(&[("w", &[3])], DType::F64);
        let mine = f64::from(rank.rank().0) + 1.0;
        let mut reducer = Reducer::timed(rank, &group, &map, ReducerOptions::default()).unwrap();
        let step = reducer.step().unwrap();
        // Asked for twice, it is one tensor.
        let (once, again) = (step.params().get("w").unwrap(), step.params().get("w").unwrap());
        let loss = ((once * mine).unwrap() + (again * 10.0).unwrap()).unwrap().sum_all().unwrap();
        let gradients = step.backward(&loss).unwrap();
        assert_eq!(numbers(&gradients, &map, "w").unwrap(), [11.5; 3]);
        let times = reducer.take_times();
        assert_eq!((times.len(), times[0].marks.len()), (1, 1));
    });
}

/// A step whose loss uses `used`, and on rank 0 `seldom` as well.
fn use_some(reducer: &mut Reducer, rank: u32) -> Result<GradStore, Error> {
    let step = reducer.step()?;
    let get = |name| step.params().get(name).unwrap().sum_all().unwrap();
    let used = get("used");
    let loss = if rank == 0 { (used + get("seldom")).unwrap() } else { used };
    step.backward(&loss)
}

const SOME: [(&str, &[usize]); 3] = [("used", &[2]), ("seldom", &[2]), ("never", &[2])];

#[test]
fn parameters_without_a_gradient_are_named_where_they_are_refused() {
    let texts = on_ranks(2, |rank, group| {
        let map = variables(&SOME, DType::F32);
        let number = rank.rank().0;
        let mut reducer = Reducer::new(rank, &group, &map, ReducerOptions::default()).unwrap();
        text(use_some(&mut reducer, number))
    });
    assert!(texts[0].contains("rank 0, step 0: no gradient came for parameter 0 (never)"), "{}", texts[0]);
    assert!(texts[1].contains("no gradient came for parameters 0 (never) and 1 (seldom)"), "{}", texts[1]);
}

#[test]
fn a_parameter_that_one_rank_uses_is_averaged_on_all_and_one_that_none_uses_has_no_gradient() {
    on_ranks(2, |rank, group| {
        let map = variables(&SOME, DType::F32);
        let number = rank.rank().0;
        let options = ReducerOptions { unused: Unused::Average, ..ReducerOptions::default() };
        let mut reducer = Reducer::new(rank, &group, &map, options).unwrap();
        for _ in 0..2 {
            let gradients = use_some(&mut reducer, number).unwrap();
            assert_eq!(numbers(&gradients, &map, "used").unwrap(), [1.0; 2]);
            assert_eq!(numbers(&gradients, &map, "seldom").unwrap(), [0.5; 2]);
            assert_eq!(numbers(&gradients, &map, "never"), None);
        }
        // After backward, too.
        let of = |name| var(&map, name).sum_all().unwrap();
        let loss = if number == 0 { (of("used") + of("seldom")).unwrap() } else { of("used") };
        let mut gradients = loss.backward().unwrap();
        reducer.reduce(&mut gradients).unwrap();
        assert_eq!(numbers(&gradients, &map, "seldom").unwrap(), [0.5; 2]);
        assert_eq!(numbers(&gradients, &map, "never"), None);
    });
}

#[test]
fn a_rank_that_keeps_its_own_gradient_has_none_where_it_used_none() {
    on_ranks(2, |rank, group| {
        let map = variables(&SOME, DType::F32);
        let number = rank.rank().0;
        let options = ReducerOptions { unused: Unused::KeepMine, ..ReducerOptions::default() };
        let mut reducer = Reducer::new(rank, &group, &map, options).unwrap();
        let gradients = use_some(&mut reducer, number).unwrap();
        let wanted = (number == 0).then(|| vec![0.5; 2]);
        assert_eq!(numbers(&gradients, &map, "seldom"), wanted);
    });
}

#[test]
fn ranks_with_different_numbers_of_samples_have_the_mean_over_samples() {
    let batch = values(&[8, 5], 99, DType::F64);
    let map = variables(&MLP, DType::F64);
    let whole = loss(|name| var(&map, name), &batch).backward().unwrap();
    let whole = MLP.map(|(name, _)| numbers(&whole, &map, name).unwrap());
    on_ranks(2, |rank, group| {
        let map = variables(&MLP, DType::F64);
        let (from, samples) = [(0, 3), (3, 5)][rank.rank().0 as usize];
        let input = batch.narrow(0, from, samples).unwrap();
        let options = ReducerOptions { scale: Scale::Weighted, ..ReducerOptions::default() };
        let mut reducer = Reducer::new(rank, &group, &map, options).unwrap();
        let step = reducer.weighted_step(samples as f64).unwrap();
        let params = step.params();
        let marked = step.backward(&loss(|name| params.get(name).unwrap(), &input)).unwrap();
        let mut bulk = loss(|name| var(&map, name), &input).backward().unwrap();
        reducer.reduce_weighted(&mut bulk, samples as f64).unwrap();
        for ((name, _), wanted) in MLP.iter().zip(&whole) {
            assert_near(&numbers(&marked, &map, name).unwrap(), wanted, 1e-14);
            assert_near(&numbers(&bulk, &map, name).unwrap(), wanted, 1e-14);
        }
        assert!(text(reducer.step().map(drop)).contains("`weighted_step`"));
    });
}

#[test]
fn names_are_in_order_however_the_map_was_filled() {
    let names = ["b.weight", "a", "layer.10.bias", "layer.2.bias", "b.bias"];
    on_ranks(2, |rank, group| {
        let mut list: Vec<(&str, &[usize])> = names.iter().map(|name| (*name, &[2usize][..])).collect();
        if rank.rank() == GlobalRank(1) {
            list.reverse();
        }
        let map = variables(&list, DType::F32);
        let mut reducer = Reducer::new(rank, &group, &map, ReducerOptions::default()).unwrap();
        let wanted = ["a", "b.bias", "b.weight", "layer.10.bias", "layer.2.bias"];
        assert_eq!(reducer.names().collect::<Vec<_>>(), wanted);
        let step = reducer.step().unwrap();
        assert_eq!(step.params().names().collect::<Vec<_>>(), wanted);
        assert!(
            step.params().get("c").unwrap_err().to_string().contains("no parameter of this reducer has the name `c`")
        );
    });
}

#[test]
fn ranks_with_different_maps_are_told_what_differs() {
    let texts = on_ranks(2, |rank, group| {
        let shape: &[usize] = if rank.rank() == GlobalRank(0) { &[2] } else { &[3] };
        let map = variables(&[("a", &[1]), ("b", shape)], DType::F32);
        text(Reducer::new(rank, &group, &map, ReducerOptions::default()))
    });
    for text in texts {
        assert!(text.contains("ranks disagree on parameter 1") && text.contains("[3]"), "{text}");
    }
}

#[test]
fn a_second_backward_in_a_step_is_refused_with_the_name_of_the_parameter() {
    let texts = on_ranks(1, |rank, group| {
        let map = variables(&[("w", &[3])], DType::F32);
        let mut reducer = Reducer::new(rank, &group, &map, ReducerOptions::default()).unwrap();
        let step = reducer.step().unwrap();
        let loss = step.params().get("w").unwrap().sum_all().unwrap();
        loss.backward().unwrap();
        let error = step.backward(&loss).unwrap_err();
        assert!(matches!(error, Error::Reducer(ReducerError::Mark { .. })), "{error:?}");
        // The step is given up; candle's own error says why, too.
        (error.to_string(), loss.backward().unwrap_err().to_string())
    });
    for (rank, (first, second)) in texts.iter().enumerate() {
        let place = format!("rank {rank}, step 0, parameter 0 (w): it is marked a second time in this step");
        assert!(first.contains(&place) && second.contains(&place), "{first}\n{second}");
    }
}

#[test]
fn parameters_that_outlive_their_step_are_refused_by_backward() {
    on_ranks(2, |rank, group| {
        let map = variables(&[("a", &[3]), ("w", &[3])], DType::F32);
        let options = ReducerOptions { unused: Unused::Average, ..ReducerOptions::default() };
        let mut reducer = Reducer::new(rank, &group, &map, options).unwrap();
        let step = reducer.step().unwrap();
        let (a, w) = (step.params().get("a").unwrap(), step.params().get("w").unwrap());
        step.backward(&a.sum_all().unwrap()).unwrap();
        let text = w.sum_all().unwrap().backward().unwrap_err().to_string();
        assert!(text.contains("step 0, parameter 1 (w): the step is over"), "{text}");
        // The next step is not harmed.
        let step = reducer.step().unwrap();
        let loss = step.params().get("w").unwrap().sum_all().unwrap();
        assert_eq!(numbers(&step.backward(&loss).unwrap(), &map, "w").unwrap(), [1.0; 3]);
    });
}

#[test]
fn a_variable_that_forward_uses_itself_is_reduced_late_and_never_half() {
    on_ranks(2, |rank, group| {
        let map = variables(&[("a", &[2]), ("w", &[2])], DType::F32);
        // A factor of 0 would be no use at all to candle.
        let mine = f64::from(rank.rank().0) + 1.0;
        let mut reducer = Reducer::new(rank, &group, &map, ReducerOptions::default()).unwrap();
        let step = reducer.step().unwrap();
        let loss = (step.params().get("a").unwrap() * mine).unwrap() + (var(&map, "w") * mine).unwrap();
        let gradients = step.backward(&loss.unwrap().sum_all().unwrap()).unwrap();
        assert_eq!(numbers(&gradients, &map, "a").unwrap(), [1.5; 2]);
        assert_eq!(numbers(&gradients, &map, "w").unwrap(), [1.5; 2]);

        let step = reducer.step().unwrap();
        let loss = (step.params().get("a").unwrap() + var(&map, "a")).unwrap() + var(&map, "w");
        let text = text(step.backward(&loss.unwrap().sum_all().unwrap()));
        assert!(text.contains("step 1, parameter 0 (a): it is marked a second time"), "{text}");
        assert!(text.contains("use only what the step gives"), "{text}");
    });
}

#[test]
fn gradients_of_any_strides_are_reduced() {
    on_ranks(2, |rank, group| {
        let map = variables(&[("w", &[2, 3]), ("x", &[2, 3]), ("y", &[2, 2])], DType::F32);
        let mine = f64::from(rank.rank().0) * 2.0;
        let mut reducer = Reducer::new(rank, &group, &map, ReducerOptions::default()).unwrap();
        // A gradient store comes from backward only.
        let mut gradients = var(&map, "w").sum_all().unwrap().backward().unwrap();
        let count = Tensor::arange(0f32, 6.0, &Device::Cpu).unwrap();
        let turned = count.reshape((3, 2)).unwrap().t().unwrap();
        assert!(!turned.is_contiguous());
        let one = Tensor::new(&[[1f32], [2.0]], &Device::Cpu).unwrap();
        gradients.insert(&var(&map, "w"), turned);
        gradients.insert(&var(&map, "x"), (one * mine).unwrap().broadcast_as((2, 3)).unwrap());
        gradients.insert(&var(&map, "y"), count.reshape((2, 3)).unwrap().narrow(1, 1, 2).unwrap());
        reducer.reduce(&mut gradients).unwrap();
        assert_eq!(numbers(&gradients, &map, "w").unwrap(), [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
        assert_eq!(numbers(&gradients, &map, "x").unwrap(), [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
        assert_eq!(numbers(&gradients, &map, "y").unwrap(), [1.0, 2.0, 4.0, 5.0]);
    });
}

#[test]
fn a_gradient_of_another_shape_or_dtype_is_refused_with_both() {
    on_ranks(2, |rank, group| {
        let map = variables(&[("w", &[2, 3])], DType::F32);
        let mut reducer = Reducer::new(rank, &group, &map, ReducerOptions::default()).unwrap();
        let mut gradients = var(&map, "w").sum_all().unwrap().backward().unwrap();
        gradients.insert(&var(&map, "w"), values(&[3, 2], 1, DType::F32));
        let text = text(reducer.reduce(&mut gradients));
        assert!(text.contains("parameter 0 (w): its gradient is f32 [3, 2]; it is f32 [2, 3]"), "{text}");
    });
}

#[test]
fn variables_that_cannot_be_reduced_are_named() {
    on_ranks(1, |rank, group| {
        let map = variables(&[("a", &[2]), ("codes", &[2])], DType::F32);
        let codes = Var::from_tensor(&Tensor::new(&[1u32, 2], &Device::Cpu).unwrap()).unwrap();
        map.data().lock().unwrap().insert("codes".to_owned(), codes);
        let text = text(Reducer::new(rank, &group, &map, ReducerOptions::default()));
        assert!(text.contains("rank 0: variable `codes` is of u32; only f64, f32, f16 and bf16 are reduced"), "{text}");
    });
}

#[test]
fn a_variable_that_comes_after_the_reducer_is_refused_by_the_next_step() {
    on_ranks(1, |rank, group| {
        let map = variables(&[("a", &[2])], DType::F32);
        let mut reducer = Reducer::new(rank, &group, &map, ReducerOptions::default()).unwrap();
        VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu).pp("late").get(3, "b").unwrap();
        let text = text(reducer.step().map(drop));
        assert!(
            text.contains("the map has 2 variables, and had 1") && text.contains("new or replaced: `late.b`"),
            "{text}"
        );
    });
}

#[test]
fn accumulated_gradients_are_part_of_the_next_step() {
    on_ranks(2, |rank, group| {
        let map = variables(&[("w", &[2])], DType::F32);
        let mine = f64::from(rank.rank().0);
        let mut reducer = Reducer::new(rank, &group, &map, ReducerOptions::default()).unwrap();
        for times in [1.0, 10.0] {
            let loss = (var(&map, "w") * (mine * times)).unwrap().sum_all().unwrap();
            reducer.accumulate(&loss.backward().unwrap()).unwrap();
        }
        let step = reducer.step().unwrap();
        let loss = (step.params().get("w").unwrap() * 100.0).unwrap().sum_all().unwrap();
        let gradients = step.backward(&loss).unwrap();
        assert_eq!(numbers(&gradients, &map, "w").unwrap(), [105.5; 2]);
    });
}

#[test]
fn a_model_of_candle_nn_is_made_of_a_steps_parameters() {
    on_ranks(2, |rank, group| {
        let map = VarMap::new();
        let model = |builder: VarBuilder<'_>| candle_nn::linear(3, 2, builder.pp("fc")).unwrap();
        model(VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu));
        let input = values(&[4, 3], u64::from(rank.rank().0), DType::F32);
        let both: Vec<Tensor> = (0..2).map(|rank| values(&[4, 3], rank, DType::F32)).collect();
        let mut reducer = Reducer::new(rank, &group, &map, ReducerOptions::default()).unwrap();
        let step = reducer.step().unwrap();
        let found = model(step.params().var_builder(DType::F32)).forward(&input).unwrap().sum_all().unwrap();
        let found = step.backward(&found).unwrap();
        // Each rank's weights are others, but the gradient of a sum does not depend on them.
        let both = Tensor::cat(&both, 0).unwrap();
        let whole = model(VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu)).forward(&both).unwrap();
        let whole = (whole.sum_all().unwrap() * 0.5).unwrap().backward().unwrap();
        for name in ["fc.weight", "fc.bias"] {
            assert_near(&numbers(&found, &map, name).unwrap(), &numbers(&whole, &map, name).unwrap(), 1e-6);
        }
        let step = reducer.step().unwrap();
        let wrong = step.params().var_builder(DType::F32).pp("fc").get((3, 2), "weight").unwrap_err().to_string();
        assert!(wrong.contains("parameter `fc.weight` is [2, 3], and asked for as [3, 2]"), "{wrong}");
    });
}

#[test]
fn a_rank_that_fails_is_named_by_the_other_with_its_reason() {
    let texts = on_ranks(2, |rank, group| {
        let map = variables(&[("a", &[2]), ("w", &[2])], DType::F32);
        let number = rank.rank().0;
        let mut reducer = Reducer::new(rank, &group, &map, ReducerOptions::default()).unwrap();
        let mut take_step = || {
            let step = reducer.step()?;
            let mut loss = (step.params().get("a")? + step.params().get("w")?)?;
            if number == 1 {
                loss = (loss + var(&map, "a"))?;
            }
            step.backward(&loss.sum_all()?)
        };
        // By then the bucket is on its way: the other rank may have this step, and not the next one.
        let error = take_step().and_then(|_| take_step()).map(drop);
        text(error)
    });
    assert!(texts[1].contains("rank 1, step 0, parameter 0 (a): it is marked a second time"), "{}", texts[1]);
    assert!(texts[0].contains("rank 1") && texts[0].contains("parameter 0 (a)"), "{}", texts[0]);
}

#[test]
fn buckets_are_on_their_way_before_the_last_mark_and_the_trace_shows_them() {
    let traces = on_ranks(2, |rank, group| {
        let map = variables(&MLP, DType::F32);
        let (number, input) = (rank.rank(), values(&[4, 5], 7, DType::F32));
        let options = ReducerOptions { caps: Caps::Bytes { first: 1, rest: 1 }, ..ReducerOptions::default() };
        let mut reducer = Reducer::timed(rank, &group, &map, options).unwrap();
        for _ in 0..3 {
            gradients(&mut reducer, &map, Way::Marks, &input).unwrap();
        }
        let times = reducer.take_times();
        assert_eq!(reducer.take_times(), []);
        // All in one bucket in the first step, then one for each.
        assert_eq!(times.iter().map(|step| step.buckets.len()).collect::<Vec<_>>(), [1, 4, 4]);
        assert_eq!(times.iter().map(|step| step.launched_early()).collect::<Vec<_>>(), [0, 3, 3]);
        for step in &times {
            assert_eq!(step.marks.len(), 4);
            let launched: Vec<_> = step.launches.iter().filter_map(|launch| launch.bucket).collect();
            assert_eq!(launched, (0..step.buckets.len()).collect::<Vec<_>>());
            assert!(step.launches.iter().all(|launch| launch.launched <= launch.done && launch.done <= step.finish.1));
            let (begin, end) = step.backward.unwrap();
            assert!(step.marks.iter().all(|mark| begin <= mark.begin && mark.end <= end));
        }
        chrome_trace(number, &reducer.names().collect::<Vec<_>>(), &times)
    });
    let events = traces[0]["traceEvents"].as_array().unwrap();
    let of = |name: &str| events.iter().filter(|event| event["name"] == name && event["ph"] == "X").count();
    assert_eq!((of("out.bias"), of("bucket 0"), of("bucket 3"), of("backward"), of("finish")), (3, 3, 2, 3, 3));
    assert_eq!(chrome_trace(GlobalRank(0), &[], &[])["traceEvents"], serde_json::json!([]));
}
