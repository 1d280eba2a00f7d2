//! Bytes on the wire: frames, and what is in them.
//!
//! A frame is the length of its body, four bytes, and the body. All numbers are little-endian. A text, a value or a
//! list is its length, four bytes, and what is in it. Nothing is allocated for a length before as many bytes are there.

/// Bytes cannot be read as what they should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Malformed;

/// Builds a frame.
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub fn new(kind: u8) -> Self {
        Self(vec![0, 0, 0, 0, kind])
    }

    pub fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Bytes whose number both sides know.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub fn bytes(self, bytes: &[u8]) -> Self {
        self.len(bytes.len()).raw(bytes)
    }

    pub fn list<T>(self, items: impl ExactSizeIterator<Item = T>, write: impl Fn(Self, T) -> Self) -> Self {
        let writer = self.len(items.len());
        items.fold(writer, write)
    }

    /// The frame.
    pub fn finish(mut self) -> Vec<u8> {
        let len = length(self.0.len() - 4);
        self.0[..4].copy_from_slice(&len);
        self.0
    }

    fn len(self, len: usize) -> Self {
        self.raw(&length(len))
    }
}

/// Lengths are checked long before they are written.
fn length(len: usize) -> [u8; 4] {
    u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes()
}

/// Reads a body.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(body: &'a [u8]) -> Self {
        Self(body)
    }

    pub fn raw(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(head)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.raw(N)?.try_into().map_err(|_| Malformed)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u32()? as usize;
        self.raw(len)
    }

    pub fn text(&mut self) -> Result<String, Malformed> {
        str::from_utf8(self.bytes()?).map(str::to_owned).map_err(|_| Malformed)
    }

    /// A list whose items take `item_bytes` each, at least.
    pub fn list<T>(
        &mut self,
        item_bytes: usize,
        read: impl Fn(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let len = self.u32()? as usize;
        if len > self.0.len() / item_bytes {
            return Err(Malformed);
        }
        (0..len).map(|_| read(self)).collect()
    }

    /// Everything was read.
    pub fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

/// Bytes above which a buffer that was used up is given back.
const KEPT_BYTES: usize = 1 << 16;

/// Cuts a stream of bytes into bodies of frames. It holds no more than was fed and not taken.
#[derive(Default)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    /// What was taken of them.
    taken: usize,
}

impl Frames {
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes of memory that it takes.
    pub fn held_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// The next body that is there whole. One that is said to be above `most` bytes, or empty, is malformed.
    pub fn next(&mut self, most: usize) -> Result<Option<Vec<u8>>, Malformed> {
        let mut rest = Reader::new(&self.bytes[self.taken..]);
        let Ok(len) = rest.u32() else { return Ok(None) };
        let len = len as usize;
        if len == 0 || len > most {
            return Err(Malformed);
        }
        let Ok(body) = rest.raw(len) else { return Ok(None) };
        let body = body.to_vec();
        self.taken += 4 + len;
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.taken = 0;
            self.bytes.shrink_to(KEPT_BYTES);
        }
        Ok(Some(body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_however_the_bytes_are_cut() {
        let frames = [Writer::new(1).bytes(b"abc").finish(), Writer::new(2).finish(), Writer::new(3).u64(7).finish()];
        let stream = frames.concat();
        for cut in 1..=stream.len() {
            let mut reader = Frames::default();
            let mut bodies = Vec::new();
            for part in stream.chunks(cut) {
                reader.feed(part);
                while let Some(body) = reader.next(64).unwrap() {
                    bodies.push(body);
                }
            }
            assert_eq!(bodies, frames.each_ref().map(|frame| frame[4..].to_vec()), "{cut}");
        }
    }

    #[test]
    fn a_frame_above_the_limit_is_malformed_before_its_body_is_there() {
        let next = |len: u32, most: usize| {
            let mut frames = Frames::default();
            frames.feed(&len.to_le_bytes());
            frames.next(most)
        };
        assert_eq!(next(10, 10), Ok(None));
        assert_eq!(next(11, 10), Err(Malformed));
        assert_eq!(next(0, 10), Err(Malformed));
        assert_eq!(next(u32::MAX, 10), Err(Malformed));
    }

    #[test]
    fn a_list_cannot_be_longer_than_the_bytes_that_are_there() {
        let body = u32::MAX.to_le_bytes();
        assert!(Reader::new(&body).list(1, Reader::u8).is_err());
        assert!(Reader::new(&body).bytes().is_err());
        let body = [2, 0, 0, 0, 7, 8];
        assert_eq!(Reader::new(&body).list(1, Reader::u8), Ok(vec![7, 8]));
        assert!(Reader::new(&body[..5]).list(1, Reader::u8).is_err());
    }
}
