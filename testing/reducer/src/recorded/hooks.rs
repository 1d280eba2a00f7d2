//! The hooks of the recordings, and what they were given.

use super::run::Player;
use crate::Rank;
use crate::values::{assert_close, bytes, from_numbers, numbers, pick};
use bucketeer_comm::{Call, Op, Operands};
use bucketeer_reducer::{Hook, HookBucket, HookError, Stage};
use bucketeer_types::{DType, ReduceOp};
use serde_json::Value;
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

/// What the hook of a recording does.
enum Does {
    /// Divides and sums.
    AllReduce,
    /// The same in a 16-bit dtype.
    Cast(DType),
    /// Nothing.
    Nothing,
    /// The mean in another buffer.
    NewBuffer,
    /// A result that is too short.
    Short,
    Fails,
    /// The mean for so many steps, then nothing.
    MeanUntil(u64),
}

struct TestHook {
    does: Does,
    seen: Arc<Mutex<Vec<Seen>>>,
    scratch: std::collections::BTreeMap<usize, bucketeer_comm::Buffer>,
}

pub fn hook(name: &str, _rank: &Rank, seen: &Arc<Mutex<Vec<Seen>>>) -> Option<Box<dyn Hook>> {
    let does = match name {
        name if !has_hook(name) => return None,
        "hook_fp16" | "hook_builtin_fp16" => Does::Cast(DType::F16),
        "hook_bf16" | "hook_builtin_bf16" => Does::Cast(DType::Bf16),
        "hook_noop" => Does::Nothing,
        "hook_new_tensor_view" | "hook_new_tensor" => Does::NewBuffer,
        "hook_short" => Does::Short,
        "hook_raises" => Does::Fails,
        "post_local_sgd" => Does::MeanUntil(2),
        _ => Does::AllReduce,
    };
    Some(Box::new(TestHook { does, seen: seen.clone(), scratch: Default::default() }))
}

impl TestHook {
    fn sum(buffer: &bucketeer_comm::Buffer, dtype: DType) -> Stage {
        let op = Op::AllReduce(ReduceOp::Sum.into());
        Stage::Calls(vec![Call::collective(op, Operands::in_place(buffer.clone(), dtype)).into()])
    }
}

impl Hook for TestHook {
    fn describe(&self) -> String {
        "of a test".to_owned()
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
        let dtype = layout.dtype;
        let divided = |dtype: DType, bytes: &[u8]| {
            let own = numbers(bytes, dtype);
            from_numbers(&own.iter().map(|one| one / bucket.divisor()).collect::<Vec<_>>(), dtype)
        };
        match self.does {
            Does::Nothing => Ok(Stage::Done),
            Does::MeanUntil(step) if bucket.step() >= step => Ok(Stage::Done),
            Does::AllReduce | Does::MeanUntil(_) => {
                let mean = divided(dtype, &bucket.buffer().read()?);
                bucket.buffer().write()?.copy_from_slice(&mean);
                Ok(Self::sum(bucket.buffer(), dtype))
            }
            Does::NewBuffer => {
                let mean = divided(dtype, &bucket.buffer().read()?);
                let new = bucket.scratch(mean.len() as u64)?;
                new.write()?.copy_from_slice(&mean);
                bucket.buffer().write()?.fill(0xff);
                self.scratch.insert(layout.index, new.clone());
                Ok(Self::sum(&new, dtype))
            }
            Does::Cast(to) => {
                let own = numbers(&bucket.buffer().read()?, dtype);
                let cast = divided(to, &from_numbers(&own, to));
                let new = bucket.scratch(cast.len() as u64)?;
                new.write()?.copy_from_slice(&cast);
                self.scratch.insert(layout.index, new.clone());
                Ok(Self::sum(&new, to))
            }
            Does::Short => Ok(Stage::DoneIn(bucket.buffer().part(0, bucket.buffer().bytes() - 4)?)),
            Does::Fails => Err("it fails on purpose".into()),
        }
    }

    fn next(&mut self, bucket: &HookBucket<'_>, _: usize) -> Result<Stage, HookError> {
        let Some(result) = self.scratch.remove(&bucket.layout().index) else { return Ok(Stage::Done) };
        if let Does::Cast(from) = self.does {
            let wide = from_numbers(&numbers(&result.read()?, from), bucket.layout().dtype);
            bucket.buffer().write()?.copy_from_slice(&wide);
            return Ok(Stage::Done);
        }
        Ok(Stage::DoneIn(result))
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

/// Averages parameters, where the recording does.
pub fn average(player: &Player<'_>, step: &Value, _rank: &Rank) {
    let wanted = player.words(step, "averaging");
    assert!(wanted.is_empty() || player.name() == "post_local_sgd", "{}: {wanted:?}", player.name());
}
