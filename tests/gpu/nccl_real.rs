//! The real NCCL, as far as it goes without a GPU: its functions, version, unique ids and error texts, and a clean
//! failure where it needs a driver.
//!
//! Ignored as a rule: `cargo test --test gpu nccl_real:: -- --ignored` needs the Python package `nvidia-nccl-cu13` (or
//! `-cu12`), and a machine without a driver.

use bucketeer_cuda::nccl::{InitOptions, Nccl, NcclError, NcclResult};
use kit::fakegpu;
use std::time::Duration;

#[track_caller]
fn nccl() -> Nccl {
    Nccl::load(None).unwrap_or_else(|error| panic!("{error}\nthe Python package nvidia-nccl-cu13 has it"))
}

#[test]
#[ignore = "needs NVIDIA's NCCL"]
fn it_has_every_function_that_its_version_should_have() {
    let nccl = nccl();
    let version = nccl.version();
    assert!(version.major == 2 && version.minor >= 10, "{version}");
    let missing = nccl.missing();
    assert!(missing.is_empty(), "NCCL {version} lacks {missing:?}");
}

#[test]
#[ignore = "needs NVIDIA's NCCL"]
fn unique_ids_are_unlike() {
    let nccl = nccl();
    let (one, two) = (nccl.unique_id().unwrap().to_bytes(), nccl.unique_id().unwrap().to_bytes());
    assert!(one != two && one.iter().any(|byte| *byte != 0));
}

#[test]
#[ignore = "needs NVIDIA's NCCL"]
fn groups_without_calls_end_well() {
    let nccl = nccl();
    nccl.group().unwrap().end().unwrap();
    drop(nccl.group().unwrap());
    nccl.group().unwrap().end().unwrap();
}

/// The fake driver lends a context, which the real NCCL knows nothing of.
#[test]
#[ignore = "needs NVIDIA's NCCL"]
fn without_a_driver_a_communicator_fails_in_words() {
    let nccl = nccl();
    assert!(bucketeer_cuda::Driver::load(None).is_err(), "there is a driver, with which it does not fail");
    let session = fakegpu::session();
    let contexts = [0, 1].map(|nth| session.driver().device(nth).unwrap().context().unwrap());
    for blocking in [true, false] {
        let options = InitOptions { timeout: Duration::from_secs(20), blocking };
        let error = nccl.comm(&contexts[0], 0, 1, &nccl.unique_id().unwrap(), &options).unwrap_err();
        assert_eq!(error.code(), Some(NcclResult::UNHANDLED_CUDA_ERROR), "{error}");
        let text = error.to_string();
        assert!(text.contains("on rank 0 of 1 with ncclUnhandledCudaError (1): unhandled cuda error"), "{text}");
        assert!(text.contains("NCCL says: ") && text.contains("driver"), "{text}");
        let members = [(contexts[0].clone(), 0), (contexts[1].clone(), 1)];
        let error = nccl.comms(&members, 2, &nccl.unique_id().unwrap(), &options).unwrap_err();
        assert_eq!(error.code(), Some(NcclResult::UNHANDLED_CUDA_ERROR), "{error}");
    }
    let error = nccl.alloc(&contexts[0], 64).unwrap_err();
    assert!(matches!(error, NcclError::Call(_)) && error.to_string().starts_with("ncclMemAlloc failed"), "{error}");
}
