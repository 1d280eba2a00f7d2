//! What comes from C and goes there by pointers: the one place where they are followed.
//!
//! Each function checks what can be checked: null, alignment, lengths that no memory has. That the memory is there, and that
//! nobody else writes to it during the call, is the caller's word.

#![expect(unsafe_code, reason = "pointers of C are followed here; each function says what its caller promises")]

use crate::status::Failure;
use std::ffi::{CStr, c_char};
use std::slice;

fn check<T>(pointer: *const T, count: usize, what: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("`{what}` is null")));
    }
    if !pointer.is_aligned() {
        return Err(Failure::argument(format!("`{what}` is not aligned to {} bytes", align_of::<T>())));
    }
    if count.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Failure::argument(format!("`{what}` is to have {count} entries, which no memory holds")));
    }
    Ok(())
}

/// A text that ends with a zero.
///
/// # Safety
/// The pointer is null or leads to such a text, which nobody writes to during `'a`.
pub unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    check(pointer, 1, what)?;
    // SAFETY: not null, and else promised by the caller.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::argument(format!("`{what}` is not UTF-8")))
}

/// `count` values. The pointer may be null if there are none.
///
/// # Safety
/// The pointer is null or leads to so many values, which nobody writes to during `'a`.
pub unsafe fn list<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    check(pointer, count, what)?;
    // SAFETY: not null, aligned and not longer than memory, as checked; the rest is promised by the caller.
    Ok(unsafe { slice::from_raw_parts(pointer, count) })
}

/// `count` bytes to write to. The pointer may be null if there are none.
///
/// # Safety
/// The pointer is null or leads to so many bytes, which nobody else uses during `'a`.
pub unsafe fn bytes_mut<'a>(pointer: *mut u8, count: usize, what: &str) -> Result<&'a mut [u8], Failure> {
    if count == 0 {
        return Ok(&mut []);
    }
    check(pointer, count, what)?;
    // SAFETY: as above.
    Ok(unsafe { slice::from_raw_parts_mut(pointer, count) })
}

/// Pieces of memory to write to, each of its own length; none where the pointer is null.
///
/// # Safety
/// Each pointer is null or leads to so many bytes, which nobody else uses during `'a`.
pub unsafe fn apart<'a>(
    pointers: &[*mut u8],
    lengths: &[usize],
    what: &str,
) -> Result<Vec<Option<&'a mut [u8]>>, Failure> {
    let mut ranges: Vec<(usize, usize, usize)> = Vec::with_capacity(pointers.len());
    for (at, (pointer, length)) in pointers.iter().zip(lengths).enumerate() {
        if !pointer.is_null() {
            check(*pointer, *length, &format!("{what}[{at}]"))?;
            ranges.push((pointer.addr(), *length, at));
        }
    }
    ranges.retain(|(_, length, _)| *length > 0);
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        let ((start, length, one), (next, _, other)) = (pair[0], pair[1]);
        // Compared as a difference, as an end may be behind the last address.
        if next - start < length {
            return Err(Failure::argument(format!("`{what}[{one}]` and `{what}[{other}]` share memory")));
        }
    }
    let slice = |(pointer, length): (&*mut u8, &usize)| {
        // SAFETY: not longer than memory, and apart from all others, as checked; the rest is promised by the caller.
        (!pointer.is_null()).then(|| unsafe { slice::from_raw_parts_mut(*pointer, *length) })
    };
    Ok(pointers.iter().zip(lengths).map(slice).collect())
}

/// Refuses null and misaligned pointers to where a result goes, before anything is done for it.
pub fn check_out<T>(pointer: *mut T, what: &str) -> Result<(), Failure> {
    check(pointer, 1, what)
}

/// The same for `count` results; the pointer may be null if there are none.
pub fn check_list<T>(pointer: *mut T, count: usize, what: &str) -> Result<(), Failure> {
    if count == 0 { Ok(()) } else { check(pointer, count, what) }
}

