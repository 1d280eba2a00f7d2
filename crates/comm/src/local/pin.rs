//! Which processors threads run on.

/// Number of processors this process may use.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Ties the calling thread to the `index`-th processor it may use, counted round. Without effect where the system has
/// no such call, or refuses: only speed depends on it.
#[cfg(target_os = "linux")]
pub fn pin(index: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    if usable.is_empty() {
        return;
    }
    let mut one = CpuSet::new();
    one.set(usable[index % usable.len()]);
    // Refused in some sandboxes; then the system places the thread.
    let _ = sched_setaffinity(None, &one);
}

/// Does nothing here.
#[cfg(not(target_os = "linux"))]
pub const fn pin(_: usize) {}
