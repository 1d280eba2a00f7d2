//! Runs of steps.

use super::hooks::{Seen, hook};
use super::{Recording, real_bytes};
use crate::Rank;
use crate::recorder::Recorder;
use crate::values::{assert_close, bytes, from_numbers, numbers, pick, reorder};
use bucketeer_comm::Backend;
use bucketeer_reducer::{
    DoneBucket, LocalStep, Marker, Param, Reduced, Reducer, ReducerError, SparseGradient, Step, Tensor, Unused,
};
use bucketeer_types::{DType, GlobalRank};
use serde_json::Value;
use std::sync::{Arc, Mutex};

/// One rank as it plays a recording.
pub struct Player<'a> {
    pub recording: &'a Recording,
    pub place: usize,
    pub params: Vec<Param>,
    pub recorder: Arc<Recorder>,
    /// What the user has of each parameter, in its own order of memory.
    pub grads: Vec<Option<Vec<u8>>>,
    sparse: Vec<Option<SparseGradient>>,
    /// The gradient at the last mark that was not reduced.
    local: Vec<Option<Vec<u8>>>,
    pub seen: Arc<Mutex<Vec<Seen>>>,
    unused: Unused,
    view: bool,
    /// Parameters after the last step, where the optimizer steps by bucket.
    optimized: Option<Vec<Vec<u8>>>,
}

impl<'a> Player<'a> {
    pub fn new(recording: &'a Recording, rank: &Rank) -> (Self, Reducer) {
        let place = rank.group.rank().0 as usize;
        let params = recording.params(place);
        let recorder = Arc::new(Recorder::new(rank.backend.clone(), &rank.group));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let options = recording.options(place);
        let unused = options.unused;
        let backend: Arc<dyn Backend> = recorder.clone();
        let made = match hook(&recording.name, rank, &seen) {
            None => Reducer::new(backend, &rank.group, params.clone(), options),
            Some(hook) => Reducer::with_hook(backend, &rank.group, params.clone(), options, hook),
        };
        let reducer = made.unwrap_or_else(|error| panic!("{}: {error}", recording.name));
        recorder.take();
        let count = params.len();
        let player = Self {
            recording,
            place,
            params,
            recorder,
            grads: vec![None; count],
            sparse: vec![None; count],
            local: vec![None; count],
            seen,
            unused,
            view: recording.option("gradient_as_bucket_view", place),
            optimized: None,
        };
        (player, reducer)
    }

    pub fn name(&self) -> &str {
        &self.recording.name
    }