/// Writes a result.
///
/// # Safety
/// The pointer is null or leads to memory for a value, which nobody else uses during the call.
pub unsafe fn give<T: Copy>(value: T, (pointer, what): (*mut T, &str)) -> Result<(), Failure> {
    check(pointer, 1, what)?;
    // SAFETY: not null and aligned, as checked; the rest is promised by the caller.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Writes a result if somebody wants it, which null says is not so.
///
/// # Safety
/// As [`give`].
pub unsafe fn give_if_wanted<T: Copy>(value: T, (pointer, what): (*mut T, &str)) -> Result<(), Failure> {
    if pointer.is_null() {
        return Ok(());
    }
    // SAFETY: promised by the caller.
    unsafe { give(value, (pointer, what)) }
}

/// Writes the first `capacity` of a list, and how many it has.
///
/// # Safety
/// Both pointers are null or lead to memory for so many values, which nobody else uses during the call.
pub unsafe fn give_list<T: Copy>(
    values: &[T],
    (pointer, what): (*mut T, &str),
    capacity: usize,
    count: (*mut usize, &str),
) -> Result<(), Failure> {
    check_list(pointer, capacity, what)?;
    // SAFETY: promised by the caller.
    unsafe { give(values.len(), count) }?;
    for (at, value) in values.iter().take(capacity).enumerate() {
        // SAFETY: inside of the memory that the caller promises, which `check_list` saw to be aligned.
        unsafe { pointer.add(at).write(*value) };
    }
    Ok(())
}

/// A struct of C that begins with its own size in bytes, so that it may grow.
///
/// # Safety
/// `#[repr(C)]`, without padding, its first field is a `usize`, and each value of its bytes is one of the struct.
pub unsafe trait Growing: Copy {}

/// Reads structs that may be larger than this library knows them: what it does not know has to be zero.
///
/// # Safety
/// The pointer is null or leads to `count` structs, each as long as the first one's size says, which nobody writes to during the
/// call.
pub unsafe fn structs<T: Growing>(pointer: *const T, count: usize, what: &str) -> Result<Vec<T>, Failure> {
    if count == 0 {
        return Ok(Vec::new());
    }
    check(pointer, count, what)?;
    // SAFETY: not null, and the first field is the size; the rest is promised by the caller.
    let size = unsafe { pointer.cast::<usize>().read() };
    let known = size_of::<T>();
    if size < known || !size.is_multiple_of(align_of::<T>()) {
        return Err(Failure::argument(format!("`{what}` has a size of {size} bytes; this library knows {known}")));
    }
    if count.checked_mul(size).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Failure::argument(format!("`{what}` is to have {count} entries, which no memory holds")));
    }
    let mut list = Vec::with_capacity(count);
    for at in 0..count {
        // SAFETY: inside of the memory that the caller promises; aligned, as size and start are.
        let one = unsafe { pointer.byte_add(at * size) };
        // SAFETY: the same. The rest of a larger struct is bytes.
        let (value, own, rest) = unsafe {
            let rest = slice::from_raw_parts(one.cast::<u8>().add(known), size - known);
            (one.read(), one.cast::<usize>().read(), rest)
        };
        if own != size {
            return Err(Failure::argument(format!(
                "entry {at} of `{what}` has a size of {own} bytes, the first {size}"
            )));
        }
        if rest.iter().any(|byte| *byte != 0) {
            return Err(Failure::argument(format!(
                "entry {at} of `{what}` has fields that this library does not know"
            )));
        }
        list.push(value);
    }
    Ok(list)
}

/// Writes a struct that the caller knows as a shorter or longer one, as its size says: what both know.
///
/// # Safety
/// The pointer is null or leads to a struct as long as its size says, which nobody else uses during the call.
pub unsafe fn give_struct<T: Growing>(value: T, (pointer, what): (*mut T, &str)) -> Result<(), Failure> {
    check(pointer, 1, what)?;
    // SAFETY: not null and aligned; the first field is the size.
    let size = unsafe { pointer.cast::<usize>().read() };
    let known = size_of::<T>();
    if size < size_of::<usize>() {
        return Err(Failure::argument(format!("`{what}` has a size of {size} bytes; set it to that of the struct")));
    }
    let (start, shared) = (size_of::<usize>(), size.min(known));
    let source = (&raw const value).cast::<u8>();
    // SAFETY: both have `shared` bytes, the size first, which stays as it is; `value` is this function's own.
    unsafe { pointer.cast::<u8>().add(start).copy_from_nonoverlapping(source.add(start), shared - start) };
    Ok(())
}
