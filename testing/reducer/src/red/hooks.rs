//! Hooks.

use super::{case, error_of, f32s, gradient, indices, make_with, numbers, pairs, place, read, same_on_all, whole_step};
use crate::Case;
use bucketeer_comm::{Buffer, Call, Group, Op, Operands};
use bucketeer_reducer::hooks::{AllReduce, Cast16, PowerSgd, PowerSgdOptions, Quantise};
use bucketeer_reducer::{
    BucketLayout, Caps, Hook, HookBucket, HookError, JoinDivide, JoinOptions, Param, ReducerError, ReducerOptions,
    Stage,
};
use bucketeer_types::{DType, GlobalRank, GroupRank};
use std::sync::{Arc, Mutex};

/// What a hook of these tests was told.
#[derive(Default)]
struct Told {
    calls: Vec<(u64, usize, bool)>,
    rebuilt: Vec<Vec<Vec<usize>>>,
}

/// A hook that notes what it is told, and leaves gradients as they are.
struct Notes(Arc<Mutex<Told>>);

impl Hook for Notes {
    fn describe(&self) -> String {
        "notes".to_owned()
    }

    fn begin(&mut self, bucket: &HookBucket<'_>) -> Result<Stage, HookError> {
        let layout = bucket.layout();
        self.0.lock().unwrap().calls.push((bucket.step(), layout.index, layout.is_last()));
        Ok(Stage::Done)
    }

    fn next(&mut self, _: &HookBucket<'_>, _: usize) -> Result<Stage, HookError> {
        Ok(Stage::Done)
    }

    fn rebuilt(&mut self, buckets: &[BucketLayout], _: &Group) {
        let of = |bucket: &BucketLayout| bucket.parts.iter().map(|part| part.param).collect();
        self.0.lock().unwrap().rebuilt.push(buckets.iter().map(of).collect());
    }
}

/// A hook that fails in one way in its second step, on the last rank.
struct Fails {
    how: &'static str,
    here: bool,
}

impl Hook for Fails {
    fn describe(&self) -> String {
        format!("fails: {}", self.how)
    }

    fn begin(&mut self, bucket: &HookBucket<'_>) -> Result<Stage, HookError> {
        if bucket.step() < 1 || bucket.layout().index != 1 || !self.here {
            return AllReduce.begin(bucket);
        }
        match self.how {
            "error" => Err("the disk is full".into()),
            "panic" => panic!("off by one"),
            "length" => Ok(Stage::DoneIn(bucket.scratch(4)?)),
            _ => {
                // A root that no group has.
                let op = Op::Broadcast { root: GroupRank(99) };
                Ok(Stage::Calls(vec![
                    Call::collective(op, Operands::in_place(bucket.buffer().clone(), DType::F32)).into(),
                ]))
            }
        }
    }

    fn next(&mut self, _: &HookBucket<'_>, _: usize) -> Result<Stage, HookError> {
        Ok(Stage::Done)
    }
}

/// Waits for one stage more in each bucket: bucket 0 has one, bucket 1 two, and so on; sums in the first.
struct Stages(Arc<Mutex<Vec<(usize, usize)>>>);

impl Stages {
    fn gather(bucket: &HookBucket<'_>) -> Result<Stage, HookError> {
        let whole = bucket.scratch(8 * bucket.group().size() as u64)?;
        let own: Buffer = whole.part(8 * u64::from(bucket.group().rank().0), 8)?;
        Ok(Stage::Calls(vec![Call::collective(Op::AllGather, Operands::new(own, whole, DType::U8)).into()]))
    }
}

impl Hook for Stages {
    fn describe(&self) -> String {
        "stages".to_owned()
    }

    fn begin(&mut self, bucket: &HookBucket<'_>) -> Result<Stage, HookError> {
        self.0.lock().unwrap().push((0, bucket.layout().index));
        AllReduce.begin(bucket)
    }

    fn next(&mut self, bucket: &HookBucket<'_>, stage: usize) -> Result<Stage, HookError> {
        if stage == bucket.layout().index {
            return Ok(Stage::Done);
        }
        self.0.lock().unwrap().push((stage + 1, bucket.layout().index));
        // Some stages have no call at all.
        if stage == 1 { Ok(Stage::Calls(Vec::new())) } else { Self::gather(bucket) }
    }
}

fn buckets_of_one() -> ReducerOptions {
    ReducerOptions { caps: Caps::List(vec![8]), ..ReducerOptions::default() }
}

