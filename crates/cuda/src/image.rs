//! What a driver loads: PTX text, CUBINs and fat binaries.
//!
//! The driver is given a pointer without a length and trusts the headers behind it. So an image is checked first: text
//! ends in a zero byte, and no header tells of bytes beyond the end.

use std::fmt;

/// What an image is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ImageKind {
    /// Text that the driver assembles for its device.
    Ptx,
    /// Machine code for one architecture.
    Cubin,
    /// Several of both.
    FatBinary,
}

impl fmt::Display for ImageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ptx => "PTX",
            Self::Cubin => "CUBIN",
            Self::FatBinary => "fat binary",
        })
    }
}

/// Kernels in a form that a driver loads.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    kind: ImageKind,
    /// As the driver reads it: PTX with a zero byte at its end.
    bytes: Vec<u8>,
}

/// Why bytes are not an image.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ImageError {
    /// Neither of the three.
    #[error("neither PTX text nor a CUBIN nor a fat binary: it starts with {0:02x?}")]
    Unknown(Vec<u8>),
    /// It is cut short, or its headers are damaged.
    #[error("a damaged {kind}: {what} lies outside of its {len} bytes")]
    Damaged {
        /// What its first bytes say that it is.
        kind: ImageKind,
        /// The part.
        what: &'static str,
        /// Length of the whole.
        len: usize,
    },
    /// Text with a zero byte inside, where the driver would stop.
    #[error("PTX text with a zero byte at {0}")]
    ZeroByte(usize),
}

const ELF_MAGIC: &[u8] = b"\x7fELF\x02\x01";
const FAT_MAGIC: u32 = 0xba55_ed50;

impl Image {
    /// Takes bytes for what they are: by their first ones.
    ///
    /// # Errors
    /// When they are no image, or a damaged one.
    pub fn new(mut bytes: Vec<u8>) -> Result<Self, ImageError> {
        let kind = if bytes.starts_with(b"\x7fELF") {
            check_elf(&bytes)?;
            ImageKind::Cubin
        } else if read(&bytes, 0, 4) == Some(u64::from(FAT_MAGIC)) {
            check_fat(&bytes)?;
            ImageKind::FatBinary
        } else if is_ptx(&bytes) {
            bytes.pop_if(|byte| *byte == 0);
            if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
                return Err(ImageError::ZeroByte(at));
            }
            bytes.push(0);
            ImageKind::Ptx
        } else {
            return Err(ImageError::Unknown(bytes.into_iter().take(8).collect()));
        };
        Ok(Self { kind, bytes })
    }

    /// What it is.
    #[must_use]
    pub const fn kind(&self) -> ImageKind {
        self.kind
    }

    /// Its bytes, as they came: PTX without a zero byte at its end.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self.kind {
            ImageKind::Ptx => &self.bytes[..self.bytes.len() - 1],
            ImageKind::Cubin | ImageKind::FatBinary => &self.bytes,
        }
    }

    /// As the driver reads it.
    pub(super) fn for_driver(&self) -> &[u8] {
        &self.bytes
    }

    /// The version that PTX states: `8.1`.
    #[must_use]
    pub fn ptx_version(&self) -> Option<&str> {
        let text = std::str::from_utf8(self.bytes()).ok().filter(|_| self.kind == ImageKind::Ptx)?;
        text.lines().find_map(|line| line.trim().strip_prefix(".version")).map(str::trim)
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.kind, self.bytes().len())
    }
}

/// Whether this is text whose first line that is not blank or a comment is a `.version`, with which PTX must start.
fn is_ptx(bytes: &[u8]) -> bool {
    let lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines.filter(|line| !line.is_empty() && !line.starts_with(b"//")).take(1).any(|line| line.starts_with(b".version"))
}

