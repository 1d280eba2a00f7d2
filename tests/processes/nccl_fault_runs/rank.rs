//! What one rank of a run does, in whatever thread or process, and what it finds.

use super::plan::{Fault, Plan, Step, What};
use bucketeer::ir::{DType, GlobalRank, GroupRank, ReduceOp};
use bucketeer_comm::nccl::{NcclOptions, NcclRank};
use bucketeer_comm::store::Store;
use bucketeer_comm::{
    Announced, Backend, Buffer, Call, CallOptions, CallSignature, CommError, Fate, Group, Op, Operands, Work,
};
use bucketeer_cuda::Driver;
use bucketeer_cuda::nccl::Nccl;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a call may take. The time in which a machine that is busy lets every thread run once.
pub const TIMEOUT: Duration = Duration::from_secs(3);
pub const GRACE: Duration = Duration::from_millis(1500);

/// No run may take longer: each rank waits for another once at most, then the others for it.
pub const LIMIT: Duration = Duration::from_secs(60);

/// What differs between ranks that are threads and those that are processes.
pub trait Host: Sync {
    /// This rank does nothing more.
    fn finish(&self, rank: u32);
    fn is_finished(&self, rank: u32) -> bool;
    /// Goes without a word. A thread comes back from it.
    fn die(&self, rank: u32);
    /// Stops for as long as others go on.
    fn stall(&self, rank: u32);
    fn end_store(&self);
    /// Plans a fault of the fake for the launch that `launch` makes.
    fn struck(&self, fault: &str, launch: &mut dyn FnMut());
    /// Makes a launch that no fault is for.
    fn unstruck(&self, launch: &mut dyn FnMut());
}

/// How a rank failed.
#[derive(Clone, PartialEq, Debug)]
pub struct Told {
    pub kind: String,
    /// The ranks it names.
    pub named: Vec<u32>,
    pub text: String,
    /// Those that the flight record names.
    pub record: Option<Vec<u32>>,
}

impl Told {
    pub fn to_json(&self) -> Value {
        json!({ "kind": self.kind, "named": self.named, "text": self.text, "record": self.record })
    }

    pub fn from_json(value: &Value) -> Self {
        let text = |key: &str| value[key].as_str().unwrap().to_owned();
        Self {
            kind: text("kind"),
            named: numbers(&value["named"]).unwrap(),
            text: text("text"),
            record: numbers(&value["record"]),
        }
    }

    fn of(error: &CommError) -> Self {
        let mut first = error;
        while let CommError::Comm { cause, .. } = first {
            first = cause;
        }
        let plain = |ranks: &[GlobalRank]| ranks.iter().map(|rank| rank.0).collect::<Vec<u32>>();
        let (kind, mut named) = match first {
            CommError::Timeout { missing, .. } => ("timeout", plain(missing)),
            CommError::Mismatch { ranks: (a, b), .. } => ("mismatch", plain(&[*a, *b])),
            CommError::Remote { rank, fate, .. } => {
                let kind = match fate {
                    Fate::Left => "left",
                    Fate::Panicked => "panicked",
                    Fate::Killed => "killed",
                    Fate::Lost => "lost",
                };
                (kind, plain(&[*rank]))
            }
            CommError::Aborted { by, .. } => ("aborted", plain(&[*by])),
            CommError::Failed { rank, elsewhere: false, .. } => ("failed", plain(&[*rank])),
            CommError::Failed { .. } => ("failed elsewhere", Vec::new()),
            CommError::Invalid { .. } | CommError::Buffer { .. } | CommError::Comm { .. } => ("misuse", Vec::new()),
        };
        named.sort_unstable();
        Self { kind: kind.to_owned(), named, text: error.to_string(), record: None }
    }
}

fn numbers(value: &Value) -> Option<Vec<u32>> {
    Some(value.as_array()?.iter().map(|number| number.as_u64().unwrap() as u32).collect())
}

/// What the flight record says of a group: which ranks are at fault.
fn recorded(folder: &Path, rank: u32, group: &str) -> Option<Vec<u32>> {
    let text = std::fs::read_to_string(folder.join(format!("flight-rank{rank}.json"))).ok()?;
    let record: Value = serde_json::from_str(&text).expect("a flight record is JSON");
    let all = std::iter::once(&record).chain(record["later_failures"].as_array().expect("a list"));
    let mut found = all.filter(|failure| failure["failed_group"] == group).find_map(|it| numbers(&it["culprits"]))?;
    found.sort_unstable();
    Some(found)
}

