//! Training without a framework: a small network whose backward is written out, by 2 and 4 ranks that share each batch, beside
//! one rank that has it alone and needs no reducer.
//!
//! ```sh
//! cargo run -p bucketeer-reducer --example plain
//! ```
//!
//! Backward writes gradients of weights right into their slots in buckets, and hands those of biases over as bytes; both are marked at
//! once, so that a full bucket is on its way while backward goes on. The example fails where ranks together do not do what
//! one does alone, but for rounding.

use bucketeer_comm::Backend;
use bucketeer_comm::local::{LocalOptions, LocalRank, run};
use bucketeer_reducer::{Caps, Param, Reducer, ReducerOptions};
use bucketeer_types::{DType, GlobalRank};
use std::sync::Arc;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Numbers of a layer's inputs and outputs.
const LAYERS: [(usize, usize); 3] = [(2, 32), (32, 32), (32, 1)];
/// Samples of a batch, all ranks together.
const BATCH: usize = 64;
const STEPS: usize = 400;
const LEARNING_RATE: f32 = 0.3;

/// A dense layer, with tanh behind all but the last one.
struct Layer {
    inputs: usize,
    outputs: usize,
    /// Of each output, those of all inputs.
    weight: Vec<f32>,
    bias: Vec<f32>,
}

/// Numbers from -1 to 1 that look random, the same on all ranks.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

fn network() -> Vec<Layer> {
    let mut random = Random(1);
    let layer = |(inputs, outputs): (usize, usize)| {
        let bound = (inputs as f32).sqrt().recip();
        let weight = (0..inputs * outputs).map(|_| random.next() * bound).collect();
        Layer { inputs, outputs, weight, bias: vec![0.0; outputs] }
    };
    LAYERS.map(layer).into()
}

/// Samples of a batch: points, and the height of a surface there.
fn batch(step: usize, from: usize, samples: usize) -> (Vec<f32>, Vec<f32>) {
    let mut random = Random(step as u64 % 4 + 100);
    let mut points: Vec<f32> = (0..2 * BATCH).map(|_| random.next()).collect();
    points.truncate(2 * (from + samples));
    points.drain(..2 * from);
    let heights = points.as_chunks::<2>().0.iter().map(|[x, y]| x * y).collect();
    (points, heights)
}

/// Outputs of all layers, behind the input.
fn forward(network: &[Layer], input: Vec<f32>) -> Vec<Vec<f32>> {
    let mut values = vec![input];
    for (nth, layer) in network.iter().enumerate() {
        let mut out = Vec::new();
        for sample in values[nth].chunks(layer.inputs) {
            for (weight, bias) in layer.weight.chunks(layer.inputs).zip(&layer.bias) {
                let sum: f32 = weight.iter().zip(sample).map(|(weight, value)| weight * value).sum();
                out.push(if nth + 1 == network.len() { sum + bias } else { (sum + bias).tanh() });
            }
        }
        values.push(out);
    }
    values
}

/// The mean square over samples of what the network is off.
fn loss(found: &[f32], wanted: &[f32]) -> f32 {
    found.iter().zip(wanted).map(|(found, wanted)| (found - wanted).powi(2)).sum::<f32>() / wanted.len() as f32
}

/// Who takes gradients. Layers come from the last to the first, of each the weight and then the bias.
trait Gradients {
    /// Lets `write` write a layer's gradient of the weight, in elements of four bytes.
    fn weight(&mut self, layer: usize, write: impl FnOnce(&mut [u8])) -> Outcome<()>;
    /// A layer's gradient of the bias.
    fn bias(&mut self, layer: usize, gradient: &[u8]) -> Outcome<()>;
}

fn backward(network: &[Layer], values: &[Vec<f32>], wanted: &[f32], to: &mut impl Gradients) -> Outcome<()> {
    let found = &values[network.len()];
    let mut delta: Vec<f32> = found.iter().zip(wanted).map(|(f, w)| 2.0 * (f - w) / wanted.len() as f32).collect();
    for (nth, layer) in network.iter().enumerate().rev() {
        let input = &values[nth];
        let samples = || delta.chunks(layer.outputs).zip(input.chunks(layer.inputs));
        to.weight(nth, |bytes| {
            for (at, target) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let (output, from) = (at / layer.inputs, at % layer.inputs);
                *target = samples().map(|(delta, input)| delta[output] * input[from]).sum::<f32>().to_le_bytes();
            }
        })?;
        let bias = |output: usize| samples().map(|(delta, _)| delta[output]).sum::<f32>().to_le_bytes();
        to.bias(nth, &(0..layer.outputs).map(bias).collect::<Vec<_>>().concat())?;
        let mut before = Vec::with_capacity(input.len());
        for (delta, input) in samples() {
            for (from, value) in input.iter().enumerate() {
                let sum: f32 =
                    delta.iter().enumerate().map(|(out, d)| d * layer.weight[out * layer.inputs + from]).sum();
                // The input came out of a tanh.
                before.push(sum * (1.0 - value * value));
            }
        }
        delta = before;
    }
    Ok(())
}

/// Takes a step down a gradient.
fn descend(values: &mut [f32], gradient: &[u8]) {
    for (value, gradient) in values.iter_mut().zip(gradient.as_chunks::<4>().0) {
        *value -= LEARNING_RATE * f32::from_le_bytes(*gradient);
    }
}

