//! Numbers and texts as bytes of a note, little endian.

use super::shape::OPS;

/// Bytes that are no note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

#[derive(Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    pub fn u8(&mut self, number: u8) {
        self.0.push(number);
    }

    pub fn u64(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    pub fn text(&mut self, text: &str) {
        self.u64(text.len() as u64);
        self.0.extend(text.as_bytes());
    }

    /// The name of an op.
    pub fn word(&mut self, op: &str) {
        // There are fewer than 256 names. One that is not there reads as malformed.
        self.u8(OPS.iter().position(|name| *name == op).map_or(u8::MAX, |at| at as u8));
    }

    pub fn list<T>(&mut self, list: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.u64(list.len() as u64);
        list.iter().for_each(|entry| write(self, entry));
    }
}

pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(bytes).ok_or(Malformed)?;
        self.0 = rest;
        Ok(head)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.take(8)?.try_into().map(u64::from_le_bytes).map_err(|_| Malformed)
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.u64()?.try_into().map_err(|_| Malformed)
    }

    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        let bytes = usize::try_from(self.u64()?).map_err(|_| Malformed)?;
        str::from_utf8(self.take(bytes)?).map_err(|_| Malformed)
    }

    /// The name of an op.
    pub fn word(&mut self) -> Result<&'static str, Malformed> {
        OPS.get(usize::from(self.u8()?)).copied().ok_or(Malformed)
    }

    pub fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Result<T, Malformed>) -> Result<Vec<T>, Malformed> {
        // Every entry takes a byte at least, so no list is longer than what is left.
        let count = usize::try_from(self.u64()?).map_err(|_| Malformed)?;
        if count > self.0.len() {
            return Err(Malformed);
        }
        (0..count).map(|_| read(self)).collect()
    }
}
