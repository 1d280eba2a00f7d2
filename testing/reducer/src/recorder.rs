//! A backend that notes what is launched on it, in the words of the recordings.

use bucketeer_comm::{
    Announced, Arena, Backend, BufferError, Call, CallOptions, CommError, Described, Group, Op, Reduction, Work,
};
use bucketeer_types::{GlobalRank, ReduceOp};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// See the module docs.
pub struct Recorder {
    inner: Arc<dyn Backend>,
    /// Of which group.
    group: String,
    log: Mutex<Vec<String>>,
    mark: AtomicUsize,
}

impl Recorder {
    /// Notes launches on a group.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>, group: &Group) -> Self {
        Self { inner, group: group.name().to_owned(), log: Mutex::default(), mark: AtomicUsize::new(0) }
    }

    /// The mark that is taken now, from 1.
    pub fn at(&self, mark: usize) {
        self.mark.store(mark, Ordering::SeqCst);
    }

    /// What was noted since it was last asked.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }
}

impl Backend for Recorder {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn rank(&self) -> GlobalRank {
        self.inner.rank()
    }

    fn world_size(&self) -> u32 {
        self.inner.world_size()
    }

    fn arena(&self, bytes: u64) -> Result<Arena, BufferError> {
        self.inner.arena(bytes)
    }

    fn new_group(&self, name: &str, members: &[GlobalRank]) -> Result<Group, CommError> {
        self.inner.new_group(name, members)
    }

    fn joined(&self, name: &str, members: &[GlobalRank]) -> Option<Group> {
        self.inner.joined(name, members)
    }

    fn announce(&self, launches: &[Announced]) -> Result<(), CommError> {
        self.inner.announce(launches)
    }

    fn launch(&self, group: &Group, call: Call, options: &CallOptions) -> Result<Work, CommError> {
        if group.name().starts_with(&self.group) && !group.name().ends_with("(reasons)") {
            let op = match call.op() {
                Op::AllReduce(Reduction::Op(ReduceOp::Max)) => "all_reduce_max",
                Op::AllGather => "all_gather",
                op => op.name(),
            };
            let root =
                call.op().root().filter(|root| root.0 > 0).map_or(String::new(), |root| format!(":root={}", root.0));
            let mark = self.mark.load(Ordering::SeqCst);
            let (dtype, count) = (call.dtype().short_name(), call.count());
            self.log.lock().unwrap().push(format!("{op}:{dtype}:{count}{root}@{mark}"));
        }
        self.inner.launch(group, call, options)
    }

    fn start_coalescing(&self, group: &Group) -> Result<(), CommError> {
        self.inner.start_coalescing(group)
    }

    fn end_coalescing(&self, group: &Group, options: &CallOptions) -> Result<Work, CommError> {
        self.inner.end_coalescing(group, options)
    }

    fn abort(&self, group: &Group) {
        self.inner.abort(group);
    }

    fn shrink(&self, group: &Group, failed: &[GlobalRank]) -> Result<Group, CommError> {
        self.inner.shrink(group, failed)
    }
}
