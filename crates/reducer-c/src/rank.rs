//! Ranks and their groups.

#![expect(unsafe_code, reason = "names of C are global; pointers of C are read in `raw`")]
#![expect(clippy::missing_safety_doc, reason = "the crate's docs say for all functions what pointers have to be")]

use crate::raw;
use crate::status::{BucketeerStatus, Failure, call};
use crate::table::{self, Handled};
use bucketeer_comm::fake::FakeRank;
use bucketeer_comm::local::{LocalOptions, LocalRank};
use bucketeer_comm::{Backend, Group};
use bucketeer_types::GlobalRank;
use std::ffi::c_char;
use std::sync::Arc;
use std::time::Duration;

/// One rank of a world. Made by a bucketeer_rank function; ended by bucketeer_rank_close or bucketeer_rank_free.
pub struct BucketeerRank {
    _opaque: [u8; 0],
}

/// A group of ranks, as one of them sees it. Ended by bucketeer_group_free.
pub struct BucketeerGroup {
    _opaque: [u8; 0],
}

/// A rank, by what runs it.
pub(crate) enum Rank {
    Local(Arc<LocalRank>),
    Fake(Arc<FakeRank>),
    #[cfg(feature = "nccl")]
    Nccl(Arc<crate::nccl::Process>),
    #[cfg(feature = "mpi")]
    Mpi(Arc<bucketeer_comm::mpi::MpiRank>),
}

impl Handled for Rank {
    type Opaque = BucketeerRank;
    const NAME: &'static str = "rank";
}

impl Rank {
    pub(crate) fn backend(&self) -> Arc<dyn Backend> {
        match self {
            Self::Local(rank) => rank.clone(),
            Self::Fake(rank) => rank.clone(),
            #[cfg(feature = "nccl")]
            Self::Nccl(process) => process.rank(),
            #[cfg(feature = "mpi")]
            Self::Mpi(rank) => rank.clone(),
        }
    }

    /// Ends it together with the others, or gives it back if a reducer uses it.
    fn close(self) -> Result<Result<(), Failure>, Self> {
        match self {
            Self::Local(rank) => Arc::try_unwrap(rank).map(drop).map(Ok).map_err(Self::Local),
            Self::Fake(rank) => Arc::try_unwrap(rank).map(drop).map(Ok).map_err(Self::Fake),
            #[cfg(feature = "nccl")]
            Self::Nccl(process) => match Arc::try_unwrap(process) {
                Ok(process) => process.close().map_err(|process| Self::Nccl(Arc::new(process))),
                Err(process) => Err(Self::Nccl(process)),
            },
            #[cfg(feature = "mpi")]
            Self::Mpi(rank) => {
                Arc::try_unwrap(rank).map(|rank| rank.finish().map_err(Failure::from)).map_err(Self::Mpi)
            }
        }
    }
}

impl Handled for Group {
    type Opaque = BucketeerGroup;
    const NAME: &'static str = "group";
}

/// 0 stands for what a backend has by itself.
pub(crate) fn timeout(timeout_ns: u64) -> Option<Duration> {
    (timeout_ns > 0).then(|| Duration::from_nanos(timeout_ns))
}

fn global(ranks: &[u32]) -> Vec<GlobalRank> {
    ranks.iter().copied().map(GlobalRank).collect()
}

/// Opens a world of `count` ranks in this process, 1 to 4096, each for a thread of its own, and writes their handles to `ranks`,
/// which has room for all. No collective may take longer than `timeout_ns` nanoseconds; 0 stands for ten minutes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_rank_local(
    count: u32,
    timeout_ns: u64,
    ranks: *mut *mut BucketeerRank,
) -> BucketeerStatus {
    call(|| {
        raw::check_list(ranks, count as usize, "ranks")?;
        let default = LocalOptions::default();
        let options = LocalOptions { timeout: timeout(timeout_ns).unwrap_or(default.timeout), ..default };
        for (at, rank) in bucketeer_comm::local::world(count, options)?.into_iter().enumerate() {
            let handle = table::insert(Rank::Local(Arc::new(rank)));
            // SAFETY: there is room for `count` handles, as the crate's docs ask for.
            unsafe { raw::give(handle, (ranks.add(at), "ranks")) }?;
        }
        Ok(())
    })
}

