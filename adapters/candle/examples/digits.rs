//! Handwritten digits, learned by ranks that share each batch, beside one rank that has it alone.
//!
//! ```sh
//! cargo run --example digits                                          # 2 and then 4 ranks, threads of this process
//! cargo run --example digits -- --ranks 2 --trace trace.json          # open the trace in Perfetto
//! bucketeer launch --nproc 2 -- exec target/debug/examples/digits     # ranks are processes, on NCCL
//! ```
//!
//! All ranks begin with the same weights and take the same batches, each its part; gradients are the mean over ranks. So weights
//! and losses are those of one rank with whole batches, but for rounding, and the example fails where they are not.
//!
//! The data are the 1,797 digits of 8 x 8 pixels of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak,
//! UCI Machine Learning Repository, 1998; CC BY 4.0), as the crate `smartcore` (Apache-2.0) embeds them.

use bucketeer_candle::{Reducer, chrome_trace};
use bucketeer_comm::local::{LocalOptions, run};
use bucketeer_comm::nccl::{NcclOptions, NcclRank};
use bucketeer_comm::rendezvous::Rendezvous;
use bucketeer_comm::{Backend, Group};
use bucketeer_cuda::Driver;
use bucketeer_cuda::nccl::Nccl;
use bucketeer_reducer::{Caps, ReducerOptions};
use bucketeer_types::GlobalRank;
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Module, Optimizer, SGD, VarBuilder, VarMap, loss};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Samples of a batch, all ranks together, and samples to learn from. The others are to test.
const BATCH: usize = 256;
const TRAINING: usize = 6 * BATCH;

const LEARNING_RATE: f64 = 0.25;

/// How far losses and weights may be from those of one rank: sums in another order, over all steps.
const ROUNDING: f32 = 1e-4;

/// What the command line says.
struct Arguments {
    ranks: Vec<u32>,
    steps: usize,
    trace: Option<PathBuf>,
}

impl Arguments {
    fn read() -> Outcome<Self> {
        let mut arguments = Self { ranks: vec![2, 4], steps: 120, trace: None };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            match word.as_str() {
                "--ranks" => arguments.ranks = vec![value.parse()?],
                "--steps" => arguments.steps = value.parse()?,
                "--trace" => arguments.trace = Some(value.into()),
                _ => return Err(format!("{word} is not an option: give --ranks N, --steps N or --trace FILE").into()),
            }
        }
        for ranks in &arguments.ranks {
            check_ranks(*ranks)?;
        }
        Ok(arguments)
    }
}

fn check_ranks(ranks: u32) -> Outcome<()> {
    if ranks == 0 || !BATCH.is_multiple_of(ranks as usize) {
        return Err(format!("a batch of {BATCH} samples cannot be cut into {ranks} equal parts").into());
    }
    Ok(())
}

/// Pictures of `[samples, 64]` from 0 to 1, and which digit each is.
struct Digits {
    pictures: Tensor,
    digits: Tensor,
}

impl Digits {
    fn load() -> Outcome<Self> {
        let set = smartcore::dataset::digits::load_dataset();
        let (samples, pixels) = (set.num_samples, set.num_features);
        let pictures = set.data.iter().map(|value| value / 16.0).collect();
        let digits = set.target.iter().map(|value| *value as u32).collect();
        Ok(Self {
            pictures: Tensor::from_vec(pictures, (samples, pixels), &Device::Cpu)?,
            digits: Tensor::from_vec(digits, samples, &Device::Cpu)?,
        })
    }

    fn part(&self, from: usize, samples: usize) -> Outcome<Self> {
        let (pictures, digits) = (self.pictures.narrow(0, from, samples)?, self.digits.narrow(0, from, samples)?);
        Ok(Self { pictures, digits })
    }

    /// What a rank sees in a step: its part of the batch.
    fn batch(&self, step: usize, rank: u32, ranks: u32) -> Outcome<Self> {
        let part = BATCH / ranks as usize;
        self.part(step * BATCH % TRAINING + rank as usize * part, part)
    }
}

