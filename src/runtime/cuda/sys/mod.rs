//! libcuda and libnvrtc as C sees them: handles, codes, and the tables of functions, loaded at run time.
//!
//! A code is an integer with a name for each value that we know, never a closed enum: a newer library may answer with
//! one that we do not. Functions are called by [`result`](super::result) alone.

#![expect(unsafe_code, reason = "functions are taken out of a library by name, with the types that C's headers give")]

mod codes;
mod driver;
mod handles;
pub mod load;
mod nvrtc;

pub use codes::{CuResult, NvrtcResult};
pub use driver::{DeviceAttribute, Driver, EventFlags, FunctionAttribute, JitOption, StreamFlags};
pub use handles::{CuContext, CuDevice, CuDevicePtr, CuEvent, CuFunction, CuModule, CuStream, NvrtcProgram};
pub use nvrtc::Nvrtc;

/// A struct with a function pointer for each symbol of a library, and the means to take them out of it.
macro_rules! library {
    ($(#[$meta:meta])* $Library:ident { $($symbol:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty;)* }) => {
        $(#[$meta])*
        #[expect(non_snake_case, reason = "C's names")]
        pub struct $Library {
            $(pub $symbol: unsafe extern "C" fn($($arg: $ty),*) -> $ret,)*
        }

        impl $Library {
            /// Takes all functions out of a library; the name of the first that is missing, with the loader's reason.
            ///
            /// # Safety
            /// The library's functions of these names have these types, and it stays loaded for good.
            #[expect(non_snake_case, reason = "C's names")]
            pub unsafe fn bind(library: &libloading::Library) -> Result<Self, (&'static str, libloading::Error)> {
                $(
                    // SAFETY: the caller promises the type; the pointer is copied out, and the library stays.
                    let $symbol = *unsafe { library.get(concat!(stringify!($symbol), "\0")) }
                        .map_err(|error| (stringify!($symbol), error))?;
                )*
                Ok(Self { $($symbol,)* })
            }
        }
    };
}
use library;