fn failing(how: &'static str, words: &'static str) -> Case {
    case(&format!("red_19_a_hook_that_fails_by_{how}_is_an_error_of_the_step_on_all_ranks"), 2, move |rank| {
        let here = place(rank) == 1;
        let mut reducer = make_with(rank, pairs(3), buckets_of_one(), Fails { how, here });
        whole_step(&mut reducer, place(rank), &[2, 1, 0]);
        rank.settle();
        let step = reducer.step().unwrap();
        let marked: Result<Vec<()>, _> =
            [2, 1, 0].into_iter().map(|param| step.ready(param, &gradient(place(rank), param, 2))).collect();
        let error = match marked {
            Err(error) => {
                drop(step);
                error
            }
            Ok(_) => error_of(step.finish()),
        };
        let text = error.to_string();
        assert!(text.contains("rank 1") && text.contains("bucket 1 (from parameter 1 (p1))"), "{text}");
        assert!(text.contains(words), "{text}");
        assert_eq!(matches!(error, ReducerError::Hook { .. }), here, "{text}");
        assert!(matches!(error_of(reducer.step()), ReducerError::Broken { .. }));
    })
}

pub fn cases() -> Vec<Case> {
    vec![
        failing("error", "the disk is full"),
        failing("panic", "it panicked: off by one"),
        failing("length", "has 4 bytes, the bucket 8"),
        failing("call", "a call of it cannot be made"),
        case("ranks_that_wait_in_a_hooks_own_group_are_released_when_one_fails", 2, |rank| {
            let pair = rank.again("pair");
            let hook = bucketeer_reducer::hooks::PostLocal::new(pair, 1);
            let mut reducer = make_with(rank, pairs(2), buckets_of_one(), hook);
            whole_step(&mut reducer, place(rank), &[1, 0]);
            rank.settle();
            let step = reducer.step().unwrap();
            let used: &[usize] = if place(rank) == 0 { &[1, 0] } else { &[1] };
            let marked: Result<Vec<()>, _> =
                used.iter().map(|param| step.ready(*param, &gradient(place(rank), *param, 2))).collect();
            let text = match marked {
                Err(error) => error.to_string(),
                Ok(_) => error_of(step.finish()).to_string(),
            };
            assert!(text.contains("rank 1") && text.contains("no gradient came for parameter 0 (p0)"), "{text}");
        }),
        case("red_20_stages_of_several_buckets_have_one_order_on_all_ranks", 3, |rank| {
            let order = Arc::new(Mutex::new(Vec::new()));
            let mut reducer = make_with(rank, pairs(4), buckets_of_one(), Stages(order.clone()));
            for step in 0..3 {
                order.lock().unwrap().clear();
                // Ranks are ready at different times, in their own order.
                let marks = [[3, 2, 1, 0], [0, 1, 2, 3], [1, 3, 0, 2]][(place(rank) + step) % 3];
                std::thread::sleep(std::time::Duration::from_millis(2 * place(rank) as u64));
                let reduced = whole_step(&mut reducer, place(rank), &marks);
                (0..4).for_each(|param| assert_eq!(read(&reduced, param, 2), Some(mean3(param)), "{param}"));
                let mut wanted: Vec<(usize, usize)> =
                    (0..4).flat_map(|stage| (stage..4).map(move |bucket| (stage, bucket))).collect();
                wanted.sort_unstable();
                assert_eq!(*order.lock().unwrap(), wanted);
            }
        }),
        case("red_20_powersgd_and_quantise_run_with_many_buckets_and_empty_ones", 3, |rank| {
            let power = PowerSgdOptions { start_step: 2, ..PowerSgdOptions::default() };
            let hooks: [Box<dyn Hook>; 2] = [Box::new(PowerSgd::new(power).unwrap()), Box::new(Quantise::per_tensor())];
            for (nth, hook) in hooks.into_iter().enumerate() {
                let group = rank.again(&format!("hook {nth}"));
                let params: Vec<Param> = [[12, 8], [0, 3], [8, 12], [1, 1]]
                    .iter()
                    .enumerate()
                    .map(|(at, shape)| Param::new(format!("m{at}"), shape, DType::F32))
                    .collect();
                let lens = params.iter().map(|param| param.elements() as usize).collect::<Vec<_>>();
                let options = ReducerOptions { caps: Caps::List(vec![1]), ..ReducerOptions::default() };
                let made = bucketeer_reducer::Reducer::with_hook(rank.backend.clone(), &group, params, options, hook);
                let mut reducer = made.unwrap();
                for _ in 0..5 {
                    let step = reducer.step().unwrap();
                    for param in [3, 2, 1, 0] {
                        step.ready(param, &gradient(place(rank), param, lens[param])).unwrap();
                    }
                    let reduced = step.finish().unwrap();
                    let found: Vec<f32> =
                        (0..4).flat_map(|param| read(&reduced, param, lens[param]).unwrap()).collect();
                    assert!(found.iter().all(|value| value.is_finite()));
                    same_on_all(rank, &f32s(&found));
                }
            }
        }),
        case("red_21_buckets_are_numbered_right_in_every_step_and_red_22_hooks_are_told_of_rebuilds", 2, |rank| {
            for static_graph in [false, true] {
                let group = rank.again(if static_graph { "static" } else { "dynamic" });
                let told = Arc::new(Mutex::new(Told::default()));
                let options = ReducerOptions { static_graph, ..buckets_of_one() };
                let hook = Box::new(Notes(told.clone()));
                let made = bucketeer_reducer::Reducer::with_hook(rank.backend.clone(), &group, pairs(3), options, hook);
                let mut reducer = made.unwrap();
                for step in 0..4u64 {
                    whole_step(&mut reducer, place(rank), &[0, 2, 1]);
                    let calls = std::mem::take(&mut told.lock().unwrap().calls);
                    assert_eq!(calls, [(step, 0, false), (step, 1, false), (step, 2, true)]);
                }
                assert_eq!(indices(&reducer), [[0], [2], [1]]);
                assert_eq!(told.lock().unwrap().rebuilt, [[[2], [1], [0]], [[0], [2], [1]]]);
            }
        }),
        case("red_22_powersgd_goes_on_through_a_rebuild", 2, |rank| {
            let power = PowerSgdOptions {
                start_step: 0,
                min_rate: 1.0,
                warm_start: false,
                error_feedback: false,
                ..PowerSgdOptions::default()
            };
            let params = vec![Param::new("a", &[8, 8], DType::F32), Param::new("b", &[6, 6], DType::F32)];
            let options = ReducerOptions { caps: Caps::bytes(16), ..ReducerOptions::default() };
            let mut reducer = make_with(rank, params, options, PowerSgd::new(power).unwrap());
            for step in 0..4 {
                let begun = reducer.step().unwrap();
                // Of rank one, so that nothing is lost.
                let outer =
                    |n: usize| f32s(&(0..n * n).map(|at| ((at / n + 1) * (at % n + 1)) as f32).collect::<Vec<_>>());
                begun.ready(1, &outer(6)).unwrap();
                begun.ready(0, &outer(8)).unwrap();
                let reduced = begun.finish().unwrap();
                for (param, n) in [(0, 8), (1, 6)] {
                    let found = read(&reduced, param, n * n).unwrap();
                    let close = found.iter().zip(numbers(&outer(n))).all(|(a, b)| (a - b).abs() < 1e-3 * b.abs());
                    assert!(close, "step {step}: {found:?}");
                }
            }
        }),
        case("red_23_a_hooks_result_is_copied_into_the_slots", 2, |rank| {
            struct Elsewhere;
            impl Hook for Elsewhere {
                fn describe(&self) -> String {
                    "elsewhere".to_owned()
                }

                fn begin(&mut self, bucket: &HookBucket<'_>) -> Result<Stage, HookError> {
                    let result = bucket.scratch(bucket.buffer().bytes())?;
                    result.write()?.copy_from_slice(&f32s(&[7.0, 8.0, 9.0, 10.0]));
                    bucket.buffer().write()?.fill(0xff);
                    Ok(Stage::DoneIn(result))
                }

                fn next(&mut self, _: &HookBucket<'_>, _: usize) -> Result<Stage, HookError> {
                    Ok(Stage::Done)
                }
            }
            let mut reducer = make_with(rank, pairs(2), ReducerOptions::default(), Elsewhere);
            let slot = reducer.slot(1).unwrap();
            let reduced = whole_step(&mut reducer, place(rank), &[1, 0]);
            assert_eq!(numbers(&slot.read().unwrap()), [9.0, 10.0]);
            reduced.expect_slot(1, &slot).unwrap();
        }),
        case("red_26_hooks_of_16_bits_divide_before_they_cast", 2, |rank| {
            let mut reducer = make_with(rank, pairs(1), ReducerOptions::default(), Cast16::f16());
            let step = reducer.step().unwrap();
            // The sum is above the range of f16, the mean is not.
            step.ready(0, &f32s(&[60000.0, 65504.0])).unwrap();
            let reduced = step.finish().unwrap();
            assert_eq!(read(&reduced, 0, 2), Some(vec![60000.0, 65504.0]));
        }),
        case("red_28_a_hooks_divisor_is_the_number_of_ranks_with_data", 3, |rank| {
            let mut reducer = make_with(rank, pairs(1), ReducerOptions::default(), AllReduce);
            let options = JoinOptions { divide: JoinDivide::ByLive, ..JoinOptions::default() };
            let mut join = reducer.join(options).unwrap();
            for step in 0..=place(rank) {
                let begun = join.step(&mut []).unwrap();
                begun.ready(0, &f32s(&[6.0, 12.0])).unwrap();
                let reduced = begun.finish().unwrap();
                assert_eq!(read(&reduced, 0, 2), Some(vec![6.0, 12.0]), "step {step}");
            }
            let joined = join.end(&mut [], &mut []).unwrap();
            assert_eq!(joined.authority, GlobalRank(2));
        }),
    ]
}

/// The mean of three ranks as it is rounded: each third, then the sum in rank order.
fn mean3(param: usize) -> Vec<f32> {
    let one =
        |at: usize| (0..3).map(|place| (place * 64 + param * 8 + at) as f32 / 3.0).fold(0.0, |sum, one| sum + one);
    (0..2).map(one).collect()
}