    /// A value of a step that may differ by rank.
    pub fn of<'v>(&self, step: &'v Value, key: &str) -> Option<&'v Value> {
        step.get(key).map(|value| pick(value, self.place)).filter(|value| !value.is_null())
    }

    pub fn words(&self, step: &Value, key: &str) -> Vec<String> {
        let list = self.of(step, key).and_then(Value::as_array).cloned().unwrap_or_default();
        list.iter().map(|word| word.as_str().expect("a word").to_owned()).collect()
    }

    /// The order of marks; where none is recorded, backward from the end.
    fn ready(&self, step: &Value) -> Vec<usize> {
        match self.of(step, "ready").and_then(Value::as_array) {
            Some(list) => list.iter().map(|index| index.as_u64().expect("an index") as usize).collect(),
            None => (0..self.params.len()).rev().collect(),
        }
    }

    /// What ranks marked a parameter with.
    fn marked<'v>(&self, step: &'v Value, place: usize, param: usize) -> Option<&'v Value> {
        step.get("local")?.get(place)?.get(param.to_string()).filter(|local| !local.is_null())
    }

    /// Does to the gradients what the user did.
    pub fn zero(&mut self, reducer: &mut Reducer, step: &Value) {
        match self.of(step, "zero").and_then(Value::as_str) {
            Some("keep") => return,
            Some("zeros") => self.grads.iter_mut().flatten().for_each(|grad| grad.fill(0)),
            _ => self.grads.iter_mut().for_each(|grad| *grad = None),
        }
        self.sparse.iter_mut().for_each(|grad| *grad = None);
        self.local.iter_mut().for_each(|grad| *grad = None);
        reducer.clear_local();
    }

    /// A gradient's bytes in the order of the parameter's memory.
    fn in_memory(&self, param: usize, row_major: &[u8]) -> Vec<u8> {
        let what = &self.params[param];
        reorder(row_major, what.dtype().bytes() as usize, what.shape(), &what.place_strides(), true)
    }

    /// Marks everything in the recorded order.
    pub fn mark_all(&mut self, step: &Step<'_>, recorded: &Value) -> Result<(), ReducerError> {
        let ready = self.ready(recorded);
        let mut left: Vec<usize> = (0..self.params.len()).filter(|param| !ready.contains(param)).collect();
        let says_so = self.unused != Unused::Refuse && !self.recording.option("static_graph", self.place);
        for (at, &param) in ready.iter().enumerate() {
            self.recorder.at(at + 1);
            if says_so {
                // What was not met in the search is known at the first mark.
                for param in std::mem::take(&mut left) {
                    step.unused(param)?;
                }
            }
            match self.marked(recorded, self.place, param).cloned() {
                Some(local) => self.mark(step, param, &local)?,
                // A recording of structure alone.
                None if recorded.get("local").is_none() => {
                    step.ready(param, &vec![0; self.params[param].bytes() as usize])?;
                }
                None => step.unused(param)?,
            }
        }
        self.recorder.at(ready.len());
        Ok(())
    }

    fn mark(&mut self, step: &Marker, param: usize, local: &Value) -> Result<(), ReducerError> {
        let what = self.params[param].clone();
        if let Some(rows) = local.get("rows") {
            let rows: Vec<u64> = rows.as_array().expect("rows").iter().filter_map(Value::as_u64).collect();
            return step.ready_sparse(param, &rows, &bytes(&local["values"], what.dtype()));
        }
        let row_major = bytes(local, what.dtype());
        let memory = self.in_memory(param, &row_major);
        if let Some(before) = self.local[param].take() {
            // The reducer has what local steps left: only the rest is new.
            return step.ready(param, &difference(&memory, &before, what.dtype()));
        }
        if self.view {
            step.slot(param)?.write().expect("nobody uses a slot before its mark").copy_from_slice(&memory);
            return step.ready_in_place(param);
        }
        step.ready_strided(param, &row_major, &Param::new("", what.shape(), what.dtype()).strides())
    }

    /// A step that sends nothing: marks what is new since the last one.
    pub fn local_step(&mut self, step: &LocalStep<'_>, recorded: &Value) {
        for param in self.ready(recorded) {
            let Some(local) = self.marked(recorded, self.place, param).cloned() else { continue };
            let dtype = self.params[param].dtype();
            let memory = self.in_memory(param, &bytes(&local, dtype));
            let new = match &self.local[param] {
                Some(before) => difference(&memory, before, dtype),
                None => memory.clone(),
            };
            step.ready(param, &new).unwrap();
            self.grads[param] = Some(memory.clone());
            self.local[param] = Some(memory);
        }
        self.check_grads(recorded);
    }

    /// Takes what a step came to.
    pub fn take(&mut self, reduced: &Reduced<'_>) {
        for param in 0..self.params.len() {
            if self.params[param].is_sparse() {
                self.sparse[param] = reduced.sparse(param).cloned();
                continue;
            }
            let mut target = vec![0; self.params[param].bytes() as usize];
            if reduced.copy_to(param, &mut target).unwrap() {
                if self.view {
                    assert_eq!(reduced.read(param).unwrap().as_deref(), Some(&target[..]));
                }
                self.grads[param] = Some(target);
            }
        }
    }

    /// Compares what the user has with the recording.
    pub fn check_grads(&self, recorded: &Value) {
        let Some(wanted) = self.of(recorded, "grad").filter(|wanted| wanted.is_array()) else { return };
        for (param, wanted) in wanted.as_array().expect("gradients").iter().enumerate() {
            let what = format!("{}, rank {}, parameter {param}", self.name(), self.place);
            let dtype = self.params[param].dtype();
            if let Some(rows) = wanted.get("rows") {
                let found = self.sparse[param].as_ref().unwrap_or_else(|| panic!("{what}: no rows"));
                let rows: Vec<u64> = rows.as_array().expect("rows").iter().filter_map(Value::as_u64).collect();
                assert_eq!(found.rows, rows, "{what}");
                assert_close(&found.values, &bytes(&wanted["values"], dtype), dtype, None, &what);
                continue;
            }
            let Some(found) = &self.grads[param] else {
                assert!(wanted.is_null(), "{what}: no gradient, where PyTorch has one");
                continue;
            };
            assert!(!wanted.is_null(), "{what}: a gradient, where PyTorch has none");
            let wanted = self.in_memory(param, &bytes(wanted, dtype));
            // Where the division is exact, so is the result.
            let scale = (!self.recording.ranks.is_power_of_two()).then(|| self.scale(recorded, param, &wanted));
            assert_close(found, &wanted, dtype, scale.as_deref(), &what);
        }
    }

    /// What was added up of a parameter, by element, as sizes, in the order of memory.
    fn scale(&self, recorded: &Value, param: usize, wanted: &[u8]) -> Vec<f64> {
        let dtype = self.params[param].dtype();
        // Of a hook that sends other dtypes, in `f32` ulps.
        let coarser = super::hooks::ulp(self.name()).map_or(1.0, |ulp| ulp / f64::from(f32::EPSILON));
        let mut scale: Vec<f64> = numbers(wanted, dtype).into_iter().map(f64::abs).collect();
        for place in 0..self.recording.ranks {
            if let Some(local) = self.marked(recorded, place, param).filter(|local| local.is_array()) {
                let local = self.in_memory(param, &bytes(local, dtype));
                scale.iter_mut().zip(numbers(&local, dtype)).for_each(|(sum, one)| *sum += one.abs());
            }
        }
        scale.iter_mut().for_each(|scale| *scale *= coarser);
        scale
    }

    /// Compares launches with the recording: sparse reductions are gathers here.
    pub fn check_launches(&self, recorded: &[String], what: &str) {
        let marks = recorded.iter().any(|word| word.contains('@'));
        let mut found = Vec::new();
        let mut sparse = recorded.iter().filter(|word| word.contains(":sparse"));
        for word in self.recorder.take() {
            let (call, mark) = word.split_once('@').expect("a mark");
            let call = match call {
                "all_gather:i64:1" => {
                    let same = sparse.next().unwrap_or_else(|| panic!("{}: {what}: rows are gathered", self.name()));
                    same.split('@').next().expect("a call").to_owned()
                }
                call if call.starts_with("all_gather:") => continue,
                call => call.to_owned(),
            };
            found.push(if marks { format!("{call}@{mark}") } else { call });
        }
        assert_eq!(found, recorded, "{}: {what}, rank {}", self.name(), self.place);
    }
}

