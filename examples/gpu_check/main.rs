//! Checks and times kernels and collectives on a real GPU; `scripts/gpu-check` builds and runs it.
//!
//! `gpu_check [--quick]`: first every conversion and many odd layouts, against the host, bit for bit, and a real graph end to end;
//! then collectives of NCCL in a world of one, and between two processes that share the GPU; then how fast buckets move, beside
//! copies within the device. What cannot be checked is said. Exit code 3 when there is no GPU to use.

mod bound;
mod correct;
mod nccl;
mod pair;
mod speed;

use bucketeer_cuda::nvrtc::Nvrtc;
use bucketeer_cuda::{Context, CudaError, Driver};
use std::error::Error;
use std::process::ExitCode;

/// An error with all that is behind it, a line each.
fn told(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!("\n  because: {error}");
        source = error.source();
    }
    text
}

fn device() -> Result<Context, CudaError> {
    Driver::load(None)?.device(0)?.context()
}

fn describe(context: &Context) -> Result<(), CudaError> {
    let (device, driver) = (context.device(), Driver::load(None)?);
    println!("{}, {}, driver for CUDA {}", device.name()?, device.arch()?, driver.version()?);
    println!(
        "{} multiprocessors, {:.1} GiB",
        device.multiprocessors()?,
        device.total_bytes()? as f64 / f64::from(1 << 30)
    );
    Ok(())
}

fn check(context: &Context, quick: bool) -> Result<(), Box<dyn Error>> {
    let nvrtc = Nvrtc::load(None);
    match &nvrtc {
        Ok(nvrtc) => println!("NVRTC {} from {}", nvrtc.version(), nvrtc.path().display()),
        Err(error) => println!("no NVRTC, so the fixed kernel alone is checked and timed: {}", told(error)),
    }
    let missing = Nvrtc::load(Some("/nowhere".as_ref())).err().expect("there is nothing");
    let mut kernels = vec![("fixed", Err(&missing))];
    if let Ok(nvrtc) = &nvrtc {
        kernels.insert(0, ("compiled", Ok(nvrtc)));
    }
    for (name, nvrtc) in &kernels {
        let buckets = correct::check(context, *nvrtc, if quick { 3 } else { 200 })?;
        println!("{name} kernel: {buckets} buckets are as on the host, bit for bit");
    }
    println!();
    nccl::real_graph(context, nvrtc.as_ref())?;
    if nccl::alone(context, nvrtc.as_ref(), quick)? {
        pair::check(quick)?;
    }
    for (name, nvrtc) in kernels {
        println!();
        speed::table(context, name, nvrtc, quick)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let quick = std::env::args().any(|argument| argument == "--quick");
    if let Some(code) = pair::rank(quick) {
        return code;
    }
    let context = match device().and_then(|context| describe(&context).map(|()| context)) {
        Ok(context) => context,
        Err(error) => {
            println!("not run, there is no GPU to use: {}", told(&error));
            return ExitCode::from(3);
        }
    };
    match check(&context, quick) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("FAILED: {}", told(&*error));
            ExitCode::FAILURE
        }
    }
}