/// Plays a rank. None when all of its steps were well, or it stopped as planned.
pub fn play(
    plan: &Plan,
    nccl: &Nccl,
    driver: &Driver,
    store: Arc<dyn Store>,
    host: &dyn Host,
    folder: &Path,
) -> Option<Told> {
    let number = store.rank().0;
    let options = NcclOptions {
        timeout: TIMEOUT,
        grace: GRACE,
        poll: Duration::from_millis(5),
        store_poll: Duration::from_millis(10),
        flight_records: Some(folder.to_owned()),
        ..NcclOptions::default()
    };
    let context = driver.device(number).unwrap().context().unwrap();
    let rank = NcclRank::new(nccl, &context, store, options).unwrap();
    let told = Player { plan, number, host, rank: &rank }.play();
    if matches!((&told, plan.fault), (Ok(true), Fault::Leaves | Fault::Aborts)) {
        return None;
    }
    let others = || (0..plan.size).filter(|other| *other != number).collect::<Vec<u32>>();
    let told = told.and_then(|_| {
        host.finish(number);
        // Those that the plan stops for good are not waited for.
        let stops = matches!(plan.fault, Fault::Dies | Fault::Stalls | Fault::StoreLost);
        let gone = stops.then_some(plan.culprit);
        wait(|| others().iter().all(|other| Some(*other) == gone || host.is_finished(*other)));
        if plan.fault == Fault::Nothing { rank.close() } else { Ok(()) }
    });
    told.err().map(|error| {
        let record = recorded(folder, number, &error.site().group);
        Told { record, ..Told::of(&error) }
    })
}

pub fn wait(holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() && start.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(3));
    }
}

struct Player<'a> {
    plan: &'a Plan,
    number: u32,
    host: &'a dyn Host,
    rank: &'a NcclRank,
}

/// A launch, and what its outputs are to be.
struct Launched {
    work: Work,
    expected: Vec<(Buffer, Vec<u8>)>,
}

