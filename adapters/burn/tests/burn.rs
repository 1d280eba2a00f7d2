//! Ranks as threads: gradients are those of one rank with all samples, and what cannot be right is an error that says where.

use bucketeer_burn::Reducer;
use bucketeer_comm::local::{LocalOptions, LocalRank, run};
use bucketeer_comm::{Backend, Group};
use bucketeer_reducer::{Caps, ReducerError, ReducerOptions, Scale, Unused};
use bucketeer_types::GlobalRank;
use burn_core as burn;
use burn_core::module::Module;
use burn_core::tensor::{Device, Tensor, TensorData};
use burn_nn::{Linear, LinearConfig};
use burn_optim::GradientsParams;
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

#[derive(Module, Debug)]
struct Model {
    layers: Vec<Linear>,
    out: Linear,
    spare: Option<Linear>,
}

fn device() -> Device {
    Device::default().autodiff()
}

fn linear(from: usize, to: usize) -> Linear {
    LinearConfig::new(from, to).init(&device())
}

impl Model {
    /// With values that are there.
    fn new(spare: bool) -> Self {
        let layers = vec![linear(5, 7), linear(7, 4)];
        let model = Self { layers, out: linear(4, 1), spare: spare.then(|| linear(4, 1)) };
        model.loss(batch(0, 1), true);
        model
    }

    /// The mean over samples.
    fn loss(&self, input: Tensor<2>, spare: bool) -> Tensor<1> {
        let mut value = input;
        for layer in &self.layers {
            value = layer.forward(value).tanh();
        }
        let out = self.out.forward(value.clone());
        let out = match &self.spare {
            Some(layer) if spare => out + layer.forward(value),
            _ => out,
        };
        (out.clone() * out).mean()
    }

    fn gradients(&self, input: Tensor<2>, spare: bool) -> GradientsParams {
        GradientsParams::from_grads(self.loss(input, spare).backward(), self)
    }
}

/// Values that look random, the same everywhere.
fn batch(from: usize, samples: usize) -> Tensor<2> {
    let value = |at: usize| ((at * 37 + 11) % 101) as f32 / 50.0 - 1.0;
    let values: Vec<f32> = (from * 5..(from + samples) * 5).map(value).collect();
    Tensor::from_data(TensorData::new(values, [samples, 5]), &device())
}

/// Gradients of weights and biases, by place.
fn numbers(gradients: &GradientsParams, model: &Model) -> Vec<Option<Vec<f32>>> {
    let mut list = Vec::new();
    for layer in model.layers.iter().chain([&model.out]).chain(&model.spare) {
        let weight = gradients.get::<2>(layer.weight.id).map(|tensor| tensor.into_data());
        let bias = layer.bias.as_ref().and_then(|bias| gradients.get::<1>(bias.id)).map(|tensor| tensor.into_data());
        list.extend([weight, bias].map(|data| data.map(|data| data.as_slice::<f32>().unwrap().to_vec())));
    }
    list
}

#[track_caller]
fn assert_near(found: &[Option<Vec<f32>>], wanted: &[Option<Vec<f32>>]) {
    assert_eq!(found.len(), wanted.len());
    for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert_eq!(found.is_some(), wanted.is_some(), "{at}");
        let pairs = || found.iter().flatten().zip(wanted.iter().flatten());
        let largest = pairs().fold(0f32, |largest, (_, wanted)| largest.max(wanted.abs()));
        for (found, wanted) in pairs() {
            assert!((found - wanted).abs() <= 1e-5 * largest, "{at}: {found} is not {wanted}");
        }
    }
}

#[test]
fn gradients_are_those_of_one_rank_with_the_whole_batch() {
    let model = Model::new(true);
    let whole = numbers(&model.gradients(batch(0, 8), true), &model);
    assert!(whole.iter().all(Option::is_some));
    for ranks in [2, 4] {
        on_ranks(ranks, |rank, group| {
            let model = model.clone();
            let (number, own) = (rank.rank().0 as usize, 8 / ranks as usize);
            let options = ReducerOptions { caps: Caps::List(vec![64]), ..ReducerOptions::default() };
            let mut reducer = Reducer::new(rank, &group, &model, options).unwrap();
            for _ in 0..3 {
                let gradients = model.gradients(batch(number * own, own), true);
                let gradients = reducer.reduce(&model, gradients).unwrap();
                assert_near(&numbers(&gradients, &model), &whole);
            }
            assert!(reducer.buckets().len() > 1);
        });
    }
}

#[test]
fn names_are_paths_in_the_order_of_definition_on_every_rank() {
    on_ranks(2, |rank, group| {
        // Each rank makes a module of its own.
        let reducer = Reducer::new(rank, &group, &Model::new(false), ReducerOptions::default()).unwrap();
        let wanted = ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias", "out.weight", "out.bias"];
        assert_eq!(reducer.names().collect::<Vec<_>>(), wanted);
    });
}

