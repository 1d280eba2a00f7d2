//! How fast buckets move, beside copies within the device.

use crate::bound::{Bound, Numbers};
use bucketeer_cuda::Context;
use bucketeer_cuda::nvrtc::{Nvrtc, NvrtcError};
use std::error::Error;
use std::time::Duration;

/// What is packed and unpacked.
struct Case {
    name: &'static str,
    /// Dtype of members, its bytes, and whether the bucket is `bf16`.
    dtype: &'static str,
    width: u64,
    narrow: bool,
    /// Elements of each member.
    members: Vec<u64>,
    /// Ranks whose parts lie interleaved.
    ranks: u64,
}

/// 200 members of 1 KiB to 1 MiB, as `scripts/gpu_check_torch.py` has them: the same sum of bytes, whatever the dtype.
pub fn mixed(width: u64) -> Vec<u64> {
    let mut numbers = Numbers::new(7);
    (0..200).map(|_| (1u64 << (10 + numbers.below(10))) + 16 * numbers.below(512)).map(|bytes| bytes / width).collect()
}

fn cases(quick: bool) -> Vec<Case> {
    let large = if quick { 1 << 16 } else { 256 << 20 };
    let rows = if quick { 64 } else { 4096 };
    vec![
        Case {
            name: "200 of 1 KiB to 1 MiB, bf16",
            dtype: "bf16",
            width: 2,
            narrow: true,
            members: mixed(2),
            ranks: 1,
        },
        Case { name: "200 of 1 KiB to 1 MiB, f32", dtype: "f32", width: 4, narrow: false, members: mixed(4), ranks: 1 },
        Case {
            name: "200 of 1 KiB to 1 MiB, f32 to bf16",
            dtype: "f32",
            width: 4,
            narrow: true,
            members: mixed(4),
            ranks: 1,
        },
        Case { name: "200 of 4 KiB, bf16", dtype: "bf16", width: 2, narrow: true, members: vec![2048; 200], ranks: 1 },
        Case {
            name: "one of 256 MiB, bf16",
            dtype: "bf16",
            width: 2,
            narrow: true,
            members: vec![large / 2],
            ranks: 1,
        },
        Case {
            name: "one of 256 MiB, f32 to bf16",
            dtype: "f32",
            width: 4,
            narrow: true,
            members: vec![large / 4],
            ranks: 1,
        },
        Case {
            name: "8 of 32 MiB, f32, rank-major of 8",
            dtype: "f32",
            width: 4,
            narrow: false,
            members: vec![8 * 256 * rows; 8],
            ranks: 8,
        },
    ]
}

impl Case {
    /// A pack of all members into one buffer and an unpack out of it, as a program's text.
    fn text(&self) -> String {
        let Self { dtype, width, ranks, .. } = self;
        let (bucket, bucket_width) = if self.narrow { ("bf16", 2) } else { (*dtype, *width) };
        let (mut buffers, mut inputs, mut packs, mut unpacks) =
            (String::new(), String::new(), String::new(), String::new());
        // Bytes of one rank's part.
        let part = |elements: u64| (elements / ranks * bucket_width).next_multiple_of(16);
        let chunk: u64 = self.members.iter().map(|elements| part(*elements)).sum();
        let mut at = 0;
        for (member, elements) in self.members.iter().enumerate() {
            let each = elements / ranks;
            let stride = chunk / bucket_width;
            buffers += &format!("  buffer a{member}: input {} align 16\n", each * ranks * width);
            inputs += &format!("  input a{member} = {dtype}[{}] a{member}\n", each * ranks);
            packs +=
                &format!("    {dtype}[{ranks}, {each}] a{member} -> {bucket}[{ranks}, {each}][{stride}, 1] c+{at}\n");
            unpacks +=
                &format!("    {bucket}[{ranks}, {each}][{stride}, 1] c+{at} -> {dtype}[{ranks}, {each}] a{member}\n");
            at += part(*elements);
        }
        let bytes = chunk * ranks;
        format!(
            "program bucket align 16 {{\n  arena comm {bytes} live {bytes}\n{buffers}  buffer c: comm {bytes} align 16 at 0:0\n\
             {inputs}  s0 cat: pack {{\n{packs}  }}\n  s1 split: unpack {{\n{unpacks}  }}\n  output () ()\n}}\n"
        )
    }
}

/// The best of several runs of some work on a stream.
fn best(
    bound: &Bound,
    context: &Context,
    runs: usize,
    work: impl Fn() -> Result<(), Box<dyn Error>>,
) -> Result<Duration, Box<dyn Error>> {
    let (start, end) = (context.timing_event()?, context.timing_event()?);
    let mut best = Duration::MAX;
    for _ in 0..runs {
        bound.stream.record(&start)?;
        work()?;
        bound.stream.record(&end)?;
        end.synchronize()?;
        best = best.min(end.since(&start)?);
    }
    Ok(best)
}

pub fn table(
    context: &Context,
    kernel: &str,
    nvrtc: Result<&Nvrtc, &NvrtcError>,
    quick: bool,
) -> Result<(), Box<dyn Error>> {
    let runs = if quick { 2 } else { 50 };
    println!(
        "{kernel:36} {:>12} {:>10} {:>10} {:>10} {:>8} {:>8}",
        "bytes moved", "pack", "unpack", "copy", "pack /", "unpack /"
    );
    println!("{:36} {:>12} {:>10} {:>10} {:>10} {:>8} {:>8}", "", "", "GB/s", "GB/s", "GB/s", "copy", "copy");
    for case in cases(quick) {
        let bound = Bound::new(context, &case.text(), nvrtc)?;
        let bytes = bound.moved_bytes[0];
        let half = usize::try_from(bytes / 2)?;
        let (from, to) = (context.alloc(half)?, context.alloc(half)?);
        let copy = best(&bound, context, runs, || Ok(bound.stream.copy(&from, 0..half, &to, 0)?))?;
        let pack = best(&bound, context, runs, || bound.launch(0))?;
        let unpack = best(&bound, context, runs, || bound.launch(1))?;
        let rate = |time: Duration, bytes: u64| bytes as f64 / time.as_secs_f64() / 1e9;
        let [pack, unpack, copy] =
            [(pack, bytes), (unpack, bound.moved_bytes[1]), (copy, bytes)].map(|(t, b)| rate(t, b));
        println!(
            "{:36} {bytes:>12} {pack:>10.1} {unpack:>10.1} {copy:>10.1} {:>8.2} {:>8.2}",
            case.name,
            pack / copy,
            unpack / copy
        );
    }
    Ok(())
}
