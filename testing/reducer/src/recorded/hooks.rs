//! The hooks of the recordings, and what they were given.

use super::run::Player;
use crate::Rank;
use crate::values::{assert_close, bytes, from_numbers, numbers, pick};
use bucketeer_comm::{Buffer, Call, Group, Op, Operands};
use bucketeer_reducer::hooks::{AllReduce, Cast16, PeriodicAverage, PostLocal};
use bucketeer_reducer::{BucketLayout, Divide, Hook, HookBucket, HookError, Stage};
use bucketeer_types::{DType, ReduceOp};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// What a hook was given.
pub struct Seen {
    index: usize,
    is_last: bool,
    params: Vec<usize>,
    buffer: Vec<u8>,
    dtype: DType,
}

/// Whether a recording is one of a hook.
pub fn has_hook(name: &str) -> bool {
    name.contains("hook") || name == "post_local_sgd"
}

/// The precision of what a recording's hook sends, where that is not the gradients' own.
pub fn ulp(name: &str) -> Option<f64> {
    let is = |dtype: &str| has_hook(name) && name.ends_with(dtype);
    if is("bf16") { Some(2f64.powi(-7)) } else { is("fp16").then(|| 2f64.powi(-10)) }
}

/// A hook that notes what it is given, and then does what another one does.
struct Watched {
    inner: Box<dyn Hook>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Hook for Watched {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn begin(&mut self, bucket: &HookBucket<'_>) -> Result<Stage, HookError> {
        let layout = bucket.layout();
        self.seen.lock().unwrap().push(Seen {
            index: layout.index,
            is_last: layout.is_last(),
            params: layout.parts.iter().map(|part| part.param).collect(),
            buffer: bucket.buffer().read()?.to_vec(),
            dtype: layout.dtype,
        });
        self.inner.begin(bucket)
    }

    fn next(&mut self, bucket: &HookBucket<'_>, stage: usize) -> Result<Stage, HookError> {
        self.inner.next(bucket, stage)
    }

    fn rebuilt(&mut self, buckets: &[BucketLayout], group: &Group) {
        self.inner.rebuilt(buckets, group);
    }
}

/// Hooks of the recordings that are not built in.
#[derive(Clone, Copy)]
enum Does {
    Nothing,
    /// The mean in another buffer.
    NewBuffer,
    /// A result that is too short.
    Short,
    Fails,
}

struct Own {
    does: Does,
    results: BTreeMap<usize, Buffer>,
}

pub fn hook(name: &str, rank: &Rank, seen: &Arc<Mutex<Vec<Seen>>>) -> Option<Box<dyn Hook>> {
    let own = |does| -> Box<dyn Hook> { Box::new(Own { does, results: BTreeMap::new() }) };
    let inner = match name {
        name if !has_hook(name) => return None,
        "hook_fp16" | "hook_builtin_fp16" => Box::new(Cast16::f16().divide(Divide::OnWire)),
        "hook_bf16" | "hook_builtin_bf16" => Box::new(Cast16::bf16().divide(Divide::OnWire)),
        "hook_noop" => own(Does::Nothing),
        "hook_new_tensor_view" | "hook_new_tensor" => own(Does::NewBuffer),
        "hook_short" => own(Does::Short),
        "hook_raises" => own(Does::Fails),
        // Global for two steps, then within the rank alone.
        "post_local_sgd" => {
            let name = format!("alone in {}", rank.group.name());
            let alone = rank.backend.new_group(&name, &[rank.backend.rank()]).expect("a group of one rank");
            Box::new(PostLocal::new(alone, 2))
        }
        _ => Box::new(AllReduce),
    };
    Some(Box::new(Watched { inner, seen: seen.clone() }))
}

impl Hook for Own {
    fn describe(&self) -> String {
        "of a test".to_owned()
    }

    fn begin(&mut self, bucket: &HookBucket<'_>) -> Result<Stage, HookError> {
        let layout = bucket.layout();
        match self.does {
            Does::Nothing => Ok(Stage::Done),
            Does::NewBuffer => {
                let own = numbers(&bucket.buffer().read()?, layout.dtype);
                let mean: Vec<f64> = own.iter().map(|one| one / bucket.divisor()).collect();
                let new = bucket.scratch(bucket.buffer().bytes())?;
                new.write()?.copy_from_slice(&from_numbers(&mean, layout.dtype));
                // The result is what is in the other buffer, whatever is in this one.
                bucket.buffer().write()?.fill(0xff);
                self.results.insert(layout.index, new.clone());
                let op = Op::AllReduce(ReduceOp::Sum.into());
                Ok(Stage::Calls(vec![Call::collective(op, Operands::in_place(new, layout.dtype)).into()]))
            }
            Does::Short => Ok(Stage::DoneIn(bucket.buffer().part(0, bucket.buffer().bytes() - 4)?)),
            Does::Fails => Err("it fails on purpose".into()),
        }
    }

    fn next(&mut self, bucket: &HookBucket<'_>, _: usize) -> Result<Stage, HookError> {
        Ok(self.results.remove(&bucket.layout().index).map_or(Stage::Done, Stage::DoneIn))
    }
}

/// Compares what a hook was given in a step with the recording.
pub fn check(player: &Player<'_>, step: &Value, number: usize) {
    let seen = std::mem::take(&mut *player.seen.lock().unwrap());
    let Some(wanted) = step.get("hook_calls").map(|calls| pick(calls, player.place)) else { return };
    let wanted = wanted.as_array().expect("calls");
    assert_eq!(seen.len(), wanted.len(), "{}: calls of the hook", player.name());
    for (seen, wanted) in seen.iter().zip(wanted) {
        // PyTorch numbers all buckets 0 in the first step of a static graph: RED-21.
        if !(player.recording.is_different() && number == 0) {
            assert_eq!(Some(seen.index as u64), wanted["index"].as_u64(), "{}: index", player.name());
            assert_eq!(Some(seen.is_last), wanted["is_last"].as_bool(), "{}: is last", player.name());
        }
        assert_eq!(serde_json::json!(seen.params), wanted["params"], "{}: parameters", player.name());
        if let Some(buffer) = wanted.get("buffer") {
            let what = format!("{}: what the hook is given", player.name());
            assert_close(&seen.buffer, &bytes(buffer, seen.dtype), seen.dtype, None, &what);
        }
    }
}

/// Averages parameters, where the recording does: post-local SGD of two global steps, then each second one.
pub fn average(player: &Player<'_>, step: &Value, number: usize, rank: &Rank) {
    let wanted = player.words(step, "averaging");
    let Some(after) = step.get("params_after").filter(|_| player.name() == "post_local_sgd") else {
        return assert!(wanted.is_empty(), "{}: {wanted:?}", player.name());
    };
    let average = PeriodicAverage::new(2, 2.try_into().expect("not 0"));
    assert_eq!(average.is_due(number as u64), !wanted.is_empty(), "{}, step {number}", player.name());
    let list = pick(after, player.place).as_array().expect("parameters");
    let mut params: Vec<Vec<u8>> = list.iter().map(|list| bytes(list, DType::F32)).collect();
    let same = params.clone();
    let mut tensors: Vec<_> = params.iter_mut().map(|bytes| (DType::F32, &mut bytes[..])).collect();
    average.average(player.recorder.as_ref(), &rank.group, number as u64, &mut tensors).unwrap();
    player.check_launches(&wanted, "averaging");
    // After an average all ranks have the same, whose mean it is.
    assert!(wanted.is_empty() || params == same, "{}, step {number}", player.name());
}
