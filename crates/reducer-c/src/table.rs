//! What handles stand for.
//!
//! A handle is a number that is never given twice, in the shape of a pointer, which nobody follows. So one that was freed, made
//! up, or is of another kind is an error and not a fault of memory, and what a call uses lives until the call ends, whoever frees
//! it meanwhile.

use crate::status::{BucketeerStatus, Failure};
use std::any::Any;
use std::collections::HashMap;
use std::ptr;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

/// What a handle may stand for.
pub trait Handled: Send + Sync + 'static {
    /// The handle's type, for C.
    type Opaque;
    /// In errors.
    const NAME: &'static str;
}

type Object = Arc<dyn Any + Send + Sync>;

#[derive(Default)]
struct Table {
    last: usize,
    objects: HashMap<usize, Object>,
}

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(RwLock::default);

/// A handle for an object.
pub fn insert<T: Handled>(object: T) -> *mut T::Opaque {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    // A process does not live long enough to count to the end.
    table.last += 1;
    let number = table.last;
    table.objects.insert(number, Arc::new(object));
    ptr::without_provenance_mut(number)
}

/// What a handle stands for.
pub fn get<T: Handled>(handle: *const T::Opaque) -> Result<Arc<T>, Failure> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let object = table.objects.get(&handle.addr()).cloned();
    drop(table);
    object.and_then(|object| object.downcast().ok()).ok_or_else(|| unknown::<T>(handle))
}

/// Frees a handle. The object lives as long as a call uses it.
pub fn remove<T: Handled>(handle: *const T::Opaque) -> Result<Arc<T>, Failure> {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    if !table.objects.get(&handle.addr()).is_some_and(|object| object.is::<T>()) {
        return Err(unknown::<T>(handle));
    }
    let object = table.objects.remove(&handle.addr());
    drop(table);
    object.and_then(|object| object.downcast().ok()).ok_or_else(|| unknown::<T>(handle))
}

/// Frees a handle and returns its object, if nothing else uses it.
pub fn unwrap<T: Handled>(handle: *const T::Opaque, busy: &str) -> Result<T, Failure> {
    Arc::try_unwrap(remove::<T>(handle)?).map_err(|object| {
        let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
        table.objects.insert(handle.addr(), object);
        Failure::state(busy)
    })
}

/// Puts an object back under a handle that was freed a moment ago.
pub fn put_back<T: Handled>(handle: *const T::Opaque, object: T) {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    table.objects.insert(handle.addr(), Arc::new(object));
}

fn unknown<T: Handled>(handle: *const T::Opaque) -> Failure {
    let text = match handle.addr() {
        0 => format!("the handle of a {} is null", T::NAME),
        number => format!("handle {number} is not that of a {}: it is freed, or of another kind", T::NAME),
    };
    Failure::new(BucketeerStatus::Handle, text)
}
