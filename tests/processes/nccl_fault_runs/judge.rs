//! What each rank of a run has to say, and whether it does.
//!
//! A rank that fails is right when it names the culprit in the way that is the fault's own, or when it names ranks that
//! failed before it and are right themselves: who hears of a rank that gave up looks at what that one says. Nobody is right
//! who names a rank that did all it was to do, and of ranks that name one another none is.

use super::plan::{Fault, Plan};
use super::rank::Told;
use std::collections::BTreeSet;

/// Whether the error is that of the fault itself.
fn is_direct(plan: &Plan, told: &Told) -> bool {
    let (kind, names) = (told.kind.as_str(), told.named.contains(&plan.culprit));
    let alone = told.named == [plan.culprit];
    match plan.fault {
        Fault::Nothing => false,
        Fault::NeverJoins | Fault::Stalls => kind == "timeout" && names,
        Fault::Dies => kind == "lost" && alone,
        Fault::Leaves | Fault::NoLibrary => kind == "left" && alone,
        Fault::Panics => kind == "panicked" && alone,
        Fault::Aborts => ["aborted", "left"].contains(&kind) && alone,
        Fault::OtherVersion => kind == "mismatch" && names && told.text.contains("NCCL version"),
        Fault::OtherOrder => kind == "mismatch" && names,
        _ if plan.fault.is_other_call() => kind == "mismatch" && names,
        _ if plan.fault.is_hang() => kind == "timeout" && told.named.is_empty(),
        Fault::Call(_) => kind == "failed" && alone,
        // Nobody can be told, and nobody's fault it is.
        _ => kind == "failed elsewhere",
    }
}

/// `told`: of each rank the error, if it had one. Ranks that were stopped have none.
pub fn judge(plan: &Plan, told: &[Option<Told>]) -> Result<(), String> {
    if plan.fault.is_of_store() {
        return judge_store(plan, told);
    }
    let mut right: BTreeSet<u32> = BTreeSet::new();
    let mut direct = 0;
    for (rank, told) in (0..).zip(told) {
        let Some(told) = told else { continue };
        if plan.fault == Fault::NoLibrary && rank == plan.culprit {
            if told.kind != "library" {
                return Err(format!("rank {rank} does not say that its library is missing"));
            }
            continue;
        }
        // Whoever had not joined yet has launched nothing, and says that there is no store.
        if plan.fault == Fault::StoreLost && told.kind == "store" && told.text.contains("cannot be reached") {
            direct += 1;
            right.insert(rank);
            continue;
        }
        if told.record.as_ref() != Some(&told.named) {
            return Err(format!("rank {rank} names {:?}, its flight record {:?}", told.named, told.record));
        }
        if is_direct(plan, told) {
            direct += 1;
            right.insert(rank);
        }
    }
    while let Some(next) = (0..).zip(told).find_map(|(rank, told)| follows(plan, rank, told.as_ref()?, &right)) {
        right.insert(next);
    }
    if let Some(rank) = (0..plan.size).find(|rank| told[*rank as usize].is_some() && !right.contains(rank)) {
        let is_own = plan.fault == Fault::NoLibrary && rank == plan.culprit;
        if !is_own {
            return Err(format!("rank {rank} names the wrong ones"));
        }
    }
    let must = must_fail(plan);
    if let Some(rank) = must.iter().find(|rank| told[**rank as usize].is_none()) {
        return Err(format!("rank {rank} did not fail"));
    }
    if !must.is_empty() && direct == 0 { Err("nobody saw the culprit".to_owned()) } else { Ok(()) }
}

/// The rank, when its error follows from those of others.
fn follows(plan: &Plan, rank: u32, told: &Told, right: &BTreeSet<u32>) -> Option<u32> {
    let known = |named: &u32| right.contains(named) || *named == plan.culprit;
    let follows = ["left", "timeout"].contains(&&*told.kind)
        && !told.named.is_empty()
        && !told.named.contains(&rank)
        && told.named.iter().all(known)
        && told.named.iter().any(|named| right.contains(named));
    (follows && !right.contains(&rank)).then_some(rank)
}

fn must_fail(plan: &Plan) -> Vec<u32> {
    match plan.fault {
        Fault::Nothing => Vec::new(),
        Fault::OtherOrder if !plan.order_is_seen() => Vec::new(),
        Fault::OtherOrder => vec![plan.culprit],
        Fault::OtherVersion | Fault::NoLibrary => {
            let from_the_start = Plan { at: 0, ..plan.clone() };
            from_the_start.hindered()
        }
        // Other groups may go on.
        fault if fault.is_other_call() || matches!(fault, Fault::Call(_)) => {
            plan.groups[plan.steps[plan.at].group].clone()
        }
        _ => plan.hindered(),
    }
}

/// Of ranks that cannot meet: one is refused, and all others are told who is missing, and who was refused.
fn judge_store(plan: &Plan, told: &[Option<Told>]) -> Result<(), String> {
    let twice = (plan.culprit + 1) % plan.size;
    let mut refused = Vec::new();
    for (rank, told) in (0..).zip(told) {
        let Some(told) = told else { return Err(format!("rank {rank} was let in")) };
        match told.kind.as_str() {
            "refused" => refused.push(rank),
            "absent" if told.named == [plan.culprit] => {
                let of = if plan.fault == Fault::DuplicateRank { twice } else { plan.culprit };
                let refused =
                    told.text.split_once("refused: ").is_some_and(|(_, it)| it.contains(&format!("rank {of} ")));
                if !refused {
                    return Err(format!("rank {rank} does not say who was refused"));
                }
            }
            _ => return Err(format!("rank {rank} says something else")),
        }
    }
    let allowed = if plan.fault == Fault::DuplicateRank { vec![plan.culprit, twice] } else { vec![plan.culprit] };
    match refused[..] {
        [one] if allowed.contains(&one) => Ok(()),
        _ => Err(format!("ranks {refused:?} were refused, of {allowed:?}")),
    }
}