/// The model, made of variables or of a step's parameters.
fn model(builder: VarBuilder<'_>) -> candle_core::Result<impl Module> {
    let [one, two, three] = [(64, 128, "fc1"), (128, 64, "fc2"), (64, 10, "fc3")]
        .map(|(from, to, name)| candle_nn::linear(from, to, builder.pp(name)));
    Ok(candle_nn::seq().add(one?).add(Tensor::relu).add(two?).add(Tensor::relu).add(three?))
}

/// The mean over samples.
fn mean_loss(model: &impl Module, samples: &Digits) -> candle_core::Result<Tensor> {
    loss::cross_entropy(&model.forward(&samples.pictures)?, &samples.digits)
}

/// Variables of the model, with values that look random and are the same on all ranks.
fn weights() -> Outcome<VarMap> {
    let map = VarMap::new();
    model(VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu))?;
    let mut state = 1u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    for (_, var) in variables(&map) {
        let bound = 1.0 / (var.dims().last().copied().unwrap_or(1) as f32).sqrt();
        let values: Vec<f32> = (0..var.elem_count()).map(|_| next() * bound).collect();
        var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu)?)?;
    }
    Ok(map)
}

/// In the order of names, so that every run has the same.
fn variables(map: &VarMap) -> Vec<(String, Var)> {
    let map = map.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut list: Vec<(String, Var)> = map.iter().map(|(name, var)| (name.clone(), var.clone())).collect();
    list.sort_by(|one, other| one.0.cmp(&other.0));
    list
}

/// What came of a training.
struct Trained {
    /// The loss over the whole batch, before each step.
    losses: Vec<f32>,
    weights: Vec<f32>,
    /// Of digits that were not learned from.
    accuracy: f32,
}

/// Trains; `gradients` says what a step's are.
fn train(
    data: &Digits,
    steps: usize,
    map: &VarMap,
    mut gradients: impl FnMut(usize) -> Outcome<GradStore>,
) -> Outcome<Trained> {
    let own = model(VarBuilder::from_varmap(map, DType::F32, &Device::Cpu))?;
    let list = variables(map);
    let mut optimizer = SGD::new(list.iter().map(|(_, var)| var.clone()).collect(), LEARNING_RATE)?;
    let mut losses = Vec::with_capacity(steps);
    for step in 0..steps {
        losses.push(mean_loss(&own, &data.batch(step, 0, 1)?)?.to_scalar()?);
        optimizer.step(&gradients(step)?)?;
    }
    let mut weights = Vec::new();
    for (_, var) in &list {
        weights.extend(var.flatten_all()?.to_vec1::<f32>()?);
    }
    let test = data.part(TRAINING, data.digits.elem_count() - TRAINING)?;
    let guesses = own.forward(&test.pictures)?.argmax(1)?;
    let right = guesses.eq(&test.digits)?.to_dtype(DType::F32)?.mean_all()?.to_scalar()?;
    Ok(Trained { losses, weights, accuracy: right })
}

/// One rank with whole batches, and without a reducer.
fn alone(data: &Digits, steps: usize) -> Outcome<Trained> {
    let map = weights()?;
    let own = model(VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu))?;
    train(data, steps, &map, |step| Ok(mean_loss(&own, &data.batch(step, 0, 1)?)?.backward()?))
}

/// One of several ranks.
fn together(data: &Digits, arguments: &Arguments, backend: Arc<dyn Backend>, group: &Group) -> Outcome<Trained> {
    let (rank, ranks) = (backend.rank(), backend.world_size());
    let map = weights()?;
    let options = ReducerOptions { caps: Caps::Bytes { first: 1 << 10, rest: 16 << 10 }, ..ReducerOptions::default() };
    let trace = arguments.trace.as_ref().filter(|_| rank == GlobalRank(0));
    let mut reducer = match trace {
        None => Reducer::new(backend, group, &map, options)?,
        Some(_) => Reducer::timed(backend, group, &map, options)?,
    };
    let trained = train(data, arguments.steps, &map, |number| {
        let batch = data.batch(number, rank.0, ranks)?;
        let step = reducer.step()?;
        let loss = mean_loss(&model(step.params().var_builder(DType::F32))?, &batch)?;
        Ok(step.backward(&loss)?)
    })?;
    if let Some(file) = trace {
        let times = reducer.take_times();
        let names: Vec<&str> = reducer.names().collect();
        std::fs::write(file, chrome_trace(rank, &names, &times).to_string())?;
        // The first step knows no order and sends all at its end.
        if let Some(last) = times.iter().skip(1).next_back() {
            let (early, all) = (last.launched_early(), last.buckets.len());
            eprintln!("{early} of {all} buckets were launched before the last mark; see {}", file.display());
            if early == 0 {
                return Err("no bucket was launched while backward ran".into());
            }
        }
    }
    Ok(trained)
}

