//! Zip archives for tests: written as PyTorch lays them out, and read by their table.

use std::io::{Read as _, Write as _};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    Stored,
    Deflated,
}

pub struct Member {
    pub name: String,
    pub crc: u32,
    pub data: Vec<u8>,
    /// Where its data starts.
    pub start: usize,
}

pub fn crc(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

fn numbers(out: &mut Vec<u8>, short: &[u16], long: &[u32]) {
    short.iter().for_each(|number| out.extend(number.to_le_bytes()));
    long.iter().for_each(|number| out.extend(number.to_le_bytes()));
}

/// An archive of these members, each padded to a multiple of 64 bytes.
pub fn archive(files: &[(&str, &[u8], Method)]) -> Vec<u8> {
    let (mut out, mut table) = (Vec::new(), Vec::new());
    for (name, data, method) in files {
        let packed = match method {
            Method::Stored => data.to_vec(),
            Method::Deflated => {
                let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
                encoder.write_all(data).unwrap();
                encoder.finish().unwrap()
            }
        };
        let code = if *method == Method::Stored { 0 } else { 8 };
        let start = out.len();
        let padding = 4 + (64 - (start + 34 + name.len()) % 64) % 64;
        let sizes = [crc(data), packed.len() as u32, data.len() as u32];
        out.extend(b"PK\x03\x04");
        numbers(&mut out, &[20, 0, code, 0, 0], &sizes);
        numbers(&mut out, &[name.len() as u16, padding as u16], &[]);
        out.extend(name.as_bytes());
        out.extend(b"FB");
        numbers(&mut out, &[padding as u16 - 4], &[]);
        out.resize(out.len() + padding - 4, b'Z');
        out.extend(packed);
        table.extend(b"PK\x01\x02");
        numbers(&mut table, &[20, 20, 0, code, 0, 0], &sizes);
        numbers(&mut table, &[name.len() as u16, 0, 0, 0, 0], &[0, start as u32]);
        table.extend(name.as_bytes());
    }
    let (start, count) = (out.len() as u32, files.len() as u16);
    out.extend(&table);
    out.extend(b"PK\x05\x06");
    numbers(&mut out, &[0, 0, count, count], &[table.len() as u32, start]);
    numbers(&mut out, &[0], &[]);
    out
}

fn short(bytes: &[u8], at: usize) -> usize {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()).into()
}

fn long(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// All members in the order of the table.
pub fn members(archive: &[u8]) -> Vec<Member> {
    let end = archive.len() - 22;
    assert!(archive[end..].starts_with(b"PK\x05\x06"));
    let mut at = long(archive, end + 16);
    let mut members = Vec::new();
    for _ in 0..short(archive, end + 10) {
        assert!(archive[at..].starts_with(b"PK\x01\x02"));
        let (name, header) = (short(archive, at + 28), long(archive, at + 42));
        assert!(archive[header..].starts_with(b"PK\x03\x04"));
        let start = header + 30 + short(archive, header + 26) + short(archive, header + 28);
        let packed = &archive[start..start + long(archive, at + 20)];
        let mut data = Vec::new();
        match short(archive, at + 10) {
            0 => data.extend(packed),
            _ => drop(flate2::read::DeflateDecoder::new(packed).read_to_end(&mut data).unwrap()),
        }
        members.push(Member {
            name: String::from_utf8(archive[at + 46..at + 46 + name].to_vec()).unwrap(),
            crc: long(archive, at + 16) as u32,
            data,
            start,
        });
        at += 46 + name + short(archive, at + 30) + short(archive, at + 32);
    }
    members
}
