//! The cases RED-1 to RED-37: faults of PyTorch's reducer and of its users, each with what is right.
//!
//! The name of a case begins with its number. Those that need no other rank are unit tests of the reducer, of the same names.

mod fit;
mod groups;
mod hooks;
mod order;
mod unused;
mod values;

use crate::recorder::Recorder;
use crate::{Case, Rank};
use bucketeer_comm::{Arena, Backend, CallOptions, Operands};
use bucketeer_reducer::{Hook, Param, Reduced, Reducer, ReducerError, ReducerOptions, Step};
use bucketeer_types::DType;
use std::sync::Arc;

/// All cases that need ranks.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut all = order::cases();
    all.extend(unused::cases());
    all.extend(hooks::cases());
    all.extend(groups::cases());
    all.extend(values::cases());
    all.extend(fit::cases());
    all
}

fn case(name: &str, ranks: usize, run: impl Fn(&Rank) + Send + Sync + 'static) -> Case {
    Case { name: name.to_owned(), ranks, run: Box::new(run) }
}

/// `count` parameters of two `f32` each.
fn pairs(count: usize) -> Vec<Param> {
    (0..count).map(|at| Param::new(format!("p{at}"), &[2], DType::F32)).collect()
}

/// Elements of numbers.
fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Numbers of elements.
fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn place(rank: &Rank) -> usize {
    rank.group.rank().0 as usize
}

fn make(rank: &Rank, params: Vec<Param>, options: ReducerOptions) -> Reducer {
    Reducer::new(rank.backend.clone(), &rank.group, params, options).unwrap()
}

fn make_with(rank: &Rank, params: Vec<Param>, options: ReducerOptions, hook: impl Hook + 'static) -> Reducer {
    Reducer::with_hook(rank.backend.clone(), &rank.group, params, options, Box::new(hook)).unwrap()
}

/// The same, with what is launched.
fn make_recorded(rank: &Rank, params: Vec<Param>, options: ReducerOptions) -> (Reducer, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::new(rank.backend.clone(), &rank.group));
    let backend: Arc<dyn Backend> = recorder.clone();
    let reducer = Reducer::new(backend, &rank.group, params, options).unwrap();
    recorder.take();
    (reducer, recorder)
}

/// A gradient of a rank: other numbers for each parameter and rank, halves of which are exact.
fn gradient(place: usize, param: usize, len: usize) -> Vec<u8> {
    f32s(&(0..len).map(|at| (place * 64 + param * 8 + at) as f32).collect::<Vec<_>>())
}

/// Marks parameters of two elements, in that order.
fn mark(step: &Step<'_>, place: usize, order: &[usize]) {
    order.iter().for_each(|param| step.ready(*param, &gradient(place, *param, 2)).unwrap());
}

/// A step that marks all in an order and ends well.
fn whole_step<'r>(reducer: &'r mut Reducer, place: usize, order: &[usize]) -> Reduced<'r> {
    let step = reducer.step().unwrap();
    mark(&step, place, order);
    step.finish().unwrap()
}

fn read(reduced: &Reduced<'_>, param: usize, len: usize) -> Option<Vec<f32>> {
    let mut bytes = vec![0; len * 4];
    reduced.copy_to(param, &mut bytes).unwrap().then(|| numbers(&bytes))
}

/// The mean over so many ranks of what [`gradient`] makes.
fn mean(ranks: usize, param: usize, len: usize) -> Vec<f32> {
    let sum = |at: usize| (0..ranks).map(|place| (place * 64 + param * 8 + at) as f32).sum::<f32>();
    (0..len).map(|at| sum(at) / ranks as f32).collect()
}

fn indices(reducer: &Reducer) -> Vec<Vec<usize>> {
    reducer.buckets().into_iter().map(|bucket| bucket.params).collect()
}

/// The error of what must not work.
fn error_of<T>(result: Result<T, ReducerError>) -> ReducerError {
    match result {
        Ok(_) => panic!("it worked"),
        Err(error) => error,
    }
}

/// All ranks have the same bytes.
fn same_on_all(rank: &Rank, bytes: &[u8]) {
    let arena = Arena::new((bytes.len() * rank.group.size()) as u64).unwrap();
    let whole = arena.buffer(0, arena.bytes()).unwrap();
    let own = whole.part((bytes.len() * place(rank)) as u64, bytes.len() as u64).unwrap();
    own.write().unwrap().copy_from_slice(bytes);
    let options = CallOptions::blocking();
    rank.backend.all_gather_into(&rank.group, Operands::new(own, whole.clone(), DType::U8), &options).unwrap();
    assert!(whole.read().unwrap().chunks(bytes.len()).all(|other| other == bytes));
}