/// Holds an ELF file's tables, and all sections and segments that have bytes in it, against its length.
fn check_elf(bytes: &[u8]) -> Result<(), ImageError> {
    let len = bytes.len() as u64;
    let damaged = |what| ImageError::Damaged { kind: ImageKind::Cubin, what, len: bytes.len() };
    if !bytes.starts_with(ELF_MAGIC) {
        return Err(damaged("a header of 64 bits"));
    }
    let field = |at, width| read(bytes, at, width).ok_or_else(|| damaged("the header"));
    let table = |offset, entry_len: u64, count: u64, least, what| -> Result<Vec<u64>, ImageError> {
        let end = entry_len.checked_mul(count).and_then(|all| all.checked_add(offset)).filter(|end| *end <= len);
        if count > 0 && (end.is_none() || entry_len < least) {
            return Err(damaged(what));
        }
        Ok((0..count).map(|nth| offset + nth * entry_len).collect())
    };
    let (segments, sections) = (field(0x20, 8)?, field(0x28, 8)?);
    for at in table(segments, field(0x36, 2)?, field(0x38, 2)?, 0x38, "the program header table")? {
        let (offset, size) = (field(at + 0x08, 8)?, field(at + 0x20, 8)?);
        offset.checked_add(size).filter(|end| *end <= len).ok_or_else(|| damaged("a segment"))?;
    }
    const NO_BITS: u64 = 8;
    for at in table(sections, field(0x3a, 2)?, field(0x3c, 2)?, 0x40, "the section header table")? {
        let (kind, offset, size) = (field(at + 0x04, 4)?, field(at + 0x18, 8)?, field(at + 0x20, 8)?);
        let fits = offset.checked_add(size).is_some_and(|end| end <= len);
        if kind != NO_BITS && !fits {
            return Err(damaged("a section"));
        }
    }
    Ok(())
}

/// Holds a fat binary's length against its header: after the magic number come a version and the header's own length,
/// 2 bytes each, and the length of the rest, 8 bytes.
fn check_fat(bytes: &[u8]) -> Result<(), ImageError> {
    let end = read(bytes, 6, 2).zip(read(bytes, 8, 8)).and_then(|(header, rest)| rest.checked_add(header));
    match end {
        Some(end) if end <= bytes.len() as u64 => Ok(()),
        _ => Err(ImageError::Damaged { kind: ImageKind::FatBinary, what: "its content", len: bytes.len() }),
    }
}

/// A little-endian number of at most 8 bytes; none beyond the end.
fn read(bytes: &[u8], at: u64, width: usize) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let field = bytes.get(at..at.checked_add(width)?)?;
    Some(field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The least ELF file with one section of 4 bytes at its end.
    fn elf() -> Vec<u8> {
        let mut bytes = vec![0; 0x84];
        bytes[..6].copy_from_slice(ELF_MAGIC);
        bytes[0x28] = 0x40; // section headers follow the header
        bytes[0x3a] = 0x40;
        bytes[0x3c] = 1;
        bytes[0x40 + 0x04] = 1;
        bytes[0x40 + 0x18] = 0x80;
        bytes[0x40 + 0x20] = 4;
        bytes
    }

    #[test]
    fn an_image_is_what_its_first_bytes_say() {
        assert_eq!(Image::new(elf()).unwrap().kind(), ImageKind::Cubin);
        let ptx = Image::new(b"// by hand\n\n .version 8.1\n.target sm_80\n".to_vec()).unwrap();
        assert_eq!((ptx.kind(), ptx.ptx_version()), (ImageKind::Ptx, Some("8.1")));
        assert!(ptx.bytes().ends_with(b"sm_80\n") && ptx.for_driver().ends_with(b"\n\0"));
        let again = Image::new(ptx.for_driver().to_vec()).unwrap();
        assert_eq!(again, ptx, "a zero byte at the end is not doubled");
        assert!(matches!(Image::new(b"hello".to_vec()), Err(ImageError::Unknown(_))));
        assert!(matches!(Image::new(Vec::new()), Err(ImageError::Unknown(_))));
        assert_eq!(Image::new(b".version 8.1\0x\n".to_vec()), Err(ImageError::ZeroByte(12)));
    }

    #[test]
    fn an_elf_file_that_is_cut_anywhere_is_damaged() {
        let whole = elf();
        for len in 4..whole.len() {
            let error = Image::new(whole[..len].to_vec()).unwrap_err();
            assert!(matches!(error, ImageError::Damaged { kind: ImageKind::Cubin, .. }), "{len}: {error}");
        }
    }

    #[test]
    fn sizes_that_wrap_around_are_damage() {
        for at in [0x28, 0x20, 0x40 + 0x18, 0x40 + 0x20] {
            let mut bytes = elf();
            bytes[at..at + 8].fill(0xff);
            bytes[0x38] = 1;
            bytes[0x36] = 0x38;
            assert!(Image::new(bytes).is_err(), "{at}");
        }
    }

    #[test]
    fn a_fat_binary_is_as_long_as_it_says() {
        let mut bytes = FAT_MAGIC.to_le_bytes().to_vec();
        bytes.extend([1, 0, 16, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([0; 8]);
        assert_eq!(Image::new(bytes.clone()).unwrap().kind(), ImageKind::FatBinary);
        bytes.pop();
        assert!(Image::new(bytes).is_err());
    }
}
