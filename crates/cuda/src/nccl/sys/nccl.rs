//! The functions of libnccl that are used. Streams are the driver's: `cudaStream_t` is `CUstream`.

use super::{NcclComm, NcclConfig, NcclDataType, NcclRedOp, NcclResult, NcclUniqueId, NcclWindow};
use super::{ScalarResidence, WindowFlags};
use crate::load::library;
use std::ffi::{c_char, c_int, c_void};

library! {
    /// libnccl.
    Library {
        ncclGetVersion(version: *mut c_int) -> NcclResult;
        ncclGetUniqueId(id: *mut NcclUniqueId) -> NcclResult;
        ncclGetErrorString(code: NcclResult) -> *const c_char;

        ncclCommInitRank(comm: *mut NcclComm, size: c_int, id: NcclUniqueId, rank: c_int) -> NcclResult;
        ncclCommDestroy(comm: NcclComm) -> NcclResult;
        ncclCommAbort(comm: NcclComm) -> NcclResult;
        ncclCommGetAsyncError(comm: NcclComm, code: *mut NcclResult) -> NcclResult;
        ncclCommCount(comm: NcclComm, count: *mut c_int) -> NcclResult;
        ncclCommCuDevice(comm: NcclComm, device: *mut c_int) -> NcclResult;
        ncclCommUserRank(comm: NcclComm, rank: *mut c_int) -> NcclResult;

        ncclAllReduce(
            from: *const c_void,
            to: *mut c_void,
            count: usize,
            dtype: NcclDataType,
            op: NcclRedOp,
            comm: NcclComm,
            stream: *mut c_void,
        ) -> NcclResult;
        ncclReduce(
            from: *const c_void,
            to: *mut c_void,
            count: usize,
            dtype: NcclDataType,
            op: NcclRedOp,
            root: c_int,
            comm: NcclComm,
            stream: *mut c_void,
        ) -> NcclResult;
        ncclBroadcast(
            from: *const c_void,
            to: *mut c_void,
            count: usize,
            dtype: NcclDataType,
            root: c_int,
            comm: NcclComm,
            stream: *mut c_void,
        ) -> NcclResult;
        ncclAllGather(
            from: *const c_void,
            to: *mut c_void,
            count: usize,
            dtype: NcclDataType,
            comm: NcclComm,
            stream: *mut c_void,
        ) -> NcclResult;
        ncclReduceScatter(
            from: *const c_void,
            to: *mut c_void,
            count: usize,
            dtype: NcclDataType,
            op: NcclRedOp,
            comm: NcclComm,
            stream: *mut c_void,
        ) -> NcclResult;
        ncclSend(
            from: *const c_void,
            count: usize,
            dtype: NcclDataType,
            peer: c_int,
            comm: NcclComm,
            stream: *mut c_void,
        ) -> NcclResult;
        ncclRecv(
            to: *mut c_void,
            count: usize,
            dtype: NcclDataType,
            peer: c_int,
            comm: NcclComm,
            stream: *mut c_void,
        ) -> NcclResult;

        ncclGroupStart() -> NcclResult;
        ncclGroupEnd() -> NcclResult;
    }
    since {
        21100 ncclRedOpCreatePreMulSum(
            op: *mut NcclRedOp,
            scalar: *mut c_void,
            dtype: NcclDataType,
            residence: ScalarResidence,
            comm: NcclComm,
        ) -> NcclResult;
        21100 ncclRedOpDestroy(op: NcclRedOp, comm: NcclComm) -> NcclResult;
        21300 ncclGetLastError(comm: NcclComm) -> *const c_char;
        21400 ncclCommInitRankConfig(
            comm: *mut NcclComm,
            size: c_int,
            id: NcclUniqueId,
            rank: c_int,
            config: *mut NcclConfig,
        ) -> NcclResult;
        21400 ncclCommFinalize(comm: NcclComm) -> NcclResult;
        21800 ncclCommSplit(
            comm: NcclComm,
            color: c_int,
            key: c_int,
            child: *mut NcclComm,
            config: *mut NcclConfig,
        ) -> NcclResult;
        21900 ncclMemAlloc(pointer: *mut *mut c_void, bytes: usize) -> NcclResult;
        21900 ncclMemFree(pointer: *mut c_void) -> NcclResult;
        21900 ncclCommRegister(
            comm: NcclComm,
            pointer: *mut c_void,
            bytes: usize,
            handle: *mut *mut c_void,
        ) -> NcclResult;
        21900 ncclCommDeregister(comm: NcclComm, handle: *mut c_void) -> NcclResult;
        22700 ncclCommShrink(
            comm: NcclComm,
            excluded: *mut c_int,
            count: c_int,
            child: *mut NcclComm,
            config: *mut NcclConfig,
            flags: c_int,
        ) -> NcclResult;
        22700 ncclCommWindowRegister(
            comm: NcclComm,
            pointer: *mut c_void,
            bytes: usize,
            window: *mut NcclWindow,
            flags: WindowFlags,
        ) -> NcclResult;
        22700 ncclCommWindowDeregister(comm: NcclComm, window: NcclWindow) -> NcclResult;
        22800 ncclAlltoAll(
            from: *const c_void,
            to: *mut c_void,
            count: usize,
            dtype: NcclDataType,
            comm: NcclComm,
            stream: *mut c_void,
        ) -> NcclResult;
    }
}
