//! Runs in which ranks run out of data.

use super::Recording;
use super::run::{Player, buckets, buffers};
use crate::Rank;
use bucketeer_reducer::{JoinDivide, JoinOptions, ReducerError, RunOut, Tensor};
use bucketeer_types::DType;
use serde_json::Value;

fn tensors(list: &mut [(DType, Vec<u8>)]) -> Vec<Tensor<'_>> {
    list.iter_mut().map(|(dtype, bytes)| Tensor::new(*dtype, bytes)).collect()
}

pub fn play(recording: &Recording, rank: &Rank) {
    let (mut player, mut reducer) = Player::new(recording, rank);
    let steps = recording.list("steps", player.place);
    let name = &recording.name;
    let what = recording.value["what"].as_str().unwrap_or_default();
    let live = what.contains("still have inputs") || what.contains("live ranks");
    let options = JoinOptions {
        divide: if live { JoinDivide::ByLive } else { JoinDivide::ByWorld },
        run_out: if recording.value.get("join_error").is_some() { RunOut::Fail } else { RunOut::Shadow },
    };
    let mut own = buffers(recording, player.place);
    let active = |player: &Player<'_>, step: &Value| player.of(step, "fwd").is_some();
    let mut ends = Ok(());
    for (number, step) in steps.iter().enumerate() {
        if !active(&player, step) {
            continue;
        }
        let at = format!("step {number}");
        player.zero(&mut reducer, step);
        let mut join = reducer.join(options).unwrap();
        if player.of(step, "sync") == Some(&Value::Bool(false)) {
            player.local_step(&join.local_step(&mut tensors(&mut own)).unwrap(), step);
            player.check_launches(&player.words(step, "fwd"), &format!("forward of {at}"));
            continue;
        }
        let begun = match join.step(&mut tensors(&mut own)) {
            Ok(begun) => begun,
            Err(error) => {
                assert!(player.of(step, "error").is_some(), "{name}, {at}: {error}");
                ends = Err(error);
                break;
            }
        };
        if recording.is_different() {
            player.recorder.take();
        } else {
            player.check_launches(&player.words(step, "fwd"), &format!("forward of {at}"));
        }
        player.mark_all(&begun, step).unwrap();
        player.take(&begun.finish().unwrap());
        if recording.is_different() {
            player.recorder.take();
        } else {
            player.check_launches(&player.words(step, "bwd"), &at);
            player.check_grads(step);
        }
        super::hooks::check(&player, step, number);
        different(&player, step, number, &buckets(&reducer));
    }
    let params: Vec<(DType, Vec<u8>)> =
        player.params.iter().map(|param| (param.dtype(), vec![player.place as u8; param.bytes() as usize])).collect();
    let mut all: Vec<(DType, Vec<u8>)> = params.into_iter().chain(own.clone()).collect();
    let ended = ends.and_then(|()| reducer.join(options).unwrap().end(&mut tensors(&mut own), &mut tensors(&mut all)));
    let wanted = recording.value.get("shadow_and_end").map(|_| player.words(&recording.value, "shadow_and_end"));
    if options.run_out == RunOut::Fail {
        // All are told who ran out, which PyTorch's others are not.
        let Err(ReducerError::RanOut { ranks, .. }) = &ended else { panic!("{name}: {ended:?}") };
        let first = (0..recording.ranks).find(|place| {
            let is_out = |step: &Value| crate::values::pick(&step["fwd"], *place).is_null();
            steps.last().is_some_and(is_out)
        });
        assert_eq!(ranks.first().map(|rank| rank.0 as usize), first, "{name}");
        return;
    }
    let joined = ended.unwrap_or_else(|error| panic!("{name}: {error}"));
    let reduced = |place: usize| {
        let syncs = |step: &&Value| *crate::values::pick(&step["sync"], place) == Value::Bool(true);
        steps.iter().filter(syncs).count()
    };
    let (mine, all_reduced) = (reduced(player.place), (0..recording.ranks).map(reduced).max().unwrap_or(0));
    assert_eq!(joined.shadowed_steps as usize, all_reduced - mine, "{name}");
    // RED-32.
    assert_eq!(joined.optimizer_is_stale, mine < all_reduced, "{name}");
    let last = joined.authority.0 as u8;
    assert!(all.iter().all(|(_, bytes)| bytes.iter().all(|byte| *byte == last)), "{name}: not rank {last}'s");
    if let Some(wanted) = wanted.filter(|_| !recording.is_different()) {
        player.check_launches(&wanted, "the end");
    }
}

/// What this reducer makes where the recording shows a fault.
fn different(player: &Player<'_>, step: &Value, number: usize, buckets: &Value) {
    let is_last = player.place + 1 == player.recording.ranks;
    match player.name() {
        "join_zero_inputs" => {
            player.check_grads(step);
            if number > 0 {
                assert_eq!(*buckets, serde_json::json!([[5, 4, 3], [2], [1, 0]]), "RED-31");
            }
        }
        "join_stale_map" if number > 0 && is_last => {
            // RED-29: what no rank uses has no gradient, also after a rank that used it has run out.
            let used: Vec<u64> = step["ready"]["by_rank"][player.place]
                .as_array()
                .expect("marks")
                .iter()
                .filter_map(Value::as_u64)
                .collect();
            for (param, grad) in player.grads.iter().enumerate() {
                assert_eq!(grad.is_some(), used.contains(&(param as u64)), "RED-29: parameter {param}");
            }
        }
        _ => {}
    }
}