/// A layer's parameters by index: the weight, then the bias.
fn params() -> Vec<Param> {
    let layer = |(nth, (inputs, outputs)): (usize, (usize, usize))| {
        let (inputs, outputs) = (inputs as u64, outputs as u64);
        let weight = Param::new(format!("layer{nth}.weight"), &[outputs, inputs], DType::F32);
        [weight, Param::new(format!("layer{nth}.bias"), &[outputs], DType::F32)]
    };
    LAYERS.into_iter().enumerate().flat_map(layer).collect()
}

/// Marks the gradients of a step.
struct Marks<'a, 'r>(&'a bucketeer_reducer::Step<'r>);

impl Gradients for Marks<'_, '_> {
    fn weight(&mut self, layer: usize, write: impl FnOnce(&mut [u8])) -> Outcome<()> {
        write(&mut self.0.slot(2 * layer)?.write()?);
        Ok(self.0.ready_in_place(2 * layer)?)
    }

    fn bias(&mut self, layer: usize, gradient: &[u8]) -> Outcome<()> {
        Ok(self.0.ready(2 * layer + 1, gradient)?)
    }
}

/// Keeps gradients.
#[derive(Default)]
struct Kept(Vec<(usize, Vec<u8>)>);

impl Gradients for Kept {
    fn weight(&mut self, layer: usize, write: impl FnOnce(&mut [u8])) -> Outcome<()> {
        let (inputs, outputs) = LAYERS[layer];
        let mut bytes = vec![0; 4 * inputs * outputs];
        write(&mut bytes);
        self.0.push((2 * layer, bytes));
        Ok(())
    }

    fn bias(&mut self, layer: usize, gradient: &[u8]) -> Outcome<()> {
        self.0.push((2 * layer + 1, gradient.to_vec()));
        Ok(())
    }
}

fn values_of(network: &mut [Layer], param: usize) -> &mut [f32] {
    let layer = &mut network[param / 2];
    if param.is_multiple_of(2) { &mut layer.weight } else { &mut layer.bias }
}

/// The losses over whole batches before each step, and the weights of the end.
type Trained = (Vec<f32>, Vec<f32>);

fn train(mut step: impl FnMut(usize, &mut Vec<Layer>) -> Outcome<()>) -> Outcome<Trained> {
    let mut network = network();
    let mut losses = Vec::with_capacity(STEPS);
    for number in 0..STEPS {
        let (points, heights) = batch(number, 0, BATCH);
        losses.push(loss(&forward(&network, points)[LAYERS.len()], &heights));
        step(number, &mut network)?;
    }
    let weights = network.into_iter().flat_map(|layer| [layer.weight, layer.bias].concat());
    Ok((losses, weights.collect()))
}

fn alone() -> Outcome<Trained> {
    train(|number, network| {
        let (points, heights) = batch(number, 0, BATCH);
        let (values, mut kept) = (forward(network, points), Kept::default());
        backward(network, &values, &heights, &mut kept)?;
        kept.0.iter().for_each(|(param, gradient)| descend(values_of(network, *param), gradient));
        Ok(())
    })
}

fn together(rank: LocalRank, ranks: u32) -> Outcome<Trained> {
    let members: Vec<GlobalRank> = (0..ranks).map(GlobalRank).collect();
    let (number, group) = (rank.rank().0 as usize, rank.new_group("gradients", &members)?);
    // Small, so that there are several.
    let options = ReducerOptions { caps: Caps::Bytes { first: 128, rest: 1024 }, ..ReducerOptions::default() };
    let mut reducer = Reducer::new(Arc::new(rank), &group, params(), options)?;
    let part = BATCH / ranks as usize;
    train(|step, network| {
        let (points, heights) = batch(step, number * part, part);
        let values = forward(network, points);
        let step = reducer.step()?;
        backward(network, &values, &heights, &mut Marks(&step))?;
        let reduced = step.finish()?;
        for param in 0..2 * LAYERS.len() {
            if let Some(gradient) = reduced.read(param)? {
                descend(values_of(network, param), &gradient);
            }
        }
        Ok(())
    })
}

/// The largest difference, or NaN if there is one.
fn off(one: &[f32], other: &[f32]) -> f32 {
    let differences = one.iter().zip(other).map(|(one, other)| (one - other).abs());
    differences.fold(0.0, |most, off| if off > most || off.is_nan() { off } else { most })
}

fn main() -> Outcome<()> {
    let (losses, weights) = alone()?;
    for ranks in [2, 4] {
        let results = run(ranks, LocalOptions::default(), |rank| together(rank, ranks))?;
        for (rank, result) in results.into_iter().enumerate() {
            let (own_losses, own_weights) = result.map_err(|_| format!("rank {rank} panicked"))??;
            let far = off(&[own_losses.clone(), own_weights].concat(), &[&losses[..], &weights].concat());
            // Sums in another order, over all steps.
            if far.is_nan() || far > 1e-5 {
                return Err(format!("rank {rank} of {ranks} is off by {far} from one rank alone").into());
            }
            if rank == 0 {
                println!("step  loss, {ranks} ranks  loss, one rank");
                for step in (0..STEPS).step_by(57) {
                    println!("{step:4}  {:13.6}  {:14.6}", own_losses[step], losses[step]);
                }
            }
        }
    }
    Ok(())
}