fn difference(now: &[u8], before: &[u8], dtype: DType) -> Vec<u8> {
    let pairs = numbers(now, dtype).into_iter().zip(numbers(before, dtype));
    from_numbers(&pairs.map(|(now, before)| now - before).collect::<Vec<_>>(), dtype)
}

/// The buckets as the recordings have them.
pub fn buckets(reducer: &Reducer) -> Value {
    serde_json::json!(reducer.buckets().into_iter().map(|bucket| bucket.params).collect::<Vec<_>>())
}

/// Plays steps, one after the other, on ranks that all take part.
pub fn play(recording: &Recording, rank: &Rank) {
    let (mut player, mut reducer) = Player::new(recording, rank);
    let steps = recording.list("steps", player.place);
    // Where ranks give caps of their own, rank 0's hold from the start.
    if let Some(wanted) = recording.value.get("initial_buckets").map(|wanted| pick(wanted, 0)) {
        assert_eq!(&buckets(&reducer), wanted, "{}: initial buckets", recording.name);
    }
    if let Some(wanted) = recording.value.get("initial_bucket_bytes").map(|wanted| pick(wanted, 0)) {
        let sizes: Vec<u64> = reducer.buckets().iter().map(|bucket| bucket.bytes).collect();
        assert_eq!(&serde_json::json!(sizes), wanted, "{}: initial bytes", recording.name);
    }
    if steps.iter().any(|step| step.get("after_A").is_some() || step.get("after_1").is_some()) {
        assert!(recording.is_different(), "{}", recording.name);
        return second_backward(&player, &mut reducer);
    }
    let mut forward = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let what = format!("step {number}");
        if player.of(step, "fwd").is_none() {
            break;
        }
        regroup(&player, &mut reducer, &steps, number, rank);
        player.zero(&mut reducer, step);
        // Local steps send nothing here, so that what is due comes with the next reduced one.
        forward.extend(player.words(step, "fwd"));
        let launches = player.words(step, "bwd");
        let fails = player.of(step, "error");
        // PyTorch notices some faults in the next forward only, which then has no backward.
        let next = steps.get(number + 1).filter(|next| next.get("bwd").is_none());
        let fails_next = next.and_then(|next| player.of(next, "error"));
        if fails.is_some() || fails_next.is_some() {
            rank.settle();
        }
        let is_local = player.of(step, "sync") == Some(&Value::Bool(false)) || launches.is_empty();
        if is_local && fails.is_none() && fails_next.is_none() && !super::hooks::has_hook(&recording.name) {
            player.local_step(&reducer.local_step().unwrap(), step);
            continue;
        }
        if let Some(wanted) = fails {
            return fail(&player, &mut reducer, step, wanted, &steps[..number]);
        }
        let ended = reduce(&mut player, &mut reducer, step, &std::mem::take(&mut forward), &what);
        if let Err(error) = ended {
            // PyTorch lets other ranks go on, or hang, where one has failed; here they are told.
            let elsewhere = matches!(error, ReducerError::Elsewhere { .. });
            let fails_elsewhere = steps[number..].iter().take(2).any(|step| step.get("error").is_some());
            match fails_next {
                Some(wanted) => check_error(&player, &error, wanted),
                None => assert!(elsewhere && fails_elsewhere, "{}, {what}: {error}", recording.name),
            }
            return is_broken(&player, &mut reducer);
        }
        assert!(fails_next.is_none() || recording.is_different(), "{}, {what}: no error", recording.name);
        player.check_launches(&launches, &what);
        player.check_grads(step);
        super::hooks::check(&player, step, number);
        super::hooks::average(&player, step, number, rank);
        if let Some(wanted) = player.of(step, "buckets") {
            assert_eq!(&buckets(&reducer), wanted, "{}: buckets of {what}", recording.name);
        }
    }
}

