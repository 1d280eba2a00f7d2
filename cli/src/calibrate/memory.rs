//! How much memory there is for buffers.

use std::path::Path;

/// What of the free memory buffers may take: others live here, too.
const SHARE: u64 = 2;

/// The largest message that fits: `buffers` of it on each of so many ranks that share what is free. Not known is enough.
pub fn most_bytes(free_bytes: Option<u64>, ranks: u32, buffers: u64) -> u64 {
    let shared = u64::from(ranks.max(1)).saturating_mul(buffers.max(1));
    free_bytes.map_or(u64::MAX, |free| free / SHARE / shared)
}

/// Bytes of memory that this machine, or the container, has free; where it says so.
pub fn free_bytes() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(Path::new(path)).ok();
    let limits = [
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ];
    let within = limits.iter().filter_map(|(limit, used)| left(&read(limit)?, &read(used)?));
    within.chain(read("/proc/meminfo").and_then(|text| available(&text))).min()
}

/// What Linux says is available.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What a limit leaves; `max` is none.
fn left(limit: &str, used: &str) -> Option<u64> {
    Some(limit.trim().parse::<u64>().ok()?.saturating_sub(used.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_shared_by_ranks_and_buffers() {
        assert_eq!(most_bytes(Some(64 << 30), 4, 2), 4 << 30);
        assert_eq!(most_bytes(Some(64 << 30), 1, 3), (32 << 30) / 3);
        assert_eq!(most_bytes(Some(0), 4, 2), 0);
        assert_eq!(most_bytes(None, 4, 2), u64::MAX);
    }

    #[test]
    fn what_the_system_says_is_read() {
        assert_eq!(available("MemTotal:  24 kB\nMemFree: 3 kB\nMemAvailable:   7 kB\n"), Some(7 << 10));
        assert_eq!(available("MemTotal:  24 kB\n"), None);
        assert_eq!((left("100\n", "30\n"), left("100\n", "300\n"), left("max\n", "30\n")), (Some(70), Some(0), None));
    }
}
