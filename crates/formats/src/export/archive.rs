//! The zip file around a program: only what it takes to find the JSONs and to put others in their place.
//!
//! Written here and not taken from a zip library: what is not a JSON has to stay byte for byte as it is, with PyTorch's
//! padding (tensors start at multiples of 64 bytes, so that they can be mapped into memory), its data descriptors and
//! its order, and is never held in memory. Names of members are compared, never used as paths.

use super::error::ExportError;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// What a small JSON may expand to, and how many times its size a large one may.
const SMALL_BYTES: u64 = 64 << 20;
const LARGEST_RATIO: u64 = 200;
/// The most bytes that the table of members may take: a million members.
const LARGEST_TABLE: u64 = 128 << 20;
/// Members start at multiples of this, behind their headers.
const ALIGNMENT: u64 = 64;

const STORED: u16 = 0;
const DEFLATED: u16 = 8;
/// Bits of a member's flags: encrypted; sizes stand behind the data.
const ENCRYPTED: u16 = 1;
const DESCRIPTOR: u16 = 8;

/// Where the bytes are.
#[derive(Clone, Debug)]
enum Source {
    Bytes(Arc<[u8]>),
    File(Arc<Mutex<File>>),
}

impl Source {
    /// Reads all of `buffer` from `at` on.
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Bytes(bytes) => {
                let start = usize::try_from(at).unwrap_or(usize::MAX);
                let part = start.checked_add(buffer.len()).and_then(|end| bytes.get(start..end));
                buffer.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
            Self::File(file) => {
                let mut file = file.lock().map_err(|_| io::ErrorKind::Other)?;
                file.seek(SeekFrom::Start(at))?;
                file.read_exact(buffer)
            }
        }
    }

    /// Reads a part, which the caller has held against the length of the whole.
    fn part(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; usize::try_from(range.end - range.start).map_err(|_| io::ErrorKind::OutOfMemory)?];
        self.read_at(range.start, &mut buffer)?;
        Ok(buffer)
    }

    fn copy(&self, range: Range<u64>, out: &mut dyn Write) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 20];
        let mut at = range.start;
        while at < range.end {
            let part = (range.end - at).min(buffer.len() as u64) as usize;
            self.read_at(at, &mut buffer[..part])?;
            out.write_all(&buffer[..part])?;
            at += part as u64;
        }
        Ok(())
    }
}

/// A JSON of a program in the archive.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub name: String,
    member: usize,
    data: Range<u64>,
}

impl Model {
    /// The name of the program: `model` for `m/models/model.json`.
    pub fn stem(&self) -> &str {
        let file = self.name.rsplit('/').next().unwrap_or(&self.name);
        file.strip_suffix(".json").unwrap_or(file)
    }
}

/// A member, as the table has it.
#[derive(Clone, Debug)]
struct Member {
    name: Vec<u8>,
    flags: u16,
    method: u16,
    crc: u32,
    compressed: u64,
    expanded: u64,
    /// Where its own header starts.
    start: u64,
    /// Where its entry stands in the table.
    entry: Range<usize>,
    /// Where the table states the start: in 32 bits, or in the entry's 64-bit field.
    start_at: usize,
    start_is_wide: bool,
    sizes_are_wide: bool,
}

/// An archive.
#[derive(Clone, Debug)]
pub(super) struct Archive {
    source: Source,
    length: u64,
    table: Vec<u8>,
    table_start: u64,
    /// Where the record of 64 bits stands, if there is one.
    wide_end: Option<u64>,
    end: u64,
    members: Vec<Member>,
    models: Vec<Model>,
}