#[test]
fn ranks_with_different_modules_are_told_what_differs() {
    let texts = on_ranks(2, |rank, group| {
        let model = Model::new(rank.rank() == GlobalRank(1));
        Reducer::new(rank, &group, &model, ReducerOptions::default()).map(drop).unwrap_err().to_string()
    });
    for text in texts {
        assert!(text.contains("ranks disagree on the number of parameters"), "{text}");
    }
}

#[test]
fn ranks_with_different_numbers_of_samples_have_the_mean_over_samples() {
    let model = Model::new(false);
    let whole = numbers(&model.gradients(batch(0, 8), false), &model);
    on_ranks(2, |rank, group| {
        let model = model.clone();
        let (from, samples) = [(0, 3), (3, 5)][rank.rank().0 as usize];
        let options = ReducerOptions { scale: Scale::Weighted, ..ReducerOptions::default() };
        let mut reducer = Reducer::new(rank, &group, &model, options).unwrap();
        let gradients = model.gradients(batch(from, samples), false);
        let gradients = reducer.reduce_weighted(&model, gradients, samples as f64).unwrap();
        assert_near(&numbers(&gradients, &model), &whole);
        let error = reducer.reduce(&model, model.gradients(batch(0, 1), false)).map(drop).unwrap_err();
        assert!(matches!(error, ReducerError::Invalid { .. }), "{error}");
    });
}

#[test]
fn parameters_without_a_gradient_are_named_where_they_are_refused() {
    let model = Model::new(true);
    let texts = on_ranks(2, |rank, group| {
        let model = model.clone();
        let mut reducer = Reducer::new(rank, &group, &model, ReducerOptions::default()).unwrap();
        reducer.reduce(&model, model.gradients(batch(0, 2), false)).map(drop).unwrap_err().to_string()
    });
    let wanted = "step 0: no gradient came for parameters 6 (spare.weight) and 7 (spare.bias)";
    // A rank may hear it from the other one first.
    assert!(texts.iter().all(|text| text.contains(wanted)), "{texts:?}");
}

#[test]
fn a_parameter_that_one_rank_uses_is_averaged_on_all_and_one_that_none_uses_has_no_gradient() {
    let model = Model::new(true);
    let alone = numbers(&model.gradients(batch(0, 2), true), &model);
    on_ranks(2, |rank, group| {
        let model = model.clone();
        let first = rank.rank() == GlobalRank(0);
        let options = ReducerOptions { unused: Unused::Average, ..ReducerOptions::default() };
        let mut reducer = Reducer::new(rank, &group, &model, options).unwrap();
        let gradients = reducer.reduce(&model, model.gradients(batch(0, 2), first)).unwrap();
        let half = |values: &Option<Vec<f32>>| values.as_ref().map(|values| values.iter().map(|v| v / 2.0).collect());
        assert_near(&numbers(&gradients, &model)[6..], &alone[6..].iter().map(half).collect::<Vec<_>>());
        let gradients = reducer.reduce(&model, model.gradients(batch(0, 2), false)).unwrap();
        assert_eq!(numbers(&gradients, &model)[6..], [None, None]);
    });
}

#[test]
fn accumulated_gradients_are_part_of_the_next_step() {
    let model = Model::new(false);
    let twice: Vec<_> = numbers(&model.gradients(batch(0, 4), false), &model)
        .into_iter()
        .map(|values| values.map(|values| values.iter().map(|value| 2.0 * value).collect()))
        .collect();
    on_ranks(2, |rank, group| {
        let model = model.clone();
        let mut reducer = Reducer::new(rank, &group, &model, ReducerOptions::default()).unwrap();
        reducer.accumulate(&model, model.gradients(batch(0, 4), false)).unwrap();
        let gradients = reducer.reduce(&model, model.gradients(batch(0, 4), false)).unwrap();
        assert_near(&numbers(&gradients, &model), &twice);
    });
}

#[test]
fn frozen_parameters_are_left_out_and_a_change_of_what_is_trained_is_refused() {
    on_ranks(1, |rank, group| {
        let mut model = Model::new(true);
        model.spare = model.spare.map(Module::no_grad);
        let mut reducer = Reducer::new(rank, &group, &model, ReducerOptions::default()).unwrap();
        assert_eq!(reducer.names().count(), 6);
        let other = Model::new(true);
        let text = reducer.reduce(&other, other.gradients(batch(0, 2), true)).map(drop).unwrap_err().to_string();
        let wanted =
            "rank 0: the module's parameter 6 is `spare.weight`, F32 [4, 1], and was nothing when the reducer was made";
        assert!(text.contains(wanted), "{text}");
        // Nothing was sent: the reducer goes on.
        let gradients = reducer.reduce(&model, model.gradients(batch(0, 2), true)).unwrap();
        assert_eq!(numbers(&gradients, &model)[6..], [None, None]);
    });
}