/// RED-9: a marker that outlives its step refuses.
fn second_backward(player: &Player<'_>, reducer: &mut Reducer) {
    let step = reducer.step().unwrap();
    let marker = step.marker();
    let zeros = |param: usize| vec![0; player.params[param].bytes() as usize];
    (0..player.params.len()).for_each(|param| step.ready(param, &zeros(param)).unwrap());
    step.finish().unwrap();
    let error = marker.ready(0, &zeros(0)).unwrap_err().to_string();
    assert!(error.contains("step 0") && error.contains("the step is over"), "{error}");
}

fn is_broken(player: &Player<'_>, reducer: &mut Reducer) {
    let error = reducer.step().err().unwrap_or_else(|| panic!("{}: a step after a failure", player.name()));
    assert!(matches!(error, ReducerError::Broken { .. }), "{}: {error}", player.name());
}

/// Before a step that not all ranks take: the others go on as a group.
fn regroup(player: &Player<'_>, reducer: &mut Reducer, steps: &[Value], number: usize, rank: &Rank) {
    let active = |number: usize| {
        let sync = steps[number].get("sync").unwrap_or(&Value::Bool(true));
        (0..player.recording.ranks).filter(|place| !pick(sync, *place).is_null()).count()
    };
    if number == 0 || active(number) == active(number - 1) {
        return;
    }
    let members: Vec<GlobalRank> = rank.group.members()[..active(number)].to_vec();
    let group = player.recorder.new_group(&format!("{} smaller", rank.group.name()), &members).unwrap();
    reducer.change_group(&group).unwrap();
    player.recorder.take();
}