fn fault(problem: impl Into<String>) -> ExportError {
    ExportError::of_archive(problem, "a .pt2 archive as torch.export.save writes it")
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl Archive {
    pub fn of_bytes(bytes: Vec<u8>) -> Result<Self, ExportError> {
        let length = bytes.len() as u64;
        Self::new(Source::Bytes(bytes.into()), length)
    }

    pub fn of_file(mut file: File) -> Result<Self, ExportError> {
        let length = file.seek(SeekFrom::End(0)).map_err(|error| fault(format!("cannot read it: {error}")))?;
        Self::new(Source::File(Arc::new(Mutex::new(file))), length)
    }

    pub fn models(&self) -> &[Model] {
        &self.models
    }

    fn new(source: Source, length: u64) -> Result<Self, ExportError> {
        let unreadable = |error: io::Error| fault(format!("cannot read it: {error}"));
        // The end record stands before a comment of 65535 bytes at most.
        let tail_start = length.saturating_sub(22 + 0xffff);
        let tail = source.part(tail_start..length).map_err(unreadable)?;
        let truncated = || fault("the zip archive has no end record; is the file cut off?");
        let is_end =
            |&at: &usize| u16_at(&tail, at + 20).is_some_and(|comment| at + 22 + usize::from(comment) == tail.len());
        let at = memchr::memmem::rfind_iter(&tail, b"PK\x05\x06").find(is_end).ok_or_else(truncated)?;
        let number = |at| u32_at(&tail, at).map(u64::from).ok_or_else(truncated);
        let mut count = u16_at(&tail, at + 10).map(u64::from).ok_or_else(truncated)?;
        let (mut size, mut start) = (number(at + 12)?, number(at + 16)?);
        let end = tail_start + at as u64;
        let mut wide_end = None;
        if let Some(locator) = at.checked_sub(20).filter(|&locator| tail[locator..].starts_with(b"PK\x06\x07")) {
            let record_at = u64_at(&tail, locator + 8).ok_or_else(truncated)?;
            let fits = record_at.checked_add(56).is_some_and(|record_end| record_end <= end - 20);
            let record = if fits { source.part(record_at..record_at + 56).map_err(unreadable)? } else { Vec::new() };
            if !record.starts_with(b"PK\x06\x06") {
                return Err(fault("the zip archive's 64-bit end record is not where it should be"));
            }
            count = u64_at(&record, 32).unwrap_or(count);
            size = u64_at(&record, 40).unwrap_or(size);
            start = u64_at(&record, 48).unwrap_or(start);
            wide_end = Some(record_at);
        }
        let limit = wide_end.unwrap_or(end);
        let table_end = start.checked_add(size).filter(|&table_end| table_end <= limit && size <= LARGEST_TABLE);
        let Some(table_end) = table_end.filter(|_| count <= size / 46) else {
            return Err(fault("the zip archive's table of members does not fit into the file"));
        };
        let table = source.part(start..table_end).map_err(unreadable)?;
        let members = members(&table, count)?;
        let mut archive =
            Self { source, length, table, table_start: start, wide_end, end, members, models: Vec::new() };
        archive.check_names()?;
        archive.find_models()?;
        Ok(archive)
    }

    fn check_names(&self) -> Result<(), ExportError> {
        let mut names: Vec<&[u8]> = self.members.iter().map(|member| &*member.name).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => {
                Err(fault(format!("the archive has two members named `{}`", String::from_utf8_lossy(pair[0]))))
            }
            None => Ok(()),
        }
    }

    fn find_models(&mut self) -> Result<(), ExportError> {
        let mut starts: Vec<u64> = self.members.iter().map(|member| member.start).collect();
        starts.sort_unstable();
        for index in 0..self.members.len() {
            let name = String::from_utf8_lossy(&self.members[index].name).into_owned();
            if !is_model(&name) {
                continue;
            }
            let next = starts[starts.partition_point(|&start| start <= self.members[index].start)..].first();
            let data = self.data(index, *next.unwrap_or(&self.table_start)).map_err(|mut error| {
                error.member = Some(name.clone());
                error
            })?;
            self.models.push(Model { name, member: index, data });
        }
        if self.models.is_empty() {
            let problem = "the archive has no member `models/NAME.json`";
            return Err(ExportError::of_archive(
                problem,
                "a .pt2 archive as torch.export.save writes it; a file of \
                                                         torch.save holds no graph",
            ));
        }
        Ok(())
    }

    /// Where a member's data stands; `limit` is where the next one starts.
    fn data(&self, index: usize, limit: u64) -> Result<Range<u64>, ExportError> {
        let member = &self.members[index];
        let broken = || fault("its header is not where the table of members says, or its data does not fit");
        let header_end = member.start.checked_add(30).filter(|&end| end <= limit).ok_or_else(broken)?;
        let header = self.source.part(member.start..header_end).map_err(|_| broken())?;
        let lengths = u16_at(&header, 26).zip(u16_at(&header, 28)).ok_or_else(broken)?;
        let start = header_end + u64::from(lengths.0) + u64::from(lengths.1);
        let end = start.checked_add(member.compressed).filter(|&end| end <= limit && start <= limit);
        let (true, Some(end)) = (header.starts_with(b"PK\x03\x04"), end) else { return Err(broken()) };
        let name_end = header_end + u64::from(lengths.0);
        if self.source.part(header_end..name_end).map_err(|_| broken())? != member.name {
            return Err(fault("its own header has another name"));
        }
        if member.flags & ENCRYPTED != 0 {
            return Err(fault("it is encrypted"));
        }
        if !matches!(member.method, STORED | DEFLATED) {
            return Err(fault(format!("it is compressed by method {}; stored and deflate are read", member.method)));
        }
        if member.sizes_are_wide {
            return Err(fault("its size is stated in 64 bits, which is for members above 4 GiB"));
        }
        let most = SMALL_BYTES.saturating_add(LARGEST_RATIO.saturating_mul(member.compressed));
        if member.expanded > most || (member.method == STORED && member.expanded != member.compressed) {
            let (from, to) = (member.compressed, member.expanded);
            return Err(fault(format!(
                "{from} bytes are to expand to {to}, more than the {most} that are read of them"
            )));
        }
        Ok(start..end)
    }

    /// A JSON.
    pub fn read(&self, model: &Model) -> Result<Vec<u8>, ExportError> {
        let member = &self.members[model.member];
        let of_member = |problem: String| ExportError { member: Some(model.name.clone()), ..fault(problem) };
        let packed =
            self.source.part(model.data.clone()).map_err(|error| of_member(format!("cannot read it: {error}")))?;
        let bytes = match member.method {
            STORED => packed,
            _ => {
                let mut bytes = Vec::new();
                let mut reader = flate2::read::DeflateDecoder::new(&packed[..]).take(member.expanded + 1);
                reader
                    .read_to_end(&mut bytes)
                    .map_err(|error| of_member(format!("it does not decompress: {error}")))?;
                bytes
            }
        };
        if bytes.len() as u64 != member.expanded || crc(&bytes) != member.crc {
            return Err(of_member("it is damaged: its bytes do not give the checksum and size that are stated".into()));
        }
        Ok(bytes)
    }

    /// Writes the archive with other JSONs in the place of those that are given; all else is copied.
    pub fn write(&self, texts: &[Option<String>], out: &mut dyn Write) -> io::Result<()> {
        let mut changed: Vec<(&Model, &str)> =
            self.models.iter().zip(texts).filter_map(|(model, text)| Some((model, text.as_deref()?))).collect();
        if changed.is_empty() {
            return self.source.copy(0..self.length, out);
        }
        changed.sort_by_key(|(model, _)| model.data.start);
        let mut table = Table { bytes: self.table.clone(), moved: Vec::new() };
        let (mut at, mut shift) = (0, 0i64);
        for (model, text) in changed {
            let member = &self.members[model.member];
            let old_end = self.record_end(member);
            self.source.copy(at..member.start, out)?;
            let packed = pack(member.method, text.as_bytes())?;
            let header_length = model.data.start - member.start;
            let sizes = Sizes { crc: crc(text.as_bytes()), packed: packed.len(), expanded: text.len() };
            self.header(member, header_length, &sizes, out)?;
            out.write_all(&packed)?;
            // What follows keeps its place among multiples of 64.
            let length = header_length + packed.len() as u64;
            let old_length = old_end - member.start;
            let padding = (old_length % ALIGNMENT + ALIGNMENT - length % ALIGNMENT) % ALIGNMENT;
            out.write_all(&vec![0; padding as usize])?;
            table.set_sizes(member, &sizes)?;
            shift += (length + padding) as i64 - old_length as i64;
            table.moved.push((old_end, shift));
            at = old_end;
        }
        self.source.copy(at..self.table_start, out)?;
        table.move_members(&self.members)?;
        out.write_all(&table.bytes)?;
        self.write_end(shift, &table, out)
    }

    /// Where the next member or the table starts.
    fn record_end(&self, member: &Member) -> u64 {
        let later = self.members.iter().map(|other| other.start).filter(|&start| start > member.start);
        later.min().unwrap_or(self.table_start)
    }

    /// A member's own header, with sizes and checksum in it, so that nothing needs to stand behind the data.
    fn header(&self, member: &Member, length: u64, sizes: &Sizes, out: &mut dyn Write) -> io::Result<()> {
        let mut header = self.source.part(member.start..member.start + length)?;
        header[6..8].copy_from_slice(&(member.flags & !DESCRIPTOR).to_le_bytes());
        header[14..18].copy_from_slice(&sizes.crc.to_le_bytes());
        header[18..22].copy_from_slice(&narrow(sizes.packed)?);
        header[22..26].copy_from_slice(&narrow(sizes.expanded)?);
        out.write_all(&header)
    }

    /// What stands behind the table, with the table's new place in it.
    fn write_end(&self, shift: i64, table: &Table, out: &mut dyn Write) -> io::Result<()> {
        let table_end = self.table_start + self.table.len() as u64;
        let mut rest = self.source.part(table_end..self.length)?;
        let grown = table.bytes.len() as i64 - self.table.len() as i64;
        let at = (self.end - table_end) as usize;
        let start = self.table_start.saturating_add_signed(shift);
        if let Some(record) = self.wide_end {
            let record_at = (record - table_end) as usize;
            rest[record_at + 40..record_at + 48].copy_from_slice(&(table.bytes.len() as u64).to_le_bytes());
            rest[record_at + 48..record_at + 56].copy_from_slice(&start.to_le_bytes());
            let record = record.saturating_add_signed(shift + grown);
            rest[at - 12..at - 4].copy_from_slice(&record.to_le_bytes());
        }
        let wide = |value: u64| self.wide_end.is_some() && value >= u64::from(u32::MAX);
        let word = |value: u64| {
            let narrow = u32::try_from(value).map_err(|_| io::Error::other("the archive passes 4 GiB"));
            if wide(value) { Ok(u32::MAX) } else { narrow }
        };
        rest[at + 12..at + 16].copy_from_slice(&word(table.bytes.len() as u64)?.to_le_bytes());
        rest[at + 16..at + 20].copy_from_slice(&word(start)?.to_le_bytes());
        out.write_all(&rest)
    }
}