impl Player<'_> {
    /// Whether the rank stopped as planned.
    fn play(&self) -> Result<bool, CommError> {
        let Plan { fault, culprit, .. } = *self.plan;
        let is_culprit = self.number == culprit;
        let groups: Vec<Option<Group>> = self.plan.groups.iter().enumerate().map(|it| self.group(it)).collect();
        let group = |step: &Step| groups[step.group].as_ref().unwrap();
        if is_culprit && fault == Fault::NeverJoins {
            return Ok(true);
        }
        let steps = self.plan.steps_of(self.number);
        if self.plan.announced {
            let announced = |(_, step): &(usize, Step)| {
                let (calls, _) = self.calls(step, group(step), Fault::Nothing);
                Announced { group: group(step).clone(), calls: calls.iter().map(CallSignature::of).collect() }
            };
            self.rank.announce(&steps.iter().map(announced).collect::<Vec<_>>())?;
        }
        let mut flying = Vec::new();
        for (nth, step) in &steps {
            let strikes = is_culprit && *nth == self.plan.at;
            if strikes && self.stops(group(step)) {
                return Ok(true);
            }
            let launched = self.launch(step, group(step), if strikes { fault } else { Fault::Nothing })?;
            if self.plan.waits {
                self.end(launched)?;
            } else {
                flying.push(launched);
            }
        }
        flying.into_iter().try_for_each(|launched| self.end(launched))?;
        Ok(false)
    }

    fn group(&self, (nth, members): (usize, &Vec<u32>)) -> Option<Group> {
        let ranks: Vec<GlobalRank> = members.iter().map(|rank| GlobalRank(*rank)).collect();
        members.contains(&self.number).then(|| self.rank.new_group(&format!("g{nth}"), &ranks).unwrap())
    }

    /// The faults that end what the culprit does; whether it is one of them.
    fn stops(&self, group: &Group) -> bool {
        match self.plan.fault {
            Fault::Dies => self.host.die(self.number),
            Fault::Stalls => self.host.stall(self.number),
            Fault::Leaves => return true,
            Fault::Panics => std::panic::resume_unwind(Box::new("as planned")),
            Fault::Aborts => self.rank.abort(group),
            Fault::StoreLost => {
                self.host.end_store();
                self.host.stall(self.number);
            }
            _ => return false,
        }
        true
    }

    fn launch(&self, step: &Step, group: &Group, fault: Fault) -> Result<Launched, CommError> {
        let (calls, expected) = self.calls(step, group, fault);
        let is_block = calls.len() > 1;
        let mut calls = Some(calls);
        let mut work = None;
        let mut launch = || {
            let options = CallOptions::default();
            let mut calls = calls.take().unwrap();
            work = Some(if is_block {
                let all = self.rank.start_coalescing(group).and_then(|()| {
                    calls.drain(..).try_for_each(|call| self.rank.launch(group, call, &options).map(drop))
                });
                let ended = self.rank.end_coalescing(group, &options);
                all.and(ended)
            } else {
                self.rank.launch(group, calls.remove(0), &options)
            });
        };
        match fault {
            Fault::Call(text) => self.host.struck(text, &mut launch),
            // Who has to wait for others to connect may not keep them from it.
            _ if !matches!(self.plan.fault, Fault::Call(_)) => launch(),
            _ => self.host.unstruck(&mut launch),
        }
        Ok(Launched { work: work.unwrap()?, expected })
    }

    fn end(&self, launched: Launched) -> Result<(), CommError> {
        launched.work.wait(None)?;
        for (buffer, expected) in launched.expected {
            assert!(*buffer.read().unwrap() == expected[..], "rank {} got other values", self.number);
        }
        Ok(())
    }

    /// The calls of a step that are this rank's, and what they give.
    fn calls(&self, step: &Step, group: &Group, fault: Fault) -> (Vec<Call>, Vec<(Buffer, Vec<u8>)>) {
        let (mut calls, mut expected) = (Vec::new(), Vec::new());
        let place = group.rank().0;
        for what in step.calls.iter().filter(|what| what.is_of(place)) {
            let (call, gives) = self.call(*what, group, fault);
            calls.push(call);
            expected.extend(gives);
        }
        (calls, expected)
    }

    fn buffer(&self, bytes: u64, fill: u32) -> Buffer {
        let buffer = self.rank.arena(bytes).unwrap().buffer(0, bytes).unwrap();
        buffer.write().unwrap().fill(fill as u8 + 1);
        buffer
    }

    fn call(&self, what: What, group: &Group, fault: Fault) -> (Call, Option<(Buffer, Vec<u8>)>) {
        let place = group.rank().0;
        let members = group.members();
        let of = |place: u32| members[place as usize].0;
        let sum = ReduceOp::Sum;
        let (bytes, op, dtype) = match (what, fault) {
            (What::Sum { elements }, Fault::OtherCount) => (elements + 8, Op::AllReduce(sum.into()), DType::U8),
            (What::Sum { elements }, Fault::OtherDtype) => (elements, Op::AllReduce(sum.into()), DType::I32),
            (What::Sum { elements }, Fault::OtherReduction) => {
                (elements, Op::AllReduce(ReduceOp::Max.into()), DType::U8)
            }
            (What::Sum { elements }, Fault::OtherOp) => (elements, Op::Broadcast { root: GroupRank(0) }, DType::U8),
            (What::Sum { elements }, _) => (elements, Op::AllReduce(sum.into()), DType::U8),
            (What::Broadcast { elements, root }, _) => (elements, Op::Broadcast { root: GroupRank(root) }, DType::U8),
            (What::Barrier, _) => return (Call::barrier(), None),
            (What::Message { bytes, from, to }, _) if from == place => {
                return (Call::send(self.buffer(bytes, self.number), DType::U8, GroupRank(to)), None);
            }
            (What::Message { bytes, from, .. }, _) => {
                let buffer = self.buffer(bytes, 100);
                let expected = vec![of(from) as u8 + 1; bytes as usize];
                return (Call::recv(buffer.clone(), DType::U8, GroupRank(from)), Some((buffer, expected)));
            }
            (What::Gather { elements }, _) => {
                let output = self.buffer(elements * members.len() as u64, 100);
                let expected = members.iter().flat_map(|rank| vec![rank.0 as u8 + 1; elements as usize]).collect();
                let data = Operands::new(self.buffer(elements, self.number), output.clone(), DType::U8);
                return (Call::collective(Op::AllGather, data), Some((output, expected)));
            }
        };
        let value = match op {
            Op::Broadcast { root } => of(root.0) as u8 + 1,
            _ => members.iter().map(|rank| rank.0 as u8 + 1).sum(),
        };
        let buffer = self.buffer(bytes, self.number);
        let call = Call::collective(op, Operands::in_place(buffer.clone(), dtype));
        (call, Some((buffer, vec![value; bytes as usize])))
    }
}