/// Opens rank `number` of a world of `world_size` ranks, of which there are no others: each call is done at once, as if all ranks had
/// sent what this one does, without arithmetic. For tests and dry runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_rank_fake(
    number: u32,
    world_size: u32,
    rank: *mut *mut BucketeerRank,
) -> BucketeerStatus {
    call(|| {
        raw::check_out(rank, "rank")?;
        let fake = FakeRank::new(GlobalRank(number), world_size)?;
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        unsafe { raw::give(table::insert(Rank::Fake(Arc::new(fake))), (rank, "rank")) }
    })
}

/// Opens this process's rank on NCCL: which one, and where the ranks meet, is what the launcher's environment variables say
/// (torchrun, bucketeer launch, mpirun, srun); without any it is a world of one. The GPU is that of the local rank, or the only one.
/// Waits for all ranks, at most `timeout_ns` nanoseconds, which is also the limit of a collective; 0 stands for ten minutes. When a
/// group fails, the rank's last calls are written to `flight-rankN.json` in the folder `flight_records`; null for nowhere.
/// BUCKETEER_STATUS_UNSUPPORTED if the library was built without NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_rank_nccl(
    timeout_ns: u64,
    flight_records: *const c_char,
    rank: *mut *mut BucketeerRank,
) -> BucketeerStatus {
    call(|| {
        raw::check_out(rank, "rank")?;
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        let folder = match flight_records.is_null() {
            true => None,
            false => Some(unsafe { raw::text(flight_records, "flight_records") }?),
        };
        let opened = open_nccl(timeout(timeout_ns), folder)?;
        // SAFETY: as above.
        unsafe { raw::give(table::insert(opened), (rank, "rank")) }
    })
}

#[cfg(feature = "nccl")]
fn open_nccl(timeout: Option<Duration>, flight_records: Option<&str>) -> Result<Rank, Failure> {
    crate::nccl::Process::open(timeout, flight_records).map(|process| Rank::Nccl(Arc::new(process)))
}

#[cfg(not(feature = "nccl"))]
fn open_nccl(_: Option<Duration>, _: Option<&str>) -> Result<Rank, Failure> {
    Err(Failure::new(BucketeerStatus::Unsupported, "this library was built without the feature `nccl`"))
}

/// Starts MPI, and opens this process's rank. A collective may take `timeout_ns` nanoseconds; 0 stands for ten minutes.
/// BUCKETEER_STATUS_UNSUPPORTED if the library was built without MPI.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_rank_mpi(timeout_ns: u64, rank: *mut *mut BucketeerRank) -> BucketeerStatus {
    call(|| {
        raw::check_out(rank, "rank")?;
        let opened = open_mpi(timeout(timeout_ns))?;
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        unsafe { raw::give(table::insert(opened), (rank, "rank")) }
    })
}

#[cfg(feature = "mpi")]
fn open_mpi(timeout: Option<Duration>) -> Result<Rank, Failure> {
    use bucketeer_comm::mpi::{MpiOptions, MpiRank};

    let default = MpiOptions::default();
    let options = MpiOptions { timeout: timeout.unwrap_or(default.timeout), ..default };
    Ok(Rank::Mpi(Arc::new(MpiRank::init(options)?)))
}

#[cfg(not(feature = "mpi"))]
fn open_mpi(_: Option<Duration>) -> Result<Rank, Failure> {
    Err(Failure::new(BucketeerStatus::Unsupported, "this library was built without the feature `mpi`"))
}

/// Writes the rank's number in its world, from 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_rank_number(rank: *const BucketeerRank, number: *mut u32) -> BucketeerStatus {
    // SAFETY: the caller's pointers are as the crate's docs ask for.
    call(|| unsafe { raw::give(table::get::<Rank>(rank)?.backend().rank().0, (number, "number")) })
}

/// Writes how many ranks the world has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_rank_world_size(rank: *const BucketeerRank, size: *mut u32) -> BucketeerStatus {
    // SAFETY: the caller's pointers are as the crate's docs ask for.
    call(|| unsafe { raw::give(table::get::<Rank>(rank)?.backend().world_size(), (size, "size")) })
}

/// Ends a rank together with the others, who close theirs, and frees its handle. Its reducers are freed before:
/// BUCKETEER_STATUS_STATE if not, and the rank stays. After any other failure it is freed all the same.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_rank_close(rank: *mut BucketeerRank) -> BucketeerStatus {
    call(|| {
        let busy = "the rank is in use: free its reducers and end its calls before it is closed";
        match table::unwrap::<Rank>(rank, busy)?.close() {
            Ok(closed) => closed,
            Err(open) => {
                table::put_back(rank, open);
                Err(Failure::state(busy))
            }
        }
    })
}