/// A reduced step: forward, marks, end.
fn reduce(
    player: &mut Player<'_>,
    reducer: &mut Reducer,
    recorded: &Value,
    forward: &[String],
    what: &str,
) -> Result<(), ReducerError> {
    let mut buffers = buffers(player.recording, player.place);
    let step = reducer.step()?;
    if !buffers.is_empty() {
        let mut tensors: Vec<Tensor<'_>> =
            buffers.iter_mut().map(|(dtype, bytes)| Tensor::new(*dtype, bytes)).collect();
        step.broadcast(0, &mut tensors)?;
    }
    player.check_launches(forward, &format!("forward of {what}"));
    player.mark_all(&step, recorded)?;
    let after = player.of(recorded, "params_after").filter(|_| !super::hooks::has_hook(player.name()));
    let Some(after) = after else {
        player.take(&step.finish()?);
        return Ok(());
    };
    // The optimizer steps by bucket, and takes the gradients.
    let mut params = player.optimized.take();
    step.finish_each(|bucket| params.iter_mut().for_each(|params| descend(bucket, params)))?;
    let wanted: Vec<Vec<u8>> =
        after.as_array().expect("parameters").iter().map(|list| bytes(list, DType::F32)).collect();
    for (param, (found, wanted)) in params.iter().flatten().zip(&wanted).enumerate() {
        assert_close(found, wanted, DType::F32, None, &format!("{}: parameter {param}", player.name()));
    }
    player.optimized = Some(wanted);
    Ok(())
}

/// Plain descent at a rate of 0.25, on the parameters of a bucket.
fn descend(bucket: &DoneBucket<'_>, params: &mut [Vec<u8>]) {
    for param in bucket.params() {
        let mut grad = vec![0; params[param].len()];
        bucket.copy_to(param, &mut grad).unwrap();
        for (value, grad) in params[param].as_chunks_mut::<4>().0.iter_mut().zip(grad.as_chunks::<4>().0) {
            *value = (f32::from_le_bytes(*value) - 0.25 * f32::from_le_bytes(*grad)).to_le_bytes();
        }
    }
}

/// The model's buffers, filled with something, where they are sent.
pub fn buffers(recording: &Recording, place: usize) -> Vec<(DType, Vec<u8>)> {
    if pick(&recording.value["options"], place).get("forward_sync_buffers") == Some(&Value::Bool(false)) {
        return Vec::new();
    }
    let buffer = |value: &Value| {
        let dtype = value["dtype"].as_str().and_then(DType::from_name).expect("a dtype");
        let shape = value["shape"].as_array().expect("a shape");
        let elements: u64 = shape.iter().filter_map(Value::as_u64).product();
        (dtype, vec![place as u8; elements as usize * real_bytes(dtype)])
    };
    recording.list("buffers", place).iter().map(buffer).collect()
}

/// A step in which PyTorch fails: so must this reducer, or do what the RED case says.
fn fail(player: &Player<'_>, reducer: &mut Reducer, recorded: &Value, wanted: &Value, before: &[Value]) {
    let name = player.name();
    let all: Vec<usize> = (0..player.params.len()).rev().collect();
    let zeros = |param: usize| vec![0; player.params[param].bytes() as usize];
    if player.of(recorded, "sync") == Some(&Value::Bool(false)) {
        assert!(player.recording.is_different(), "{name}");
        let local = reducer.local_step().unwrap();
        all.iter().for_each(|param| local.ready(*param, &zeros(*param)).unwrap());
        for _ in 0..3 {
            let step = reducer.step().unwrap();
            all.iter().for_each(|param| step.ready(*param, &zeros(*param)).unwrap());
            step.finish().unwrap();
        }
        return;
    }
    if player.params.iter().any(Param::is_sparse) {
        assert!(player.recording.is_different(), "{name}");
        let step = reducer.step().unwrap();
        for &param in &all {
            let sparse = player.params[param].is_sparse();
            if sparse { step.unused(param).unwrap() } else { step.ready(param, &zeros(param)).unwrap() }
        }
        let reduced = step.finish().unwrap();
        assert!(all.iter().all(|param| reduced.is_kept(*param) == player.params[*param].is_sparse()));
        return;
    }
    // What the step marks, and then what PyTorch names, or a parameter that the first step did not use.
    let used = |param: &usize| match before.first() {
        Some(first) => player.ready(first).contains(param),
        None => true,
    };
    let twice = wanted.get("param_index").and_then(Value::as_u64).map(|param| param as usize);
    let mut marks: Vec<usize> = all.iter().copied().filter(used).collect();
    if let Some(twice) = twice {
        marks.retain(|param| *param >= twice);
        marks.push(twice);
    } else if let Some(new) = all.iter().find(|param| !used(param)) {
        marks.push(*new);
    }
    let step = reducer.step().unwrap();
    let refused = marks.iter().find_map(|param| step.ready(*param, &zeros(*param)).err());
    let error = match refused {
        Some(error) => {
            drop(step);
            error
        }
        None => match step.finish() {
            Err(error) => error,
            Ok(_) => panic!("{name}: no error, where PyTorch has {wanted}"),
        },
    };
    check_error(player, &error, wanted);
    is_broken(player, reducer);
}