/// The largest difference, or NaN if there is one.
fn largest_difference(one: &[f32], other: &[f32]) -> f32 {
    let differences = one.iter().zip(other).map(|(one, other)| (one - other).abs());
    differences.fold(0.0, |most, off| if off > most || off.is_nan() { off } else { most })
}

/// How far ranks together are from one alone, if that is rounding.
fn check(ranks: u32, together: &Trained, alone: &Trained) -> Outcome<f32> {
    let losses = largest_difference(&together.losses, &alone.losses);
    let weights = largest_difference(&together.weights, &alone.weights);
    if losses <= ROUNDING && weights <= ROUNDING {
        return Ok(losses.max(weights));
    }
    Err(format!("{ranks} ranks are off by {losses} in losses and {weights} in weights").into())
}

fn print(ranks: u32, together: &Trained, alone: &Trained, off: f32) {
    println!("step  loss, {ranks} ranks  loss, one rank");
    let last = together.losses.len().saturating_sub(1);
    for (step, (ours, theirs)) in together.losses.iter().zip(&alone.losses).enumerate() {
        if step % 20 == 0 || step == last {
            println!("{step:4}  {ours:13.6}  {theirs:14.6}");
        }
    }
    println!("right: {:.1} % and {:.1} %; off by {off:.0e}", together.accuracy * 100.0, alone.accuracy * 100.0);
}

/// Ranks as threads of this process.
fn threads(arguments: &Arguments, data: &Digits) -> Outcome<()> {
    let alone = alone(data, arguments.steps)?;
    for &ranks in &arguments.ranks {
        let members: Vec<GlobalRank> = (0..ranks).map(GlobalRank).collect();
        let results = run(ranks, LocalOptions::default(), |rank| {
            let group = rank.new_group("gradients", &members)?;
            together(data, arguments, Arc::new(rank), &group)
        })?;
        for (rank, result) in results.into_iter().enumerate() {
            let trained = result.map_err(|_| format!("rank {rank} panicked"))??;
            let off = check(ranks, &trained, &alone)?;
            if rank == 0 {
                print(ranks, &trained, &alone, off);
            }
        }
    }
    Ok(())
}

/// One rank as this process, which a launcher started.
fn process(arguments: &Arguments, data: &Digits, meeting: &Rendezvous) -> Outcome<()> {
    check_ranks(meeting.world_size)?;
    let store = Arc::new(meeting.join(Duration::from_secs(60))?);
    let device = Driver::load(None)?.device(meeting.local_rank.unwrap_or(0))?;
    let backend = Arc::new(NcclRank::new(&Nccl::load(None)?, &device.context()?, store, NcclOptions::default())?);
    let members: Vec<GlobalRank> = (0..meeting.world_size).map(GlobalRank).collect();
    let group = backend.new_group("gradients", &members)?;
    let alone = alone(data, arguments.steps)?;
    let trained = together(data, arguments, backend.clone(), &group)?;
    let off = check(meeting.world_size, &trained, &alone)?;
    if meeting.rank == GlobalRank(0) {
        print(meeting.world_size, &trained, &alone, off);
    }
    Arc::into_inner(backend).ok_or("the rank is still in use")?.close()?;
    Ok(())
}

fn learn() -> Outcome<()> {
    let arguments = Arguments::read()?;
    let data = Digits::load()?;
    match Rendezvous::from_env()? {
        None => threads(&arguments, &data),
        Some(meeting) => process(&arguments, &data, &meeting),
    }
}

fn main() -> ExitCode {
    match learn() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            // With this code a launcher ends the other ranks.
            ExitCode::from(2)
        }
    }
}