/// Frees a rank's handle; null is nothing. The rank leaves its world once its reducers are freed, too, and does not wait for
/// others: calls of theirs that wait for it fail.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_rank_free(rank: *mut BucketeerRank) -> BucketeerStatus {
    call(|| if rank.is_null() { Ok(()) } else { table::remove::<Rank>(rank).map(drop) })
}

/// Joins the group of all ranks under a name; all ranks do so with the same name. Does not wait. Give each reducer a group of
/// its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_group_world(
    rank: *const BucketeerRank,
    name: *const c_char,
    group: *mut *mut BucketeerGroup,
) -> BucketeerStatus {
    call(|| {
        raw::check_out(group, "group")?;
        let backend = table::get::<Rank>(rank)?.backend();
        let members: Vec<GlobalRank> = (0..backend.world_size()).map(GlobalRank).collect();
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        let joined = backend.new_group(unsafe { raw::text(name, "name") }?, &members)?;
        // SAFETY: as above.
        unsafe { raw::give(table::insert(joined), (group, "group")) }
    })
}

/// Joins a group of `count` ranks of the world, in the order of `members`; each of them does so with the same name and members.
/// Does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_group_new(
    rank: *const BucketeerRank,
    name: *const c_char,
    members: *const u32,
    count: usize,
    group: *mut *mut BucketeerGroup,
) -> BucketeerStatus {
    call(|| {
        raw::check_out(group, "group")?;
        let backend = table::get::<Rank>(rank)?.backend();
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        let (name, members) = unsafe { (raw::text(name, "name")?, raw::list(members, count, "members")?) };
        let joined = backend.new_group(name, &global(members))?;
        // SAFETY: as above.
        unsafe { raw::give(table::insert(joined), (group, "group")) }
    })
}

/// Makes a group of the members of another one but `count` of them, in the same order: what is left after ranks went away. Each
/// that stays calls it with the same list. The old group is given up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_group_shrink(
    rank: *const BucketeerRank,
    group: *const BucketeerGroup,
    failed: *const u32,
    count: usize,
    smaller: *mut *mut BucketeerGroup,
) -> BucketeerStatus {
    call(|| {
        raw::check_out(smaller, "smaller")?;
        let (rank, group) = (table::get::<Rank>(rank)?, table::get::<Group>(group)?);
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        let failed = unsafe { raw::list(failed, count, "failed") }?;
        let left = rank.backend().shrink(&group, &global(failed))?;
        // SAFETY: as above.
        unsafe { raw::give(table::insert(left), (smaller, "smaller")) }
    })
}

/// Gives a group up: its calls fail on all ranks, those in flight and all later ones.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_group_abort(rank: *const BucketeerRank, group: *const BucketeerGroup) -> BucketeerStatus {
    call(|| {
        table::get::<Rank>(rank)?.backend().abort(&*table::get::<Group>(group)?);
        Ok(())
    })
}

/// Writes at most `capacity` of the members' numbers to `members`, which may be null if that is 0, and how many there are to
/// `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_group_members(
    group: *const BucketeerGroup,
    members: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> BucketeerStatus {
    call(|| {
        let group = table::get::<Group>(group)?;
        let numbers: Vec<u32> = group.members().iter().map(|rank| rank.0).collect();
        // SAFETY: the caller's pointers are as the crate's docs ask for.
        unsafe { raw::give_list(&numbers, (members, "members"), capacity, (count, "count")) }
    })
}

/// Writes this rank's place among the group's members, from 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bucketeer_group_place(group: *const BucketeerGroup, place: *mut u32) -> BucketeerStatus {
    // SAFETY: the caller's pointers are as the crate's docs ask for.
    call(|| unsafe { raw::give(table::get::<Group>(group)?.rank().0, (place, "place")) })
}

/// Frees a group's handle; null is nothing. Reducers that were made on it go on.
#[unsafe(no_mangle)]
pub extern "C" fn bucketeer_group_free(group: *mut BucketeerGroup) -> BucketeerStatus {
    call(|| if group.is_null() { Ok(()) } else { table::remove::<Group>(group).map(drop) })
}