/// An error names what PyTorch's does.
fn check_error(player: &Player<'_>, error: &ReducerError, wanted: &Value) {
    let (name, text) = (player.name(), error.to_string());
    if let ReducerError::Elsewhere { .. } = error {
        assert!(text.contains("failed: rank"), "{name}: {text}");
        return;
    }
    assert!(!matches!(error, ReducerError::Comm { .. }), "{name}: {text}");
    assert!(text.contains(&format!("rank {}", player.place)), "{name}: {text}");
    let named: Vec<usize> = match error {
        ReducerError::Missing { params, .. } => params.iter().map(|param| param.index).collect(),
        ReducerError::Mark { param, .. } => vec![param.index],
        _ => Vec::new(),
    };
    let indices = wanted.get("param_indices").and_then(Value::as_array).cloned().unwrap_or_default();
    for index in indices.iter().chain(wanted.get("param_index")).filter_map(Value::as_u64) {
        assert!(named.contains(&(index as usize)), "{name}: {text} does not name parameter {index}");
        assert!(text.contains(player.params[index as usize].name()), "{name}: {text}");
    }
}

/// Reducers that ranks make of different things.
pub fn construction(recording: &Recording, rank: &Rank) {
    let other = rank.group.rank().0 == 1;
    let param = |name: &str, shape: &[u64]| Param::new(name, shape, DType::F32);
    let w = if other { "other" } else { "w" };
    let number = "the number of parameters";
    let (first, count, what) = match recording.name.trim_start_matches("ctor_") {
        "none" => (param("w", &[3, 4]), 0, ""),
        "count" => (param("w", &[3, 4]), if other { 3 } else { 2 }, number),
        "frozen" => (param("w", &[3, 4]), if other { 1 } else { 2 }, number),
        "stride" if other => (param("w", &[3, 4]).with_strides(&[1, 3]), 2, "parameter 0"),
        "dtype" if other => (Param::new("w", &[3, 4], DType::F64), 2, "parameter 0"),
        "ndim" if other => (param("w", &[3, 4, 1]), 2, "parameter 0"),
        "shape" if other => (param("w", &[4, 3]), 2, "parameter 0"),
        "name" if other => (param(w, &[3, 4]), 2, "parameter 0"),
        "stride" | "dtype" | "ndim" | "shape" | "name" => (param("w", &[3, 4]), 2, "parameter 0"),
        other => panic!("{other}: what ranks disagree on is not known"),
    };
    let params = [first, param("b", &[3]), param("c", &[1])].into_iter().take(count).collect();
    match Reducer::new(rank.backend.clone(), &rank.group, params, bucketeer_reducer::ReducerOptions::default()) {
        Ok(_) => panic!("{}: no error", recording.name),
        Err(error @ ReducerError::Invalid { .. }) => assert!(what.is_empty(), "{error}"),
        Err(ReducerError::Disagree { what: found, ranks, values }) => {
            assert_eq!(found, what, "{}", recording.name);
            assert_eq!(ranks, (rank.group.members()[0], rank.group.members()[1]));
            assert_ne!(values.0, values.1);
        }
        Err(other) => panic!("{}: {other}", recording.name),
    }
}