/// What is stated of a new JSON, beside the header and in the table.
struct Sizes {
    crc: u32,
    packed: usize,
    expanded: usize,
}

/// The table of members as it becomes.
struct Table {
    bytes: Vec<u8>,
    /// From which byte on members move, and how far.
    moved: Vec<(u64, i64)>,
}

impl Table {
    fn set_sizes(&mut self, member: &Member, sizes: &Sizes) -> io::Result<()> {
        let entry = &mut self.bytes[member.entry.clone()];
        entry[8..10].copy_from_slice(&(member.flags & !DESCRIPTOR).to_le_bytes());
        entry[16..20].copy_from_slice(&sizes.crc.to_le_bytes());
        entry[20..24].copy_from_slice(&narrow(sizes.packed)?);
        entry[24..28].copy_from_slice(&narrow(sizes.expanded)?);
        Ok(())
    }

    fn move_members(&mut self, members: &[Member]) -> io::Result<()> {
        for member in members {
            let shift = self.moved.iter().rev().find(|(from, _)| *from <= member.start).map_or(0, |(_, shift)| *shift);
            let start = member.start.saturating_add_signed(shift);
            let at = member.start_at;
            if member.start_is_wide {
                self.bytes[at..at + 8].copy_from_slice(&start.to_le_bytes());
                continue;
            }
            let start = u32::try_from(start).ok().filter(|&start| start < u32::MAX);
            let start = start.ok_or_else(|| {
                io::Error::other("a member would start behind 4 GiB, where the archive has no room to say so")
            })?;
            self.bytes[at..at + 4].copy_from_slice(&start.to_le_bytes());
        }
        Ok(())
    }
}

