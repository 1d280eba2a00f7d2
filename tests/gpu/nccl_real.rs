//! The real NCCL, as far as it goes without a GPU: its functions, version, unique ids and error texts, and a clean
//! failure where it needs a driver.
//!
//! Where it is not installed this says that it skips; with `BUCKETEER_REQUIRE_NCCL` set it fails. The Python package
//! `nvidia-nccl-cu13` (or `-cu12`) has it.

use bucketeer_cuda::nccl::{InitOptions, Nccl, NcclError, NcclResult};
use kit::fakegpu;
use std::io::Write as _;
use std::time::Duration;

fn nccl() -> Option<Nccl> {
    match Nccl::load(None) {
        Ok(nccl) => Some(nccl),
        Err(error) if std::env::var_os("BUCKETEER_REQUIRE_NCCL").is_some() => panic!("{error}"),
        Err(_) => {
            // Past the test harness, which would swallow it.
            let _ = writeln!(
                std::io::stderr(),
                "skipped: NCCL is not installed (the Python package nvidia-nccl-cu13 has it)"
            );
            None
        }
    }
}

#[test]
fn it_has_every_function_that_its_version_should_have() {
    let Some(nccl) = nccl() else { return };
    let version = nccl.version();
    assert!(version.major == 2 && version.minor >= 10, "{version}");
    let missing = nccl.missing();
    assert!(missing.is_empty(), "NCCL {version} lacks {missing:?}");
}

#[test]
fn unique_ids_are_unlike() {
    let Some(nccl) = nccl() else { return };
    let (one, two) = (nccl.unique_id().unwrap().to_bytes(), nccl.unique_id().unwrap().to_bytes());
    assert!(one != two && one.iter().any(|byte| *byte != 0));
}

#[test]
fn groups_without_calls_end_well() {
    let Some(nccl) = nccl() else { return };
    nccl.group().unwrap().end().unwrap();
    drop(nccl.group().unwrap());
    nccl.group().unwrap().end().unwrap();
}

/// The fake driver lends a context, which the real NCCL knows nothing of.
#[test]
fn without_a_driver_a_communicator_fails_in_words() {
    let Some(nccl) = nccl() else { return };
    if bucketeer_cuda::Driver::load(None).is_ok() {
        let _ = writeln!(std::io::stderr(), "skipped: there is a driver");
        return;
    }
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
