//! The end of a step: what is not marked, what is waited for, and what became of each parameter.

use super::{Ended, Flight, Graph, InStep, Learned, NEVER, Progress};
use crate::copy;
use crate::error::ReducerError;
use crate::layout::Bucket;
use crate::options::Unused;
use crate::shared::lock;
use crate::timeline::{BucketTimes, Timeline};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl InStep {
    /// Ends the step: no mark is taken from here on, what is not marked is missing or left out, and all is launched. Then
    /// waits, bucket by bucket; `done` is called for each in order.
    pub fn finish(&self, mut done: impl FnMut(usize, &Progress)) -> Result<Ended, ReducerError> {
        self.close();
        let settled = self.primed().and_then(|()| self.settle());
        self.conclude(settled, &mut done)
    }

    /// Takes part without gradients, but for what local steps left.
    pub fn shadow(&self) -> Result<Ended, ReducerError> {
        self.close();
        let left_out = (0..self.shared.params.len()).try_for_each(|param| {
            self.leave_out(param)?;
            // A graph that is being learned is completed below.
            if !self.is_learning() {
                self.completes(param);
            }
            Ok(())
        });
        self.conclude(left_out, &mut |_, _| {})
    }

    /// Launches and waits for all, if what comes before went well. What fails does so on all ranks.
    fn conclude(
        &self,
        prepared: Result<(), ReducerError>,
        done: &mut dyn FnMut(usize, &Progress),
    ) -> Result<Ended, ReducerError> {
        let mut progress = lock(&self.progress);
        let now = self.start.elapsed();
        let ended = prepared.and_then(|()| self.end(&mut progress, now, done));
        ended.map_err(|error| progress.failed.get_or_insert_with(|| self.shared.fail(error, self.number)).clone())
    }

    /// Parameters that nobody marked.
    pub(super) fn settle(&self) -> Result<(), ReducerError> {
        if let Some(error) = lock(&self.progress).failed.clone() {
            return Err(error);
        }
        let marked = |param: usize| self.marks[param].load(Ordering::Acquire);
        let all = 0..self.shared.params.len();
        let (missing, way_out): (Vec<usize>, _) = match &self.graph {
            Graph::Learned(learned) => (
                all.filter(|param| marked(*param) < learned.marks[*param]).collect(),
                "the first step marked it, so the graph is not static: make the reducer without",
            ),
            Graph::Dynamic if !self.shared.options.allows_unused() => (
                all.filter(|param| marked(*param) == 0).collect(),
                "the model did not use it, or an output of it was left out of the loss: say in the options what becomes \
                 of unused parameters, or use all",
            ),
            _ => {
                for param in all.filter(|param| marked(*param) == 0) {
                    self.leave_out(param)?;
                    if let Graph::Dynamic = self.graph {
                        self.completes(param);
                    }
                }
                return Ok(());
            }
        };
        if missing.is_empty() {
            return Ok(());
        }
        let params = missing.into_iter().map(|param| self.shared.named(param)).collect();
        Err(ReducerError::Missing { rank: self.shared.rank(), step: self.number, params, way_out })
    }

    pub(super) fn end(
        &self,
        progress: &mut Progress,
        now: Duration,
        done: &mut dyn FnMut(usize, &Progress),
    ) -> Result<Ended, ReducerError> {
        if self.is_learning() {
            for param in std::mem::take(&mut progress.scale_later) {
                let slot = self.layout.places[param].slot.write();
                let mut slot = slot.map_err(|error| self.shared.buffer(error))?;
                copy::scale(self.shared.sent[param].dtype, self.factors()?.copy, &mut slot);
            }
            // The map comes first, as what is unused is part of what is learned.
            if self.needs_map() {
                self.launch_map(progress)?;
            }
            for param in 0..self.shared.params.len() {
                self.completes(param);
            }
        }
        self.launch_complete(progress, now)?;
        let used_somewhere = match self.early_map() {
            true => self.read_map(progress)?,
            false => None,
        };
        self.check_skipped(used_somewhere.as_deref())?;
        let count = self.layout.buckets.len();
        let (mut ended, mut stage) = (0, 0);
        while ended < count {
            for bucket in 0..count {
                self.wait(progress, bucket, stage)?;
                let is_done = matches!(progress.flights[bucket], Flight::Done | Flight::Skipped);
                if is_done && bucket == ended {
                    ended += 1;
                    if progress.launched_ns[bucket] != NEVER && !(progress.on_stream && self.shared.device.is_some()) {
                        progress.done_ns[bucket] = self.start.elapsed().as_nanos() as u64;
                    }
                    done(bucket, progress);
                }
            }
            stage += 1;
        }
        let used_somewhere = match used_somewhere {
            Some(map) => Some(map),
            None => self.read_map(progress)?,
        };
        self.outcomes(progress, used_somewhere)
    }

    /// Whether ranks agree on what is unused, where buckets of that are skipped: before any result is given out.
    fn check_skipped(&self, used: Option<&[u32]>) -> Result<(), ReducerError> {
        let ranks = self.shared.group.size() as u32;
        let (Unused::Skip, Graph::Dynamic, Some(used)) = (self.shared.options.unused, &self.graph, used) else {
            return Ok(());
        };
        match used.iter().position(|count| *count != 0 && *count != ranks) {
            None => Ok(()),
            Some(param) => {
                let reason = format!("{} of {ranks} ranks used it; to skip it, all have to agree", used[param]);
                Err(self.refuse(param, reason))
            }
        }
    }

    /// Whether a parameter is unused here, so that results depend on the map.
    pub(super) fn early_map(&self) -> bool {
        let skips = self.shared.options.unused == Unused::Skip;
        self.needs_map() && (skips || self.used.iter().any(|used| !used.load(Ordering::Relaxed)))
    }

    /// Waits for a stage of a bucket, if it is in that one, and begins the next.
    pub(super) fn wait(&self, progress: &mut Progress, bucket: usize, at: usize) -> Result<(), ReducerError> {
        let works = match &mut progress.flights[bucket] {
            Flight::Running { stage, works } if *stage == at => std::mem::take(works),
            _ => return Ok(()),
        };
        if progress.on_stream && self.shared.device.is_some() {
            self.shared.leave_flying(self.number, &self.bucket_name(bucket), works);
            progress.flights[bucket] = Flight::Done;
            return Ok(());
        }
        for work in works {
            work.wait(None).map_err(|error| self.bucket_failed(bucket, error))?;
        }
        let what = &self.layout.buckets[bucket];
        if what.sparse {
            self.next_sparse(progress, bucket, at)
        } else if self.shared.hook.is_some() {
            let stage = self.ask_hook(bucket, Some(at))?;
            self.apply(progress, bucket, at + 1, stage)
        } else {
            progress.flights[bucket] = Flight::Done;
            Ok(())
        }
    }

    /// Which parameters any rank used, where ranks tell one another.
    pub(super) fn read_map(&self, progress: &mut Progress) -> Result<Option<Vec<u32>>, ReducerError> {
        let Some((buffer, work)) = progress.map.take() else { return Ok(None) };
        work.wait(None).map_err(|error| self.shared.comm(self.number, "the used map", error))?;
        let bytes = buffer.read().map_err(|error| self.shared.buffer(error))?;
        Ok(Some(bytes.as_chunks::<4>().0.iter().map(|count| u32::from_le_bytes(*count)).collect()))
    }

    /// What became of each parameter; puts back what is kept.
    pub(super) fn outcomes(&self, progress: &mut Progress, used: Option<Vec<u32>>) -> Result<Ended, ReducerError> {
        let from_map = || used.as_ref().map(|used| used.iter().map(|count| *count > 0).collect::<Arc<[bool]>>());
        let used_somewhere = match &self.graph {
            Graph::Learned(learned) => Some(learned.used_somewhere.clone()),
            Graph::Learning { used_somewhere } => used_somewhere.clone().or_else(from_map),
            Graph::Dynamic => from_map(),
        };
        let learned = match (&self.graph, &used_somewhere) {
            (Graph::Learned(learned), _) => Some(learned.clone()),
            (Graph::Learning { .. }, Some(used_somewhere)) => Some(Arc::new(Learned {
                marks: self.marks.iter().map(|marks| marks.load(Ordering::Acquire)).collect(),
                used_somewhere: used_somewhere.clone(),
            })),
            _ => None,
        };
        let kept = |param: usize| {
            let here = self.used[param].load(Ordering::Relaxed);
            let somewhere = used_somewhere.as_ref().is_none_or(|used| used.get(param).copied().unwrap_or(true));
            !here && (!somewhere || self.shared.options.unused == Unused::KeepMine)
        };
        let kept: Vec<bool> = (0..self.shared.params.len()).map(kept).collect();
        for (param, bytes) in std::mem::take(&mut progress.saved) {
            if kept[param] {
                let mut slot = self.layout.places[param].slot.write().map_err(|error| self.shared.buffer(error))?;
                slot.copy_from_slice(&bytes);
            }
        }
        self.restore_on_device(progress, &kept)?;
        let out = self.factors()?.out;
        let all = 0..self.shared.params.len();
        let unused = all.filter(|param| !self.used[*param].load(Ordering::Relaxed)).collect();
        let timeline = self.timeline(progress);
        Ok(Ended { kept, out, learned, used_somewhere, order: self.order(), unused, timeline })
    }

    fn timeline(&self, progress: &Progress) -> Timeline {
        let time = |ns: u64| (ns != NEVER).then(|| Duration::from_nanos(ns));
        let buckets = progress.launched_ns.iter().zip(&progress.done_ns).zip(&self.layout.buckets);
        let bucket = |((launched, done), what): ((&u64, &u64), &Bucket)| BucketTimes {
            bytes: what.buffer.bytes(),
            launched: time(*launched),
            done: time(*done),
        };
        Timeline {
            step: self.number,
            started: self.start,
            ready: self.ready_ns.iter().map(|ns| time(ns.load(Ordering::Relaxed))).collect(),
            buckets: buckets.map(bucket).collect(),
            finished: self.start.elapsed(),
        }
    }

    /// Parameters in the order in which they became ready; the rest follows by index.
    pub(super) fn order(&self) -> Vec<usize> {
        let mut order: Vec<(bool, u64, usize)> = (0..self.shared.params.len())
            .map(|param| {
                let used = self.used[param].load(Ordering::Relaxed);
                (!used, self.ready_place[param].load(Ordering::Relaxed), param)
            })
            .collect();
        order.sort_unstable_by_key(|(unused, place, param)| (*unused, if *unused { 0 } else { *place }, *param));
        order.into_iter().map(|(_, _, param)| param).collect()
    }
}