fn narrow(size: usize) -> io::Result<[u8; 4]> {
    let size = u32::try_from(size).ok().filter(|&size| size < u32::MAX);
    size.map(u32::to_le_bytes).ok_or_else(|| io::Error::other("a JSON passes 4 GiB"))
}

fn crc(bytes: &[u8]) -> u32 {
    let mut hasher = flate2::Crc::new();
    hasher.update(bytes);
    hasher.sum()
}

fn pack(method: u16, bytes: &[u8]) -> io::Result<Vec<u8>> {
    if method == STORED {
        return Ok(bytes.to_vec());
    }
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// Whether a member is the JSON of a program: `m/models/model.json`, or what PyTorch before 2.8 wrote.
fn is_model(name: &str) -> bool {
    let mut parts = name.rsplit('/');
    let (file, folder) = (parts.next().unwrap_or_default(), parts.next());
    (folder == Some("models") && file.ends_with(".json")) || name == "serialized_exported_program.json"
}

fn members(table: &[u8], count: u64) -> Result<Vec<Member>, ExportError> {
    let mut members = Vec::with_capacity(count as usize);
    let mut at = 0;
    for _ in 0..count {
        let member = entry(table, at).ok_or_else(|| fault("the zip archive's table of members is damaged"))?;
        at = member.entry.end;
        members.push(member);
    }
    Ok(members)
}

fn entry(table: &[u8], at: usize) -> Option<Member> {
    if !table.get(at..)?.starts_with(b"PK\x01\x02") {
        return None;
    }
    let length = |offset: usize| u16_at(table, at + offset).map(usize::from);
    let name_start = at + 46;
    let extra_start = name_start + length(28)?;
    let extra_end = extra_start + length(30)?;
    let end = extra_end + length(32)?;
    let mut member = Member {
        name: table.get(name_start..extra_start)?.to_vec(),
        flags: u16_at(table, at + 8)?,
        method: u16_at(table, at + 10)?,
        crc: u32_at(table, at + 16)?,
        compressed: u32_at(table, at + 20)?.into(),
        expanded: u32_at(table, at + 24)?.into(),
        start: u32_at(table, at + 42)?.into(),
        entry: at..end,
        start_at: at + 42,
        start_is_wide: false,
        sizes_are_wide: false,
    };
    table.get(extra_end..end)?;
    wide_numbers(table, extra_start..extra_end, &mut member)?;
    Some(member)
}

/// Reads the numbers that do not fit into 32 bits.
fn wide_numbers(table: &[u8], extra: Range<usize>, member: &mut Member) -> Option<()> {
    let mut at = extra.start;
    while at + 4 <= extra.end {
        let (id, length) = (u16_at(table, at)?, usize::from(u16_at(table, at + 2)?));
        let (mut number, end) = (at + 4, at + 4 + length);
        if end > extra.end {
            return None;
        }
        if id == 1 {
            let mut wide = |value: &mut u64| -> Option<bool> {
                if *value != u64::from(u32::MAX) {
                    return Some(false);
                }
                *value = (number + 8 <= end).then(|| u64_at(table, number))??;
                number += 8;
                Some(true)
            };
            member.sizes_are_wide = wide(&mut member.expanded)? | wide(&mut member.compressed)?;
            let is_wide = wide(&mut member.start)?;
            if is_wide {
                member.start_is_wide = true;
                member.start_at = number - 8;
            }
        }
        at = end;
    }
    Some(())
}
