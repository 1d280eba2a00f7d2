//! What ranks print, line by line.

use std::io::{self, Read, Write};
use std::sync::{Mutex, PoisonError};

/// Longest line that is kept together; a longer one is cut, so that memory is bounded.
const LONGEST_LINE: usize = 1 << 16;

/// Held while a line is written: standard output and standard error may be the same file.
static WRITING: Mutex<()> = Mutex::new(());

fn write(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    to.write_all(bytes)?;
    to.flush()
}

/// Passes bytes on as they are, whole lines at a time. Ends with the input, or once nobody reads the output.
pub fn pass_on(from: impl Read, mut to: impl Write) {
    let _ = each_part(from, |part, _| write(&mut to, part));
}

/// Writes each line behind a prefix. If nobody reads it, that is no reason to stop.
pub fn with_prefix(from: impl Read, mut to: impl Write, prefix: &str) {
    let mut out = Vec::new();
    let _ = each_part(from, |part, ends| {
        out.clear();
        for line in part.split_inclusive(|&byte| byte == b'\n') {
            out.extend_from_slice(prefix.as_bytes());
            out.extend_from_slice(line);
        }
        if !ends {
            out.push(b'\n');
        }
        let _ = write(&mut to, &out);
        Ok(())
    });
}

/// Reads to the end, and hands over parts: whole lines (`true`), or, of a line that is too long or the last one without
/// an end, a piece (`false`).
fn each_part(mut from: impl Read, mut take: impl FnMut(&[u8], bool) -> io::Result<()>) -> io::Result<()> {
    let mut bytes = vec![0; LONGEST_LINE];
    let mut len = 0;
    loop {
        let read = match from.read(&mut bytes[len..]) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if read == 0 {
            return if len > 0 { take(&bytes[..len], false) } else { Ok(()) };
        }
        let before = len;
        len += read;
        // Older bytes have no line's end.
        let end = match bytes[before..len].iter().rposition(|&byte| byte == b'\n') {
            Some(at) => before + at + 1,
            None if len == bytes.len() => char_boundary(&bytes),
            None => continue,
        };
        take(&bytes[..end], bytes[end - 1] == b'\n')?;
        bytes.copy_within(end..len, 0);
        len -= end;
    }
}

/// Where to cut bytes that may be text, so that no character is.
fn char_boundary(bytes: &[u8]) -> usize {
    let starts = |byte: &u8| byte & 0xc0 != 0x80;
    let last = bytes.iter().rev().take(4).position(starts).map_or(0, |back| back + 1);
    match bytes.get(bytes.len() - last) {
        // A character whose first byte says that there are more than are here.
        Some(&first)
            if last > 0
                && usize::from(first >= 0xc0) + usize::from(first >= 0xe0) + usize::from(first >= 0xf0) >= last =>
        {
            bytes.len() - last
        }
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a few bytes at a time.
    struct Slow<'a>(&'a [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let len = self.1.min(self.0.len()).min(buffer.len());
            buffer[..len].copy_from_slice(&self.0[..len]);
            self.0 = &self.0[len..];
            Ok(len)
        }
    }

    fn prefixed(text: &str, step: usize) -> String {
        let mut out = Vec::new();
        with_prefix(Slow(text.as_bytes(), step), &mut out, "[rank 2] ");
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_line_gets_a_prefix_however_it_comes() {
        for step in [1, 2, 5, 100] {
            assert_eq!(prefixed("a\n\nbc\nlast", step), "[rank 2] a\n[rank 2] \n[rank 2] bc\n[rank 2] last\n");
            assert_eq!(prefixed("", step), "");
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_between_characters() {
        for start in ["", "a", "ab"] {
            let text = format!("{start}{}\nend\n", "€".repeat(LONGEST_LINE));
            let out = prefixed(&text, 1000);
            let lines: Vec<&str> = out.lines().collect();
            assert!(lines.len() > 3 && lines.iter().all(|line| line.len() <= LONGEST_LINE + 9), "{start}");
            assert_eq!(out.replace("[rank 2] ", "").replace('\n', ""), text.replace('\n', ""));
        }
        let mut exact = "x".repeat(LONGEST_LINE - 1);
        exact.push('\n');
        assert_eq!(prefixed(&exact, 4096), format!("[rank 2] {exact}"));
    }

    #[test]
    fn what_is_passed_on_is_not_changed() {
        let bytes: Vec<u8> = (0..300_000_u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        for step in [7, 1 << 20] {
            let mut out = Vec::new();
            pass_on(Slow(&bytes, step), &mut out);
            assert!(out == bytes);
        }
        let long = vec![0x80; LONGEST_LINE * 2];
        let mut out = Vec::new();
        pass_on(&*long, &mut out);
        assert!(out == long);
    }
}
